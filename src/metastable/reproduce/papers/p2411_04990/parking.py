"""Figures 2 and 3 and Lemma 5.1: strong centers stand still and consume the other tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere, theory
from metastable.analysis import cluster_labels, observe, renyi_centers
from metastable.ensembles import ensemble
from metastable.figures import figure_2, figure_3, statements, style
from metastable.model import Attention
from metastable.reproduce.draws import each, part, seeds
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import LEVEL, Mean, percent
from metastable.run import Run, simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def _separation(parameters: Mapping[str, Any]) -> float:
    """delta = c beta^(-1/2)."""
    return float(parameters["c"] / np.sqrt(parameters["beta"]))


# ---------------------------------------------------------------------------------------------------------- Figure 2


def _measure_figure_2(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    model = Attention(dim=2, beta=parameters["beta"])
    delta, snapshots = _separation(parameters), np.array(parameters["snapshots"])
    draw_seeds = seeds(settings, "figure-2", settings.draws(parameters["draws"]))

    def one(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        start = sphere.uniform(parameters["tokens"], dim=2, seed=seed)
        run = simulate(model, start, times=snapshots, engine=settings.engine)
        renyi = np.asarray(renyi_centers(start, delta))
        strong = np.asarray(renyi_centers(start, delta, strong=True))
        moved = sphere.distance(run.final, start)
        weak = np.setdiff1d(renyi, strong)
        apart = np.array([np.unique(cluster_labels(x[renyi], radius=parameters["merged"])).size for x in run.states])
        return moved[strong], moved[weak], apart, np.array([renyi.size, strong.size])

    results = each(one, draw_seeds, part(report, 0.0, 0.9))
    late = list(snapshots).index(75.0), list(snapshots).index(150.0)
    vanishing = [apart[late[0]] - apart[late[1]] for _, _, apart, _ in results]
    still = [moved.max() < delta / 2 for moved, _, _, _ in results]
    shown = next((i for i, lost in enumerate(vanishing) if lost == 1 and still[i]), 0)
    start = sphere.uniform(parameters["tokens"], dim=2, seed=draw_seeds[shown])
    fine = np.unique(np.concatenate([np.linspace(0.0, snapshots[-1], 401), snapshots]))
    run = simulate(model, start, times=fine, engine=settings.engine)
    report(1.0)
    return xr.Dataset(
        {
            "x": (("time", "token", "coord"), run.states),
            "renyi": ("renyi_center", np.asarray(renyi_centers(start, delta))),
            "strong": ("strong_center", np.asarray(renyi_centers(start, delta, strong=True))),
            "apart": (("draw", "snapshot"), np.stack([apart for _, _, apart, _ in results])),
            "number": (("draw", "kind"), np.stack([number for _, _, _, number in results])),
            "strong_moved": ("strong_of_all", np.concatenate([moved for moved, _, _, _ in results])),
            "weak_moved": ("weak_of_all", np.concatenate([moved for _, moved, _, _ in results])),
        },
        coords={"time": fine, "snapshot": snapshots, "kind": ["Rényi", "strong"]},
        attrs={"delta": delta, "shown": shown, "beta": parameters["beta"], "merged": parameters["merged"]},
    )


def _judge_figure_2(data: xr.Dataset) -> list[Finding]:
    from scipy import stats

    delta = float(data.attrs["delta"])
    strong, weak = data.strong_moved.values, data.weak_moved.values
    still = int((strong < 0.1 * delta).sum())
    rank = stats.mannwhitneyu(strong, weak, alternative="less")
    apart = data.apart.sel(snapshot=75.0).values - data.apart.sel(snapshot=150.0).values
    end = float(data.snapshot[-1])
    return [
        Finding(
            claim="strong Rényi centers stand still",
            measured=f"median displacement at t = {end:g}: {np.median(strong):.1e} rad = "
            f"{np.median(strong) / delta:.1e} delta; "
            f"{100 * still / strong.size:.0f} % of {strong.size} strong centers moved by less than 0.1 delta",
            test="median below 0.1 delta",
            verdict="agrees" if np.median(strong) < 0.1 * delta else "disagrees",
        ),
        Finding(
            claim="Rényi centers that are not strong move and merge",
            measured=f"median displacement {np.median(weak):.4f} rad = {np.median(weak) / delta:.2f} delta of "
            f"{weak.size} such centers",
            test=f"Mann-Whitney test that they move further than strong ones, p = {float(rank.pvalue):.1e}",
            verdict="agrees" if rank.pvalue < LEVEL else "disagrees",
        ),
        Finding(
            claim="one Rényi center vanishes between t = 75 and t = 150",
            measured=f"{Mean.of(apart)} centers vanish on average; at least one in "
            f"{percent(int((apart > 0).sum()), apart.size)} draws",
            test="happens in some draws; the figure shows the first draw in which one vanishes while all strong ones "
            "stand still",
            verdict="agrees" if (apart > 0).any() else "disagrees",
        ),
    ]


def _draw_figure_2(data: xr.Dataset) -> Figure:
    return figure_2.figure_2(
        data.time.values,
        data.x.values,
        data.renyi.values,
        data.strong.values,
        data.snapshot.values,
        separate=data.apart.isel(draw=int(data.attrs["shown"])).values,
    )


def _play_figure_2(data: xr.Dataset) -> dict[str, Run]:
    model = Attention(dim=2, beta=float(data.attrs["beta"]))
    until = float(data.time[-1])
    run = simulate(model, data.x.values[0], until=until, progress=False)
    return {f"The circle to t = {until:g}": run}


FIGURE_2 = Recipe(
    name="figure-2",
    title="Figure 2: snapshots of the circle with Rényi centers (black) and strong ones (red)",
    statement="d = 2, n = 200, beta = 64, delta = 4 beta^(-1/2): strong centers stand still, other Rényi centers move "
    "and merge.",
    parameters={
        "tokens": 200,
        "beta": 64.0,
        "c": 4.0,
        "snapshots": (0.0, 5.0, 20.0, 75.0, 150.0),
        "draws": 60,
        "merged": 1e-2,
    },
    measure=_measure_figure_2,
    judge=_judge_figure_2,
    draw=_draw_figure_2,
    play=_play_figure_2,
    seconds=4,
)


# ---------------------------------------------------------------------------------------------------------- Figure 3


def _measure_figure_3(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    times = np.unique(np.concatenate([np.linspace(0, 25, 26), np.linspace(25, parameters["until"], 36)]))
    delta = _separation(parameters)
    radius = parameters["radius"] * delta
    stats = ensemble(
        Attention(dim=2, beta=parameters["beta"]),
        tokens=parameters["tokens"],
        members=settings.members,
        times=times,
        seed=settings.seed,
        observe={
            "renyi": observe.consumed(delta=delta, radius=radius),
            "strong": observe.consumed(delta=delta, radius=radius, strong=True),
        },
        engine=settings.engine,
    )
    if stats.attrs["status"] == "interrupted":
        raise KeyboardInterrupt
    report(1.0)
    summary = {}
    for name in ("renyi", "strong"):
        values = stats[name].transpose("member", "time").values
        rows = np.stack([values.mean(axis=0), *np.quantile(values, [0.1, 0.9], axis=0)])
        summary[name] = (("statistic", "time"), rows)
        summary[f"{name}_error"] = ("time", values.std(axis=0, ddof=1) / np.sqrt(len(values)))
    difference = (stats["renyi"] - stats["strong"]).transpose("member", "time").values[:, -1]
    return xr.Dataset(
        {
            **summary,
            "final_difference": ((), difference.mean()),
            "final_difference_error": ((), difference.std() / np.sqrt(difference.size)),
        },
        coords={"time": times, "statistic": ["mean", "quantile 0.1", "quantile 0.9"]},
        attrs={"members": settings.members, "delta": delta, "radius": radius},
    )


def _judge_figure_3(data: xr.Dataset) -> list[Finding]:
    def value(name: str, t: float) -> str:
        mean, low, high = 100 * data[name].sel(time=t, method="nearest").values
        return f"{mean:.1f} [{low:.0f}, {high:.0f}]"

    times = (0, 5, 10, 20, 50, 200)
    last_renyi, last_strong = 100 * float(data.renyi[0, -1]), 100 * float(data.strong[0, -1])
    error = 100 * float(data.strong_error[-1])
    gap, gap_error = 100 * float(data.final_difference), 100 * float(data.final_difference_error)
    falls = max(float(-np.diff(data[name][0].values).min()) for name in ("renyi", "strong"))
    return [
        Finding(
            claim="Rényi centers consume almost all tokens, and the strong ones, which are fewer, most of them",
            measured=f"at t = {float(data.time[-1]):g}: {last_renyi:.1f} % and {last_strong:.1f} ± {error:.1f} % "
            f"(mean of {data.attrs['members']} experiments)",
            test="more than 95 % and more than 80 %, by more than 3.3 standard errors",
            verdict="agrees" if last_renyi > 95 and last_strong - 3.3 * error > 80 else "disagrees",
        ),
        Finding(
            claim="Rényi centers consume more than strong ones at every time; both curves rise",
            measured=f"difference at the end {gap:.2f} ± {gap_error:.2f} percentage points; largest fall of a mean "
            f"curve {100 * max(falls, 0):.2f}",
            test="paired difference above 3.3 standard errors; no fall above 1 percentage point",
            verdict="agrees" if gap > 3.3 * gap_error and falls < 0.01 else "disagrees",
        ),
        Finding(
            claim="mean and 0.1, 0.9 quantiles against time (the paper shows curves; these are our numbers)",
            measured="Rényi, %: "
            + "; ".join(f"t = {t}: {value('renyi', t)}" for t in times)
            + ". Strong, %: "
            + "; ".join(f"t = {t}: {value('strong', t)}" for t in times),
            test="consumed = within 0.1 delta of the present position of some center; medians rise from the start to "
            "the end",
            verdict="agrees" if last_renyi > 100 * float(data.renyi[0, 0]) else "disagrees",
        ),
    ]


def _draw_figure_3(data: xr.Dataset) -> Figure:
    return figure_3.figure_3(
        data.time.values, data.renyi.values, data.strong.values, members=int(data.attrs["members"])
    )


FIGURE_3 = Recipe(
    name="figure-3",
    title="Figure 3: percentage of tokens consumed by Rényi and by strong Rényi centers",
    statement="The parameters of Figure 2, 5000 independent experiments: mean with the 0.1 and 0.9 quantiles.",
    parameters={"tokens": 200, "beta": 64.0, "c": 4.0, "until": 200.0, "radius": 0.1},
    measure=_measure_figure_3,
    judge=_judge_figure_3,
    draw=_draw_figure_3,
    seconds=16,
)


# --------------------------------------------------------------------------------------------------------- Lemma 5.1


def _measure_lemma(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    beta, eps = parameters["beta"], parameters["eps"]
    model = Attention(dim=2, beta=beta)
    draws = settings.draws(parameters["draws"])
    jobs = [(c, seed) for c in parameters["c"] for seed in seeds(settings, f"lemma-5.1 {c}", draws)]

    def one(job: tuple[float, int]) -> np.ndarray:
        c, seed = job
        start = sphere.uniform(parameters["tokens"], dim=2, seed=seed)
        separation = c * (1 + 2 * eps) / np.sqrt(beta)
        strong = np.asarray(renyi_centers(start, separation, strong=True))[1:]  # the first token never moves
        limits = np.array([theory.strong_center_time(int(s) + 1, beta, c, eps) for s in strong])
        times = np.unique(limits)
        run = simulate(model, start, times=times, engine=settings.engine)
        place = np.searchsorted(times, limits)
        moved = sphere.distance(run.states[place, strong], start[strong])
        return np.column_stack([np.full(strong.size, c), strong + 1, limits, moved / (eps * c / np.sqrt(beta))])

    rows = np.concatenate(each(one, jobs, report))
    names = ("c", "position", "time", "ratio")
    return xr.Dataset({name: ("center", rows[:, i]) for i, name in enumerate(names)}, attrs={"eps": eps, "beta": beta})


def _judge_lemma(data: xr.Dataset) -> list[Finding]:
    ratio = data.ratio.values
    violations = int((ratio >= 1).sum())
    worst = ", ".join(f"{ratio[data.c.values == c].max():.2g} for c = {c:g}" for c in np.unique(data.c.values))
    return [
        Finding(
            claim="strong centers separated by c(1 + 2 eps) beta^(-1/2) move by less than eps c beta^(-1/2) up to "
            "T_j = eps c beta^(-1/2)/(s_j h(c beta^(-1/2)))",
            measured=f"{violations} violations among {ratio.size} centers; largest displacement/bound {worst}",
            test="no violation",
            verdict="agrees" if violations == 0 else "disagrees",
        )
    ]


def _draw_lemma(data: xr.Dataset) -> Figure:
    places, shares = [], []
    for c, color in zip(np.unique(data.c.values), style.CATEGORICAL):
        chosen = data.c.values == c
        ratio, label = data.ratio.values[chosen], f"$c = {c:g}$"
        places.append(
            statements.Curve(label, data.position.values[chosen], np.maximum(ratio, 1e-8), points=True, color=color)
        )
        share = 100 * np.arange(1, ratio.size + 1) / ratio.size
        shares.append(statements.Curve(label, np.maximum(np.sort(ratio), 1e-8), share, color=color))
    bound = {"dashed": True, "color": style.INK}
    label = r"displacement$\,/\,\varepsilon c\beta^{-1/2}$"
    return statements.plots(
        [
            statements.Plot(
                "displacement at time $T_j$ (at least $10^{-8}$ drawn)",
                "position $s_j$ in the sequence",
                label,
                [*places, statements.Curve("Lemma 5.1", [1.0, data.position.values.max()], [1.0, 1.0], **bound)],
                xscale="log",
                yscale="log",
                ylim=(1e-9, 1e2),
                legend=None,
            ),
            statements.Plot(
                f"{data.sizes['center']} centers",
                label,
                "share of centers below (%)",
                [*shares, statements.Curve("Lemma 5.1", [1.0, 1.0], [0.0, 100.0], **bound)],
                xscale="log",
                xlim=(1e-8, 1e5),
                legend="center right",
            ),
        ]
    )


LEMMA_5_1 = Recipe(
    name="lemma-5.1",
    title="Lemma 5.1: for how long strong centers stand still",
    statement="d = 2, Q = K = V = I. A strong center at position s_j of the sequence moves by less than eps c "
    "beta^(-1/2) up to a time that is "
    "exponential in c², divided by s_j.",
    parameters={"tokens": 200, "beta": 64.0, "c": (2.0, 3.0, 4.0), "eps": 0.1, "draws": 120},
    measure=_measure_lemma,
    judge=_judge_lemma,
    draw=_draw_lemma,
    seconds=3,
)
