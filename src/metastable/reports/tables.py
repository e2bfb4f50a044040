"""Tables and files of `metastable spectrum` and `metastable geometry`."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from metastable import stores
from metastable._words import counted
from metastable.checkpoints.spectra import count_leading
from metastable.checkpoints.weights import AttentionWeights
from metastable.errors import StoreError

if TYPE_CHECKING:
    import xarray as xr

    from metastable.reports.geometry_page import Measurement

PANEL_LAYERS = 6
"""Layers shown in the picture of a whole checkpoint, evenly spaced."""


def describe(weights: AttentionWeights) -> str:
    """One line about a checkpoint."""
    heads = counted(weights.head_count, "head")
    if weights.kv_head_count != weights.head_count:
        heads += f" ({weights.kv_head_count} key/value)"
    shared = len(set(weights.stored_layer))
    layers = counted(weights.layer_count, "layer") + (
        f" sharing {counted(shared, 'set')} of weights" if shared < weights.layer_count else ""
    )
    return (
        f"[bold]{escape(weights.source)}[/]\n{weights.architecture}: {layers}, dim {weights.dim}, {heads} of {weights.head_dim}, "
        f"{weights.norm_place}-{weights.norm_kind} norm, {'causal' if weights.causal else 'full'} attention"
    )


KINDS = ("re+", "re-", "cx+", "cx-", "all+", "all-")
LEGEND = (
    "Heads whose leading eigenvalue (without the kernel's 0) is real (re) or complex (cx) with positive or negative real "
    "part; all: every eigenvalue on that side; score: sum Re / sum abs, median with min and max; heads summed: leading "
    "eigenvalue of the sum of V"
)


def _table(title: str, names: Sequence[str], caption: str) -> Table:
    """A compact table, right-aligned, that fits 80 columns."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=box.SIMPLE)
    table.padding = (0, 0, 0, 1)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _complex(value: complex) -> str:
    return f"{value.real:+.3f}" if value.imag == 0 else f"{value.real:+.2f} ± {abs(value.imag):.2f}i"


def layer_table(spectra: xr.Dataset, sums: xr.Dataset) -> Table:
    """One row per layer: kinds of leading eigenvalue, sign scores, and the leading eigenvalue of the sum over heads."""
    table = _table("Leading eigenvalues by layer", ("layer", *KINDS, "min", "score", "max", "heads summed"), LEGEND)
    for place, layer in enumerate(spectra["layer"].values):
        counts = count_leading(spectra.isel(layer=[place]))
        score = spectra["sign_score"].values[place]
        numbers = (
            counts.real_positive,
            counts.real_negative,
            counts.complex_positive,
            counts.complex_negative,
            counts.all_positive,
            counts.all_negative,
        )
        table.add_row(
            str(layer),
            *(str(number) if number else "·" for number in numbers),
            *(f"{value:+.2f}" for value in (score.min(), np.median(score), score.max())),
            _complex(complex(sums["leading"].values[place])),
        )
    return table


def head_table(spectra: xr.Dataset) -> Table:
    """One row per head of one layer."""
    names = ("head", "kv", "leading", "with kernel", "score", "row", "row with kernel")
    caption = "kv: key/value head; score: sum Re / sum abs; row: of Table 1, without and with the kernel's 0"
    table = _table(f"Layer {int(spectra['layer'].values[0])}", names, caption)
    for head in range(spectra.sizes["head"]):
        row = spectra.isel(layer=0, head=head)
        table.add_row(
            str(head),
            str(int(row["kv_head"])),
            _complex(complex(row["leading"].values)),
            _complex(complex(row["leading_with_kernel"].values)),
            f"{float(row['sign_score']):+.3f}",
            str(int(row["atlas_row"]) or "none"),
            str(int(row["atlas_row_with_kernel"]) or "none"),
        )
    return table


def count_table(groups: Mapping[str, xr.Dataset]) -> Table:
    """Counts over all heads: the checkpoint, then the nulls."""
    table = _table("All heads", ("", "heads", *KINDS, "sd of score"), "")
    for name, dataset in groups.items():
        counts = count_leading(dataset)
        label = name if name == "this checkpoint" else f"null: {name}"
        numbers = list(counts.to_dict().values())
        table.add_row(label, *(str(number) for number in numbers[:-1]), f"{numbers[-1]:.3f}")
    return table


def geometry_table(result: Measurement) -> Table:
    """One row per layer of token states."""
    caption = (
        "sink: norm of token 0 over the median; centred: mean token removed; z: strong centers against random orders; "
        "near: percent of tokens near a center of the first layer; chance: of as many random tokens; b_F, b_data: inverse "
        "temperature of the median head"
    )
    names = ("layer", "sink", "cosine", "centred", "rank", "z", "p", "near", "chance", "b_F", "b_data")
    table = _table(f"Token cloud of {result.geometry.attrs['tokens']} tokens", names, caption)
    for place, layer in enumerate(result.geometry["layer"].values):
        row, test = result.geometry.isel(layer=place), result.test.isel(layer=place)
        capture = result.capture.isel(layer=place)
        block = [""] * 2
        if layer < result.temperatures.sizes["layer"]:
            heat = result.temperatures.sel(layer=layer)
            block = [f"{float(heat['beta_F'].isel(lag=0).median()):.1f}", f"{float(heat['beta_data'].median()):.1f}"]
        table.add_row(
            str(layer),
            f"{result.sink[place]:.1f}",
            f"{float(row['mean_cosine']):.3f}",
            f"{float(row['mean_cosine_centered']):.3f}",
            f"{float(row['effective_rank']):.0f}",
            f"{float(test['z']):+.1f}",
            f"{float(test['p']):.3f}",
            f"{100 * float(capture['consumed']):.1f}",
            f"{100 * float(capture['null_mean']):.1f}",
            *block,
        )
    return table


def write_spectra(out: Path, spectra: xr.Dataset, nulls: Mapping[str, xr.Dataset], source: str) -> list[Path]:
    """spectrum.csv (one row per head), counts.json, and the pictures."""
    from metastable.figures import spectra as pictures
    from metastable.figures import style

    _make(out)
    table, counts = out / "spectrum.csv", out / "counts.json"
    names = ("sign_score", "is_real", "all_positive", "all_negative", "atlas_row", "atlas_row_with_kernel")
    with stores.new_file(table) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("layer", "head", "leading_real", "leading_imaginary", *names))
        for i, layer in enumerate(spectra["layer"].values):
            for head in range(spectra.sizes["head"]):
                leading = complex(spectra["leading"].values[i, head])
                cells = [spectra[name].values[i, head].item() for name in names]
                writer.writerow((int(layer), head, leading.real, leading.imag, *cells))
    summary: dict[str, Any] = {"source": source, "heads": count_leading(spectra).to_dict()}
    summary.update({f"null_{kind}": count_leading(null).to_dict() for kind, null in nulls.items()})
    stores.write_file(counts, json.dumps(summary, indent=1).encode())
    values, titles = _panels(spectra)
    columns = spectra.sizes["head"] if spectra.sizes["layer"] > 1 else 4
    page = pictures.spectrum_page(values, titles, columns=min(columns, 12))
    written = [table, counts, *style.save(page, out / "spectra")]
    if spectra.sizes["layer"] > 1:
        width = float(nulls["gaussian"]["sign_score"].std()) if "gaussian" in nulls else None
        written += style.save(pictures.sign_score_page(spectra, width), out / "sign-scores")
    return written


def _panels(spectra: xr.Dataset) -> tuple[list[np.ndarray], list[str]]:
    """Eigenvalues and titles of the heads to show: all heads of evenly spaced layers."""
    size = spectra.sizes["layer"]
    rows = np.unique(np.linspace(0, size - 1, min(size, PANEL_LAYERS)).round().astype(int))
    values, titles = [], []
    for row in rows:
        for head in range(spectra.sizes["head"]):
            values.append(spectra["eigenvalue"].values[row, head])
            titles.append(
                f"{int(spectra['layer'].values[row])}.{head}: {float(spectra['sign_score'].values[row, head]):+.2f}"
            )
    return values, titles


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise StoreError(f"cannot make the folder {out}: {reason}; choose another one") from reason
