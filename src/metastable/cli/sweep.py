"""`metastable sweep FILE --out DIR`, `metastable sweep status DIR`, `metastable sweep plot DIR`."""

from __future__ import annotations

import difflib
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from metastable import _checks
from metastable._words import counted
from metastable.cli.pictures import check_picture
from metastable.errors import InvalidInputError, SweepError

if TYPE_CHECKING:
    from metastable.sweep import Estimate
    from metastable.sweep.tasks import Task

DEFAULT = "run"
SHORT = 10.0
"""Seconds of work below which starting workers takes longer than they save."""


class SweepGroup(TyperGroup):
    """A group whose first argument may also be the file of a sweep: `metastable sweep FILE` is `metastable sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            self._check_file(args[0])
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def _check_file(self, word: str) -> None:
        """A bare word that names no file is a command that was misspelt."""
        if word.startswith("-") or Path(word).suffix or Path(word).exists():
            return
        near = difflib.get_close_matches(word, self.commands, 1)
        meant = f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(self.commands)}"
        raise InvalidInputError(f"{word!r} is neither a file nor a command of 'metastable sweep'; {meant}")


sweep = typer.Typer(
    cls=SweepGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help=(
        "Phase diagrams: grids of ensembles, resumable, on a laptop or a cluster.\n\n"
        "[bold]metastable sweep FILE --out DIR[/] runs a sweep (or goes on with it); "
        "ready-made files are in examples/sweeps of the source."
    ),
)

WORKERS_HELP = (
    "Processes here (default: one per processor; 0: no Dask, one task after the other). With --cluster: jobs."
)
OPTION_HELP = (
    "Option of the batch system's class in dask-jobqueue, for example queue=main, cores=16, memory='32GB'. Repeatable."
)
EDITED_HELP = (
    "Functions of your own were edited: compute again what the former ones made (retry), or take it for theirs (keep). "
    "Otherwise they are refused."
)
EXTEND_HELP = "DIR may hold another sweep: describe it anew and keep the tasks that both have in common."


@sweep.command(DEFAULT)
def run(
    file: Annotated[Path, typer.Argument(help="The sweep, a TOML file.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the results.")] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP)] = None,
    scheduler: Annotated[str | None, typer.Option(help="Address of a running Dask scheduler.")] = None,
    cluster: Annotated[str | None, typer.Option(help="slurm, pbs, sge, lsf, oar, moab or htcondor.")] = None,
    cluster_option: Annotated[list[str] | None, typer.Option(help=OPTION_HELP)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, estimate time and size, run nothing.")] = False,
    calibrate: Annotated[float, typer.Option(help="Seconds for the estimate (0: none).")] = 2.0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run tasks that failed again.")] = False,
    edited: Annotated[str, typer.Option(metavar="refuse|retry|keep", help=EDITED_HELP)] = "refuse",
    extend: Annotated[bool, typer.Option("--extend", help=EXTEND_HELP)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run a sweep, or go on with it: the same command continues after any interruption.

    [bold]Examples[/]

        metastable sweep beta.toml --dry-run

        metastable sweep beta.toml --out beta --workers 8

        metastable sweep beta.toml --out beta --scheduler tcp://10.0.0.1:8786

        metastable sweep beta.toml --out beta --cluster slurm --workers 20 --cluster-option cores=16 --cluster-option queue=main

    Functions of your own ("mylab.measures:diameter") are imported from the folder of FILE, or from what is installed.

    While it runs: metastable sweep status DIR, or xarray.open_zarr("DIR/results.zarr").
    """
    from metastable.sweep import Sweep
    from metastable.sweep import run as run_sweep
    from metastable.sweep.runner import check_place
    from metastable.sweep.store import EDITED, check_folder

    _checks.choice(edited, "edited", EDITED)
    check_place(workers, scheduler, cluster)
    # Functions of one's own may stand beside the file; local workers are started with the same path.
    sys.path.append(str(file.resolve().parent))
    described = Sweep.from_file(file)
    options = _options(cluster_option or [])
    if options and cluster is None:
        raise InvalidInputError("--cluster-option belongs to --cluster, for example --cluster slurm")
    if out is None and not dry_run:
        raise InvalidInputError("say where the results go: --out DIR (or --dry-run to see what would run)")
    if out is not None:
        check_folder(out, described, extend, edited)
    described.check()
    fresh = out is None or not (out / "results.zarr").exists()
    found = _announce(described, calibrate if dry_run or fresh else 0.0, workers)
    if dry_run or out is None:
        return
    if found is not None and found.seconds < SHORT and workers is None and scheduler is None and cluster is None:
        _say("short enough to run here, without workers")
        workers = 0
    try:
        outcome = run_sweep(
            described,
            out,
            workers=workers,
            scheduler=scheduler,
            cluster=cluster,
            cluster_options=options,
            retry_failed=retry_failed,
            edited=edited,
            extend=extend,
            progress=False if quiet else None,
            say=_say,
        )
    except KeyboardInterrupt:
        _say(f"stopped; finished tasks are kept in {out}: run the same command to go on")
        raise typer.Exit(130) from None
    _finish(outcome)


@sweep.command()
def status(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    failures: Annotated[bool, typer.Option("--failures", help="Show the traceback of every failed task.")] = False,
) -> None:
    """How far a sweep is: done, failed, running, rate, time left, the slowest tasks."""
    from rich.console import Console
    from rich.markup import escape

    from metastable.sweep import status as read_status

    found = read_status(folder)
    console = Console(soft_wrap=True)

    def line(name: str, text: Any) -> None:
        console.print(f"[dim]{name:>12}[/]  {escape(str(text))}", highlight=False)

    line("sweep", found.name or found.folder)
    line("done", f"{found.done} of {found.total} ({100 * found.done / found.total:.1f} %)")
    line("failed", found.failed)
    if found.unfinished:
        line(
            "unfinished",
            f"{counted(found.unfinished, 'member')} of finished tasks stopped early{_why_early(found.early)}",
        )
    line("running", len(found.running) if found.process is not None else 0)
    line("waiting", found.waiting)
    if found.process is not None:
        line(
            "process", f"{found.process.get('pid')} on {found.process.get('host')}, {counted(found.workers, 'worker')}"
        )
    if found.rate is not None and found.left is not None:
        line("rate", f"{found.rate:.3g} tasks/s, {duration(found.left)} left")
    if found.dashboard:
        line("dashboard", found.dashboard)
    if found.mean_seconds is not None:
        line("per task", duration(found.mean_seconds))
    for where, seconds in found.slowest:
        line("slowest", f"{duration(seconds)}: {where}")
    for item in found.failures:
        line("failed", f"task {item.number} at {item.where}: {item.error}")
        if failures:
            console.print(escape(item.traceback), highlight=False)
    for where, why in found.notes:
        line("members", f"some failed at {where}; the first: {why}")
    for name in found.damaged:
        line("damaged", f"{name}: some results cannot be read; the next run computes them again")
    if len(found.versions) > 1:
        line("note", f"results come from several versions of metastable: {', '.join(found.versions)}")
    if found.process is None and not found.complete:
        line("next", "run the same command again" + (" with --retry-failed" if not found.waiting else ""))


@sweep.command()
def plot(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Picture (.png, .pdf, .svg). Default: DIR/VARIABLE.png")
    ] = None,
    variable: Annotated[str | None, typer.Option("--variable", "-v", help="What to draw.")] = None,
    x: Annotated[str | None, typer.Option(help="Horizontal axis.")] = None,
    y: Annotated[str | None, typer.Option(help="Vertical axis (of a map).")] = None,
    kind: Annotated[str | None, typer.Option(help="map, curves or auto.")] = None,
    at: Annotated[
        list[str] | None, typer.Option(help="Fix an axis: AXIS=VALUE (the nearest one that is there). Repeatable.")
    ] = None,
    log: Annotated[bool | None, typer.Option("--log/--linear", help="Logarithmic values.")] = None,
) -> None:
    r"""Draw a phase diagram: heat maps over two axes, curves with bands over one, small multiples beyond.

    Works while the sweep runs: what is there is drawn, and the heading says how many tasks are done. The table \[plot] of the sweep
    file sets the defaults; an axis that it fixes is shown when you ask for it (--x time), and one that it shows can be fixed
    (--at time=20).
    """
    from metastable.figures import phase, style
    from metastable.figures.titles import in_common
    from metastable.sweep import open_results
    from metastable.sweep.points import corner_lines
    from metastable.sweep.results import read_variable
    from metastable.sweep.store import read_description

    described = read_description(folder)
    dataset = open_results(folder)
    described.check_plot()
    given = {"variable": variable, "x": x, "y": y, "kind": kind, "log": log, "at": _pairs(at) if at else None}
    settings = plot_settings(described.plot, {name: value for name, value in given.items() if value is not None})
    names = [str(name) for name in dataset.data_vars if name != "task_status"]
    name = settings.pop("variable", next((item for item in described.observe if item in names), names[0]))
    if name not in names:
        raise InvalidInputError(f"there is no result called {name!r}; there are: {', '.join(names)}")
    target = out if out is not None else folder / f"{name}.png"
    check_picture(target)
    tasks = list(corner_lines(described))
    shared = in_common(((task.attention(), task.tokens) for task in tasks), but=[axis.name for axis in described.axes])
    measured = _measured_with(described.observe[name], name, tasks) if name in described.observe else ""
    setting = "; ".join(part for part in (shared, _begun_with(described.start), measured) if part)
    page = phase.phase_figure(read_variable(dataset, name, folder), title=described.name, setting=setting, **settings)
    for path in style.save(page, target.with_suffix(""), (target.suffix[1:],)):
        typer.echo(str(path))


# ------------------------------------------------------------------------------------------------------ pieces


def plot_settings(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The table [plot] of a sweep file with what was `given` on the command line, which has the last word on every axis.

    An axis that is asked for as x or y is not fixed any more, nor is one shown that is fixed. Label, contours and logarithmic values
    belong to the variable that the file draws, and a label may name the place where it does ("clusters at t = 20").
    """
    settings = dict(file)
    if given.get("variable", settings.get("variable")) != settings.get("variable"):
        settings = {name: value for name, value in settings.items() if name not in ("label", "contours", "log")}
    fixed = dict(given.get("at", {}))
    for name in ("x", "y"):
        asked = given.get("y" if name == "x" else "x")
        if name not in given and settings.get(name) is not None and settings[name] in (asked, *fixed):
            del settings[name]
    before = dict(settings.get("at", {}))
    shown = {given.get("x"), given.get("y")}
    settings |= given
    settings["at"] = {axis: value for axis, value in before.items() if axis not in shown} | fixed
    if any(settings["at"].get(axis) != value for axis, value in before.items()):
        settings.pop("label", None)
    return settings


def _measured_with(table: Mapping[str, Any], name: str, tasks: Sequence[Task]) -> str:
    """The arguments of an observable in words, `radius = 0.5 / sqrt(beta)`, and the lengths that it has at `tasks` where they say
    none."""
    from metastable.analysis.observe import for_model, lengths_of
    from metastable.figures.style import plain
    from metastable.sweep.own import is_path
    from metastable.sweep.tasks import observable

    words = {key: str(value) for key, value in table.items() if key != "kind"}
    if not is_path(table["kind"]):
        made = [for_model(observable(name, task.observe[name]), task.attention()) for task in tasks]
        for length in (item for item in lengths_of(made[0]) if item not in table):
            found = [lengths_of(item)[length] for item in made]
            ends = dict.fromkeys(f"{number:.3g}" for number in (min(found), max(found)))
            words[length] = f"{' to '.join(ends)} (default)"
    return ", ".join(plain(f"{key} = {value}") for key, value in words.items())


def _begun_with(start: str | Mapping[str, Any]) -> str:
    """How members start in words, `start = mylab:ring`; "" where they are uniform, as usual."""
    from metastable.figures.style import plain
    from metastable.sweep.own import UNIFORM

    if isinstance(start, str):
        return "" if start == UNIFORM else plain(f"start = {start}")
    parameters = ", ".join(f"{name} = {value}" for name, value in start.items() if name != "kind")
    return plain(f"start = {start['kind']}({parameters})")


def _say(line: str) -> None:
    typer.echo(line, err=True)


def duration(seconds: float) -> str:
    """Seconds in a unit that people read."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1000 * seconds:.3g} ms"


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _announce(described: Any, calibrate: float, workers: int | None) -> Estimate | None:
    """Tasks, time and size, before anything runs; None without an estimate."""
    from metastable.sweep.cluster import cpus
    from metastable.sweep.estimate import estimate_apart

    axes = " x ".join(f"{len(axis)} {axis.name}" for axis in described.axes) or "one point"
    _say(
        f"{described.name or 'sweep'}: {counted(described.size, 'task')} ({axes}), {counted(described.members, 'member')} each"
    )
    if calibrate <= 0:
        return None
    try:
        found = estimate_apart(described, calibrate)
    except SweepError as reason:
        raise SweepError(f"{reason}; to run the sweep all the same, without trials: --calibrate 0") from reason
    if found is None:
        _say(
            "no estimate: a trial ended its process (out of memory, or a crash); on workers a task that does so is recorded as failed "
            "and spares the others"
        )
        return None
    for line in found.failures:
        _say(line)
    hands = max(1, cpus() if workers is None else workers)
    _say(
        f"estimated from {counted(found.sampled, 'trial')}: {duration(found.seconds)} of work "
        f"({duration(found.cheapest)} to {duration(found.dearest)} per task), "
        f"{duration(found.wall_seconds(hands))} on {counted(hands, 'worker')}, {_size(found.bytes)} on disk"
    )
    return found


def _why_early(early: Mapping[str, int]) -> str:
    """What to know about members that stopped early, from how many did by status (empty: not known)."""
    counts = ", ".join(f"{count} {name}" for name, count in early.items())
    advice = "; raise max_steps in [run] for those that ran out of steps" if "max_steps" in early else ""
    known = f" ({counts})" if counts else ""
    return f"{known}: their values are NaN from there on, and 'unfinished' in the results counts them{advice}"


def _finish(outcome: Any) -> None:
    from metastable.sweep.results import unfinished_in_store
    from metastable.sweep.store import JOURNAL

    typer.echo(
        f"{outcome.done} of {counted(outcome.total, 'task')} done, {outcome.failed} failed, "
        f"{outcome.ran} run now in {duration(outcome.seconds)}"
    )
    if unfinished := max(sum(outcome.early.values()), unfinished_in_store(outcome.folder)):
        typer.echo(f"{counted(unfinished, 'member')} stopped early{_why_early(outcome.early)}", err=True)
    if outcome.done:
        typer.echo(f"results: {outcome.folder / 'results.zarr'} (journal: {outcome.folder / JOURNAL})")
    if outcome.failed:
        typer.echo(f"see why: metastable sweep status {outcome.folder} --failures; again: --retry-failed", err=True)
        raise typer.Exit(1)


def _pairs(items: list[str]) -> dict[str, str]:
    pairs = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name or not value:
            raise InvalidInputError(f"{item!r} should read NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs


def _options(items: list[str]) -> dict[str, Any]:
    """`cores=16` and `queue=main` as values: what TOML can read is read as TOML, the rest is text."""
    options: dict[str, Any] = {}
    for name, text in _pairs(items).items():
        try:
            options[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            options[name] = text
    return options
