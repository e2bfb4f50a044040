"""Random models and an independent, slow right-hand side: the ground truth of the equivalence tests."""

from __future__ import annotations

import math

import numpy as np

import metastable as ms

MASKS = ("causal", "full", "window", "sink", "prefix", "matrix")
NORMS = (ms.PostLN(), ms.PreLN(), ms.MixLN(0.7), ms.PeriLN(), ms.NGPT(0.6), ms.SqrtScaling())
WEIGHTS = ("softmax", "unnormalized", "hardmax")


def tokens(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """n uniform tokens on the sphere of R^d."""
    x = rng.standard_normal((n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def mask(kind: str, rng: np.random.Generator, n: int):
    """A random mask of the given kind for n tokens."""
    if kind == "matrix":
        allowed = rng.random((n, n)) < 0.5
        np.fill_diagonal(allowed, True)
        return ms.Mask(allowed)
    size = int(rng.integers(1, n + 2))
    return {
        "causal": ms.Causal(),
        "full": ms.Full(),
        "window": ms.Window(size),
        "sink": ms.Sink(int(rng.integers(1, 4)), size),
        "prefix": ms.Prefix(size),
    }[kind]


def head(rng: np.random.Generator, d: int, beta: float) -> ms.Head:
    """A head with random matrices, each left out (the identity) now and then."""
    pick = [rng.normal(size=(d, d)) / math.sqrt(d) if rng.random() < 0.8 else None for _ in range(3)]
    return ms.Head(pick[0], pick[1], pick[2], beta)


def model(rng: np.random.Generator, n: int, d: int, beta: float, kind: str = "causal", heads: int = 1, **fields):
    """A random model; frozen tokens, bias and feed-forward come in at random unless given."""
    if "frozen" not in fields and rng.random() < 0.4:
        fields["frozen"] = ms.Frozen(tokens(rng, 3, d), rng.uniform(0, 2, 3))
    if "bias" not in fields and rng.random() < 0.4:
        fields["bias"] = ms.ALiBi(float(rng.uniform(0, 1)))
    if "feedforward" not in fields and rng.random() < 0.3:
        activation = str(rng.choice(["relu", "gelu", "silu", "tanh", "identity"]))
        fields["feedforward"] = ms.FeedForward(
            rng.normal(size=(5, d)), rng.normal(size=5), rng.normal(size=(d, 5)), rng.normal(size=d), activation
        )
    return ms.Attention(dim=d, heads=tuple(head(rng, d, beta) for _ in range(heads)), mask=mask(kind, rng, n), **fields)


def wide_head(rng: np.random.Generator, d: int, beta: float) -> ms.Head:
    """A head of a transformer: of low rank now and then, with or without an output, biases and rotary positions."""
    rank, size = int(rng.integers(1, d + 3)), int(rng.integers(1, d + 3))
    low, out = rng.random() < 0.7, rng.random() < 0.6
    rank = rank if low else d
    size = size if out else d
    rotary = None
    if rank >= 2 and rng.random() < 0.6:
        dims = 2 * int(rng.integers(1, rank // 2 + 1))
        base = float(rng.choice([10.0, 10000.0]))
        rotary = ms.Rotary(base, None if dims == rank else dims, bool(rng.random() < 0.5))

    def matrix(rows, columns, chance):
        return rng.normal(size=(rows, columns)) / math.sqrt(columns) if rng.random() < chance else None

    return ms.Head(
        matrix(rank, d, 1.0 if low else 0.7),
        matrix(rank, d, 1.0 if low else 0.7),
        matrix(size, d, 1.0 if size != d else 0.7),
        beta * float(rng.choice([1.0, 1.0, -0.5])),
        output=matrix(d, size, 1.0) if out else None,
        rotary=rotary,
        query_bias=rng.normal(size=rank) if rng.random() < 0.4 else None,
        key_bias=rng.normal(size=rank) if rng.random() < 0.4 else None,
        value_bias=rng.normal(size=size) if rng.random() < 0.4 else None,
    )


def wide_model(seed: int) -> tuple[ms.Attention, np.ndarray, np.ndarray | None]:
    """Model `seed` with everything that is matrix work, its tokens, and radii where its norm has some."""
    rng = np.random.default_rng([seed, 16])
    n, d, heads = int(rng.integers(1, 14)), int(rng.integers(2, 9)), int(rng.integers(1, 4))
    kind = MASKS[seed % 6]
    fields: dict = {"norm": NORMS[seed // 2 % 6], "weights": WEIGHTS[(0, 0, 1, 0, 2)[seed % 5]]}
    if rng.random() < 0.3:
        fields["masses"] = 10.0 ** rng.uniform(-2.0, 2.0, n)
    if rng.random() < 0.5:
        shape = (n, n) if rng.random() < 0.5 else (heads, n, n)
        fields["bias"] = ms.LogitBias(rng.normal(size=shape))
    made = model(rng, n, d, float(rng.choice([0.3, 4.0])), kind, heads, **fields)
    made = made.replace(heads=tuple(wide_head(rng, d, head.beta) for head in made.all_heads))
    if seed % 7 == 0:
        made = made.replace(mask=ms.Mask(lambda k, j: j == k or (j < k and (k - j) % 3 != 1)))
    if seed % 11 == 0:
        made = made.replace(mask=(ms.Causal, ms.Full)[seed % 2](include_self=False))
    radius = rng.uniform(0.5, 2.0, n) if made.norm.has_radius else None
    return made, tokens(rng, n, d), radius


def sees(mask_, k: int, j: int, n: int) -> bool:
    """The definition of each mask, pair by pair."""
    if k == j and not getattr(mask_, "include_self", True):
        return False
    if isinstance(mask_, ms.Full):
        return True
    if isinstance(mask_, ms.Window):
        return k - mask_.width < j <= k
    if isinstance(mask_, ms.Sink):
        return j <= k and (j < mask_.sinks or k - mask_.width < j)
    if isinstance(mask_, ms.Prefix):
        return j <= k or (k < mask_.length and j < mask_.length)
    if isinstance(mask_, ms.Mask):
        return bool(mask_.allowed(k, j) if callable(mask_.allowed) else mask_.allowed[k, j])
    return j <= k


def activation(name: str, z: float) -> float:
    if name == "relu":
        return max(z, 0.0)
    if name == "gelu":
        return 0.5 * z * math.erfc(-z / math.sqrt(2))
    if name == "silu":
        return z / (1 + math.exp(-z)) if z > -700 else 0.0
    return math.tanh(z) if name == "tanh" else z


def turned(rotary: ms.Rotary, vector: np.ndarray, position: int) -> np.ndarray:
    """A query or key at its position: each pair of numbers as a complex one, turned."""
    out = vector.copy()
    dims = len(vector) if rotary.dims is None else rotary.dims
    for i in range(dims // 2):
        a, b = (2 * i, 2 * i + 1) if rotary.interleaved else (i, i + dims // 2)
        angle = position * (rotary.base ** (-2 * i / dims) if rotary.frequencies is None else rotary.frequencies[i])
        number = complex(vector[a], vector[b]) * complex(math.cos(angle), math.sin(angle))
        out[a], out[b] = number.real, number.imag
    return out


def mapped(matrix, vector, bias) -> np.ndarray:
    """matrix vector + bias, None for what is not there."""
    out = vector if matrix is None else np.array([math.fsum(row * vector) for row in matrix])
    return out if bias is None else out + bias


def added_logit(m: ms.Attention, number: int, k: int, j: int) -> float:
    """What the bias adds for head `number` and two tokens."""
    if isinstance(m.bias, ms.LogitBias):
        matrix = m.bias.matrix
        return float(matrix[k, j] if matrix.ndim == 2 else matrix[number, k, j])
    return -m.slopes[number] * abs(k - j)


def slow_attention(m: ms.Attention, x: np.ndarray, k: int) -> np.ndarray:
    """A_k by a loop over the pairs, straight from the definitions."""
    n, d = x.shape
    total = np.zeros(d)
    for number, h in enumerate(m.all_heads):
        query = mapped(h.query, x[k], h.query_bias)
        turned_query = query if h.rotary is None else turned(h.rotary, query, k)
        logit, mass, added, values = [], [], [], []
        for j in range(n):
            if sees(m.mask, k, j, n):
                key = mapped(h.key, x[j], h.key_bias)
                if h.rotary is not None:
                    key = turned(h.rotary, key, j)
                added.append(added_logit(m, number, k, j))
                logit.append(h.beta * float(turned_query @ key) + added[-1])
                mass.append(1.0 if m.masses is None else float(m.masses[j]))
                values.append(mapped(h.output, mapped(h.value, x[j], h.value_bias), None))
        if m.frozen is not None:
            for anchor, weight in zip(m.frozen.tokens, m.frozen.weights):
                if weight > 0:
                    logit.append(h.beta * float(query @ mapped(h.key, anchor, h.key_bias)))
                    mass.append(float(weight))
                    added.append(0.0)
                    values.append(mapped(h.output, mapped(h.value, anchor, h.value_bias), None))
        if not logit:  # who sees nobody feels nothing
            continue
        top = max(logit)
        if m.weights == "hardmax":
            share = [a if l >= top - m.tie_tolerance * max(1, abs(top)) else 0.0 for l, a in zip(logit, mass)]
            norm = math.fsum(share)
        elif m.weights == "softmax":
            share = [a * math.exp(l - top) for l, a in zip(logit, mass)]
            norm = math.fsum(share)
        else:
            share = [a * math.exp(l) for l, a in zip(logit, mass)]
            norm = math.fsum(a * math.exp(b) for a, b in zip(mass, added))
        for s, v in zip(share, values):
            total = total + s / norm * v
    if m.feedforward is not None:
        f = m.feedforward
        hidden = [activation(f.activation, float(row @ x[k] + b)) for row, b in zip(f.w1, f.b1)]
        total = total + f.w2 @ np.array(hidden) + f.b2
    return total


def slow_velocity(m: ms.Attention, x: np.ndarray, t: float = 0.0, radius: np.ndarray | None = None) -> tuple:
    """(dx/dt, dr/dt or None), token by token."""
    n, d = x.shape
    out, radial = np.zeros((n, d)), np.zeros(n)
    for k in range(n):
        A = slow_attention(m, x, k)
        length = float(np.linalg.norm(A)) or 1.0
        r = 1.0 if radius is None else radius[k]
        along = float(x[k] @ A)
        norm = m.norm
        if isinstance(norm, ms.MixLN):
            norm = ms.PostLN() if t < norm.tau else ms.PreLN()
        s = {
            ms.PostLN: 1.0,
            ms.PreLN: r,
            ms.PeriLN: r * length,
            ms.NGPT: length / getattr(norm, "alpha", 1.0),
            ms.SqrtScaling: math.sqrt(t + 1),
        }[type(norm)]
        out[k] = (A - along * x[k]) / s
        radial[k] = {ms.PreLN: along, ms.PeriLN: along / length}.get(type(norm), 0.0)
    return out, radial
