"""What a worker process does: one run with everything that is shown about it, one attention matrix, or one file to download.

A job is a generator of messages: dictionaries (sent as JSON) and bytes (binary frames). Runs are deterministic, so nothing but a
small cache is kept between jobs: whatever was forgotten is computed again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np

from metastable import sphere
from metastable._checks import FloatArray
from metastable.errors import TimeError
from metastable.explorer import exports, measure, outcome, protocol
from metastable.explorer.setting import Clock, Setting
from metastable.run import Run, simulate

Message = dict[str, Any] | bytes

CHUNK = 60
"""Frames per message."""
PREVIEW = 10.0
"""A slow run is first shown up to here, which takes no time, while the rest is computed."""
SLOW = 2e7
"""Tokens squared times horizon from which on a run is slow."""
LONG = 1e4
"""Horizons from which on every run is slow: they take implicit steps."""
CACHE = 3
"""Runs kept."""
CHANGED = 0.02
"""A token ends elsewhere when its last position moved by more than this."""

_runs: OrderedDict[str, Run] = OrderedDict()
_seconds: dict[str, float] = {}
"""What the runs of `_runs` took."""


def perform(order: dict[str, Any]) -> Iterator[Message]:
    """Carry out one order of the server: `simulate`, `attention` or `export`."""
    setting, clock = Setting.from_dict(order["setting"]), Clock.from_dict(order["clock"])
    setting.check_clock(clock)
    kind = order["kind"]
    if kind == "simulate":
        yield from _simulate(setting, clock, order)
    elif kind == "attention":
        yield _attention(setting, clock, order)
    else:
        yield from exports.export(order["format"], setting, clock, lambda: run_of(setting, clock))


def run_of(setting: Setting, clock: Clock) -> Run:
    """The run of a setting: the exact call that the Python code on the page shows."""
    key = setting.key(clock)
    if key in _runs:
        _runs.move_to_end(key)
        return _runs[key]
    began = time.perf_counter()
    run = simulate(setting.model, setting.positions, progress=False, **setting.options(clock))
    _runs[key], _seconds[key] = run, time.perf_counter() - began
    while len(_runs) > CACHE:
        _seconds.pop(_runs.popitem(last=False)[0], None)
    return run


def remembered() -> dict[str, float]:
    """The runs that are kept: what each is known by, and the seconds that it took."""
    return {key: _seconds.get(key, 0.0) for key in _runs}


def states_at(run: Run, times: FloatArray) -> FloatArray:
    """States (frames, tokens, dim) of a run at those of `times` that it reached."""
    if run.dense is None:
        return run.states[: len(times)]
    reached = times[times <= run.end * (1 + 1e-12)]
    return run.at(np.minimum(reached, run.end))


def _simulate(setting: Setting, clock: Clock, order: dict[str, Any]) -> Iterator[Message]:
    tag = {"panel": order["panel"], "run": order["run"]}
    times = setting.times(clock)
    began = time.perf_counter()
    renyi, strong = measure.centers(setting)
    yield {"type": "facts", **tag, **outcome.facts(setting, times, renyi, strong)}
    if _is_slow(setting, clock) and setting.key(clock) not in _runs:
        yield from _preview(setting, times, tag)
    run = run_of(setting, clock)
    seconds = time.perf_counter() - began
    states = states_at(run, times)
    view = measure.view_of(setting, states)
    assert view is not None
    anchors = None if setting.model.frozen is None else view(setting.model.frozen.tokens).tolist()
    yield {"type": "view", **tag, "name": view.name, "frozen": anchors, **outcome.leading_shape(setting.model, view)}
    yield from positions(states, view, tag, 0)
    leaders = measure.leaders(states, setting.cluster_radius)
    yield from leader_frames(leaders, tag)
    yield {
        "type": "curves",
        **tag,
        **outcome.curves(setting, states, leaders, renyi, strong),
        "merges": outcome.merges(setting, states, times[: len(states)]),
    }
    yield {
        "type": "end",
        **tag,
        "frames": len(states),
        **outcome.ending(setting, run, states, times[: len(states)], leaders),
        "seconds": seconds,
        "changed": _changes(order.get("before"), setting, clock, run),
    }


def _is_slow(setting: Setting, clock: Clock) -> bool:
    """True where waiting for the whole run would be noticed."""
    if setting.step is not None or clock.until <= 2 * PREVIEW:
        return False
    return clock.until > LONG or setting.start.total**2 * clock.until > SLOW


def _preview(setting: Setting, times: FloatArray, tag: dict[str, int]) -> Iterator[Message]:
    """The first frames of a long run from a short one."""
    view = measure.view_of(setting)
    if view is None:
        return
    early = times[times <= PREVIEW]
    run = simulate(setting.model, setting.positions, PREVIEW, progress=False)
    states = states_at(run, early)
    yield from positions(states, view, tag, 0)
    yield from leader_frames(measure.leaders(states, setting.cluster_radius), tag)


def positions(states: FloatArray, view: measure.View, tag: dict[str, int], start: int) -> Iterator[bytes]:
    """States (frames, tokens, dim) as messages, from frame number `start` on."""
    for first in range(0, len(states), CHUNK):
        part = states[first : first + CHUNK]
        distance = sphere.distance(part, part[:, :1])
        yield protocol.pack_positions(tag["panel"], tag["run"], start + first, view(part), distance)


def leader_frames(leaders: np.ndarray, tag: dict[str, int]) -> Iterator[bytes]:
    """The first token of the cluster of each token (frames, tokens) as messages."""
    for first in range(0, len(leaders), CHUNK):
        yield protocol.pack_leaders(tag["panel"], tag["run"], first, leaders[first : first + CHUNK])


def _changes(before: Any, setting: Setting, clock: Clock, run: Run) -> dict[str, Any] | None:
    """What became different from the run of the setting `before`, for the tokens that both have."""
    if before is None:
        return None
    earlier_setting = Setting.from_dict(before)
    if earlier_setting.model.dim != setting.model.dim:
        return None
    earlier = run_of(earlier_setting, clock)
    names, now = earlier_setting.start.indices, setting.start.indices
    shared, left, right = np.intersect1d(names, now, assume_unique=True, return_indices=True)
    moved = sphere.distance(earlier.start[left], run.start[right]) > 0
    away = sphere.distance(earlier.final[left], run.final[right])
    gone = np.setdiff1d(names, now)
    touched = np.concatenate([shared[moved], gone])
    quiet = shared < touched.min() if touched.size else np.ones(len(shared), bool)
    exact = (earlier.final[left][quiet] == run.final[right][quiet]).all()
    return {
        "moved": right[moved].tolist(),
        "added": len(now) - len(shared),
        "removed": len(gone),
        "earlier": int(quiet.sum()),
        "earlier_shift": float(away[quiet].max(initial=0.0)),
        "earlier_exact": bool(exact),
        "later": int((~quiet).sum()),
        "elsewhere": int((away[~quiet] > CHANGED).sum()),
    }


def _attention(setting: Setting, clock: Clock, order: dict[str, Any]) -> bytes:
    times = setting.times(clock)
    frame = order["frame"]
    if frame >= len(times):
        raise TimeError(f"there is no frame {frame}; the run has {len(times)}")
    run = run_of(setting, clock)
    states = states_at(run, times[frame : frame + 1]) if run.dense is not None else run.states[frame : frame + 1]
    if not len(states):
        raise TimeError(f"the run stopped at t = {run.end:g}, before frame {frame}")
    matrix = measure.attention_matrix(setting.model, states[0])
    return protocol.pack_attention(order["panel"], order["run"], frame, len(states[0]), matrix)
