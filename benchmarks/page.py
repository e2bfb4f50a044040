"""The tables of docs/performance.md and the sentences of docs/scale.md and paper.md, from the record: no number is copied by hand.

    python -m benchmarks --publish     # measure everything, store the record, and write tables and picture of the page
    python -m benchmarks.page          # the tables again, from benchmarks/results/cpu.json

A table stands between `<!-- cpu.json: PART -->` and `<!-- end -->`. A test compares page and record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "cpu.json"
PAGE = ROOT / "docs" / "performance.md"
PAPER = ROOT / "paper.md"
SCALE = ROOT / "docs" / "scale.md"
PAGES = (PAGE, SCALE, PAPER)
PICTURE = ROOT / "docs" / "images" / "performance.png"
TABLE = re.compile(r"(<!-- cpu\.json: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
LIBRARIES = ("numpy", "scipy", "numba", "torch", "torchdiffeq", "jax", "diffrax", "pykeops")

RIVALS = {
    "SciPy RK45": "SciPy RK45 on NumPy",
    "SciPy DOP853": "SciPy DOP853 on NumPy",
    "SciPy LSODA": "SciPy LSODA on NumPy",
    "diffrax Tsit5": "diffrax Tsit5, vmap of 8, float64",
    "torchdiffeq dopri5": "torchdiffeq dopri5, batch of 8",
    "NumPy Euler, step 0.05": "the field's NumPy Euler, step 0.05",
    "metastable, series": '**metastable, `interaction="series"`**',
    "metastable, direct": '**metastable, `interaction="direct"`**',
}
"""Name in the record -> name on the page."""


def versions() -> dict[str, str]:
    """Versions of what took part; those that are not installed are left out."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def digits(value: float, count: int = 2) -> str:
    """A number with `count` significant digits and no exponent."""
    return f"{float(f'{value:.{count}g}'):.10g}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |").replace("|  |", "| |") for line in lines) + "\n"


def machine(results: dict[str, Any]) -> str:
    """What the record was measured on."""
    libraries = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    left = "; not measured: " + ", ".join(results["left_out"]) if results.get("left_out") else ""
    return f"One thread of {results['processor']}, {results['date']}; {libraries}{left}.\n"


def fig3(results: dict[str, Any]) -> str:
    """Experiments of Figure 3."""
    rows = []
    for row in sorted(results["fig3"]["rows"], key=lambda row: row["milliseconds"]):
        ours = row["name"].startswith("metastable")
        cells = [
            f"{row['milliseconds']:.1f}" if row["milliseconds"] < 100 else f"{row['milliseconds']:.0f}",
            digits(row["times_faster_than_euler"], 3 if ours else 2),
            digits(row["times_faster_than_best_scipy"]),
        ]
        error = f"{row['error']:.1e}".replace("e-0", "e-") if row["error"] < 0.01 else f"**{row['error']:.2f}**"
        rows.append([RIVALS[row["name"]], *(f"**{cell}**" if ours else cell for cell in cells), error])
    return _table(["", "ms", "times faster than Euler", "than SciPy's best", "error at t = 20"], rows)


def scaling(results: dict[str, Any]) -> str:
    """Right-hand sides against the number of tokens."""
    curves = {(curve["dim"], curve["interaction"]): curve for curve in results["scaling"]["curves"]}
    columns = [(2, "direct"), (2, "series"), (3, "direct"), (3, "series")]
    tokens = sorted({n for curve in curves.values() for n in curve["tokens"] if n >= 1000})
    rows = []
    for n in tokens:
        cells = []
        for column in columns:
            seconds = dict(zip(curves[column]["tokens"], curves[column]["seconds"]))
            cells.append(digits(1e3 * seconds[n]) if n in seconds else "")
        rows.append([f"10^{len(str(n)) - 1}", *cells])
    rows.append(["exponent from 10^4 on", *(f"{curves[column]['exponent']:.2f}" for column in columns)])
    table = _table(["n", "circle, direct", "circle, series", "sphere, direct", "sphere, series"], rows)
    words = []
    for ratio in results["scaling"]["ratios"]:
        base = ratio["direct_extrapolated_from"]
        how = f" (direct extrapolated from n = {base})" if base else ""
        place = "circle" if ratio["dim"] == 2 else "sphere"
        words.append(f"{digits(ratio['direct_over_series'])} times at n = {ratio['tokens']} on the {place}{how}")
    return f"{table}\nThe series is faster by {', '.join(words)}.\n"


def dimension(results: dict[str, Any]) -> str:
    """General Q, K and V against dimension."""
    rows = results["dimension"]["rows"]
    names = list(dict.fromkeys(row["name"] for row in rows))
    cells = {(row["dim"], row["name"]): digits(row["milliseconds"]) for row in rows}
    dims = list(dict.fromkeys(row["dim"] for row in rows))
    return _table(["d", *names], [[str(dim), *(cells.get((dim, name), "") for name in names)] for dim in dims])


def whole(results: dict[str, Any]) -> str:
    """What users wait for."""
    figure, long, first = (results["whole"][name] for name in ("figure3", "million", "first_result"))
    one, two = figure["one"], figure["two"]
    rows = [
        [
            f"Figure 3: {figure['members']} experiments, 50 outputs, both capture curves",
            f"{one['seconds']:.1f} s",
            f"{two['seconds']:.1f} s ({figure['speed_up']:.2f} times faster)",
            f"{digits(two['peak_megabytes'])} MB",
        ],
        [
            f"{long['tokens']} tokens on the circle, beta = 64, to t = 20",
            "",
            f"{long['seconds']:.1f} s ({long['evaluations']} right-hand sides)",
            f"{digits(long['peak_megabytes'])} MB",
        ],
    ]
    for case, row in first.items():
        work = f" ({row['cold_cpu_seconds']:.1f} CPU seconds)" if "cold_cpu_seconds" in row else ""
        seconds = f"{row['cold_seconds']:.1f} s{work}, later {row['warm_seconds']:.1f} s"
        rows.append([f"first result of a new process, nothing compiled yet: {case}", "", seconds, ""])
    return _table(["", "one thread", "two threads", "memory"], rows)


def paper(results: dict[str, Any]) -> str:
    """The sentence of paper.md."""
    ms = {
        row["name"]: digits(row["milliseconds"], 2 if row["milliseconds"] < 100 else 3)
        for row in results["fig3"]["rows"]
    }
    rivals = (("SciPy RK45", "SciPy's RK45"), ("torchdiffeq dopri5", "torchdiffeq"), ("diffrax Tsit5", "diffrax"))
    others = ", ".join(f"{ms[name]} ms for {said}" for name, said in rivals if name in ms)
    return (
        "In one interleaved run on one thread the experiment above takes "
        f"{ms['metastable, series']} ms with `metastable` by series and {ms['metastable, direct']} ms by\ndirect sums, "
        f"against {others} and {ms['NumPy Euler, step 0.05']} ms for the Euler script "
        f"({results['processor']};\n`make bench` repeats this on any machine).\n"
    )


def workers(results: dict[str, Any]) -> str:
    """The sentences of docs/scale.md: what Dask adds to a task, and what a second worker gains."""
    found = results["workers"]
    more, seconds = found["overhead"], found["seconds"]
    turns = ", ".join(f"{one / two:.2f}" for one, two in zip(seconds["sweep_one"], seconds["sweep_two"]))
    best = {name: f"{min(values):.1f} s" for name, values in seconds.items()}
    return (
        f"What Dask and the journal add, for {more['tasks']} tasks that do nothing on two workers ({results['processor']}): "
        f"{more['milliseconds_per_task']:.1f} ms per task from the command\n"
        f"to its end, {more['client_milliseconds_per_task']:.1f} ms of processor time of the client. "
        f"Its memory was {more['client_megabytes']:.0f} MB, and the zarr store opened in {more['open_seconds']:.1f} s once "
        "xarray is imported.\n\n"
        f"Two workers over one: **{found['sweep_speed_up']:.2f} times faster** ({best['sweep_one']} against {best['sweep_two']} "
        f"for {found['tasks']} tasks, the command from start to end;\n"
        f"best of {len(seconds['sweep_one'])} turns, which gave {turns}). Two bare processes that share the same tasks "
        "and know nothing of each other\n"
        f"gained {found['bare_speed_up']:.2f} in the same run ({best['bare_one']} against {best['bare_two']}).\n"
    )


PARTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "machine": machine,
    "fig3": fig3,
    "scaling": scaling,
    "whole": whole,
    "dimension": dimension,
    "workers": workers,
    "paper": paper,
}


def fill(text: str, results: dict[str, Any]) -> str:
    """The `text` of a page with the tables that `results` has."""

    def table(match: re.Match[str]) -> str:
        part = match.group(2)
        needs = {"machine": "versions", "paper": "fig3"}.get(part, part)
        return f"{match.group(1)}{PARTS[part](results)}{match.group(3)}" if needs in results else match.group(0)

    return TABLE.sub(table, text)


def publish(results: dict[str, Any]) -> list[Path]:
    """Store the record (parts that were not measured now stay as they were), the picture and the page."""
    from benchmarks import report

    kept = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    merged = {**kept, **results}
    RECORD.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    report.figure(merged, PICTURE)
    return [RECORD, PICTURE, *write(merged)]


def write(results: dict[str, Any]) -> list[Path]:
    """The tables of the page, and the sentences of the others."""
    for path in PAGES:
        path.write_text(fill(path.read_text(encoding="utf-8"), results), encoding="utf-8")
    return list(PAGES)


if __name__ == "__main__":
    print(*write(json.loads(RECORD.read_text(encoding="utf-8"))))
