"""Beyond the paper: the cascade predicted from the clusters at one moment, and what follows for the number of clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere, theory
from metastable.analysis import MergeTree, cluster_leaders, merge_tree, predict_merges
from metastable.figures import long_runs
from metastable.model import Attention
from metastable.reproduce.draws import each, part, seeds
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import Mean, percent
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def _measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    begin = parameters["begin"]

    def one(item: tuple[int, int, float, int]) -> tuple[int, bool, np.ndarray]:
        """A simulated cascade against the predicted one: case, tree right, (simulated, predicted, uncertainty) of each merge."""
        case, dim, beta, seed = item
        model = Attention(dim=dim, beta=beta)
        start = sphere.uniform(parameters["tokens"], dim=dim, seed=seed)
        run: Any = simulate(model, start, until="settled", method="rodas")
        truth, guess = merge_tree(run), predict_merges(run.at(begin), model, begin)
        return case, *_compare(truth, guess, begin)

    cases = [(int(dim), float(beta)) for dim, beta in parameters["cases"]]
    draws = settings.draws(parameters["draws"])
    items = [
        (case, dim, beta, seed)
        for case, (dim, beta) in enumerate(cases)
        for seed in seeds(settings, f"cascade-law {dim} {beta:g}", draws)
    ]
    results = each(one, items, part(report, 0.0, 0.8))
    merges = np.concatenate([rows for _, _, rows in results])
    owner = np.concatenate([np.full(len(rows), case) for case, _, rows in results])

    beta, decades = float(parameters["law_beta"]), np.array(parameters["decades"], dtype=float)
    model = Attention(dim=2, beta=beta)

    def count(seed: int) -> tuple[np.ndarray, float]:
        """Predicted number of clusters at each decade, and the decade of the last merge."""
        start = sphere.uniform(parameters["law_tokens"], dim=2, seed=seed)
        state = simulate(model, start, until=begin, method="tsit5").final
        tree = predict_merges(state, model, begin)
        return np.asarray(tree.count(10.0**decades)), float(np.log10(tree.time[-1])) if len(tree) else 0.0

    counts = each(
        count, seeds(settings, "cascade-law", settings.draws(parameters["law_draws"])), part(report, 0.8, 1.0)
    )
    return xr.Dataset(
        {
            "simulated": ("merge", merges[:, 0]),
            "predicted": ("merge", merges[:, 1]),
            "uncertainty": ("merge", merges[:, 2]),
            "case": ("merge", owner),
            "right": (("setting", "draw"), np.array([right for _, right, _ in results]).reshape(len(cases), draws)),
            "dim": ("setting", np.array([dim for dim, _ in cases])),
            "beta": ("setting", np.array([beta for _, beta in cases])),
            "clusters": (("start", "decade"), np.array([clusters for clusters, _ in counts])),
            "collapse": ("start", np.array([last for _, last in counts])),
            "law": ("decade", theory.cluster_count(10.0**decades, beta, 2)),
        },
        coords={"decade": decades},
        attrs={"law_beta": beta, "begin": begin, "tokens": parameters["law_tokens"]},
    )


def _compare(truth: MergeTree, guess: MergeTree, begin: float) -> tuple[bool, np.ndarray]:
    """Whether all clusters of the prediction found their true parents, and the times of their merges, (merges, 3)."""
    first = set(cluster_leaders(guess.start_labels).tolist())
    row_of = {int(child): row for row, child in enumerate(guess.child)}
    rows, right = [], True
    assert guess.uncertainty is not None
    for child, parent, time in zip(truth.child, truth.parent, truth.time):
        if time <= begin or int(child) not in first:
            continue  # merged before, or told apart by one of the two only at the moment of the prediction
        row = row_of.get(int(child))
        right = right and row is not None and int(guess.parent[row]) == int(parent)
        if row is not None:
            rows.append((time, guess.time[row], guess.uncertainty[row]))
    return right, np.array(rows).reshape(-1, 3)


def _judge(data: xr.Dataset) -> list[Finding]:
    off = np.abs(np.log10(data.predicted.values / data.simulated.values))
    middle, high = float(np.median(off)), float(np.quantile(off, 0.9))
    right, draws = int(data.right.sum()), int(data.right.size)
    means = [Mean.of(data.clusters.sel(decade=decade)) for decade in data.decade.values]
    ratio = np.array([mean.value for mean in means]) / data.law.values
    shown = ", ".join(
        f"10^{decade:g}: {mean.value:.2f} ({law:.2f})"
        for decade, mean, law in zip(data.decade.values, means, data.law.values)
    )
    decades = data.collapse.values
    limit = 2 * float(data.attrs["law_beta"]) / np.log(10)
    return [
        Finding(
            claim="the clusters at one moment fix the times of all later merges: each leader is one "
            "token among standing places",
            measured=f"{len(off)} merges up to t = 10^{np.log10(data.simulated.values.max()):.0f}: |log10 "
            "predicted/simulated| "
            f"has median {middle:.5f} and 90 % quantile {high:.4f}, worst {off.max():.3f}",
            test="median below 0.002 and 90 % below 0.02",
            verdict="agrees" if middle < 0.002 and high < 0.02 else "disagrees",
        ),
        Finding(
            claim="so does the tree: who merges into whom",
            measured=f"every cluster found its parent in {percent(right, draws)} draws",
            test="at least 90 %",
            verdict="agrees" if right >= 0.9 * draws else "disagrees",
        ),
        Finding(
            claim="N(t) = pi/arccos(1 - ln t/beta) has the shape, not the amplitude: it counts strong centers, but "
            "a leader stays when the earlier one that would have caught it has itself fallen elsewhere",
            measured=f"predicted mean of {data.sizes['start']} starts (law) at t = {shown}; the law is off by "
            f"{100 * (1 / ratio.max() - 1):+.0f} to {100 * (1 / ratio.min() - 1):+.0f} %",
            test="law within 25 % of the predicted mean everywhere",
            verdict="agrees" if np.all(np.abs(ratio - 1) < 0.25) else "disagrees",
        ),
        Finding(
            claim="the last merge is spread over decades, below exp(2 beta)",
            measured=f"log10 of the collapse time: median {np.median(decades):.1f}, 10 % to 90 % of starts "
            f"{np.quantile(decades, 0.1):.1f} to {np.quantile(decades, 0.9):.1f}, largest {decades.max():.1f}; "
            f"2 beta/ln 10 = {limit:.1f}",
            test="all below 2 beta/ln 10 + 1",
            verdict="agrees" if decades.max() < limit + 1 else "disagrees",
        ),
    ]


def _draw(data: xr.Dataset) -> Figure:
    names = [rf"$d = {int(dim)}$, $\beta = {float(beta):g}$" for dim, beta in zip(data.dim.values, data.beta.values)]
    case = data.case.values
    pairs = {
        name: (data.simulated.values[case == place], data.predicted.values[case == place])
        for place, name in enumerate(names)
    }
    return long_runs.prediction(pairs, 10.0**data.decade.values, data.clusters.values, data.law.values)


CASCADE_LAW = Recipe(
    name="cascade-law",
    title="The whole cascade from the clusters at one moment",
    statement="A cluster is its leader, and a leader is one token among standing places with masses, "
    "Frozen(places, masses): who merges into whom, and when, follows from the clusters at t = 100 for all later times.",
    parameters={
        "tokens": 60,
        "begin": 100.0,
        "cases": ((2, 16.0), (2, 64.0), (3, 9.0)),
        "draws": 6,
        "law_beta": 64.0,
        "law_tokens": 200,
        "law_draws": 100,
        "decades": (2.5, 3, 4, 6, 8, 10, 12, 16, 20, 25, 30, 35, 40, 45, 50, 54),
    },
    quick={"tokens": 30, "cases": ((2, 16.0),), "law_beta": 16.0, "law_tokens": 30, "decades": (2.5, 4, 8)},
    measure=_measure,
    judge=_judge,
    draw=_draw,
    origin="beyond",
    seconds=19,
)
