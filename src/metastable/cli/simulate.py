"""`metastable simulate`: one run from flags or a TOML file."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from metastable._words import counted
from metastable.cli.options import MODEL, OUTPUT, SOLVER, START, Overwrite, Plot, Quiet, Threads
from metastable.cli.pictures import check_picture, write_picture
from metastable.cli.stopping import stoppable
from metastable.cli.variants import field_help, read_variant, variant_help
from metastable.errors import InvalidInputError, ModelError, StoppedEarlyWarning, StoreError
from metastable.model import Attention
from metastable.model.declare import parameters

STOPPED_EARLY = 3
"""Exit code of a run that ended before its time; what it reached is kept and shown."""

DEFAULT_DIM = parameters(Attention)["dim"].suggestion


def simulate(
    config: Annotated[
        Path | None, typer.Argument(help=r"TOML file with \[model], \[start] and \[run] tables; flags override it.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", "-n", help="Number of tokens.", rich_help_panel=START)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the start and the noise.", rich_help_panel=START)] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            help="Tokens from a .npy or .csv file (one row each); they say the dimension.", rich_help_panel=START
        ),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option("--dim", "-d", help=f"{field_help('dim')} Default: {DEFAULT_DIM}.", rich_help_panel=MODEL),
    ] = None,
    beta: Annotated[float | None, typer.Option("--beta", "-b", help=field_help("beta"), rich_help_panel=MODEL)] = None,
    value: Annotated[
        str | None,
        typer.Option(help="V: 'diag:1,0.5,-1', or a .npy file. Default: the identity.", rich_help_panel=MODEL),
    ] = None,
    query: Annotated[str | None, typer.Option(help="Q, given like V.", rich_help_panel=MODEL)] = None,
    key: Annotated[str | None, typer.Option(help="K, given like V.", rich_help_panel=MODEL)] = None,
    mask: Annotated[
        str | None, typer.Option(help=variant_help("mask", "Who sees whom: "), rich_help_panel=MODEL)
    ] = None,
    weights: Annotated[str | None, typer.Option(help=variant_help("weights"), rich_help_panel=MODEL)] = None,
    norm: Annotated[str | None, typer.Option(help=variant_help("norm"), rich_help_panel=MODEL)] = None,
    bias: Annotated[
        str | None, typer.Option(help=variant_help("bias", "Positional bias: "), rich_help_panel=MODEL)
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help=f"{field_help('noise')[:-1]}: sigma of Brownian motion.", rich_help_panel=MODEL)
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", "-t", help="Time to reach, or 'settled'.", rich_help_panel=SOLVER)
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(help="Output times: '1,10,100' or 'log:0.1,1e6,50'. Default: every step.", rich_help_panel=SOLVER),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="auto, tsit5, rodas, layers or sde.", rich_help_panel=SOLVER)
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="auto, reference, cpu, cuda or torch.", rich_help_panel=SOLVER)
    ] = None,
    interaction: Annotated[str | None, typer.Option(help="auto, direct or series.", rich_help_panel=SOLVER)] = None,
    rtol: Annotated[float | None, typer.Option(help="Relative tolerance.", rich_help_panel=SOLVER)] = None,
    atol: Annotated[float | None, typer.Option(help="Absolute tolerance.", rich_help_panel=SOLVER)] = None,
    step: Annotated[float | None, typer.Option(help="Step of layers and sde.", rich_help_panel=SOLVER)] = None,
    max_steps: Annotated[
        int | None, typer.Option(help="Give up after this many steps.", rich_help_panel=SOLVER)
    ] = None,
    threads: Threads = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to keep the run (a zarr store).", rich_help_panel=OUTPUT)
    ] = None,
    overwrite: Overwrite = False,
    plot: Plot = None,
    quiet: Quiet = False,
) -> None:
    r"""Simulate one sequence of tokens, print a summary, keep the run.

    [bold]Examples[/]

    200 tokens on the circle, as in Figure 2 of the paper:

        metastable simulate --tokens 200 --dim 2 --beta 64 --until 200 --out run.zarr

    Down to a single cluster (fifty decades of time):

        metastable simulate -n 200 -d 2 -b 64 --until settled

    A value matrix with two opposite end points:

        metastable simulate -n 32 -d 3 -b 9 --value diag:1,0.5,-1 --until 5000 --plot sphere.png

    The field's Euler script, and full attention:

        metastable simulate -n 200 -d 2 -b 64 --until 20 --method layers --step 0.05 --mask full

    The same from a file (run.toml):

        \[model]
        dim = 3
        beta = 9.0
        mask = {kind = "window", width = 8}
        \[start]
        tokens = 64
        seed = 1
        \[run]
        until = 100.0
        out = "run.zarr"

    The exit code is 3 when the run stopped early (out of steps, beyond double precision, or unresolved: rounding hides whether
    tokens still move); what it reached is kept.
    """
    from metastable import run as runs
    from metastable.dataset import check_destination

    tables = _read(config)
    points = _points(tables["start"], start)
    matrices = {"value": value, "query": query, "key": key}
    numbers = {"dim": dim, "beta": beta, "noise": noise}
    variants = {"mask": mask, "norm": norm, "weights": weights, "bias": bias}
    model = _model(tables["model"], numbers, matrices, variants, _columns(points))
    flags = {
        "method": method,
        "engine": engine,
        "interaction": interaction,
        "rtol": rtol,
        "atol": atol,
        "step": step,
        "max_steps": max_steps,
        "threads": threads,
        "until": read_until(until),
        "times": read_times(times),
        "out": out,
        "overwrite": overwrite or None,
    }
    options = _options(tables["run"], flags)
    destination, replace = options.pop("out", None), bool(options.pop("overwrite", False))
    if destination is not None:
        check_destination(destination, replace)
    if plot is not None:
        check_picture(plot)
    x, number = _start(tables["start"], tokens, seed, points, model.dim)
    if options.get("method") == "sde" or model.noise > 0:
        options["seed"] = number
    warnings.simplefilter("ignore", StoppedEarlyWarning)  # the summary says it
    with stoppable("nothing was kept"):
        run = runs.simulate(model, x, progress=False if quiet else None, **options)
    if destination is not None:
        run.save(destination, overwrite=replace)
    if plot is not None:
        write_picture(run.plot(), plot)
    summary(run, destination, plot)
    if run.status != "success":
        raise typer.Exit(STOPPED_EARLY)


def _options(table: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The table [run] with the flags that were given put over it."""
    _leftover({name: value for name, value in table.items() if name not in flags}, "run")
    return {**table, **{name: flag for name, flag in flags.items() if flag is not None}}


def _points(table: dict[str, Any], file: Path | None) -> Any:
    """The tokens of the file that the flag or [start] names; None where there is none."""
    path = table.get("file") if file is None else file
    return None if path is None else _array(Path(path), "--start")


def _start(
    table: dict[str, Any], tokens: int | None, seed: int | None, points: Any | None, dim: int
) -> tuple[Any, int]:
    """The tokens at depth 0 and the seed, from [start] and the flags put over it; `points`: those of a file."""
    from metastable import sphere

    _leftover({name: value for name, value in table.items() if name not in ("tokens", "seed", "file")}, "start")
    count = table.get("tokens") if tokens is None else tokens
    number = table.get("seed", 0) if seed is None else seed
    if (count is None) == (points is None):
        raise InvalidInputError("say where the tokens start: either --tokens N (uniform on the sphere) or --start FILE")
    return points if count is None else sphere.uniform(count, dim=dim, seed=number), number


def _columns(points: Any) -> int | None:
    """The dimension of the tokens of a file; None where there is none, or none that a model could have."""
    return points.shape[1] if points is not None and points.ndim == 2 and points.shape[1] > 1 else None


def _read(path: Path | None) -> dict[str, dict[str, Any]]:
    """The three tables of a TOML file (empty without a file)."""
    tables: dict[str, dict[str, Any]] = {"model": {}, "start": {}, "run": {}}
    if path is None:
        return tables
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as reason:
        raise StoreError(f"{path} cannot be read: {reason.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise InvalidInputError(f"{path} is not TOML: {reason}") from None
    unknown = [name for name in data if name not in tables]
    if unknown:
        raise InvalidInputError(f"{path} has a table or key {unknown[0]!r}; it may hold [model], [start] and [run]")
    return {name: dict(data.get(name, {})) for name in tables}


def _leftover(table: dict[str, Any], name: str) -> None:
    if table:
        raise InvalidInputError(f"[{name}] has no key {next(iter(table))!r}")


def _model(table: dict, numbers: dict, matrices: dict, variants: dict, columns: int | None) -> Attention:
    """The model of the file, with the flags that were given put over it; `columns`: the dimension, unless these say it."""
    table = {**table, **{name: flag for name, flag in numbers.items() if flag is not None}}
    for name, text in matrices.items():
        if text is not None:
            table[name] = _matrix(text, name)
    for family, text in variants.items():
        if text is not None:
            table[family] = read_variant(family, text)
    if "dim" not in table:
        table["dim"] = DEFAULT_DIM if columns is None else columns
        _check_sizes({name: table[name] for name, text in matrices.items() if text is not None}, columns)
    if "beta" not in table and "heads" not in table:
        raise ModelError("the model needs beta; give --beta 64 or a TOML file with a [model] table")
    return Attention.from_dict(table)


def _check_sizes(matrices: dict[str, Any], columns: int | None) -> None:
    """Refuse matrices of flags that are not as large as the dimension where nobody gave one: `columns` of a file, or the default."""
    dim = DEFAULT_DIM if columns is None else columns
    for name, matrix in matrices.items():
        size = len(matrix[-1]) if isinstance(matrix, list) and matrix and isinstance(matrix[-1], list) else dim
        if size != dim:
            whose = "unless told otherwise" if columns is None else "in the file of --start"
            hint = f"give --dim {size} (-d {size})" if columns is None else f"give a matrix for {dim}"
            raise ModelError(f"--{name} is for dimension {size}, and tokens have dimension {dim} {whose}; {hint}")


def _matrix(text: str, name: str) -> list:
    """'diag:1,0.5,-1' or the name of a .npy file as a matrix."""
    import numpy as np

    if text.startswith("diag:"):
        try:
            return np.diag([float(part) for part in text[5:].split(",")]).tolist()
        except ValueError:
            raise ModelError(f"--{name} {text!r}: the diagonal is not made of numbers") from None
    return _array(Path(text), f"--{name}").tolist()


def _array(path: Path, name: str) -> Any:
    """An array from a .npy or .csv file (never a pickle)."""
    import numpy as np

    if path.suffix not in (".npy", ".csv"):
        raise InvalidInputError(f"{name}: {path} must be a .npy or a .csv file")
    try:
        if path.suffix == ".csv":
            return np.loadtxt(path, delimiter=",", ndmin=2)
        return np.load(path, allow_pickle=False)
    except OSError as reason:
        raise StoreError(f"{name}: {path} cannot be read: {reason.strerror or reason}") from None
    except ValueError as reason:
        raise InvalidInputError(f"{name}: {path} is not an array of numbers: {reason}") from None


def read_until(text: str | None) -> float | str | None:
    """A number or 'settled'."""
    if text is None or text == "settled":
        return text
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError(f"--until must be a number or 'settled', not {text!r}") from None


def read_times(text: str | None) -> list[float] | None:
    """'1,10,100' or 'log:FIRST,LAST,COUNT' as a list of times."""
    import numpy as np

    if text is None:
        return None
    try:
        if text.startswith("log:"):
            first, last, count = text[4:].split(",")
            return np.geomspace(float(first), float(last), int(count)).tolist()
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInputError(f"--times should read '1,10,100' or 'log:FIRST,LAST,COUNT', not {text!r}") from None


def summary(run: Any, destination: Path | None, plot: Path | None) -> None:
    """A short table of what happened."""
    from rich.console import Console
    from rich.table import Table

    from metastable import analysis

    model = run.models[-1]
    radius = analysis.cluster_radius(model)
    labels = analysis.cluster_labels(run.final, radius=radius)
    prediction = analysis.predict(model) if len(model.all_heads) == 1 else None
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("tokens", f"{run.start.shape[0]} on the unit sphere of R^{run.start.shape[1]}")
    table.add_row("reached", f"t = {run.end:.6g}  ({run.status}{': ' + run.message if run.message else ''})")
    table.add_row("method", f"{run.method} on engine {run.engine}, {run.interaction} interaction")
    table.add_row(
        "work",
        f"{counted(run.stats.accepted, 'step')}, {run.stats.rejected} rejected, {counted(run.stats.evaluations, 'evaluation')}",
    )
    table.add_row("clusters", f"{labels.max() + 1} (tokens linked closer than {radius:.3g})")
    if prediction is not None:
        table.add_row(
            "predicted", f"{prediction.configuration} ({prediction.basis})" if prediction.row else prediction.reason
        )
    if destination is not None:
        table.add_row("kept in", str(destination))
    if plot is not None:
        table.add_row("drawn in", str(plot))
    Console().print(table)
