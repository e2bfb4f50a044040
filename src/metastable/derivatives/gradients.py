"""`gradient`: the derivative of what a run ends with, in everything that it was made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable._words import counted
from metastable.derivatives.objectives import DIFFERENCES, check, measured
from metastable.errors import InvalidInputError, NumericalRangeError, UnsupportedError
from metastable.integrate import adjoint
from metastable.integrate.plan import ATOL, MAX_STEPS, RTOL, Plan, Save, Wishes
from metastable.integrate.planning import horizon, make
from metastable.integrate.solution import Statistics
from metastable.kernels import pullback, select
from metastable.kernels.directions import require_directions
from metastable.kernels.pullback import HEAD_FIELDS
from metastable.model import Attention, Schedule

OF_HEADS = ("beta", *HEAD_FIELDS)
OF_MODEL = ("frozen", "frozen_weights", "masses")
NAMES = ("start", *OF_HEADS, *OF_MODEL)
"""What a derivative can be taken in."""
LONGEST = 1e5
"""Horizon, in the fastest time scale of the model, from which explicit steps are more than `max_steps` by default."""


@dataclass(frozen=True, eq=False, repr=False)
class Gradient:
    """A value and its derivatives; made by `gradient`.

    Fields
    ------
    value : the observable.
    gradient : derivatives by name (see `metastable.gradient` for their shapes).
    times, states : when the observable was taken, (times,), and the tokens then, (times, tokens, dim).
    rates : derivative of the value in each of `times`, (times,): how fast it changes when the run is a little longer.
    statistics : steps and evaluations of the run.
    engine : who computed it.
    """

    value: float
    gradient: dict[str, Any]
    times: FloatArray
    states: FloatArray
    rates: FloatArray
    statistics: Statistics
    engine: str

    def __repr__(self) -> str:
        steps = counted(self.statistics.accepted, "step")
        return f"<Gradient: value {self.value:.6g}, in {', '.join(self.gradient)}; {steps} on {self.engine}>"

    def __getitem__(self, name: str) -> Any:
        """`result["beta"]` is `result.gradient["beta"]`."""
        if name not in self.gradient:
            raise InvalidInputError(f"there is no derivative in {name!r}, only in {', '.join(self.gradient)}")
        return self.gradient[name]

    @property
    def final(self) -> FloatArray:
        """The tokens at the end, (tokens, dim)."""
        return self.states[-1]

    @property
    def rate(self) -> float:
        """The derivative of the value in the time at which the last state is taken."""
        return float(self.rates[-1])


def gradient(
    model: Attention | Schedule,
    start: Any,
    observable: Any,
    until: float | None = None,
    wrt: Iterable[str] | str | None = None,
    *,
    times: Any = None,
    engine: str = "auto",
    rtol: float = RTOL,
    atol: float = ATOL,
    max_steps: int = MAX_STEPS,
    max_step: float | None = None,
    threads: int | None = None,
    differences: str | None = None,
    progress: bool | None = None,
) -> Gradient:
    """Value and gradient of an observable of the tokens that `model` moves from `start` to `until`.

    The discrete adjoint of the accepted steps of Tsit5: the derivative of the very numbers that
    `simulate(model, start, until, method="tsit5", interaction="direct")` computes, with its steps held fixed. It costs a few runs,
    whatever the number of parameters, and memory for O(sqrt(steps)) states. Where tokens rest or only drift, steps as long as the
    state allows do not follow small changes of it; there (step times |Jacobian| > 1) shorter ones are made than `simulate` makes.

    Parameters
    ----------
    model : an `Attention` with smooth weights ("softmax", "unnormalized") and without noise; or a `Schedule` of them.
    start : unit vectors (tokens, dim).
    observable : one of `metastable.derivatives` (`pair_cosine(0, 1)`, `pair_angle`, `mean_cosine(target)`, `order_parameter()`,
        `spread(tokens)`, `interaction_energy(beta)`, `soft_clusters(radius)`), or a function of the tokens x (tokens, dim) that returns
        (value, slope), the slope of the shape of x. With `times` a function is given all states (times, tokens, dim); the
        observables of `metastable.derivatives` are averaged over the times.
    until : the time to reach; may be left out when `times` is given.
    wrt : what to differentiate in, a name or several (None: all that the model has): "start", "beta", "query", "key", "value",
        "output", "query_bias", "key_bias", "value_bias", "frozen", "frozen_weights", "masses".
    times : when the observable is taken (None: at `until`).
    engine : "reference", "cpu" or "auto".
    rtol, atol, max_steps, threads, progress : as in `metastable.simulate`.
    max_step : a further bound of the steps (None: none).
    differences : for functions that return the value alone: "central" (differences of the function in the tokens, 2 tokens (dim - 1)
        values of it and no further run; error about 1e-10 of the value) or "complex" (exact, for analytic functions).

    Returns a `Gradient`. Its entries:

    - "start" (tokens, dim): row k is tangent at x_k, and the value changes by `sum_k <g_k, v_k>` when the tokens move by tangent v_k
      (the Riemannian gradient on the product of spheres). Radii start at one and are not moved.
    - "beta": a number; "query", "key", "value", ...: matrices of partial derivatives, also where the model has the identity. For a
      model that was given as `heads` each is a list with one entry per head (None where a head has no such part).
    - "frozen" (m, dim): tangent, as for the start; "frozen_weights" (m,); "masses" (tokens,), at masses one where the model has none.
    - for a `Schedule` every entry but "start" is a list with one entry per piece (zeros for pieces that begin after the end).

    Reference: E. Hairer, G. Wanner, C. Lubich, *Geometric Numerical Integration*, section VI.4 (adjoint of a Runge-Kutta method); docs,
    "Mathematics".

    >>> import metastable as ms
    >>> model = ms.Attention(dim=2, beta=4.0)
    >>> pair = ms.sphere.from_angle([0.0, 1.0])
    >>> found = ms.gradient(model, pair, ms.derivatives.pair_angle(0, 1), until=1.0)
    >>> round(found.value, 6), round(found["beta"], 6)
    (0.868206, 0.050954)
    """
    names = _names(wrt)
    if differences is not None:
        _checks.choice(differences, "differences", DIFFERENCES)
    if max_step is not None:
        max_step = _checks.number(max_step, "max_step", 0.0, strict=True)
    save = horizon(until, times, "tsit5")
    single = save.times is None
    moments = np.array([save.until]) if save.times is None else save.times
    legs, tokens = _legs(model, start, Save(save.until, moments), engine, rtol, atol, max_steps, threads)
    _check_names(names, legs)
    check(observable, tokens)
    if max_step is not None and save.until > max_step * max_steps:
        raise InvalidInputError(f"max_step={max_step:g} means more than max_steps={max_steps} steps; raise one of them")
    with progress_bar("gradient", save.until, progress) as report:
        paths = _forward(legs, legs[0].plan.packed(tokens), report, max_step)
        states, where = _observed(legs, paths, moments)
        value, slope = measured(observable, states[:, :, : tokens.shape[1]], single, differences)
        rates = _rates(legs, where, moments, states, slope)
        pulled = _backward(legs, paths, where, slope)
    found = _collected(names, model, legs, paths, pulled, tokens)
    statistics = sum((path.solution.statistics for path in paths), Statistics())
    used = "+".join(dict.fromkeys(leg.plan.backend.engine for leg in legs))
    return Gradient(value, found, moments, states[:, :, : tokens.shape[1]], rates, statistics, used)


# ------------------------------------------------------------------------------------------------------------- asking


def _names(wrt: Any) -> tuple[str, ...] | None:
    """`wrt` as names; None stays None: whatever the model has."""
    if wrt is None:
        return None
    given = (wrt,) if isinstance(wrt, str) else _checks.listed(wrt, "wrt", "a name")
    names = tuple(_checks.choice(item, "each of wrt", NAMES) for item in given)
    if not names:
        raise InvalidInputError(f"wrt names nothing; leave it out for everything, or say what: {', '.join(NAMES)}")
    return tuple(dict.fromkeys(names))


def _has(model: Attention, name: str) -> bool:
    """True when a model has something to differentiate in by that name."""
    if name in ("frozen", "frozen_weights"):
        return model.frozen is not None
    if name in HEAD_FIELDS[3:]:
        return any(getattr(head, name) is not None for head in model.all_heads)
    return True


@dataclass(frozen=True)
class _Leg:
    """A model for a while: its plan in its own time, and the depth at which that begins."""

    begin: float
    plan: Plan


def _check_names(names: tuple[str, ...] | None, legs: list[_Leg]) -> None:
    for name in names or ():
        if not any(_has(leg.plan.model, name) for leg in legs):
            raise InvalidInputError(
                f"the model has no {name.replace('_', ' ')} to differentiate in; leave {name!r} out of wrt"
            )


def _legs(
    model: Attention | Schedule, start: Any, save: Save, engine: str, rtol: Any, atol: Any, max_steps: Any, threads: Any
) -> tuple[list[_Leg], FloatArray]:
    """Checked plans, one for each model, and the tokens."""
    if not isinstance(model, (Attention, Schedule)):
        raise InvalidInputError(f"model must be an Attention or a Schedule of them, not {model!r}")
    pieces = ((0.0, model),) if isinstance(model, Attention) else model.until(save.until).pieces
    tokens = pieces[0][1].check_tokens(start)
    require_directions(pieces[0][1], tokens)
    assert save.times is not None
    legs = []
    for number, (begin, item) in enumerate(pieces):
        item.check_count(len(tokens))
        if item.noise > 0:
            raise UnsupportedError(
                f"the gradient is that of a run without noise, but the model has noise={item.noise:g}; leave the noise out"
            )
        end = save.until if number + 1 == len(pieces) else pieces[number + 1][0]
        speed = sum(head.value_size for head in item.all_heads)
        if (end - begin) * speed > LONGEST:
            raise UnsupportedError(
                f"gradients go through explicit steps, which do not reach t = {save.until:g} in this model; lower until (to about "
                f"{LONGEST / speed:.2g}), or start from a later state"
            )
        inside = save.times[(save.times <= end) & ((save.times > begin) | (begin == 0.0))] - begin
        chosen = select.choose_derivative(item, len(tokens), engine)
        wishes = Wishes("tsit5", chosen, "direct", rtol, atol, None, max_steps, threads)
        own = Save(end - begin, np.unique(np.append(inside, end - begin)))
        legs.append(_Leg(begin, make((item,), len(tokens), own, wishes)))
    return legs, tokens


# ------------------------------------------------------------------------------------------------------ there and back


def _forward(legs: list[_Leg], state: FloatArray, report: Any, max_step: float | None) -> list[adjoint.Path]:
    """One path after the other, each from where the one before it ended."""
    paths, left = [], legs[0].plan.accuracy.max_steps
    for leg in legs:
        accuracy = replace(leg.plan.accuracy, max_steps=max(1, left))
        moved = replace(leg.plan, accuracy=accuracy)
        path = adjoint.walk(moved, state, lambda t, begin=leg.begin: report(begin + t), leg.begin, max_step)
        left -= path.solution.statistics.accepted + path.solution.statistics.rejected
        paths.append(path)
        state = path.states[-1]
    return paths


def _observed(
    legs: list[_Leg], paths: list[adjoint.Path], moments: FloatArray
) -> tuple[FloatArray, list[tuple[int, int]]]:
    """Packed states at `moments`, and where each is: (leg, number of the output time there)."""
    where = []
    for moment in moments:
        number = max((i for i, leg in enumerate(legs) if leg.begin < moment), default=0)
        inside = legs[number].plan.save.times
        assert inside is not None
        where.append((number, int(np.abs(inside - (moment - legs[number].begin)).argmin())))
    return np.array([paths[leg].states[place] for leg, place in where]), where


def _rates(
    legs: list[_Leg],
    where: list[tuple[int, int]],
    moments: FloatArray,
    states: FloatArray,
    slope: FloatArray,
) -> FloatArray:
    """<slope, velocity> at each of the moments."""
    rates = np.empty(len(moments))
    dim = slope.shape[2]
    for i, (number, _) in enumerate(where):
        plan, velocity = legs[number].plan, np.zeros_like(states[i])
        select.right_hand_side(plan.model, states.shape[1], plan.backend)(float(moments[i]), states[i], velocity)
        rates[i] = np.sum(slope[i] * velocity[:, :dim])
    return rates


def _backward(
    legs: list[_Leg], paths: list[adjoint.Path], where: list[tuple[int, int]], slope: FloatArray
) -> FloatArray:
    """The packed covector of the start."""
    covector = np.zeros_like(paths[-1].states[-1])
    dim = slope.shape[2]
    for number in range(len(paths) - 1, -1, -1):
        seeds = np.zeros_like(paths[number].states)
        seeds[-1] = covector
        for i, (leg, place) in enumerate(where):
            if leg == number:
                seeds[place, :, :dim] += slope[i]
        covector = paths[number].back(list(seeds))
    return covector


# --------------------------------------------------------------------------------------------------------- telling


def _tangent(slope: FloatArray, x: FloatArray) -> FloatArray:
    return slope - np.einsum("ij,ij->i", slope, x)[:, None] * x


def _of_model(name: str, model: Attention, found: Any) -> Any:
    """The entry `name` of one model, from what arrived at its parameters."""
    if name == "frozen":
        return None if model.frozen is None else _tangent(found.frozen, model.frozen.tokens)
    if name == "frozen_weights":
        return None if model.frozen is None else found.frozen_weights
    if name == "masses":
        return found.masses
    entries = list(found.beta) if name == "beta" else [head.get(name) for head in found.heads]
    return entries if model.heads is not None else entries[0]


def _collected(
    names: tuple[str, ...] | None,
    model: Attention | Schedule,
    legs: list[_Leg],
    paths: list[adjoint.Path],
    pulled: FloatArray,
    tokens: FloatArray,
) -> dict[str, Any]:
    """The entries that were asked for, checked to be finite."""
    reached = [leg.plan.model for leg in legs]
    if names is None:
        names = tuple(name for name in NAMES if any(_has(item, name) for item in reached))
    found: dict[str, Any] = {}
    pieces = reached if isinstance(model, Attention) else [item for _, item in model.pieces]
    parameters = [path.parameters for path in paths]
    parameters += [pullback.untouched(item, len(tokens)) for item in pieces[len(reached) :]]
    for name in names:
        if name == "start":
            found[name] = _tangent(pulled[:, : tokens.shape[1]], tokens)
            continue
        entries = [_of_model(name, item, arrived) for item, arrived in zip(pieces, parameters)]
        found[name] = entries if isinstance(model, Schedule) else entries[0]
    for name, entry in found.items():
        if not _finite(entry):
            raise NumericalRangeError(
                f"the derivative in {name} leaves double precision (1.8e308): the run is too sensitive; lower until or beta"
            )
    return found


def _finite(entry: Any) -> bool:
    if entry is None:
        return True
    if isinstance(entry, Sequence):
        return all(_finite(item) for item in entry)
    return bool(np.isfinite(entry).all())
