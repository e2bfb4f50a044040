"""Speed and accuracy against what people use now, on one thread.

    python -m benchmarks                       # everything, a few minutes
    python -m benchmarks --only fig3           # one part
    python -m benchmarks --quick               # smaller, without diffrax and torchdiffeq
    python -m benchmarks --publish             # everything, and the record, tables and picture of docs/performance.md from it

Prints tables of ratios and writes cpu.json and cpu.png. `metastable bench` and `make bench` call this.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

PARTS = ("fig3", "scaling", "dimension", "whole", "workers", "widths")


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part only (may be repeated)")
    parser.add_argument("--quick", action="store_true", help="smaller workloads, fewer rivals and turns")
    parser.add_argument("--output", type=Path, default=Path("out/bench"), help="folder for cpu.json and cpu.png")
    parser.add_argument("--publish", action="store_true", help="also write the record and the page of the docs")
    arguments = parser.parse_args()
    if arguments.publish and arguments.quick:
        parser.error("what is published is measured in full: leave --quick out")
    # Before NumPy, torch and JAX start their threads: one each, as for us.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    from datetime import date

    from benchmarks import page, report, timing
    from metastable.environment import processor_name

    today = date.today().isoformat()
    results: dict = {"processor": processor_name(), "date": today, "versions": page.versions()}
    for part in arguments.only or PARTS:
        print(f"{part} ...", flush=True)
        results[part] = __import__(f"benchmarks.{part}", fromlist=["run"]).run(arguments.quick)
    results["left_out"] = timing.left_out
    print("\n" + report.tables(results))
    written = report.write(results, arguments.output)
    print("\nwritten:", *written, *(page.publish(results) if arguments.publish else ()))


if __name__ == "__main__":
    main()
