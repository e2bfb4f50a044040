"""A picture of an ensemble: each observable against depth, the mean over members with its band."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._words import counted, left_out
from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.curves import draw_band
from metastable.figures.moments import LOG_SPAN
from metastable.figures.titles import PER_INCH, broken, words_of
from metastable.model import Attention
from metastable.stores import membership

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

QUANTILES = (0.1, 0.9)
MOST_PANELS = 12
MOST_DOTS = 30
"""Times that get a dot each; more are a line."""
LENGTHS = {"delta": r"\delta", "radius": "r"}
"""Attributes of an observable that are lengths, and their symbols."""


def plot_ensemble(
    stats: xr.Dataset,
    observables: Sequence[str] | None = None,
    *,
    log: bool | None = None,
    quantiles: tuple[float, float] = QUANTILES,
    theme: str = "screen",
) -> Figure:
    """One panel for each observable of `metastable.ensemble(...)`: the mean over members, and a band between two
    quantiles of them.

    The figure says what the band is, over how many members it goes, whether there would be more (the ensemble was interrupted), and how
    many stopped early or have no (finite) values of an observable; which model moved them (as `draw_run` does); and above each panel
    the lengths that its observable was measured with. Where members are infinite there is no mean to draw. Ensembles of several models
    under the attributes of one are refused, as `save_ensemble` does.

    Args:
        stats: what `metastable.ensemble` returned (or `load_ensemble`).
        observables: names of those to draw; None draws all that have one number for each member and time (at most
            `MOST_PANELS`), and the figure names the others.
        log: log time; None for times beyond `moments.LOG_SPAN`, or that were chosen so (each the same multiple of the one before it).
        quantiles: lower and upper edge of the band, between 0 and 1.
        theme: "screen" or "print".
    """
    import xarray as xr

    if not isinstance(stats, xr.Dataset) or not {"member", "time"} <= set(stats.dims):
        raise InvalidInputError("stats must be the dataset that metastable.ensemble returns, with dims member and time")
    membership.require_some(stats)
    low, high = (_checks.number(q, "quantiles", 0.0, 1.0) for q in _checks.vector(quantiles, "quantiles", 2))
    if not low < high:
        raise InvalidInputError(
            f"quantiles must be a lower and an upper one, for example {QUANTILES}, not {quantiles!r}"
        )
    if log is not None:
        _checks.flag(log, "log")
    stats = membership.said_once(stats)
    membership.check_joined(stats)
    names, others = _drawable(stats, observables)
    with style.theme(theme):
        return _page(stats, names, others, (low, high), log)


def _drawable(stats: xr.Dataset, observables: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Names of the observables with dims (member, time), or those asked for; and of those that are left out unasked."""
    numbers = [name for name in membership.measured(stats) if {"member", "time"} <= {*stats[name].dims}]
    flat = [name for name in numbers if stats[name].ndim == 2]
    if not flat:
        raise InvalidInputError(f"no observable has one number for each member and time; {_way_out(stats, numbers)}")
    if observables is None:
        return flat[:MOST_PANELS], [name for name in numbers if name not in flat[:MOST_PANELS]]
    if isinstance(observables, str) or not isinstance(observables, Sequence):
        raise InvalidInputError(f"observables must be a list of names, not {observables!r}")
    for name in observables:
        if name not in flat:
            raise InvalidInputError(
                f"{name!r} is no observable with one number for each member and time; there are: {', '.join(flat)}"
            )
    return list(observables), []


def _way_out(stats: xr.Dataset, names: list[str]) -> str:
    """What to do where the observables `names` have further dims, or there is none."""
    further = [sorted(str(dim) for dim in stats[name].dims if dim not in ("member", "time")) for name in names]
    shared = [dim for dim in (further[0] if further else []) if all(dim in dims for dims in further)]
    if not shared:
        return "name some in observe={...}"
    chosen = ", ".join(f"{dim}=0" for dim in shared)
    return f"all go along {' and '.join(shared)}, too: select one first, stats.isel({chosen}), or name others in observe={{...}}"


def _geometric(times: FloatArray) -> bool:
    """True for three times and more above zero, each the same multiple of the one before it."""
    positive = times[times > 0]
    ratios = positive[1:] / positive[:-1]
    return ratios.size > 1 and ratios[0] > 1.05 and bool(np.allclose(ratios, ratios[0], rtol=1e-3))


def _page(
    stats: xr.Dataset, names: list[str], others: list[str], edges: tuple[float, float], log: bool | None
) -> Figure:
    times = np.asarray(stats["time"].values, dtype=float)
    order = np.argsort(times, kind="stable")  # parts that were joined along time may have any
    logged = bool(times.max() > LOG_SPAN) or _geometric(times[order]) if log is None else log
    shown = order[times[order] > 0] if logged else order
    if shown.size == 0:
        raise InvalidInputError("log=True needs a time above 0, and stats has none; leave log out")
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    page, grid = style.figure(3.4 * columns + 0.4, 2.5 * rows + 0.5, rows, columns, managed=True, squeeze=False)
    early, failed = _stopped(stats)
    gaps: list[str] = []
    label = f"{100 * edges[0]:g} % to {100 * edges[1]:g} % of members"
    for ax, name in zip(grid.flat, names):
        values = np.asarray(stats[name].transpose("member", "time").values, dtype=float)[:, shown]
        _draw(ax, times[shown], values, edges)
        gaps += _gaps(name, values, early)
        if logged:
            style.log_time_axis(ax, float(times[shown][0]), float(times[shown][-1]))
        ax.set_xlabel("depth $t$")
        style.panel(ax, "", style.plain(name) + _lengths(stats[name]))
        style.grid(ax, "y")
    for ax in list(grid.flat)[len(names) :]:
        ax.set_axis_off()
    handles, _ = grid[0, 0].get_legend_handles_labels()
    if len(handles) > 1:
        handles[1].set_label(label)
    page.legend(handles=handles, loc="outside lower center", ncols=2, fontsize="small")
    stopped = left_out(int(early.sum()), int(failed.sum()))
    members = counted(len(early), "member") + (" (interrupted)" if stats.attrs.get("status") == "interrupted" else "")
    words = [members, *_model(stats), *([stopped] if stopped else []), *gaps]
    if logged and (times == 0).any():
        words.append("$t = 0$ is not on the logarithmic axis")
    if others:
        words += [f"not drawn: {others[0]}", *others[1:]]
    page.suptitle(broken(words, max(24, int(PER_INCH * page.get_figwidth()))), x=0.01, ha="left", fontsize="medium")
    return page


def _draw(ax: Any, times: np.ndarray, values: np.ndarray, edges: tuple[float, float]) -> None:
    """Mean and band of `values` (members, m); members that stopped are left out from there on, and times with infinite ones."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(All-NaN|Mean of empty)", RuntimeWarning)
        values = np.where(np.isinf(values).any(axis=0), np.nan, values)
        mean = np.nanmean(values, axis=0)
        low, high = np.nanquantile(values, edges, axis=0)
    if len(times) == 1:
        ax.plot(
            times,
            mean,
            "o",
            color=style.MEASURED,
            markersize=3.6,
            label="mean" if len(values) > 1 else "the one member",
            zorder=4,
        )
        if len(values) > 1:
            ax.vlines(times, low, high, color=style.MEASURED, linewidth=1.0, label="band", zorder=3)
    elif len(values) > 1:
        draw_band(ax, times, mean, low, high, label="mean")
        ax.fill_between([], [], [], color=style.MEASURED, alpha=0.16, label="band")
    else:
        draw_band(ax, times, mean, label="the one member")
    if 1 < len(times) <= MOST_DOTS:
        ax.plot(times, mean, "o", color=style.MEASURED, markersize=2.6, zorder=4)
    ax.update_datalim([(time, 0.0) for time in times], updatey=False)  # the same times in all panels
    ax.autoscale_view()
    if np.isnan(mean).all():
        ax.set_yticks([])


def _lengths(values: xr.DataArray) -> str:
    """`, $r = 0.25$`: the lengths that an observable was measured with, where its members share them."""
    return "".join(
        f", ${symbol} = {values.attrs[name]:.3g}$" for name, symbol in LENGTHS.items() if name in values.attrs
    )


def _stopped(stats: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Which members (members,) stopped early, in any of the ensembles that were joined, and which of them failed in all."""
    if "status" not in stats or "member" not in stats["status"].dims:
        nobody = np.zeros(stats.sizes["member"], dtype=bool)
        return nobody, nobody
    status = stats["status"].transpose("member", ...).values.reshape(stats.sizes["member"], -1)
    known = stats["status"].notnull().transpose("member", ...).values.reshape(status.shape)
    early = ((status != "success") & known).any(axis=1)
    return early, early & ((status == "failed") | ~known).all(axis=1)


def _gaps(name: str, values: np.ndarray, early: np.ndarray) -> list[str]:
    """What an observable lacks, in words, beside what `early` members (members,) do: `values` (members, m)."""
    label, size = style.plain(name), len(values)
    infinite = int(np.isinf(values).any(axis=1).sum())
    # Those who stopped early are told by themselves; of the others some may have no value at some times, or at none.
    valued = (~np.isnan(values[~early])).sum(axis=0)
    few, many = (int(valued.min()), int(valued.max())) if (~early).any() else (0, 0)
    words = []
    if few < size - early.sum():
        words.append(f"{label}: {few if few == many else f'{few} to {many}'} of {counted(size, 'member')} have values")
    if infinite:
        words.append(f"{label}: infinite for {infinite} of {counted(size, 'member')} (no mean there)")
    return words


def _model(stats: xr.Dataset) -> list[str]:
    """Tokens and the model, as titles of runs say them; of joined ensembles, which may have several models, what they share."""
    if "tokens" not in stats.attrs:
        return []
    tokens = int(stats.attrs["tokens"])
    try:
        told = json.loads(stats.attrs["model"])
        if told.get("kind") == "drawn":
            first = Attention.from_dict(told["first"])
            return [f"$n = {tokens}$", f"$d = {first.dim}$", f"models drawn by {style.plain(told['by'])}"]
        return words_of([Attention.from_dict(told)], tokens)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ):  # no model, or a variant of somebody's own that is not here
        return [f"$n = {tokens}$"]
