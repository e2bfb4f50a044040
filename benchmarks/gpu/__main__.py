"""Command line: `python -m benchmarks.gpu test|bench|peers|tune [--out FOLDER]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.gpu import common

ROOT = Path(__file__).resolve().parents[2]


def run_tests(options: list[str]) -> int:
    """The equivalence suites on the GPU of this machine."""
    import pytest

    suites = [str(ROOT / "tests" / "equivalence" / name) for name in ("cuda_suite.py", "cuda_series_suite.py")]
    return int(pytest.main(["-p", "no:cacheprovider", "-q", "--noconftest", "--durations=8", *suites, *options]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("what", choices=("test", "bench", "peers", "tune"))
    parser.add_argument("--out", type=Path, default=None, help="folder for the results (default: benchmarks/results)")
    parser.add_argument("--quick", action="store_true", help="bench without the peers")
    parser.add_argument("--only", nargs="*", help="tune: some parts; test: names of tests")
    arguments = parser.parse_args()
    if arguments.what == "test":
        return run_tests([] if arguments.only is None else ["-k", " or ".join(arguments.only)])
    if arguments.what == "peers":
        from benchmarks.gpu import peers

        common.record("gpu-peers", peers.main(), arguments.out)
        return 0
    if arguments.what == "tune":
        from benchmarks.gpu import tune

        common.record("gpu-tune", tune.main(arguments.only), arguments.out)
        return 0
    from benchmarks.gpu import bench

    return bench.main(arguments.out, arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
