"""Two versions of the package side by side: seconds of the same calls, and whether the results have the same bits.

    git worktree add /tmp/before v0.1.0
    python -m benchmarks.versions /tmp/before/src               # that one against the package at hand
    python -m benchmarks.versions /tmp/before/src --threads 4   # on so many threads (1)
    python -m benchmarks.versions /tmp/before/src --only rodas  # the rows whose names hold this word
    python -m benchmarks.versions /tmp/before/src --cuda        # the rows of the GPU instead

Each version runs in processes of its own, in turns; of every row the least time counts, in seconds of the clock and of the processor
(which other work on the machine hardly changes). Only calls that both versions have are here. The number of threads is said to both:
left alone, version 0.1 took all processors for implicit ensembles, whatever NUMBA_NUM_THREADS was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS, REPEATS = 5, 5
HERE = Path(__file__).resolve().parents[1] / "src"


def rows(cuda: bool, threads: int) -> dict[str, Callable[[], Any]]:
    """What is measured: name -> a call that returns an array."""
    import metastable as ms

    circle, sphere, wide = (ms.Attention(dim=dim, beta=beta) for dim, beta in ((2, 64.0), (3, 16.0), (8, 4.0)))
    matrices = dict(zip(("query", "key", "value"), np.random.default_rng(0).normal(size=(3, 3, 3)), strict=True))
    general = ms.Attention(dim=3, beta=4.0, **matrices)
    quiet: Any = {"progress": False}

    def start(model: Any, tokens: int) -> np.ndarray:
        return ms.sphere.uniform(tokens, dim=model.dim, seed=0)

    def velocity(model: Any, tokens: int, **options: Any) -> Callable[[], Any]:
        x = start(model, tokens)
        return lambda: ms.velocity(model, x, **options)

    def simulate(model: Any, tokens: int, until: float, **options: Any) -> Callable[[], Any]:
        x = start(model, tokens)
        return lambda: ms.simulate(model, x, times=[until], **options, **quiet).final

    def ensemble(model: Any, tokens: int, members: int, until: float, **options: Any) -> Callable[[], Any]:
        clusters = {"clusters": ms.observe.clusters(0.1)}
        return lambda: (
            ms.ensemble(
                model,
                tokens=tokens,
                members=members,
                times=[until / 10, until],
                observe=clusters,
                seed=0,
                **(options if cuda else {"threads": threads, **options}),
                **quiet,
            )["clusters"].values
        )

    if cuda:
        rows: dict[str, Callable[[], Any]] = {}
        for dtype in ("float32", "float64"):
            options = {"engine": "cuda", "dtype": dtype}
            rows |= {
                f"run, circle, n = 2e4, {dtype}": simulate(circle, 20_000, 2.0, method="tsit5", **options),
                f"run, sphere, n = 2e4, {dtype}": simulate(sphere, 20_000, 2.0, method="tsit5", **options),
                f"run, Q K V, n = 2e4, {dtype}": simulate(general, 20_000, 1.0, method="tsit5", **options),
                f"ensemble, circle, {dtype}": ensemble(circle, 200, 5000, 20.0, method="tsit5", **options),
                f"ensemble, sphere, {dtype}": ensemble(sphere, 200, 2000, 20.0, method="tsit5", **options),
            }
        return rows
    explicit: Any = {"engine": "cpu", "method": "tsit5"}
    return {
        "velocity, circle, n = 4096": velocity(circle, 4096, engine="cpu", interaction="direct"),
        "velocity, circle, series, n = 1e5": velocity(circle, 100_000, engine="cpu", interaction="series"),
        "velocity, sphere, n = 4096": velocity(sphere, 4096, engine="cpu", interaction="direct"),
        "velocity, sphere, series, n = 1e5": velocity(sphere, 100_000, engine="cpu", interaction="series"),
        "velocity, d = 8, n = 2048": velocity(wide, 2048, engine="cpu"),
        "velocity, Q K V, n = 2048": velocity(general, 2048, engine="cpu"),
        "run, circle, n = 200": simulate(circle, 200, 200.0, **explicit),
        "run, circle, n = 2000": simulate(circle, 2000, 20.0, **explicit),
        "run, sphere, n = 200": simulate(sphere, 200, 50.0, **explicit),
        "run, sphere, n = 2000": simulate(sphere, 2000, 5.0, **explicit),
        "run, Q K V, n = 2000": simulate(general, 2000, 2.0, **explicit),
        "run, layers, sphere, n = 500": simulate(sphere, 500, 20.0, engine="cpu", method="layers", step=0.1),
        "run, rodas, circle, n = 200": simulate(circle, 200, 1e9, method="rodas"),
        "run, rodas, sphere, n = 60": simulate(sphere, 60, 1e5, method="rodas"),
        "ensemble, circle, n = 200": ensemble(circle, 200, 200, 20.0, **explicit),
        "ensemble, sphere, n = 200": ensemble(sphere, 200, 100, 20.0, **explicit),
        "ensemble, Q K V, n = 100": ensemble(general, 100, 100, 5.0, **explicit),
        "ensemble, rodas, circle, n = 64": ensemble(circle, 64, 100, 1e6, method="rodas"),
    }


def measure(cuda: bool, threads: int, only: str) -> dict[str, dict[str, Any]]:
    """Least seconds of every row, and a fingerprint of its result; what cannot be done here says why."""
    found: dict[str, dict[str, Any]] = {}
    for name, call in rows(cuda, threads).items():
        if only not in name:
            continue
        try:
            result = np.ascontiguousarray(call())
        except Exception as reason:  # the other version may lack it
            found[name] = {"error": f"{type(reason).__name__}: {reason}"}
            continue
        seconds, work = [], []
        for _ in range(REPEATS):
            begin, spent = time.perf_counter(), time.process_time()
            call()
            seconds.append(time.perf_counter() - begin)
            work.append(time.process_time() - spent)
        digest = hashlib.blake2b(result.tobytes(), digest_size=8).hexdigest()
        total = float(np.asarray(result, dtype=float).sum())
        found[name] = {"seconds": min(seconds), "work": min(work), "bits": digest, "sum": total}
    return found


def _turn(source: Path, cuda: bool, threads: int, only: str) -> dict[str, dict[str, Any]]:
    """`measure` in a process that imports the package from `source`."""
    path = os.pathsep.join([str(source), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "benchmarks.versions", "--measure", "--threads", str(threads), "--only", only]
    settings = {"NUMBA_CACHE_DIR": str(source / ".numba_cache"), "NUMBA_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [*command, *(["--cuda"] if cuda else [])],
        env={**os.environ, "PYTHONPATH": path, **settings},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{source}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure both versions in turns and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", help="folder `src` of the other version")
    parser.add_argument("--cuda", action="store_true", help="the rows of the GPU")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose names hold this")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.cuda, arguments.threads, arguments.only)))
        return
    if arguments.before is None:
        parser.error("name the folder src of the other version")
    turns: dict[str, list[dict[str, dict[str, Any]]]] = {"before": [], "now": []}
    for _ in range(arguments.rounds):
        for who, source in (("before", arguments.before.resolve()), ("now", HERE)):
            turns[who].append(_turn(source, arguments.cuda, arguments.threads, arguments.only))
    print(f"{'':42} {'before':>9} {'now':>9} {'ratio':>6}  (range of ratios by turn)  {'CPU':>5}  result")
    for name in turns["now"][0]:
        wrong = [f"{who}: {turn[0][name]['error']}" for who, turn in turns.items() if "error" in turn[0][name]]
        if wrong:
            print(f"{name:42} {'; '.join(wrong)[:120]}")
            continue
        before, now = ([turn[name]["seconds"] for turn in turns[who]] for who in ("before", "now"))
        ratios = np.divide(now, before)
        spent, spend = (min(turn[name]["work"] for turn in turns[who]) for who in ("before", "now"))
        first, last = turns["before"][0][name], turns["now"][0][name]
        same = "same bits" if first["bits"] == last["bits"] else f"sum differs by {last['sum'] - first['sum']:.1e}"
        print(
            f"{name:42} {1e3 * min(before):7.2f}ms {1e3 * min(now):7.2f}ms {min(now) / min(before):6.2f}  "
            f"({ratios.min():.2f} to {ratios.max():.2f})  {spend / spent:18.2f}  {same}"
        )


if __name__ == "__main__":
    main()
