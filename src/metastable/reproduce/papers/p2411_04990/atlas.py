"""Figure 1 and Table 1: where tokens end, as the spectrum of V dictates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable._words import counted
from metastable.analysis import classify, cluster_count, predict
from metastable.figures import figure_1, statements
from metastable.model import Attention
from metastable.reproduce.draws import each, gaussian_pair, seeds
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings, Verdict
from metastable.reproduce.statistics import interval, percent
from metastable.run import Run, simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

PAPER_HORIZON = 5000.0
"""T of the paper's simulations."""

KINDS: dict[str, tuple[tuple[float, ...], ...]] = {
    "1": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "2": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, -0.5)),
    "3": ((1.0, 0.0, 0.0), (0.0, 0.3, 0.0), (0.0, 0.0, -0.5)),
    "4": ((-0.5, 0.0, 0.0), (0.0, -0.5, 0.0), (0.0, 0.0, -2.0)),
    "5": ((-0.5, 0.0, 0.0), (0.0, -1.5, 0.0), (0.0, 0.0, -2.0)),
    "complex": ((0.5, -1.0, 0.0), (1.0, 0.5, 0.0), (0.0, 0.0, -0.5)),
}
"""A value matrix for each row of Table 1, and one with a leading complex pair."""

TITLES = {
    "1": "$V = I$",
    "2": r"$V = \mathrm{diag}(1, 1, -0.5)$",
    "3": r"$V = \mathrm{diag}(1, 0.3, -0.5)$",
    "4": r"$V = \mathrm{diag}(-0.5, -0.5, -2)$",
    "5": r"$V = \mathrm{diag}(-0.5, -1.5, -2)$",
    "complex": r"leading pair $0.5 \pm i$",
}


def upto(run: Run, index: int) -> Any:
    """The run as if it had stopped at its saved time number `index`."""
    return Run(run.dataset.isel(time=slice(0, index + 1)))


# ---------------------------------------------------------------------------------------------------------- Figure 1


def _measure_figure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    start = sphere.uniform(parameters["tokens"], dim=3, seed=seeds(settings, "figure-1", 1)[0])
    kinds = list(parameters["kinds"])

    def one(kind: str) -> dict[str, Any]:
        model = Attention(dim=3, beta=parameters["beta"], value=np.array(parameters["kinds"][kind]))
        rotates = kind == "complex"  # it never ends
        # Tokens of a cloud and of a rotation never rest: their paths are drawn for a while, their positions at T.
        path = np.concatenate(
            [[0.0], np.geomspace(0.02, parameters["drawn_until"].get(kind, PAPER_HORIZON / 1.01), 299)]
        )
        if rotates:
            path = np.linspace(0.0, parameters["drawn_until"][kind], 300)
        times = np.concatenate([path, [PAPER_HORIZON], [] if rotates else [parameters["long"]]])
        run: Any = simulate(model, start, times=times, method="tsit5" if rotates else "rodas")
        early = classify(upto(run, path.size))
        late = early if rotates else classify(run)
        return {
            "x": run.states[: path.size],
            "time": path,
            "final": run.states[path.size],
            "expected": predict(model).configuration,
            "at_paper_horizon": early.configuration,
            "at_long_horizon": late.configuration,
            "held_at_paper_horizon": early.as_predicted,
            "held_at_long_horizon": late.as_predicted,
            "to_space": float(early.features.to_space.max()),
            "speed": early.features.speed,
        }

    results = each(one, kinds, report)
    dims = {"x": ("kind", "step", "token", "coord"), "time": ("kind", "step"), "final": ("kind", "token", "coord")}
    variables = {
        name: (dims.get(name, ("kind",)), np.array([result[name] for result in results])) for name in results[0]
    }
    value = (("kind", "row", "coord"), np.array([parameters["kinds"][kind] for kind in kinds]))
    return xr.Dataset(
        {**variables, "value": value},
        coords={"kind": kinds},
        attrs={"long": parameters["long"], "beta": parameters["beta"]},
    )


def _judge_figure(data: xr.Dataset) -> list[Finding]:
    findings = []
    for kind in data.kind.values:
        one = data.sel(kind=kind)
        if kind == "complex":
            findings.append(_rotation(one))
            continue
        expected, now, late = (
            str(one.expected.values),
            str(one.at_paper_horizon.values),
            str(one.at_long_horizon.values),
        )
        points = cluster_count(one.final.values, 1e-2)
        early, later_on = bool(one.held_at_paper_horizon), bool(one.held_at_long_horizon)
        verdict: Verdict = "agrees" if early else "agrees under a condition" if later_on else "disagrees"
        later = "" if early else f"; at t = {float(data.attrs['long']):.0e}: {late}"
        findings.append(
            Finding(
                claim=f"row {kind}: {expected}",
                measured=f"at T = 5000: {now} ({points} distinct points){later}",
                test="configuration found by `classify` (points within 0.01 rad, clouds by median distance to L below "
                "pi/6)",
                verdict=verdict,
            )
        )
    return findings


def _rotation(one: xr.Dataset) -> Finding:
    away, points = float(one.to_space), cluster_count(one.final.values, 1e-2)
    return Finding(
        claim="a complex leading pair makes token 1 rotate for ever in the plane of the pair, and the others follow it",
        measured=f"at T = 5000 all tokens are within {away:.1e} rad of the plane, in {points} points that turn at up "
        "to "
        f"{float(one.speed):.3f} rad per unit of depth",
        test="every token within 0.01 rad of the plane and still turning",
        verdict="agrees" if away < 1e-2 and float(one.speed) > 0.1 else "disagrees",
    )


def _draw_figure(data: xr.Dataset) -> Figure:
    panels = []
    for kind in data.kind.values:
        one = data.sel(kind=kind)
        prediction = predict(Attention(dim=3, beta=float(data.attrs["beta"]), value=one["value"].values))
        points = cluster_count(one.final.values, 1e-2)
        space = None if prediction.subspace.shape[1] == 3 else prediction.subspace
        number = counted(points, "point")
        name = f"row {kind}, " if kind != "complex" else ""
        path = "" if float(one.time[-1]) > 1e3 else f" (path to $t = {float(one.time[-1]):g}$)"
        note = f"{name}{number} at $T = 5000${path}"
        panels.append(figure_1.SpherePanel(TITLES.get(kind, kind), one.x.values, note, space, final=one.final.values))
    return figure_1.figure_1(panels)


def _play_figure(data: xr.Dataset) -> dict[str, Run]:
    """Every sphere; a rotation for as long as it is drawn, since it never ends."""
    runs: dict[str, Run] = {}
    for kind in data.kind.values:
        one = data.sel(kind=kind)
        model = Attention(dim=3, beta=float(data.attrs["beta"]), value=one["value"].values)
        rotates = kind == "complex"
        until = float(one.time[-1]) if rotates else PAPER_HORIZON
        title = "A leading complex pair" if rotates else f"Row {kind} of Table 1"
        runs[title] = simulate(model, one.x.values[0], until=until, progress=False)
    return runs


FIGURE_1 = Recipe(
    name="figure-1",
    title="Figure 1: trajectories and final positions for every kind of value matrix",
    statement="d = 3, n = 32 uniform tokens, beta = 9, Q = K = I, T = 5000: one sphere per kind of V, final "
    "positions as red dots.",
    parameters={
        "tokens": 32,
        "beta": 9.0,
        "long": 1e9,
        "drawn_until": {"4": 50.0, "5": 50.0, "complex": 10.0},
        "kinds": KINDS,
    },
    measure=_measure_figure,
    judge=_judge_figure,
    draw=_draw_figure,
    play=_play_figure,
    uses=("seed",),
    seconds=12,
)


# ----------------------------------------------------------------------------------------------------------- Table 1


def _measure_table(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    draws = settings.draws(parameters["draws"])
    rows = [kind for kind in KINDS if kind != "complex"]
    horizons = {"identity": parameters["long"], "random": parameters["long_random"]}  # by row
    jobs = [
        (row, pair, seed)
        for row in rows
        for pair in horizons
        for seed in seeds(settings, f"table-1 {row} {pair}", draws)
    ]

    def one(job: tuple[str, str, int]) -> tuple[bool, bool, float, float]:
        row, pair, seed = job
        query, key = gaussian_pair(3, seed) if pair == "random" else (np.eye(3), np.eye(3))
        value = np.array(KINDS[row])
        model = Attention(dim=3, beta=parameters["beta"], query=query, key=key, value=value)
        start = sphere.uniform(parameters["tokens"], dim=3, seed=seed)
        run: Any = simulate(
            model,
            start,
            times=[PAPER_HORIZON, horizons[pair][row]],
            rtol=parameters["rtol"],
            method="rodas",
            max_steps=parameters["max_steps"],
        )
        early, late = classify(upto(run, 0)), classify(run)
        leading = float(query[:, 0] @ key[:, 0])  # xi^T Q^T K xi with xi the first basis vector
        return early.as_predicted, late.as_predicted and run.status == "success", leading, run.end

    results = each(one, jobs, report)
    shape = (len(rows), len(horizons), draws)
    return xr.Dataset(
        {
            "at_paper_horizon": (("row", "pair", "draw"), np.array([r[0] for r in results]).reshape(shape)),
            "at_long_horizon": (("row", "pair", "draw"), np.array([r[1] for r in results]).reshape(shape)),
            "leading_logit": (("row", "pair", "draw"), np.array([r[2] for r in results]).reshape(shape)),
            "end": (("row", "pair", "draw"), np.array([r[3] for r in results]).reshape(shape)),
        },
        coords={"row": rows, "pair": list(horizons)},
        attrs={"beta": parameters["beta"]},
    )


ENDINGS = {
    "1": "one point, x₁(0)",
    "2": "one point in L",
    "3": "two points, ±ξ",
    "4": "a cloud around L",
    "5": "two clouds, around ±ξ",
}


DRAWN = {
    "1": "one point, $x_1(0)$",
    "2": "one point in $L$",
    "3": r"two points, $\pm\xi$",
    "4": "a cloud around $L$",
    "5": r"two clouds, around $\pm\xi$",
}


def _judge_table(data: xr.Dataset) -> list[Finding]:
    draws = data.sizes["draw"]
    findings = []
    for row in data.row.values:
        counts = {
            (pair, when): int(data[when].sel(row=row, pair=pair).sum())
            for pair in ("identity", "random")
            for when in ("at_paper_horizon", "at_long_horizon")
        }
        plain = max(counts["identity", "at_paper_horizon"], counts["identity", "at_long_horizon"])
        everywhere = all(count == draws for count in counts.values())
        verdict: Verdict = "agrees" if everywhere else "agrees under a condition" if plain == draws else "disagrees"
        findings.append(
            Finding(
                claim=f"row {row}: {ENDINGS[row]}, whatever Q and K",
                measured=f"Q = K = I: {counts['identity', 'at_paper_horizon']} of {draws} draws at T = 5000, "
                f"{counts['identity', 'at_long_horizon']} of {draws} at t = {_end(data, row, 'identity')}; Gaussian "
                "Q, K: "
                f"{counts['random', 'at_paper_horizon']} of {draws} at T = 5000, "
                f"{percent(counts['random', 'at_long_horizon'], draws)} at "
                f"t = {_end(data, row, 'random')}",
                test="agrees: every draw under every condition; under a condition: every draw with Q = K = I at one "
                "of the horizons",
                verdict=verdict,
            )
        )
    findings.append(_row_three(data))
    return findings


def _end(data: xr.Dataset, row: str, pair: str) -> str:
    """The long horizon of a row, as a power of ten."""
    return f"10^{round(np.log10(float(data.end.sel(row=row, pair=pair).max())))}"


def _row_three(data: xr.Dataset) -> Finding:
    """Row 3 split by the sign of the logit that xi gives itself."""
    held = data.at_long_horizon.sel(row="3", pair="random").values
    positive = data.leading_logit.sel(row="3", pair="random").values > 0
    parts = []
    for name, chosen in (("> 0", positive), ("< 0", ~positive)):
        if chosen.any():
            parts.append(f"with ξᵀQᵀKξ {name} it held in {percent(int(held[chosen].sum()), int(chosen.sum()))}")
    return Finding(
        claim="Table 1, row 3 (tokens end in two points, ±ξ) does not depend on Q and K",
        measured="; ".join(parts) + ". Where it fails tokens rest between ±ξ",
        test="every draw",
        verdict="agrees" if held.all() else "disagrees",
    )


def _draw_table(data: xr.Dataset) -> Figure:
    entries = []
    labels = (
        ("identity", "at_paper_horizon", "$Q = K = I$, $T = 5000$ (paper)"),
        ("identity", "at_long_horizon", "$Q = K = I$, long horizon"),
        ("random", "at_paper_horizon", "Gaussian $Q$, $K$, $T = 5000$"),
        ("random", "at_long_horizon", "Gaussian $Q$, $K$, long horizon"),
    )
    for row in data.row.values:
        for pair, when, label in labels:
            held = data[when].sel(row=row, pair=pair).values
            low, high = interval(int(held.sum()), held.size)
            entries.append(
                statements.Fraction(f"row {row}: {DRAWN[row]}", label, int(held.sum()), held.size, low, high)
            )
    return statements.fractions_chart(entries)


TABLE_1 = Recipe(
    name="table-1",
    title="Table 1: the atlas of final configurations",
    statement="The largest real part of the spectrum of V and its eigenspace L decide where tokens end; Q and K "
    "never matter. Row 1 is a "
    "theorem, the others are conjectures or observations of the authors.",
    parameters={
        "tokens": 32,
        "beta": 9.0,
        "draws": 20,
        "long": {"1": 1e9, "2": 1e9, "3": 1e9, "4": 1e5, "5": 1e5},
        "long_random": {"1": 1e50, "2": 1e50, "3": 1e12, "4": 1e5, "5": 1e5},
        "rtol": 1e-5,
        "max_steps": 20_000,
    },
    measure=_measure_table,
    judge=_judge_table,
    draw=_draw_table,
    seconds=13,
)
