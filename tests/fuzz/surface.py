"""What users can call, found by looking: every public function, class and method of the package.

A name that is added to `metastable.__all__`, or to that of one of its public modules, is here the next time the tests run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import metastable as ms

NOT_CALLED = {
    "checkpoints.register": "changes the table of adapters for the whole process",
    "checkpoints.perplexity": "needs a language model; tests/unit/checkpoints asks it wrong questions",
    "checkpoints.token_states": "needs a language model; tests/unit/checkpoints asks it wrong questions",
    "Comparison.to_dict": "takes nothing",
    "Flow.decompose": "needs a language model; tests/unit/checkpoints/test_flow.py asks it wrong questions",
    "Flow.run": "needs a language model; tests/unit/checkpoints/test_flow.py asks it wrong questions",
    "Flow.words": "needs a language model; tests/unit/checkpoints/test_flow.py asks it wrong questions",
    "Sweep.run": "starts worker processes; tests/unit/sweep asks it wrong questions",
    "control.temperature": "runs ensembles for a minute; tests/unit/control asks it wrong questions",
    "control.tune": "runs ensembles for a minute; tests/unit/control asks it wrong questions",
    "control.place": "simulates a hundred times; tests/unit/control asks it wrong questions",
    "control.schedule": "simulates; tests/unit/control asks it wrong questions",
    "control.paired_elasticities": "runs ensembles; tests/unit/control asks it wrong questions",
    "Setting.plot": "draws for a second; tests/unit/control looks at it",
    "Steering.plot": "draws for a second; tests/unit/control looks at it",
    "figures.draw_setting": "draws for a second; tests/unit/control asks it wrong questions",
    "figures.draw_steering": "draws for a second; tests/unit/control asks it wrong questions",
    "figures.animate": "encodes a film; tests/unit/figures asks it wrong questions",
    "Run.animate": "encodes a film; tests/unit/figures asks it wrong questions",
    "figures.draw_run": "draws for a second; tests/unit/figures asks it wrong questions",
    "Run.plot": "draws for a second; tests/unit/figures asks it wrong questions",
    "MergeTree.plot": "draws for a second; tests/unit/figures asks it wrong questions",
    "figures.draw_tree": "draws for a second; tests/unit/figures asks it wrong questions",
    "plot_ensemble": "draws for a second; tests/unit/figures asks it wrong questions",
    "figures.plotly_run": "draws for a second; tests/unit/figures asks it wrong questions",
}
"""Names that are left out, each with the reason. Nothing else is."""

SPEAK_TO_ENGINES = "metastable.model"
"""Masks, norms and biases: their methods are what engines call, with counts that were checked before."""


@dataclass(frozen=True)
class Entry:
    """Something to call: its name for people, and the class whose instance comes first (None for functions)."""

    name: str
    function: Callable[..., Any]
    owner: type | None = None

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """What can be given by name, without `self` and `**options`."""
        found = list(inspect.signature(self.function).parameters.values())
        if self.owner is not None:
            found = found[1:]
        return [item for item in found if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]


def rooms() -> dict[str, ModuleType]:
    """The public modules, the package itself under the empty name."""
    found = {name: getattr(ms, name) for name in ms.__all__}
    return {"": ms} | {name: item for name, item in found.items() if inspect.ismodule(item) and name != "errors"}


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or what a module without one defines itself."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, item in vars(module).items()
        if getattr(item, "__module__", "") == module.__name__ and name[0] != "_"
    ]


def methods(cls: type) -> Iterator[Entry]:
    """The public methods that a class of ours has; static ones and class methods need no instance."""
    for name in dir(cls):
        if name.startswith("_"):
            continue
        raw, item = inspect.getattr_static(cls, name), getattr(cls, name)
        if not inspect.isroutine(item) or not getattr(item, "__module__", "").startswith("metastable"):
            continue
        bound = isinstance(raw, (staticmethod, classmethod))
        yield Entry(f"{cls.__name__}.{name}", item, None if bound else cls)


def all_entries(module: ModuleType, room: str | None = None) -> Iterator[Entry]:
    """Everything public of one module that can be called."""
    room = next(name for name, item in rooms().items() if item is module) if room is None else room
    for name in public_names(module):
        item = getattr(module, name)
        if inspect.ismodule(item) or not callable(item) or getattr(item, "_is_protocol", False):
            continue
        yield Entry(f"{room}.{name}" if room else name, item)
        inner = item is not ms.Attention and item.__module__.startswith(SPEAK_TO_ENGINES)
        if inspect.isclass(item) and not inspect.isabstract(item) and not inner:
            yield from methods(item)


def entries() -> dict[str, Entry]:
    """Name -> what is called: everything public, each object once, without `NOT_CALLED`."""
    found: dict[int, Entry] = {}
    for room, module in rooms().items():
        for entry in all_entries(module, room):
            found.setdefault(id(entry.function), entry)
    return {
        entry.name: entry
        for entry in sorted(found.values(), key=lambda item: item.name)
        if entry.name not in NOT_CALLED
    }
