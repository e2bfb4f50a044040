"""What `analysis` needs to know about a run, so that it can stay below `metastable.run`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError
from metastable.model import Attention


class DenseOutput(Protocol):
    """Piecewise polynomial output of an adaptive integrator, step by step."""

    @property
    def start(self) -> FloatArray: ...

    @property
    def width(self) -> FloatArray: ...

    def evaluate(self, step: int, u: float) -> FloatArray: ...


@runtime_checkable
class Trajectory(Protocol):
    """A `Run`, or anything with the same attributes."""

    @property
    def model(self) -> Attention: ...

    @property
    def times(self) -> FloatArray: ...

    @property
    def states(self) -> FloatArray: ...

    @property
    def start(self) -> FloatArray: ...

    @property
    def final(self) -> FloatArray: ...

    @property
    def dense(self) -> DenseOutput | None: ...


def check_trajectory(run: Any) -> Trajectory:
    """`run` if it has what a trajectory needs."""
    if not isinstance(run, Trajectory):
        raise InvalidInputError(f"run must be a Run, as metastable.simulate returns it, not {type(run).__name__}")
    if len(run.times) != len(run.states):
        raise InvalidInputError(f"run has {len(run.times)} times but {len(run.states)} states")
    return run


def joints_of(run: Any) -> tuple[float, ...]:
    """The depths inside a run at which its model becomes another."""
    schedule = getattr(run, "schedule", None)
    if schedule is None:
        return ()
    begin, end = float(getattr(run, "begin", 0.0)), float(run.times[-1]) if len(run.times) else 0.0
    return tuple(
        first for (_, before), (first, model) in pairwise(schedule.pieces) if begin < first < end and before != model
    )


def unit_rows(state: FloatArray, dim: int) -> FloatArray:
    """Tokens of a packed state (a radius column is dropped), contiguous."""
    return np.ascontiguousarray(state[:, :dim])


def saved_grid(run: Trajectory) -> tuple[FloatArray, FloatArray]:
    """Saved times (m,) and tokens (m, n, d), with the start in front when it was not saved."""
    times, states = np.asarray(run.times, dtype=np.float64), np.asarray(run.states, dtype=np.float64)
    begin = getattr(run, "begin", 0.0)
    if times.size == 0 or times[0] > begin:
        times = np.concatenate([[begin], times])
        states = np.concatenate([np.asarray(run.start)[None], states.reshape(-1, *np.asarray(run.start).shape)])
    return times, writable(states)


def writable(states: FloatArray) -> FloatArray:
    """Contiguous float64 that compiled code takes: what a run holds is read-only, which would be another type to compile for."""
    return np.require(states, np.float64, ["C", "W"])


def subspace_basis(subspace: Any, dim: int) -> FloatArray:
    """Orthonormal columns spanning a subspace of R^dim, from any spanning columns (dim, k)."""
    columns = _checks.real_array(subspace, "subspace")
    if columns.ndim == 1:
        columns = columns[:, None]
    if columns.ndim != 2 or columns.shape[0] != dim or columns.size == 0:
        raise InvalidInputError(
            f"subspace must hold spanning vectors as columns, shape ({dim}, k), not an array of shape {columns.shape}"
        )
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    rank = int(np.sum(sizes > sizes[0] * dim * np.finfo(np.float64).eps)) if sizes[0] > 0 else 0
    if rank == 0:
        raise InvalidInputError("subspace must not be zero")
    return left[:, :rank]


def distance_to_subspace(x: FloatArray, basis: FloatArray) -> FloatArray:
    """Geodesic distance of unit vectors (..., dim) to the great sphere of a subspace with orthonormal columns `basis`.

    arctan2 of the parts across and along: accurate at both ends of [0, pi/2].
    """
    along = x @ basis
    across = x - along @ basis.T
    return np.arctan2(np.linalg.norm(across, axis=-1), np.linalg.norm(along, axis=-1))
