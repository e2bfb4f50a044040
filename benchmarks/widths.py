"""The same members in every vector width that this machine can run: do their final states agree?

    python -m benchmarks --only widths
    python -m benchmarks.widths                       # one million member-steps in each width; minutes, most of them compilation
    python -m benchmarks.widths member FILE --scale 1 # one width, that of the environment; final states into FILE

A width is chosen by the names that Numba knows, and each has a process and a cache folder of its own. Rounding errors differ between
widths, so that a step may be accepted in one and repeated in another: states agree to the tolerance of the integration, not to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

WIDTHS: dict[str, dict[str, str]] = {
    "native": {},
    "AVX2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+sse4.2"},
    "SSE2": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2"},
}
CASES: dict[str, dict[str, Any]] = {
    "tsit5, d = 2": {"dim": 2, "method": "tsit5", "interaction": "direct", "members": 6000},
    "tsit5, d = 3": {"dim": 3, "method": "tsit5", "interaction": "direct", "members": 6000},
    "tsit5, d = 2, series": {"dim": 2, "method": "tsit5", "interaction": "series", "members": 6000},
    "tsit5, d = 3, series": {"dim": 3, "method": "tsit5", "interaction": "series", "members": 1500},
    "rodas, d = 2": {"dim": 2, "method": "rodas", "interaction": "direct", "members": 400},
    "rodas, d = 3": {"dim": 3, "method": "rodas", "interaction": "direct", "members": 200},
}
TOKENS = 16
BETA = 4.0
UNTIL = 30.0
RTOL = 1e-6
ALLOWED = 1e-5
"""Largest difference of final states: ten times the tolerance of a step, since a step that one width repeats may differ by one."""


def member(file: Path, scale: float) -> None:
    """All cases in the width of this process: final states, accepted steps and statuses of all members, and the lanes, into `file`."""
    import metastable as ms
    from metastable.kernels.cpu.vector import LANES

    found: dict[str, np.ndarray] = {"lanes": np.array(LANES)}
    for number, (name, case) in enumerate(CASES.items()):
        ensemble = ms.ensemble(
            ms.Attention(dim=case["dim"], beta=BETA),
            tokens=TOKENS,
            members=max(4, round(scale * case["members"])),
            times=[UNTIL],
            seed=number,
            method=case["method"],
            interaction=case["interaction"],
            rtol=RTOL,
            progress=False,
        )
        found[f"{name}|states"] = ensemble.x.values[:, -1]
        found[f"{name}|steps"] = ensemble.accepted.values
        found[f"{name}|status"] = ensemble.status.values
    np.savez(file, allow_pickle=False, **found)


def run(quick: bool) -> dict[str, Any]:
    """Every width, and each against the first."""
    scale = 0.02 if quick else 1.0
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for width, names in WIDTHS.items():
            file = Path(folder, f"{width}.npz")
            caches = os.environ.get("METASTABLE_WIDTH_CACHES", str(Path(folder, "caches")))
            environment = {**os.environ, **names, "NUMBA_CACHE_DIR": str(Path(caches, width.lower()))}
            command = [sys.executable, "-m", "benchmarks.widths", "member", str(file), "--scale", str(scale)]
            subprocess.run(command, env=environment, check=True)
            with np.load(file) as arrays:
                found[width] = dict(arrays)
    return compare(found, scale)


def compare(found: dict[str, dict[str, np.ndarray]], scale: float) -> dict[str, Any]:
    """Rows (one for each width and case): steps, members, the largest difference from the first width and how many exceed it."""
    rows = []
    for width, arrays in found.items():
        for case in CASES:
            base = found[next(iter(found))]
            apart = np.abs(arrays[f"{case}|states"] - base[f"{case}|states"]).max(axis=(1, 2))
            same = arrays[f"{case}|status"] == base[f"{case}|status"]
            # What is not a number is beyond any tolerance.
            beyond = ~(apart <= ALLOWED) | ~same
            rows.append(
                {
                    "width": width,
                    "lanes": int(arrays["lanes"]),
                    "case": case,
                    "members": len(apart),
                    "member_steps": int(arrays[f"{case}|steps"].sum()),
                    "largest_difference": float(np.max(apart)),
                    "beyond": int(beyond.sum()),
                }
            )
    return {"scale": scale, "allowed": ALLOWED, "rows": rows}


def lines(result: dict[str, Any]) -> list[str]:
    """The result as text."""
    text = [f"Vector widths: final states against the first width, at most {result['allowed']:g} apart"]
    text += [f"  {'':10}{'lanes':>6}  {'':24}{'members':>9}{'member-steps':>14}{'largest':>10}{'beyond':>8}"]
    for row in result["rows"]:
        counts = f"{row['members']:>9}{row['member_steps']:>14}{row['largest_difference']:>10.1e}{row['beyond']:>8}"
        text += [f"  {row['width']:10}{row['lanes']:>6}  {row['case']:24}{counts}"]
    for width in dict.fromkeys(row["width"] for row in result["rows"]):
        mine = [row for row in result["rows"] if row["width"] == width]
        text += [
            f"  {width}: {sum(row['member_steps'] for row in mine)} member-steps, "
            f"{sum(row['beyond'] for row in mine)} of {sum(row['members'] for row in mine)} members beyond"
        ]
    return [*text, ""]


def main() -> None:
    """Run one width (`member`) or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.widths", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("all", "member"), default="all")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the members")
    parser.add_argument("--quick", action="store_true", help="two members in a hundred")
    arguments = parser.parse_args()
    if arguments.what == "member":
        if arguments.file is None:
            parser.error("member needs a file")
        member(arguments.file, arguments.scale)
        return
    result = run(arguments.quick)
    print("\n".join(lines(result)))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
