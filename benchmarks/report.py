"""What was measured as tables, JSON and one figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def tables(results: dict[str, Any]) -> str:
    """All results as text."""
    lines = [f"{results['processor']}, one thread, CPU seconds, best of interleaved turns", ""]
    if "fig3" in results:
        lines += ["FIG3 per experiment (n = 200, beta = 64, to t = 200, 50 outputs; rtol 1e-6)"]
        lines += [f"{'':26}{'ms':>10}{'x Euler':>10}{'x SciPy':>10}{'error at t = 20':>18}"]
        for row in results["fig3"]["rows"]:
            ratios = f"{row['times_faster_than_euler']:>10.1f}{row['times_faster_than_best_scipy']:>10.2f}"
            lines += [f"{row['name']:26}{row['milliseconds']:>10.2f}{ratios}{row['error']:>18.1e}"]
        lines += [""]
    if "scaling" in results:
        lines += ["One right-hand side, milliseconds"]
        for curve in results["scaling"]["curves"]:
            entries = ", ".join(f"n = {n}: {1e3 * s:.4g}" for n, s in zip(curve["tokens"], curve["seconds"]))
            fitted = "" if curve["exponent"] is None else f"; exponent {curve['exponent']:.2f}"
            lines += [f"  dim {curve['dim']}, beta {curve['beta']:g}, {curve['interaction']}: {entries}{fitted}"]
        for ratio in results["scaling"]["ratios"]:
            base = ratio["direct_extrapolated_from"]
            how = f" (direct extrapolated from n = {base})" if base else ""
            lines += [
                f"  dim {ratio['dim']}, n = {ratio['tokens']}: series {ratio['direct_over_series']:.0f} times faster{how}"
            ]
        lines += [""]
    if "dimension" in results:
        lines += [
            f"General Q, K, V, n = {results['dimension']['workload']['tokens']}, milliseconds per right-hand side"
        ]
        for row in results["dimension"]["rows"]:
            lines += [f"  d = {row['dim']:<4}{row['name']:12}{row['milliseconds']:>10.1f}"]
        lines += [""]
    if "whole" in results:
        lines += _whole(results["whole"])
    if "workers" in results:
        lines += _workers(results["workers"])
    if "widths" in results:
        from benchmarks import widths

        lines += widths.lines(results["widths"])
    if results.get("left_out"):
        lines += ["", "Not measured here:", *(f"  {line}" for line in results["left_out"])]
        lines += ['  (the rivals come with: pip install "metastable[bench]")']
    return "\n".join(lines)


def _whole(result: dict[str, Any]) -> list[str]:
    """Wall-clock seconds and memory of what users wait for."""
    ensemble, long, first = result["figure3"], result["million"], result["first_result"]
    one, two = ensemble["one"], ensemble["two"]
    return [
        "Whole runs, wall-clock seconds",
        f"  Figure 3, {ensemble['members']} members with both capture curves: {one['seconds']:.1f} on one thread, "
        f"{two['seconds']:.1f} on two ({ensemble['speed_up']:.2f} times faster), {two['peak_megabytes']:.0f} MB",
        f"  {long['tokens']} tokens to t = 20 by {long['interaction']}: {long['seconds']:.1f} on two threads, "
        f"{long['evaluations']} right-hand sides, {long['peak_megabytes']:.0f} MB",
        *(
            f"  first result of a new process with nothing compiled, {case}: {row['cold_seconds']:.1f} "
            f"({row['cold_cpu_seconds']:.1f} CPU seconds), {row['warm_seconds']:.1f} later"
            for case, row in first.items()
        ),
    ]


def _workers(result: dict[str, Any]) -> list[str]:
    """A sweep on two workers against one, beside bare processes."""
    seconds = {
        name: f"{min(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})"
        for name, values in result["seconds"].items()
    }
    extra = result["overhead"]
    return [
        f"Sweep of {result['tasks']} tasks of {result['members']} members, wall-clock seconds: best turn (all turns)",
        f"  one worker {seconds['sweep_one']}, two {seconds['sweep_two']}: {result['sweep_speed_up']:.2f} times faster",
        f"  one bare process {seconds['bare_one']}, two {seconds['bare_two']}: {result['bare_speed_up']:.2f} times faster",
        f"  {extra['tasks']} tasks that do nothing: {extra['milliseconds_per_task']:.1f} ms each "
        f"({extra['client_milliseconds_per_task']:.1f} ms of the client's processor time), client {extra['client_megabytes']:.0f} MB, "
        f"results open in {extra['open_seconds']:.2f} s",
    ]


PANELS = ("fig3", "scaling")
"""Parts that are drawn."""


def figure(results: dict[str, Any], path: Path) -> None:
    """Up to two panels: experiments of Figure 3, and right-hand sides against n."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = [name for name in PANELS if name in results]
    drawing, axes = plt.subplots(
        1, len(panels), figsize=(5.2 * len(panels), 3.8), squeeze=False, constrained_layout=True
    )
    for axis, name in zip(axes[0], panels):
        (_bars if name == "fig3" else _curves)(axis, results[name])
    drawing.savefig(path, dpi=160)
    plt.close(drawing)


def _bars(axis: Any, result: dict[str, Any]) -> None:
    rows = sorted(result["rows"], key=lambda row: row["milliseconds"], reverse=True)
    ours = [row["name"].startswith("metastable") for row in rows]
    axis.barh(
        [row["name"] for row in rows],
        [row["milliseconds"] for row in rows],
        color=["C3" if o else "0.65" for o in ours],
    )
    for place, row in enumerate(rows):
        axis.text(
            row["milliseconds"] * 1.1,
            place,
            f"{row['milliseconds']:.3g} ms, error {row['error']:.0e}",
            va="center",
            size=8,
        )
    axis.set_xscale("log")
    axis.set_xlim(right=60 * max(row["milliseconds"] for row in rows))
    axis.set_xlabel("CPU milliseconds per experiment")
    axis.set_title("One experiment of Figure 3", size=10)
    axis.spines[["top", "right"]].set_visible(False)


def _curves(axis: Any, result: dict[str, Any]) -> None:
    for curve in result["curves"]:
        style = {
            "marker": "o",
            "ls": "-" if curve["interaction"] == "series" else "--",
            "color": f"C{curve['dim'] - 2}",
        }
        label = f"d = {curve['dim']}, {curve['interaction']}"
        if curve["exponent"] is not None:
            label += f", n^{curve['exponent']:.2f}"
        axis.loglog(curve["tokens"], curve["seconds"], ms=4, label=label, **style)
    axis.set_xlabel("tokens n")
    axis.set_ylabel("CPU seconds per right-hand side")
    axis.set_title("Right-hand side, one thread", size=10)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """`cpu.json`, and `cpu.png` where there is something to draw; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "cpu.json"]
    written[0].write_text(json.dumps(results, indent=1) + "\n")
    if any(name in results for name in PANELS):
        written.append(folder / "cpu.png")
        figure(results, written[1])
    return written
