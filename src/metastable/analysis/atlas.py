"""The atlas (Table 1): where everything ends, predicted from V alone, and where a run did end.

`predict` reads the row off the leading eigenvalue of V (see `metastable.analysis.prediction`). `classify` looks at the end of a
run in three separate steps: `features` (distances and speed), `group` (clusters), `match` (the configuration that those fit).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable._words import counted
from metastable.analysis import _html
from metastable.analysis.clusters import cluster_labels, cluster_means, cluster_sizes, cluster_spread
from metastable.analysis.prediction import (
    APART,
    CLOUD,
    CLOUD_ANGLE,
    FIRST_ROTATES,
    FIRST_TOKEN,
    ONE_POINT,
    OTHER,
    ROTATION,
    ROWS,
    TWO_CLOUDS,
    TWO_POINTS,
    Prediction,
    check_prediction,
    predict,
    predict_value,
)
from metastable.analysis.trajectory import Trajectory, check_trajectory, distance_to_subspace, subspace_basis
from metastable.errors import InvalidInputError, TimeError, UnsupportedError
from metastable.model import Attention

__all__ = [
    "APART",
    "CLOUD",
    "FIRST_ROTATES",
    "FIRST_TOKEN",
    "ONE_POINT",
    "OTHER",
    "ROTATION",
    "ROWS",
    "TWO_CLOUDS",
    "TWO_POINTS",
    "UNSETTLED",
    "Classification",
    "Features",
    "Groups",
    "Prediction",
    "classify",
    "features",
    "group",
    "match",
    "predict",
    "predict_value",
]

UNSETTLED = "unsettled"

ONE_OF_TWO_POINTS = "one point, xi or -xi"
ONE_OF_TWO_CLOUDS = "one cloud, around xi or -xi"
"""Rows 3 and 5 when all tokens are on one side: each token chooses, and all may choose alike."""

REFERENCE_LIMIT = 1000
"""Up to this many tokens the final velocity comes from the reference kernel."""
ROUNDING = 1e-14
"""Speed, in units of |V|, that the rounding of unit vectors makes."""
SAME_PLACE = 1e-12
"""Distance of tokens that are at one place."""


@dataclass(frozen=True, repr=False)
class Features(_checks.LockedArrays):
    """Distances and speeds that decide a configuration (geodesic, in radians).

    `to_space` (n,): distance of each token to L. `side` (n,): for L = span(xi) the sign of <x, xi>, otherwise zeros.
    `to_start`: largest distance of a token to x_1(0) (in a run of several models: to token 1 where the last one took over). `spread`:
    largest distance of a token to the present token 1.
    `speeds` (n,): |dx_k/dt| in units of |V| (so they do not depend on the unit of time). `elapsed`: the time that the run
    took, in units of 1/|V|.
    """

    to_space: FloatArray
    side: FloatArray
    to_start: float
    spread: float
    speeds: FloatArray
    elapsed: float

    @property
    def speed(self) -> float:
        """Largest speed of a token."""
        return float(self.speeds.max())

    @property
    def drift(self) -> float:
        """How far a token would get at its present speed if the run went on for as long again (at least 1/|V|)."""
        return self.speed * max(self.elapsed, 1.0)

    def __repr__(self) -> str:
        away = self.to_space
        return (
            f"<Features: {counted(away.size, 'token')}, distance to L {np.median(away):.3g} (median) to {away.max():.3g}, spread "
            f"{self.spread:.3g}, speed {self.speed:.2g}>"
        )


@dataclass(frozen=True, repr=False)
class Groups(_checks.LockedArrays):
    """Clusters of the final tokens: labels (n,), positions (m, d), sizes (m,) and inner spread (m,)."""

    labels: Any
    positions: FloatArray
    sizes: Any
    spread: FloatArray

    def __repr__(self) -> str:
        return f"<Groups: {sizes_text(self.sizes)}>"


def sizes_text(sizes: Any, shown: int = 6) -> str:
    """`2 groups of 200 and 100`, `7 groups of 1 each`, `9 groups of 40, 2 x 8 and 6 smaller`: at most `shown` different sizes."""
    values, often = np.unique(np.asarray(sizes, dtype=int), return_counts=True)
    groups = counted(int(often.sum()), "group")
    if len(values) == 1:
        return f"{groups} of {values[0]}" + (" each" if often[0] > 1 else "")
    words = [f"{size}" if times == 1 else f"{times} x {size}" for size, times in zip(values[::-1], often[::-1])]
    if len(words) > shown:
        words = [*words[:shown], f"{often[::-1][shown:].sum()} smaller"]
    return f"{groups} of {', '.join(words[:-1])} and {words[-1]}"


@dataclass(frozen=True, repr=False)
class Classification:
    """The configuration a run ended in.

    Fields
    ------
    row : 1 to 5 as in Table 1, or None.
    configuration : in words; "unsettled" when nothing matched and tokens still move. Rows 3 and 5 allow that one of the two
        places is empty, and then it says so: "one point, xi or -xi".
    features, groups : what decided it.
    prediction : what was expected.
    since : when the model took over that is judged, 0 in runs of one model; behind that x_1(0) is token 1 at that time, and the short
        form says so: "one point, x_1(5)".
    """

    row: int | None
    configuration: str
    features: Features
    groups: Groups
    prediction: Prediction
    since: float = 0.0

    @property
    def speed(self) -> float:
        """Largest speed of a token at the end, in units of |V|."""
        return self.features.speed

    @property
    def as_predicted(self) -> bool:
        """True when the run ended in the predicted configuration (for rows 3 and 5 one of the two places may be empty); False where
        nothing is predicted."""
        if self.row is not None:
            return self.row == self.prediction.row
        return self.configuration == self.prediction.configuration != OTHER

    @property
    def distances(self) -> dict[str, float]:
        """The numbers that decided, by name."""
        away = self.features.to_space
        return {
            "largest distance to x_1(0)": self.features.to_start,
            "largest distance to token 1": self.features.spread,
            "largest distance to L": float(away.max()),
            "median distance to L": float(np.median(away)),
            "speed": self.features.speed,
            "drift": self.features.drift,
        }

    def _facts(self) -> dict[str, str]:
        """What a short form shows, by name."""
        expected = first_token_at(self.since, self.prediction.configuration)
        agrees = "as predicted" if self.as_predicted else f"predicted: {expected}"
        agrees = f"nothing is predicted: {self.prediction.reason}" if self.prediction.configuration == OTHER else agrees
        return {
            "row": f"{'none' if self.row is None else self.row} ({agrees})",
            "tokens": f"{len(self.features.to_space)}, in {sizes_text(self.groups.sizes)}",
            "median distance to L": f"{np.median(self.features.to_space):.3g} rad",
        }

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {text}" for name, text in self._facts().items())
        return f"<Classification: {first_token_at(self.since, self.configuration)}; {facts}>"

    def _repr_html_(self) -> str:
        numbers = {name: f"{value:.3g}" for name, value in self.distances.items()}
        numbers = {first_token_at(self.since, name): value for name, value in numbers.items()}
        return _html.table(
            f"Classification: {first_token_at(self.since, self.configuration)}", {**self._facts(), **numbers}
        )


def first_token_at(since: float, text: str) -> str:
    """Words about x_1(0) as they are for a model that took over at a time: "one point, x_1(5)"."""
    return text.replace("x_1(0)", f"x_1({since:g})")


def features(x: ArrayLike, first: ArrayLike, subspace: ArrayLike, speeds: ArrayLike, elapsed: float) -> Features:
    """Features of a final state.

    Args:
        x: unit tokens at the end, shape (n, d).
        first: x_1(0), or token 1 where the last model took over, shape (d,).
        subspace: orthonormal columns spanning L, shape (d, k).
        speeds: speed of each token in units of |V|, shape (n,).
        elapsed: time that the run took, in units of 1/|V|.
    """
    tokens = _checks.tokens(x, "x")
    basis = subspace_basis(subspace, tokens.shape[1])
    start = _checks.tokens([_checks.vector(first, "first", tokens.shape[1])], "first")[0]
    side = np.sign(tokens @ basis[:, 0]) if basis.shape[1] == 1 else np.zeros(len(tokens))
    return Features(
        distance_to_subspace(tokens, basis),
        side,
        float(sphere.distance(tokens, start).max()),
        float(sphere.distance(tokens, tokens[0]).max()),
        _checks.vector(speeds, "speeds", len(tokens)),
        _checks.number(elapsed, "elapsed", 0.0),
    )


def group(x: ArrayLike, radius: float) -> Groups:
    """Clusters of the final tokens, linked below `radius`."""
    tokens = _checks.tokens(x, "x")
    labels = cluster_labels(tokens, radius)
    return Groups(labels, cluster_means(tokens, labels), cluster_sizes(labels), cluster_spread(tokens, labels))


@dataclass(frozen=True)
class Limits:
    """The thresholds of `match`, checked."""

    radius: float
    cloud_angle: float
    cloud_speed: float
    drift: float

    def __post_init__(self) -> None:
        _checks.number(self.radius, "radius", 0.0, strict=True)
        for name in ("cloud_angle", "cloud_speed", "drift"):
            _checks.number(getattr(self, name), name, 0.0)


def _both_sides(found: Features) -> bool:
    """True when there are tokens near xi and near -xi."""
    return bool((found.side > 0).any() and (found.side < 0).any())


def match(
    found: Features,
    groups: Groups,
    prediction: Prediction,
    *,
    radius: float = 1e-2,
    cloud_angle: float = CLOUD_ANGLE,
    cloud_speed: float = 1e-3,
    drift: float = 1e-3,
) -> tuple[int | None, str]:
    """Row and configuration that the features and groups fit.

    Points (rows 1 to 3, and a rotating point) must be reached within `radius`; whether they still creep closer does not
    matter. Where the leading pair has no positive real part, token 1 alone must be in L; the others may be anywhere.
    A cloud (rows 4 and 5, for lambda_max < 0) needs more than one group, a median distance to L of at most
    `cloud_angle` and a median speed of at most `cloud_speed`: inside a cloud tokens rearrange for a long time. What fits
    nothing is "unsettled" while tokens would drift by more than `drift` if the run went on for as long again, or when a
    theorem says where it must end; otherwise it is "none of the atlas".
    """
    if not isinstance(found, Features) or not isinstance(groups, Groups):
        raise InvalidInputError("found and groups must be what metastable.analysis.features and group return")
    limits = Limits(radius, cloud_angle, cloud_speed, drift)
    dim, size = check_prediction(prediction).subspace.shape
    in_space = bool(found.to_space.max() <= limits.radius)
    together = found.spread <= limits.radius
    if prediction.is_complex or prediction.configuration in (ROTATION, APART, FIRST_ROTATES):
        first_in_space = bool(found.to_space[0] <= limits.radius)
        if first_in_space and prediction.configuration == FIRST_ROTATES:
            return None, FIRST_ROTATES
        if together and in_space:
            return None, ROTATION
        if first_in_space and prediction.configuration == APART:
            return None, APART
    elif size == dim:
        if together and found.to_start <= limits.radius:
            return 1, ROWS[1]
    elif in_space and size == 1:
        return 3, ROWS[3] if _both_sides(found) else ONE_OF_TWO_POINTS
    elif in_space and together:
        return 2, ROWS[2]
    cloudy = np.median(found.to_space) <= limits.cloud_angle and np.median(found.speeds) <= limits.cloud_speed
    if prediction.eigenvalue.real < 0 and cloudy and len(groups.sizes) > 1:
        if size > 1:
            return 4, ROWS[4]
        return 5, ROWS[5] if _both_sides(found) else ONE_OF_TWO_CLOUDS
    settled = found.drift <= limits.drift and prediction.basis != "theorem"
    return None, (OTHER if settled else UNSETTLED)


def classify(
    run: Trajectory,
    *,
    radius: float = 1e-2,
    cloud_angle: float = CLOUD_ANGLE,
    cloud_speed: float = 1e-3,
    drift: float = 1e-3,
    tolerance: float = 1e-9,
) -> Classification:
    """Which configuration of Table 1 a run ended in, with the distances that decided it.

    A run of several models (a `Schedule`, layers) is judged by its last one: x_1(0) is then token 1 where that one took over, which
    the run must have kept.

    Args:
        run: a `Run`.
        radius: tokens within this geodesic distance of a point are at it.
        cloud_angle: largest median distance to L of a cloud.
        cloud_speed: largest median speed inside a cloud, in units of |V|.
        drift: a state that matches nothing has settled when its tokens, at their present speed, would move by less than
            this in another run of the same length. (Not where a theorem says where it must end: then it is still on its way.)
        tolerance: of the spectrum, see `predict`.

    Returns:
        A `Classification`. "unsettled" means that no configuration was reached and tokens still move: run longer
        (metastable clusters last exponentially long in beta).

    Reference: arXiv:2411.04990, Table 1.
    """
    trajectory = check_trajectory(run)
    limits = asdict(Limits(radius, cloud_angle, cloud_speed, drift))
    final = _checks.tokens(trajectory.final, "run.final")
    time = float(trajectory.times[-1]) if len(trajectory.times) else 0.0
    model = model_at(trajectory, time)
    prediction = predict(model, tolerance=tolerance)
    unit = _value_norm(model)
    speeds = _final_speeds(trajectory, final, time) / unit
    since = took_over(trajectory, time)
    found = features(final, _first_token(trajectory, since), prediction.subspace, speeds, time * unit)
    groups = group(final, radius)
    row, text = match(found, groups, prediction, **limits)
    return Classification(row, text, found, groups, prediction, since)


def model_at(run: Trajectory, time: float) -> Attention:
    """The model at a time: that of the run's schedule, where it has one."""
    at = getattr(run, "model_at", None)
    return run.model if at is None else at(time)


def took_over(run: Trajectory, time: float) -> float:
    """When the model that holds at `time` took over: 0, but behind the joints of a run of several models."""
    schedule = getattr(run, "schedule", None)
    if schedule is None:
        return 0.0
    number = schedule.index(time)
    while number > 0 and schedule.models[number - 1] == schedule.models[number]:
        number -= 1
    return float(schedule.joints[number])


def _first_token(run: Trajectory, joint: float) -> FloatArray:
    """Token 1 where the model took over that holds from `joint` on: its start, but in a run of several models."""
    if joint == 0.0:
        return _checks.tokens(run.start, "run.start")[0]
    try:
        return _checks.tokens(cast("Any", run).at(joint), "run.at")[0]
    except TimeError:
        raise UnsupportedError(
            f"the last model of this run took over at t = {joint:g}, and where token 1 was then was not kept: simulate with that time "
            "among times=, or without times="
        ) from None


def _value_norm(model: Attention) -> float:
    """Spectral norm of V (summed over heads), 1 where it vanishes: the rate at which things happen."""
    value = np.sum([head.value_matrix(model.dim) for head in model.all_heads], axis=0)
    return float(np.linalg.norm(value, 2)) or 1.0


def _final_speeds(run: Trajectory, final: FloatArray, time: float) -> FloatArray:
    """|dx_k/dt| at the end of a run, (n,).

    After a long time forces are far below the rounding of unit vectors, and 1e32 units of time would make a journey of that rounding.
    Where nobody is faster, forces between places are summed without it for the models whose clusters are points (those of
    `predict_merges`); of others nobody can tell, and they stand.
    """
    speeds = np.linalg.norm(_final_velocity(run, final, time), axis=1)
    model = model_at(run, time)
    rounding = ROUNDING * _value_norm(model)
    if speeds.max() > rounding:
        return speeds
    from metastable.analysis.cascade import counts_refusal
    from metastable.analysis.standing import MOST_CLUSTERS, Clusters

    labels = cluster_labels(final, SAME_PLACE)
    if labels.max() < MOST_CLUSTERS and counts_refusal(model, len(final)) is None:
        return Clusters(final, model, time, SAME_PLACE, labels).speeds[labels]
    return np.zeros_like(speeds)


def _final_velocity(run: Trajectory, final: FloatArray, time: float) -> FloatArray:
    """dx/dt at the end of a run."""
    from metastable.kernels.select import velocity

    model = model_at(run, time)
    radii = getattr(run, "radius", None) if model.norm.has_radius else None
    last = None if radii is None or len(radii) == 0 else np.asarray(radii)[-1]
    # The readable kernel holds an n x n matrix, which only short sequences can afford.
    engine = "reference" if len(final) <= REFERENCE_LIMIT else "auto"
    return velocity(model, final, engine=engine, t=time, radius=last)
