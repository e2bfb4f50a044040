"""States and slopes of one system that stay on the device between the stages of a Runge-Kutta step."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.kernels.cuda import device, engine, vectors
from metastable.kernels.cuda.intrinsics import cuda
from metastable.model import Attention


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any, Any]:
    return vectors.make_advance(), vectors.make_square_error(), vectors.make_retract()


class DeviceSystem:
    """One system on the device: state `y`, trial state `new` and the slopes of the stages.

    `weights` (stages, stages) and `error` (stages,) are the coefficients of the method.
    """

    def __init__(
        self,
        model: Attention,
        start: FloatArray,
        weights: FloatArray,
        error: FloatArray,
        interaction: str,
        dtype: str = "float64",
    ) -> None:
        self.tokens, width = start.shape
        self.dim, self.stages = model.dim, len(error)
        self.velocity = engine.make(model, self.tokens, 0, interaction, dtype)
        purpose = f"a step of {self.tokens} tokens"
        fix = "use fewer tokens or engine='cpu'"
        device.require_memory((self.stages + 2) * start.nbytes, purpose, fix)
        with device.allocating(purpose, fix):
            self.y, self.new = cuda.to_device(start), cuda.to_device(start)
            self.slopes = cuda.device_array((self.stages, self.tokens, width), np.float64)
            self.weights = cuda.to_device(weights)
            self.sums = cuda.device_array(vectors.REDUCTION_BLOCKS, np.float64)
        self.error = cuda.to_device(error)
        self.slope_only = cuda.to_device(np.eye(1, self.stages)[0])
        self.difference = cuda.to_device(np.eye(1, self.stages, 1)[0] - np.eye(1, self.stages)[0])
        self.euler = cuda.to_device(np.ones((1, 1)))
        self._views = [self.slopes[i] for i in range(self.stages)]
        self._advance, self._square, self._retract = _kernels()

    def _move(self, weights: Any, row: int, count: int, h: float) -> None:
        size = self.y.size
        self._advance[vectors.blocks(size), vectors.THREADS](
            self.y, self.slopes, weights, np.int32(row), np.int32(count), float(h), np.int32(0), self.new
        )

    def evaluate(self, t: float, stage: int, trial: bool) -> None:
        """Slope of `stage` at the trial state, or at the state itself."""
        self.velocity.evaluate(t, self.new if trial else self.y, self._views[stage])

    def stage(self, t: float, stage: int, h: float) -> None:
        """Slope of `stage` of a step of size h, at depth t."""
        self._move(self.weights, stage, stage, h)
        self.evaluate(t, stage, True)

    def probe(self, t: float, h: float) -> None:
        """Slope at the end of an Euler step of size h, kept as stage 1."""
        self._move(self.euler, 0, 1, h)
        self.evaluate(t, 1, True)

    def norm(self, kind: str, h: float, rtol: float, atol: float) -> float:
        """Root mean square over tokens of h times a combination of slopes, over the tolerance.

        `kind`: "error" (of the embedded method), "slope" (stage 0) or "difference" (stage 1 minus stage 0).
        """
        weights = {"error": self.error, "slope": self.slope_only, "difference": self.difference}[kind]
        old = self.y
        new = self.new if kind == "error" else self.y
        self._square[vectors.REDUCTION_BLOCKS, vectors.THREADS](
            old,
            new,
            self.slopes,
            weights,
            float(h),
            np.int32(self.dim),
            float(rtol),
            float(atol),
            np.int32(0),
            self.sums,
        )
        return float(np.sqrt(self.sums.copy_to_host().sum() / self.tokens))

    def retract(self) -> None:
        """Put the trial state on the sphere."""
        self._retract[vectors.blocks(self.tokens), vectors.THREADS](self.new, np.int32(self.dim), np.int32(0))

    def accept(self) -> None:
        """The trial state becomes the state, the last slope the first one."""
        self.y, self.new = self.new, self.y
        self._views[0].copy_to_device(self._views[-1])

    def host_step(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """State, trial state and slopes on the host."""
        return self.y.copy_to_host(), self.new.copy_to_host(), self.slopes.copy_to_host()
