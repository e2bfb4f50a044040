"""Elasticities by ensembles that are paired member by member."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable.analysis import observe
from metastable.control.asking import ensemble_options, radius_of
from metastable.control.counting import speed
from metastable.control.elasticity import Elasticities, Elasticity, law_of
from metastable.control.knobs import Knob, applied, knob_of, rounded, value_of
from metastable.ensembles import ensemble
from metastable.errors import ConvergenceError, GoalError, InvalidInputError, StoppedEarlyWarning, TimeError
from metastable.model import Attention

PER_DECADE = 60
"""Output times in a decade: life times are read off to 4 %, and at random, so means are better."""
EARLIEST = 1e-3
"""The first output time behind the start, times |V|: shorter life times are not read off."""
NOISY_STEP = 0.02
"""Step of models with noise, unless told otherwise."""
MOST_LOST = 0.2
"""Share of the pairs that may be without a life time (not over at `until`) before the answer is refused."""
WIDEST_TURN = 1.0
"""Largest turn in log(knob): what is asked for is a derivative."""


def paired_elasticities(
    model: Attention,
    knobs: Sequence[str | Knob],
    *,
    tokens: int | None = None,
    until: float | None = None,
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
    member the same start and the same noise. (With noise a cluster may lose a token for a moment, so there T is the first time after
    there were more.)

    The mean of log(T+/T-)/log(knob+/knob-) is over the members that have a life time: those with more than `clusters` clusters at some
    moment. Who starts with no more has nothing to wait for, whatever the knob is, and is left out (`how` says how many were); with
    T = 0 on both sides it would count as an elasticity of zero. The interval of 95 % is that of Student's t for so many pairs, whose
    spread is at least that of times that are read between two output times. The radius of a cluster is that of the model as it is, for
    both.

    Args:
        model: any `Attention` in which the knobs have values.
        knobs: as in `metastable.control.tune`.
        tokens, members, seed, options: of the ensembles; `tokens` must be given.
        until: the longest time, which must be given, too; a pair in which one member has more clusters left then is lost (and so is
            one that is over before t = 0.001/|V|), and more than a fifth of them are refused.
        clusters: how many are left, fewer than there are tokens.
        turn: in log(knob), up to 1.

    Raises:
        InvalidInputError: before any work, for options that an ensemble does not have.
        GoalError: fewer than two members ever have more than `clusters` clusters.
        ConvergenceError: too many pairs are lost.
    """
    _checks.instance(model, Attention, "model")
    turned = _turned(model, knobs)
    for name, value in (("tokens", tokens), ("until", until)):
        if value is None:
            raise InvalidInputError(f"elasticities of a model are those of ensembles: say {name}= as well")
    options, _ = ensemble_options(dict(options)), _checks.progress(progress)
    earliest = EARLIEST / speed(model)
    until = _checks.number(until, "until", earliest, strict=True, error=TimeError)
    left = _checks.count(clusters, "clusters")
    many = _checks.count(tokens, "tokens")
    if many <= left:
        raise GoalError(
            f"clusters={left}: {many} tokens never make more, so there is nothing to wait for; ask for fewer clusters"
        )
    size, seed = _checks.count(members, "members", 2), _checks.seed(seed)
    turn = _checks.number(turn, "turn", 0.0, strict=True)
    if turn > WIDEST_TURN:
        raise InvalidInputError(f"turn must be at most {WIDEST_TURN:g}, a factor e each way, not {turn:g}")
    radius = radius_of(radius, model)
    ends = [_ends(model, knob, turn) for knob in turned]
    both = [[applied(knob, model, end) for end in two] for knob, two in zip(turned, ends)]
    times = np.geomspace(earliest, until, math.ceil(PER_DECADE * math.log10(until / earliest)) + 1)
    noisy = model.noise > 0
    if noisy:  # steps are of one length, and output is at steps
        pace = _checks.number(options.setdefault("step", NOISY_STEP), "step", 0.0, strict=True)
        times = pace * np.unique(np.maximum(1, np.round(times / pace)))
    times = np.concatenate([[0.0], times])

    def lives(changed: Attention) -> Lives:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoppedEarlyWarning)
            stats = ensemble(
                changed,
                tokens=many,
                members=size,
                times=times,
                seed=seed,
                observe={"clusters": observe.clusters(radius=radius)},
                progress=False,
                **options,
            )
        early = int(np.isnan(stats["clusters"].values[:, -1]).sum())
        if early > MOST_LOST * size:
            raise ConvergenceError(
                f"{early} of {size} members stopped before t = {until:g}; simulate one to see why (raise max_steps where that is the "
                "reason)"
            )
        return _lives(stats["clusters"].values, times, left, first=noisy)

    rows = []
    with progress_bar("elasticities", 2 * len(turned), progress) as report:
        for number, knob in enumerate(turned):
            rows.append(_row(model, knob, ends[number], left, times, [lives(item) for item in both[number]]))
            report(2 * number + 2)
    return Elasticities(tuple(rows))


def _turned(model: Attention, knobs: Any) -> list[Knob]:
    """The knobs, each with a value in this model; or a named exception."""
    turned = [knob_of(model, knob) for knob in _checks.listed(knobs, "knobs", "a name, such as ['beta']")]
    if not turned:
        raise InvalidInputError("knobs names nothing; say which, such as ['beta']")
    if any(knob.set is None for knob in turned):
        raise InvalidInputError(
            "the number of tokens cannot be paired: other starts are drawn; use metastable.control.tune"
        )
    return turned


def _ends(model: Attention, knob: Knob, turn: float) -> list[float]:
    """The two values of a knob: above that of the model, and below it."""
    value = value_of(knob, model)
    ends = [rounded(knob, value * math.exp(sign * turn)) for sign in (1.0, -1.0)]
    if knob.whole and ends[0] - ends[1] < 2.0:
        ends = [rounded(knob, value + 1.0), rounded(knob, value - 1.0)]
    if not ends[0] > ends[1]:
        raise InvalidInputError(f"the knob {knob.name!r} cannot be turned both ways from {value:g}")
    return ends


def _lives(counts: FloatArray, times: FloatArray, left: int, first: bool) -> tuple[FloatArray, np.ndarray]:
    """The time (members,) from which at most `left` clusters are there for good (or for the `first` time after there were more),
    between two output times, and who ever had more, (members,).

    NaN: not by the end, or nobody had more; 0: before the first output time after the start. A single moment with more of them does
    not count: a cluster stretches while it falls into another one.
    """
    lives, had = np.full(len(counts), np.nan), np.zeros(len(counts), dtype=bool)
    for member, row in enumerate(counts):
        more = ~(row <= left)
        more[1:-1] &= more[:-2] | more[2:]
        above = np.flatnonzero(more)
        had[member] = above.size > 0
        if above.size == 0:
            continue
        parted = np.flatnonzero(np.diff(above) > 1)
        last = above[parted[0]] if first and parted.size else above[-1]
        if last + 1 < times.size:
            lives[member] = math.sqrt(times[last] * times[last + 1])
    return lives, had


# Life times of members, and who has one: see `_lives`.
Lives = tuple[FloatArray, np.ndarray]


def _row(
    model: Attention, knob: Knob, ends: list[float], left: int, times: FloatArray, both: list[Lives]
) -> Elasticity:
    """The elasticity in a knob from the life times of both ensembles, at the upper end and at the lower one."""
    (more, had_more), (less, had_less) = both
    waiting = had_more | had_less
    asked = int(waiting.sum())
    if asked < 2:
        raise GoalError(
            f"{waiting.size - asked} of {waiting.size} members never have more than {left} clusters, so there is nothing to wait for; "
            "ask for fewer clusters, or give more tokens"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(more / less) / math.log(ends[0] / ends[1])
    known = np.isfinite(ratios)
    lost = asked - int(known.sum())
    if lost > MOST_LOST * asked:
        late = int((waiting & (np.isnan(more) | np.isnan(less))).sum())
        raise ConvergenceError(
            f"{lost} of {asked} members have no known life time, {late} of them because more than {left} clusters are left at the end "
            f"({knob.name} from {ends[1]:.4g} to {ends[0]:.4g}); give a later until, or more clusters"
        )
    seen = Pairs(ratios[known], np.sqrt(more[known] * less[known]), waiting.size - asked, lost)
    return _answer(model, knob, ends, left, seen, times)


@dataclass(frozen=True)
class Pairs:
    """Elasticities and life times of pairs; members `without` a life time, and pairs whose is not known (`lost`)."""

    ratios: FloatArray
    lives: FloatArray
    without: int
    lost: int


def _answer(model: Attention, knob: Knob, ends: list[float], left: int, pairs: Pairs, times: FloatArray) -> Elasticity:
    """The mean of the ratios with its interval."""
    from scipy.special import stdtrit

    count, life = pairs.ratios.size, float(np.median(pairs.lives))
    # Two times that are read between output times are off by cells of them, also where all pairs happen to be off alike.
    place = min(max(int(np.searchsorted(times, life)), 2), times.size - 1)
    cell = math.log(times[place] / times[place - 1])
    spread = max(float(pairs.ratios.std(ddof=1)), cell / math.sqrt(6.0) / math.log(ends[0] / ends[1]))
    mean = float(pairs.ratios.mean())
    width = float(stdtrit(count - 1, 0.975)) * spread / math.sqrt(count)
    subject = "until one is left" if left == 1 else f"until {left} are left"
    how = f"{count} pairs, {knob.name} = {ends[1]:.4g} and {ends[0]:.4g}"
    how += f"; {pairs.without} never have more" if pairs.without else ""
    how += f"; {pairs.lost} lost" if pairs.lost else ""
    return Elasticity(subject, life, knob.name, mean, mean - width, mean + width, law_of(model, knob.name), how)
