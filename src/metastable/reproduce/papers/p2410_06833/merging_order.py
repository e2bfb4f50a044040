"""How long plateaus last, and which pair ends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable.analysis import cluster_labels, merge_tree
from metastable.figures import statements, style
from metastable.model import Attention, Full
from metastable.reproduce.draws import each, seeds, whole
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings, Verdict
from metastable.reproduce.statistics import LEVEL, Mean, interval, percent, slope
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plateau:
    """A plateau and the merge that ends it: how long it lasted, `1 - cosine` of the pair that merged, the predicted wait of that pair,
    whether it was the closest, whether it had the shortest predicted wait, and clusters at its beginning.
    """

    wait: float
    gap: float
    predicted: float
    closest: bool
    soonest: bool
    clusters: int
    chance: float


def pair_wait(angle: float, first: float, second: float, beta: float, radius: float) -> float:
    """Time in which two clusters of masses m_1, m_2 on their own come from `angle` to `radius` under softmax:

    d phi/dt = -sin phi e^(-beta (1 - cos phi)) [m_2/(m_1 + m_2 w) + m_1/(m_2 + m_1 w)],  w = e^(-beta (1 - cos phi)).
    """
    if angle <= radius:
        return 0.0
    node, weight = np.polynomial.legendre.leggauss(400)
    phi = radius + 0.5 * (angle - radius) * (node + 1)
    w = np.exp(-beta * (1 - np.cos(phi)))
    speed = np.sin(phi) * w * (second / (first + second * w) + first / (second + first * w))
    return float(0.5 * (angle - radius) * (weight / speed).sum())


@lru_cache(maxsize=256)  # both items look at the same runs
def plateaus(tokens: int, beta: float, seed: int, until: float, radius: float, least: float) -> tuple[Plateau, ...]:
    """The plateaus of one run from uniform tokens on the circle that lasted longer than `least`."""
    model = Attention(dim=2, beta=beta, mask=Full())
    run = whole(simulate(model, sphere.uniform(tokens, dim=2, seed=seed), until=until, method="rodas", rtol=1e-5))
    tree = merge_tree(run, radius=radius)
    found, before = [], 0.0
    for time, child, parent in zip(tree.time, tree.child, tree.parent):
        wait = float(time - before)
        if wait > least:
            found.append(_plateau(run.at(before + min(20.0, 0.2 * wait)), wait, int(child), int(parent), beta, radius))
        before = float(time)
    return tuple(one for one in found if one is not None)


def trend_score(x: Any, hits: Any, groups: Any) -> float:
    """Cochran and Armitage: sum (x - mean x)(hit - share) over its standard error if the share of hits were the same at every x.

    Hits of one group (the merges from one start) may depend on one another: the variance is the sum of the squares of the parts of
    the groups. Zero where nothing can be said: all hits or none, or a single x.
    """
    share = float(np.mean(hits))
    terms = (np.asarray(x, float) - np.mean(x)) * (np.asarray(hits, float) - share)
    parts = np.bincount(np.unique(groups, return_inverse=True)[1], weights=terms)
    variance = float((parts**2).sum())
    return float(terms.sum() / np.sqrt(variance)) if variance > 0 else 0.0


def _plateau(x: Any, wait: float, child: int, parent: int, beta: float, radius: float) -> Plateau | None:
    labels = cluster_labels(x, radius)
    count = int(labels.max()) + 1
    if labels[child] == labels[parent]:
        return None
    masses = np.bincount(labels)
    centers = np.stack([x[labels == k].mean(axis=0) for k in range(count)])
    angles = sphere.pairwise_distance(centers / np.linalg.norm(centers, axis=1, keepdims=True))
    pairs = list(combinations(range(count), 2))
    waits = [pair_wait(float(angles[i, j]), masses[i], masses[j], beta, radius) for i, j in pairs]
    one, other = sorted((int(labels[child]), int(labels[parent])))
    merged = (one, other)
    closest = min(pairs, key=lambda pair: angles[pair])
    soonest = pairs[int(np.argmin(waits))]
    return Plateau(
        wait,
        float(1 - np.cos(angles[merged])),
        waits[pairs.index(merged)],
        merged == closest,
        merged == soonest,
        count,
        1.0 / count,
    )


def _measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    betas = list(parameters["betas"])
    chosen = seeds(settings, "plateaus", settings.draws(parameters["draws"]))

    def one(job: tuple[float, int]) -> tuple[Plateau, ...]:
        beta, seed = job
        return plateaus(
            parameters["tokens"],
            beta,
            seed,
            parameters["until"],
            parameters["radius"] / np.sqrt(beta),
            parameters["least"],
        )

    jobs = [(float(beta), seed) for beta in betas for seed in chosen]
    found = [(job, one) for job, some in zip(jobs, each(one, jobs, report)) for one in some]
    fields = ("wait", "gap", "predicted", "closest", "soonest", "clusters", "chance")
    columns = {name: ("plateau", np.array([getattr(plateau, name) for _, plateau in found])) for name in fields}
    return xr.Dataset(
        {
            **columns,
            "beta": ("plateau", np.array([beta for (beta, _), _ in found])),
            "start": ("plateau", np.array([chosen.index(seed) for (_, seed), _ in found])),
        },
        attrs={"betas": betas, "draws": len(chosen), "until": parameters["until"]},
    )


# ---------------------------------------------------------------------------------------------------------- plateaus


def _judge_plateaus(data: xr.Dataset) -> list[Finding]:
    error = np.log10(data.wait.values / data.predicted.values)
    exponent = slope(data.beta.values * data.gap.values, np.log(data.wait.values))
    middle, wide = float(np.median(error)), float(np.quantile(np.abs(error), 0.9))
    near = int((np.abs(error) < 0.3).sum())
    lone = np.abs(exponent.value - 1)
    verdict: Verdict = "agrees" if lone < 0.1 else "agrees under a condition" if lone < 0.3 else "disagrees"
    good: Verdict = (
        "agrees" if near > 0.9 * error.size else "agrees under a condition" if abs(middle) < 0.3 else "disagrees"
    )
    return [
        Finding(
            claim="plateaus last like exp(beta (1 - cosine)) of the pair that merges",
            measured=f"ln(length) against beta (1 - cosine): slope {exponent} over {error.size} plateaus of "
            f"10^{np.log10(data.wait.min()):.1f} to "
            f"10^{np.log10(data.wait.max()):.1f}",
            test="slope within 10 % of 1 (under a condition: within 30 %)",
            verdict=verdict,
        ),
        Finding(
            claim="with masses: the length is the time two clusters of these masses need on their own",
            measured=f"log10(measured/predicted): median {middle:+.3f}, nine in ten within {wide:.2f}; "
            f"{percent(near, error.size)} within a factor of 2",
            test="nine in ten within a factor of 2 (under a condition: the median)",
            verdict=good,
            ours=True,
        ),
    ]


def _draw_plateaus(data: xr.Dataset) -> Figure:
    left, right = [], []
    for number, beta in enumerate(data.attrs["betas"]):
        one = data.isel(plateau=np.flatnonzero(data.beta.values == beta))
        if one.sizes["plateau"]:
            color = style.CATEGORICAL[number]
            left.append(
                statements.Curve(
                    rf"$\beta = {beta:g}$",
                    beta * one.gap.values / np.log(10),
                    np.log10(one.wait.values),
                    points=True,
                    color=color,
                )
            )
            right.append(
                statements.Curve(
                    rf"$\beta = {beta:g}$",
                    np.log10(one.predicted.values),
                    np.log10(one.wait.values),
                    points=True,
                    color=color,
                )
            )
    ends = np.array([0.0, float(np.log10(data.wait.values).max()) + 0.5])
    for curves in (left, right):
        curves.append(statements.Curve("equal", ends, ends, dashed=True, color=style.INK))
    return statements.plots(
        [
            statements.Plot(
                "against the gap alone",
                r"$\beta\,(1 - \cos)$ of the pair, in decades",
                r"$\log_{10}$ length of the plateau",
                left,
                legend="upper left",
            ),
            statements.Plot(
                "against two clusters with their masses",
                r"$\log_{10}$ predicted length",
                r"$\log_{10}$ length of the plateau",
                right,
                legend=None,
            ),
        ],
        height=2.8,
    )


COMMON: dict[str, Any] = {"tokens": 16, "draws": 20, "until": 1e60, "radius": 0.5, "least": 100.0}
SMALL: dict[str, Any] = {"tokens": 8, "betas": (12.0,)}

PLATEAUS = Recipe(
    name="plateaus",
    title="How long a plateau lasts",
    statement="Between merges nothing moves for a time like exp(beta (1 - cosine)) of the pair that merges next; the "
    "force on cluster i from cluster j "
    "carries the ratio of their masses. Full attention on the circle, until one cluster is left.",
    parameters={**COMMON, "betas": (10.0, 20.0, 40.0)},
    quick=SMALL,
    measure=_measure,
    judge=_judge_plateaus,
    draw=_draw_plateaus,
    uses=("seed", "members"),
    revision=2,
    seconds=10,
    hindsight="5 draws up to t = 10^20 became 20 draws until one cluster is left (10^60), and plateaus of two clusters, "
    "left out first, were added",
)


# ------------------------------------------------------------------------------------------------------------- order


def _judge_order(data: xr.Dataset) -> list[Finding]:
    data = data.isel(plateau=np.flatnonzero(data.clusters.values > 2))  # two clusters leave no choice
    findings = []
    for name, claim in (
        ("closest", "the pair that merges next is the closest one"),
        ("soonest", "the pair that merges next is the one with the shortest wait, masses counted"),
    ):
        hits = {float(b): data[name].values[data.beta.values == b] for b in data.attrs["betas"]}
        listed = ", ".join(f"beta = {b:g}: {int(v.sum())} of {v.size}" for b, v in hits.items() if v.size)
        every = data[name].values
        # The merges of one start are not independent of one another, and starts are the same at every beta.
        share = Mean.of([every[data.start.values == start].mean() for start in np.unique(data.start.values)])
        chance = float(data.chance.mean())
        least = share.value - 2 * share.error
        verdict: Verdict = "agrees" if least > 0.9 else "agrees under a condition" if least > 0.5 else "disagrees"
        findings.append(
            Finding(
                claim=claim,
                measured=f"{int(every.sum())} of {every.size} merges; {listed} (a random pair of neighbours: "
                f"{100 * chance:.0f} %); share by starts {share} ({share.count} starts)",
                test="the share by starts is above 0.9 by more than two standard errors (under a condition: above 0.5)",
                verdict=verdict,
                ours=name == "soonest",
            )
        )
    return [*findings, _judge_trend(data.beta.values, data.closest.values, data.start.values)]


def _judge_trend(betas: Any, closest: Any, starts: Any) -> Finding:
    """Does the closest pair win more often at larger beta? `betas`, `closest`, `starts`: one value for each merge."""
    from scipy import stats

    score = trend_score(betas, closest, starts)
    level = float(stats.t.isf(LEVEL, max(np.unique(starts).size - 1, 1)))
    shares = ", ".join(f"{100 * closest[betas == b].mean():.0f} % (beta = {b:g})" for b in np.unique(betas))
    found = "no trend" if abs(score) < level else "it rises" if score > 0 else "it falls"
    verdict: Verdict = "not available" if abs(score) < level else "agrees" if score > 0 else "disagrees"
    return Finding(
        claim="the closest pair wins more surely as beta grows (its limit: always)",
        measured=f"its share of the merges is {shares}: {found} (slope over its standard error {score:+.1f})",
        test="Cochran-Armitage test of a trend, with the variance between starts, one-sided at the level 0.001 both ways (not "
        "available: not decided)",
        verdict=verdict,
    )


def _draw_order(data: xr.Dataset) -> Figure:
    data = data.isel(plateau=np.flatnonzero(data.clusters.values > 2))
    curves = []
    for name, label, color, shift in (
        ("soonest", "shortest predicted wait", style.GREEN, 0.4),
        ("closest", "closest pair", style.BLUE, -0.4),
    ):
        betas, share, low, high = [], [], [], []
        for beta in data.attrs["betas"]:
            values = data[name].values[data.beta.values == beta]
            if values.size:
                bounds = interval(int(values.sum()), values.size)
                betas.append(beta + shift)
                share.append(values.mean())
                low.append(values.mean() - bounds[0])
                high.append(bounds[1] - values.mean())
        curves.append(statements.Curve(label, betas, 100 * np.array(share), 100 * np.stack([low, high]), color=color))
    chance = [
        100 * float(data.chance.values[data.beta.values == b].mean())
        for b in data.attrs["betas"]
        if (data.beta.values == b).any()
    ]
    shown = [b for b in data.attrs["betas"] if (data.beta.values == b).any()]
    curves.append(statements.Curve("any pair of neighbours", shown, chance, dashed=True, color=style.MUTED))
    plot = statements.Plot(
        "which pair merges next (exact 95 % intervals)",
        r"inverse temperature $\beta$",
        "merges (%)",
        curves,
        ylim=(0, 104),
        legend="center right",
    )
    return statements.plots([plot], height=2.9)


ORDER = Recipe(
    name="merging-order",
    title="Which pair merges next",
    statement="For large beta only the closest pair moves, so it merges next. Counted over all merges that end a "
    "plateau with three clusters or more, "
    "beta = 10 to 60.",
    parameters={**COMMON, "betas": (10.0, 20.0, 30.0, 40.0, 60.0)},
    quick=SMALL,
    measure=_measure,
    judge=_judge_order,
    draw=_draw_order,
    uses=("seed", "members"),
    revision=3,
    seconds=16,
    hindsight="5 draws up to t = 10^20 became 20 draws until one cluster is left (10^60). The line on growing beta was "
    "left out where all merges at some beta were of the closest pair; it is now always judged, by another test (of "
    "Cochran and Armitage). Merges were taken for independent at first; now each start counts once. A share of 0.9 of all "
    "merges was enough at first; the share by starts must now be above it by two standard errors",
)
