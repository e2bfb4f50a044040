"""The staircase: energy against the logarithm of time, with a step at each merge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable.analysis import merge_tree
from metastable.figures import style
from metastable.figures.circle_view import draw_world_lines
from metastable.model import Attention, Full
from metastable.reproduce.draws import each, seeds, whole
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import Mean
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def energy(x: Any, beta: float) -> float:
    """(1/n^2) sum_ij exp(beta (<x_i, x_j> - 1)): the energy of arXiv:2312.10794 over its largest value, 1 when all are one point."""
    return float(np.exp(beta * (x @ x.T - 1.0)).mean())


def _measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    beta, tokens = parameters["beta"], parameters["tokens"]
    times = np.geomspace(0.1, parameters["until"], parameters["times"])
    radius = parameters["radius"] / np.sqrt(beta)
    model = Attention(dim=2, beta=beta, mask=Full())

    def one(seed: int) -> tuple[Any, Any, Any]:
        run = whole(
            simulate(model, sphere.uniform(tokens, dim=2, seed=seed), until=parameters["until"], method="rodas")
        )
        states = np.stack([run.at(float(t)) for t in times])
        tree = merge_tree(run, radius=radius)
        merges = np.full(tokens, np.nan)
        merges[: len(tree)] = tree.time
        return states, np.array([energy(x, beta) for x in states]), merges

    results = each(one, seeds(settings, "staircase", settings.draws(parameters["draws"])), report)
    return xr.Dataset(
        {
            "x": (("time", "token", "coord"), results[0][0]),
            "energy": (("draw", "time"), np.stack([result[1] for result in results])),
            "merge_time": (("draw", "number"), np.stack([result[2] for result in results])),
        },
        coords={"time": times},
        attrs={"beta": beta, "since": parameters["since"], "window": parameters["window"]},
    )


def gain_at_merges(data: xr.Dataset, draw: int) -> tuple[float, float]:
    """(part of the energy gained within `window` decades of a merge, part of the decades that these windows cover), from `since` on."""
    decade = np.log10(data.time.values)
    late = data.time.values >= float(data.attrs["since"])
    middle, gain = 0.5 * (decade[1:] + decade[:-1]), np.diff(data.energy.values[draw])
    chosen = late[:-1] & late[1:]
    merges = data.merge_time.values[draw]
    merges = np.log10(merges[np.isfinite(merges) & (merges >= float(data.attrs["since"]))])
    if not merges.size or gain[chosen].sum() <= 0:
        return float("nan"), float("nan")
    near = (np.abs(middle[:, None] - merges[None, :]) < float(data.attrs["window"])).any(axis=1)
    return float(gain[chosen & near].sum() / gain[chosen].sum()), float(near[chosen].mean())


def _judge(data: xr.Dataset) -> list[Finding]:
    parts = np.array([gain_at_merges(data, k) for k in range(data.sizes["draw"])])
    parts = parts[np.isfinite(parts[:, 0])]
    least = float(np.diff(data.energy.values, axis=1).min())
    count = int(np.isfinite(data.merge_time.values).sum())
    gained, covered = (Mean.of(parts[:, k]) for k in (0, 1))
    return [
        Finding(
            claim="the energy against the logarithm of time is a staircase whose steps are merges",
            measured=f"{100 * gained.value:.1f} % (least {100 * parts[:, 0].min():.1f} %) of what the energy gains "
            f"after t = {data.attrs['since']:g} it "
            f"gains within {data.attrs['window']:g} decades of a merge; these windows are {100 * covered.value:.0f} % "
            f"of the decades ({count} merges, "
            f"{len(parts)} draws)",
            test="more than 95 % of the gain in every draw, in less than half of the decades",
            verdict="agrees" if parts[:, 0].min() > 0.95 and covered.value < 0.5 else "disagrees",
        ),
        Finding(
            claim="the energy never falls",
            measured=f"least increment {least:.1e} of the largest energy",
            test="above -1e-6 (the tolerance of the runs)",
            verdict="agrees" if least > -1e-6 else "disagrees",
        ),
    ]


def _draw(data: xr.Dataset) -> Figure:
    with style.theme("print"):
        page, (top, bottom) = style.figure(style.PAGE_WIDTH, 3.9, 2, 1, sharex=True, height_ratios=(1.2, 1))
        draw_world_lines(top, data.time.values, data.x.values, log=True, width=0.6)
        style.panel(
            top, "a", rf"{data.sizes['token']} tokens on the circle, full attention, $\beta = {data.attrs['beta']:g}$"
        )
        for k in range(min(data.sizes["draw"], 5)):
            color = style.INK if k == 0 else style.FAINT
            bottom.plot(
                data.time.values,
                data.energy.values[k],
                color=color,
                linewidth=1.3 if k == 0 else 0.8,
                zorder=3 if k == 0 else 2,
            )
        for time in data.merge_time.values[0]:
            if np.isfinite(time) and time >= float(data.attrs["since"]):
                for ax in (top, bottom):
                    ax.axvline(time, color=style.RED, linewidth=0.5, linestyle=(0, (2, 2)), zorder=1)
        style.log_time_axis(bottom, float(data.time[0]), float(data.time[-1]))
        bottom.set_ylabel("energy $E/E_{\\max}$")
        top.set_xlabel("")
        style.grid(bottom)
        style.panel(bottom, "b", "its energy (black), other draws (grey); merges of the run above in red")
    return page


STAIRCASE = Recipe(
    name="staircase",
    title="The staircase of the energy",
    statement="Full attention on the circle from uniform tokens: the energy rests on plateaus that grow exponentially "
    "long and climbs where clusters merge.",
    parameters={
        "tokens": 32,
        "beta": 20.0,
        "until": 1e21,
        "times": 700,
        "radius": 0.5,
        "since": 30.0,
        "window": 0.3,
        "draws": 8,
    },
    quick={"tokens": 8, "beta": 8.0, "until": 1e8, "times": 150},
    measure=_measure,
    judge=_judge,
    draw=_draw,
    uses=("seed", "members"),
    seconds=8,
)
