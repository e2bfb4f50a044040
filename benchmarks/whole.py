"""What users wait for, each in a process of its own: the whole Figure 3, a million tokens, and the first result.

    python -m benchmarks --only whole
    python -m benchmarks.whole figure3 --threads 2     # one measurement, as JSON

Wall-clock seconds and the peak memory of the process; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMBERS = 5000
TOKENS = 10**6
TURNS = 2
"""Turns per number of threads; the better one counts."""


def figure3(members: int = MEMBERS, threads: int = 1) -> dict[str, Any]:
    """The ensemble of Figure 3 with both capture curves."""
    import metastable as ms
    from benchmarks import fig3

    delta = 4 / fig3.BETA**0.5
    curves = {"renyi": ms.observe.consumed(delta), "strong": ms.observe.consumed(delta, strong=True)}
    model = ms.Attention(dim=2, beta=fig3.BETA)
    work: dict[str, Any] = {"tokens": fig3.TOKENS, "times": fig3.output_times(), "observe": curves, "threads": threads}
    ms.ensemble(model, members=16, seed=1, **work)  # compiles, or loads what was compiled
    begin = time.perf_counter()
    stats = ms.ensemble(model, members=members, seed=0, **work)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "captured": [float(stats[name].mean("member")[-1]) for name in curves]}


def million(tokens: int = TOKENS, threads: int = 2) -> dict[str, Any]:
    """One sequence on the circle, beta = 64, to t = 20."""
    import metastable as ms

    model, start = ms.Attention(dim=2, beta=64.0), ms.sphere.uniform(tokens, dim=2, seed=0)
    ms.simulate(model, start, times=[1e-3], threads=threads)  # compiles, or loads what was compiled
    begin = time.perf_counter()
    run = ms.simulate(model, start, times=[20.0], threads=threads)
    return {
        "seconds": time.perf_counter() - begin,
        "evaluations": run.stats.evaluations,
        "interaction": run.interaction,
        "status": run.status,
    }


FIRST = ("circle", "sphere", "ensemble", "rodas", "implicit")
"""What may be somebody's first result; "implicit" is a far horizon as `method="auto"` reaches it, by explicit steps and then by
Rodas."""


def first_result(case: str = "circle", threads: int = 2) -> dict[str, Any]:
    """From the start of Python to the end of something small; with the processor time of the whole process."""
    import numpy as np

    import metastable as ms

    if case == "ensemble":
        model, times = ms.Attention(dim=2, beta=64.0), np.array([0.0, 20.0])
        watched = {"mean": ms.observe.mean_cosine()}
        ms.ensemble(model, tokens=200, members=16, times=times, seed=0, observe=watched, threads=threads)
    else:
        far = case in ("rodas", "implicit")
        dim, until, tokens = 3 if case == "sphere" else 2, 1e6 if far else 20.0, 30 if far else 200
        model = ms.Attention(dim=dim, beta=9.0 if case == "sphere" else 64.0)
        start, method = ms.sphere.uniform(tokens, dim=dim, seed=0), "rodas" if case == "rodas" else "auto"
        ms.simulate(model, start, until=until, method=method, threads=threads)
    return {"cpu_seconds": time.process_time()}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "figure3": figure3,
    "million": million,
    "first_result": first_result,
}


def measure(task: str, *arguments: str, cache: str | None = None) -> dict[str, Any]:
    """A task in a fresh process: what it reports, its peak memory and its life time."""
    environment = dict(os.environ) if cache is None else {**os.environ, "NUMBA_CACHE_DIR": cache}
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.whole", task, *arguments],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return {**json.loads(done.stdout.splitlines()[-1]), "process_seconds": time.perf_counter() - begin}


def run(quick: bool = False) -> dict[str, Any]:
    """All tasks."""
    members, tokens = (200, 10**5) if quick else (MEMBERS, TOKENS)
    one, two = (
        min(
            (measure("figure3", "--members", str(members), "--threads", threads) for _ in range(TURNS)),
            key=lambda result: result["seconds"],
        )
        for threads in ("1", "2")
    )
    first = {case: _first(case) for case in FIRST}
    return {
        "figure3": {"members": members, "one": one, "two": two, "speed_up": one["seconds"] / two["seconds"]},
        "million": {"tokens": tokens, **measure("million", "--tokens", str(tokens))},
        "first_result": first,
    }


def _first(case: str) -> dict[str, float]:
    """The first result of a new process with nothing compiled, and with everything: wall-clock and CPU seconds."""
    with tempfile.TemporaryDirectory() as cache:
        cold = measure("first_result", "--case", case, cache=cache)
        turns = [measure("first_result", "--case", case, cache=cache) for _ in range(3)]
    warm = min(turns, key=lambda item: item["process_seconds"])
    return {
        "cold_seconds": cold["process_seconds"],
        "warm_seconds": warm["process_seconds"],
        "cold_cpu_seconds": cold["cpu_seconds"],
        "warm_cpu_seconds": warm["cpu_seconds"],
    }


def peak_megabytes() -> float:
    """Peak memory of this process. (Where /proc has it: the other counter starts with that of the parent process.)"""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--members", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--case", choices=FIRST)
    arguments = vars(parser.parse_args())
    task = arguments.pop("task")
    result = TASKS[task](**{name: value for name, value in arguments.items() if value is not None})
    peak = peak_megabytes()
    print(json.dumps({**result, "peak_megabytes": peak}))


if __name__ == "__main__":
    main()
