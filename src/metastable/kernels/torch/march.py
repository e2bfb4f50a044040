"""States and slopes of one system that stay on the device between the stages of a Runge-Kutta step."""

from __future__ import annotations

import math

import torch

from metastable._checks import FloatArray
from metastable.kernels.torch.engine import Velocity
from metastable.model import Attention


class DeviceSystem:
    """One system: state `y`, trial state `new` and the slopes of the stages, double precision whatever the sums are made in.

    `weights` (stages, stages) and `error` (stages,) are the coefficients of the method.
    """

    def __init__(
        self,
        model: Attention,
        start: FloatArray,
        weights: FloatArray,
        error: FloatArray,
        dtype: str = "float64",
        threads: int | None = None,
    ) -> None:
        self.velocity = Velocity(model, len(start), 0, threads, dtype)
        self.dim = model.dim
        place = {"device": self.velocity.home, "dtype": torch.float64}
        self.y = torch.tensor(start, **place)
        self.new = self.y.clone()
        self.slopes = torch.zeros((len(error), *start.shape), **place)
        self.weights, self.error = torch.tensor(weights, **place), torch.tensor(error, **place)

    def evaluate(self, t: float, stage: int, trial: bool) -> None:
        """Slope of `stage` at the trial state, or at the state itself."""
        self.velocity.evaluate(t, self.new if trial else self.y, self.slopes[stage])

    def stage(self, t: float, stage: int, h: float) -> None:
        """Slope of `stage` of a step of size h, at depth t."""
        self.new = self.y + h * torch.tensordot(self.weights[stage, :stage], self.slopes[:stage], dims=1)
        self.evaluate(t, stage, True)

    def probe(self, t: float, h: float) -> None:
        """Slope at the end of an Euler step of size h, kept as stage 1."""
        self.new = self.y + h * self.slopes[0]
        self.evaluate(t, 1, True)

    def norm(self, kind: str, h: float, rtol: float, atol: float) -> float:
        """Root mean square over tokens of h times a combination of slopes, over the tolerance; NaN where a radius is gone.

        `kind`: "error" (of the embedded method), "slope" (stage 0) or "difference" (stage 1 minus stage 0).
        """
        new = self.new if kind == "error" else self.y
        if kind == "error":
            change = h * torch.tensordot(self.error, self.slopes, dims=1)
        else:
            change = self.slopes[0] if kind == "slope" else self.slopes[1] - self.slopes[0]
        square = (change[:, : self.dim] / (atol + rtol)).square().sum(dim=1)
        if change.shape[1] > self.dim:
            if kind == "error" and bool((new[:, self.dim] <= 0).any()):
                return math.nan  # a radius that reaches zero has no direction: the solution ends there
            radius = torch.maximum(self.y[:, self.dim].abs(), new[:, self.dim].abs())
            square = square + (change[:, self.dim] / (atol + rtol * radius)).square()
        return float(square.mean().sqrt())

    def retract(self) -> None:
        """Put the trial state on the sphere."""
        self.new[:, : self.dim] /= torch.linalg.vector_norm(self.new[:, : self.dim], dim=1, keepdim=True)

    def accept(self) -> None:
        """The trial state becomes the state, the last slope the first one."""
        self.y = self.new
        self.slopes[0] = self.slopes[-1]

    def host_state(self) -> FloatArray:
        """The state on the host."""
        return self.y.cpu().numpy().copy()

    def host_step(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """State, trial state and slopes on the host."""
        y, new, slopes = (item.cpu().numpy().copy() for item in (self.y, self.new, self.slopes))
        return y, new, slopes
