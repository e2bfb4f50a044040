"""Task functions that run in a moment, for tests of everything around them."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from metastable import sphere
from metastable.sweep import Sweep, Task


def execute(task: Task) -> xr.Dataset:
    """Random numbers from the seed of the task, scaled by beta: cheap, and different for every task."""
    generator = np.random.default_rng(task.seed)
    shape = (task.members, len(task.times))
    return xr.Dataset(
        {
            "clusters": (("member", "time"), task.model["beta"] * generator.standard_normal(shape)),
            "steps": (("member",), generator.integers(0, 100, task.members)),
            "message": (("member",), np.array(["fine"] * task.members)),
        },
        coords={"member": np.arange(task.members), "time": list(task.times)},
    )


def cap(generator: np.random.Generator, tokens: int, dim: int) -> np.ndarray:
    """Starts within 0.3 rad of the first axis."""
    return sphere.cap(tokens, np.eye(dim)[0], 0.3, generator)


def slow(task: Task) -> xr.Dataset:
    """The same after a moment (`METASTABLE_TEST_SECONDS`)."""
    if "METASTABLE_TEST_PIDS" in os.environ:
        (Path(os.environ["METASTABLE_TEST_PIDS"]) / str(os.getpid())).touch()
    time.sleep(float(os.environ.get("METASTABLE_TEST_SECONDS", "0.05")))
    return execute(task)


def failing(task: Task) -> xr.Dataset:
    """Fails at beta = 2 until the file `METASTABLE_TEST_CURE` exists."""
    if task.model["beta"] == 2.0 and not Path(os.environ["METASTABLE_TEST_CURE"]).exists():
        raise ValueError("beta is two")
    return execute(task)


def deadly(task: Task) -> xr.Dataset:
    """Kills its process at beta = 2."""
    if task.model["beta"] == 2.0:
        os._exit(9)
    return execute(task)


def busy(task: Task) -> xr.Dataset:
    """A second of computing on one core."""
    end = time.process_time() + 1.0
    while time.process_time() < end:
        np.linalg.norm(np.ones(1000))
    return execute(task)


def small_sweep(**changes) -> Sweep:
    """A sweep of 3 x 4 tasks."""
    fields = {
        "model": {"dim": 2},
        "grid": {"mask": ["causal", "full", {"kind": "window", "width": 4}], "beta": [1.0, 2.0, 3.0, 4.0]},
        "tokens": 8,
        "members": 5,
        "times": [1.0, 10.0, 100.0],
        "observe": {"clusters": {"radius": "0.5 / sqrt(beta)"}},
        "seed": 7,
    }
    return Sweep(**{**fields, **changes})


def northern(x):
    """An observable: how far north the northernmost token is."""
    return x[:, 1].max()


def moment(states, times, model, *, order):
    """An observable with an argument."""
    return (np.abs(states[:, :, 0]) ** order).mean(axis=1)


def bunch(generator, tokens, dim):
    """A start: all tokens close together."""
    x = np.eye(dim)[0] + 0.01 * generator.standard_normal((tokens, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@dataclass(frozen=True)
class Near:
    """How many tokens are within one of the `radii` of `center`: an observable of one's own, whose fields are plain."""

    radii: tuple[float, ...]
    center: tuple[float, ...] = (1.0, 0.0)
    note: Any = None

    @property
    def dims(self):
        return ("radius",)

    @property
    def coordinates(self):
        return {"radius": np.array(self.radii)}

    def measure(self, states, *, start, model, times):
        angles = np.arccos(np.clip(states @ np.array(self.center), -1.0, 1.0))
        return (angles[..., None] < np.array(self.radii)).sum(axis=1)


@dataclass(frozen=True)
class Level:
    """An observable with fields that a table may not be able to say."""

    level: Any = 0.5
    needed: int = 1
    dims = ()

    def __post_init__(self):
        if self.needed == 0:
            raise RuntimeError("somebody's own")
        if self.needed > 7:
            object.__setattr__(self, "needed", 0)

    def measure(self, states, *, start, model, times):
        return (states[..., 0] > (self.level or 0.0)).mean(axis=1)
