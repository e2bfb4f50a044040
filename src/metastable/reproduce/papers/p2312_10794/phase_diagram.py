"""The phase diagram: how often tokens have gathered, over depth and temperature, for d = 2 to 1024."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere, theory
from metastable._checks import FloatArray
from metastable.analysis import observe
from metastable.ensembles import ensemble
from metastable.figures import phase, style
from metastable.model import Attention, Full
from metastable.reproduce.draws import complete, seeds
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings
from metastable.reproduce.statistics import Mean

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

SAME = 0.999
"""Cosine from which on two tokens count as one (arXiv:2312.10794, Figure 4)."""


def uniform_in_span(tokens: int, dim: int, generator: np.random.Generator) -> FloatArray:
    """Uniform tokens of the sphere of R^dim, in coordinates of their span: (tokens, min(tokens, dim)).

    With Q = K = V = I tokens never leave the span of where they began, and only their inner products matter; so 32 tokens in
    dimension 1024 are 32 tokens in dimension 32, exactly.
    """
    start = sphere.uniform(tokens, dim=dim, seed=generator)
    if dim <= tokens:
        return start
    # Rows of the Cholesky factor of the Gram matrix have the same inner products.
    return sphere.retract(np.linalg.cholesky(start @ start.T))


def passing_time(beta: float, tokens: int, times: FloatArray, cosine: float = SAME) -> float:
    """When the equiangular flow from cosine 0 passes `cosine` (infinity: not by the last of `times`)."""
    path = theory.equiangular_flow(0.0, tokens, beta, times)
    return float(np.interp(cosine, path, times)) if path[-1] > cosine else float("inf")


def first_passing(times: FloatArray, cosines: FloatArray) -> FloatArray:
    """When each row of `cosines` (members, times) last rises through `SAME`, between output times (infinity: never)."""
    below = cosines < SAME
    last = below.shape[1] - 1 - np.argmax(below[:, ::-1], axis=1)  # the last output time at which it is below
    found = np.full(len(cosines), np.inf)
    for row in np.flatnonzero(~below[:, -1]):
        k = int(last[row])
        found[row] = np.interp(SAME, cosines[row, k : k + 2], times[k : k + 2]) if below[row].any() else 0.0
    return found


def _measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    tokens, dims = parameters["tokens"], list(parameters["dims"])
    betas, times = np.array(parameters["betas"]), np.linspace(0.0, parameters["until"], parameters["times"])
    draws = settings.draws(parameters["draws"])

    def pair(states: FloatArray, times: FloatArray, model: Attention) -> FloatArray:
        return (states[:, 0] * states[:, 1]).sum(axis=-1)

    one_pair = np.empty((len(dims), betas.size, draws, times.size))
    for i, dim in enumerate(dims):
        for j, beta in enumerate(betas):
            result = ensemble(
                Attention(dim=min(dim, tokens), beta=float(beta), mask=Full()),
                tokens=tokens,
                members=draws,
                times=times,
                seed=seeds(settings, f"phase-diagram {dim}", betas.size)[j],
                start=lambda generator, n, _, dim=dim: uniform_in_span(n, dim, generator),
                observe={"pair": observe.own(pair)},
                rtol=parameters["rtol"],
                engine=settings.engine,
                progress=False,
            )
            complete(result)
            one_pair[i, j] = result.pair.values
            report((i * betas.size + j + 1) / (len(dims) * betas.size))
    crossing = np.stack([[first_passing(times, one_pair[i, j]) for j in range(betas.size)] for i in range(len(dims))])
    fine = np.linspace(
        0.0, 4 * parameters["until"], 12001
    )  # beyond the grid, so that what is just inside can be compared
    between = np.linspace(betas[0], betas[-1], 8 * betas.size)
    return xr.Dataset(
        {
            "fraction": (("dim", "beta", "time"), (one_pair >= SAME).mean(axis=2)),
            "crossing": (("dim", "beta", "draw"), crossing),
            "curve": ("beta", [passing_time(float(beta), tokens, fine) for beta in betas]),
            "drawn_curve": ("drawn_beta", [passing_time(float(beta), tokens, fine[::4]) for beta in between]),
        },
        coords={"dim": dims, "beta": betas, "time": times, "drawn_beta": between},
        attrs={"tokens": tokens},
    )


def _boundary(data: xr.Dataset, dim: int) -> FloatArray:
    """Depth at which half of the draws have gathered, for each beta."""
    return np.quantile(data.crossing.sel(dim=dim).values, 0.5, axis=1, method="higher")


def _off(data: xr.Dataset, dim: int) -> FloatArray:
    """Distance of the boundary from the curve in cells, along depth or along beta, the smaller (NaN: neither is on the grid).

    Where the curve is steep in depth a small distance along beta is many cells of depth: `_deep` has those.
    """
    times, betas, curve = data.time.values, data.beta.values, data.curve.values
    boundary = _boundary(data, dim)
    cell_t, cell_b = times[1] - times[0], betas[1] - betas[0]
    off = np.full(betas.size, np.nan)
    inside = np.isfinite(curve)
    for j in np.flatnonzero(np.isfinite(boundary)):
        along_t = abs(boundary[j] - curve[j]) / cell_t if inside[j] else np.inf
        along_b = abs(betas[j] - np.interp(boundary[j], curve[inside], betas[inside])) / cell_b
        off[j] = min(along_t, along_b)
    # No boundary on the grid: the curve may be there only in its last cell.
    for j in np.flatnonzero(~np.isfinite(boundary) & (curve < times[-1])):
        off[j] = (times[-1] - curve[j]) / cell_t
    return off


def _deep(data: xr.Dataset, dim: int) -> FloatArray:
    """Difference of the depths of boundary and curve in cells, for each beta (NaN: one of them is not known)."""
    cell = data.time.values[1] - data.time.values[0]
    apart = np.abs(_boundary(data, dim) - np.where(np.isfinite(data.curve.values), data.curve.values, np.nan)) / cell
    return np.where(np.isfinite(apart), apart, np.nan)


def _judge(data: xr.Dataset) -> list[Finding]:
    findings = []
    large = [int(dim) for dim in data["dim"].values if dim >= 128]
    for dim in large:
        off = _off(data, dim)
        worst = float(np.nanmax(off))
        deep = _deep(data, dim)
        steep = (
            f"; the depths themselves differ by up to {np.nanmax(deep):.1f} cells, at beta = "
            f"{data.beta.values[int(np.nanargmax(deep))]:g}, and by more than one at {int((deep > 1).sum())} temperatures"
            if np.isfinite(deep).any()
            else ""
        )
        findings.append(
            Finding(
                claim=f"d = {dim}: the boundary between gathered and not is the curve on which the equiangular flow "
                "passes "
                f"{SAME}",
                measured=f"at {int(np.isfinite(off).sum())} temperatures the point at which half of "
                f"{data.sizes['draw']} draws have gathered is at most {worst:.2f} cells from the curve, "
                f"{np.nanmean(off):.2f} on average, along depth or along beta, whichever is nearer (a cell: "
                f"{data.time.values[1] - data.time.values[0]:g} in depth, "
                f"{data.beta.values[1] - data.beta.values[0]:g} in beta){steep}",
                test="within one cell of the curve, along depth or along beta, at every beta whose curve or boundary is "
                "on the grid",
                verdict="agrees" if worst <= 1.0 else "disagrees",
            )
        )
    findings.append(_sharpening(data))
    return findings


def relative_width(times: FloatArray) -> float:
    """(90 % - 10 %)/median of depths (beta, draws), mean over beta."""
    low, middle, high = np.quantile(times, (0.1, 0.5, 0.9), axis=1)
    return float(((high - low) / middle).mean())


def width_of(times: FloatArray, resamples: int = 400) -> Mean:
    """`relative_width` with its standard error, by drawing the draws of each beta again (bootstrap)."""
    generator = np.random.default_rng(0)
    betas, draws = times.shape
    again = [
        relative_width(np.take_along_axis(times, generator.integers(0, draws, (betas, draws)), axis=1))
        for _ in range(resamples)
    ]
    return Mean(relative_width(times), float(np.std(again, ddof=1)), draws)


def _sharpening(data: xr.Dataset) -> Finding:
    """Spread of the depth at which a draw gathers, relative to its median, by dimension; at the same temperatures for all."""
    every = np.isfinite(data.crossing.values).all(axis=(0, 2))  # where every draw has gathered, whatever d
    chosen = data.beta.values[every]
    widths = {int(dim): width_of(data.crossing.sel(dim=dim).values[every]) for dim in data["dim"].values if every.any()}
    ordered = list(widths.values())
    falls = all(a.value - b.value > -2 * np.hypot(a.error, b.error) for a, b in pairwise(ordered))
    strong = len(ordered) > 1 and ordered[0].value > 2 * ordered[-1].value
    return Finding(
        claim="the transition sharpens as d grows",
        measured="(90 % - 10 %)/median of the depth at which a pair has met, mean over beta = "
        + ", ".join(f"{beta:g}" for beta in chosen)
        + " (where every draw has gathered, whatever d): "
        + ", ".join(f"d = {dim}: {width}" for dim, width in widths.items()),
        test="falls from each d to the next (within two standard errors), and by more than a factor of 2 in all",
        verdict="not available" if len(ordered) < 2 else "agrees" if falls and strong else "disagrees",
    )


def _draw(data: xr.Dataset) -> Figure:
    with style.theme("print"):
        count = data.sizes["dim"]
        page, axes = style.figure(style.PAGE_WIDTH, 2.15, 1, count, squeeze=False, sharey=True)
        betas, curve, height = data.beta.values, data.drawn_curve.values, data.drawn_beta.values
        curve, height = curve[np.isfinite(curve)], height[np.isfinite(curve)]
        mesh: Any = None
        for letter, ax, dim in zip("abcdefgh", axes[0], data["dim"].values):
            mesh = phase.draw_phase(ax, data.time.values, betas, data.fraction.sel(dim=dim).values, limits=(0.0, 1.0))
            ax.plot(curve, height, color=style.RED, linewidth=1.2)
            if dim == data["dim"].values[-1]:
                ax.annotate(
                    "equiangular\ntokens",
                    (float(np.interp(4.0, height, curve)), 4.0),
                    xytext=(12, -14),
                    textcoords="offset points",
                    color=style.RED,
                    fontsize="small",
                )
            ax.set_xlim(0, float(data.time[-1]))
            ax.set_xlabel("depth $t$")
            style.panel(ax, letter, f"$d = {dim}$")
        axes[0][0].set_ylabel(r"inverse temperature $\beta$")
        bar = page.colorbar(mesh, ax=list(axes[0]), pad=0.01, aspect=25)
        bar.set_label("draws in which a pair has met")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return page


PHASE_DIAGRAM = Recipe(
    name="phase-diagram",
    title="Phase diagrams for d = 2 to 1024, and the curve of equiangular tokens",
    statement="n = 32 uniform tokens, full softmax attention, Q = K = V = I: the fraction of draws in which a fixed "
    "pair has the cosine "
    "0.999 or more, over depth and beta. As d grows the picture becomes 0 or 1, and the curve between (red) is where "
    "the flow of tokens "
    "with all cosines equal, from cosine 0, passes 0.999.",
    parameters={
        "tokens": 32,
        "dims": (2, 8, 32, 128, 1024),
        "betas": tuple(round(0.5 * k, 1) for k in range(1, 19)),
        "until": 30.0,
        "times": 61,
        "draws": 100,
        "rtol": 1e-5,
    },
    quick={"dims": (2, 128), "betas": (1.0, 2.0, 3.0), "tokens": 12, "times": 31, "until": 15.0},
    measure=_measure,
    judge=_judge,
    draw=_draw,
    revision=3,
    seconds=20,
    hindsight="The width of the transition was averaged for each d over the temperatures at which all of its own draws had "
    "gathered; these differ with d, so now it is averaged over those that all d have in common",
)
