"""Smooth observables: what a gradient is taken of. Each is a number made of tokens, and its slope in them.

`observable.with_slope(x)` returns the number and its derivative (tokens, dim) in the coordinates of x. Only the part of the slope that
is tangent to the sphere counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, ObservableError, own_function
from metastable.integrate.tangent import tangent_frame
from metastable.model.parts import ArrayFields


@runtime_checkable
class Smooth(Protocol):
    """A smooth observable of one state. One of your own is held to its values: see `measured`."""

    def with_slope(self, x: FloatArray) -> tuple[float, FloatArray]:
        """The number and its derivative, (tokens, dim), at the tokens x."""
        ...


def _places(tokens: Any, name: str, count: int) -> np.ndarray:
    """Chosen tokens (None: all) among `count`, or a named error."""
    if tokens is None:
        return np.arange(count)
    chosen = np.array([_checks.count(item, name, minimum=0) for item in tokens])
    if chosen.size and chosen.max() >= count:
        raise InvalidInputError(f"{name} holds {chosen.max()}, but there are {count} tokens, 0 to {count - 1}")
    return chosen


def _chosen(tokens: Any, name: str) -> tuple[int, ...] | None:
    """`tokens` as a tuple of places, each once; None stands for all."""
    if tokens is None:
        return None
    listed = tokens.ndim == 1 if isinstance(tokens, np.ndarray) else isinstance(tokens, Sequence)
    if (
        not listed
        or isinstance(tokens, (str, bytes))
        or any(isinstance(item, (Sequence, np.ndarray)) for item in tokens)
    ):
        raise InvalidInputError(f"{name} must be a list of places of tokens, or None for all, not {tokens!r}")
    places = tuple(_checks.count(item, name, minimum=0) for item in tokens)
    if not places or len(set(places)) < len(places):
        raise InvalidInputError(f"{name} must name at least one token, and each once, not {list(places)}")
    return places


@dataclass(frozen=True, eq=False, repr=False)
class MeanCosine(ArrayFields):
    """Mean over tokens k of <x_k, target>; made by `mean_cosine`."""

    target: FloatArray
    tokens: tuple[int, ...] | None = None

    def places(self, x: FloatArray) -> np.ndarray:
        """The chosen tokens, among those of x; refused where x has other tokens than the target."""
        if self.target.shape[1] != x.shape[1]:
            raise InvalidInputError(f"target has dimension {self.target.shape[1]}, the tokens {x.shape[1]}")
        places = _places(self.tokens, "tokens", len(x))
        if len(self.target) not in (1, len(places)):
            raise InvalidInputError(
                f"target has {len(self.target)} rows for {len(places)} tokens; give one, or one each"
            )
        return places

    def with_slope(self, x: FloatArray) -> tuple[float, FloatArray]:
        places = self.places(x)
        slope = np.zeros_like(x)
        slope[places] = self.target / len(places)
        return float(np.sum(slope[places] * x[places])), slope


def mean_cosine(target: Any, tokens: Any = None) -> MeanCosine:
    """Mean cosine of the tokens (or of some of them) to a target: (1/m) sum_k <x_k, target>.

    (`metastable.observe.mean_cosine` is another number: the mean over pairs of tokens.)

    `target`: a unit vector (dim,), or one for each token (m, dim).
    """
    array = _checks.real_array(target, "target")
    return MeanCosine(
        _checks.readonly(_checks.tokens(array[None] if array.ndim == 1 else array, "target")),
        _chosen(tokens, "tokens"),
    )


@dataclass(frozen=True)
class PairCosine:
    """<x_i, x_j>; made by `pair_cosine`."""

    first: int
    second: int

    def places(self, x: FloatArray) -> np.ndarray:
        """Both tokens, among those of x."""
        return _places((self.first, self.second), "a token of the pair", len(x))

    def with_slope(self, x: FloatArray) -> tuple[float, FloatArray]:
        i, j = self.places(x)
        slope = np.zeros_like(x)
        slope[i], slope[j] = x[j], x[i]
        return float(x[i] @ x[j]), slope


def pair_cosine(token: int, other: int) -> PairCosine:
    """The cosine between two tokens, <x_token, x_other>."""
    pair = tuple(_checks.count(item, name, minimum=0) for item, name in ((token, "token"), (other, "other")))
    if pair[0] == pair[1]:
        raise InvalidInputError(f"a pair is two tokens, not token {pair[0]} twice")
    return PairCosine(*pair)


@dataclass(frozen=True)
class PairAngle(PairCosine):
    """Angle between two tokens; made by `pair_angle`."""

    def with_slope(self, x: FloatArray) -> tuple[float, FloatArray]:
        i, j = self.places(x)
        gap, reach = float(np.linalg.norm(x[i] - x[j])), float(np.linalg.norm(x[i] + x[j]))
        if gap == 0 or reach == 0:
            where = "in one place" if gap == 0 else "opposite to one another"
            raise ObservableError(
                f"tokens {i} and {j} are {where}: their angle has no derivative there; use pair_cosine"
            )
        slope = np.zeros_like(x)
        # d arccos c = -dc / sin, and sin = |x - y| |x + y| / 2 without cancellation.
        slope[i], slope[j] = -2.0 * x[j] / (gap * reach), -2.0 * x[i] / (gap * reach)
        return 2.0 * float(np.arctan2(gap, reach)), slope


def pair_angle(token: int, other: int) -> PairAngle:
    """The angle between two tokens, in radians (no derivative where they meet or are opposite)."""
    pair = pair_cosine(token, other)
    return PairAngle(pair.first, pair.second)


@dataclass(frozen=True)
class OrderParameter:
    """|mean x|^2; made by `order_parameter`."""

    def with_slope(self, x: FloatArray) -> tuple[float, FloatArray]:
        mean = x.mean(axis=0)
        return float(mean @ mean), np.tile(2.0 * mean / len(x), (len(x), 1))


def order_parameter() -> OrderParameter:
    """|(1/n) sum_k x_k|^2: one when all tokens agree.

    (`metastable.observe.order_parameter` is its root, which has no slope at zero.)
    """
    return OrderParameter()


@dataclass(frozen=True)
class Spread:
    """1 - |mean x|^2 of some tokens; made by `spread`."""

    tokens: tuple[int, ...] | None = None

    def places(self, x: FloatArray) -> np.ndarray:
        """The chosen tokens, among those of x."""
        return _places(self.tokens, "tokens", len(x))

    def with_slope(self, x: FloatArray) -> tuple[float, FloatArray]:
        places = self.places(x)
        mean = x[places].mean(axis=0)
        slope = np.zeros_like(x)
        slope[places] = -2.0 * mean / len(places)
        away = x[places] - mean
        return float(np.sum(away * away) / len(places)), slope


def spread(tokens: Any = None) -> Spread:
    """How far some tokens (None: all) are from being one cluster: their variance (1/m) sum_k |x_k - mean|^2 = 1 - |mean|^2."""
    return Spread(_chosen(tokens, "tokens"))


@dataclass(frozen=True)
class InteractionEnergy:
    """(1/(2 beta n^2)) sum exp(beta (<x_i, x_j> - 1)); made by `interaction_energy`."""

    beta: float

    def with_slope(self, x: FloatArray) -> tuple[float, FloatArray]:
        weights = np.exp(self.beta * np.minimum(x @ x.T - 1.0, 0.0))
        scale = len(x) ** -2.0
        return float(weights.sum()) * scale / (2.0 * self.beta), scale * weights @ x


def interaction_energy(beta: float) -> InteractionEnergy:
    """The energy that full attention climbs, (1/(2 beta n^2)) sum_{i,j} exp(beta (<x_i, x_j> - 1)) (`analysis.global_energy`)."""
    return InteractionEnergy(_checks.number(beta, "beta", 0.0, strict=True))


@dataclass(frozen=True)
class SoftClusters:
    """sum_k 1 / sum_j exp(-(1 - <x_k, x_j>) / (1 - cos radius)); made by `soft_clusters`."""

    radius: float

    def with_slope(self, x: FloatArray) -> tuple[float, FloatArray]:
        sharpness = 0.5 / np.sin(0.5 * self.radius) ** 2
        near = np.exp(sharpness * np.minimum(x @ x.T - 1.0, 0.0))
        share = 1.0 / near.sum(axis=1)
        pull = near * (share * share)[:, None]
        return float(share.sum()), -sharpness * (pull + pull.T) @ x


def soft_clusters(radius: float) -> SoftClusters:
    """A smooth number of clusters: sum_k 1/n_k, n_k the tokens near token k, each counted exp(-(1 - cos angle)/(1 - cos radius)).

    Clusters that are small and far apart, against `radius`, count one each.
    """
    return SoftClusters(_checks.number(radius, "radius", 0.0, np.pi, strict=True))


KNOWN = (MeanCosine, PairCosine, PairAngle, OrderParameter, Spread, InteractionEnergy, SoftClusters)
"""Observables whose slopes are tested here, and need not be looked at again."""

# ------------------------------------------------------------------------------------------------ functions of one's own

CENTRAL_STEP = 6e-6
"""Radians by which a token is moved for central differences: the cube root of rounding."""
COMPLEX_STEP = 1e-100
DIFFERENCES = ("central", "complex")
AGREEMENT = 1e-6
"""A slope that is given must agree with differences of the values, relatively, beside what these are known to."""
CONSTANT = (
    "the observable does not change at all when the tokens are moved a little: it is constant here (a count?) and its gradient says "
    "nothing; use a smooth one, such as metastable.derivatives.soft_clusters(radius)"
)
ROUNDING = 16.0 * float(np.finfo(float).eps) / CENTRAL_STEP
"""What rounding of the values does to their differences, relatively to the values."""


def check(observable: Any, x: FloatArray) -> None:
    """Refuse, before any run, what no state with tokens like x (tokens, dim) can be measured by."""
    if isinstance(observable, (MeanCosine, PairCosine, Spread)):
        observable.places(x)
    elif not isinstance(observable, Smooth) and not callable(observable):
        raise InvalidInputError(
            "observable must be one of metastable.derivatives (pair_cosine(0, 1), order_parameter(), ...) or a function of the tokens "
            f"that returns (value, slope), not {observable!r}"
        )


def measured(observable: Any, states: FloatArray, single: bool, differences: str | None) -> tuple[float, FloatArray]:
    """The number that `observable` (one that passes `check`) makes of `states` (times, tokens, dim), and its slope, of the same shape.

    `single`: only the final state is meant. A `Smooth` one is averaged over the times; a function gets x (tokens, dim) or, where not
    `single`, all states. Slopes that are not made here are compared with differences of the values, along two directions.
    """
    if isinstance(observable, Smooth):
        value, slope = _averaged(observable, states)
        if type(observable) not in KNOWN:
            _agree(lambda x: _averaged(observable, x)[0], value, slope, states)
        return value, slope
    place = states[0] if single else states
    if differences == "central":
        return _central(observable, place, states.shape)
    if differences == "complex":
        return _complex(observable, place, states.shape)
    value, slope = _checked(_call(observable, place), place)
    _agree(lambda x: _checked(_call(observable, x), x)[0], value, slope, place)
    return value, slope.reshape(states.shape)


def _averaged(observable: Smooth, states: FloatArray) -> tuple[float, FloatArray]:
    """Mean over the states (times, tokens, dim), and its slope, of the same shape."""
    parts = [_checked(_call(observable.with_slope, state), state) for state in states]
    return float(np.mean([value for value, _ in parts])), np.array([slope for _, slope in parts]) / len(states)


def _call(function: Callable[..., Any], x: FloatArray) -> Any:
    """What a function makes of a copy of x: it may do with that what it likes."""
    from metastable.errors import MetastableError

    try:
        return function(x.copy())
    except MetastableError:
        raise
    except Exception as reason:
        raise own_function("the observable", "", reason) from reason


def _number(value: Any) -> float:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "fiu" or not np.isfinite(array):
        raise ObservableError(f"the value of the observable must be one finite number, not {value!r:.80}")
    return float(array)


def _checked(answer: Any, place: FloatArray) -> tuple[float, FloatArray]:
    """A value and a slope as they should be, or `ObservableError`."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise ObservableError(
            "the observable must return (value, slope), the slope of the shape of what it was given; for a function that returns a "
            f"number say differences='central' (or 'complex', where it is analytic). It returned {answer!r:.80}"
        )
    number, array = _number(answer[0]), np.asarray(answer[1])
    if array.shape != place.shape or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise ObservableError(
            f"the slope of the observable must be finite numbers of shape {place.shape}, like the tokens, not "
            f"{array.dtype} of shape {array.shape}"
        )
    return number, array.astype(float)


def _across(slope: FloatArray, x: FloatArray) -> FloatArray:
    """The part of a slope that is tangent to the sphere."""
    return slope - np.sum(slope * x, axis=-1, keepdims=True) * x


def _moved(x: FloatArray, by: FloatArray) -> FloatArray:
    moved = x + by
    return moved / np.linalg.norm(moved, axis=-1, keepdims=True)


def _agree(function: Callable[[FloatArray], float], value: float, slope: FloatArray, x: FloatArray) -> None:
    """Raise `ObservableError` where a slope is not that of the values, seen along itself and along a direction at random, or where the
    values do not change at all.

    Central differences with two steps say how much they are to be believed themselves: where a function bends within the step, or is
    not computed to rounding, they differ.
    """
    slope = _across(slope, x)
    size = float(np.linalg.norm(slope))
    # Not the seed of anybody's tokens: normal numbers of one stream are uniform tokens, and have no part across them.
    other = _across(np.random.default_rng([23, 2411, 4990]).standard_normal(x.shape), x)
    # A step of the same length for each token, whatever their number: one of many that is wrong must be seen.
    directions = [other * np.sqrt(other[..., 0].size) / np.linalg.norm(other)]
    if size:
        directions.append(slope / size)
    flat = size == 0.0
    for direction in directions:
        differences, largest = [], abs(value)
        for step in (CENTRAL_STEP, 2.0 * CENTRAL_STEP):
            ahead, behind = function(_moved(x, step * direction)), function(_moved(x, -step * direction))
            largest = max(largest, abs(ahead), abs(behind))
            flat = flat and ahead == value == behind
            differences.append((ahead - behind) / (2.0 * step))
        found, said = differences[0], float(np.sum(direction * slope))
        known = 2.0 * abs(differences[1] - found) + ROUNDING * largest
        if abs(found - said) > AGREEMENT * max(abs(found), size) + known:
            raise ObservableError(
                f"the slope of the observable is not the derivative of its value: along one direction it says {said:.8g}, and the "
                f"value changes by {found:.8g}; correct it, or return the value alone with differences='central'"
            )
    if flat:
        raise ObservableError(CONSTANT)


def _central(function: Callable[..., Any], x: FloatArray, shape: tuple[int, ...]) -> tuple[float, FloatArray]:
    """Central differences along tangent vectors: 2 (d - 1) values for every token; their error is about 1e-10 of the value."""
    value, frame = _number(_call(function, x)), tangent_frame(x)
    slope, flat = np.zeros_like(x), True
    for place in np.ndindex(*x.shape[:-1]):
        for tangent in frame[place]:
            by = np.zeros_like(x)
            by[place] = CENTRAL_STEP * tangent
            ahead, behind = (_number(_call(function, _moved(x, sign * by))) for sign in (1.0, -1.0))
            flat = flat and ahead == value == behind
            slope[place] += (ahead - behind) / (2.0 * CENTRAL_STEP) * tangent
    if flat:
        raise ObservableError(CONSTANT)
    return value, slope.reshape(shape)


def _complex(function: Callable[..., Any], x: FloatArray, shape: tuple[int, ...]) -> tuple[float, FloatArray]:
    """Complex steps: exact to rounding for functions that are analytic in the coordinates (no abs, max, conj)."""
    value, slope = _number(np.real(_call(function, x))), np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        moved = x.astype(complex)
        moved[place] += 1j * COMPLEX_STEP
        answer = np.asarray(_call(function, moved))
        if answer.shape != () or answer.dtype.kind != "c":
            raise ObservableError(
                "differences='complex' needs a function that returns a complex number for complex tokens, built of analytic "
                f"functions; this one returned {answer!r:.80}. Use differences='central'"
            )
        slope[place] = float(np.imag(answer)) / COMPLEX_STEP
    _agree(lambda moved: _number(np.real(_call(function, moved))), value, slope, x)
    return value, slope.reshape(shape)
