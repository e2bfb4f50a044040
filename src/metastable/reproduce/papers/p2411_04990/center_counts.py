"""Lemma C.1 and the scaling of the counts: how many Renyi centers a random sequence has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere, theory
from metastable.analysis import renyi_centers
from metastable.figures import statements, style
from metastable.reproduce.draws import each, part, seeds
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import Mean, consistent, score, slope

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def _counts(tokens: int, dim: int, delta: float, strong: bool, draw_seeds: list[int], report: Report) -> np.ndarray:
    """Number of centers in each of several uniform sequences."""

    def count(seed: int) -> int:
        return len(renyi_centers(sphere.uniform(tokens, dim=dim, seed=seed), delta, strong=strong))

    return np.array(each(count, draw_seeds, report))


# -------------------------------------------------------------------------------------------------------- Lemma C.1


def _measure_lemma(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    draws = settings.draws(parameters["draws"])
    deltas = np.array(parameters["deltas"])
    dims = list(parameters["dims"])
    strong = np.empty((len(dims), deltas.size, draws))
    for row, dim in enumerate(dims):
        for column, delta in enumerate(deltas):
            done = (row * deltas.size + column) / (len(dims) * deltas.size + 1)
            step = part(report, done, done + 1 / (len(dims) * deltas.size + 1))
            chosen = seeds(settings, f"lemma-c.1 {dim} {delta}", draws)
            strong[row, column] = _counts(parameters["tokens"], dim, float(delta), True, chosen, step)
    many = settings.draws(parameters["renyi_draws"])
    circle = _counts(
        parameters["renyi_tokens"],
        2,
        parameters["renyi_delta"],
        False,
        seeds(settings, "lemma-c.1 parking", many),
        part(report, 0.8, 1.0),
    )
    expected = np.array([[theory.strong_centers(float(d), dim, parameters["tokens"]) for d in deltas] for dim in dims])
    return xr.Dataset(
        {
            "strong": (("dim", "delta", "draw"), strong),
            "expected": (("dim", "delta"), expected),
            "parked": ("parking_draw", circle),
        },
        coords={"dim": dims, "delta": deltas},
        attrs={
            "tokens": parameters["tokens"],
            "renyi_delta": parameters["renyi_delta"],
            "renyi_tokens": parameters["renyi_tokens"],
        },
    )


def _printed(delta: Any, tokens: int) -> Any:
    """The count of the appendix for d = 3 as printed, (3 sin²(delta/2))^(-1), cut at n tokens in the same way."""
    measure = np.minimum(3 * np.sin(np.asarray(delta) / 2) ** 2, 1.0)
    return (1 - (1 - measure) ** tokens) / measure


def _judge_lemma(data: xr.Dataset) -> list[Finding]:
    tokens = int(data.attrs["tokens"])
    findings = []
    for dim in data.dim.values:
        means = [Mean.of(data.strong.sel(dim=dim, delta=delta)) for delta in data.delta.values]
        targets = data.expected.sel(dim=dim).values
        good = all(consistent(mean, target) for mean, target in zip(means, targets))
        shown = int(np.argmin(np.abs(data.delta.values - 0.5)))
        findings.append(
            Finding(
                claim=f"d = {dim}: strong centers number (1 - (1 - s)^n)/s on average, s the cap measure: "
                f"{targets[shown]:.3f} for delta = {data.delta.values[shown]:g}, n = {tokens}",
                measured=f"{means[shown]} (n = {tokens}, {means[shown].count} draws); largest |z| over "
                f"{len(means)} values of delta {max(abs(score(m, t)) for m, t in zip(means, targets)):.1f}",
                test="t test of every mean at level 0.001",
                verdict="agrees" if good else "disagrees",
            )
        )
    shown = int(np.argmin(np.abs(data.delta.values - 0.5)))
    sphere_mean = Mean.of(data.strong.sel(dim=3).isel(delta=shown))
    printed = float(_printed(data.delta.values[shown], tokens))
    findings.append(
        Finding(
            claim=f"an appendix prints (3 sin²(delta/2))^(-1) strong centers for d = 3: {printed:.2f} for delta = "
            f"{data.delta.values[shown]:g}",
            measured=f"{sphere_mean}, {abs(score(sphere_mean, printed)):.0f} standard errors away: a misprint, the "
            "cap measure of S² is "
            "sin²(delta/2)",
            test="t test at level 0.001",
            verdict="agrees" if consistent(sphere_mean, printed) else "disagrees",
        )
    )
    parked = Mean.of(data.parked)
    limit = theory.renyi_centers_limit(float(data.attrs["renyi_delta"]))
    near = abs(parked.value / limit - 1) < 0.01
    findings.append(
        Finding(
            claim=f"d = 2: Rényi centers tend to 0.7476 × 2 pi/delta = {limit:.3f} for delta = "
            f"{data.attrs['renyi_delta']:g}, "
            "many tokens, small delta",
            measured=f"{parked} with n = {int(data.attrs['renyi_tokens'])}",
            test="within 1 % of the limit (n and 1/delta are finite)",
            verdict="agrees" if near else "disagrees",
        )
    )
    return findings


def _draw_lemma(data: xr.Dataset) -> Figure:
    fine = np.linspace(float(data.delta.min()), float(data.delta.max()), 200)
    tokens = int(data.attrs["tokens"])
    curves = []
    for color, dim in zip(style.CATEGORICAL, data.dim.values):
        means = [Mean.of(data.strong.sel(dim=dim, delta=delta)) for delta in data.delta.values]
        error = [2 * mean.error for mean in means]
        curves.append(statements.Curve("", fine, theory.strong_centers(fine, int(dim), tokens), color=color))
        curves.append(statements.Curve(f"$d = {dim}$", data.delta.values, [m.value for m in means], error, color=color))
    curves.append(statements.Curve("$d = 3$ as printed", fine, _printed(fine, tokens), dashed=True, color=style.MUTED))
    return statements.plots(
        [
            statements.Plot(
                f"lines: Lemma C.1, points: {data.sizes['draw']} draws",
                r"separation $\delta$ (rad)",
                f"strong Rényi centers ($n = {tokens}$)",
                curves,
                yscale="log",
            )
        ],
        height=2.9,
    )


LEMMA_C1 = Recipe(
    name="lemma-c.1",
    title="Lemma C.1: how many strong Rényi centers a random sequence has",
    statement="For an i.i.d. sequence the expected number of strong centers is E[1/mu(B_delta(x))], for uniform "
    "tokens 1/sigma(B_delta); "
    "after n tokens (1 - (1 - sigma)^n)/sigma. On the circle the Rényi centers tend to Rényi's parking constant "
    "times 2 pi/delta.",
    parameters={
        "deltas": (0.25, 0.35, 0.5, 0.7, 1.0),
        "dims": (2, 3, 4),
        "tokens": 200,
        "draws": 2000,
        "renyi_delta": 0.1,
        "renyi_tokens": 5000,
        "renyi_draws": 200,
    },
    quick={"deltas": (0.5, 1.0), "renyi_tokens": 500},
    measure=_measure_lemma,
    judge=_judge_lemma,
    draw=_draw_lemma,
    uses=("seed", "members"),
    seconds=8,
)


# ---------------------------------------------------------------------------------------------------------- scaling


def _measure_scaling(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    dims, betas = list(parameters["dims"]), np.array(parameters["betas"])
    draws = settings.draws(parameters["draws"])
    counts = np.empty((2, len(dims), betas.size, draws))
    total = 2 * len(dims) * betas.size
    for kind, strong in enumerate((False, True)):
        for row, dim in enumerate(dims):
            for column, beta in enumerate(betas):
                done = ((kind * len(dims) + row) * betas.size + column) / total
                chosen = seeds(settings, f"counts-scaling {dim} {beta}", draws)
                delta = float(parameters["c"] / np.sqrt(beta))
                step = part(report, done, done + 1 / total)
                # The same number of tokens per cap for every beta: the sequence is as near to saturation everywhere.
                tokens = round(parameters["tokens_per_cap"] / sphere.cap_measure(delta, dim))
                counts[kind, row, column] = _counts(tokens, dim, delta, strong, chosen, step)
    return xr.Dataset(
        {"count": (("kind", "dim", "beta", "draw"), counts)},
        coords={"kind": ["Rényi", "strong"], "dim": dims, "beta": betas},
        attrs={"c": parameters["c"], "tokens_per_cap": parameters["tokens_per_cap"]},
    )


def _fit(data: xr.Dataset, kind: str, dim: int) -> Mean:
    means = [Mean.of(data["count"].sel(kind=kind, dim=dim, beta=beta)) for beta in data.beta.values]
    logs = np.log([mean.value for mean in means])
    errors = [max(mean.error, 1e-9) / mean.value for mean in means]
    return slope(np.log(data.beta.values), logs, errors)


def _judge_scaling(data: xr.Dataset) -> list[Finding]:
    findings = []
    for dim in data.dim.values:
        power = theory.center_exponent(int(dim))
        fits = {kind: _fit(data, kind, dim) for kind in ("Rényi", "strong")}
        close = all(abs(fit.value - power) < 0.04 * max(power, 1.0) for fit in fits.values())
        findings.append(
            Finding(
                claim=f"d = {dim}: both counts grow like beta^((d-1)/2) = beta^{power:g}",
                measured=f"exponents {fits['Rényi']} (Rényi) and {fits['strong']} (strong), beta from "
                f"{data.beta.values[0]:g} to {data.beta.values[-1]:g}",
                test="fitted exponent within 0.04 max(1, (d-1)/2): the law is asymptotic, caps are not yet flat",
                verdict="agrees" if close else "disagrees",
            )
        )
    return findings


def _draw_scaling(data: xr.Dataset) -> Figure:
    panels = []
    for kind in ("Rényi", "strong"):
        curves = []
        for color, dim in zip(style.CATEGORICAL, data.dim.values):
            means = [Mean.of(data["count"].sel(kind=kind, dim=dim, beta=beta)) for beta in data.beta.values]
            values = np.array([mean.value for mean in means])
            power = theory.center_exponent(int(dim))
            guide = values[-1] * (data.beta.values / data.beta.values[-1]) ** power
            curves.append(statements.Curve("", data.beta.values, guide, color=color))
            curves.append(
                statements.Curve(
                    rf"$d = {dim}$: $\beta^{{{power:g}}}$",
                    data.beta.values,
                    values,
                    [2 * m.error for m in means],
                    color=color,
                )
            )
        name = "Rényi centers" if kind == "Rényi" else "strong Rényi centers"
        label = rf"centers, $\delta = {data.attrs['c']:g}\beta^{{-1/2}}$"
        panels.append(
            statements.Plot(name, r"inverse temperature $\beta$", label, curves, "log", "log", legend="upper left")
        )
    return statements.plots(panels)


COUNTS_SCALING = Recipe(
    name="counts-scaling",
    title="The counts of centers grow like beta^((d-1)/2)",
    statement="With delta = c beta^(-1/2) the numbers of Rényi and of strong Rényi centers scale as beta^((d-1)/2).",
    parameters={
        "betas": (64.0, 128.0, 256.0, 512.0, 1024.0),
        "dims": (2, 3),
        "c": 4.0,
        "tokens_per_cap": 60,
        "draws": 40,
    },
    quick={"betas": (64.0, 128.0), "dims": (2,), "c": 4.0, "tokens_per_cap": 20},
    measure=_measure_scaling,
    judge=_judge_scaling,
    draw=_draw_scaling,
    uses=("seed", "members"),
    seconds=1,
)
