"""What every integrator returns: saved states, dense output, step statistics and a status."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from metastable._checks import FloatArray
from metastable._progress import Report
from metastable.errors import MetastableError, TimeError

Status = Literal["success", "max_steps", "diverged", "unresolved"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""Meaning of the numbers that compiled integrators return: 0, 1, 2, ...; unresolved: rounding hides whether tokens still move."""
MEMBER_STATUSES = (*STATUSES, "unfinished", "failed")
"""Names of the status codes of members: the integrators' own, then those of members that were interrupted or raised."""
SUCCESS, UNFINISHED, FAILED = (MEMBER_STATUSES.index(name) for name in ("success", "unfinished", "failed"))
Chart = Literal["ambient", "angle"]

DEGREE = 4
"""Degree of the dense output polynomial of Tsit5 and of Rodas5P."""
DENSE_LIMIT = 4 * 2**30
"""Bytes of dense output kept at the most; a run that needs more stops with a message that says to give `times`."""


def tally(statuses: np.ndarray) -> str:
    """How many of each: "3 max_steps, 1 diverged"."""
    return ", ".join(f"{count} {name}" for name, count in zip(*np.unique(statuses, return_counts=True)))


def out_of_steps(t: float, max_steps: int, reason: str = "") -> tuple[Status, str]:
    """Status and message of a run that has used up its steps; `reason`: why they were not enough, and what to do, where known."""
    more = f": {reason}" if reason else "; raise max_steps"
    return "max_steps", f"stopped after {max_steps} steps at t = {t:.6g}{more}"


def dense_overflow(t: float) -> tuple[Status, str]:
    """Status and message of a run whose dense output has no room left."""
    return "max_steps", f"dense output exceeds {DENSE_LIMIT / 2**30:.0f} GiB at t = {t:.6g}; give times=[...]"


def diverged(t: float) -> tuple[Status, str]:
    """Status and message of a run that no step can continue."""
    return "diverged", f"the solution leaves double precision near t = {t:.6g}"


def unresolved(t: float) -> tuple[Status, str]:
    """Status and message of a run that is to go on until tokens rest, where nobody can tell."""
    return "unresolved", (
        f"from t = {t:.6g} on rounding errors hide whether tokens still move, so that rest cannot be told from motion; "
        "give a horizon instead of until='settled'"
    )


@dataclass(frozen=True)
class Statistics:
    """Work done by an integrator."""

    accepted: int = 0
    rejected: int = 0
    evaluations: int = 0
    jacobians: int = 0

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(*(mine + its for mine, its in zip(astuple(self), astuple(other))))

    def __sub__(self, other: Statistics) -> Statistics:
        return Statistics(*(mine - its for mine, its in zip(astuple(self), astuple(other))))

    @property
    def tries(self) -> int:
        """Steps that were attempted."""
        return self.accepted + self.rejected


@dataclass(frozen=True)
class Dense:
    """Piecewise polynomial of degree 4, one piece per accepted step.

    On step s and with u = (t - start[s]) / width[s] in [0, 1] the state is `sum_p coefficients[s, p] u^p`, read in `chart`:

    - `"ambient"`: `(tokens, dim)` (or `(tokens, dim + 1)` with a radius in the last column), to be normalised to unit rows;
    - `"angle"`: `(tokens, 1)`, the angle on the circle.

    Shapes: `start`, `width` (steps,); `coefficients` (steps, 5, tokens, components). Widths are kept beside the starts because
    late in a merge `start + width == start` in floating point.
    """

    chart: Chart
    dim: int
    start: FloatArray
    width: FloatArray
    coefficients: FloatArray

    @property
    def end(self) -> float:
        """The last time that is covered."""
        return float(self.start[-1] + self.width[-1])

    @property
    def parts(self) -> tuple[Dense, ...]:
        """The polynomials behind it, in token order (one here; more after tokens were appended)."""
        return (self,)

    def step_of(self, t: float) -> int:
        """Index of the step that covers time t."""
        last = self.start.size - 1
        # Steps of zero width in floating point share a start: the last of them is the one that leaves it.
        return int(np.clip(np.searchsorted(self.start, t, side="right") - 1, 0, last))

    def __call__(self, t: float) -> FloatArray:
        """Packed state `(tokens, dim)` or `(tokens, dim + 1)` at time t."""
        if not self.start[0] <= t <= self.end * (1 + 1e-12):
            raise TimeError(
                f"t = {float(t)!r} is outside the run, which covers {float(self.start[0])!r} to {float(self.end)!r}"
            )
        step = self.step_of(t)
        return self.evaluate(step, float(np.clip((t - self.start[step]) / self.width[step], 0.0, 1.0)))

    def evaluate(self, step: int, u: float) -> FloatArray:
        """Packed state at the fraction u of one step."""
        return unchart(horner(self.coefficients[step], u), self.chart, self.dim)


@dataclass(frozen=True)
class JoinedDense:
    """Dense output of a run to which tokens were appended: `earlier` tokens, then `later` ones on a finer grid of steps."""

    earlier: Dense | JoinedDense
    later: Dense

    @property
    def dim(self) -> int:
        return self.later.dim

    @property
    def start(self) -> FloatArray:
        return self.later.start

    @property
    def width(self) -> FloatArray:
        return self.later.width

    @property
    def end(self) -> float:
        """The last time that is covered."""
        return self.later.end

    @property
    def parts(self) -> tuple[Dense, ...]:
        """The polynomials behind it, in token order."""
        return (*self.earlier.parts, self.later)

    def __call__(self, t: float) -> FloatArray:
        """Packed state of all tokens at time t."""
        return np.concatenate([self.earlier(min(t, self.earlier.end)), self.later(t)])

    def evaluate(self, step: int, u: float) -> FloatArray:
        """Packed state at the fraction u of one step of the finer grid."""
        t = float(self.start[step] + u * self.width[step])
        return np.concatenate([self.earlier(min(t, self.earlier.end)), self.later.evaluate(step, u)])


def join(parts: Sequence[Dense]) -> Dense | JoinedDense | None:
    """The dense output whose `parts` these are (None when there are none)."""
    joined: Dense | JoinedDense | None = None
    for part in parts:
        joined = part if joined is None else JoinedDense(joined, part)
    return joined


def in_chart(dense: Dense, chart: Chart) -> Dense:
    """Dense output on the circle re-expanded in another chart: the quartic through five points of every step.

    The interpolation error is of fifth order in the step, one more than that of the dense output itself.
    """
    if dense.chart == chart:
        return dense
    nodes = np.arange(DEGREE + 1) / DEGREE
    powers = nodes[:, None] ** np.arange(DEGREE + 1)
    values = unchart(np.einsum("up,spka->suka", powers, dense.coefficients), dense.chart, dense.dim)
    if chart == "angle":
        plane = values[..., 0] + 1j * values[..., 1]
        # Angles relative to the start of the step do not wrap: a step never turns a token by half a circle.
        angles = np.angle(plane[:, :1]) + np.angle(plane * np.conj(plane[:, :1]))
        values = angles[..., None]
    coefficients = np.einsum("pu,suka->spka", np.linalg.inv(powers), values)
    return replace(dense, chart=chart, coefficients=coefficients)


def in_order(pieces: Sequence[Dense], chart: Chart | None = None) -> Dense | None:
    """Dense output one after the other in time, as one, in `chart` (None: in angles where one of them is); None without any."""
    if not pieces:
        return None
    if chart is None:
        chart = "angle" if any(piece.chart == "angle" for piece in pieces) else "ambient"
    pieces = [in_chart(piece, chart) for piece in pieces]
    joined = (np.concatenate([getattr(p, name) for p in pieces]) for name in ("start", "width", "coefficients"))
    return Dense(chart, pieces[0].dim, *joined)


@dataclass(frozen=True)
class Resume:
    """Where an integration can be taken up as if it had never stopped: before its end cut a step short, or at its last step.

    Fields
    ------
    method : the method whose memory this is.
    t, state : the time, and the packed state (tokens, width) then.
    statistics : the work done up to then.
    control : what the step control remembers, by name (empty for fixed steps).
    """

    method: str
    t: float
    state: FloatArray
    statistics: Statistics
    control: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Solution:
    """Times (m,) and packed states (m, tokens, width), with how they came about."""

    times: FloatArray
    states: FloatArray
    status: Status
    statistics: Statistics
    dense: Dense | JoinedDense | None = None
    message: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    """Anything worth recording about the way (for example where an automatic method switched)."""
    resume: Resume | None = None
    """Where it can be taken up (`integrate.extend`); None where nothing can go on."""
    steps_ran_out: str | None = None
    """The `reason` of `out_of_steps` where that is how it ended ("" where none is known), else None: for who joins several."""

    @property
    def end(self) -> float:
        """The last of its times; 0 where it has none."""
        return float(self.times[-1]) if len(self.times) else 0.0


def part_of_run(solution: Solution, begin: float, end: float, wanted: FloatArray | None, first: bool) -> Solution:
    """What a solution whose clock starts at `begin` leaves in a run, in the time of the run: the states at the times `wanted`, or all
    (None), but for the one at its beginning where it is not the `first`. It ends at `end`, not but for rounding."""
    if wanted is None:
        skip = 0 if first else 1
        times, states = begin + solution.times, solution.states[skip:]
        times[-1:] = end
        times = times[skip:]
    else:
        times = wanted[: len(solution.times)]
        states = solution.states[: len(times)]
    dense = solution.dense
    shifted = replace(dense, start=dense.start + begin) if isinstance(dense, Dense) else None
    return replace(solution, times=times, states=states, dense=shifted)


def one_after_the_other(parts: Sequence[Solution]) -> Solution:
    """Parts of a run as one solution, which ends as the last of them does."""
    return replace(
        parts[-1],
        times=np.concatenate([part.times for part in parts]),
        states=np.concatenate([part.states for part in parts]),
        statistics=sum((part.statistics for part in parts), Statistics()),
        dense=in_order([part.dense for part in parts if isinstance(part.dense, Dense)]),
    )


class Members(NamedTuple):
    """Many members, solved: states (members, times, tokens, dim), NaN where one was not reached; statistics (members, 3: accepted,
    rejected, evaluations); status (members,), places in `MEMBER_STATUSES`."""

    states: FloatArray
    statistics: np.ndarray
    status: np.ndarray


def one_by_one(
    starts: FloatArray,
    times: int,
    report: Report,
    solve: Callable[[FloatArray, int], Solution],
    first: int,
    workers: int = 1,
) -> Members:
    """Members by themselves, on so many threads: `solve(start, number)` for each of `starts` (members, tokens, dim), numbered
    from `first`.

    One that raises is recorded as failed; after Ctrl-C the ones that were not finished are unfinished.
    """
    count, _, dim = starts.shape
    states = np.full((count, times, *starts.shape[1:]), np.nan)
    statistics = np.zeros((count, 3), dtype=np.int64)
    status = np.full(count, UNFINISHED)
    stopped = threading.Event()

    def work(i: int) -> None:
        if stopped.is_set():
            return
        try:
            solution = solve(starts[i], first + i)
        except MetastableError:
            status[i] = FAILED
            return
        states[i, : len(solution.times)] = solution.states[:, :, :dim]
        statistics[i] = solution.statistics.accepted, solution.statistics.rejected, solution.statistics.evaluations
        status[i] = STATUSES.index(solution.status)

    try:
        if workers == 1:
            for i in range(count):
                work(i)
                report(i + 1)
        else:
            with ThreadPoolExecutor(workers, "metastable-members") as pool:
                try:
                    for done, _ in enumerate(pool.map(work, range(count)), start=1):
                        report(done)
                except BaseException:
                    stopped.set()
                    raise
    except KeyboardInterrupt:
        pass
    return Members(states, statistics, status)


def horner(polynomial: FloatArray, u: float) -> FloatArray:
    """sum_p polynomial[p] u^p."""
    value = polynomial[DEGREE]
    for power in range(DEGREE - 1, -1, -1):
        value = polynomial[power] + u * value
    return value


def unchart(value: FloatArray, chart: Chart, dim: int) -> FloatArray:
    """Packed states from values in `chart` (leading axes are kept)."""
    if chart == "angle":
        angle = value[..., 0]
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    packed = np.array(value)
    direction = packed[..., :dim]
    direction /= np.sqrt(np.einsum("...j,...j->...", direction, direction))[..., None]
    return packed
