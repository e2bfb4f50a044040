"""The Python behind a picture: code that a person can run, with exactly the calls that the explorer makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metastable.explorer import limits
from metastable.explorer.setting import MATRICES, Clock, Setting
from metastable.model.declare import REGISTRY
from metastable.model.serialize import PARTS, UNNAMED

NAMES = ("left", "right")


def python_code(settings: Sequence[Setting], clock: Clock) -> str:
    """A script that runs the settings (one, or two side by side) and prints what the page shows."""
    numpy = "import numpy as np\n\n"
    single = len(settings) == 1
    parts = [_run(setting, clock, "" if single else f"{name}_") for name, setting in zip(NAMES, settings)]
    text = "\n\n".join(parts) + "\n"
    return (numpy if "np." in text else "") + "import metastable as ms\n\n" + text


def _run(setting: Setting, clock: Clock, prefix: str) -> str:
    model, start, run = f"{prefix}model", f"{prefix}start", f"{prefix}run"
    dim = setting.model.dim
    lines = [f"{model} = ms.Attention({_arguments(setting.table, dim)})"]
    lines.append(f"{start} = {_draw(setting, dim)}")
    if setting.start.appended:
        rows = [list(position) for position in setting.start.appended]
        lines.append(f"{start} = np.concatenate([{start}, ms.sphere.normalize(np.array({rows!r}))])")
    for index, position in setting.start.placed.items():
        lines.append(f"{start}[{index}] = ms.sphere.normalize({list(position)!r})")
    if setting.start.removed:
        lines.append(f"{start} = np.delete({start}, {list(setting.start.removed)!r}, axis=0)")
    lines.append(_simulate(setting, clock, model, start, run))
    lines += [
        "",
        f"print({run})",
        f"delta = {setting.separation!r}",
        f'print("Renyi centers:", ms.renyi_centers({start}, delta))',
        f'print("strong ones:", ms.renyi_centers({start}, delta, strong=True))',
        f'print("clusters at the end:", ms.cluster_labels({run}.final, radius={setting.cluster_radius!r}).max() + 1)',
    ]
    if len(setting.model.all_heads) == 1:
        lines.append(f'print("predicted:", ms.predict({model}).configuration)')
    lines.append(f'print("reached:", ms.classify({run}).configuration)')
    return "\n".join(lines)


def _draw(setting: Setting, dim: int) -> str:
    """The tokens before anything was changed by hand."""
    start = setting.start
    name = "sphere.uniform" if start.kind == "uniform" else f"starts.{start.kind}"
    numbers = "".join(f", {key}={value!r}" for key, value in start.numbers.items())
    return f"ms.{name}({start.tokens}, dim={dim}, seed={start.seed}{numbers})"


def _simulate(setting: Setting, clock: Clock, model: str, start: str, run: str) -> str:
    options = setting.options(clock)
    if setting.step is None:
        return f"{run} = ms.simulate({model}, {start}, until={clock.until!r}, max_steps={options['max_steps']})"
    count = limits.FRAMES
    if clock.log:
        grid = f"np.concatenate([[0.0], np.geomspace({clock.first!r}, {clock.until!r}, {count - 1})])"
        grid = f"times = {grid}\ntimes[-1] = {clock.until!r}"
    else:
        grid = f"times = np.linspace(0.0, {clock.until!r}, {count})"
    return (
        f"{grid}\ntimes = np.unique(np.rint(times / {setting.step!r})) * {setting.step!r}\n"
        f"{run} = ms.simulate({model}, {start}, times=times, seed={options['seed']}, max_steps={options['max_steps']})"
    )


def _arguments(table: Any, dim: int) -> str:
    """The fields of a model as keyword arguments, one per line when there are many."""
    pieces = [f"{name}={_value(name, value, dim)}" for name, value in table.items() if value is not None]
    line = ", ".join(pieces)
    return line if len(line) < 80 else "\n    " + ",\n    ".join(pieces) + ",\n"


def _value(name: str, value: Any, dim: int) -> str:
    if name in MATRICES:
        return _matrix(value, dim)
    if name in REGISTRY:
        return _variant(name, value)
    if name in PARTS:
        return _call(PARTS[name].__name__, value)
    if name == "heads":
        heads = [f"ms.Head({', '.join(f'{k}={_value(k, v, dim)}' for k, v in head.items())})" for head in value]
        return f"({', '.join(heads)},)"
    return repr(value)


def _variant(family: str, value: Any) -> str:
    """A norm, mask or bias as a call; weights by their name."""
    if family == "weights" and isinstance(value, str):
        return repr(value)
    table = {"kind": value} if isinstance(value, str) else value
    rest = {name: item for name, item in table.items() if name != "kind"}
    kind = table["kind"] if "kind" in table else UNNAMED[family]
    return _call(REGISTRY[family][kind].__name__, rest)


def _call(name: str, fields: dict[str, Any]) -> str:
    return f"ms.{name}({', '.join(f'{key}={item!r}' for key, item in fields.items())})"


def _matrix(value: Any, dim: int) -> str:
    """A matrix as the shortest code that makes exactly it."""
    if not isinstance(value, dict):
        return repr(value)
    if "gaussian" in value:
        return f"np.random.default_rng({value['gaussian']}).standard_normal(({dim}, {dim}))"
    pairs = value["eigenvalues"]
    if all(im == 0 for _, im in pairs):
        return f"np.diag({[float(re) for re, _ in pairs]!r})"
    from metastable.explorer.setting import from_eigenvalues

    return repr(from_eigenvalues(pairs, dim).tolist())
