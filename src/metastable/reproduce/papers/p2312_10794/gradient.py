"""The energy: unnormalised attention climbs it along its gradient, softmax attention climbs it too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable.figures import statements
from metastable.kernels.select import velocity
from metastable.model import Attention, Full
from metastable.reproduce.draws import each, part, seeds, whole
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import percent
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def energy(x: Any, beta: float) -> Any:
    """E = (1/(2 beta n^2)) sum_ij exp(beta <x_i, x_j>) (arXiv:2312.10794, section 3.3); x (n, d), also complex."""
    return np.exp(beta * (x @ x.T)).sum() / (2 * beta * len(x) ** 2)


def gradient_defect(x: Any, beta: float) -> float:
    """Largest difference between the velocity of USA and n times the gradient of E along the sphere, by complex steps."""
    moving = velocity(Attention(dim=x.shape[1], beta=beta, mask=Full(), weights="unnormalized"), x)
    gradient, step = np.empty_like(x), 1e-30
    for index in np.ndindex(*x.shape):
        shifted = x.astype(complex)
        shifted[index] += 1j * step
        gradient[index] = energy(shifted, beta).imag / step
    gradient -= (gradient * x).sum(axis=1, keepdims=True) * x
    return float(np.abs(moving - len(x) * gradient).max() / max(1.0, np.abs(moving).max()))


def _measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    draws, dims, betas = settings.draws(parameters["draws"]), parameters["dims"], parameters["betas"]
    chosen = seeds(settings, "gradient-flow", draws)
    jobs = [(dim, beta, seed) for dim in dims for beta in betas for seed in chosen]
    defects = each(
        lambda job: gradient_defect(sphere.uniform(parameters["small"], dim=job[0], seed=job[2]), job[1]),
        jobs,
        part(report, 0.0, 0.3),
    )
    kinds = ("unnormalized", "softmax")

    def climb(job: tuple[str, int, float, int]) -> Any:
        weights, dim, beta, seed = job
        # Speeds without normalisation are exp(beta) times larger: the same stretch of the path is shown.
        until = parameters["until"] * (1.0 if weights == "softmax" else np.exp(-beta))
        times = np.concatenate([[0.0], np.geomspace(1e-3 * until, until, parameters["times"] - 1)])
        model = Attention(dim=dim, beta=beta, mask=Full(), weights=weights)
        run = whole(
            simulate(
                model,
                sphere.uniform(parameters["tokens"], dim=dim, seed=seed),
                times=times,
                rtol=1e-8,
                atol=1e-11,
                engine=settings.engine,
                max_steps=1_000_000,
            )
        )
        return np.array([energy(x, beta) for x in run.states]) / (np.exp(beta) / (2 * beta))

    runs = each(climb, [(kind, *job) for kind in kinds for job in jobs], part(report, 0.3, 1.0))
    shape = (len(kinds), len(dims), len(betas), draws, parameters["times"])
    return xr.Dataset(
        {
            "defect": (("dim", "beta", "draw"), np.array(defects).reshape(shape[1:-1])),
            "energy": (("weights", "dim", "beta", "draw", "step"), np.array(runs).reshape(shape)),
        },
        coords={"weights": list(kinds), "dim": list(dims), "beta": list(betas)},
        attrs={"until": parameters["until"]},
    )


def _judge(data: xr.Dataset) -> list[Finding]:
    defect = float(data.defect.max())
    findings = [
        Finding(
            claim="USA is the gradient flow of E = (1/(2 beta n^2)) sum exp(beta <x_i, x_j>): dx_i/dt = n grad_i E",
            measured=f"largest difference {defect:.1e} over {data.defect.size} random states",
            test="below 1e-12 (the gradient is taken from the energy by complex steps)",
            verdict="agrees" if defect < 1e-12 else "disagrees",
            computed=True,
        )
    ]
    for weights, name in (("unnormalized", "USA"), ("softmax", "SA")):
        values = data.energy.sel(weights=weights).values
        least = np.diff(values, axis=-1).min(axis=-1).ravel()
        never = int((least > -1e-9).sum())
        findings.append(
            Finding(
                claim=f"the energy never falls under {name}",
                measured=f"it never fell in {percent(never, least.size)} runs; least increment {least.min():.1e} of "
                "the largest energy",
                test="no increment below -1e-9 (the tolerance of the runs) in any run",
                verdict="agrees" if never == least.size else "disagrees",
            )
        )
    return findings


def _draw(data: xr.Dataset) -> Figure:
    panels = []
    dim = int(data["dim"].values[0])
    steps = data.sizes["step"]
    times = np.concatenate([[0.0], np.geomspace(1e-3, 1.0, steps - 1)]) * float(data.attrs["until"])
    for weights, name in (("unnormalized", r"USA, time in units of $e^{-\beta}$"), ("softmax", "SA")):
        curves = []
        for number, beta in enumerate(data.beta.values):
            values = data.energy.sel(weights=weights, dim=dim, beta=beta).values
            for k, row in enumerate(values[:4]):
                label = rf"$\beta = {beta:g}$" if k == 0 else ""
                color = statements.style.CATEGORICAL[number]
                curves.append(statements.Curve(label, times[1:], row[1:], color=color))
        panels.append(
            statements.Plot(
                name, "depth $t$", r"energy $E / E_{\max}$", curves, xscale="log", ylim=(0, 1.03), legend="upper left"
            )
        )
    return statements.plots(panels, height=2.4, shared=True)


GRADIENT_FLOW = Recipe(
    name="gradient-flow",
    title="Attention without normalisation is a gradient flow",
    statement="USA follows the gradient of the interaction energy E = (1/(2 beta n^2)) sum exp(beta <x_i, x_j>) "
    "uphill; softmax attention follows "
    "it in another metric, so E never falls there either.",
    parameters={
        "dims": (2, 3, 8),
        "betas": (0.5, 2.0, 8.0),
        "small": 8,
        "tokens": 24,
        "draws": 8,
        "until": 300.0,
        "times": 120,
    },
    quick={"dims": (2, 3), "betas": (2.0,), "until": 20.0, "times": 30},
    measure=_measure,
    judge=_judge,
    draw=_draw,
    revision=2,
    seconds=3,
)
