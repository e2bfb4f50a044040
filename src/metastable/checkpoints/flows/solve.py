"""Marches through layers: the model's own stack, fixed steps, and Tsit5 with error control for one layer looped.

Time is depth: between t = k and t = k + 1 the field is that of the (k mod m)-th of the m chosen layers. A step of length one that
starts at a whole time is the layer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.checkpoints.flows.field import Field
from metastable.integrate import march
from metastable.integrate.plan import Accuracy
from metastable.integrate.solution import Solution, Statistics, diverged, out_of_steps
from metastable.integrate.tableau import TSIT5, Tableau

AMBIENT = 0
"""Columns that the recorder of the march normalises: none, states of a model have lengths of their own."""


@dataclass(frozen=True)
class Sphere:
    """Keeps every token at the length it starts with (`lengths`, (1, tokens, 1)), or, with None, lets lengths go."""

    lengths: Any = None

    def retract(self, x: Any) -> Any:
        """x with its tokens put back to their lengths."""
        return x if self.lengths is None else x * (self.lengths / x.norm(dim=-1, keepdim=True))

    def project(self, x: Any, velocity: Any) -> Any:
        """The part of a velocity along the sphere: v - <v, x> x/|x|^2."""
        if self.lengths is None:
            return velocity
        along = (velocity * x).sum(dim=-1, keepdim=True) / (x * x).sum(dim=-1, keepdim=True)
        return velocity - along * x


def to_array(x: Any) -> np.ndarray:
    """(1, tokens, dim) on any device to an array (tokens, dim) of the same precision."""
    return x[0].detach().cpu().numpy()


@dataclass
class _Kept:
    """States at the wanted times."""

    times: list[float] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)

    def add(self, t: float, x: Any) -> None:
        self.times.append(t)
        self.states.append(to_array(x).copy())

    def solution(self, status: tuple[str, str], accepted: int, evaluations: int) -> Solution:
        name, message = status
        statistics = Statistics(accepted, 0, evaluations)
        return Solution(np.array(self.times), np.array(self.states), name, statistics, None, message)  # pyright: ignore[reportArgumentType]


def stack(
    layers: Field,
    start: Any,
    steps: int,
    *,
    middle: bool,
    sphere: Sphere,
    wanted: set[int],
    max_steps: int,
    report: Report,
) -> Solution:
    """`steps` layers, one after the other, as the model runs them; with `middle` also the states after attention, at half times."""
    import torch

    kept = _Kept()
    x = start
    if 0 in wanted:
        kept.add(0.0, x)
    for step in range(steps):
        if step >= max_steps:
            return kept.solution(out_of_steps(float(step), max_steps), step, step)
        index = step % len(layers.layers)
        halfway, x = layers.middle(index, x) if middle else (None, layers.apply(index, x))
        x = sphere.retract(x)
        if halfway is not None:
            # A norm may bring a state back that had left the numbers on the way.
            halfway = sphere.retract(halfway)
            if not bool(torch.isfinite(halfway).all()):
                return kept.solution(diverged(float(step)), step, step + 1)
            kept.add(step + 0.5, halfway)
        if not bool(torch.isfinite(x).all()):
            return kept.solution(diverged(step + 0.5 if middle else float(step)), step, step + 1)
        if step + 1 in wanted:
            kept.add(step + 1.0, x)
        report(step + 1.0)
    return kept.solution(("success", ""), steps, steps)


def euler(
    layers: Field,
    start: Any,
    steps: int,
    step: float,
    *,
    layer_of: Callable[[int], int],
    sphere: Sphere,
    wanted: set[int],
    max_steps: int,
    report: Report,
) -> Solution:
    """x <- x + step (F(x) - x), `steps` times; `layer_of` says whose layer's turn it is at a step."""
    import torch

    kept = _Kept()
    x = start
    if 0 in wanted:
        kept.add(0.0, x)
    for number in range(steps):
        if number >= max_steps:
            return kept.solution(out_of_steps(number * step, max_steps), number, number)
        velocity = layers.velocity(layer_of(number), x)
        x = sphere.retract(x + step * velocity)
        if not bool(torch.isfinite(x).all()):
            return kept.solution(diverged(number * step), number, number + 1)
        if number + 1 in wanted:
            kept.add((number + 1) * step, x)
        report((number + 1) * step)
    return kept.solution(("success", ""), steps, steps)


@dataclass
class _System:
    """A looped layer as a `march.System`; the error of a token is measured against its length."""

    layers: Field
    x: Any
    sphere: Sphere
    rtol: float
    tableau: Tableau = TSIT5

    def __post_init__(self) -> None:
        self.stages: list[Any] = [None] * self.tableau.stages
        self.new = self.x

    def _rhs(self, x: Any) -> Any:
        x = self.sphere.retract(x)
        return self.sphere.project(x, self.layers.velocity(0, x))

    def _size(self, change: Any) -> float:
        scale = self.rtol * self.x.double().norm(dim=-1)
        return float(((change.double().norm(dim=-1) / scale) ** 2).mean().sqrt())

    def _combined(self, weights: FloatArray) -> Any:
        total = float(weights[0]) * self.stages[0]
        for weight, stage in zip(weights[1:], self.stages[1:]):
            if weight != 0.0:
                total = total + float(weight) * stage
        return total

    def state(self) -> FloatArray:
        return to_array(self.x).astype(np.float64)

    def begin(self, t: float) -> None:
        self.stages[0] = self._rhs(self.x)

    def speed(self) -> float:
        return self._size(self.stages[0])

    def bend(self, trial: float) -> float:
        return self._size(self._rhs(self.x + trial * self.stages[0]) - self.stages[0])

    def advance(self, t: float, step: float, latest: float) -> float:
        for i in range(1, self.tableau.stages):
            self.new = self.x + step * self._combined(self.tableau.a[i, :i])
            self.stages[i] = self._rhs(self.new)
        return self._size(step * self._combined(self.tableau.error))

    def accept(self, t: float, step: float, end: float, recorder: march.Recorder) -> None:
        new = self.sphere.retract(self.new)
        if recorder.wants(end):
            stages = np.stack([to_array(stage) for stage in self.stages]).astype(np.float64)
            before, after = (to_array(state).astype(np.float64) for state in (self.x, new))
            recorder.step(t, step, end, after, lambda out: march.polynomial(self.tableau, before, step, stages, out))
        self.x = new
        self.stages[0] = self.stages[-1]


def adaptive(
    layers: Field,
    start: Any,
    until: float,
    *,
    times: FloatArray,
    rtol: float,
    sphere: Sphere,
    max_steps: int,
    report: Report,
) -> Solution:
    """One looped layer by Tsitouras 5(4), error per step below `rtol` of each token's length in the root mean square."""
    solution = march.integrate(
        _System(layers, start, sphere, rtol),
        march.Recorder(AMBIENT, times),
        until,
        Accuracy(rtol, 0.0, max_steps),
        progress=report,
    )
    if sphere.lengths is None:
        return solution
    # Between the ends of steps the interpolant leaves the sphere by less than the tolerance.
    wanted = to_array(sphere.lengths).astype(np.float64)
    return replace(
        solution, states=solution.states * (wanted / np.linalg.norm(solution.states, axis=-1, keepdims=True))
    )


def spread_times(until: float, step: float | None, count: int) -> FloatArray:
    """`count` + 1 times from 0 to `until`, evenly spaced and, for fixed steps, on the grid of steps."""
    times = np.linspace(0.0, until, count + 1)
    return times if step is None else np.unique(np.rint(times / step)) * step


def step_numbers(times: Sequence[float] | FloatArray, step: float) -> tuple[set[int], float]:
    """Numbers of the steps that end at `times`, and how far the worst is off the grid, in steps."""
    ratio = np.asarray(times, dtype=np.float64) / step
    numbers = np.rint(ratio)
    return {int(number) for number in numbers}, float(np.abs(ratio - numbers).max())
