"""What functions of users are known by beside their names: what they give for one fixed input.

Two closures, `functools.partial`s or lambdas may share a name and be different functions, and so are the versions of one that is
edited. Their results tell them apart, wherever and however often they are imported; digests of members hold what is said here.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import sphere
from metastable._checks import FloatArray
from metastable.analysis.observe_own import Own
from metastable.stores.seal import digest_of

if TYPE_CHECKING:
    from metastable.ensembles.problem import Problem

STREAM = 2**31
"""Key of the stream that probes draw from: no member has it."""
DIGITS = 6
"""Digits that count: other processors and libraries differ in the last ones."""
NOTHING = 1e-9
"""Smaller than that, over the largest number of an array, is rounding."""


def own_functions(problem: Problem) -> dict[str, str]:
    """Digests of what the start, the model and the observables that are functions of users give for one fixed input."""
    return {name: _digest(probe) for name, probe in _probes(problem)}


def _probes(problem: Problem) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The functions of users, each with one fixed input."""
    draw, draw_model, tokens, dim = problem.draw, problem.draw_model, problem.tokens, problem.model.dim
    if draw is not None:
        yield "start", lambda: np.asarray(draw(_generator(), tokens, dim), dtype=float)
    if draw_model is not None:
        yield "model", lambda: draw_model(_generator()).to_dict()
    times = np.array([0.0, 1.0])
    states = np.stack([sphere.uniform(tokens, dim=dim, seed=seed) for seed in range(times.size)])
    for name, item in problem.observables.items():
        if isinstance(item, Own):
            yield f"observe {name}", partial(_measured, item, states, times, problem)


def _measured(item: Own, states: FloatArray, times: FloatArray, problem: Problem) -> Any:
    """What a function says of some states. (Which member's model is the first one depends on the seed.)"""
    model = problem.model if problem.draw_model is None else problem.draw_model(_generator())
    return item.measure(states, start=states[0], model=model, times=times)


def _generator() -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(0, spawn_key=(STREAM,)))


def _digest(probe: Callable[[], Any]) -> str:
    """A digest of what a function gives; members say what it raises. (Ctrl-C loses none of those that are there.)"""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = probe()
        return digest_of(_rounded(given))
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
