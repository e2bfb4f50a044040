"""What functions of users are known by beside their names: digests of what they are made of (`metastable._functions.reading`).

Two closures, `functools.partial`s or lambdas may share a name and be different functions, and so are the versions of one that is
edited, wherever and however often they are imported; digests of members hold what is said here. What a computation changes of them (a
counter, a table of results) is no part of it. Instructions are those of one version of Python, so what two versions computed is told
apart, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from metastable._functions import reading
from metastable.analysis.observe_own import Own
from metastable.stores.seal import digest_of

if TYPE_CHECKING:
    from metastable.ensembles.problem import Problem

Readings = dict[str, reading.Reading]
"""Of each function what it is made of."""

_known_otherwise: ContextVar[bool] = ContextVar("known_otherwise", default=False)


@contextmanager
def known_otherwise() -> Iterator[None]:
    """While somebody computes who knows versions of functions by other means (a sweep): they are not read for every ensemble."""
    token = _known_otherwise.set(True)
    try:
        yield
    finally:
        _known_otherwise.reset(token)


def read(problem: Problem) -> Readings:
    """What the start, the model and the observables that are functions of users are made of, as they are now."""
    functions = {} if _known_otherwise.get() else dict(_functions_of(problem))
    return {name: reading.read(function) for name, function in functions.items()}


def own_functions(problem: Problem, before: Readings) -> dict[str, str]:
    """Digests of these functions, without what the computation since `before` has changed, and the version of Python whose code they
    have."""
    after, functions = read(problem), dict(_functions_of(problem))
    parts = {name: reading.unchanged(functions[name], before[name], after[name]) for name in before}
    return {"python": reading.VERSION, **{name: digest_of(found) for name, found in parts.items()}} if parts else {}


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
