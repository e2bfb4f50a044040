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
        return bool(mask_.allowed[k, j])
    return j <= k


def activation(name: str, z: float) -> float:
    if name == "relu":
        return max(z, 0.0)
    if name == "gelu":
        return 0.5 * z * math.erfc(-z / math.sqrt(2))
    if name == "silu":
        return z / (1 + math.exp(-z)) if z > -700 else 0.0
    return math.tanh(z) if name == "tanh" else z


def slow_attention(m: ms.Attention, x: np.ndarray, k: int) -> np.ndarray:
    """A_k by a loop over the pairs, straight from the definitions."""
    n, d = x.shape
    total = np.zeros(d)
    identity = np.eye(d)
    for h, slope in zip(m.all_heads, m.slopes):
        Q = identity if h.query is None else h.query
        K = identity if h.key is None else h.key
        V = identity if h.value is None else h.value
        logit, mass, values = [], [], []
        for j in range(n):
            if sees(m.mask, k, j, n):
                logit.append(h.beta * float((Q @ x[k]) @ (K @ x[j])) - slope * abs(k - j))
                mass.append(1.0 if m.masses is None else float(m.masses[j]))
                values.append(V @ x[j])
        if m.frozen is not None:
            for anchor, weight in zip(m.frozen.tokens, m.frozen.weights):
                if weight > 0:
                    logit.append(h.beta * float((Q @ x[k]) @ (K @ anchor)))
                    mass.append(float(weight))
                    values.append(V @ anchor)
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
            norm = math.fsum(mass)
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
