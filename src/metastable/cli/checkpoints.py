"""`metastable spectrum` and `metastable geometry`: real language models under the instruments of the theory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metastable._checks import count, path
from metastable._checks import seed as check_seed
from metastable.errors import InvalidInputError, StoreError, StoreExistsError

if TYPE_CHECKING:
    import xarray as xr

SOURCE_HELP = "A .gguf or .safetensors file, a folder, 'smollm2', 'minilm' (from their Python packages), or a hub id."


def spectrum(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    layer: Annotated[int | None, typer.Option(help="Only this layer (0 is the first), head by head.")] = None,
    null: Annotated[
        bool, typer.Option("--null", help="Also random matrices: Gaussian, and Haar with each head's singular values.")
    ] = False,
    samples: Annotated[int, typer.Option(help="Random matrices per head for --null.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of --null.")] = 0,
    fold_gain: Annotated[bool, typer.Option(help="Include the gain of the norm, V = O W G.")] = True,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the pictures, the table (CSV) and the counts (JSON).")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace files in --out.")] = False,
) -> None:
    """Spectra of the value matrices V = O W of every head: Figures 5 and 6 of the paper for any checkpoint.

    [bold]Examples[/]

        metastable spectrum smollm2 --null --out spectra

        metastable spectrum ./my-model --layer 7

        metastable spectrum EleutherAI/pythia-70m
    """
    from rich.console import Console

    from metastable import checkpoints
    from metastable.reports import tables

    _check_folder(out, overwrite, "spectrum.csv")
    samples, seed = count(samples, "--samples", 1, 100_000), check_seed(seed, "--seed")
    console = Console()
    weights = checkpoints.load_weights(source, revision=revision)
    chosen = None if layer is None else [weights.check_layer(layer)]
    spectra = checkpoints.ov_spectra(weights, fold_gain, layers=chosen)
    sums = checkpoints.layer_spectra(weights, fold_gain, layers=chosen)
    nulls: dict[str, xr.Dataset] = {}
    if null:
        for kind in ("gaussian", "haar"):
            nulls[kind] = checkpoints.ov_spectra_null(
                weights, kind, samples=samples, seed=seed, fold_gain=fold_gain, layers=chosen
            )
    console.print(tables.describe(weights))
    console.print(tables.layer_table(spectra, sums) if layer is None else tables.head_table(spectra))
    console.print(tables.count_table({"this checkpoint": spectra, **nulls}))
    if out is not None:
        for path in tables.write_spectra(out, spectra, nulls, source):
            console.print(f"wrote {path}", highlight=False)


def geometry(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    text: Annotated[
        Path | None, typer.Option(help="Text file (UTF-8). Default: a page of prose shipped with metastable.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Use the first so many tokens of the text.")] = 512,
    drop_first: Annotated[int, typer.Option(help="Leave out the first so many tokens (attention sinks).")] = 1,
    drop_dims: Annotated[int, typer.Option(help="Leave out the so many dimensions with most energy.")] = 0,
    center: Annotated[str, typer.Option(help="none, features or tokens: which mean to subtract.")] = "none",
    delta: Annotated[
        float | None,
        typer.Option(help="Distance of the capture curve. Default: 4 / sqrt(median beta_data), at most pi/2."),
    ] = None,
    permutations: Annotated[int, typer.Option(help="Random orders in the test of exchangeability.")] = 199,
    seed: Annotated[int, typer.Option(help="Seed of the nulls.")] = 0,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the report page, the picture and the table (CSV).")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace files in --out.")] = False,
) -> None:
    """Token geometry of a checkpoint on a text, layer by layer: cosines, centers, order, capture and temperature.

    [bold]Examples[/]

        metastable geometry smollm2 --out geometry

        metastable geometry minilm --text article.txt --drop-dims 3 --center tokens
    """
    from rich.console import Console

    from metastable.reports import geometry_page, tables

    _check_folder(out, overwrite, "report.html")
    words = _read_text(text)
    choices = geometry_page.Choices(max_tokens, drop_first, drop_dims, center, delta, permutations, seed)
    result = geometry_page.measure(source, words, choices, revision)
    console = Console()
    console.print(tables.describe(result.weights))
    console.print(tables.geometry_table(result))
    if out is not None:
        name = "the prose shipped with metastable" if text is None else text.name
        for path in geometry_page.write(out, result, source, name):
            console.print(f"wrote {path}", highlight=False)


def _read_text(file: Path | None) -> str:
    """The text of a file, or the shipped one."""
    if file is None:
        from metastable.checkpoints import sample_text

        return sample_text()
    if not file.is_file():
        raise InvalidInputError(f"there is no text file {file}; check the path")
    try:
        found = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidInputError(f"{file} is not UTF-8 text; convert it, for example with: iconv -t utf-8") from None
    except OSError as reason:
        raise InvalidInputError(f"{file} cannot be read: {reason}") from None
    if not found.strip():
        raise InvalidInputError(f"{file} holds no text; give a file with words in it")
    return found


def _check_folder(out: Path | None, overwrite: bool, sign: str) -> None:
    """Refuses, before any work, a folder that already holds results or cannot be written to; leaves nothing behind."""
    if out is None:
        return
    path(out, "--out")
    try:
        if out.exists() and not out.is_dir():
            raise StoreExistsError(f"{out} is a file; give a folder to --out")
        if (out / sign).exists() and not overwrite:
            raise StoreExistsError(f"{out} already holds results ({sign}); choose another folder or add --overwrite")
        there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except StoreError:
        raise
    except OSError as reason:
        raise StoreError(
            f"cannot write to {out}: {reason.strerror or reason}; choose another folder for --out"
        ) from None
