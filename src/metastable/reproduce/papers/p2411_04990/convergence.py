"""Theorem 4.1 and Conjectures 1 and 2: convergence to one point or two, on the long horizon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable.analysis import classify
from metastable.figures import statements
from metastable.model import Attention
from metastable.reproduce.draws import each, gaussian_pair, part, seeds
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings, Verdict
from metastable.reproduce.statistics import interval, percent
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


# ----------------------------------------------------------------------------- Theorem 4.1 and the two conjectures


def _spread_recipe_measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    """Distance of the farthest token to token 1, and to L, against log time, for several cases."""
    import xarray as xr

    cases = dict(parameters["cases"])
    draws = settings.draws(parameters["draws"])
    times = np.concatenate([[0.0], np.geomspace(0.1, parameters["until"], 120)])
    spread = np.full((len(cases), draws, times.size), np.nan)
    to_space = np.full((len(cases), draws), np.nan)
    moved = np.full((len(cases), draws), np.nan)
    for number, (name, case) in enumerate(cases.items()):
        dim = len(case["eigenvalues"])
        value = None if set(case["eigenvalues"]) == {1.0} else np.diag(case["eigenvalues"])

        def one(
            seed: int, case: Mapping[str, Any] = case, value: np.ndarray | None = value, dim: int = dim
        ) -> tuple[np.ndarray, float, float]:
            query, key = gaussian_pair(dim, seed) if case["random"] else (None, None)
            model = Attention(dim=dim, beta=case["beta"], query=query, key=key, value=value)
            start = sphere.uniform(case["tokens"], dim=dim, seed=seed)
            run: Any = simulate(model, start, times=times, rtol=parameters["rtol"], method="rodas")
            away = np.array([sphere.distance(x, x[0]).max() for x in run.states])
            away = np.concatenate([away, np.full(times.size - away.size, np.nan)])  # a run that gave up early
            found = classify(run)
            return away, float(found.features.to_space.max()), found.features.to_start

        chosen = seeds(settings, f"{parameters['label']} {name}", draws)
        step = part(report, number / len(cases), (number + 1) / len(cases))
        for draw, (away, off, gone) in enumerate(each(one, chosen, step)):
            spread[number, draw], to_space[number, draw], moved[number, draw] = away, off, gone
    return xr.Dataset(
        {
            "spread": (("case", "draw", "time"), spread),
            "to_space": (("case", "draw"), to_space),
            "to_start": (("case", "draw"), moved),
        },
        coords={"case": list(cases), "time": times},
        attrs={"until": parameters["until"]},
    )


def _draw_spread(data: xr.Dataset) -> Figure:
    panels = []
    times = data.time.values[1:]
    apart = (data.spread > 1e-2).any(["case", "draw"]).values[1:]
    window = (float(times[0]), min(float(times[-1]), 1e4 * float(times[apart].max(initial=1.0))))
    for case in data.case.values:
        values = data.spread.sel(case=case).values[:, 1:]
        curves = [statements.Curve("", times, row, color="#a9c3d9") for row in values]
        curves.append(statements.Curve(f"median of {len(values)} draws", times, np.nanmedian(values, axis=0)))
        label = "farthest token from token 1 (rad)"
        panels.append(
            statements.Plot(str(case), "depth $t$", label, curves, "log", "linear", (0.0, 3.9), window, "upper right")
        )
    return statements.plots(panels, height=2.5, shared=True)


def _point_findings(
    data: xr.Dataset, distance: str, what: str, conditions: Mapping[str, Verdict] | None = None
) -> list[Finding]:
    findings = []
    for case in data.case.values:
        spread = data.spread.sel(case=case).isel(time=-1).values
        ended = ~np.isnan(spread)  # a run that ran out of steps decides nothing
        off = data[distance].sel(case=case).values
        good, count = int(((spread < 1e-2) & (off < 1e-2)).sum()), int(ended.sum())
        until = f"t = {float(data.attrs['until']):.0e}"
        measured = f"{percent(good, count)} draws" if count else "no draw came to its end"
        if good < count:
            verdict: Verdict = (conditions or {}).get(str(case), "disagrees")
            measured += f" by {until}; farthest token {spread[ended].max():.1e} rad from token 1"
        else:
            verdict = "agrees" if count == spread.size else "agrees under a condition" if count else "not available"
            measured += (
                f"; farthest token {spread[ended].max():.1e} rad from token 1, {off[ended].max():.1e} rad from the set"
                if count
                else ""
            )
        if count < spread.size:
            measured += f"; {spread.size - count} more ran out of steps before {until} and decide nothing"
        findings.append(
            Finding(
                claim=f"{what} ({_plain(case)})",
                measured=measured,
                test="every draw within 0.01 rad (under a condition: every draw that came to its end)",
                verdict=verdict,
            )
        )
    return findings


def _plain(case: Any) -> str:
    """A case's name without the marks of mathematical type setting."""
    return str(case).replace("$", "").replace("\\beta", "beta").replace("\\", "")


THEOREM_4_1 = Recipe(
    name="theorem-4.1",
    title="Theorem 4.1: with V = I every token converges to the first one",
    statement="V = I, any Q, K and beta: from almost every start every token converges to x_1(0).",
    parameters={
        "label": "theorem-4.1",
        "cases": {
            r"$d = 2$, $\beta = 16$, $Q = K = I$": {
                "eigenvalues": (1.0, 1.0),
                "tokens": 60,
                "beta": 16.0,
                "random": False,
            },
            r"$d = 3$, $\beta = 9$, random $Q$, $K$": {
                "eigenvalues": (1.0,) * 3,
                "tokens": 32,
                "beta": 9.0,
                "random": True,
            },
            r"$d = 5$, $\beta = 4$, random $Q$, $K$": {
                "eigenvalues": (1.0,) * 5,
                "tokens": 32,
                "beta": 4.0,
                "random": True,
            },
        },
        "draws": 20,
        "until": 1e60,
        "rtol": 1e-5,
    },
    measure=_spread_recipe_measure,
    judge=lambda data: _point_findings(data, "to_start", "every token converges to x_1(0)"),
    draw=_draw_spread,
    seconds=14,
)

CONJECTURE_1 = Recipe(
    name="conjecture-1",
    title="Conjecture 1: a multiple leading eigenvalue gathers all tokens in one point of L",
    statement="lambda_max > 0 with an eigenspace L of dimension at least 2: all tokens converge to one point of L.",
    parameters={
        "label": "conjecture-1",
        "cases": {
            r"$d = 3$, $\dim L = 2$, $Q = K = I$": {
                "eigenvalues": (1.0, 1.0, -0.5),
                "tokens": 32,
                "beta": 9.0,
                "random": False,
            },
            r"$d = 3$, $\dim L = 2$, random $Q$, $K$": {
                "eigenvalues": (1.0, 1.0, -0.5),
                "tokens": 32,
                "beta": 9.0,
                "random": True,
            },
            r"$d = 5$, $\dim L = 3$, $Q = K = I$": {
                "eigenvalues": (1.0, 1.0, 1.0, 0.2, -0.5),
                "tokens": 32,
                "beta": 9.0,
                "random": False,
            },
        },
        "draws": 20,
        "until": 1e60,
        "rtol": 1e-5,
    },
    measure=_spread_recipe_measure,
    judge=lambda data: _point_findings(data, "to_space", "all tokens converge to one point of L"),
    draw=_draw_spread,
    revision=2,
    seconds=2,
    hindsight="With another seed one of 20 runs ran out of steps (a token went round and round), which was a disagreement at first; "
    "it now decides nothing",
)


# -------------------------------------------------------------------------------------------------- Conjecture 2


def _measure_two_points(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    draws = settings.draws(parameters["draws"])
    value = np.diag(parameters["eigenvalues"])
    dim = len(value)
    families = ("identity", "positive", "negative", "equal")
    jobs = [(family, seed) for family in families for seed in seeds(settings, f"conjecture-2 {family}", draws)]

    def one(job: tuple[str, int]) -> tuple[bool, int]:
        family, seed = job
        query, key = _pair(family, dim, seed)
        model = Attention(dim=dim, beta=parameters["beta"], query=query, key=key, value=value)
        run: Any = simulate(
            model,
            sphere.uniform(parameters["tokens"], dim=dim, seed=seed),
            times=[parameters["until"]],
            rtol=parameters["rtol"],
            method="rodas",
        )
        found = classify(run)
        return found.as_predicted, int((found.features.to_space > 1e-2).sum())

    results = each(one, jobs, report)
    shape = (len(families), draws)
    return xr.Dataset(
        {
            "held": (("family", "draw"), np.array([held for held, _ in results]).reshape(shape)),
            "tokens_off": (("family", "draw"), np.array([off for _, off in results]).reshape(shape)),
        },
        coords={"family": list(families)},
        attrs={"until": parameters["until"], "tokens": parameters["tokens"]},
    )


def _pair(family: str, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Q and K of one family; for "positive" and "negative" the sign of K is chosen to give xi^T Q^T K xi that sign."""
    if family == "identity":
        return np.eye(dim), np.eye(dim)
    query, key = gaussian_pair(dim, seed)
    if family == "equal":
        return query, query
    wanted = 1.0 if family == "positive" else -1.0
    return query, key * wanted * np.sign(query[:, 0] @ key[:, 0])


_FAMILIES = {
    "identity": "Q = K = I",
    "positive": "Gaussian Q, K with ξᵀQᵀKξ > 0",
    "negative": "Gaussian Q, K with ξᵀQᵀKξ < 0",
    "equal": "Gaussian Q = K",
}


_LABELS = {
    "identity": "$Q = K = I$",
    "positive": r"Gaussian $Q$, $K$ with $\xi^\top Q^\top K\xi > 0$",
    "negative": r"Gaussian $Q$, $K$ with $\xi^\top Q^\top K\xi < 0$",
    "equal": "Gaussian $Q = K$",
}


def _judge_two_points(data: xr.Dataset) -> list[Finding]:
    findings = []
    for family in data.family.values:
        held = data.held.sel(family=family).values
        off = data.tokens_off.sel(family=family).values
        count = int(held.sum())
        extra = (
            ""
            if count == held.size
            else f"; where it fails {int(np.median(off[~held]))} of {int(data.attrs['tokens'])} tokens rest elsewhere"
        )
        findings.append(
            Finding(
                claim="if V has a simple leading eigenvalue, with eigenvector ξ, every token converges to ξ or -ξ "
                f"({_FAMILIES[str(family)]})",
                measured=f"{percent(count, held.size)} draws at t = {float(data.attrs['until']):.0e}{extra}",
                test="every draw, tokens within 0.01 rad",
                verdict="agrees" if count == held.size else "disagrees",
            )
        )
    return findings


def _draw_two_points(data: xr.Dataset) -> Figure:
    entries: Sequence[statements.Fraction] = []
    for family in data.family.values:
        held = data.held.sel(family=family).values
        low, high = interval(int(held.sum()), held.size)
        entries = [*entries, statements.Fraction(_LABELS[str(family)], "", int(held.sum()), held.size, low, high)]
    return statements.fractions_chart(entries, xlabel=r"draws in which every token ends at $\pm\xi$ (%)")


CONJECTURE_2 = Recipe(
    name="conjecture-2",
    title="Conjecture 2: a simple leading eigenvalue splits the tokens between xi and -xi",
    statement="lambda_max > 0 simple with eigenvector xi: every token converges to xi or to -xi, whatever Q and K.",
    parameters={"eigenvalues": (1.0, 0.3, -0.5), "tokens": 32, "beta": 9.0, "draws": 20, "until": 1e12, "rtol": 1e-5},
    measure=_measure_two_points,
    judge=_judge_two_points,
    draw=_draw_two_points,
    seconds=1,
)
