"""Pictures of real checkpoints: value spectra in the complex plane, sign scores against their null, token geometry over depth.

Primitives draw on a given axis; the `*_page` functions put them together. All take arrays or datasets of
`metastable.checkpoints`, none computes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metastable.figures import style
from metastable.figures.curves import draw_band, draw_spectrum

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIGN_LABEL = r"sign score $\sum\mathrm{Re}\,\lambda/\sum|\lambda|$"
LAYER_LABEL = "layer"


def draw_sign_scores(ax: Axes, spectra: xr.Dataset, null_deviation: float | None = None) -> None:
    """Sign score of every head against its layer.

    Filled: real leading eigenvalue, hollow: complex; blue: leading real part positive, vermillion: negative. The band is two
    standard deviations of the null around zero.
    """
    layers = np.repeat(spectra["layer"].values, spectra.sizes["head"])
    score, real = spectra["sign_score"].values.ravel(), spectra["is_real"].values.ravel()
    leading: NDArray[np.complex128] = np.asarray(spectra["leading"].values, dtype=np.complex128).ravel()
    if null_deviation is not None:
        ax.axhspan(
            -2 * null_deviation, 2 * null_deviation, color=style.ORANGE, alpha=0.45, linewidth=0, label="null ± 2 sd"
        )
    ax.axhline(0, color=style.MUTED, linewidth=0.6)
    for negative, color in ((False, style.BLUE), (True, style.VERMILLION)):
        for is_real in (True, False):
            chosen = (real == is_real) & ((leading.real < 0) == negative)
            if not chosen.any():
                continue
            name = f"leading {'real' if is_real else 'complex'}, {'Re < 0' if negative else 'Re > 0'}"
            face = color if is_real else "none"
            ax.scatter(
                layers[chosen], score[chosen], s=11, facecolors=face, edgecolors=color, linewidths=0.8, label=name
            )
    ax.set_ylim(-1.05, 1.05)
    ax.set_xlabel(LAYER_LABEL)
    ax.set_ylabel(SIGN_LABEL)


def draw_head_spectrum(ax: Axes, eigenvalues: Any, *, title: str = "", circle: float | None = None) -> None:
    """Spectrum of one value matrix, square around zero, leading eigenvalue ringed; half the width stands in the corner."""
    values = np.asarray(eigenvalues, dtype=np.complex128).ravel()
    draw_spectrum(ax, values, size=4, circle=circle)
    reach = 1.15 * max(float(np.abs(values).max()), circle or 0.0, 1e-300)
    ax.set_xlim(-reach, reach)
    ax.set_ylim(-reach, reach)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(visible=True, color=style.FAINT)
    ax.text(
        0.97,
        0.03,
        f"±{reach:.2g}",
        transform=ax.transAxes,
        ha="right",
        va="bottom",
        fontsize="x-small",
        color=style.MUTED,
    )
    if title:
        ax.set_title(title, fontsize="small", pad=3)


@style.styled
def spectrum_page(eigenvalues: Sequence[Any], titles: Sequence[str], *, columns: int = 6) -> Figure:
    """Spectra as small multiples, one panel per entry of `eigenvalues` (Figures 5 and 6 of arXiv:2411.04990)."""
    columns = min(columns, len(eigenvalues))
    rows = -(-len(eigenvalues) // columns)
    width = style.PAGE_WIDTH * min(1.0, columns / 4)
    page, axes = style.figure(width, (width / columns + 0.16) * rows, rows, columns, squeeze=False)
    for number, ax in enumerate(axes.ravel()):
        if number >= len(eigenvalues):
            ax.set_axis_off()
            continue
        draw_head_spectrum(ax, eigenvalues[number], title=titles[number])
    return page


@style.styled
def sign_score_page(spectra: xr.Dataset, null_deviation: float | None = None, *, title: str = "") -> Figure:
    """Sign scores of all heads over depth."""
    page, ax = style.figure(style.PAGE_WIDTH, 2.6)
    draw_sign_scores(ax, spectra, null_deviation)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    style.panel(ax, "", title)
    return page


def draw_layer_curves(ax: Axes, layers: Any, curves: Mapping[str, Any], *, label: str) -> None:
    """One line per entry of `curves` over the layers."""
    for number, (name, values) in enumerate(curves.items()):
        ax.plot(layers, values, color=style.CATEGORICAL[number % len(style.CATEGORICAL)], label=name)
    ax.set_xlabel(LAYER_LABEL)
    ax.set_ylabel(label)
    if len(curves) > 1:
        ax.margins(y=0.2)
        ax.legend()


def draw_centers_sweep(ax: Axes, geometry: xr.Dataset, layer: int) -> None:
    """Renyi centers, strong centers (with their exact mean over orders) and clusters of one layer against delta."""
    row = geometry.sel(layer=layer)
    delta = geometry["delta"].values
    ax.plot(delta, row["renyi"], color=style.RENYI, marker="s", markersize=2.6, label="Rényi centers")
    ax.plot(
        delta, row["strong"], color=style.STRONG, marker="o", markersize=2.6, linestyle="none", label="strong centers"
    )
    ax.plot(delta, row["strong_exchangeable"], color=style.STRONG, linewidth=0.9, label="strong, mean over orders")
    ax.plot(delta, row["clusters"], color=style.MUTED, linestyle=(0, (4, 2)), label="clusters (single linkage)")
    ax.set_xlabel(r"$\delta$ (rad)")
    ax.set_ylabel("count")


def draw_exchangeability(ax: Axes, tests: Mapping[str, xr.Dataset]) -> None:
    """z of the strong-center statistic over depth, one line per text, with the band of two standard deviations."""
    ax.axhspan(-2, 2, color=style.FAINT, alpha=0.6, linewidth=0)
    for number, (name, test) in enumerate(tests.items()):
        color = style.CATEGORICAL[number % len(style.CATEGORICAL)]
        ax.plot(test["layer"], test["z"], color=color, marker="o", markersize=2.2, label=name)
    ax.set_xlabel(LAYER_LABEL)
    ax.set_ylabel("$z$ of strong centers")
    if len(tests) > 1:
        ax.legend()


def draw_capture(ax: Axes, capture: xr.Dataset, *, color: str = style.RENYI, name: str = "Rényi centers") -> None:
    """Percentage of tokens near a center over depth, with the band of as many random tokens (0.1 to 0.9 quantile)."""
    layers = capture["layer"].values
    draw_band(
        ax,
        layers,
        100 * capture["null_mean"].values,
        100 * capture["null_low"].values,
        100 * capture["null_high"].values,
        color=style.MUTED,
        label="as many random tokens",
        dashed=True,
    )
    ax.plot(layers, 100 * capture["consumed"].values, color=color, label=name)
    ax.set_ylim(0, 102)
    ax.set_xlabel(LAYER_LABEL)
    ax.set_ylabel("tokens near a center (%)")
    ax.legend()


def draw_temperatures(ax: Axes, temperatures: xr.Dataset) -> None:
    """Median inverse temperature of the heads over depth, with their 0.1 and 0.9 quantiles, on a log axis."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    layers = temperatures["layer"].values
    for name, label, color in (
        ("beta_F", r"$\beta_F$ (weights)", style.BLUE),
        ("beta_data", r"$\beta_\mathrm{data}$ (tokens)", style.VERMILLION),
    ):
        if name not in temperatures:
            continue
        values = temperatures[name].isel(lag=0) if "lag" in temperatures[name].dims else temperatures[name]
        low, middle, high = np.quantile(values.values, (0.1, 0.5, 0.9), axis=1)
        draw_band(ax, layers, middle, low, high, color=color, label=label)
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(LAYER_LABEL)
    ax.set_ylabel(r"inverse temperature $\beta$")
    ax.legend()


@style.styled
def geometry_page(
    geometry: xr.Dataset, test: xr.Dataset, capture: xr.Dataset, temperatures: xr.Dataset, *, layer: int
) -> Figure:
    """Six panels on the token cloud of a model: cosines, effective rank, centers of one layer, order, capture, temperature."""
    page, axes = style.figure(style.PAGE_WIDTH, 4.3, 2, 3)
    layers = geometry["layer"].values
    cosines = {"plain": geometry["mean_cosine"].values, "mean token removed": geometry["mean_cosine_centered"].values}
    draw_layer_curves(axes[0, 0], layers, cosines, label="mean cosine")
    draw_layer_curves(axes[0, 1], layers, {"": geometry["effective_rank"].values}, label="effective rank")
    draw_centers_sweep(axes[0, 2], geometry, layer)
    axes[0, 2].legend(fontsize="x-small")
    draw_exchangeability(axes[1, 0], {"": test})
    draw_capture(axes[1, 1], capture)
    draw_temperatures(axes[1, 2], temperatures)
    titles = (
        "cosines",
        "spread",
        f"centers, layer {layer}",
        "order of the text",
        rf"capture, $\delta$ = {capture.attrs['delta']:.2f}",
        "temperature",
    )
    for ax, letter, title in zip(axes.ravel(), "abcdef", titles):
        style.panel(ax, letter, title)
    return page
