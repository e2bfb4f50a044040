"""What functions of users are known by beside their names: digests of what they are made of (`metastable._functions`).

Two closures, `functools.partial`s or lambdas may share a name and be different functions, and so are the versions of one that is
edited, wherever and however often they are imported; digests of members hold what is said here. What a computation changes of them (a
counter, a table of results) is no part of it. Instructions are those of one version of Python, so what two versions computed is told
apart, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from metastable import _functions
from metastable.analysis.observe_own import Own
from metastable.stores.seal import digest_of

if TYPE_CHECKING:
    from metastable.ensembles.problem import Problem

Readings = dict[str, _functions.Reading]
"""Of each function what it is made of."""


def read(problem: Problem) -> Readings:
    """What the start, the model and the observables that are functions of users are made of, as they are now."""
    return {name: _functions.read(function) for name, function in _functions_of(problem)}


def own_functions(problem: Problem, before: Readings) -> dict[str, str]:
    """Digests of these functions as they were `before` anything was computed, and the version of Python whose code they have."""
    for name, now in read(problem).items():
        _functions.note_changes(before[name], now)
    digests = {name: digest_of(reading.parts) for name, reading in before.items()}
    return {"python": _functions.VERSION, **digests} if digests else {}


def _functions_of(problem: Problem) -> Iterator[tuple[str, Any]]:
    if problem.draw is not None:
        yield "start", problem.draw.function
    if problem.draw_model is not None:
        yield "model", problem.draw_model
    for name, item in problem.observables.items():
        if isinstance(item, Own):
            yield f"observe {name}", item.function
        elif type(item).__module__.split(".")[0] != "metastable":
            yield f"observe {name}", item
