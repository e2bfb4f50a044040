"""The plane of temperature and noise: where the uniform state is unstable, where ordered states begin, and which of both wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import optimize, special

from metastable.figures import style
from metastable.meanfield import Branch, StationaryState, branch, evolve, stationary
from metastable.reproduce.draws import each, part
from metastable.reproduce.papers.p2606_05140.phases import model, onset_formula, threshold_formula
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def free_energy(state: StationaryState) -> float:
    """F = (1/kappa) integral mu ln mu - (1/(2 beta)) double integral W mu mu, less that of the uniform law.

    USA with noise descends F. In harmonics the double integral is sum_l c_l a_l^2, c_l = Gamma(d/2)(2/beta)^(d/2-1) I_(l+d/2-1)(beta).
    """
    density, beta = state.density, float(state.model.beta or 0.0)
    half = density.dim / 2 - 1
    degree = np.arange(1, density.coefficients.size)
    eigenvalues = special.gamma(half + 1) * (2 / beta) ** half * special.iv(degree + half, beta)
    values = np.maximum(density.values, 1e-300)
    entropy = float(density.weights @ (values * np.log(values)))
    return entropy / state.kappa - float(eigenvalues @ density.coefficients[1:] ** 2) / (2 * beta)


def equal_energy(found: Branch) -> float:
    """kappa at which the stable ordered state and the uniform one have the same free energy; where the branch does not turn back
    that is its onset.
    """
    if not found.folds:
        return float(found.values[0])
    fold = int(np.argmin(found.values))
    upper = [state for state in found.states[fold + 1 :] if state.stable]
    energies = np.array([free_energy(state) for state in upper])
    lower = np.flatnonzero((energies[:-1] > 0) & (energies[1:] <= 0))
    if not lower.size:
        return float("nan")
    left, right = upper[int(lower[0])], upper[int(lower[0]) + 1]

    def energy(kappa: float) -> float:
        return free_energy(stationary(left.model.replace(noise=float(np.sqrt(2.0 / kappa))), left))

    found_at: Any = optimize.brentq(energy, left.kappa, right.kappa, xtol=1e-9)
    return float(found_at)


def lines(dim: int, beta: float) -> tuple[float, float, float]:
    """(kappa_#, kappa of the fold, kappa of equal free energy) by continuation; without a fold all three are the onset."""
    start = onset_formula(dim, beta)
    found = branch(model(dim, beta), "kappa", (0.3 * start, 1.02 * start))
    begun = float(found.values[0])
    return begun, min(found.folds) if found.folds else begun, equal_energy(found)


def lasts(dim: int, beta: float, share: float, horizon: float) -> float:
    """|mean x| at the end of the density's own evolution at `share` times the fold's kappa, from the ordered state 3 % above it.

    The Fokker-Planck equation in time: no equation of stationary states is solved on the way.
    """
    start = onset_formula(dim, beta)
    found = branch(model(dim, beta), "kappa", (0.3 * start, 1.02 * start))
    fold, turn = min(found.folds), int(np.argmin(found.values))
    above = turn + int(np.argmin(np.abs(found.values[turn:] - 1.03 * fold)))
    evolution = evolve(model(dim, beta, share * fold), found.states[above].density, [0.0, horizon * fold], rtol=1e-5)
    return float(evolution.final.order_parameter)


def _measure(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    dims, shares = [int(dim) for dim in parameters["dims"]], np.array(parameters["shares"])
    edges = [threshold_formula(dim) for dim in dims]
    jobs = [(dim, float(share * edge)) for dim, edge in zip(dims, edges) for share in shares]
    found = np.reshape(each(lambda job: lines(*job), jobs, part(report, 0.0, 0.7)), (len(dims), shares.size, 3))
    checks = [(int(dim), float(beta)) for dim, beta in parameters["checks"]]
    sides = np.array(parameters["sides"])
    order = each(
        lambda job: lasts(*job[0], job[1], parameters["horizon"]),
        [(case, float(side)) for case in checks for side in sides],
        part(report, 0.7, 1.0),
    )
    return xr.Dataset(
        {
            "beta": (("dim", "share"), np.outer(edges, shares)),
            **{name: (("dim", "share"), found[..., k]) for k, name in enumerate(("onset", "fold", "equal"))},
            "threshold": ("dim", edges),
            "final_order": (("check", "side"), np.reshape(order, (len(checks), sides.size))),
        },
        coords={
            "dim": dims,
            "share": shares,
            "check": [f"d = {dim}, beta = {beta:g}" for dim, beta in checks],
            "side": sides,
        },
        attrs={"horizon": parameters["horizon"]},
    )


def leaving_point(beta: Any, ratio: Any) -> float:
    """Where kappa_fold/kappa_# leaves 1: 1 - ratio begins like the square of the distance, so its root is extrapolated by a parabola
    through the three smallest beta that have a fold.
    """
    depth = np.sqrt(1 - ratio)
    chosen = np.flatnonzero(depth > 1e-6)[:3]
    # beta as a function of the root, at zero.
    return float(np.polyfit(depth[chosen], beta[chosen], 2)[-1])


def _judge(data: xr.Dataset) -> list[Finding]:
    below = data.share.values < 1
    ratio = (data.fold / data.onset).values
    onset, fold, equal = (data[name].values[:, ~below] for name in ("onset", "fold", "equal"))
    between = (fold < equal) & (equal < onset)
    none = int((ratio[:, below] == 1).sum())
    left = [leaving_point(data.beta.values[k], ratio[k]) for k in range(data.sizes["dim"])]
    apart = float(np.abs(np.array(left) / data.threshold.values - 1).max())
    widest = ", ".join(
        f"{row.min():.3f} (d = {dim}, beta = {beta:.2f})"
        for dim, row, beta in zip(data["dim"].values, ratio, data.beta.values[:, -1])
    )
    return [
        Finding(
            claim="up to beta_* order begins where the uniform state loses its stability; above it at a smaller kappa: "
            "first ordered states appear (fold), then they have the lower free energy, then the uniform state is unstable",
            measured=f"kappa_fold < kappa of equal free energy < kappa_# in {int(between.sum())} of {between.size} "
            f"cases with beta > beta_*, no fold in {none} of {int(below.sum()) * len(ratio)} below; kappa_fold/kappa_# "
            f"falls to {widest}",
            test="in every case, d = " + ", ".join(str(dim) for dim in data["dim"].values),
            verdict="agrees" if between.all() and none == below.sum() * len(ratio) else "disagrees",
            computed=True,
        ),
        Finding(
            claim="the fold line leaves the line of linear instability at beta_*",
            measured="extrapolated from the folds alone: "
            + ", ".join(
                f"{found:.4f} (beta_* = {float(edge):.4f}, d = {dim})"
                for found, edge, dim in zip(left, data.threshold.values, data["dim"].values)
            ),
            test="within 0.5 % (a parabola through the three folds next to beta_*)",
            verdict="agrees" if apart < 5e-3 else "disagrees",
            computed=True,
        ),
        _last(data),
    ]


def _last(data: xr.Dataset) -> Finding:
    """What the density itself does on both sides of the fold."""
    under, over = (data.final_order.isel(side=np.flatnonzero(side)) for side in (data.side < 1, data.side > 1))
    listed = "; ".join(
        f"{case.item()}: "
        + ", ".join(f"{float(data.final_order.sel(check=case, side=side)):.3f} ({side:g})" for side in data.side.values)
        for case in data.check
    )
    good = bool((under < 0.1).all() and (over > 0.5).all())
    return Finding(
        claim="ordered states last above the fold and not below it, when the density is left to itself",
        measured=f"|mean x| at t = {data.attrs['horizon']:g} kappa, from an ordered state (kappa/kappa_fold): {listed}",
        test="below 0.1 on one side and above 0.5 on the other, by evolution in time alone",
        verdict="agrees" if good else "disagrees",
    )


def _draw(data: xr.Dataset) -> Figure:
    with style.theme("print"):
        planes = [int(dim) for dim in data["dim"].values[:2]]
        page, axes = style.figure(style.PAGE_WIDTH, 2.7, 1, len(planes) + 1, squeeze=False)
        for letter, ax, dim in zip("ab", axes[0], planes):
            _plane(ax, data.sel(dim=dim), dim)
            style.panel(ax, letter, f"$d = {dim}$")
        axes[0][0].set_ylabel(r"$\kappa = 2/\sigma^2$ (less noise upwards)")
        last = axes[0][-1]
        for color, dim in zip(style.CATEGORICAL, data["dim"].values):
            one = data.sel(dim=dim)
            scaled = one.beta / one.threshold
            last.plot(scaled, one.fold / one.onset, color=color, label=f"$d = {dim}$")
            last.plot(scaled, one.equal / one.onset, color=color, linestyle=(0, (4, 2)))
        last.axhline(1.0, color=style.INK, linewidth=0.8)
        last.set_xlabel(r"$\beta/\beta_*$")
        last.set_ylabel(r"$\kappa/\kappa_\#$")
        style.grid(last)
        style.panel(last, "abc"[len(planes)], "fold (lines), equal energy (dashed)")
        last.legend(loc="lower left")
        handles, labels = axes[0][0].get_legend_handles_labels()
        page.legend(handles, labels, loc="outside lower center", ncols=4)
    return page


def _plane(ax: Any, one: xr.Dataset, dim: int) -> None:
    """Lines of one dimension in the plane of beta and kappa."""
    from matplotlib.ticker import NullFormatter

    edge = float(one.threshold)
    fine = np.linspace(0.3 * edge, float(one.beta[-1]), 200)
    line = np.array([onset_formula(dim, float(b)) for b in fine])
    folded = one.share.values > 1
    # The three lines meet at beta_*.
    beta = np.concatenate([[edge], one.beta.values[folded]])
    meet = onset_formula(dim, edge)
    fold, equal = (np.concatenate([[meet], one[name].values[folded]]) for name in ("fold", "equal"))
    upper = np.array([onset_formula(dim, float(b)) for b in beta])
    ax.fill_between(beta, fold, upper, color=style.ORANGE, alpha=0.3, linewidth=0, label="both states last")
    ax.plot(fine, line, color=style.INK, label=r"uniform state unstable above ($\kappa_\#$)")
    ax.plot(beta, equal, color=style.GREEN, linestyle=(0, (4, 2)), label="equal free energy")
    ax.plot(beta, fold, color=style.VERMILLION, label="ordered states above (fold)")
    ax.plot([edge], [meet], "o", color=style.INK, markersize=3.5)
    ax.annotate(r"$\beta_*$", (edge, meet), xytext=(4, 4), textcoords="offset points")
    ax.set_yscale("log")
    ax.set_yticks([value for value in (0.2, 0.5, 1.0, 2.0, 5.0) if fold.min() <= value <= line.max()])
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(float(fine[0]), float(fine[-1]))
    ax.set_xlabel(r"inverse temperature $\beta$")
    ax.text(0.06, 0.08, "uniform", transform=ax.transAxes, color=style.MUTED)
    ax.text(0.94, 0.9, "ordered", transform=ax.transAxes, color=style.MUTED, ha="right")
    style.grid(ax)


DIAGRAM = Recipe(
    name="phase-plane",
    title="The plane of temperature and noise: the fold beside the line of instability",
    statement="For each beta the kappa at which the uniform state becomes unstable (kappa_#), at which ordered states "
    "appear (the fold of their branch, by continuation) and at which both have the same free energy. Above beta_* these "
    "are three lines, and both states last between the first and the last.",
    parameters={
        "dims": (2, 3, 8),
        "shares": (0.5, 0.8, 0.95, 1.03, 1.06, 1.1, 1.16, 1.25, 1.4, 1.6, 1.8, 2.0),
        "checks": ((2, 3.5), (2, 5.0), (3, 3.0), (8, 2.0)),
        "sides": (0.97, 1.01),
        "horizon": 50.0,
    },
    quick={"dims": (2,), "shares": (0.8, 1.1, 1.2, 1.3), "checks": ((2, 5.0),), "horizon": 50.0},
    measure=_measure,
    judge=_judge,
    draw=_draw,
    uses=(),
    revision=2,
    seconds=13,
)
