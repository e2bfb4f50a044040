"""What the page shows beside the moving tokens: functions of a model and of states (frames, tokens, dim)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metastable import sphere, theory
from metastable._checks import FloatArray
from metastable.analysis import attention_energy, cluster_labels, cluster_leaders, consumed, predict, renyi_centers
from metastable.analysis.energy import GLOBAL_SUPPORT
from metastable.analysis.scales import CONSUMED_FRACTION
from metastable.explorer.protocol import finite
from metastable.explorer.setting import Setting
from metastable.kernels.reference import attention_weights
from metastable.model import Attention, Support, why_not

SETTLED = 0.01
"""Within this distance of its last position a token has arrived."""
ENERGY_TOKENS = 600
"""Tokens up to which the energy of every moment is summed."""
ATTENTION_SIZE = 96
"""Largest side of the attention matrix that is sent; larger ones are averaged over blocks of tokens."""


@dataclass(frozen=True)
class View:
    """How tokens of any dimension are shown in two or three: `axes` (dim, 2 or 3) and what they are."""

    axes: FloatArray
    name: str

    def __call__(self, x: FloatArray) -> FloatArray:
        """Coordinates (..., 2 or 3) of tokens (..., dim)."""
        return x @ self.axes

    @property
    def components(self) -> int:
        return self.axes.shape[1]


def view_of(setting: Setting, states: FloatArray | None = None) -> View | None:
    """The projection that a setting asks for; None while it needs the `states` of a run that is not there yet.

    Two and three dimensions are shown as they are. Beyond, "leading" is the space L of the leading eigenvectors, filled up with
    principal axes of the motion; "principal" the three principal axes of all states; "coordinates" the first three.
    """
    dim = setting.model.dim
    if dim <= 3:
        return View(np.eye(dim), "the space itself")
    kind = setting.projection
    if kind == "coordinates":
        return View(np.eye(dim)[:, :3], "first three coordinates")
    if states is None:
        return None
    leading = leading_space(setting.model)
    if kind == "leading" or (kind == "auto" and leading.shape[1] < dim):
        basis = leading[:, :3]
        missing = 3 - basis.shape[1]
        rest = states - (states @ basis) @ basis.T
        axes = np.concatenate([basis, principal_axes(rest, missing)], axis=1) if missing else basis
        return View(axes, "leading eigenspace L" if missing == 0 else f"L and {missing} principal axes")
    return View(principal_axes(states, 3), "principal axes")


def principal_axes(states: FloatArray, count: int) -> FloatArray:
    """The `count` axes (dim, count) through the center of the sphere along which states (..., dim) extend most."""
    rows = states.reshape(-1, states.shape[-1])
    _, vectors = np.linalg.eigh(rows.T @ rows)
    axes = vectors[:, ::-1][:, :count]
    # A fixed sign, so that the same run is always shown the same way round.
    return axes * np.where(axes[np.abs(axes).argmax(axis=0), np.arange(count)] < 0, -1.0, 1.0)


def leading_space(model: Attention) -> FloatArray:
    """An orthonormal basis (dim, k) of L, the space of the leading eigenvectors."""
    return np.asarray(predict(model).subspace, dtype=float)


def spectrum(model: Attention) -> list[list[list[float]]]:
    """Eigenvalues [re, im] of the value matrix of every head."""
    return [_eigenvalues(head.value_matrix(model.dim)) for head in model.all_heads]


def total_spectrum(model: Attention) -> list[list[float]]:
    """Eigenvalues [re, im] of the sum of the value matrices of all heads, which is what the prediction speaks of."""
    return _eigenvalues(np.sum([head.value_matrix(model.dim) for head in model.all_heads], axis=0))


def _eigenvalues(matrix: FloatArray) -> list[list[float]]:
    values = np.asarray(np.linalg.eigvals(matrix), dtype=complex)
    return [[float(value.real), float(value.imag)] for value in values]


def centers(setting: Setting) -> tuple[np.ndarray, np.ndarray]:
    """Renyi centers and strong Renyi centers of the start, as indices in order."""
    start = setting.positions
    renyi = renyi_centers(start, setting.separation)
    strong = renyi_centers(start, setting.separation, strong=True)
    return np.asarray(renyi, dtype=int), np.asarray(strong, dtype=int)


def expected_centers(setting: Setting) -> dict[str, float | None]:
    """What theory expects for uniform tokens: strong centers (Lemma C.1) and, on the circle, Renyi centers (parking constant)."""
    dim, delta, tokens = setting.model.dim, setting.separation, setting.start.total
    renyi = float(theory.renyi_centers_limit(delta)) if dim == 2 and delta < np.pi / 2 else None
    return {"strong": float(theory.strong_centers(delta, dim, tokens)), "renyi": renyi}


SECTION_5 = Support(
    "section 5 of the paper",
    norms=frozenset({"post_ln"}),
    masks=frozenset({"causal"}),
    weights=frozenset({"softmax"}),
    parts=frozenset({"frozen"}),
)


def theorem_applies(setting: Setting) -> bool:
    """True for causal softmax attention with Q = K = V = I and `PostLN`, the setting of the paper's section 5."""
    return why_not(setting.model, SECTION_5) is None and setting.beta > 0


def law(setting: Setting, times: FloatArray) -> list[float | None] | None:
    """The cluster-count law N(t) at `times`, where it applies: causal softmax attention with Q = K = V = I."""
    if not theorem_applies(setting) or setting.model.frozen is not None:
        return None
    count = np.full(len(times), np.nan)
    late = times > np.e
    count[late] = theory.cluster_count(times[late], setting.beta, setting.model.dim)
    return finite(np.where(count <= setting.start.total, count, np.nan))


def leaders(states: FloatArray, radius: float) -> np.ndarray:
    """For every frame and token the first token of its cluster at that moment, shape (frames, tokens)."""
    result = np.empty(states.shape[:2], dtype=np.uint16)
    for frame, x in enumerate(states):
        labels = cluster_labels(x, radius=radius)
        result[frame] = cluster_leaders(labels)[labels]
    return result


def capture(states: FloatArray, chosen: np.ndarray, delta: float) -> list[float | None]:
    """Fraction of tokens within 0.1 delta of the current position of some center, per frame."""
    radius = CONSUMED_FRACTION * delta
    return finite([float(np.asarray(consumed(x, chosen, radius))) for x in states])


def energy(setting: Setting, states: FloatArray) -> list[float | None] | None:
    """The energy that all tokens climb together, per frame; None where they climb none (or none is written down).

    Relative to its largest value, that of tokens which are all in one place where V = I: 0 to 1.
    """
    if why_not(setting.model, GLOBAL_SUPPORT) is not None or states.shape[1] > ENERGY_TOKENS:
        return None
    top = attention_energy(setting.model, np.repeat(states[:1, :1], states.shape[1], axis=1)[0])
    values = np.array([attention_energy(setting.model, x) for x in states])
    return finite(values / abs(top)) if top else None


def attention_matrix(model: Attention, x: FloatArray) -> FloatArray:
    """Weights of the tokens on each other, averaged over heads, and over blocks of tokens when there are many."""
    weights = np.mean([moving for moving, _ in attention_weights(model, x)], axis=0)
    tokens = len(x)
    if tokens <= ATTENTION_SIZE:
        return weights
    edges = np.linspace(0, tokens, ATTENTION_SIZE + 1).astype(int)[:-1]
    sums = np.add.reduceat(np.add.reduceat(weights, edges, axis=0), edges, axis=1)
    sizes = np.diff(np.append(edges, tokens))
    # Rows are averaged and columns added: every row still sums to what its tokens give to the tokens they see.
    return sums / sizes[:, None]


def settling_time(states: FloatArray, times: FloatArray) -> float | None:
    """First moment from which every token stays within `SETTLED` of its last position; None if only at the very end."""
    away = sphere.distance(states, states[-1][None]).max(axis=1)
    moving = np.flatnonzero(away > SETTLED)
    arrived = 0 if moving.size == 0 else int(moving[-1]) + 1
    return None if arrived >= len(times) - 1 else float(times[arrived])
