"""Figure 4 and Lemma A.1: the interaction function h and where it peaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import theory
from metastable.figures import figure_4, statements, style
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def _peak(beta: float, tolerance: float) -> float:
    """Place of the maximum of h on [0, pi], found numerically."""
    from scipy.optimize import minimize_scalar

    grid = np.linspace(0.0, np.pi, 2001)
    best = int(np.argmax(theory.interaction(grid, beta)))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)])
    found: Any = minimize_scalar(
        lambda x: -theory.interaction(x, beta), bounds=bounds, method="bounded", options={"xatol": tolerance}
    )
    return float(found.x)


def _measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    x = np.linspace(-np.pi, np.pi, 801)
    betas = np.geomspace(parameters["betas"][0], parameters["betas"][1], parameters["number_of_betas"])
    peaks = np.array([_peak(beta, parameters["tolerance"]) for beta in betas])
    curves = np.stack([theory.interaction(x, beta) for beta in betas])
    report(1.0)
    return xr.Dataset(
        {
            "interaction": ("x", theory.interaction(x, parameters["beta"])),
            "curves": (("beta", "x"), curves),
            "peak": ("beta", peaks),
            "predicted": ("beta", np.array([theory.interaction_peak(beta) for beta in betas])),
            "peak_of_figure": ((), _peak(parameters["beta"], parameters["tolerance"])),
        },
        coords={"x": x, "beta": betas},
        attrs={"figure_beta": parameters["beta"]},
    )


def _judge_figure(data: xr.Dataset) -> list[Finding]:
    beta = data.attrs["figure_beta"]
    found, formula = float(data.peak_of_figure), theory.interaction_peak(beta)
    close = abs(found - formula) < 1e-6
    return [
        Finding(
            claim=f"for beta = {beta:g} the interaction h has one peak, at tau* = arccos((-1 + sqrt(1 + 4 beta²))/(2 "
            "beta)) "
            f"= {formula:.6f}",
            measured=f"maximum found numerically at {found:.6f}, height {theory.interaction(found, beta):.6f}",
            test="difference below 1e-6",
            verdict="agrees" if close else "disagrees",
            computed=True,
        )
    ]


def _judge_lemma(data: xr.Dataset) -> list[Finding]:
    worst = float(np.abs(data.peak - data.predicted).max())
    x, curves = data.x.values, data.curves.values
    rise = np.diff(curves, axis=1)
    middle = 0.5 * (x[1:] + x[:-1])
    step = x[1] - x[0]
    wrong = 0
    for slopes, peak in zip(rise, data.predicted.values):
        before, after = (middle > 0) & (middle < peak - step), (middle > peak + step) & (middle < np.pi)
        wrong += int((slopes[before] <= 0).sum() + (slopes[after] > 0).sum())
    odd = float(np.abs(curves + curves[:, ::-1]).max())
    ratio = float(data.peak[-1] * np.sqrt(data.beta[-1]))
    return [
        Finding(
            claim="the maximum of h on [0, pi] is at cos tau* = (-1 + sqrt(1 + 4 beta²))/(2 beta)",
            measured=f"largest difference {worst:.1e} rad for {data.sizes['beta']} values of beta from "
            f"{float(data.beta[0]):g} to {float(data.beta[-1]):g}",
            test="difference below 1e-6",
            verdict="agrees" if worst < 1e-6 else "disagrees",
            computed=True,
        ),
        Finding(
            claim="h is odd, increases before tau* and decreases after it",
            measured=f"{wrong} wrong signs of the slope; |h(x) + h(-x)| at most {odd:.1e}",
            test="no wrong sign on a grid of 801 points",
            verdict="agrees" if wrong == 0 and odd < 1e-12 else "disagrees",
            computed=True,
        ),
        Finding(
            claim="tau* is asymptotically beta^(-1/2)",
            measured=f"tau* beta^(1/2) = {ratio:.5f} at beta = {float(data.beta[-1]):g}",
            test="within 1/beta of 1",
            verdict="agrees" if abs(ratio - 1) < 1 / float(data.beta[-1]) else "disagrees",
            computed=True,
        ),
    ]


def _draw_figure(data: xr.Dataset) -> Figure:
    beta, peak = data.attrs["figure_beta"], float(data.peak_of_figure)
    return figure_4.figure_4(
        data.x.values,
        data.interaction.values,
        beta=beta,
        peak=peak,
        height=theory.interaction(peak, beta),
        betas=data.beta.values,
        peaks=data.peak.values,
        predicted=data.predicted.values,
    )


def _draw_lemma(data: xr.Dataset) -> Figure:
    chosen = [int(np.argmin(np.abs(np.log(data.beta.values / beta)))) for beta in (1.0, 10.0, 100.0, 1000.0)]
    curves = []
    for index in chosen:
        beta, peak = float(data.beta[index]), float(data.predicted[index])
        x = np.linspace(0.0, min(5.0, np.pi * np.sqrt(beta)), 300)
        shape = theory.interaction(x / np.sqrt(beta), beta) / theory.interaction(peak, beta)
        curves.append(statements.Curve(rf"$\beta = {beta:.0f}$", x, shape))
    scaled = data.peak.values * np.sqrt(data.beta.values)
    formula = data.predicted.values * np.sqrt(data.beta.values)
    return statements.plots(
        [
            statements.Plot(
                "one peak for every $\\beta$",
                r"distance in units of $\beta^{-1/2}$",
                r"interaction $h\,/\,h(\tau^*)$",
                curves,
            ),
            statements.Plot(
                "its place is about $\\beta^{-1/2}$",
                "inverse temperature $\\beta$",
                r"$\tau^*\,\beta^{1/2}$",
                [
                    statements.Curve("found numerically", data.beta.values, scaled, points=True, color=style.MEASURED),
                    statements.Curve("Lemma A.1", data.beta.values, formula, color=style.THEORY),
                ],
                xscale="log",
            ),
        ]
    )


_PARAMETERS = {"beta": 10.0, "betas": (1.0, 1e4), "number_of_betas": 25, "tolerance": 1e-12}

FIGURE_4 = Recipe(
    name="figure-4",
    title="Figure 4: the interaction function h for beta = 10 and its peak",
    statement="Two tokens at distance x attract with h(x) = exp(beta (cos x - 1)) sin x: strongest at a distance tau* "
    "of about "
    "beta^(-1/2), negligible further away. That is why clusters stop seeing each other.",
    parameters=_PARAMETERS,
    measure=_measure,
    judge=_judge_figure,
    draw=_draw_figure,
    uses=(),
    revision=2,
    seconds=1,
)

LEMMA_A1 = Recipe(
    name="lemma-a.1",
    title="Lemma A.1: the interaction has one peak, at a distance of about beta^(-1/2)",
    statement="h is odd, its maximum on [0, pi] is at tau* with cos tau* = (-1 + sqrt(1 + 4 beta²))/(2 beta); it "
    "increases before "
    "and decreases after.",
    parameters=_PARAMETERS,
    measure=_measure,
    judge=_judge_lemma,
    draw=_draw_lemma,
    uses=(),
    revision=2,
    seconds=1,
)
