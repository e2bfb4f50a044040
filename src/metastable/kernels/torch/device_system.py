"""States and slopes of one system that stay on the device between the stages of a Runge-Kutta step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from metastable._checks import FloatArray
from metastable.kernels.torch.engine import Velocity


class DeviceSystem:
    """A state `y` that stays on the device, with its trial state `new` and the slopes of the stages (an `integrate.march.System`).

    All in double precision, whatever the sums are made in. `tableau` is the method (`integrate.tableau.Tableau`), `accuracy` has rtol
    and atol, and `polynomial(tableau, y, step, slopes, out)` makes dense output on the host.
    """

    def __init__(
        self, velocity: Velocity, start: FloatArray, tableau: Any, accuracy: Any, polynomial: Callable[..., FloatArray]
    ) -> None:
        self.velocity, self.tableau, self.accuracy, self.polynomial = velocity, tableau, accuracy, polynomial
        self.dim = velocity.model.dim
        place = {"device": velocity.home, "dtype": torch.float64}
        self.y = torch.tensor(start, **place)
        self.new = self.y.clone()
        self.slopes = torch.zeros((tableau.stages, *start.shape), **place)
        self.weights, self.error = torch.tensor(tableau.a, **place), torch.tensor(tableau.error, **place)

    def _size(self, change: torch.Tensor, new: torch.Tensor) -> float:
        """Root mean square over tokens of a change, over the tolerance; radii are measured against their larger end."""
        rtol, atol = self.accuracy.rtol, self.accuracy.atol
        size = torch.linalg.vector_norm(change[:, : self.dim]) / (atol + rtol)
        if change.shape[1] > self.dim:
            radius = torch.maximum(self.y[:, self.dim].abs(), new[:, self.dim].abs())
            size = torch.hypot(size, torch.linalg.vector_norm(change[:, self.dim] / (atol + rtol * radius)))
        return float(size) / math.sqrt(len(change))

    def _combined(self, weights: torch.Tensor, step: float, y: torch.Tensor | None = None) -> torch.Tensor:
        """y + step times the weighted sum of the first slopes, in one pass."""
        slopes = self.slopes[: len(weights)].view(len(weights), -1).T
        base, beta = (self.slopes[0], 0.0) if y is None else (y, 1.0)
        return torch.addmv(base.reshape(-1), slopes, weights, beta=beta, alpha=step).view_as(base)

    def state(self) -> FloatArray:
        return self.y.cpu().numpy().copy()

    def begin(self, t: float) -> None:
        self.velocity.evaluate(t, self.y, self.slopes[0])

    def speed(self) -> float:
        return self._size(self.slopes[0], self.y)

    def bend(self, trial: float) -> float:
        self.velocity.evaluate(trial, self.y + trial * self.slopes[0], self.slopes[1])
        return self._size(self.slopes[1] - self.slopes[0], self.y)

    def advance(self, t: float, step: float, latest: float) -> float:
        for stage in range(1, self.tableau.stages):
            self.new = self._combined(self.weights[stage, :stage], step, self.y)
            self.velocity.evaluate(min(t + float(self.tableau.c[stage]) * step, latest), self.new, self.slopes[stage])
        if bool((self.new[:, self.dim :] <= 0).any()):
            return math.nan  # a radius that reaches zero has no direction: the solution ends there
        return self._size(self._combined(self.error, step), self.new)

    def accept(self, t: float, step: float, end: float, recorder: Any) -> None:
        self.new[:, : self.dim] /= torch.linalg.vector_norm(self.new[:, : self.dim], dim=1, keepdim=True)
        if recorder.wants(end):
            # Nobody writes to y and new, and the slopes are read within: what is on the CPU need not be copied.
            y, new, slopes = (item.cpu().numpy() for item in (self.y, self.new, self.slopes))
            recorder.step(t, step, end, new, lambda out: self.polynomial(self.tableau, y, step, slopes, out))
        self.y = self.new
        self.slopes[0] = self.slopes[-1]
