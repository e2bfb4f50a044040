"""Energies: one per token under a causal mask (Lemma 5.3), one for all under full attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError
from metastable.model import Attention, Rule, Support, require

COMPLEX_STEP = 1e-150
"""Step of complex-step differentiation: so small that its error is below rounding."""


def _beta_rule(model: Attention, tokens: int | None) -> str | None:
    return None if model.all_heads[0].beta > 0 else "needs beta > 0, but beta is 0"


SUPPORT = Support(
    "the energy of Lemma 5.3",
    norms=frozenset({"post_ln"}),
    masks=frozenset({"causal", "full", "window", "sink", "prefix", "matrix"}),
    weights=frozenset({"softmax"}),
    parts=frozenset({"frozen", "blind"}),
    rules=(Rule("beta", _beta_rule),),
)
"""The models that are sequential gradient flows."""


def _check_gradient_flow(model: Attention) -> float:
    """beta of a model to which Lemma 5.3 applies; otherwise say what is in the way."""
    if not isinstance(model, Attention):
        raise InvalidInputError(f"model must be an Attention, not {type(model).__name__}")
    require(model, SUPPORT)
    return model.all_heads[0].beta


def _anchors(model: Attention) -> tuple[FloatArray, FloatArray]:
    if model.frozen is None:
        return np.empty((0, model.dim)), np.empty(0)
    return model.frozen.tokens, np.asarray(model.frozen.weights)


def _energies(model: Attention, moved: Any, x: FloatArray, visible: Any, beta: float) -> Any:
    """E_k with token k at `moved`[k] and all others at x; complex positions are allowed (for differentiation)."""
    anchors, weights = _anchors(model)
    pull = np.where(visible, np.exp(beta * (moved @ x.T - 1.0)), 0.0).sum(axis=1)
    return -(pull + np.exp(beta * (moved @ anchors.T - 1.0)) @ weights) / beta


def _others(model: Attention, tokens: int) -> Any:
    """Whom each token sees, itself left out."""
    visible = model.mask.matrix(tokens).copy()
    np.fill_diagonal(visible, False)
    return visible


def token_energies(model: Attention, x: ArrayLike) -> FloatArray:
    """Energy of each token, shape (n,).

    E_k = -(1/beta) ( sum_j exp(beta (<x_k, x_j> - 1)) + sum_i a_i exp(beta (<x_k, theta_i> - 1)) ), over the tokens j
    that k sees, itself left out, and the frozen tokens theta_i of weight a_i. Each token descends its own energy,
    dx_k/dt = -(1/Z_k) grad_k E_k; there is no single energy for all of them. The lemma is stated on the circle and holds on
    every sphere.

    Args:
        model: softmax attention with Q = K = V = I, beta > 0, any mask, with or without frozen tokens.
        x: unit tokens, shape (n, dim).

    Raises:
        UnsupportedError: the model is not a sequential gradient flow.

    Reference: arXiv:2411.04990, Lemma 5.3.
    """
    beta = _check_gradient_flow(model)
    tokens = model.check_tokens(x, "x")
    return _energies(model, tokens, tokens, _others(model, len(tokens)), beta)


def energy_gradients(model: Attention, x: ArrayLike) -> FloatArray:
    """Gradient of each token's energy in its own position, tangent to the sphere, shape (n, dim).

    Differentiated by complex steps from the energy itself (exact to rounding), not from a formula for the velocity.
    """
    beta = _check_gradient_flow(model)
    tokens = model.check_tokens(x, "x")
    visible = _others(model, len(tokens))
    gradient = np.empty_like(tokens)
    for axis in range(model.dim):
        moved = tokens.astype(np.complex128)
        moved[:, axis] += 1j * COMPLEX_STEP
        gradient[:, axis] = _energies(model, moved, tokens, visible, beta).imag / COMPLEX_STEP
    return gradient - np.sum(gradient * tokens, axis=1, keepdims=True) * tokens


def gradient_flow_defect(model: Attention, x: ArrayLike) -> FloatArray:
    """How far each token is from descending its own energy: |dx_k/dt + (1/Z_k) grad_k E_k|, shape (n,).

    Zero to rounding by Lemma 5.3: the velocity comes from the reference kernel, the gradient from the energy.

    Reference: arXiv:2411.04990, Lemma 5.3.
    """
    from metastable.kernels.select import velocity

    beta = _check_gradient_flow(model)
    tokens = model.check_tokens(x, "x")
    anchors, weights = _anchors(model)
    visible = model.mask.matrix(len(tokens))
    total = np.where(visible, np.exp(beta * (tokens @ tokens.T - 1.0)), 0.0).sum(axis=1)
    total += np.exp(beta * (tokens @ anchors.T - 1.0)) @ weights
    descent = -energy_gradients(model, tokens) / total[:, None]
    return np.linalg.norm(velocity(model, tokens, engine="reference") - descent, axis=1)


def _symmetric_rule(model: Attention, tokens: int | None) -> str | None:
    """Only where Q^T K = V is symmetric the attention sum is the gradient of one function."""
    head = model.all_heads[0]
    identity = np.eye(model.dim)
    form = identity if head.bilinear is None else head.bilinear
    value = identity if head.value is None else head.value
    size = 1e-12 * max(float(np.abs(form).max()), float(np.abs(value).max()))
    if np.abs(form - form.T).max() <= size and np.abs(form - value).max() <= size:
        return None
    return "needs Q^T K = V, a symmetric matrix"


GLOBAL_SUPPORT = Support(
    "the energy of full attention",
    norms=None,
    masks=frozenset({"full"}),
    weights=frozenset({"softmax", "unnormalized"}),
    parts=frozenset(
        {"bilinear", "value", "frozen", "masses", "noise", "repulsion", "blind", "radius", "depth", "jumps"}
    ),
    use="use token_energies, one energy for each token, under other masks",
    rules=(
        Rule("beta", lambda model, tokens: None if model.all_heads[0].beta else "needs beta other than 0"),
        Rule("symmetric", _symmetric_rule, "use a model that is a gradient flow"),
    ),
)
"""The models that climb one energy: every norm but turns the speed of a token up or down."""


def check_energy(model: Attention) -> None:
    """Refuse a model whose tokens do not climb one energy."""
    if not isinstance(model, Attention):
        raise InvalidInputError(f"model must be an Attention, not {type(model).__name__}")
    require(model, GLOBAL_SUPPORT)


def attention_energy(model: Attention, x: ArrayLike) -> float:
    """Energy of all tokens together under full attention with Q^T K = V symmetric (the identity is one such).

        E = (1/(2 beta N^2)) ( sum_{i,j} m_i m_j e(x_i, x_j) + 2 sum_{i,a} m_i w_a e(x_i, theta_a) ),
        e(x, y) = exp(beta <x, V y> - |beta| |V|),    N = sum m_i,

    m the masses of the tokens (1 unless the model has some), theta_a frozen tokens of weight w_a; pairs i = j are left out where
    tokens do not see themselves. grad_i E = (m_i/N^2) sum_j m_j e(x_i, x_j) V x_j, so along a run without noise it never falls: USA
    climbs its gradient, SA its gradient divided by Z_i, and norms change the pace of a token only. For Q = K = V = I it is
    `global_energy`. Memory O(n).

    Raises:
        UnsupportedError: the model is not a gradient flow.

    Reference: arXiv:2312.10794, section 3 (there without the factor exp(-beta)).
    """
    check_energy(model)
    tokens = model.check_tokens(x, "x")
    head = model.all_heads[0]
    form, beta = head.value, head.beta
    mass = np.ones(len(tokens)) if model.masses is None else model.masses
    mass = mass / mass.max()
    share = 1.0 if model.masses is None else 1.0 / float(model.masses.max())
    own = model.mask.sees_self(len(tokens))
    total = _pair_sum(tokens, mass, form, beta, own)
    anchors, weights = _anchors(model)
    if len(anchors):
        top = abs(beta) * (1.0 if form is None else float(np.linalg.norm(form, 2)))
        turned = anchors if form is None else anchors @ form.T
        with np.errstate(under="ignore"):
            total += 2.0 * float(mass @ np.exp(np.minimum(beta * (tokens @ turned.T) - top, 0.0)) @ (weights * share))
    return total / beta / (2.0 * float(mass.sum()) ** 2)


def _pair_sum(x: FloatArray, mass: FloatArray, form: FloatArray | None, beta: float, own: bool) -> float:
    """sum_{i,j} m_i m_j exp(beta <x_i, V x_j> - |beta| |V|), in blocks of rows; `own`: with the pairs i = j."""
    size = 1.0 if form is None else float(np.linalg.norm(form, 2))
    turned = x if form is None else x @ form.T
    rows = max(1, 2**20 // len(x))
    total = 0.0
    for first in range(0, len(x), rows):
        block = x[first : first + rows]
        place = np.arange(len(block)), first + np.arange(len(block))
        gap = np.maximum(size - np.sign(beta) * (block @ turned.T), 0.0)
        if form is None and beta > 0:
            gap[place] = 0.0  # exactly: a large beta shows the rounding
        with np.errstate(over="ignore", under="ignore"):  # exp(-infinity) is 0
            pulls = np.exp(-abs(beta) * gap)
        if not own:
            pulls[place] = 0.0
        total += float(mass[first : first + rows] @ pulls @ mass)
    return total


def global_energy(x: ArrayLike, beta: float) -> float:
    """Energy of full attention, (1/(2 beta n^2)) sum_{i,j} exp(beta (<x_i, x_j> - 1)).

    With Q = K = V = I it never decreases along full attention, softmax or unnormalised (which ascends its gradient); its
    largest value 1/(2 beta) is reached when all tokens agree. Memory O(n).

    Args:
        x: unit tokens, shape (n, d).
        beta: inverse temperature > 0.

    Reference: arXiv:2312.10794, section 3 (there without the factor exp(-beta)).
    """
    tokens = _checks.tokens(x, "x")
    beta = _checks.number(beta, "beta", 0.0, strict=True)
    return _pair_sum(tokens, np.ones(len(tokens)), None, beta, True) / beta / (2.0 * len(tokens) ** 2)
