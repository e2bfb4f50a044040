"""The atlas (Table 1): where everything ends, predicted from V alone, and where a run did end.

`predict` reads the row off the leading eigenvalue of V. `classify` looks at the end of a run in three separate steps:
`features` (distances and speed), `group` (clusters), `match` (the configuration that those fit).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable.analysis.clusters import cluster_labels, cluster_means, cluster_sizes, cluster_spread
from metastable.analysis.spectrum import LeadingEigenvalue, leading_eigenvalue
from metastable.analysis.trajectory import Trajectory, check_trajectory, distance_to_subspace
from metastable.errors import InvalidInputError
from metastable.model import Attention, Rule, Support, why_not

Basis = Literal["theorem", "conjecture", "none"]

FIRST_TOKEN = "one point, x_1(0)"
ONE_POINT = "one point in L"
TWO_POINTS = "two points, xi and -xi"
CLOUD = "a cloud of points around L"
TWO_CLOUDS = "two clouds, around xi and -xi"
ROTATION = "one point rotating in L"
OTHER = "none of the atlas"
UNSETTLED = "unsettled"

REFERENCE_LIMIT = 1000
"""Up to this many tokens the final velocity comes from the reference kernel."""

ROWS = {1: FIRST_TOKEN, 2: ONE_POINT, 3: TWO_POINTS, 4: CLOUD, 5: TWO_CLOUDS}
"""Table 1: final configuration of each row."""


@dataclass(frozen=True)
class Prediction:
    """Table 1's row for a model, before running it.

    Fields
    ------
    row : 1 to 5 as in Table 1, None when no row applies (`reason` says why).
    configuration : the expected final set, in words.
    eigenvalue : leading eigenvalue of V (largest real part), complex for a pair.
    multiplicity, geometric_multiplicity, longest_block : of that eigenvalue.
    subspace : (d, k) orthonormal columns spanning L.
    basis : "theorem" (row 1, Theorem 4.1), "conjecture" (rows 2 to 5) or "none".
    reason : a sentence on why.
    tolerance : the relative tolerance of the decisions.
    """

    row: int | None
    configuration: str
    eigenvalue: float | complex
    multiplicity: int
    subspace: FloatArray
    basis: Basis
    geometric_multiplicity: int
    longest_block: int
    reason: str
    tolerance: float

    @property
    def is_complex(self) -> bool:
        """True when the leading eigenvalue is one of a complex pair."""
        return isinstance(self.eigenvalue, complex)


def predict(model: Attention, *, tolerance: float = 1e-9) -> Prediction:
    """Where every token ends, read off the spectrum of V (Table 1).

    The atlas is about causal softmax attention with one head and `PostLN()`. For any other model the spectrum is still
    reported, but `row` is None and `basis` "none". Several heads count as one when all have the same beta Q^T K (then their V
    add up exactly); otherwise the spectrum is that of the sum of the V, which governs token 1 alone.

    Args:
        model: an `Attention`.
        tolerance: relative to the norm of V, for equality and sign of eigenvalues (see `leading_eigenvalue`).

    Reference: arXiv:2411.04990, Theorem 4.1, Conjectures 1 and 2, Table 1. Q and K do not enter; simulations show that they
    can matter for rows 3 to 5, so a conjecture is what it says.
    """
    if not isinstance(model, Attention):
        raise InvalidInputError(
            f"model must be an Attention, not {type(model).__name__}; for a matrix use metastable.analysis.predict_value"
        )
    heads = model.all_heads
    identity = np.eye(model.dim)
    value = np.sum([identity if head.value is None else head.value for head in heads], axis=0)
    obstacle = why_not(model, SUPPORT)
    if obstacle is None:
        return predict_value(value, tolerance=tolerance)
    return _prediction(leading_eigenvalue(value, tolerance), None, OTHER, "none", obstacle)


def _forms_rule(model: Attention, tokens: int | None) -> str | None:
    """Heads with one beta Q^T K are one head: their V add up."""
    identity = np.eye(model.dim)
    forms = [head.beta * (identity if head.bilinear is None else head.bilinear) for head in model.all_heads]
    if all(np.array_equal(form, forms[0]) for form in forms[1:]):
        return None
    return (
        "covers no heads with different Q, K or beta (the spectrum is that of the sum of their V, which moves token 1)"
    )


SUPPORT = Support(
    "the atlas",
    norms=frozenset({"post_ln"}),
    masks=frozenset({"causal"}),
    weights=frozenset({"softmax"}),
    parts=frozenset({"heads", "bilinear", "value"}),
    rules=(Rule("heads", _forms_rule),),
    verb="covers",
)
"""The models that Table 1 is about."""


def predict_value(value: ArrayLike, *, tolerance: float = 1e-9) -> Prediction:
    """Table 1's row for a value matrix V under causal softmax attention (see `predict`)."""
    leading = leading_eigenvalue(value, tolerance)
    dim, size = leading.subspace.shape
    defective = (
        "" if leading.longest_block == 1 else " (defective: L closes the longest Jordan blocks, reached like C/t)"
    )
    if leading.is_complex or not leading.alone:
        reason = "the leading eigenvalues are complex: token 1 rotates for ever and the others follow it"
        return _prediction(leading, None, ROTATION, "none", reason)
    if leading.sign == 0:
        reason = "the leading eigenvalue is 0 within the tolerance, which Table 1 leaves out"
        return _prediction(leading, None, OTHER, "none", reason)
    if leading.sign > 0 and leading.geometric_multiplicity == dim:
        return _prediction(leading, 1, ROWS[1], "theorem", "Theorem 4.1: V is a positive multiple of the identity")
    if leading.sign > 0:
        row = 2 if size >= 2 else 3
        reason = f"Conjecture {row - 1}: lambda_max > 0 with dim L = {size}"
    else:
        row = 4 if size >= 2 else 5
        reason = f"Table 1, supported by the authors' simulations: lambda_max < 0 with dim L = {size}"
    return _prediction(leading, row, ROWS[row], "conjecture", reason + defective)


def _prediction(leading: LeadingEigenvalue, row: int | None, text: str, basis: Basis, reason: str) -> Prediction:
    return Prediction(
        row,
        text,
        leading.eigenvalue,
        leading.multiplicity,
        leading.subspace,
        basis,
        leading.geometric_multiplicity,
        leading.longest_block,
        reason,
        leading.tolerance,
    )


# ------------------------------------------------------------------------------------------------------ classify


@dataclass(frozen=True)
class Features:
    """Distances and speeds that decide a configuration (geodesic, in radians).

    `to_space` (n,): distance of each token to L. `side` (n,): for L = span(xi) the sign of <x, xi>, otherwise zeros.
    `to_start`: largest distance of a token to x_1(0). `spread`: largest distance of a token to the present token 1.
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


@dataclass(frozen=True)
class Groups:
    """Clusters of the final tokens: labels (n,), positions (m, d), sizes (m,) and inner spread (m,)."""

    labels: Any
    positions: FloatArray
    sizes: Any
    spread: FloatArray


@dataclass(frozen=True)
class Classification:
    """The configuration a run ended in.

    Fields
    ------
    row : 1 to 5 as in Table 1, or None.
    configuration : in words; "unsettled" when nothing matched and tokens still move.
    features, groups : what decided it.
    prediction : what was expected.
    """

    row: int | None
    configuration: str
    features: Features
    groups: Groups
    prediction: Prediction

    @property
    def speed(self) -> float:
        """Largest speed of a token at the end, in units of |V|."""
        return self.features.speed

    @property
    def as_predicted(self) -> bool:
        """True when the run ended in the predicted configuration."""
        return self.configuration == self.prediction.configuration

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


def features(x: ArrayLike, first: ArrayLike, subspace: ArrayLike, speeds: ArrayLike, elapsed: float) -> Features:
    """Features of a final state.

    Args:
        x: unit tokens at the end, shape (n, d).
        first: x_1(0), shape (d,).
        subspace: orthonormal columns spanning L, shape (d, k).
        speeds: speed of each token in units of |V|, shape (n,).
        elapsed: time that the run took, in units of 1/|V|.
    """
    tokens = _checks.tokens(x, "x")
    basis = np.asarray(subspace, dtype=np.float64)
    side = np.sign(tokens @ basis[:, 0]) if basis.shape[1] == 1 else np.zeros(len(tokens))
    return Features(
        distance_to_subspace(tokens, basis),
        side,
        float(sphere.distance(tokens, np.asarray(first, dtype=np.float64)).max()),
        float(sphere.distance(tokens, tokens[0]).max()),
        _checks.vector(speeds, "speeds", len(tokens)),
        _checks.number(elapsed, "elapsed", 0.0),
    )


def group(x: ArrayLike, radius: float) -> Groups:
    """Clusters of the final tokens, linked below `radius`."""
    tokens = _checks.tokens(x, "x")
    labels = cluster_labels(tokens, radius)
    return Groups(labels, cluster_means(tokens, labels), cluster_sizes(labels), cluster_spread(tokens, labels))


def match(
    found: Features,
    groups: Groups,
    prediction: Prediction,
    *,
    radius: float = 1e-2,
    cloud_angle: float = math.pi / 6,
    cloud_speed: float = 1e-3,
    drift: float = 1e-3,
) -> tuple[int | None, str]:
    """Row and configuration that the features and groups fit.

    Points (rows 1 to 3, and a rotating point) must be reached within `radius`; whether they still creep closer does not
    matter. A cloud (rows 4 and 5, for lambda_max < 0) needs more than one group, a median distance to L of at most
    `cloud_angle` and a median speed of at most `cloud_speed`: inside a cloud tokens rearrange for a long time. What fits
    nothing is "unsettled" while tokens would drift by more than `drift` if the run went on for as long again, or when a
    theorem says where it must end; otherwise it is "none of the atlas".
    """
    dim, size = prediction.subspace.shape
    in_space = bool(found.to_space.max() <= radius)
    together = found.spread <= radius
    if prediction.is_complex or prediction.configuration == ROTATION:
        if together and in_space:
            return None, ROTATION
    elif size == dim:
        if together and found.to_start <= radius:
            return 1, ROWS[1]
    elif in_space and size == 1:
        return 3, ROWS[3]
    elif in_space and together:
        return 2, ROWS[2]
    cloudy = np.median(found.to_space) <= cloud_angle and np.median(found.speeds) <= cloud_speed
    if prediction.eigenvalue.real < 0 and cloudy and len(groups.sizes) > 1:
        row = 5 if size == 1 else 4
        return row, ROWS[row]
    settled = found.drift <= drift and prediction.basis != "theorem"
    return None, (OTHER if settled else UNSETTLED)


def classify(
    run: Trajectory,
    *,
    radius: float = 1e-2,
    cloud_angle: float = math.pi / 6,
    cloud_speed: float = 1e-3,
    drift: float = 1e-3,
    tolerance: float = 1e-9,
) -> Classification:
    """Which configuration of Table 1 a run ended in, with the distances that decided it.

    Args:
        run: a `Run`.
        radius: tokens within this geodesic distance of a point are at it.
        cloud_angle: largest median distance to L of a cloud.
        cloud_speed: largest median speed inside a cloud, in units of |V|.
        drift: a state that matches nothing has settled when its tokens, at their present speed, would move by less than
            this in another run of the same length.
        tolerance: of the spectrum, see `predict`.

    Returns:
        A `Classification`. "unsettled" means that no configuration was reached and tokens still move: run longer
        (metastable clusters last exponentially long in beta).

    Reference: arXiv:2411.04990, Table 1.
    """
    trajectory = check_trajectory(run)
    limits = {
        "radius": _checks.number(radius, "radius", 0.0, strict=True),
        "cloud_angle": _checks.number(cloud_angle, "cloud_angle", 0.0),
        "cloud_speed": _checks.number(cloud_speed, "cloud_speed", 0.0),
        "drift": _checks.number(drift, "drift", 0.0),
    }
    prediction = predict(trajectory.model, tolerance=tolerance)
    final = _checks.tokens(trajectory.final, "run.final")
    time = float(trajectory.times[-1]) if len(trajectory.times) else 0.0
    unit = _value_norm(trajectory.model)
    speeds = np.linalg.norm(_final_velocity(trajectory, final, time), axis=1) / unit
    found = features(final, np.asarray(trajectory.start)[0], prediction.subspace, speeds, time * unit)
    groups = group(final, radius)
    row, text = match(found, groups, prediction, **limits)
    return Classification(row, text, found, groups, prediction)


def _value_norm(model: Attention) -> float:
    """Spectral norm of V (summed over heads), 1 where it vanishes: the rate at which things happen."""
    value = np.sum([np.eye(model.dim) if head.value is None else head.value for head in model.all_heads], axis=0)
    return float(np.linalg.norm(value, 2)) or 1.0


def _final_velocity(run: Trajectory, final: FloatArray, time: float) -> FloatArray:
    """dx/dt at the end of a run."""
    from metastable.kernels.select import velocity

    radii = getattr(run, "radius", None) if run.model.norm.has_radius else None
    last = None if radii is None or len(radii) == 0 else np.asarray(radii)[-1]
    # The readable kernel holds an n x n matrix, which only short sequences can afford.
    engine = "reference" if len(final) <= REFERENCE_LIMIT else "auto"
    return velocity(run.model, final, engine=engine, t=time, radius=last)
