"""The readable engine: every variant of the dynamics in NumPy. The oracle that the fast engines are tested against.

Notation: `x` (n, d) unit tokens, `A` (n, d) the attention sum, P the tangent projection. With M = Q^T K the logit of tokens k, j
is `beta x_k^T M x_j` plus the bias; heads of low rank, with biases or rotary positions keep their factors (`model.heads`).
The row maximum is subtracted before exponentials, so nothing overflows. A token that sees nobody feels nothing: A = 0.

Norms, masks and biases are read by their declared laws alone, so new ones need nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import NumericalRangeError, UnsupportedError
from metastable.model import EVERY_PART, ALiBi, Attention, Head, Law, Masking, Rotary, Rule, Support, require, why_not

if TYPE_CHECKING:
    from metastable.kernels.protocol import RightHandSide

LOG_MAX = 709.0
"""exp of anything larger leaves double precision."""
BLOCK = 2**16
"""Weights that are held at a time: half a MiB, which stays in the cache."""
FEWEST = 64
"""Rows of a block, at least: products of fewer are slow."""


def _weights_rule(model: Attention, tokens: int | None) -> str | None:
    known = model.weighting.law is not None
    return None if known else f"does not know the weights {model.weighting!r}: they declare no law"


SUPPORT = Support(
    "engine='reference'",
    norms=None,
    masks=None,
    weights=None,
    biases=None,
    parts=EVERY_PART,
    use="give the class a law",
    rules=(Rule("weights", _weights_rule),),
)
"""Everything that declares its law."""

JACOBIAN = Support(
    "the analytic Jacobian",
    norms=frozenset({"post_ln"}),
    masks=None,
    weights=frozenset({"softmax"}),
    biases=None,
    parts=frozenset({"heads", "bilinear", "value", "frozen", "noise", "blind", "lonely"}),
    use="for other variants difference metastable.velocity numerically",
)


def refusal(model: Attention, tokens: int) -> str | None:
    """Why this engine cannot do the model, or None."""
    return why_not(model, SUPPORT, tokens)


def check_range(model: Attention) -> None:
    """Refuse logits that no engine can hold."""
    for number, head in enumerate(model.all_heads):
        with np.errstate(over="ignore", invalid="ignore"):
            if head.is_bilinear:
                size = head.beta * _reach(head.bilinear, None)
            else:
                size = head.beta * _reach(head.query, head.query_bias) * _reach(head.key, head.key_bias)
        if not np.isfinite(size):
            raise NumericalRangeError(
                f"the logits beta <Q x, K y> of head {number} leave double precision (1.8e308); lower beta, query or key"
            )


def _reach(matrix: FloatArray | None, bias: FloatArray | None) -> float:
    """A bound of the entries of `matrix x + bias` for unit x."""
    size = 1.0 if matrix is None else float(np.abs(matrix).sum())
    return size if bias is None else size + float(np.abs(bias).sum())


# ---------------------------------------------------------------------------------------------------- attention


class Sides(NamedTuple):
    """What one head makes of the tokens, before anybody is compared with anybody.

    Shapes: `queries` (rows, r), times beta and turned to their positions; `plain` (rows, r), the same not turned, for frozen
    tokens, which have no position; `keys` (n, r); `values` (n, s); `fixed_keys` (m, r); `fixed_values` (m, s).
    """

    queries: FloatArray
    plain: FloatArray
    keys: FloatArray
    values: FloatArray
    fixed_keys: FloatArray
    fixed_values: FloatArray


def turn(rotary: Rotary, rows: FloatArray, positions: FloatArray) -> FloatArray:
    """Rows (n, r) turned to their positions (n,): pair (a, b) becomes (a cos - b sin, b cos + a sin)."""
    angles = rotary.angles(positions, rows.shape[1])
    first, second = rotary.pairs(rows.shape[1])
    cosine, sine = np.cos(angles), np.sin(angles)
    out = rows.copy()
    out[:, first] = rows[:, first] * cosine - rows[:, second] * sine
    out[:, second] = rows[:, second] * cosine + rows[:, first] * sine
    return out


def sides(model: Attention, head: Head, x: FloatArray, first: int = 0) -> Sides:
    """Queries of the tokens from `first` on, keys and values of all of them: one thin matrix product each."""
    anchors = np.empty((0, model.dim)) if model.frozen is None else model.frozen.tokens
    if head.is_bilinear:
        queries = head.beta * _apply(None if head.bilinear is None else head.bilinear.T, x[first:])
        plain, keys, fixed = queries, x, anchors
    else:
        plain = head.beta * _apply(head.query, x[first:], head.query_bias)
        keys, fixed = _apply(head.key, x, head.key_bias), _apply(head.key, anchors, head.key_bias)
        queries = plain
        if head.rotary is not None:
            place = np.arange(len(x), dtype=float)
            queries, keys = turn(head.rotary, plain, place[first:]), turn(head.rotary, keys, place)
    values = _apply(head.value, x, head.value_bias)
    return Sides(queries, plain, keys, values, fixed, _apply(head.value, anchors, head.value_bias))


def weights_of_rows(
    model: Attention, number: int, side: Sides, rows: Rows, first: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Weights of head `number`, for some tokens, on the tokens of `rows.columns` and on the frozen ones, (rows, m).

    `side` is that of `sides(model, head, x, first)`.
    """
    n = len(side.keys)
    own, seen = slice(rows.start - first, rows.stop - first), rows.columns
    visible = model.mask.rows(n, rows.start, rows.stop)[:, seen]
    moving = side.queries[own] @ side.keys[seen].T
    added = added_logits(model, number, n, rows)
    if added is not None:
        moving += added
    np.copyto(moving, -np.inf, where=~visible)
    mass = np.empty(0) if model.frozen is None else np.asarray(model.frozen.weights)
    fixed = np.where(mass > 0, side.plain[own] @ side.fixed_keys.T, -np.inf)
    counted = visible if model.masses is None else visible * model.masses[seen]
    return _normalise(model, counted, added, moving, fixed, mass)


def added_logits(model: Attention, number: int, tokens: int, rows: Rows) -> FloatArray | None:
    """What the bias adds to the logits of head `number` for some tokens, (rows, columns); None: there is no bias."""
    if model.bias is None:
        return None
    place = np.arange(tokens, dtype=float)
    return model.bias.logits(number, len(model.all_heads), place[rows.start : rows.stop], place[rows.columns])


def log_visible(seen: Any, added: FloatArray | None, mass: float) -> FloatArray:
    """log of sum_j seen_kj exp(added_kj) + mass, (rows, 1): what unnormalised weights are divided by, which is softmax's divisor at
    beta = 0. `seen` (rows, n) is how often each token counts, `added` its bias, `mass` that of the frozen tokens. 0 for nobody.
    """
    if added is None:
        total, top = seen.sum(axis=1, keepdims=True) + mass, 0.0
    else:
        top = np.where(seen > 0, added, -np.inf).max(axis=1, keepdims=True)
        top = np.where(np.isneginf(top) | (mass > 0), np.maximum(top, 0.0), top)
        total = (seen * np.exp(np.minimum(added - top, 0.0))).sum(axis=1, keepdims=True)
        total += mass * np.exp(-np.maximum(top, 0.0))
    return np.where(total == 0, 0.0, np.log(np.where(total == 0, 1.0, total)) + top)


def _geometric(slope: float, ranges: np.ndarray) -> FloatArray:
    """sum_j exp(-slope |k - j|) over the ranges (tokens, 2, 2) of token k, by the closed sum of each side of k."""
    k = np.arange(len(ranges))[:, None]
    start, stop = ranges[:, :, 0], ranges[:, :, 1]
    total = np.zeros(len(ranges))
    # Distances of the range up to k, itself included, and of the range behind it.
    before = k - np.minimum(stop, k + 1) + 1, k - np.minimum(start, k + 1)
    behind = np.maximum(start, k + 1) - k, np.maximum(stop, k + 1) - 1 - k
    for least, most in (before, behind):
        length = np.maximum(most - least + 1, 0)
        share = np.expm1(-slope * length) / np.expm1(-slope) if slope > 0 else length
        total += (np.exp(-slope * least) * share).sum(axis=1)
    return total


def log_divisors(model: Attention, tokens: int) -> FloatArray:
    """`log_visible` of every head and token, (heads, tokens)."""
    mass = 0.0 if model.frozen is None else float(np.asarray(model.frozen.weights).sum())
    ranges = model.mask.intervals(tokens)
    if ranges is not None and model.masses is None and isinstance(model.bias, ALiBi | None):
        total = np.stack([_geometric(slope, ranges) for slope in model.slopes]) + mass
        if total.all():  # else somebody sees nobody, or only what a slope has made too small
            return np.log(total)
    masses = np.ones(tokens) if model.masses is None else model.masses
    out = np.empty((len(model.all_heads), tokens))
    for rows in blocks(model.mask, tokens):
        seen = model.mask.rows(tokens, rows.start, rows.stop)[:, rows.columns] * masses[rows.columns]
        for number in range(len(out)):
            added = added_logits(model, number, tokens, rows)
            out[number, rows.start : rows.stop] = log_visible(seen, added, mass)[:, 0]
    return out


def attention_weights(model: Attention, x: FloatArray, first: int = 0) -> list[tuple[FloatArray, FloatArray]]:
    """Per head: weights on the tokens, (rows, n), and on the frozen tokens, (rows, m), for the tokens from `first` on.

    The weights are those that multiply V x_j: softmax probabilities, `exp(logit)/count` for "unnormalized", or equal shares of
    the most attended for "hardmax".
    """
    model.check_count(len(x))
    rows = Rows(first, len(x), slice(0, len(x)))
    return [
        weights_of_rows(model, number, sides(model, head, x, first), rows, first)
        for number, head in enumerate(model.all_heads)
    ]


def _normalise(
    model: Attention, seen: Any, added: FloatArray | None, moving: FloatArray, fixed: FloatArray, mass: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Turn logits (minus infinity where invisible; they are overwritten) into weights, by the law that `model.weights` declares.

    `seen` (rows, n) is how often each token counts, 0 where it is not seen and its mass elsewhere; `added` the bias that its logit
    contains; `mass` that of the frozen tokens.
    """
    law = model.weighting.law
    if law is None:
        raise UnsupportedError(refusal(model, seen.shape[1]) or "")
    top = np.maximum(moving.max(axis=1), fixed.max(axis=1, initial=-np.inf))[:, None]
    # Where nobody is seen, any finite number will do: all weights are zero.
    top = np.where(np.isneginf(top), 0.0, top)
    if law.score == "largest":
        least = top - model.tie_tolerance * np.maximum(1.0, np.abs(top))
        moving, fixed = np.where(moving >= least, seen, 0.0), (fixed >= least) * mass
    else:
        # In place: passes over all pairs are what it costs. Whoever is not seen is exp(-inf) = 0 already.
        np.exp(np.subtract(moving, top, out=moving), out=moving)
        if model.masses is not None:
            moving *= seen
        fixed = np.exp(fixed - top) * mass
    if law.total == "weights":
        total = moving.sum(axis=1, keepdims=True) + fixed.sum(axis=1, keepdims=True)
        total = np.where(total == 0, 1.0, total)
        moving /= total
        return moving, fixed / total
    logit = top if law.score == "exponential" else np.zeros_like(top)
    logit = logit - log_visible(seen, added, float(mass.sum()))
    if logit.max() > LOG_MAX:
        raise overflow(float(top.max()), LOG_MAX, "double")
    scale = np.exp(logit)
    return scale * moving, scale * fixed


def overflow(top: float, limit: float, precision: str) -> NumericalRangeError:
    """What is said of weights that leave a precision."""
    return NumericalRangeError(
        f"unnormalized attention overflows: a logit reaches {top:.4g}, and exp of more than {limit:.0f} leaves {precision} "
        "precision; lower beta or use weights='softmax'"
    )


def _apply(matrix: FloatArray | None, x: FloatArray, bias: FloatArray | None = None) -> FloatArray:
    """Rows of x mapped by a matrix (None: the identity), plus a bias."""
    mapped = x if matrix is None else x @ matrix.T
    return mapped if bias is None else mapped + bias


class Rows(NamedTuple):
    """The tokens start..stop-1, and the slice of all tokens that holds whomever one of them sees."""

    start: int
    stop: int
    columns: slice


def blocks(mask: Masking, tokens: int, first: int = 0, size: int = BLOCK, fewest: int = FEWEST) -> list[Rows]:
    """The rows first..tokens-1 in blocks whose weights fit `size` numbers (but at least `fewest` rows)."""
    count = max(fewest, size // tokens)
    ranges = mask.intervals(tokens)
    found = []
    for start in range(first, tokens, count):
        stop = min(start + count, tokens)
        columns = slice(0, tokens)
        if ranges is not None:
            # An empty range says nothing about where anybody is.
            some = ranges[start:stop].reshape(-1, 2)
            some = some[some[:, 1] > some[:, 0]]
            columns = slice(int(some[:, 0].min()), int(some[:, 1].max())) if len(some) else slice(0, 1)
        found.append(Rows(start, stop, columns))
    return found


def attention_sum(model: Attention, x: FloatArray, first: int = 0) -> FloatArray:
    """A_k, the drift before projection and norm (attention of all heads plus feed-forward), for the tokens from `first` on.

    Made in blocks of rows, so that memory is O(n (d + block)), and of thin products only: a head of ranks r and s costs
    O(n d (r + s) + n^2 (r + s)).
    """
    model.check_count(len(x))
    total = np.zeros((len(x) - first, model.dim))
    for part in head_sums(model, x, first):
        total[part.rows.start - first : part.rows.stop - first] += part.sums
    return total if model.feedforward is None else total + feed_forward(model, x[first:])


class HeadSums(NamedTuple):
    """What one head makes of some rows: sum_j p_kj O V x_j (rows, d), and the weights p_kj of tokens and of frozen ones."""

    head: Head
    rows: Rows
    sums: FloatArray
    moving: FloatArray
    fixed: FloatArray


def head_sums(model: Attention, x: FloatArray, first: int = 0, every: int = 1) -> Iterator[HeadSums]:
    """The sums of every head for the tokens from `first` on, block after block of rows; or for `every` so many-th block only."""
    for number, head in enumerate(model.all_heads):
        side = sides(model, head, x, first)
        for rows in blocks(model.mask, len(x), first)[::every]:
            moving, fixed = weights_of_rows(model, number, side, rows, first)
            summed = moving @ side.values[rows.columns]
            if model.frozen is not None:
                summed += fixed @ side.fixed_values
            yield HeadSums(head, rows, _apply(head.output, summed), moving, fixed)


def feed_forward(model: Attention, x: FloatArray) -> FloatArray:
    """W2 act(W1 x + b1) + b2 for tokens x (n, d); zeros without a feed-forward layer."""
    layer = model.feedforward
    if layer is None:
        return np.zeros(x.shape)
    return activate(layer.activation, x @ layer.w1.T + layer.b1) @ layer.w2.T + layer.b2


def activate(name: str, z: FloatArray) -> FloatArray:
    """The activation functions of `FeedForward`."""
    if name == "relu":
        return np.maximum(z, 0.0)
    if name == "tanh":
        return np.tanh(z)
    if name == "identity":
        return z
    from scipy.special import erf, expit

    return z * expit(z) if name == "silu" else 0.5 * z * (1.0 + erf(z / np.sqrt(2.0)))


# --------------------------------------------------------------------------------------------------------- norms


def lengths(A: FloatArray) -> FloatArray:
    """Row lengths (n, 1). Scaled by the largest entry, so that squares neither overflow nor underflow."""
    largest = np.abs(A).max(axis=1, keepdims=True)
    largest = np.where(largest == 0, 1.0, largest)
    scaled = A / largest
    return largest * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]


def positive(length: FloatArray) -> FloatArray:
    """Lengths, with 1 in place of 0 so that 0/length is 0: no force, no motion."""
    return np.where(length == 0, 1.0, length)


def divisor(law: Law, A: FloatArray, t: float) -> Any:
    """(t + 1)^decay |A|^length_power: what the attention sum is divided by, a number or a column (n, 1)."""
    return law.depth(t) * positive(lengths(A)) ** law.length_power if law.length_power else law.depth(t)


def scaling(law: Law, A: FloatArray, x: FloatArray, radius: FloatArray | None, t: float) -> tuple:
    """`(1/s, dr/dt)` of a norm with d theta/dt = P A / s, as columns (n, 1) or numbers; dr/dt is None without radius."""
    divided = divisor(law, A, t)
    if radius is None:
        return law.amplitude / divided, None
    if law.radial == 0:
        rate = np.zeros_like(radius)
    else:
        rate = law.radial * law.amplitude * np.einsum("ij,ij->i", x, A)[:, None] / divided
    return law.amplitude / (radius**law.radius_power * divided), rate


# ----------------------------------------------------------------------------------------------- right-hand side


def right_hand_side(model: Attention, tokens: int, first: int = 0) -> RightHandSide:
    """The velocity on packed states as a callable `f(t, y, out)`; rows of `out` below `first` are left alone."""
    model.check_count(tokens)
    require(model, SUPPORT, tokens)
    dim, has_radius = model.dim, model.norm.has_radius

    def velocity(t: float, y: FloatArray, out: FloatArray) -> None:
        x = y[:, :dim] / np.sqrt(np.einsum("ij,ij->i", y[:, :dim], y[:, :dim]))[:, None]
        radius = y[first:, dim:] if has_radius else None
        A = attention_sum(model, x, first)
        moving = x[first:]
        inverse_speed, radial = scaling(model.norm.law(t), A, moving, radius, t)
        tangent = A - np.einsum("ij,ij->i", moving, A)[:, None] * moving
        out[first:, :dim] = inverse_speed * tangent
        if radial is not None:
            out[first:, dim:] = radial

    return velocity


# ------------------------------------------------------------------------------------------------------ Jacobian


def jacobian(model: Attention, x: FloatArray) -> FloatArray:
    """Derivative of the velocity, shape (n, d, n, d), for softmax weights and `PostLN`, any mask, heads, Q, K, V, frozen tokens.

    With p the softmax weights of one head, `J_kj = dA_k/dx_j` is

        p_kj [V + beta (V x_j - A_k)(M^T x_k)^T]  +  delta_kj beta sum_i p_ki (V x_i - A_k)(M x_i)^T,

    and the velocity's derivative is `P_k J_kj P_j - delta_kj (<x_k, A_k> P_k + x_k (P_k A_k)^T)`: as for the right-hand
    side, x is normalised first, so moving a token along itself changes nothing.
    """
    require(model, JACOBIAN, len(x))
    n, d = x.shape
    anchors = np.empty((0, d)) if model.frozen is None else model.frozen.tokens
    everyone = np.concatenate([x, anchors])
    full = np.zeros((n, d, n, d))
    diagonal = np.arange(n)
    total = np.zeros((n, d))
    for head, weights in zip(model.all_heads, attention_weights(model, x)):
        p = np.concatenate(weights, axis=1)
        V = np.eye(d) if head.value is None else head.value
        M = np.eye(d) if head.bilinear is None else head.bilinear
        values = everyone @ V.T
        A = p @ values
        total += A
        spread = values[None, :, :] - A[:, None, :]  # V x_j - A_k
        weighted = p[:, :, None] * spread
        full += np.einsum("kj,ab->kajb", p[:, :n], V)
        full += head.beta * np.einsum("kja,kb->kajb", weighted[:, :n], x @ M)
        full[diagonal, :, diagonal, :] += head.beta * np.einsum("kia,ib->kab", weighted, everyone @ M.T)
    project = np.eye(d) - x[:, :, None] * x[:, None, :]
    result = np.einsum("kac,kcjb,jbe->kaje", project, full, project, optimize=True)
    radial = np.einsum("kc,kc->k", x, total)[:, None]
    result[diagonal, :, diagonal, :] -= radial[:, :, None] * project + x[:, :, None] * (total - radial * x)[:, None, :]
    return result
