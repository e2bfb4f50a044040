"""The right-hand side read backwards, in NumPy: covectors of the velocity pulled back to the state and to the parameters.

For a velocity f(t, y; parameters) and a covector w of its value, a *pullback* is the derivative of the number `<w, f>` with
respect to everything that f was made of (a vector-Jacobian product). It costs a few evaluations, whatever the number of parameters.

Token k with direction x = y/|y| moves by f = c P_x A with c = a (t + 1)^-c' r^-p |A|^-q (`model.norms.Law`), and r by e <x, A>. With
g = P_x w, and w_r the covector of dr/dt,

    A* = c (g - q <g, A> A / |A|^2) + w_r e (x - q <x, A> A / |A|^2),
    x* = -c (<x, A> g + <w, x> P_x A) + w_r e A,          r* = -p c <g, A> / r.

A head adds A_k = O sum_j p_kj v_j with logits l_kj = beta <R_k q_k, R_j k_j>. With S_k = O^T A*_k and u_kj = <S_k, v_j>

    l*_kj = p_kj (u_kj - sum_i p_ki u_ki)   (softmax),      p_kj u_kj   (unnormalized),
    v*_j  = sum_k p_kj S_k,       q*_k = beta sum_j l*_kj k_j,       k*_j = beta sum_k l*_kj q_k,

and a mass is a logarithm added to a logit: m*_j = sum_k l*_kj / m_j (less what it adds to the divisor, where weights are not divided
by their sum). Queries, keys and values are linear in x and in their matrices. What arrives at x is projected, P_x x*, and
divided by |y|: the right-hand side normalises first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels import reference
from metastable.kernels.reference import Rows, Sides
from metastable.model import Attention, Frozen, Head, Law, Support, require
from metastable.model.heads import BIASES, MATRICES

PARTS = frozenset(
    {"heads", "repulsion", "factors", "rotary", "head_biases", "bilinear", "value", "feedforward", "frozen", "masses"}
    | {"radius", "depth", "jumps", "blind", "lonely"}
)
"""Parts of a model that have derivatives, and that matrix products know (`torch`)."""

SUPPORT = Support(
    "the derivative of engine='reference'",
    norms=None,
    masks=None,
    weights=frozenset({"softmax", "unnormalized"}),
    biases=None,
    parts=PARTS,
    use="differentiable weights are 'softmax' and 'unnormalized'",
)
"""Everything smooth that the reference engine does (where a ReLU bends it takes the slope on the left, zero)."""

LEAST = 1e-150
"""Weight of a frozen token that has none: too little to move anybody, enough to say what it would gain."""

HEAD_FIELDS = (*MATRICES, *BIASES)


@dataclass(frozen=True)
class Parameters:
    """Derivatives of one number with respect to the parameters of a model.

    `heads` has, for each head, `beta` (a number) and an array for each matrix and bias that the head has; query, key and value also
    where they are the identity. `frozen` (m, d), `frozen_weights` (m,), `masses` (n,).
    """

    beta: tuple[float, ...]
    heads: tuple[dict[str, FloatArray], ...]
    frozen: FloatArray
    frozen_weights: FloatArray
    masses: FloatArray


class Pullback(Protocol):
    """Pulls covectors back; sums up what arrives at the parameters."""

    def __call__(self, t: float, y: FloatArray, covector: FloatArray, out: FloatArray) -> None:
        """Write the pulled-back covector of the velocity at (t, y) into `out`, all of shape (tokens, width)."""
        ...

    def parameters(self) -> Parameters:
        """The sum of what arrived at the parameters so far."""
        ...


def make_pullback(model: Attention, tokens: int) -> Pullback:
    """The pullback of `reference.right_hand_side`."""
    require(model, SUPPORT, tokens)
    return _Reference(model, tokens)


def with_some_weight(model: Attention) -> Attention:
    """The model with `LEAST` for weights of frozen tokens that are zero."""
    if model.frozen is None or np.all(np.asarray(model.frozen.weights) > 0):
        return model
    weights = np.maximum(np.asarray(model.frozen.weights), LEAST)
    return model.replace(frozen=Frozen(model.frozen.tokens, weights))


# ------------------------------------------------------------------------------------------------- heads and parameters


def from_form(head: Head, form: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    """Derivatives for beta, Q and K of a head with a bilinear logit beta x^T M y, M = Q^T K, from G = sum l*_kj x_k x_j^T (d, d):
    beta* = <M, G>, Q* = beta K G^T, K* = beta Q G."""
    beta = float(np.trace(form) if head.bilinear is None else np.sum(head.bilinear * form))
    query = head.beta * (form.T if head.key is None else head.key @ form.T)
    return beta, query, head.beta * (form if head.query is None else head.query @ form)


def _product(matrix: FloatArray | None, rows: FloatArray) -> FloatArray:
    """Rows pulled back through `rows @ matrix.T` (None: the identity)."""
    return rows if matrix is None else rows @ matrix


class _Sums:
    """What arrived at the parameters of one head."""

    def __init__(self, model: Attention, head: Head) -> None:
        d, r, s = model.dim, head.rank(model.dim), head.value_rank(model.dim)
        shapes = {"query": (r, d), "key": (r, d), "value": (s, d), "output": (d, s)}
        shapes |= {"query_bias": (r,), "key_bias": (r,), "value_bias": (s,)}
        always = ("query", "key", "value")
        self.head, self.beta = head, 0.0
        self.arrays = {
            name: np.zeros(shapes[name]) for name in HEAD_FIELDS if name in always or getattr(head, name) is not None
        }

    def add(self, name: str, rows: FloatArray, x: FloatArray) -> None:
        """Add covectors `rows` of queries, keys or values made of the tokens x."""
        self.arrays[name] += rows.T @ x
        bias = f"{name}_bias"
        if bias in self.arrays:
            self.arrays[bias] += rows.sum(axis=0)


def untouched(model: Attention, tokens: int) -> Parameters:
    """Zeros: the derivatives of a number that does not depend on the model."""
    frozen = np.empty((0, model.dim)) if model.frozen is None else model.frozen.tokens
    return Parameters(
        (0.0,) * len(model.all_heads),
        tuple(_Sums(model, head).arrays for head in model.all_heads),
        np.zeros_like(frozen),
        np.zeros(len(frozen)),
        np.zeros(tokens),
    )


# -------------------------------------------------------------------------------------------------------------- tokens


def through_norm(
    law: Law, t: float, A: FloatArray, x: FloatArray, radius: FloatArray | None, covector: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """(A*, x*, r*) of the norm, each a row per token (formulas above)."""
    dim = x.shape[1]
    w = covector[:, :dim]
    across = w - np.einsum("ij,ij->i", w, x)[:, None] * x
    along = np.einsum("ij,ij->i", x, A)[:, None]
    scale, _ = reference.scaling(law, A, x, radius, t)
    pull = np.einsum("ij,ij->i", across, A)[:, None]
    inward = law.length_power * A / reference.positive(reference.lengths(A)) ** 2
    drift = scale * (across - pull * inward)
    direction = -scale * (along * across + np.einsum("ij,ij->i", w, x)[:, None] * (A - along * x))
    if radius is None:
        return drift, direction, None
    rate = law.radial * law.amplitude * covector[:, dim:] / reference.divisor(law, A, t)
    drift = drift + rate * (x - along * inward)
    return drift, direction + rate * A, -law.radius_power * scale * pull / radius


def slope_of_activation(name: str, z: FloatArray) -> FloatArray:
    """Derivatives of the activation functions of `FeedForward`."""
    if name == "relu":
        return (z > 0).astype(float)
    if name == "tanh":
        return 1.0 / np.cosh(z) ** 2
    if name == "identity":
        return np.ones_like(z)
    from scipy.special import erf, expit

    if name == "silu":
        return expit(z) * (1.0 + z * expit(-z))
    return 0.5 * (1.0 + erf(z / np.sqrt(2.0))) + z * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)


class _Reference:
    """The pullback of the reference engine; a `Pullback`."""

    def __init__(self, model: Attention, tokens: int) -> None:
        model = with_some_weight(model)
        self.model, self.normalised = model, model.weighting.kind == "softmax"
        self.sums = [_Sums(model, head) for head in model.all_heads]
        self.anchors = np.empty((0, model.dim)) if model.frozen is None else model.frozen.tokens
        self.anchor_weights = np.empty(0) if model.frozen is None else np.asarray(model.frozen.weights)
        self.frozen, self.frozen_weights = np.zeros_like(self.anchors), np.zeros(len(self.anchors))
        self.masses = np.zeros(tokens)

    def __call__(self, t: float, y: FloatArray, covector: FloatArray, out: FloatArray) -> None:
        model, dim = self.model, self.model.dim
        length = np.sqrt(np.einsum("ij,ij->i", y[:, :dim], y[:, :dim]))[:, None]
        x = y[:, :dim] / length
        radius = y[:, dim:] if model.norm.has_radius else None
        A = reference.attention_sum(model, x)
        drift, direction, radial = through_norm(model.norm.law(t), t, A, x, radius, covector)
        for number, head in enumerate(model.all_heads):
            direction = direction + self._through_head(number, head, x, drift)
        if model.feedforward is not None:
            layer = model.feedforward
            slope = slope_of_activation(layer.activation, x @ layer.w1.T + layer.b1)
            direction = direction + (slope * (drift @ layer.w2)) @ layer.w1
        out[:, :dim] = (direction - np.einsum("ij,ij->i", direction, x)[:, None] * x) / length
        if radial is not None:
            out[:, dim:] = radial

    def _through_head(self, number: int, head: Head, x: FloatArray, drift: FloatArray) -> FloatArray:
        """What a head sends back to the tokens, from the covectors `drift` of the attention sum."""
        side, sums = reference.sides(self.model, head, x), self.sums[number]
        summed = _product(head.output, drift)
        pulled = Sides(*(np.zeros_like(part) for part in side))
        for rows in reference.blocks(self.model.mask, len(x)):
            self._through_weights(number, rows, side, summed, drift, pulled)
        back = self._through_values(head, sums, x, pulled)
        if head.is_bilinear:
            # The query is beta M^T x and the key is x: what is between Q and K only `from_form` needs to know.
            asked = pulled.queries + pulled.plain
            beta, query, key = from_form(head, x.T @ asked)
            sums.beta += beta
            sums.arrays["query"] += query
            sums.arrays["key"] += key
            self.frozen += pulled.fixed_keys
            return back + pulled.keys + head.beta * (asked if head.bilinear is None else asked @ head.bilinear.T)
        asked, keys = pulled.queries, pulled.keys
        if head.rotary is not None:
            place = -np.arange(len(x), dtype=float)
            asked, keys = reference.turn(head.rotary, asked, place), reference.turn(head.rotary, keys, place)
        asked = asked + pulled.plain
        if head.beta:
            sums.beta += float(np.sum(asked * side.plain)) / head.beta
        else:
            plain = x if head.query is None else x @ head.query.T
            sums.beta += float(np.sum(asked * (plain if head.query_bias is None else plain + head.query_bias)))
        sums.add("query", head.beta * asked, x)
        sums.add("key", keys, x)
        sums.add("key", pulled.fixed_keys, self.anchors)
        self.frozen += _product(head.key, pulled.fixed_keys)
        return back + head.beta * _product(head.query, asked) + _product(head.key, keys)

    def _through_values(self, head: Head, sums: _Sums, x: FloatArray, pulled: Sides) -> FloatArray:
        sums.add("value", pulled.values, x)
        sums.add("value", pulled.fixed_values, self.anchors)
        self.frozen += _product(head.value, pulled.fixed_values)
        return _product(head.value, pulled.values)

    def _through_weights(
        self, number: int, rows: Rows, side: Sides, summed: FloatArray, drift: FloatArray, pulled: Sides
    ) -> None:
        """Add what some rows send back to queries, keys, values and masses."""
        model, own, seen = self.model, slice(rows.start, rows.stop), rows.columns
        moving, fixed = reference.weights_of_rows(model, number, side, rows)
        share = summed[own]
        u, u_fixed = share @ side.values[seen].T, share @ side.fixed_values.T
        if "output" in self.sums[number].arrays:
            mixed = moving @ side.values[seen] + fixed @ side.fixed_values
            self.sums[number].arrays["output"] += drift[own].T @ mixed
        pulled.values[seen] += moving.T @ share
        pulled.fixed_values[:] += fixed.T @ share
        mean = (moving * u).sum(axis=1, keepdims=True) + (fixed * u_fixed).sum(axis=1, keepdims=True)
        logits = moving * (u - mean) if self.normalised else moving * u
        logits_fixed = fixed * (u_fixed - mean) if self.normalised else fixed * u_fixed
        pulled.queries[own] += logits @ side.keys[seen]
        pulled.keys[seen] += logits.T @ side.queries[own]
        pulled.plain[own] += logits_fixed @ side.fixed_keys
        pulled.fixed_keys[:] += logits_fixed.T @ side.plain[own]
        self._through_masses(number, rows, logits, logits_fixed, mean)

    def _through_masses(self, number: int, rows: Rows, logits: FloatArray, fixed: FloatArray, mean: FloatArray) -> None:
        """Masses of moving tokens and weights of frozen ones, from the covectors of their logits."""
        model, seen = self.model, rows.columns
        masses = np.ones(len(self.masses)) if model.masses is None else model.masses
        self.masses[seen] += logits.sum(axis=0) / masses[seen]
        self.frozen_weights += fixed.sum(axis=0) / self.anchor_weights
        if self.normalised:
            return
        visible = model.mask.rows(len(self.masses), rows.start, rows.stop)[:, seen]
        added = reference.added_logits(model, number, len(self.masses), rows)
        log_total = reference.log_visible(visible * masses[seen], added, float(self.anchor_weights.sum()))
        share = np.exp((0.0 if added is None else np.where(visible, added, 0.0)) - log_total)
        self.masses[seen] -= (visible * share * mean).sum(axis=0)
        self.frozen_weights -= (mean * np.exp(-log_total)).sum()

    def parameters(self) -> Parameters:
        return Parameters(
            tuple(sums.beta for sums in self.sums),
            tuple({name: array.copy() for name, array in sums.arrays.items()} for sums in self.sums),
            self.frozen.copy(),
            self.frozen_weights.copy(),
            self.masses.copy(),
        )
