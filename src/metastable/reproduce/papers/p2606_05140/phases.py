"""Stationary states of unnormalised attention with noise: onset, branches and folds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import optimize, special

from metastable.figures import statements, style
from metastable.meanfield import branch, critical_kappa, onset, tricritical_beta
from metastable.model import Attention, Full
from metastable.reproduce.draws import each
from metastable.reproduce.recipe import Finding, Recipe, Report, Settings

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure


def model(dim: int, beta: float, kappa: float | None = None) -> Attention:
    """USA with full attention and noise sigma = sqrt(2/kappa)."""
    noise = 0.0 if kappa is None else float(np.sqrt(2.0 / kappa))
    return Attention(dim=dim, beta=beta, mask=Full(), weights="unnormalized", noise=noise)


def onset_formula(dim: int, beta: float) -> float:
    """kappa_# = 2 (beta/2)^(d/2)/(Gamma(d/2) I_(d/2)(beta))."""
    return float(2.0 * (beta / 2) ** (dim / 2) / (special.gamma(dim / 2) * special.iv(dim / 2, beta)))


def threshold_formula(dim: int) -> float:
    """beta_* with I_(d/2+1)(beta_*)/I_(d/2)(beta_*) = 1/d."""
    found: Any = optimize.brentq(
        lambda b: special.ive(dim / 2 + 1, b) / special.ive(dim / 2, b) - 1 / dim, 0.9, 5.0, xtol=1e-13
    )
    return float(found)


# ---------------------------------------------------------------------------------------------------- critical noise


def _measure_critical(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    cases = [(int(dim), float(beta)) for dim, beta in parameters["cases"]]
    found = [(onset(model(*case)).value, onset_formula(*case), critical_kappa(model(*case))) for case in cases]
    report(0.3)
    dims = [int(dim) for dim in parameters["dims"]]

    def turning(dim: int) -> float:
        """beta at which the branch that leaves the uniform state bends neither way, by continuation."""
        guess = threshold_formula(dim)
        found: Any = optimize.brentq(
            lambda beta: onset(model(dim, float(beta))).curvature, 0.9 * guess, 1.1 * guess, xtol=1e-9
        )
        return float(found)

    turned = each(turning, dims, lambda share: report(0.3 + 0.7 * share))
    return xr.Dataset(
        {
            "onset": ("case", [value for value, _, _ in found]),
            "onset_formula": ("case", [value for _, value, _ in found]),
            "library": ("case", [value for _, _, value in found]),
            "turning": ("dim", turned),
            "threshold": ("dim", [threshold_formula(dim) for dim in dims]),
            "threshold_library": ("dim", [tricritical_beta(dim) for dim in dims]),
        },
        coords={"case": [f"d = {dim}, beta = {beta:g}" for dim, beta in cases], "dim": dims},
        attrs={"stated": list(parameters["stated"]), "stated_onsets": list(parameters["stated_onsets"])},
    )


def _judge_critical(data: xr.Dataset) -> list[Finding]:
    onsets = float(np.abs(data.onset / data.onset_formula - 1).max())
    stated = float(
        np.abs(data.onset.values[: len(data.attrs["stated_onsets"])] - np.array(data.attrs["stated_onsets"])).max()
    )
    limits = float(np.abs(data.threshold.values - np.array(data.attrs["stated"])[: data.sizes["dim"]]).max())
    turned = float(np.abs(data.turning - data.threshold).max())
    return [
        Finding(
            claim="the uniform state loses its stability at kappa = 2 (beta/2)^(d/2)/(Gamma(d/2) I_{d/2}(beta)): "
            "1.769413, 1.257358 (d = 2, beta = 1, 2), "
            "e (d = 3, beta = 1)",
            measured="by continuation of the stationary equation "
            + ", ".join(f"{float(value):.6f} ({name})" for name, value in zip(data.case.values, data.onset.values))
            + f"; largest relative difference from the formula {onsets:.1e}",
            test="within 1e-6 of the formula and of the stated numbers",
            verdict="agrees" if onsets < 1e-6 and stated < 1e-6 else "disagrees",
            computed=True,
        ),
        Finding(
            claim="the transition is continuous up to beta_* with I_{d/2+1}(beta_*)/I_{d/2}(beta_*) = 1/d: "
            + ", ".join(f"{value:.6f} (d = {dim})" for dim, value in zip(data["dim"].values, data.attrs["stated"])),
            measured="the branch that leaves the uniform state changes the way it bends at "
            + ", ".join(f"{float(value):.6f}" for value in data.turning.values)
            + f" (differences up to {turned:.1e}; formula against stated {limits:.1e})",
            test="within 1e-4, by continuation without the formula",
            verdict="agrees" if turned < 1e-4 and limits < 1e-6 else "disagrees",
            computed=True,
        ),
    ]


def _draw_critical(data: xr.Dataset) -> Figure:
    dims = data["dim"].values
    beta = np.linspace(0.05, 6, 200)
    left = [
        statements.Curve(
            f"$d = {dim}$", beta, [onset_formula(int(dim), float(b)) / dim for b in beta], color=style.CATEGORICAL[k]
        )
        for k, dim in enumerate(dims[:4])
    ]
    for k, dim in enumerate(dims[:4]):
        edge = float(data.threshold.values[k])
        left.append(
            statements.Curve("", [edge], [onset_formula(int(dim), edge) / dim], points=True, color=style.CATEGORICAL[k])
        )
    every = np.unique(np.geomspace(2, 100, 50).round().astype(int))
    right = [
        statements.Curve("formula", every, [threshold_formula(int(d)) for d in every], color=style.THEORY),
        statements.Curve("continuation", dims, data.turning.values, points=True, color=style.MEASURED),
    ]
    return statements.plots(
        [
            statements.Plot(
                r"onset of order; points: $\beta_*$",
                r"inverse temperature $\beta$",
                r"$\kappa_\#/d$",
                left,
                legend="upper right",
                ylim=(0, 1.05),
            ),
            statements.Plot(
                r"above $\beta_*$ order comes with a jump",
                "dimension $d$",
                r"$\beta_*$",
                right,
                xscale="log",
                legend="upper right",
            ),
        ],
        height=2.5,
    )


CRITICAL_NOISE = Recipe(
    name="critical-noise",
    title="Where order begins, and from which beta on it jumps",
    statement="USA with noise, kappa = 2/sigma^2: the uniform state is stable below kappa_# = 2 "
    "(beta/2)^(d/2)/(Gamma(d/2) I_{d/2}(beta)). The transition there is "
    "continuous iff beta <= beta_*.",
    parameters={
        "cases": ((2, 1.0), (2, 2.0), (3, 1.0), (2, 4.0), (3, 3.0), (8, 2.0)),
        "stated_onsets": (1.769413, 1.257358, 2.718282),
        "dims": (2, 3, 4, 8, 64),
        "stated": (2.446918, 1.816155, 1.575257, 1.266553, 1.031494),
    },
    quick={"cases": ((2, 1.0), (2, 2.0), (3, 1.0)), "dims": (2, 3)},
    measure=_measure_critical,
    judge=_judge_critical,
    draw=_draw_critical,
    uses=(),
    revision=2,
    seconds=3,
)


# ---------------------------------------------------------------------------------------------------------- branches


def _measure_branches(parameters: Mapping[str, Any], settings: Settings, report: Report) -> xr.Dataset:
    import xarray as xr

    cases = [(int(dim), float(beta)) for dim, beta in parameters["cases"]]
    most = 400

    def one(case: tuple[int, float]) -> tuple[Any, Any, Any, float, float]:
        start = onset_formula(*case)
        found = branch(model(*case), "kappa", (0.3 * start, parameters["reach"] * start), points=most)
        rows = [np.full(most, np.nan) for _ in range(3)]
        for row, values in zip(rows, (found.values, found.order_parameter, found.stable.astype(float))):
            row[: len(values)] = values
        return rows[0], rows[1], rows[2], start, min(found.folds) if found.folds else np.nan

    results = each(one, cases, report)
    return xr.Dataset(
        {
            "kappa": (("case", "point"), np.array([r[0] for r in results])),
            "order": (("case", "point"), np.array([r[1] for r in results])),
            "stable": (("case", "point"), np.array([r[2] for r in results])),
            "onset": ("case", [r[3] for r in results]),
            "fold": ("case", [r[4] for r in results]),
            "dim": ("case", [dim for dim, _ in cases]),
            "beta": ("case", [beta for _, beta in cases]),
        }
    )


def _judge_branches(data: xr.Dataset) -> list[Finding]:
    folded = np.isfinite(data.fold.values)
    beyond = data.beta.values > np.array([threshold_formula(int(dim)) for dim in data["dim"].values])
    wrong, upper = 0, 0
    for k in range(data.sizes["case"]):
        order, stable = data.order.values[k], data.stable.values[k]
        seen = np.isfinite(order)
        kappa = data.kappa.values[k]
        turn = int(np.nanargmin(kappa[seen])) if folded[k] else 0
        # Before the fold (if there is one) the branch is unstable, after it stable; its ends are neutral.
        wrong += int((stable[seen][1:turn] > 0).sum()) if turn > 1 else 0
        wrong += int((stable[seen][turn + 1 :] == 0).sum())
        upper += int(seen.sum())
    windows = ", ".join(
        f"d = {int(d)}, beta = {b:g}: {f / o:.4f}"
        for d, b, f, o in zip(data["dim"].values, data.beta.values, data.fold.values, data.onset.values)
        if np.isfinite(f)
    )
    return [
        Finding(
            claim="above beta_* the ordered branch turns back (a fold: jump and hysteresis); below it does not",
            measured=f"folds at beta above beta_* in {int((folded & beyond).sum())} of {int(beyond.sum())} cases, "
            "below it in "
            f"{int((folded & ~beyond).sum())} of {int((~beyond).sum())}; kappa of the fold over kappa_#: {windows}",
            test="a fold exactly where beta > beta_*",
            verdict="agrees" if np.array_equal(folded, beyond) else "disagrees",
            computed=True,
        ),
        Finding(
            claim="the ordered branch is unstable between the uniform state and its fold, and stable from there on",
            measured=f"{wrong} of {upper} states on {data.sizes['case']} branches are otherwise",
            test="none",
            verdict="agrees" if wrong == 0 else "disagrees",
            computed=True,
        ),
    ]


def _draw_branches(data: xr.Dataset) -> Figure:
    panels = []
    for dim in np.unique(data["dim"].values):
        curves = []
        for number, k in enumerate(np.flatnonzero(data["dim"].values == dim)):
            kappa, order, stable = (data[name].values[k] for name in ("kappa", "order", "stable"))
            seen = np.isfinite(kappa)
            scale = float(data.onset.values[k])
            color = style.CATEGORICAL[number]
            label = rf"$\beta = {data.beta.values[k]:g}$"
            firm = seen & (stable > 0)
            loose = seen & ~firm
            last = np.flatnonzero(loose)
            if last.size:
                firm &= np.arange(seen.size) > last[-1]  # the onset itself is neutral
                loose = seen & (np.arange(seen.size) <= last[-1] + 1)
                curves.append(statements.Curve("", kappa[loose] / scale, order[loose], dashed=True, color=color))
            curves.append(statements.Curve(label, kappa[firm] / scale, order[firm], color=color))
        curves.append(statements.Curve("", [0.6, 1.0], [0, 0], color=style.INK))
        curves.append(statements.Curve("", [1.0, 1.5], [0, 0], dashed=True, color=style.INK))
        panels.append(
            statements.Plot(
                f"$d = {int(dim)}$ (dashed: unstable)",
                r"$\kappa/\kappa_\#$",
                "order parameter |mean $x$|",
                curves,
                xlim=(0.6, 1.5),
                ylim=(-0.02, 1),
                legend="lower right",
            )
        )
    return statements.plots(panels, height=2.7, shared=True)


BRANCHES = Recipe(
    name="branches",
    title="Branches of ordered states, and their stability",
    statement="Stationary states mu = exp((kappa/beta) W * mu)/Z followed in kappa from where the uniform state "
    "becomes unstable, on the circle and, zonal, on "
    "the sphere.",
    parameters={
        "cases": ((2, 1.0), (2, 2.0), (2, 3.0), (2, 4.0), (3, 1.0), (3, 1.5), (3, 2.0), (3, 3.0)),
        "reach": 1.6,
    },
    quick={"cases": ((2, 1.0), (2, 3.0))},
    measure=_measure_branches,
    judge=_judge_branches,
    draw=_draw_branches,
    uses=(),
    revision=2,
    seconds=2,
)
