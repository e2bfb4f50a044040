"""Draw the pictures of the page on control, and print its tables.

    python docs/control.py

Tables come from `benchmarks/results/control.json`, which `python -m benchmarks.control` measures; the world lines are simulated
here, in about a minute.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import metastable as ms
from metastable.control.tries import pooled
from metastable.figures import control_view, style
from metastable.figures.long_runs import draw_cascade
from metastable.figures.moments import sample

IMAGES = Path(__file__).parent / "images"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "control.json"
KNOWN = json.loads(RESULTS.read_text(encoding="utf-8"))
QUANTILE = 1.96


def wilson(hits: int, trials: int) -> tuple[float, float, float]:
    """A rate and its interval of 95 % (Wilson)."""
    rate, square = hits / trials, QUANTILE**2
    middle = (rate + square / (2 * trials)) / (1 + square / trials)
    half = QUANTILE / (1 + square / trials) * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials**2))
    return rate, middle - half, middle + half


def world_lines() -> None:
    """One draw over fifty decades: as it is, with its last merge brought forward, and with all merges held back."""
    model = ms.Attention(dim=2, beta=64.0)
    start = ms.sphere.uniform(100, dim=2, seed=1)
    run = ms.simulate(model, start, until=100.0)
    tree = run.predict_merges()
    early = ms.control.schedule(run, (tree.child[-1], tree.parent[-1]), at=10.0 ** (0.75 * math.log10(tree.time[-1])))
    held = ms.control.schedule(run, at=1e12)
    plain = ms.simulate(model, start, until=10.0 * float(tree.time[-1]))
    rows: list[tuple[Any, str, Any]] = [
        (plain, r"$\beta = 64$ throughout", None),
        (early.run, rf"{early.event[0]} into {early.event[1]} at $t = 10^{{{math.log10(early.at):.1f}}}$", early),
        (held.run, r"nothing before $t = 10^{12}$", held),
    ]
    with style.theme("print"):
        page, axes = style.figure(style.PAGE_WIDTH, 6.6, 3, 1)
        for ax, (shown, title, steering), letter in zip(axes, rows, "abc"):
            if steering is held:
                shown = ms.simulate(held.schedule, start, until=plain.end)
            if steering is early:
                shown = ms.simulate(early.schedule, start, until=plain.end)
            merges = ms.merge_tree(shown, tree.radius)
            times, states = sample(shown, 500, log=True)
            draw_cascade(ax, times, states, merges, since=100.0)
            if steering is not None:
                ax.axvspan(*steering.window, color=style.VERMILLION, alpha=control_view.HELD, linewidth=0)
                ax.axvline(steering.at, color=style.INK, linewidth=0.8, linestyle=(0, (1, 2)))
                title += rf": $\beta = {steering.changed:.4g}$ in the shade"
            style.panel(ax, letter, title)
            style.log_time_axis(ax, 0.1, plain.end, "depth $t$" if ax is axes[-1] else "")
    style.save(page, IMAGES / "control-world-lines")
    print(early)
    print(held)


def success() -> None:
    """Success rates of places."""
    with style.theme("print"):
        page, axes = style.figure(style.PAGE_WIDTH, 1.9, 1, 2)
        titles = ("two clusters joined by $t = 10^3$", "a merge put off by four decades")
        for ax, goal, title in zip(axes, ("together", "apart"), titles):
            rows = [row for row in KNOWN["place"] if row["goal"] == goal]
            at_random = [hit for row in rows for hit in row["random"]]
            rates = {
                "found by place": wilson(sum(row["found"] for row in rows), len(rows)),
                "on the target cluster": wilson(sum(row["target"] for row in rows), len(rows)),
                "at random": wilson(sum(at_random), len(at_random)),
                "no token": wilson(sum(row["nothing"] for row in rows), len(rows)),
            }
            print(goal, len(rows), {name: tuple(round(x, 3) for x in rate) for name, rate in rates.items()})
            control_view.draw_rates(ax, rates)
            style.panel(ax, "ab"[ax is axes[1]], title)
            if ax is axes[1]:
                ax.set_yticklabels([])
    style.save(page, IMAGES / "control-success")


def tries() -> None:
    """What a search for a temperature tried."""
    row = next(row for row in KNOWN["temperature"] if (row["clusters"], row["until"]) == (5, 1e6))
    items = pooled([ms.control.Try(*item) for item in row["tries"]])
    with style.theme("print"):
        page, ax = style.figure(style.COLUMN_WIDTH * 1.3, 2.4)
        control_view.draw_tries(ax, items, 5.0)
        ax.axvspan(*row["interval"], color=style.VERMILLION, alpha=0.2, linewidth=0, label="95 %")
        ax.axvline(row["law"], color=style.MUTED, linestyle=(0, (4, 2)), linewidth=0.9, label="the law alone")
        ax.set_xlabel(r"$\beta$")
        ax.legend(loc="upper left", fontsize="small")
        style.panel(ax, "", rf"5 clusters at $t = 10^6$: $\beta = {row['beta']:.1f}$")
    style.save(page, IMAGES / "control-tries")


def tables() -> None:
    """The tables of the page, in Markdown."""
    for row in sorted(KNOWN["temperature"], key=lambda row: (row["dim"], row["until"], row["clusters"])):
        low, high = row["interval"]
        print(
            f"| {row['dim']} | {row['clusters']} | 10^{math.log10(row['until']):.0f} | {row['beta']:.2f} ({low:.2f} to {high:.2f}) | "
            f"{row['law']:.2f} | {row['members']} | {row['mean']:.3f} ± {row['error']:.3f} | {row['deviations']:+.2f} |"
        )
    off = np.array([row["off"] for row in KNOWN["schedule"] if "off" in row])
    kept = sum(row.get("undisturbed", False) and row.get("extra", False) for row in KNOWN["schedule"])
    print(
        f"schedule: {(off < 0.05).sum()} of {len(KNOWN['schedule'])} within 5 %, worst {off.max():.2g}; undisturbed: {kept}"
    )
    for row in KNOWN["pairs"]:
        print(
            f"| {row['beta']:g} | {row['distance']:g} | {row['plain']:.4f} | {row['quadrature']:.6f} | {row['value']:.6f} |"
        )
    for row in KNOWN["clusters"] + KNOWN["ensembles"]:
        theory = "" if row["theory"] is None else f"{row['theory']:.3f}"
        name = row.get("model", "run")
        print(
            f"| {name} | {row['cluster']} | {row['life']:.3g} | {row['knob']} | {row['value']:.3f} | {row['low']:.3f} to "
            f"{row['high']:.3f} | "
            f"{theory} |"
        )


if __name__ == "__main__":
    tables()
    tries()
    success()
    world_lines()
