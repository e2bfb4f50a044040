"""Beyond the paper: the cascade of merges in log time, the law of the number of clusters, causal against full attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere, theory
from metastable.analysis import MergeTree, cluster_count, cluster_labels, merge_tree
from metastable.figures import long_runs, statements, style
from metastable.model import Attention, Causal, Full
from metastable.reproduce.draws import each, seeds
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import Mean, percent
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


# ----------------------------------------------------------------------------------------------------------- cascade


def _measure_cascade(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    beta = parameters["beta"]
    seed = seeds(settings, "cascade", 1)[0]
    start = sphere.uniform(parameters["tokens"], dim=2, seed=seed)
    run: Any = simulate(Attention(dim=2, beta=beta), start, until=parameters["until"], method="rodas")
    report(0.8)
    times = np.geomspace(0.1, parameters["until"], 600)
    times[-1] = run.end
    states = np.stack([run.at(float(t)) for t in times])
    radius = parameters["radius"] / np.sqrt(beta)
    tree = merge_tree(run, radius=radius)
    report(1.0)
    return xr.Dataset(
        {
            "x": (("time", "token", "coord"), states),
            "merge_time": ("merge", tree.time),
            "merge_before": ("merge", tree.before),
            "child": ("merge", tree.child),
            "parent": ("merge", tree.parent),
            "child_size": ("merge", tree.child_size),
            "parent_size": ("merge", tree.parent_size),
            "clusters": ("time", np.asarray(tree.count(times))),
            "start_labels": ("token", tree.start_labels),
            "final_labels": ("token", tree.final_labels),
            "distance_to_first": ("token", sphere.distance(run.final, start[0])),
        },
        coords={"time": times},
        attrs={"since": parameters["since"], "steps": run.stats.accepted, "beta": beta, "radius": radius},
    )


def _judge_cascade(data: xr.Dataset) -> list[Finding]:
    last = float(data.merge_time.max())
    far = float(data.distance_to_first.max())
    limit = np.exp(2 * float(data.attrs["beta"]))
    return [
        Finding(
            claim="metastable clusters merge one after the other over tens of decades, down to one cluster at x_1(0)",
            measured=f"{int(data.clusters.values[0])} clusters at t = {float(data.time[0]):g}, "
            f"{int(data.clusters.values[-1])} at the end; the "
            f"last merge at t = 10^{np.log10(last):.1f}; largest distance to x_1(0) {far:.1e} rad; "
            f"{int(data.attrs['steps'])} steps",
            test="one cluster at the end, within 1e-6 of x_1(0)",
            verdict="agrees" if data.clusters.values[-1] == 1 and far < 1e-6 else "disagrees",
        ),
        Finding(
            claim="the last merge comes before the time exp(2 beta) at which antipodal clusters merge",
            measured=f"10^{np.log10(last):.1f}, exp(2 beta) = 10^{np.log10(limit):.1f}",
            test="last merge below 10 exp(2 beta)",
            verdict="agrees" if last < 10 * limit else "disagrees",
        ),
    ]


def _draw_cascade(data: xr.Dataset) -> Figure:
    tree = MergeTree(
        radius=float(data.attrs["radius"]),
        start_labels=data.start_labels.values,
        final_labels=data.final_labels.values,
        time=data.merge_time.values,
        before=data.merge_before.values,
        child=data.child.values,
        parent=data.parent.values,
        child_size=data.child_size.values,
        parent_size=data.parent_size.values,
        refined=True,
    )
    law = np.array(
        [theory.cluster_count(float(t), float(data.attrs["beta"]), 2) if t > 1.5 else np.nan for t in data.time.values]
    )
    law = np.where(law < 40, law, np.nan)
    return long_runs.long_run(data.time.values, data.x.values, tree, since=float(data.attrs["since"]), law=law)


CASCADE = Recipe(
    name="cascade",
    title="The cascade: two hundred tokens, from t = 0.1 to the end of time",
    statement="Metastable clusters last exponentially long and then merge one by one; a causal run ends in one "
    "cluster at x_1(0) after a time "
    "of at most about exp(2 beta).",
    parameters={"tokens": 200, "beta": 64.0, "until": 1e58, "radius": 0.5, "since": 30.0},
    quick={"tokens": 40, "beta": 16.0, "until": 1e14},
    measure=_measure_cascade,
    judge=_judge_cascade,
    draw=_draw_cascade,
    origin="beyond",
    uses=("seed",),
    seconds=2,
)


# ------------------------------------------------------------------------------------------------------- cluster law


def _measure_law(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    beta = parameters["beta"]
    decades = np.array(parameters["decades"], dtype=float)
    model, times = Attention(dim=2, beta=beta), 10.0**decades
    radius = parameters["radius"] / np.sqrt(beta)

    def one(seed: int) -> tuple[list[int], float]:
        start = sphere.uniform(parameters["tokens"], dim=2, seed=seed)
        run = simulate(model, start, times=times, rtol=parameters["rtol"], atol=parameters["rtol"], method="rodas")
        return [cluster_count(x, radius) for x in run.states], float(sphere.distance(run.final, start[0]).max())

    results = each(one, seeds(settings, "cluster-law", settings.draws(parameters["draws"])), report)
    return xr.Dataset(
        {
            "clusters": (("draw", "decade"), np.array([counts for counts, _ in results])),
            "law": ("decade", theory.cluster_count(times, beta, 2)),
            "end_distance": ("draw", np.array([far for _, far in results])),
        },
        coords={"decade": decades},
        attrs={"beta": beta, "tokens": parameters["tokens"]},
    )


def _judge_law(data: xr.Dataset) -> list[Finding]:
    means = [Mean.of(data.clusters.sel(decade=decade)) for decade in data.decade.values]
    ratio = np.array([mean.value for mean in means]) / data.law.values
    worst = int(np.argmax(np.abs(ratio - 1)))
    shown = ", ".join(
        f"10^{decade:g}: {mean.value:.2f} ({law:.2f})"
        for decade, mean, law in zip(data.decade.values, means, data.law.values)
        if decade in (1, 2, 4, 6, 10, 20, 30, 40, 50, 56)
    )
    ended = int((data.end_distance.values < 1e-3).sum())
    return [
        Finding(
            claim="the mean number of clusters at depth t is N(t) = pi/arccos(1 - ln t/beta) (empirical, d = 2)",
            measured=f"measured (law) at t = {shown}; largest deviation {100 * (ratio[worst] - 1):+.0f} % at "
            f"10^{data.decade.values[worst]:g}",
            test="within 20 % at every decade from 10^1 to 10^56",
            verdict="agrees" if np.all(np.abs(ratio - 1) < 0.2) else "disagrees",
        ),
        Finding(
            claim="every draw ends at x_1(0) (Theorem 4.1)",
            measured=f"{percent(ended, data.sizes['draw'])} draws within 1e-3 rad of x_1(0) at t = "
            f"10^{data.decade.values[-1]:g}",
            test="all of them",
            verdict="agrees" if ended == data.sizes["draw"] else "disagrees",
        ),
    ]


def _draw_law(data: xr.Dataset) -> Figure:
    times = 10.0**data.decade.values
    means = [Mean.of(data.clusters.sel(decade=decade)) for decade in data.decade.values]
    fine = np.geomspace(times[0], times[-1], 400)
    law = theory.cluster_count(fine, float(data.attrs["beta"]), 2)
    low, high = (data.clusters.quantile(q, "draw").values for q in (0.1, 0.9))
    curves = [
        statements.Curve(
            f"mean of {data.sizes['draw']} draws",
            times,
            [m.value for m in means],
            [2 * m.error for m in means],
            color=style.MEASURED,
        ),
        statements.Curve(r"$N(t) = \pi/\arccos(1 - \ln t/\beta)$", fine, law, color=style.THEORY),
        statements.Curve("10 % and 90 % of draws", times, low, dashed=True, color="#8fb3cf"),
        statements.Curve("", times, high, dashed=True, color="#8fb3cf"),
    ]
    plot = statements.Plot(
        rf"$n = {int(data.attrs['tokens'])}$, $\beta = {float(data.attrs['beta']):g}$",
        "depth $t$",
        "clusters",
        curves,
        "log",
        ylim=(0, 13),
        legend="upper right",
    )
    return statements.plots([plot], height=2.9)


CLUSTER_LAW = Recipe(
    name="cluster-law",
    title="How many clusters are left at depth t",
    statement="Empirical law, ours: clusters nearer than d(t) have merged, cos d(t) = 1 - ln t/beta, and what is "
    "left is the number of strong "
    "centers of that radius, N(t) = 1/sigma(B_d(t)).",
    parameters={
        "tokens": 200,
        "beta": 64.0,
        "decades": (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 25, 30, 35, 40, 45, 50, 54, 56),
        "radius": 0.5,
        "rtol": 1e-5,
        "draws": 60,
    },
    quick={"tokens": 40, "beta": 16.0, "decades": (1, 2, 4, 8, 13)},
    measure=_measure_law,
    judge=_judge_law,
    draw=_draw_law,
    origin="beyond",
    seconds=2,
)


# ---------------------------------------------------------------------------------------------------- causal and full


def _measure_masks(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    beta, tokens = parameters["beta"], parameters["tokens"]
    times = np.concatenate([[0.0], np.geomspace(0.1, parameters["until"], 120)])
    radius = parameters["radius"] / np.sqrt(beta)
    models = [Attention(dim=2, beta=beta, mask=mask) for mask in (Causal(), Full())]

    def one(seed: int) -> tuple[list[np.ndarray], list[list[int]], list[float]]:
        start = sphere.uniform(tokens, dim=2, seed=seed)
        runs = [simulate(model, start, times=times, method="tsit5", engine=settings.engine) for model in models]
        counts = [[int(cluster_labels(x, radius).max()) + 1 for x in run.states] for run in runs]
        moved = [float(sphere.distance(run.states[:, 0], start[0]).max()) for run in runs]
        return [run.states for run in runs], counts, moved

    results = each(one, seeds(settings, "causal-vs-full", settings.draws(parameters["draws"])), report)
    return xr.Dataset(
        {
            "x": (("mask", "time", "token", "coord"), np.stack(results[0][0])),
            "clusters": (("draw", "mask", "time"), np.array([counts for _, counts, _ in results])),
            "first_moved": (("draw", "mask"), np.array([moved for _, _, moved in results])),
        },
        coords={"time": times, "mask": ["causal", "full"]},
        attrs={"beta": beta},
    )


def _judge_masks(data: xr.Dataset) -> list[Finding]:
    from scipy import stats

    moved = data.first_moved.values
    findings = [
        Finding(
            claim="under the causal mask the first token leads and never moves; under full attention nobody leads",
            measured=f"first token moved by at most {moved[:, 0].max():.1e} rad (causal) and by "
            f"{Mean.of(moved[:, 1])} rad (full)",
            test="below 1e-9 rad, and above 1e-6 rad in every draw",
            verdict="agrees" if moved[:, 0].max() < 1e-9 and moved[:, 1].min() > 1e-6 else "disagrees",
        )
    ]
    for moment, sign, claim in (
        (3.0, 1.0, "full attention forms its clusters sooner: every token is pulled from both sides and by all others"),
        (
            float(data.time[-1]),
            -1.0,
            "but it then keeps more of them: the tokens of a cluster dilute the pull of the next one",
        ),
    ):
        count = data.clusters.sel(time=moment, method="nearest").values
        rank: Any = stats.wilcoxon(sign * (count[:, 0] - count[:, 1]), zero_method="zsplit", alternative="greater")
        findings.append(
            Finding(
                claim=claim,
                measured=f"at t = {moment:g} clusters causal {Mean.of(count[:, 0])}, full {Mean.of(count[:, 1])}, "
                f"difference {Mean.of(count[:, 0] - count[:, 1])}",
                test=f"Wilcoxon signed-rank test on {len(count)} paired draws, p = {float(rank.pvalue):.1e} (level "
                "0.01)",
                verdict="agrees" if rank.pvalue < 0.01 else "disagrees",
            )
        )
    return findings


def _draw_masks(data: xr.Dataset) -> Figure:
    strips = [
        statements.Strip(f"{name} attention", data.time.values, data.x.sel(mask=name).values, log=True)
        for name in ("causal", "full")
    ]
    times = data.time.values[1:]
    curves = [
        statements.Curve(name, times, data.clusters.sel(mask=name).mean("draw").values[1:], color=color)
        for name, color in (("causal", style.BLUE), ("full", style.VERMILLION))
    ]
    extra = statements.Plot(
        f"mean of {data.sizes['draw']} draws", "depth $t$", "clusters", curves, "log", legend="upper right"
    )
    return statements.strips(strips, extra, height=2.6)


CAUSAL_VS_FULL = Recipe(
    name="causal-vs-full",
    title="Causal against full attention, from the same start",
    statement="The same tokens under both masks. Causal attention has leaders that stand still; full attention has "
    "none.",
    parameters={"tokens": 100, "beta": 64.0, "until": 1e4, "radius": 0.5, "draws": 20},
    quick={"tokens": 30, "until": 100.0},
    measure=_measure_masks,
    judge=_judge_masks,
    draw=_draw_masks,
    origin="beyond",
    seconds=5,
)
