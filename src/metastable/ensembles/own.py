"""What functions of users are known by beside their names: what they are made of, and what they give for fixed input.

Two closures, `functools.partial`s or lambdas may share a name and be different functions, and so are the versions of one that is
edited. What they are made of (`metastable._functions`) and what they give tell them apart, wherever and however often they are
imported; digests of members hold what is said here. What a computation changes of them (a counter, a table of results) is no part of
it. Instructions are those of one version of Python, so what two versions computed is told apart, too.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _functions, sphere
from metastable._checks import FloatArray
from metastable.analysis.observe_own import Own
from metastable.stores.seal import digest_of

if TYPE_CHECKING:
    from metastable.ensembles.problem import Problem

STREAM = 2**31
"""Key of the stream that probes draw from: no member has it."""
DRAWS = 8
"""Starts and models that are drawn."""
DIGITS = 6
"""Digits that count: other processors and libraries differ in the last ones."""
NOTHING = 1e-9
"""Smaller than that, over the largest number of an array, is rounding."""
STATES = 66
"""States that an observable is asked for: clusters, and one of them, whose distances go from those of scattered tokens ..."""
DECADES = 8.0
"""... to so many decades less, so that thresholds tell."""


Readings = Mapping[str, _functions.Reading | str]
"""Of each function what it is made of, or why it cannot be read."""


def read(problem: Problem) -> Readings:
    """What the start, the model and the observables that are functions of users are made of, as they are now."""
    return {name: _attempt(lambda item=function: _functions.read(item)) for name, function, _ in _probes(problem)}


def own_functions(problem: Problem, before: Readings) -> dict[str, str]:
    """Digests of these functions, and the version of Python whose instructions are in them; `before`: as they were `read` before
    anything was computed."""
    now = read(problem)
    digests = {
        name: digest_of(
            [_functions.VERSION, _unchanged(before.get(name), now[name]), _attempt(lambda ask=probe: _rounded(ask()))]
        )
        for name, _, probe in _probes(problem)
    }
    return {"python": _functions.VERSION, **digests} if digests else {}


def _unchanged(before: Any, now: Any) -> Any:
    """What a computation has left as it was; why a function could not be read where that is so."""
    both = isinstance(before, _functions.Reading) and isinstance(now, _functions.Reading)
    return _functions.settled(before, now) if both else str(now)


def _probes(problem: Problem) -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """The functions of users, each with a call of it with fixed input."""
    draw, draw_model, tokens, dim = problem.draw, problem.draw_model, problem.tokens, problem.model.dim
    if draw is not None:
        yield "start", draw.function, lambda: np.array([draw(_generator(k), tokens, dim) for k in range(DRAWS)], float)
    if draw_model is not None:
        yield "model", draw_model, lambda: {k: draw_model(_generator(k)).to_dict() for k in range(DRAWS)}
    for name, item in problem.observables.items():
        if isinstance(item, Own) or type(item).__module__.split(".")[0] != "metastable":
            function = item.function if isinstance(item, Own) else item
            yield f"observe {name}", function, functools.partial(_measured, item, problem)


def _measured(item: Any, problem: Problem) -> Any:
    """What a function says of `STATES`, as many at once as the ensemble has times. (Whose model is the first depends on the seed.)"""
    model = problem.model if problem.draw_model is None else problem.draw_model(_generator())
    states = gathering(-(-STATES // problem.times.size) * problem.times.size, problem.tokens, problem.model.dim)
    if isinstance(item, Own) and not item.whole:
        return item.measure(states, start=states[0], model=model, times=np.arange(float(len(states))))
    parts = np.split(states, len(states) // problem.times.size)
    return [item.measure(part, start=part[0], model=model, times=problem.times) for part in parts]


def gathering(count: int, tokens: int, dim: int) -> FloatArray:
    """States (count, tokens, dim), in turns of clusters and of one cluster, of all widths from scattered to `DECADES` below."""
    generator = _generator()
    around = sphere.uniform(count * tokens, dim=dim, seed=generator).reshape(count, tokens, dim)
    nearest = generator.integers(0, max(1, tokens // 4), tokens)  # the token that each one gathers at
    widths = 10.0 ** -(np.linspace(0.0, DECADES, count)[:, None, None] + generator.uniform(size=(count, tokens, 1)))
    noise = widths * generator.standard_normal((count, tokens, dim))
    one = (np.arange(count) % 2 == 1)[:, None, None]
    return sphere.retract(np.where(one, around[:, :1], around[:, nearest]) + noise)


def _generator(number: int = 0) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(0, spawn_key=(STREAM, number)))


def _attempt(call: Callable[[], Any]) -> Any:
    """What a call gives, or that it raises: members say more of that. (Ctrl-C loses none of those that are there.)"""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except (Exception, KeyboardInterrupt) as reason:
        return f"raises {type(reason).__name__}"


def _rounded(given: Any) -> Any:
    """Numbers with the digits that count, in lists and dictionaries as they came."""
    if isinstance(given, dict):
        return {str(name): _rounded(value) for name, value in given.items()}
    array: Any = np.asarray(given)
    if array.dtype.kind not in "fc":
        return json.loads(json.dumps(array.tolist(), default=repr))
    parts = np.stack([array.real, array.imag]).astype(float)
    largest = np.abs(parts[np.isfinite(parts)]).max(initial=0.0)
    parts[np.abs(parts) <= NOTHING * largest] = 0.0
    return [f"{value:.{DIGITS}g}" for value in parts.ravel()] + [str(array.shape)]
