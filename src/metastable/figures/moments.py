"""The moments of a run that a picture or a film shows: evenly in time, or so that nothing moves far between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from metastable import _checks
from metastable.errors import InvalidInputError, TimeError, UnsupportedError

LOG_SPAN = 1e3
"""A run longer than this many units of depth is shown in log time unless told otherwise."""
STRIDE = 0.05
"""Radians that a token may move between two moments of a picture: a chord of that length leaves its arc by 0.0003."""
MOST_MOMENTS = 4000
MOST_NUMBERS = 2 * 10**7
"""Moments times tokens times dimension of a picture, at most."""
FINEST = 1e-6
"""Fraction of a step below which a stretch is not halved any more."""
STANDING = 0.35
"""Part of a film that passes evenly in time (or log time); the rest of it follows the motion."""


class RunLike(Protocol):
    """What the figures need to know about a run."""

    @property
    def times(self) -> np.ndarray: ...

    @property
    def states(self) -> np.ndarray: ...

    @property
    def model(self) -> Any: ...

    @property
    def start(self) -> np.ndarray: ...

    @property
    def final(self) -> np.ndarray: ...

    def at(self, t: float) -> np.ndarray: ...


def wants_log_time(run: RunLike, log: bool | None) -> bool:
    """`log` if it was decided, else True for runs longer than `LOG_SPAN`."""
    return float(run.times[-1]) > LOG_SPAN if log is None else log


def sample(run: RunLike, count: int = 300, log: bool | None = None) -> tuple[np.ndarray, np.ndarray]:
    """`count` moments of a run, evenly spaced in time or in log time: `times` (count,), `states` (count, tokens, dim).

    Uses the dense output where the run has one. A run that kept only its saved states (it was loaded without dense
    output, or has noise) is shown at those states.
    """
    moments = _even(run, count, log)
    try:
        states = np.stack([np.asarray(run.at(float(t))) for t in moments])
    except (TimeError, UnsupportedError):  # no dense output between the saved times
        return _saved(run)
    return moments, states


def walk(run: RunLike, count: int = 300, log: bool | None = None) -> Iterator[tuple[float, np.ndarray]]:
    """The moments of `sample`, one after the other: (time, state (tokens, dim)), for more tokens than memory holds moments of."""
    moments = _even(run, count, log, kept=False)
    if getattr(run, "dense", True) is None:  # no dense output between the saved times
        times, states = _saved(run)
        yield from zip(times.tolist(), states)
        return
    for t in moments:
        yield float(t), np.asarray(run.at(float(t)))


def trace(run: RunLike, count: int = 300, log: bool | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Moments of a run for lines without corners: those of `sample`, and more wherever a token moves farther than
    `STRIDE`.

    Moments are added by halving stretches of the dense output, counted in steps: late in a long run whole falls
    happen between two neighbouring floating-point times, and are drawn all the same (their times are equal then). At
    most `MOST_MOMENTS`.
    """
    reel = _reel(run)
    if reel is None:
        return sample(run, count, log)
    places, states = _traced(reel, _even(run, count, log))
    return reel.times(places), states


def saved_states(run: RunLike) -> int | None:
    """From how many saved states pictures of a run are drawn; None where dense output has every moment."""
    return len(_saved(run)[0]) if _reel(run) is None else None


class Frames(NamedTuple):
    """A film: `times` (frames,) and `states` (frames, tokens, dim); `path` (m, tokens, dim), finer, for trails without corners, and
    `index` (frames,) of each frame in it."""

    times: np.ndarray
    states: np.ndarray
    path: np.ndarray
    index: np.ndarray


def frames(run: RunLike, count: int, log: bool | None = None) -> Frames:
    """`count` moments of a run for a film whose clock follows the motion: slow where much happens, fast where all stand.

    Between two frames the same share passes of a clock made of two parts: `STANDING` of it runs evenly in time (or log time), the rest
    with the farthest way of any token. Without dense output nobody knows what was between the saved states: each frame is the one that
    is nearest on that clock, so few of them are held and of many some are left out.
    """
    even = _even(run, 300, log)
    count = _checks.count(count, "count", minimum=2)
    log = wants_log_time(run, log)
    ticks = np.linspace(0.0, 1.0, count)
    reel = _reel(run)
    if reel is None:
        times, states = _saved(run)
        clock = _clock(times, states, log)
        chosen = np.searchsorted(0.5 * (clock[1:] + clock[:-1]), ticks, side="right")
        return Frames(times[chosen], states[chosen], states, chosen)
    places, fine = _traced(reel, even)
    chosen = np.interp(ticks, _clock(reel.times(places), fine, log), places)
    states = reel.states(chosen)
    before = np.searchsorted(places, chosen, side="right")
    path = np.insert(fine, before, states, axis=0)
    return Frames(reel.times(chosen), states, path, before + np.arange(count))


def _clock(times: np.ndarray, states: np.ndarray, log: bool) -> np.ndarray:
    """What the clock of a film shows at moments (m,), from 0 to 1."""
    even = np.log(np.maximum(times, times[1])) if log else times
    # Two moments are one in log time where the first of them is the start.
    even = (even - even[0]) / (even[-1] - even[0]) if even[-1] > even[0] else np.linspace(0.0, 1.0, len(even))
    way = np.append(0.0, np.cumsum(_way(states)))
    return STANDING * even + (1.0 - STANDING) * (way / way[-1] if way[-1] > 0 else even)


def half_way(states: np.ndarray) -> int:
    """The moment (an index, neither the first nor the last) by which half of all motion is done."""
    way = np.append(0.0, np.cumsum(_way(states)))
    return int(np.clip(np.searchsorted(way, 0.5 * way[-1]), 1, max(1, len(states) - 2)))


def _way(states: np.ndarray) -> np.ndarray:
    """Farthest way (a chord) of any token from each moment to the next, shape (m - 1,)."""
    if len(states) < 2:
        return np.zeros(0)
    return np.array([np.linalg.norm(b - a, axis=1).max() for a, b in pairwise(states)])


def _even(run: RunLike, count: int, log: bool | None, kept: bool = True) -> np.ndarray:
    """Checked arguments as times evenly spaced in time or log time, the start in front; `kept`: all states at once need room."""
    if not all(hasattr(run, name) for name in ("times", "states", "start", "at")):
        raise InvalidInputError(f"run must be what metastable.simulate or metastable.load returns, not {run!r}")
    count = _checks.count(count, "count", minimum=2)
    if kept:
        _checks.room((count, *np.shape(run.start)), "the moments")
    if log is not None:
        _checks.flag(log, "log")
    last = float(run.times[-1])
    if last <= 0:
        raise TimeError("the run has only its start; simulate to a positive time before drawing it")
    if not wants_log_time(run, log):
        return np.linspace(0.0, last, count)
    moments = np.concatenate([[0.0], np.geomspace(min(0.1, last / 10), last, count - 1)])
    moments[-1] = last
    return moments


def _saved(run: RunLike) -> tuple[np.ndarray, np.ndarray]:
    """The saved states, with the start in front."""
    times, states = np.asarray(run.times, dtype=float), np.asarray(run.states, dtype=float)
    begin = getattr(run, "begin", 0.0)
    if times[0] > begin:
        return np.concatenate([[begin], times]), np.concatenate([np.asarray(run.start)[None], states])
    return times, states


class _Reel:
    """Dense output by place: a step plus a fraction of it."""

    def __init__(self, dense: Any, dim: int, end: float) -> None:
        self.dense, self.dim, self.end = dense, dim, end
        self.start, self.width = np.asarray(dense.start), np.asarray(dense.width)

    def locate(self, times: np.ndarray) -> np.ndarray:
        """Places of times, the end for later ones."""
        step = np.clip(np.searchsorted(self.start, times, side="right") - 1, 0, None)
        place = step + np.clip((times - self.start[step]) / self.width[step], 0.0, 1.0)
        return np.where(times >= self.end, float(len(self.start)), place)

    def _split(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        step = np.minimum(places.astype(int), len(self.start) - 1)
        return step, places - step

    def times(self, places: np.ndarray) -> np.ndarray:
        """Times of places."""
        step, fraction = self._split(places)
        return np.minimum(self.start[step] + fraction * self.width[step], self.end)

    def states(self, places: np.ndarray) -> np.ndarray:
        """Tokens at places, (m, tokens, dim)."""
        return np.stack([self.dense.evaluate(int(k), float(u))[:, : self.dim] for k, u in zip(*self._split(places))])


def _traced(reel: _Reel, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places and states of moments at `times`, with more between them wherever a token moves farther than `STRIDE`."""
    places = reel.locate(times)
    states = reel.states(places)
    most = max(len(places), min(MOST_MOMENTS, MOST_NUMBERS // states[0].size))
    while len(places) < most:
        far = np.flatnonzero((_way(states) > STRIDE) & (np.diff(places) > FINEST))[: most - len(places)]
        if not len(far):
            break
        middle = 0.5 * (places[far] + places[far + 1])
        places, states = np.insert(places, far + 1, middle), np.insert(states, far + 1, reel.states(middle), axis=0)
    return places, states


def _reel(run: RunLike) -> _Reel | None:
    """The dense output of a run, None where it kept none."""
    dense = getattr(run, "dense", None)
    if dense is None or not len(dense.start):
        return None
    return _Reel(dense, np.shape(run.start)[1], float(run.times[-1]))
