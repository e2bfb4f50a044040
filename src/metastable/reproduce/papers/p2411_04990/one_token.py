"""Lemma 3.1: one token runs to the leading eigenvectors, exponentially or like C/t."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere, theory
from metastable.figures import statements, style
from metastable.model import Attention
from metastable.reproduce.draws import seeds
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import Mean, consistent, slope
from metastable.run import simulate

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def _jordan(size: int, eigenvalue: float, dim: int) -> np.ndarray:
    """One Jordan block of `size` for `eigenvalue`, the rest of the diagonal well below it."""
    value = np.diag([eigenvalue] * size + [eigenvalue - 2.0] * (dim - size))
    value[np.arange(size - 1), np.arange(1, size)] = 1.0
    return value


def _distances(value: np.ndarray, start: np.ndarray, times: np.ndarray, settings: Settings) -> tuple[np.ndarray, float]:
    """Distance of the token to the line of the first basis vector at `times`, and the error against the closed form."""
    run = simulate(
        Attention(dim=len(value), beta=1.0, value=value),
        start,
        times=times,
        rtol=1e-11,
        atol=1e-13,
        engine=settings.engine,
    )
    exact = np.stack([theory.single_token(value, start, t) for t in times])
    error = float(sphere.distance(run.states, exact).max())
    # sin of the angle to the line, from the components across it: accurate where 1 - cos would cancel.
    return np.linalg.norm(run.states[:, 0, 1:], axis=-1), error


def _measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    starts = [
        sphere.uniform(1, dim=3, seed=seed)
        for seed in seeds(settings, "lemma-3.1", settings.draws(parameters["draws"]))
    ]
    gap_value = np.diag(parameters["eigenvalues"])
    linear = np.linspace(1.0, parameters["until"], 40)
    late = np.geomspace(1.0, parameters["until_jordan"], 161)
    rates, errors, decay = [], [], []
    for number, start in enumerate(starts):
        distance, error = _distances(gap_value, start, linear, settings)
        window = linear >= parameters["until"] / 2
        rates.append(-slope(linear[window], np.log(distance[window])).value)
        errors.append(error)
        decay.append(distance)
        report((number + 1) / (len(starts) + 2))
    blocks = [_distances(_jordan(size, 0.5, 3), starts[0], late, settings) for size in (2, 3)]
    report(1.0)
    return xr.Dataset(
        {
            "rate": ("draw", np.array(rates)),
            "distance": (("draw", "time"), np.array(decay)),
            "error": ("draw", np.array(errors)),
            "jordan_distance": (("size", "late"), np.array([block[0] for block in blocks])),
            "jordan_error": ("size", np.array([block[1] for block in blocks])),
        },
        coords={"time": linear, "late": late, "size": [2, 3]},
        attrs={"gap": theory.spectral_gap(gap_value)},
    )


def _judge(data: xr.Dataset) -> list[Finding]:
    rate, gap = Mean.of(data.rate), float(data.attrs["gap"])
    error = float(max(data.error.max(), data.jordan_error.max()))
    # The next eigenvalue leaves a bias that is exponentially small but not zero.
    near = abs(rate.value - gap) < 1e-3 or consistent(rate, gap)
    product = (data.jordan_distance * data.late)[:, -1].values
    wanted = np.array([theory.jordan_decay(2), theory.jordan_decay(3)], dtype=float)
    return [
        Finding(
            claim="x(t) = exp(tV) x(0)/|exp(tV) x(0)|",
            measured=f"largest distance between the simulated and the closed solution {error:.1e} rad",
            test="below 1e-6",
            verdict="agrees" if error < 1e-6 else "disagrees",
        ),
        Finding(
            claim=f"the distance to the leading eigenspace decays like exp(-ct), c = {gap:g} for this V",
            measured=f"c = {rate.value:.4f} ({rate.count} starts, spread {float(data.rate.std()):.1e})",
            test="slope of log distance over the second half, within 0.001 of the gap of the spectrum",
            verdict="agrees" if near else "disagrees",
        ),
        Finding(
            claim="with a Jordan block of size 2 or 3 the distance decays like C/t only",
            measured=f"t × distance = {product[0]:.4f} and {product[1]:.4f} at t = {float(data.late[-1]):.0f} "
            f"(limits {wanted[0]:g} and {wanted[1]:g})",
            test="within 1 % of the limit",
            verdict="agrees" if np.all(np.abs(product / wanted - 1) < 0.01) else "disagrees",
        ),
    ]


def _draw(data: xr.Dataset) -> Figure:
    shown = min(8, data.sizes["draw"])
    decay = [statements.Curve("", data.time.values, data.distance.values[k], color="#8fb3cf") for k in range(shown)]
    gap = float(data.attrs["gap"])
    guide = statements.Curve(
        rf"$e^{{-{gap:g}t}}$", data.time.values, np.exp(-gap * data.time.values), dashed=True, color=style.THEORY
    )
    blocks = [
        statements.Curve(
            f"Jordan block of size {int(size)}", data.late.values, data.jordan_distance.values[i] * data.late.values
        )
        for i, size in enumerate(data["size"])
    ]
    return statements.plots(
        [
            statements.Plot(
                f"simple eigenvalue: exponential ({shown} starts)",
                "depth $t$",
                r"distance to $\pm\xi$ (rad)",
                [*decay, guide],
                yscale="log",
                legend="upper right",
            ),
            statements.Plot(
                "Jordan blocks: like $C/t$",
                "depth $t$",
                r"$t\,\times$ distance to $\pm\xi$",
                blocks,
                xscale="log",
                legend="upper right",
            ),
        ]
    )


LEMMA_3_1 = Recipe(
    name="lemma-3.1",
    title="Lemma 3.1: a single token runs to the leading eigenvectors of V",
    statement="dx/dt = P_x(Vx) has the solution exp(tV)x(0)/|exp(tV)x(0)|. The distance to the generalised "
    "eigenspace of the largest "
    "real part decays exponentially, and inside it like C/t when there are Jordan blocks longer than 1.",
    parameters={"eigenvalues": (1.0, 0.5, -1.0), "until": 20.0, "until_jordan": 1e4, "draws": 20},
    measure=_measure,
    judge=_judge,
    draw=_draw,
    seconds=2,
)
