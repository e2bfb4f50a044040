"""How much faster a sweep is on two workers than on one, beside what two bare processes gain on the same machine; and what a
sweep costs beyond its tasks.

    python -m benchmarks --only workers
    python -m benchmarks.workers bare --share 0/2      # half of the tasks in a plain loop, nothing else
    python -m benchmarks.workers overhead              # ten thousand tasks that do nothing, as JSON

Every measurement of speed is one command from its start to its end, in seconds of wall-clock time: a sweep with all that belongs to it
(cluster, journal, store; not the estimate that is printed first), and as its peer the same tasks in processes that know nothing
of each other. The four take turns and the best turn of each counts. What the bare processes lose is the machine's; what the sweep
loses beyond that is ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TASKS = 48
MEMBERS = 32
"""Members per task: with 300 tokens on the sphere, a task lasts about two seconds."""
TURNS = 3
EMPTY_TASKS = 10**4

SWEEP = """
name = "workers"
seed = 1
tokens = {tokens}
members = {members}
[model]
dim = 3
[grid]
beta = {{range = [16.0, 32.0], count = {tasks}}}
[run]
times = [1.0, 10.0, 100.0]
[observe.clusters]
radius = 0.1
"""
TOKENS = 300


def bare(share: str, tasks: int, members: int) -> None:
    """Every k-th task of the sweep, one after the other on one thread."""
    import numpy as np

    import metastable as ms

    part, parts = map(int, share.split("/"))
    for beta in np.linspace(16.0, 32.0, tasks)[part::parts]:
        ms.ensemble(
            ms.Attention(dim=3, beta=float(beta)),
            tokens=TOKENS,
            members=members,
            times=[1.0, 10.0, 100.0],
            seed=1,
            observe={"clusters": ms.observe.clusters(radius=0.1)},
            threads=1,
            progress=False,
        )


def nothing(task: Any) -> Any:
    """A task whose result is a few numbers, at once."""
    import xarray as xr

    return xr.Dataset({"clusters": (("time",), [task.model["beta"]] * len(task.times))}, {"time": list(task.times)})


def overhead(tasks: int) -> dict[str, float]:
    """A sweep of tasks that do nothing, on two workers: time per task, memory of the client, time to open the results."""
    import metastable as ms
    from benchmarks.whole import peak_megabytes
    from metastable import sweep as sweeps

    described = ms.Sweep(
        model={"dim": 2},
        grid={"beta": {"range": [1.0, 2.0], "count": tasks}},
        tokens=2,
        members=1,
        times=[1.0],
        seed=0,
        observe={"clusters": {"radius": 0.1}},
    )
    with tempfile.TemporaryDirectory() as folder:
        outcome = sweeps.run(described, folder, workers=2, execute=nothing)
        assert outcome.complete, outcome
        begin = time.perf_counter()
        found = sweeps.open_results(folder)
        opened = time.perf_counter() - begin
        assert found.sizes["beta"] == tasks
    return {
        "tasks": tasks,
        "milliseconds_per_task": 1e3 * outcome.seconds / tasks,
        "client_milliseconds_per_task": 1e3 * time.process_time() / tasks,
        "client_megabytes": peak_megabytes(),
        "open_seconds": opened,
    }


def _processes(count: int, tasks: int, members: int) -> None:
    command = [sys.executable, "-m", "benchmarks.workers", "bare", "--tasks", str(tasks), "--members", str(members)]
    running = [subprocess.Popen([*command, "--share", f"{part}/{count}"]) for part in range(count)]
    codes = [process.wait() for process in running]
    if any(codes):
        raise RuntimeError("a bare process failed")


def _sweep(workers: int, tasks: int, members: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "workers.toml")
        file.write_text(SWEEP.format(tokens=TOKENS, members=members, tasks=tasks))
        subprocess.run(
            [
                *(sys.executable, "-m", "metastable", "sweep", "run", file),
                *("--out", Path(folder, "out"), "--workers", str(workers), "--quiet", "--calibrate", "0"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


CONTENDERS: dict[str, tuple[Callable[[int, int, int], None], int]] = {
    "sweep_one": (_sweep, 1),
    "sweep_two": (_sweep, 2),
    "bare_one": (_processes, 1),
    "bare_two": (_processes, 2),
}


def run(quick: bool = False) -> dict[str, Any]:
    """All four, in turns."""
    tasks, members, turns = (8, 16, 1) if quick else (TASKS, MEMBERS, TURNS)
    bare("0/1", 1, members)  # compiles what is not compiled yet
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(turns):
        for name, (command, count) in CONTENDERS.items():
            begin = time.perf_counter()
            command(count, tasks, members)
            seconds[name].append(time.perf_counter() - begin)
            print(f"  {name}: {seconds[name][-1]:.1f} s", flush=True)
    command = [
        sys.executable,
        "-m",
        "benchmarks.workers",
        "overhead",
        "--tasks",
        str(100 * tasks if quick else EMPTY_TASKS),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    best = {name: min(values) for name, values in seconds.items()}
    return {
        "tasks": tasks,
        "members": members,
        "seconds": seconds,
        "sweep_speed_up": best["sweep_one"] / best["sweep_two"],
        "bare_speed_up": best["bare_one"] / best["bare_two"],
        "sweep_over_bare": best["sweep_two"] / best["bare_two"],
        "overhead": json.loads(done.stdout.splitlines()[-1]),
    }


def main() -> None:
    """One measurement in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", choices=["bare", "overhead"])
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--members", type=int, default=MEMBERS)
    arguments = parser.parse_args()
    if arguments.kind == "bare":
        bare(arguments.share, arguments.tasks or TASKS, arguments.members)
    else:
        print(json.dumps(overhead(arguments.tasks or EMPTY_TASKS)))


if __name__ == "__main__":
    main()
