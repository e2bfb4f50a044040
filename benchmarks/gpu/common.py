"""Timing with events, the machine, and the workloads."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# NumPy 2.5 dropped names that numba-cuda 0.30 still imports.
for _old, _new in (("row_stack", "vstack"), ("in1d", "isin"), ("trapz", "trapezoid")):
    if not hasattr(np, _old):
        setattr(np, _old, getattr(np, _new))

MEMBERS, TOKENS, BETA, HORIZON, OUTPUTS = 5000, 200, 64.0, 200.0, 50
"""The paper's Figure 3."""

RESULTS = Path(__file__).resolve().parents[1] / "results"


def figure_3() -> tuple[np.ndarray, np.ndarray]:
    """Starts (members, tokens, 2) and output times of the paper's Figure 3."""
    angle = np.random.default_rng(0).uniform(0.0, 2.0 * np.pi, (MEMBERS, TOKENS))
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1), np.linspace(HORIZON / OUTPUTS, HORIZON, OUTPUTS)


def unit_tokens(tokens: int, dim: int, seed: int = 0) -> np.ndarray:
    """Independent uniform tokens."""
    x = np.random.default_rng(seed).normal(size=(tokens, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def batch(
    model: Any,
    starts: np.ndarray,
    times: np.ndarray,
    tolerance: float,
    dtype: str = "float64",
    max_steps: int = 10**5,
    registers: int | None = None,
) -> Any:
    """Members on the device, ready to be launched."""
    from metastable.integrate.fused.cuda import scheme_of
    from metastable.integrate.tableau import TSIT5
    from metastable.kernels.cuda.batch import MemberBatch
    from metastable.kernels.cuda.members import Limits

    return MemberBatch(model, starts, times, Limits(tolerance, max_steps), scheme_of(TSIT5), dtype, registers)


def plan(model: Any, times: np.ndarray, dtype: str = "float64") -> Any:
    """The plan of an ensemble with default tolerances."""
    from metastable.integrate.plan import Plan, Save
    from metastable.kernels.select import Backend

    return Plan((model,), "tsit5", Save(float(times[-1]), times), backend=Backend("cuda", dtype=dtype))  # type: ignore[arg-type]


def silent(done: float) -> None:
    """A progress report that nobody reads."""


def seconds(launch: Callable[[], Any], repeats: int = 7, warm: int = 2) -> dict[str, float]:
    """Median, least and largest device time of a call, by events."""
    from numba import cuda

    for _ in range(warm):
        launch()
    cuda.synchronize()
    found = []
    for _ in range(repeats):
        begin, end = cuda.event(), cuda.event()
        begin.record()
        launch()
        end.record()
        end.synchronize()
        found.append(cuda.event_elapsed_time(begin, end) / 1e3)
    return {"median": statistics.median(found), "least": min(found), "largest": max(found)}


def machine() -> dict[str, Any]:
    """The GPU, its clocks as found, and the rate of its special function units (the floor of everything here)."""
    query = "name,clocks.sm,clocks.max.sm,clocks.mem,driver_version,power.draw"
    text = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    from numba import cuda

    device = cuda.get_current_device()
    clock = float(text.split(",")[2]) * 1e6
    units = device.MULTIPROCESSOR_COUNT
    return {
        "nvidia-smi": text.strip(),
        "multiprocessors": units,
        "clock": clock,
        "exponentials_per_second": 16.0 * units * clock,
    }


def show(rows: list[tuple[str, str]]) -> None:
    """A table of two columns."""
    width = max(len(name) for name, _ in rows)
    print()
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def record(name: str, data: dict[str, Any], folder: Path | None = None) -> Path:
    """Write results as JSON."""
    target = (folder or RESULTS) / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    return target
