"""Hysteresis: tokens whose noise falls and rises, against the branches of stationary states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable.figures import statements, style
from metastable.meanfield import branch
from metastable.reproduce.draws import each, seeds
from metastable.reproduce.papers.p2606_05140.phases import model, onset_formula
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings, Verdict
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def _measure_ramps(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    beta, tokens = parameters["beta"], parameters["tokens"]
    start = onset_formula(2, beta)
    ordered = branch(model(2, beta), "kappa", (0.3 * start, 1.6 * start))
    kappas = start * np.array(parameters["shares"])
    draws = settings.draws(parameters["draws"])

    def ramp(job: tuple[str, int]) -> Any:
        way, seed = job
        # Up: from uniform tokens, noise falling. Down: from one point, noise rising.
        x = sphere.uniform(tokens, dim=2, seed=seed) if way == "up" else np.tile([[1.0, 0.0]], (tokens, 1))
        order = np.full(kappas.size, np.nan)
        places = range(kappas.size) if way == "up" else range(kappas.size - 1, -1, -1)
        for k in places:
            system = model(2, beta, float(kappas[k]))
            steps = round(parameters["rest"] / parameters["step"])
            times = parameters["step"] * np.unique(np.linspace(1, steps, 40).round())
            run = simulate(
                system, x, times=times, step=parameters["step"], seed=seed + 7 * k, engine=settings.engine, threads=1
            )
            x = run.final
            order[k] = np.mean([np.linalg.norm(state.mean(axis=0)) for state in run.states[len(times) // 2 :]])
        return order

    jobs = [(way, seed) for way in ("up", "down") for seed in seeds(settings, "hysteresis", draws)]
    order = np.reshape(each(ramp, jobs, report), (2, draws, kappas.size))
    return xr.Dataset(
        {
            "order": (("way", "draw", "kappa"), order),
            "branch_kappa": ("point", ordered.values),
            "branch_order": ("point", ordered.order_parameter),
            "branch_stable": ("point", ordered.stable),
        },
        coords={"way": ["up", "down"], "kappa": kappas},
        attrs={
            "beta": beta,
            "tokens": tokens,
            "onset": start,
            "fold": min(ordered.folds) if ordered.folds else float("nan"),
        },
    )


def _stable_order(data: xr.Dataset, kappa: Any) -> Any:
    """Order parameter of the stable ordered branch at the given kappa (NaN below its fold)."""
    fold = int(np.argmin(data.branch_kappa.values))
    x, y = data.branch_kappa.values[fold:], data.branch_order.values[fold:]
    return np.interp(kappa, x, y, left=np.nan)


def _judge_ramps(data: xr.Dataset) -> list[Finding]:
    start, fold, tokens = (float(data.attrs[name]) for name in ("onset", "fold", "tokens"))
    kappa = data.kappa.values
    order = data.order.mean("draw")
    inside = (kappa > fold * 1.005) & (kappa < start * 0.995)
    up, down = order.sel(way="up").values, order.sel(way="down").values
    gap = down[inside] - up[inside]
    theory = _stable_order(data, kappa)
    seen = np.isfinite(theory) & (kappa > fold * 1.02)
    error = np.abs(down[seen] - theory[seen])
    # Just below the fold tokens pass the place where it was very slowly.
    below = kappa < 0.97 * fold
    low, high = up[below], down[below]
    noise = 3.0 / np.sqrt(tokens)
    split = float(gap.max()) if gap.size else 0.0
    verdict: Verdict = (
        "agrees" if gap.size and gap.min() > 0.2 else "agrees under a condition" if split > 0.2 else "disagrees"
    )
    return [
        Finding(
            claim=f"beta = {data.attrs['beta']:g} is above beta_*: between the fold and kappa_# both the uniform and "
            "the ordered state last (hysteresis)",
            measured=f"{int(tokens)} tokens, {data.sizes['draw']} ramps each way; between kappa = {fold:.4f} and "
            f"{start:.4f} |mean x| is "
            + ", ".join(
                f"{a:.2f} up and {b:.2f} down (kappa = {k:.3f})"
                for a, b, k in zip(up[inside], down[inside], kappa[inside])
            ),
            test="down exceeds up by more than 0.2 at every kappa in between (under a condition: at some)",
            verdict=verdict,
        ),
        Finding(
            claim="the ordered tokens follow the stable branch",
            measured=f"|mean x| of the ramp down is off the branch by at most {error.max():.3f}, {error.mean():.3f} "
            f"on average, at {int(seen.sum())} kappas "
            "more than 2 % above the fold",
            test="within 0.05 everywhere",
            verdict="agrees" if error.max() < 0.05 else "disagrees",
        ),
        Finding(
            claim="below the fold only the uniform state is left",
            measured=f"|mean x| more than 3 % below the fold: up {', '.join(f'{v:.3f}' for v in low)}; down "
            f"{', '.join(f'{v:.3f}' for v in high)} (n^(-1/2) = {1 / np.sqrt(tokens):.3f})",
            test="both ways below 3 n^(-1/2), amplified by 1/(1 - kappa/kappa_#)^(1/2) as fluctuations near the onset are",
            verdict="agrees"
            if np.all(np.maximum(low, high) < noise / np.sqrt(1 - kappa[below] / start))
            else "disagrees",
        ),
    ]


def _draw_ramps(data: xr.Dataset) -> Figure:
    start = float(data.attrs["onset"])
    fold = int(np.argmin(data.branch_kappa.values))
    x, y = data.branch_kappa.values / start, data.branch_order.values
    kappa = data.kappa.values / start
    curves = [
        statements.Curve("stable states", x[fold:], y[fold:], color=style.INK),
        statements.Curve("unstable states", x[: fold + 1], y[: fold + 1], dashed=True, color=style.INK),
        statements.Curve("", [float(kappa[0]), 1.0], [0, 0], color=style.INK),
        statements.Curve("", [1.0, float(kappa[-1])], [0, 0], dashed=True, color=style.INK),
    ]
    for way, color, label in (
        ("up", style.BLUE, "tokens, noise falling"),
        ("down", style.VERMILLION, "tokens, noise rising"),
    ):
        values = data.order.sel(way=way)
        error = values.std("draw", ddof=1).values / np.sqrt(data.sizes["draw"]) if data.sizes["draw"] > 1 else None
        curves.append(statements.Curve(label, kappa, values.mean("draw").values, error, points=True, color=color))
    plot = statements.Plot(
        rf"$d = 2$, $\beta = {data.attrs['beta']:g}$, {data.attrs['tokens']} tokens",
        r"$\kappa/\kappa_\#$ (less noise to the right)",
        "order parameter |mean $x$|",
        curves,
        xlim=(float(kappa[0]) - 0.005, float(kappa[-1]) + 0.005),
        ylim=(-0.03, 1),
        legend="center right",
    )
    return statements.plots([plot], height=3.2)


HYSTERESIS = Recipe(
    name="hysteresis",
    title="Hysteresis: tokens with noise that rises and falls",
    statement="Above beta_* the order parameter |mean x| jumps, and at different kappa on the way up and on the way "
    "down. Tokens with noise on the circle, ramped "
    "both ways, against the branches of stationary states.",
    parameters={
        "beta": 5.0,
        "tokens": 1000,
        "shares": (0.82, 0.86, 0.89, 0.91, 0.93, 0.95, 0.97, 0.99, 1.02, 1.06, 1.1),
        "rest": 2.0,
        "step": 0.005,
        "draws": 2,
    },
    quick={"tokens": 60, "shares": (0.8, 0.92, 1.1), "rest": 0.3},
    measure=_measure_ramps,
    judge=_judge_ramps,
    draw=_draw_ramps,
    seconds=40,
)
