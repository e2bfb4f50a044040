"""Tsit5 for a system whose state stays where its velocity is computed: only sizes and wanted outputs come to the host.

The semantics are those of `integrate.tsit5`: the same first step, error norm, controller, dense output and status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.integrate import march
from metastable.integrate.plan import Plan
from metastable.integrate.solution import Solution
from metastable.integrate.tableau import TSIT5
from metastable.model import require


class Device(Protocol):
    """State, trial state and slopes on a device (`kernels.torch.march.DeviceSystem`)."""

    def evaluate(self, t: float, stage: int, trial: bool) -> None: ...

    def stage(self, t: float, stage: int, h: float) -> None: ...

    def probe(self, t: float, h: float) -> None: ...

    def norm(self, kind: str, h: float, rtol: float, atol: float) -> float: ...

    def retract(self) -> None: ...

    def accept(self) -> None: ...

    def host_state(self) -> FloatArray: ...

    def host_step(self) -> tuple[FloatArray, FloatArray, FloatArray]: ...


@dataclass
class System:
    """A `march.System` on a device."""

    device: Device
    rtol: float
    atol: float

    def _size(self, kind: str, step: float = 1.0) -> float:
        return self.device.norm(kind, step, self.rtol, self.atol)

    def state(self) -> FloatArray:
        return self.device.host_state()

    def begin(self, t: float) -> None:
        self.device.evaluate(t, 0, False)

    def speed(self) -> float:
        return self._size("slope")

    def bend(self, trial: float) -> float:
        self.device.probe(trial, trial)
        return self._size("difference")

    def advance(self, t: float, step: float, latest: float) -> float:
        for stage in range(1, TSIT5.stages):
            self.device.stage(min(t + float(TSIT5.c[stage]) * step, latest), stage, step)
        return self._size("error", step)

    def accept(self, t: float, step: float, end: float, recorder: march.Recorder) -> None:
        self.device.retract()
        if recorder.wants(end):
            y, new, stages = self.device.host_step()
            recorder.step(t, step, end, new, lambda: march.polynomial(y, step, stages))
        self.device.accept()


def solve_torch(plan: Plan, start: FloatArray, report: Report | None) -> Solution:
    """Integrate the packed state `start` (tokens, width) to the end of the plan with engine="torch"."""
    from metastable.kernels.torch.march import DeviceSystem
    from metastable.kernels.torch.support import SUPPORT

    accuracy, backend = plan.accuracy, plan.backend
    require(plan.model, SUPPORT[backend.dtype], len(start))
    start = np.ascontiguousarray(start, dtype=np.float64)
    device = DeviceSystem(plan.model, start, TSIT5.a, TSIT5.error, backend.dtype, backend.threads)
    return march.integrate(
        System(device, accuracy.rtol, accuracy.atol),
        start,
        march.Recorder(plan.model.dim, plan.save.times),
        plan.save.until,
        tolerance=accuracy.tolerance,
        max_steps=accuracy.max_steps,
        breakpoints=plan.model.norm.breakpoints,
        progress=report,
        resume=plan.resume,
    )
