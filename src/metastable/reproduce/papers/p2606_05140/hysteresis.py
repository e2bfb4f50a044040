"""Hysteresis: tokens whose noise falls and rises, against the branches of stationary states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable.figures import style
from metastable.figures.curves import draw_error_points
from metastable.meanfield import Branch, branch, evolve
from metastable.reproduce.draws import each, part, seeds, whole
from metastable.reproduce.papers.p2606_05140.phases import model, onset_formula
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings, Verdict
from metastable.reproduce.statistics import Mean, consistent, score
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


BELOW = 0.97
"""Part of the fold's kappa below which the uniform state is looked for: nearer to the fold it is passed very slowly."""


def mean_order(states: Any) -> float:
    """Mean over states (times, tokens, 2) of |mean x|."""
    return float(np.mean([np.linalg.norm(x.mean(axis=0)) for x in states]))


def near_branch(ordered: Branch, kappa: float) -> Any:
    """The stable ordered density whose kappa is nearest."""
    turn = int(np.argmin(ordered.values))
    return ordered.states[turn + int(np.argmin(np.abs(ordered.values[turn:] - kappa)))].density


def ramp_of_density(ordered: Branch, beta: float, kappas: Any, rest: float) -> Any:
    """|mean x| of infinitely many tokens on the way down the same ramp: the mean over the second half of each rest."""
    density, order = near_branch(ordered, float(kappas[-1])), np.zeros(kappas.size)
    for k in range(kappas.size - 1, -1, -1):
        evolution = evolve(model(2, beta, float(kappas[k])), density, np.linspace(0.0, rest, 21), rtol=1e-5)
        density, order[k] = evolution.final, evolution.order_parameter[10:].mean()
    return order


def order_after(
    ordered: Branch, parameters: Mapping[str, Any], settings: Settings, kappa: float, fold: float, seed: int
) -> float:
    """|mean x| of tokens that begin as the ordered state 3 % above the fold and rest for long at a kappa below it."""
    rest, step = parameters["long_rest"], parameters["step"]
    start = near_branch(ordered, 1.03 * fold).sample(parameters["tokens"], seed=seed)
    times = step * np.unique(np.linspace(0.9 * rest / step, rest / step, 20).round())
    system = model(2, parameters["beta"], kappa)
    run = whole(simulate(system, start, times=times, step=step, seed=seed, engine=settings.engine, threads=1))
    return mean_order(run.states)


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
            run = whole(
                simulate(
                    system,
                    x,
                    times=times,
                    step=parameters["step"],
                    seed=seed + 7 * k,
                    engine=settings.engine,
                    threads=1,
                )
            )
            x = run.final
            order[k] = mean_order(run.states[len(times) // 2 :])
        return order

    jobs = [(way, seed) for way in ("up", "down") for seed in seeds(settings, "hysteresis", draws)]
    order = np.reshape(each(ramp, jobs, part(report, 0.0, 0.7)), (2, draws, kappas.size))
    fold = min(ordered.folds) if ordered.folds else float("nan")
    chosen = seeds(settings, "long rest", draws)
    rested = each(
        lambda job: order_after(ordered, parameters, settings, job[0], fold, job[1]),
        [(float(kappa), seed) for seed in chosen for kappa in kappas[kappas < BELOW * fold]],
        part(report, 0.7, 0.95),
    )
    return xr.Dataset(
        {
            "order": (("way", "draw", "kappa"), order),
            "density_order": ("kappa", ramp_of_density(ordered, beta, kappas, parameters["rest"])),
            "rested_order": (("draw", "below"), np.reshape(rested, (draws, -1))),
            "branch_kappa": ("point", ordered.values),
            "branch_order": ("point", ordered.order_parameter),
            "branch_stable": ("point", ordered.stable),
        },
        coords={"way": ["up", "down"], "kappa": kappas},
        attrs={
            "beta": beta,
            "tokens": tokens,
            "onset": start,
            "fold": fold,
            "rest": parameters["rest"],
            "long_rest": parameters["long_rest"],
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
                f"{a:.2f} with noise falling and {b:.2f} with noise rising (kappa = {k:.3f})"
                for a, b, k in zip(up[inside], down[inside], kappa[inside])
            ),
            test="with noise rising it is larger by more than 0.2 at every kappa in between, in the mean over ramps (under a "
            "condition: at some)",
            verdict=verdict,
        ),
        Finding(
            claim="the ordered tokens follow the stable branch",
            measured=f"|mean x| with noise rising is off the branch by at most {error.max():.3f}, {error.mean():.3f} "
            f"on average, at {int(seen.sum())} kappas "
            "more than 2 % above the fold",
            test="within 0.05 everywhere",
            verdict="agrees" if error.max() < 0.05 else "disagrees",
        ),
        *_below_the_fold(data),
    ]


def _below_the_fold(data: xr.Dataset) -> list[Finding]:
    """What is left of order where no ordered state is: after a long rest, after a rest of the ramp, and for the density."""
    start, fold, tokens, rest = (float(data.attrs[name]) for name in ("onset", "fold", "tokens", "rest"))
    kappa = data.kappa.values
    below = kappa < BELOW * fold
    rising = data.order.sel(way="down").values[:, below]
    falling = data.order.sel(way="up").values[:, below].mean(axis=0)
    limit = 3.0 / np.sqrt(tokens) / np.sqrt(1 - kappa[below] / start)
    density = data.density_order.values[below]
    means = [Mean.of(row) for row in rising.T]
    held = density > limit
    alike = all(consistent(mean, float(value)) for mean, value in zip(means, density))
    apart = ", ".join(f"{score(mean, float(value)):+.1f}" for mean, value in zip(means, density))
    listed = ", ".join(f"{value:.3f} (kappa = {k:.3f})" for value, k in zip(limit, kappa[below]))
    fluctuations = f"3 n^(-1/2)/(1 - kappa/kappa_#)^(1/2), as fluctuations near the onset are: {listed}"
    uniform = bool(np.all(data.rested_order.values < limit) and np.all(falling < limit))
    return [
        Finding(
            claim="below the fold only the uniform state is left",
            measured="|mean x| more than 3 % below the fold: tokens that begin as the ordered state 3 % above the fold and "
            f"rest for {data.attrs['long_rest']:g} end at {', '.join(str(Mean.of(row)) for row in data.rested_order.values.T)}; "
            f"with noise falling it is {', '.join(f'{value:.3f}' for value in falling)}",
            test=f"below {fluctuations}; in every draw after the rest",
            verdict="agrees" if uniform else "disagrees",
        ),
        Finding(
            claim=f"it is passed slowly: after a rest of {rest:g} only, even infinitely many tokens keep order there",
            measured=f"|mean x| of the density, noise rising: {', '.join(f'{value:.3f}' for value in density)}; tokens "
            f"{', '.join(str(mean) for mean in means)} ({data.sizes['draw']} draws; tokens minus density over the standard "
            f"error {apart})",
            test="the density is above the fluctuations of the line before at some kappa, and no mean of tokens differs "
            "from it (t test at the level 0.001)",
            verdict="agrees" if held.any() and alike else "disagrees",
            ours=True,
        ),
    ]


def _draw_ramps(data: xr.Dataset) -> Figure:
    start, edge = float(data.attrs["onset"]), float(data.attrs["fold"]) / float(data.attrs["onset"])
    fold = int(np.argmin(data.branch_kappa.values))
    x, y = data.branch_kappa.values / start, data.branch_order.values
    kappa = data.kappa.values / start
    dash = (0, (4, 2))
    with style.theme("print"):
        page, ax = style.figure(4.4, 3.5)
        ax.plot(x[fold:], y[fold:], color=style.INK, label="stable state, by continuation")
        ax.plot(x[: fold + 1], y[: fold + 1], color=style.INK, linestyle=dash, label="unstable state")
        ax.plot([float(kappa[0]) - 0.02, 1.0], [0, 0], color=style.INK)
        ax.plot([1.0, float(kappa[-1]) + 0.02], [0, 0], color=style.INK, linestyle=dash)
        ways = (
            ("up", style.BLUE, "noise falling (to the right)"),
            ("down", style.VERMILLION, "noise rising (to the left)"),
        )
        for way, color, label in ways:
            values = data.order.sel(way=way)
            error = values.std("draw", ddof=1).values / np.sqrt(data.sizes["draw"]) if data.sizes["draw"] > 1 else None
            name = f"{data.attrs['tokens']} tokens, {label}"
            draw_error_points(ax, kappa, values.mean("draw").values, error, color=color, label=name)
        ax.plot(
            kappa,
            data.density_order.values,
            color=style.VERMILLION,
            linewidth=0.9,
            linestyle=(0, (1, 1.5)),
            label="infinitely many tokens, noise rising",
        )
        for place, name in ((edge, "fold"), (1.0, r"$\kappa_\#$")):
            ax.axvline(place, color=style.MUTED, linewidth=0.6, zorder=1)
            ax.text(place, 1.01, name, ha="center", va="bottom", fontsize="small", color=style.MUTED)
        ax.set_xlim(float(kappa[0]) - 0.01, float(kappa[-1]) + 0.01)
        ax.set_ylim(-0.03, 1.0)
        ax.set_xlabel(r"$\kappa/\kappa_\#$, with $\kappa = 2/\sigma^2$: less noise $\sigma$ to the right")
        ax.set_ylabel("order |mean $x$|  (0: uniform, 1: one point)")
        style.grid(ax)
        page.legend(loc="outside lower center", ncols=2, fontsize="x-small")
    return page


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
        "long_rest": 20.0,
        "step": 0.005,
        "draws": 12,
    },
    quick={"tokens": 60, "shares": (0.8, 0.92, 1.1), "rest": 0.3, "long_rest": 2.0},
    measure=_measure_ramps,
    judge=_judge_ramps,
    draw=_draw_ramps,
    revision=3,
    seconds=30,
    hindsight="300 tokens became 1000, two draws became twelve, and the uniform state is looked for more than 3 % "
    "below the fold, not 0.5 %. It was "
    "looked for after the short rests of the ramp first and was not there: 1000 tokens kept 0.33 ± 0.10 (two draws) at 0.96 of "
    "the fold's kappa. The long rest was added then and decides now, since the statement is on states that last. A guess of "
    "ours that the density keeps as much as the tokens to 0.1 could not be decided by two draws; the last line replaces it",
)
