"""Elasticities by ensembles that are paired member by member."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable.analysis import cluster_radius, observe
from metastable.control.elasticity import Elasticities, Elasticity, law_of
from metastable.control.knobs import Knob, applied, knob_of, rounded, value_of
from metastable.control.tuning import QUANTILE
from metastable.ensembles import ensemble
from metastable.errors import ConvergenceError, InvalidInputError, StoppedEarlyWarning, TimeError
from metastable.model import Attention

PER_DECADE = 60
"""Output times in a decade: life times are read off to 4 %, and at random, so means are better."""
EARLIEST = 0.1
NOISY_STEP = 0.02
"""Step of models with noise, unless told otherwise."""
MOST_LOST = 0.2
"""Share of the pairs that may be without a life time (not over at `until`) before the answer is refused."""


def paired_elasticities(
    model: Attention,
    knobs: Sequence[str | Knob],
    *,
    tokens: int,
    until: float,
    clusters: int = 1,
    members: int = 100,
    turn: float = 0.1,
    seed: int = 0,
    radius: float | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Elasticities:
    """d log(T)/d log(knob) of the time T from which at most `clusters` clusters are left, averaged over uniform starts.

    For each knob two ensembles with one seed, the knob at exp(+-turn) times its value (whole numbers: next to it): member by
    member the same start and the same noise. (With noise a cluster may lose a token for a moment, so there T is the first time.)
    The mean of log(T+/T-)/log(knob+/knob-) has the interval mean +- 1.96 standard errors. The radius of a cluster is that of the
    model as it is, for both.

    Args:
        model: any `Attention` in which the knobs have values.
        knobs: as in `metastable.control.tune`.
        tokens, members, seed, options: of the ensembles.
        until: the longest time; a pair in which one member has more clusters left then is lost, and more than a fifth of them are
            refused.
        clusters: how many are left.
        turn: in log(knob).
    """
    _checks.instance(model, Attention, "model")
    if isinstance(knobs, str):
        raise InvalidInputError(f"knobs must be a list of names, such as [{knobs!r}]")
    turned = [knob_of(model, knob) for knob in knobs]
    if any(knob.set is None for knob in turned):
        raise InvalidInputError(
            "the number of tokens cannot be paired: other starts are drawn; use metastable.control.tune"
        )
    for knob in turned:
        value_of(knob, model)
    until = _checks.number(until, "until", EARLIEST, strict=True, error=TimeError)
    left = _checks.count(clusters, "clusters")
    size = _checks.count(members, "members", 2)
    turn = _checks.number(turn, "turn", 0.0, strict=True)
    radius = cluster_radius(model) if radius is None else _checks.number(radius, "radius", 0.0, strict=True)
    times = np.geomspace(EARLIEST, until, math.ceil(PER_DECADE * math.log10(until / EARLIEST)) + 1)
    noisy = model.noise > 0
    if noisy:  # steps are of one length, and output is at steps
        pace = options.setdefault("step", NOISY_STEP)
        times = pace * np.unique(np.maximum(1, np.round(times / pace)))

    def lives(changed: Attention) -> FloatArray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoppedEarlyWarning)
            stats = ensemble(
                changed,
                tokens=tokens,
                members=size,
                times=times,
                seed=seed,
                observe={"clusters": observe.clusters(radius=radius)},
                progress=False,
                **options,
            )
        return _lives(stats["clusters"].values, times, left, first=noisy)

    rows = []
    with progress_bar("elasticities", 2 * len(turned), progress) as report:
        for number, knob in enumerate(turned):
            rows.append(_row(model, knob, turn, left, lives))
            report(2 * number + 2)
    return Elasticities(tuple(rows))


def _lives(counts: FloatArray, times: FloatArray, left: int, first: bool) -> FloatArray:
    """The time (members,) from which at most `left` clusters are there for good (or for the `first` time), between two output times.

    NaN: not by the end. A single moment with more of them does not count: a cluster stretches while it falls into another one.
    """
    found = np.full(len(counts), np.nan)
    for member, row in enumerate(counts):
        more = ~(row <= left)
        more[1:-1] &= more[:-2] | more[2:]
        above = np.flatnonzero(more)
        if first and (row <= left).any():
            above = above[above < np.argmax(~more)]
        if above.size == 0:
            found[member] = times[0]
        elif above[-1] + 1 < times.size:
            found[member] = math.sqrt(times[above[-1]] * times[above[-1] + 1])
    return found


def _row(model: Attention, knob: Knob, turn: float, left: int, lives: Callable[[Attention], FloatArray]) -> Elasticity:
    value = value_of(knob, model)
    ends = [rounded(knob, value * math.exp(sign * turn)) for sign in (1.0, -1.0)]
    if knob.whole and ends[0] - ends[1] < 2.0:
        ends = [rounded(knob, value + 1.0), rounded(knob, value - 1.0)]
    if not ends[0] > ends[1]:
        raise InvalidInputError(f"the knob {knob.name!r} cannot be turned both ways from {value:g}")
    more, less = (lives(applied(knob, model, end)) for end in ends)
    ratios = np.log(more / less) / math.log(ends[0] / ends[1])
    known = np.isfinite(ratios)
    lost = known.size - int(known.sum())
    if lost > MOST_LOST * known.size:
        raise ConvergenceError(
            f"{lost} of {known.size} members have more than {left} clusters left at the end ({knob.name} from {ends[1]:.4g} to "
            f"{ends[0]:.4g}): life times are not known; give a later until, or more clusters"
        )
    ratios = ratios[known]
    mean, error = float(ratios.mean()), float(ratios.std(ddof=1)) / math.sqrt(ratios.size)
    subject = "until one is left" if left == 1 else f"until {left} are left"
    how = f"{ratios.size} pairs, {knob.name} = {ends[1]:.4g} and {ends[0]:.4g}" + (f"; {lost} lost" if lost else "")
    life = float(np.exp(0.5 * np.median(np.log(more[known] * less[known]))))
    low, high = mean - QUANTILE * error, mean + QUANTILE * error
    return Elasticity(subject, life, knob.name, mean, low, high, law_of(model, knob.name), how)
