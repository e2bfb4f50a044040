"""The system behind `rodas.solve` for a model: who sees whom as column ranges, and in which coordinates it is integrated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import schur

from metastable._checks import FloatArray
from metastable.integrate.plan import size_of_value
from metastable.integrate.solution import Chart
from metastable.model import Attention, Causal
from metastable.model.values import leading_frame, scalar_multiple

if TYPE_CHECKING:
    from metastable.integrate.rodas.circle_system import CircleSystem
    from metastable.integrate.rodas.dense import DenseSystem
    from metastable.integrate.rodas.sphere_system import SphereSystem

JORDAN = 5e-3
"""Eigenvalues this near to the leading one, relative to |V|, may be one Jordan block: rounding splits a block of m by eps^(1/m)."""
GAP = 1e-6
"""Gap behind the leading eigenvalue, over the coupling of its eigenvectors, below which what is nearly a Jordan block counts as one:
its other rest is so near."""
FIRST_STEP = 1e-2
"""First step, in units of the inverse of the largest speed."""


DENSE_HORIZON = 1e20
"""Horizon of a dense block: beyond, rounding errors of its slow eigenvalues decide."""
JORDAN_HORIZON = 1e8
"""The same, in units of the inverse coupling, where V has Jordan blocks: tokens are at 1/t from a rest that attracts from one side
only, and a factorisation that mixes them with fast ones carries them over to the other side (blocks of 2 from 1e12 on, of 4 from
1e9)."""


@dataclass(frozen=True)
class Prepared:
    """A system ready to march."""

    system: Any
    march: Callable[[Any, Any], int]
    """What `control.march` does with a journal and a goal."""
    chart: Chart
    components: int
    first_step: float
    current: Callable[[], FloatArray]
    """Tokens where the system is now, (tokens, components) in the chart."""
    enough: float = 1.0
    """The error that matters to attempts, in units of the tolerance (see the systems)."""
    back: Callable[[FloatArray], FloatArray] = lambda states: states
    """From the coordinates that the system works in to those of the start."""


def dense_tokens(model: Attention, tokens: int) -> int:
    """Tokens of the leading dense block: 0 for a causal mask, p for a prefix of p, all for full attention and unnormalised weights."""
    if model.weighting.kind == "unnormalized":
        return tokens
    if isinstance(model.mask, Causal):
        return 0
    ranges = model.mask.intervals(tokens)
    if ranges is not None:
        latest = np.where(ranges[:, :, 1] > ranges[:, :, 0], ranges[:, :, 1], 0).max(axis=1)
    else:
        latest = tokens - model.mask.matrix(tokens)[:, ::-1].argmax(axis=1)
    looking_ahead = latest > np.arange(1, tokens + 1)
    return int(latest[looking_ahead].max(initial=0))


def dense_horizon(model: Attention) -> float:
    """How far a dense block of this model may be taken."""
    coupling = one_sided(model)
    return min(DENSE_HORIZON, JORDAN_HORIZON / coupling) if coupling else DENSE_HORIZON


def visible_ranges(model: Attention, tokens: int, frozen: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns that each row sees without itself, (tokens, r, 2) with frozen tokens as the first range, and who sees itself."""
    ranges = model.mask.intervals(tokens)
    if ranges is None:
        allowed = model.mask.matrix(tokens)
        rows = [_runs(row) for row in allowed]
    else:
        rows = [[(int(a), int(b)) for a, b in row if b > a] for row in ranges]
    split: list[list[tuple[int, int]]] = []
    own = np.zeros(tokens)
    for k, row in enumerate(rows):
        seen = [(0, frozen)] if frozen else []
        for a, b in row:
            own[k] = max(own[k], float(a <= k < b))
            beside = [(a, k), (k + 1, b)] if a <= k < b else [(a, b)]
            seen += [(frozen + c, frozen + d) for c, d in beside if d > c]
        split.append(seen)
    most = max(1, max(len(seen) for seen in split))
    result = np.zeros((tokens, most, 2), dtype=np.int64)
    for k, seen in enumerate(split):
        if seen:
            result[k, : len(seen)] = seen
    return result, own


def _runs(row: np.ndarray) -> list[tuple[int, int]]:
    """Half-open runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))


def on_circle(model: Attention, tokens: int) -> bool:
    """True when the system is integrated in angles."""
    return model.dim == 2 and model.is_identity and model.weights == "softmax" and dense_tokens(model, tokens) == 0


def _anchors(model: Attention) -> tuple[FloatArray, FloatArray]:
    """Frozen tokens and their weights; one without weight is nobody."""
    if model.frozen is None:
        return np.empty((0, model.dim)), np.empty(0)
    weights = np.asarray(model.frozen.weights)
    return model.frozen.tokens[weights > 0], weights[weights > 0]


@dataclass(frozen=True)
class Frame:
    """Coordinates for the tokens, x = Q x', and V_sum - lambda I in them."""

    axes: FloatArray | None
    """Q (d, d) orthogonal, None for the identity."""
    drift: FloatArray
    gap: float = math.inf
    """How far behind the leading eigenvalue the nearest one is whose eigenvector is not in the null space of V_sum - lambda I."""
    coupling: float = 0.0
    """Rate c of the leading eigenvalue's Jordan blocks, or of what is nearly one: da/dt = -c a^2 - gap a."""

    @property
    def defective(self) -> bool:
        """True when rests attract from one side only, or the other side is less than a radian away."""
        return self.coupling > self.gap

    def into(self, x: FloatArray) -> FloatArray:
        """Coordinates x' of points (..., d)."""
        return x if self.axes is None else x @ self.axes

    def back(self, x: FloatArray) -> FloatArray:
        """Points of coordinates (..., d)."""
        return x if self.axes is None else x @ self.axes.T

    def matrices(self, matrices: Iterable[FloatArray | None]) -> FloatArray:
        """Q^T A Q of each, stacked; None is the identity."""
        identity = np.eye(len(self.drift))
        axes = identity if self.axes is None else self.axes
        return np.array([identity if matrix is None else axes.T @ matrix @ axes for matrix in matrices])


def value_sum(model: Attention) -> FloatArray:
    """V_sum, the sum over the heads."""
    return np.sum([head.value_matrix(model.dim) for head in model.all_heads], axis=0)


def rotation(model: Attention) -> complex | None:
    """The leading eigenvalue of the sum of the value matrices when it is one of a complex pair, else None."""
    values = np.linalg.eigvals(value_sum(model))
    top = values[np.argmax(values.real)]
    return complex(top) if abs(top.imag) > 1e-12 * abs(top) else None


def frame_of(model: Attention) -> Frame:
    """Coordinates in which the leading eigenspace of the sum of the value matrices is exact; a multiple of I leaves no drift."""
    identity = np.eye(model.dim)
    total = value_sum(model)
    if scalar_multiple(total) is not None:
        return Frame(None, np.zeros_like(total))
    found = leading_frame(total)
    if found is None:
        return Frame(None, total - float(np.linalg.eigvals(total).real.max()) * identity)
    axes, drift = found
    return Frame(axes, drift, *_jordan(drift, JORDAN * float(np.linalg.norm(total, 2))))


def _jordan(drift: FloatArray, near: float) -> tuple[float, float]:
    """`gap` and `coupling` of V_sum - lambda I whose first columns are exactly zero; eigenvalues up to `near` may be one block."""
    form: Any = schur(drift, output="complex", sort=lambda value: abs(value) <= near)
    triangle, _, count = form
    values = np.sort(np.abs(np.diag(triangle)[:count]))
    nullity = int((~drift.any(axis=0)).sum())
    if count <= nullity:
        return math.inf, 0.0
    return float(values[nullity]), float(np.abs(np.triu(triangle[:count, :count], 1)).max())


def one_sided(model: Attention) -> float:
    """Coupling c of the leading eigenvalue's Jordan blocks, 0 for none: their rests attract from one side only, and tokens come as near
    as 1/(c t). What is nearly such a block has another rest, at gap/c."""
    frame = frame_of(model)
    return frame.coupling if frame.gap <= GAP * frame.coupling else 0.0


def own_coordinates(model: Attention) -> Frame:
    """The coordinates that the tokens come in."""
    frame = frame_of(model)
    if frame.axes is None:
        return frame
    return Frame(None, frame.axes @ frame.drift @ frame.axes.T, frame.gap, frame.coupling)


def sphere_system(model: Attention, start: FloatArray, first: int, frame: Frame | None = None) -> SphereSystem:
    """The system of any dimension with a dense block of `first` tokens; `frame` None: in the coordinates of `start`."""
    from metastable.integrate.rodas.sphere_system import Model, make

    frame = own_coordinates(model) if frame is None else frame
    heads = model.all_heads
    anchors, mass = _anchors(model)
    return make(
        frame.into(start),
        Model(
            values=frame.matrices(head.value for head in heads),
            forms=frame.matrices(head.bilinear for head in heads),
            betas=np.array([head.beta for head in heads], dtype=float),
            slopes=np.array(model.slopes, dtype=float),
            drift=np.array(frame.drift, order="C"),
        ),
        (frame.into(anchors), mass),
        visible_ranges(model, len(start), len(anchors)),
        defective=frame.defective,
        first=first,
    )


def dense_system(model: Attention, system: SphereSystem) -> DenseSystem:
    """A system with a dense block, at the pace of the model's weights."""
    if model.weighting.kind == "unnormalized":
        from metastable.integrate.rodas.unnormalized import UnnormalizedSystem

        return UnnormalizedSystem(system, model.mask.matrix(system.charts.origin.shape[0]), _anchors(model)[1])
    from metastable.integrate.rodas.dense import DenseSystem

    return DenseSystem(system)


def circle_system(model: Attention, start: FloatArray) -> CircleSystem:
    """The system in angles."""
    from metastable.integrate.rodas.circle_system import make

    anchors, mass = _anchors(model)
    slope = model.slopes[0]
    plain = isinstance(model.mask, Causal) and model.mask.sees_self(len(start)) and slope == 0.0
    return make(
        np.arctan2(start[:, 1], start[:, 0]),
        model.all_heads[0].beta,
        frozen=(np.arctan2(anchors[:, 1], anchors[:, 0]), mass),
        slope=slope,
        seen=None if plain else visible_ranges(model, len(start), len(anchors)),
    )


def renewal(system: CircleSystem) -> Callable[[FloatArray], None]:
    """A function that puts a system which has not moved yet back to where it is now, but at other tokens (tokens, 2)."""
    fresh = [(array, array.copy()) for array in _arrays(system) if array.flags.writeable]

    def renew(start: FloatArray) -> None:
        for array, values in fresh:
            array[...] = values
        np.arctan2(start[:, 1], start[:, 0], out=system.angles)

    return renew


def _arrays(memory: Any) -> Iterator[np.ndarray]:
    """The arrays of a named tuple of arrays, numbers and tuples."""
    for item in memory:
        if isinstance(item, tuple):
            yield from _arrays(item)
        elif isinstance(item, np.ndarray):
            yield item


def default_step(model: Attention) -> float:
    """The first step where nobody knows better."""
    size = size_of_value(model)
    return FIRST_STEP / size if size else math.inf


def prepare(model: Attention, start: FloatArray) -> Prepared:
    """The system that fits the model: in angles, in charts, or in charts with a dense block."""
    from metastable.integrate.rodas import control

    tokens, dim = start.shape
    first_step = default_step(model)
    if on_circle(model, tokens):
        circle = circle_system(model, start)
        # A sweep whose error is already twice what is allowed need not be finished.
        enough = 2.0 if circle.plain else math.inf
        march = partial(control.march_compiled, control.placed(circle))
        return Prepared(circle, march, "angle", 1, first_step, lambda: circle.angles[:, None], enough)
    frame = frame_of(model)
    system = sphere_system(model, start, dense_tokens(model, tokens), frame)
    charts, march = system.charts, control.march_compiled
    if system.first > 0:
        system, march = dense_system(model, system), control.march_plain
    return Prepared(
        system, partial(march, system), "ambient", dim, first_step, lambda: frame.back(charts.origin), back=frame.back
    )
