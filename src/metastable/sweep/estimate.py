"""How long and how large a sweep will be, from a few of its tasks run with few members."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any

from metastable import _checks
from metastable.errors import SweepError
from metastable.sweep.specification import Sweep
from metastable.sweep.tasks import ENSEMBLE_TASK, Execute, Task, load, variables

SECONDS = 2.0
"""How long a calibration may take (the first sample is always taken)."""
FIRST = 30.0
"""The first trial of a process also imports and loads what the others find there: up to so many times that long it is made again."""
SAMPLES = 8
MEMBERS = 16
"""Members of a sampled ensemble (as many as the kernels move at once); time and size are scaled up to all of them."""
COPIES = 2
"""Results are kept twice: in the journal and in the zarr store."""


@dataclass(frozen=True)
class Estimate:
    """Size of a sweep. `seconds`: of work on one core, from `sampled` tasks of which the cheapest and dearest are given.

    `failures`: trials that failed with `MEMBERS` members, in words; in the sweep they will be tasks that fail.
    """

    tasks: int
    sampled: int
    seconds: float
    cheapest: float
    dearest: float
    bytes: int
    failures: tuple[str, ...] = ()

    def wall_seconds(self, workers: int) -> float:
        """Expected duration on so many workers; never less than the dearest task."""
        workers = _checks.count(workers, "workers", 0)
        return max(self.seconds / max(1, workers), self.dearest)


def estimate(sweep: Sweep, execute: str | Execute = ENSEMBLE_TASK, seconds: float = SECONDS) -> Estimate:
    """Run a few tasks of the sweep with few members, keep nothing, and scale up. Takes about `seconds`."""
    _checks.instance(sweep, Sweep, "sweep")
    seconds = _checks.number(seconds, "seconds", 0.0)
    function = load(execute) if isinstance(execute, str) else execute
    deadline = time.monotonic() + seconds
    costs: list[float] = []
    sizes: list[float] = []
    failures: list[str] = []
    for number in _sample(sweep.size):
        if (costs or failures) and time.monotonic() > deadline:
            break
        try:
            patience = seconds if costs or failures else FIRST * seconds
            cost, size = _measure(sweep.task(number), function, patience)
        except SweepError as reason:
            failures.append(str(reason))
            continue
        costs.append(cost)
        sizes.append(size)
    if not costs:
        raise SweepError(f"all {len(failures)} trials failed; the first: {failures[0]}")
    mean = sum(costs) / len(costs)
    total = COPIES * sweep.size * sum(sizes) / len(sizes)
    return Estimate(sweep.size, len(costs), mean * sweep.size, min(costs), max(costs), int(total), tuple(failures))


def estimate_apart(sweep: Sweep, seconds: float = SECONDS) -> Estimate | None:
    """`estimate` in a process of its own, so that a trial that ends its process ends no other; None where one did."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, json.dumps(sweep.to_dict()), seconds))
    process.start()
    sender.close()  # the process has its own end: when that is closed, too, there is nothing to wait for
    try:
        # (What a trial has started may live on, and hold the other end of the pipe open.)
        wait([receiver, process.sentinel])
        answer = receiver.recv() if receiver.poll() else None
    except EOFError:
        return None
    except BaseException:
        process.kill()
        raise
    finally:
        process.join()
        receiver.close()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _answer(sender: Any, text: str, seconds: float) -> None:
    """What the process of `estimate_apart` does: send the estimate, or why there is none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked hears Ctrl-C, and ends this process
    try:
        answer: Any = estimate(Sweep.from_dict(json.loads(text)), seconds=seconds)
    except Exception as reason:
        answer = reason
    sender.send(answer)


def _sample(size: int) -> Iterator[int]:
    """Tasks to try: the two ends, then ever finer in between (the golden ratio fills a range evenly, whatever its length)."""
    golden = 0.618033988749895
    order = [0, size - 1, *(int(size * (golden * k % 1.0)) for k in range(1, 4 * SAMPLES))]
    return iter(list(dict.fromkeys(order))[:SAMPLES])


def _measure(task: Task, function: Execute, patience: float) -> tuple[float, float]:
    """Seconds and bytes of a whole task, from one with few members."""
    try:
        try:
            few, (spent, result) = 1, _timed(task, function, 1)
        except Exception:
            if task.members == 1:
                raise
            # One member may fail where most do not: a task fails when all of them do.
            few = min(task.members, MEMBERS)
            spent, result = _timed(task, function, few)
        if spent < patience:
            few = min(task.members, MEMBERS)
            spent, result = _timed(task, function, few)
    except Exception as reason:
        raise SweepError(f"a trial at {task.where} failed: {type(reason).__name__}: {reason}") from reason
    scale = task.members / few
    size = 0.0
    for variable in variables(result, task.keep):
        size += variable.values.nbytes * (scale if "member" in variable.dims else 1.0)
    return spent * scale, size


def _timed(task: Task, function: Execute, members: int) -> tuple[float, Any]:
    """Seconds and result of a trial; compilation is not counted, because it is paid once, not once per task."""
    from numba.core import event

    compiling: list[float] = []
    begin = time.monotonic()
    with event.install_timer("numba:compile", compiling.append):
        result = function(replace(task, members=members, threads=1))
    # (What is compiled within another compilation is counted twice.)
    return max(0.0, time.monotonic() - begin - sum(compiling)), result
