"""Equiangular tokens: one cosine for all pairs, its path, and how fast the last gap closes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import theory
from metastable.figures import statements, style
from metastable.model import Attention, Full
from metastable.reproduce.draws import each, whole
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import slope
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

NAMES = {"softmax": "SA", "unnormalized": "USA"}
LAST = (1e-3, 1e-9)
"""Gaps between which the exponent is measured."""


def gap_of(states: Any) -> tuple[Any, Any]:
    """(largest, smallest) of 1 - cosine = |x_i - x_j|^2/2 over all pairs: exact for tokens that almost touch. Shapes (times,)."""
    n = states.shape[1]
    upper = np.triu_indices(n, 1)
    values = np.stack([0.5 * ((x[upper[0]] - x[upper[1]]) ** 2).sum(axis=1) for x in states])
    return values.max(axis=1), values.min(axis=1)


def _measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    tokens, betas = parameters["tokens"], list(parameters["betas"])
    kinds = list(NAMES)

    def one(job: tuple[Any, float]) -> tuple[Any, Any, Any, Any]:
        weights, beta = job
        rate = 2.0 if weights == "softmax" else 2.0 * np.exp(beta)
        # Long enough for the gap to fall from one to far below `LAST`, whatever the waiting at the start.
        wait = float(np.exp(beta)) / (2.0 if weights == "softmax" else 2.0 * np.exp(beta))
        times = np.linspace(0.0, 3.0 * wait + 26.0 / rate, parameters["times"])
        model = Attention(dim=tokens, beta=beta, mask=Full(), weights=weights)
        run = whole(simulate(model, np.eye(tokens), times=times, rtol=1e-9, atol=1e-13, engine=settings.engine))
        largest, smallest = gap_of(run.states)
        closed = 1.0 - theory.equiangular_flow(0.0, tokens, beta, times, weights=weights)
        return times, largest, smallest, closed

    results = each(one, [(weights, beta) for weights in kinds for beta in betas], report)
    shape = (len(kinds), len(betas), parameters["times"])
    return xr.Dataset(
        {
            name: (("weights", "beta", "step"), np.array([result[k] for result in results]).reshape(shape))
            for k, name in enumerate(("time", "gap", "smallest_gap", "closed_gap"))
        },
        coords={"weights": kinds, "beta": betas},
        attrs={"tokens": tokens},
    )


def _exponent(one: xr.Dataset) -> Any:
    late = (one.gap.values < LAST[0]) & (one.gap.values > LAST[1])
    return slope(one.time.values[late], -np.log(one.gap.values[late]))


def _judge(data: xr.Dataset) -> list[Finding]:
    gap, closed = data.gap.values, data.closed_gap.values
    resolved = closed > 1e-8  # below, the tolerance of the runs shows
    error = float(np.abs(gap[resolved] / closed[resolved] - 1).max())
    spread = float((gap - data.smallest_gap.values).max())
    findings = [
        Finding(
            claim="tokens with one common cosine keep one, and it obeys gamma' = 2 e^(beta gamma)(1 - gamma)((n-1) "
            "gamma + 1)"
            "/(e^beta + (n-1) e^(beta gamma)) (SA; USA: over n)",
            measured=f"{data.attrs['tokens']} orthogonal tokens: simulated and closed gap 1 - gamma differ by at most "
            f"{error:.1e} of "
            f"itself, down to 1e-8; cosines of different pairs by at most {spread:.1e}",
            test="relative difference below 1e-5, spread below 1e-8",
            verdict="agrees" if error < 1e-5 and spread < 1e-8 else "disagrees",
        )
    ]
    for weights, name in NAMES.items():
        wanted = [2.0 if weights == "softmax" else 2.0 * float(np.exp(beta)) for beta in data.beta.values]
        found = [_exponent(data.sel(weights=weights, beta=beta)) for beta in data.beta.values]
        worst = max(abs(mean.value / rate - 1) for mean, rate in zip(found, wanted))
        listed = ", ".join(f"beta = {b:g}: {m.value:.4f} ({r:.4f})" for b, m, r in zip(data.beta.values, found, wanted))
        law = "e^(-2t)" if weights == "softmax" else "e^(-2 e^beta t)"
        findings.append(
            Finding(
                claim=f"at the end the gap decays like {law} ({name})",
                measured=f"exponent measured (stated): {listed}",
                test="slope of ln(1 - gamma) between 1e-3 and 1e-9 within 0.5 %",
                verdict="agrees" if worst < 5e-3 else "disagrees",
            )
        )
    return findings


def _draw(data: xr.Dataset) -> Figure:
    panels = []
    for weights, name in NAMES.items():
        curves = []
        for number, beta in enumerate(data.beta.values):
            one = data.sel(weights=weights, beta=beta)
            color = style.CATEGORICAL[number]
            seen = one.gap.values > 1e-11
            time = one.time.values * (1.0 if weights == "softmax" else np.exp(beta))
            curves.append(statements.Curve(rf"$\beta = {beta:g}$", time[seen], one.gap.values[seen], color=color))
            curves.append(statements.Curve("", time[seen], one.closed_gap.values[seen], dashed=True, color=style.INK))
        panels.append(
            statements.Plot(
                f"{name}: simulated (colour), closed form (dashed)",
                "depth $t$" if weights == "softmax" else r"depth $t\, e^\beta$",
                r"gap $1 - \gamma$",
                curves,
                yscale="log",
                ylim=(1e-11, 2),
                legend="upper right" if weights == "softmax" else "center",
            )
        )
    return statements.plots(panels, height=2.5)


EQUIANGULAR = Recipe(
    name="equiangular",
    title="Equiangular tokens: the curve, and the exponents of the last gap",
    statement="Full attention keeps all cosines equal when they begin so, which leaves one equation; the gap 1 - "
    "gamma decays like e^(-2t) under "
    "softmax and e^(-2 e^beta t) without normalisation.",
    parameters={"tokens": 32, "betas": (0.0, 1.0, 2.0, 4.0), "times": 240},
    quick={"tokens": 6, "betas": (1.0,), "times": 80},
    measure=_measure,
    judge=_judge,
    draw=_draw,
    uses=("engine",),
    seconds=1,
    hindsight="Gaps were compared down to 1e-12 first. The tolerance of the runs shows there, so they are compared down to 1e-8",
)
