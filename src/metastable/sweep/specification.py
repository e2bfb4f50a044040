"""`Sweep`: a grid of ensembles, described once, in TOML or in Python, and checked as a whole before anything runs."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable.errors import MetastableError, ModelError, StoreError, SweepError
from metastable.integrate.plan import Wishes
from metastable.integrate.planning import horizon, make
from metastable.model import Attention
from metastable.sweep import axes, declared, expressions, own, points, tasks
from metastable.sweep.axes import Axis
from metastable.sweep.points import MODEL_FIELDS, REPLICATE
from metastable.sweep.tasks import Task, canonical, digest

if TYPE_CHECKING:
    from metastable.sweep.runner import Outcome

OPTIONS = ("method", "engine", "interaction", "rtol", "atol", "step", "max_steps")
"""Keys of [run] that are handed to `metastable.ensemble` as they are."""
TAKEN = ("status", "accepted", "rejected", "evaluations", tasks.UNFINISHED)
"""Names of results that every ensemble has; observables need other names."""
STARTS = ("independent", "shared")
KEEPS = ("members", "statistics")
PLOT_KEYS = ("variable", "x", "y", "kind", "at", "label", "log", "contours")
"""Keys of the table [plot]."""
MOST_TASKS = 10_000_000


@dataclass(frozen=True)
class Sweep:
    """A grid of ensembles.

    Fields
    ------
    model : fields of `Attention` that are the same everywhere, as in its TOML form (masks and norms by name or as tables).
        `query`, `key` and `value` may be families (see `metastable.sweep.families`).
    grid : axis -> values: a list, `{range = [a, b], count = n}`, `{range = [a, b], step = s}`, `{log_range = [a, b], count = n}`.
        An axis is a field of the model, `tokens`, the replicate number `draw`, a free name that formulas use, or a name of its
        own whose values are tables of fields that vary together, for example
        `{label = "d = 3", dim = 3, tokens = 400}`.
    tokens, members : size of the ensembles.
    times : output times: a list or a range.
    observe : name -> table with a `kind` of `metastable.observe` (default: the name) and its arguments; strings among the
        arguments are formulas: `radius = "0.5 / sqrt(beta)"`. A function of your own is named by where it is imported from, `kind =
        "package.module:name"` (in Python the function itself); tables of arguments are given to it by name. In Python also an
        observable itself, `metastable.observe.clusters(radius=0.1)`, or a frozen dataclass of your own whose fields are numbers: the
        sweep keeps the table that it is made again of.
    start : "uniform", a table with a `kind` of `metastable.starts` and its parameters, or a function of a generator (or of generator,
        tokens, dim) by its import path.
    seed : the one seed of the sweep.
    options : method, engine, tolerances: handed to `metastable.ensemble`.
    starts : "independent" at every grid point, or "shared" (the same starts everywhere: paired comparisons).
    keep : "members" keeps every member, "statistics" mean, std, quantiles and count over members.
    name, description, plot : for people: a title, a paragraph, and defaults of `metastable sweep plot`.
    """

    model: Mapping[str, Any]
    grid: Mapping[str, Any]
    observe: Mapping[str, Any]
    times: Any
    members: int
    tokens: Any = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    starts: str = "independent"
    keep: str = "members"
    name: str = ""
    description: str = ""
    plot: Mapping[str, Any] = field(default_factory=dict)
    start: Any = own.UNIFORM

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name in ("model", "grid", "observe", "options", "plot"):
            if not isinstance(getattr(self, name), Mapping):
                raise SweepError(f"{name} must be a table, not {getattr(self, name)!r}")
        put(self, "model", _model_table(self.model))
        put(self, "grid", {name: _grid_entry(name, entry) for name, entry in self.grid.items()})
        put(self, "observe", {name: _observe_table(name, table) for name, table in self.observe.items()})
        if not self.observe:
            raise SweepError("observe is empty; say what to measure, for example [observe.mean_cosine]")
        put(self, "start", own.start_table(self.start))
        own.check_start(self.start)
        put(self, "options", axes.plain(self.options))
        unknown = [name for name in self.options if name not in OPTIONS]
        if unknown:
            raise SweepError(
                f"run has no key {unknown[0]!r}; its keys are: times (or until and count), {', '.join(OPTIONS)}"
            )
        put(self, "members", _checks.count(self.members, "members", error=SweepError))
        put(self, "seed", _checks.seed(self.seed))
        _checks.choice(self.starts, "starts", STARTS, error=SweepError)
        _checks.choice(self.keep, "keep", KEEPS, error=SweepError)
        for name in ("name", "description"):
            if not isinstance(getattr(self, name), str):
                raise SweepError(f"{name} must be text, not {getattr(self, name)!r}")
        put(self, "times", tuple(_checks.output_times(axes.expand(self.times, "times")).tolist()))
        if self.times[-1] == 0:
            raise SweepError("times holds only 0, which is the start; give later times")
        self._check_names()
        own.check_conflicts(self)

    def _check_names(self) -> None:
        """Axes that nobody would notice are refused, and so are sweeps too large to list."""
        used: set[str] = set()
        described = {"model": self.model, "observe": self.observe, "grid": self.grid, "tokens": self.tokens}
        described |= {} if isinstance(self.start, str) else {"start": self.start}
        for where, text in points.formulas(described):
            used |= expressions.names(text, where)
        for item in self.axes:
            if item.name in MODEL_FIELDS or item.name in ("tokens", REPLICATE) or item.name in used:
                continue
            if all(isinstance(value, dict) for value in item.values):
                continue
            raise SweepError(
                f"grid.{item.name} changes nothing: it is no field of the model ({', '.join(MODEL_FIELDS)}), not 'tokens' or "
                f"'{REPLICATE}', and no formula uses it"
            )
        both = [item.name for item in self.axes if item.name in self.observe]
        if both:
            raise SweepError(f"observe.{both[0]}: {both[0]!r} is an axis of the grid; call the result otherwise")
        if self.size > MOST_TASKS:
            raise SweepError(f"the grid has {self.size} points; the most is {MOST_TASKS}. Use fewer values per axis")

    # ------------------------------------------------------------------------------------------------ the grid

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the grid, in the order of the file."""
        return tuple(axes.axis(name, entry) for name, entry in self.grid.items())

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values on each axis."""
        return tuple(len(item) for item in self.axes)

    @property
    def size(self) -> int:
        """Number of tasks."""
        total = 1
        for length in self.shape:
            total *= length
        return total

    def task(self, number: int) -> Task:
        """Task `number` of 0..size-1, counted with the last axis fastest."""
        number = _checks.count(number, "number", 0, self.size - 1, error=SweepError)
        index = tuple(int(i) for i in np.unravel_index(number, self.shape)) if self.axes else ()
        point = {item.name: item.labels[place] for item, place in zip(self.axes, index)}
        try:
            return points.task(self, number, index, point)
        except MetastableError as reason:
            raise SweepError(f"at {tasks.describe(point)}: {reason}") from reason

    def tasks(self) -> Iterator[Task]:
        """All tasks, made one at a time."""
        return (self.task(number) for number in range(self.size))

    def check(self) -> None:
        """Build every model and every observable, and ask the engines whether they can do them; raises at the first no.

        The keys of `plot` are looked at, too (`check_plot`).
        """
        self.check_plot()
        seen: set[str] = set()
        for task in self.tasks():
            content = canonical([task.model, task.tokens, task.observe])
            if content in seen:
                continue
            seen.add(content)
            try:
                model = task.attention()
                model.check_count(task.tokens)
                task.observables()
                wishes = Wishes(**task.options)
                save = horizon(None, task.times, wishes.method)
                make((model,), task.tokens, save, wishes, members=task.members, seed=0)
            except MetastableError as reason:
                raise SweepError(f"at {task.where}: {reason}") from reason
        self.check_labels()

    def check_plot(self) -> None:
        """Refuse keys of `plot` that `metastable sweep plot` does not know."""
        unknown = [key for key in self.plot if key not in PLOT_KEYS]
        if unknown:
            raise SweepError(f"[plot] has no key {unknown[0]!r}; its keys are: {', '.join(PLOT_KEYS)}")

    def check_labels(self) -> None:
        """Refuse observables whose levels or cells change along the grid: results have one coordinate for all points."""
        seen: set[str] = set()
        known: dict[tuple[str, str], tuple[list[float], str]] = {}
        for task in self.tasks():
            content = canonical(task.observe)
            if content in seen:
                continue
            seen.add(content)
            try:
                observables = task.observables()
            except MetastableError:
                continue  # this point fails by itself, and says why
            for name, item in observables.items():
                for dim, along in getattr(item, "coordinates", {}).items():
                    numbers = np.asarray(along).tolist()
                    first, where = known.setdefault((name, dim), (numbers, task.where))
                    if first != numbers:
                        raise SweepError(
                            f"observe.{name}: what stands along {dim!r} differs between {where} and {task.where}, and results have one "
                            "list of it for the whole grid; observe each under a name of its own, or run a sweep for each"
                        )

    # --------------------------------------------------------------------------------------------- in and out

    def to_dict(self) -> dict[str, Any]:
        """The sweep as a table of plain values, in the form of its TOML file."""
        table: dict[str, Any] = {name: getattr(self, name) for name in ("name", "description") if getattr(self, name)}
        table |= {"seed": self.seed, "members": self.members}
        table |= {"tokens": self.tokens} if self.tokens is not None else {}
        table |= {"starts": self.starts, "keep": self.keep}
        table |= {"start": self.start} if self.start != own.UNIFORM else {}
        # TOML writers put tables behind lists, so the order of the axes is said apart.
        table |= {"axes": list(self.grid)} if len(self.grid) > 1 else {}
        table["run"] = {"times": list(self.times), **self.options}
        table |= {"model": self.model, "grid": self.grid, "observe": self.observe}
        if self.plot:
            table["plot"] = self.plot
        return axes.plain(table)

    @property
    def identity(self) -> str:
        """A hash of everything but the words for people."""
        table = self.to_dict()
        return digest(canonical({name: v for name, v in table.items() if name not in ("name", "description", "plot")}))

    def to_toml(self) -> str:
        """The sweep as TOML."""
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, data: Any) -> Sweep:
        """The sweep that a table describes."""
        if not isinstance(data, Mapping):
            raise SweepError(f"a sweep must be a table, not {data!r}")
        known = {"name", "description", "seed", "members", "tokens", "start", "starts", "keep", "axes"}
        tables = {"model", "grid", "observe", "run", "plot"}
        unknown = [key for key in data if key not in known | tables]
        if unknown:
            raise SweepError(
                f"a sweep has no key {unknown[0]!r}; its keys are {', '.join(sorted(known))}, and the tables "
                f"{', '.join(f'[{name}]' for name in sorted(tables))}"
            )
        for name in tables & set(data):
            if not isinstance(data[name], Mapping):
                raise SweepError(f"[{name}] must be a table, not {data[name]!r}")
        for name, example in (("model", "dim = 2"), ("observe", "mean_cosine = {}"), ("run", "times = [1, 10, 100]")):
            if name not in data:
                raise SweepError(f"the table [{name}] is missing, for example: [{name}]  {example}")
        if "members" not in data:
            raise SweepError("members is missing: how many starts per grid point, for example members = 100")
        run = dict(data["run"])
        times = _times(run)
        rest = {name: value for name, value in data.items() if name in known - {"axes"} or name == "plot"}
        return cls(
            model=data["model"],
            grid=_in_order(data.get("grid", {}), data.get("axes")),
            observe=data["observe"],
            times=times,
            options=run,
            **rest,
        )

    @classmethod
    def from_toml(cls, text: str) -> Sweep:
        """The sweep that TOML text describes."""
        if not isinstance(text, str):
            raise SweepError(f"from_toml takes TOML text, not {type(text).__name__}; for a file use from_file")
        try:
            return cls.from_dict(tomllib.loads(text))
        except tomllib.TOMLDecodeError as reason:
            raise SweepError(f"this is not TOML: {reason}") from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Sweep:
        """The sweep of a TOML file."""
        if not isinstance(path, (str, os.PathLike)):
            raise SweepError(f"from_file takes the path of a TOML file, not {type(path).__name__}")
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as reason:
            raise StoreError(f"{path} cannot be read: {reason.strerror}") from None
        except UnicodeDecodeError as reason:
            raise SweepError(f"{path} is not TOML: {reason}") from None
        try:
            return cls.from_toml(text)
        except SweepError as reason:
            raise SweepError(f"{path}: {reason}") from reason

    def run(self, out: str | os.PathLike[str], **how: Any) -> Outcome:
        """Run what is not done yet and keep it under `out`; see `metastable.sweep.run`."""
        from metastable.sweep.runner import run

        return run(self, out, **how)


# ------------------------------------------------------------------------------------------- reading the pieces


def _times(run: dict[str, Any]) -> Any:
    """Take `times`, or `until` (with `count`), out of the table [run]."""
    if "times" in run and "until" not in run:
        return run.pop("times")
    if "until" in run and "times" not in run:
        until = _checks.horizon(run.pop("until"))
        count = _checks.count(run.pop("count", 1), "run.count", error=SweepError)
        return np.linspace(0.0, until, count + 1)[1:]
    raise SweepError("[run] needs either times = [...] (or a range) or until = 200.0 (with count = 50)")


def _in_order(grid: Mapping[str, Any], order: Any) -> Mapping[str, Any]:
    """The axes of the grid in the order that `axes` gives (default: that of the file)."""
    if order is None:
        return grid
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(grid):
        raise SweepError(f"axes must name every axis of [grid] once ({', '.join(grid)}), not {order!r}")
    return {name: grid[name] for name in order}


def _part(value: Any, name: str) -> Any:
    """Variants given as objects, in the form of the model's tables."""
    if isinstance(value, (str, Mapping, list, tuple, int, float, np.ndarray, np.generic)) or value is None:
        return axes.plain(value)
    try:
        # A default is left out of the model's table: then its kind says it.
        return Attention(dim=2, beta=1.0, **{name: value}).to_dict().get(name, getattr(value, "kind", None))
    except (ModelError, TypeError) as reason:
        raise SweepError(f"model.{name}: {reason}") from None


def _model_table(model: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [name for name in model if name not in MODEL_FIELDS]
    if unknown:
        raise SweepError(f"[model] has no field {unknown[0]!r}; its fields are: {', '.join(MODEL_FIELDS)}")
    return {name: _part(value, name) for name, value in model.items() if value is not None}


def _grid_entry(name: str, entry: Any) -> Any:
    if isinstance(entry, (list, tuple)) and name in MODEL_FIELDS:
        return [_part(value, name) for value in entry]
    return axes.plain(entry)


def _observe_table(name: str, table: Any) -> dict[str, Any]:
    if declared.is_observable(table):
        table = declared.table_of(table, f"observe.{name}")
    elif callable(table):
        table = {"kind": own.path_of(table, f"observe.{name}")}
    if not isinstance(table, Mapping):
        raise SweepError(
            f"observe.{name} must be a table such as {{kind = 'clusters', radius = 0.1}}, or an observable such as "
            f"metastable.observe.clusters(radius=0.1), not {table!r}"
        )
    if not name.isidentifier() or name in (*axes.RESERVED, *TAKEN):
        raise SweepError(f"observe.{name}: {name!r} cannot be the name of a result; use letters, digits and _")
    described = {"kind": name, **axes.plain(table)}
    own.check_arguments(f"observe.{name}", described)
    return described
