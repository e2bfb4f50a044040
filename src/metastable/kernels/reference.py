"""The readable engine: every variant of the dynamics in NumPy. The oracle that the fast engines are tested against.

Notation: `x` (n, d) unit tokens, `A` (n, d) the attention sum, P the tangent projection. With M = Q^T K the logit of tokens k, j
is `beta x_k^T M x_j` plus the bias. The row maximum is subtracted before exponentials, so nothing overflows. A token that sees
nobody feels nothing: A = 0.

Norms, masks and biases are read by their declared laws alone, so new ones need nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import NumericalRangeError, UnsupportedError
from metastable.model import EVERY_PART, Attention, Head, Law, Rule, Support, require, why_not

if TYPE_CHECKING:
    from metastable.kernels.protocol import RightHandSide

LOG_MAX = 709.0
"""exp of anything larger leaves double precision."""


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
            size = head.beta * (1.0 if head.bilinear is None else np.abs(head.bilinear).sum())
        if not np.isfinite(size):
            raise NumericalRangeError(
                f"the logits beta <Q x, K y> of head {number} leave double precision (1.8e308); lower beta, query or key"
            )


# ---------------------------------------------------------------------------------------------------- attention


def logits(head: Head, queries: FloatArray, keys: FloatArray) -> FloatArray:
    """`beta <Q x_k, K x_j>`, shape (queries, keys)."""
    projected = queries if head.bilinear is None else queries @ head.bilinear
    return head.beta * (projected @ keys.T)


def attention_weights(model: Attention, x: FloatArray, first: int = 0) -> list[tuple[FloatArray, FloatArray]]:
    """Per head: weights on the tokens, (rows, n), and on the frozen tokens, (rows, m), for the tokens from `first` on.

    The weights are those that multiply V x_j: softmax probabilities, `exp(logit)/count` for "unnormalized", or equal shares of
    the most attended for "hardmax".
    """
    model.check_count(len(x))
    visible = model.mask.matrix(len(x))[first:]
    masses = np.ones(len(x)) if model.masses is None else model.masses
    place = np.arange(len(x), dtype=float)
    heads = model.all_heads
    anchors = np.empty((0, model.dim)) if model.frozen is None else model.frozen.tokens
    mass = np.empty(0) if model.frozen is None else np.asarray(model.frozen.weights)
    result = []
    for number, head in enumerate(heads):
        moving = logits(head, x[first:], x)
        if model.bias is not None:
            moving += model.bias.logits(number, len(heads), place[first:], place)
        moving = np.where(visible, moving, -np.inf)
        fixed = np.where(mass > 0, logits(head, x[first:], anchors), -np.inf)
        result.append(_normalise(model, visible * masses, moving, fixed, mass))
    return result


def _normalise(
    model: Attention, seen: FloatArray, moving: FloatArray, fixed: FloatArray, mass: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Turn logits (minus infinity where invisible) into weights, by the law that `model.weights` declares.

    `seen` (rows, n) is how often each token counts, 0 where it is not seen and its mass elsewhere; `mass` that of the frozen tokens.
    """
    law = model.weighting.law
    if law is None:
        raise UnsupportedError(refusal(model, seen.shape[1]) or "")
    top = np.maximum(moving.max(axis=1), fixed.max(axis=1, initial=-np.inf))[:, None]
    # Where nobody is seen, any finite number will do: all weights are zero.
    top = np.where(np.isneginf(top), 0.0, top)
    if law.score == "largest":
        least = top - model.tie_tolerance * np.maximum(1.0, np.abs(top))
        moving, fixed = (moving >= least) * seen, (fixed >= least) * mass
    else:
        moving, fixed = np.exp(moving - top) * seen, np.exp(fixed - top) * mass
    if law.total == "weights":
        total = moving.sum(axis=1, keepdims=True) + fixed.sum(axis=1, keepdims=True)
        total = np.where(total == 0, 1.0, total)
        return moving / total, fixed / total
    if law.score == "exponential" and top.max() > LOG_MAX:
        raise NumericalRangeError(
            f"unnormalized attention overflows: a logit reaches {top.max():.4g}, and exp of more than {LOG_MAX:.0f} leaves "
            "double precision; lower beta or use weights='softmax'"
        )
    count = seen.sum(axis=1, keepdims=True) + mass.sum()
    scale = (np.exp(top) if law.score == "exponential" else 1.0) / np.where(count == 0, 1.0, count)
    return scale * moving, scale * fixed


def _apply(matrix: FloatArray | None, x: FloatArray) -> FloatArray:
    """Rows of x mapped by a matrix (None: the identity)."""
    return x if matrix is None else x @ matrix.T


def attention_sum(model: Attention, x: FloatArray, first: int = 0) -> FloatArray:
    """A_k, the drift before projection and norm (attention of all heads plus feed-forward), for the tokens from `first` on."""
    total = np.zeros((len(x) - first, model.dim))
    for head, (moving, fixed) in zip(model.all_heads, attention_weights(model, x, first)):
        total += moving @ _apply(head.value, x)
        if model.frozen is not None:
            total += fixed @ _apply(head.value, model.frozen.tokens)
    if model.feedforward is not None:
        layer = model.feedforward
        total += activate(layer.activation, x[first:] @ layer.w1.T + layer.b1) @ layer.w2.T + layer.b2
    return total


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
    """Row lengths (n, 1), with 1 for a zero row so that 0/length is 0: no force, no motion.

    Scaled by the largest entry, so that squares neither overflow nor underflow.
    """
    largest = np.abs(A).max(axis=1, keepdims=True)
    largest = np.where(largest == 0, 1.0, largest)
    scaled = A / largest
    length = largest * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    return np.where(length == 0, 1.0, length)


def divisor(law: Law, A: FloatArray, t: float) -> Any:
    """(t + 1)^decay |A|^length_power: what the attention sum is divided by, a number or a column (n, 1)."""
    return law.depth(t) * lengths(A) ** law.length_power if law.length_power else law.depth(t)


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
