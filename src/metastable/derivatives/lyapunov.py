"""`jacobian_spectrum`: how fast small changes of the start grow along a run, and whose they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable.derivatives.products import Decomposed, applied, decomposed
from metastable.errors import ConvergenceError, InvalidInputError, TimeError, UnsupportedError
from metastable.handle import Handle
from metastable.integrate import tangent
from metastable.integrate.plan import MAX_STEPS, Accuracy, Plan, Save, Wishes, short, size_of_value
from metastable.integrate.planning import make
from metastable.integrate.scheduled import ADAPTIVE
from metastable.kernels import select
from metastable.model import Attention, Schedule

if TYPE_CHECKING:
    from metastable.run import Run

LARGEST = 3000
"""Tangent directions at the most: matrices of this order are multiplied in every step."""
EARLIEST = 1e-10
"""Earliest t, in the fastest time scale of the model: before, rounding of the derivative is more than what it tells."""
FINER = 0.1
"""Factor in the tolerances of the second march, from which the first one's error is read; its steps are half as long at the most."""
SURE = 10.0
"""Singular values are told apart where they differ by more than this many times that error."""
COMPANIONS = 0.1
"""Logarithm below the largest singular value down to which others are marched again with it."""
ROUNDING = 64.0 * float(np.finfo(float).eps)
"""What rounding does to a singular value, times the root of their number."""


@dataclass(frozen=True, eq=False, repr=False)
class JacobianSpectrum:
    """Growth of small changes of the start; made by `jacobian_spectrum`.

    Fields
    ------
    t : the time up to which the run was followed.
    exponents : finite-time Lyapunov exponents (1/t) ln s_i, the largest first; s_i the singular values of the derivative of the
        state at t in the start. tokens (dim - 1) of them; as many more as tokens for norms with a radius.
    multiplicity : how many of the first exponents the numbers do not tell apart: 1 where there is one direction that grows most,
        more where they are equal, or nearer to one another than the run is exact.
    direction : the change of the start that grows most, (tokens, dim), tangent to the sphere; of length one, together with `radii`.
        NaN where `multiplicity` is not 1: then a whole space of directions grows alike.
    radii : its part in the radii, (tokens,), for norms with a radius; zeros for the others.
    image, image_radii : what becomes of it, (tokens, dim) and (tokens,), divided by its growth: of length one together.
    token : the unstable one: that with the largest part of `direction` (of all directions that grow alike). None where two tokens have
        parts that the numbers do not tell apart.
    responding : the same for `image`.
    shares : part of each token in the squared length of `direction`, (tokens,); the mean over all directions that grow alike.
    doubt : relative error of the leading singular values, as a second march with a tenth of the tolerances says.
    """

    t: float
    exponents: FloatArray
    multiplicity: int
    direction: FloatArray
    radii: FloatArray
    image: FloatArray
    image_radii: FloatArray
    token: int | None
    responding: int | None
    shares: FloatArray
    doubt: float

    def __repr__(self) -> str:
        unstable = (
            "no single token is the unstable one" if self.token is None else f"the unstable token is {self.token}"
        )
        alike = f", the first {self.multiplicity} alike" if self.multiplicity > 1 else ""
        return (
            f"<JacobianSpectrum: t = {self.t:g}, {len(self.exponents)} exponents from {self.exponents[0]:.4g} to "
            f"{self.exponents[-1]:.4g}{alike}, {unstable}>"
        )

    @property
    def growth(self) -> float:
        """Natural logarithm of the factor by which `direction` has grown at t: the largest exponent times t."""
        return float(self.exponents[0] * self.t)


def jacobian_spectrum(
    run: Run, t: float | None = None, *, engine: str = "auto", progress: bool | None = None
) -> JacobianSpectrum:
    """Lyapunov exponents of the flow along a run up to time t (None: its end), the direction that grows most and its token.

    The run is marched again in explicit steps with its tolerances, and a full set of tangent vectors of the product of spheres
    (and of the radii, for norms with one) is carried along: the derivative of the accepted steps (which are shorter where tokens
    rest: short enough for small changes), made orthonormal after each. The exponents are (1/t) ln of its singular values, to about
    1e-4 of the fastest rate and to the tolerances of the run, however small the values are. Each step multiplies matrices of order
    tokens (dim - 1).

    The leading directions are then marched a second time, with a tenth of the tolerances and half the steps. What they become differs
    by the error of the first march, and singular values nearer to one another than ten times that are not told apart
    (`multiplicity`): a direction in a space that grows alike would be one of rounding.

    A change of the start by a tangent vector v (tokens, dim) of small length becomes at most exp(t exponents[0]) |v|; where that is
    large a token sits on a ridge between two clusters, and `token` says which.

    >>> import metastable as ms
    >>> run = ms.simulate(ms.Attention(dim=2, beta=9.0), ms.sphere.uniform(8, dim=2, seed=0), until=5.0)
    >>> spectrum = ms.jacobian_spectrum(run)
    >>> len(spectrum.exponents)
    8

    Reference: L. Dieci, E. Van Vleck, *Appl. Numer. Math.* 17 (1995) 275-291; docs, "Mathematics".
    """
    end, pieces = _asked(run, t)
    tokens = np.array(run.start)
    plans = _plans(pieces, len(tokens), end, run, engine)
    frame = _full_frame(plans[0].packed(tokens), tokens.shape[1])
    with progress_bar("jacobian_spectrum", 2.0 * end, progress) as report:
        vectors, factors = _carried(pieces, plans, tokens, frame, report)
        found = decomposed(factors)
        near = int(np.sum(found.logarithms[: found.right.shape[1]] > found.logarithms[0] - COMPANIONS))
        right, left = frame @ found.right[:, :near], vectors @ found.left[:, :near]
        finer = [replace(plan, accuracy=_finer(plan.accuracy)) for plan in plans]
        others, steps = _carried(pieces, finer, tokens, right, lambda done: report(end + done), shorter=True)
    error = _error(found.logarithms, left, others, steps) + found.residual
    return _spectrum(end, found, right, left, error, tokens.shape[1])


def _finer(accuracy: Accuracy) -> Accuracy:
    return replace(
        accuracy, rtol=max(FINER * accuracy.rtol, 1e-14), atol=FINER * accuracy.atol, max_steps=10 * accuracy.max_steps
    )


def _carried(
    pieces: tuple[tuple[float, Attention], ...],
    plans: list[Plan],
    tokens: FloatArray,
    vectors: FloatArray,
    report: Callable[[float], None],
    *,
    shorter: bool = False,
) -> tuple[FloatArray, list[FloatArray]]:
    """Tangent vectors at the start carried through all models: orthonormal ones at the end, and the factors between."""
    state, factors = plans[0].packed(tokens), []
    for (begin, _), plan in zip(pieces, plans):
        state, vectors, found = tangent.carry(
            plan, state, vectors, lambda s, begin=begin: report(begin + s), begin, shorter=shorter
        )
        factors += found
    return vectors, factors


def _error(logarithms: FloatArray, left: FloatArray, others: FloatArray, steps: list[FloatArray]) -> float:
    """Largest length by which two marches of the leading directions differ, over the leading singular value."""
    count = left.shape[2]
    block, scale = applied(steps, np.eye(count))
    second = (others @ block) * np.exp(scale - logarithms[0])
    first = left * np.exp(logarithms[:count] - logarithms[0])
    return float(np.linalg.norm((second - first).reshape(-1, count), 2))


def _spectrum(
    end: float, found: Decomposed, right: FloatArray, left: FloatArray, error: float, dim: int
) -> JacobianSpectrum:
    """The answer, as far as the numbers tell: vectors (tokens, width, count) of the leading values, known to `error`."""
    size, near = len(found.logarithms), right.shape[2]
    error += ROUNDING * np.sqrt(size)
    apart = np.flatnonzero(-np.diff(found.logarithms) > SURE * error)
    alike = int(apart[0]) + 1 if apart.size else size
    if alike > near:
        raise ConvergenceError(
            f"the first {alike} directions grow alike as far as the numbers tell, which are right to {error:.2g} only; simulate with a "
            "smaller rtol, or ask for an earlier t"
        )
    # Wedin: the sine of the angle by which a space of singular vectors is off.
    angle = error / -np.expm1(found.logarithms[alike] - found.logarithms[0]) if alike < size else ROUNDING
    shares, answers = (
        np.einsum("kdv,kdv->k", part[:, :, :alike], part[:, :, :alike]) / alike for part in (right, left)
    )
    direction, image = right[:, :, 0], left[:, :, 0]
    if alike > 1:
        direction = image = np.full_like(direction, np.nan)
    return JacobianSpectrum(
        t=end,
        exponents=_checks.readonly(found.logarithms / end),
        multiplicity=alike,
        direction=_checks.readonly(np.ascontiguousarray(direction[:, :dim])),
        radii=_checks.readonly(_radii(direction, dim)),
        image=_checks.readonly(np.ascontiguousarray(image[:, :dim])),
        image_radii=_checks.readonly(_radii(image, dim)),
        token=_largest(shares, angle),
        responding=_largest(answers, angle),
        shares=_checks.readonly(shares / shares.sum()),
        doubt=error,
    )


def _radii(vectors: FloatArray, dim: int) -> FloatArray:
    """The radial part (tokens,) of packed vectors; zeros where there is none."""
    return vectors[:, dim].copy() if vectors.shape[1] > dim else np.zeros(len(vectors))


def _largest(shares: FloatArray, angle: float) -> int | None:
    """Who has the largest share, or None where another one has as much: turned by an angle, a share changes by up to twice that."""
    first, *others = np.argsort(-shares, kind="stable")
    if others and shares[first] - shares[others[0]] <= 4.0 * angle + ROUNDING:
        return None
    return int(first)


def _asked(run: Any, t: Any) -> tuple[float, tuple[tuple[float, Attention], ...]]:
    """The time, and the models up to it with the depths at which they begin."""
    if not isinstance(run, Handle) or not hasattr(run, "schedule"):
        raise InvalidInputError(f"run must be a metastable.Run, not {type(run).__name__}; simulate first")
    handle: Any = run
    for word in handle.method.split("+"):
        if word not in ADAPTIVE:
            raise UnsupportedError(
                f"the exponents are those of the flow, and this run was made by method={handle.method!r}; use method='tsit5'"
            )
    end = float(handle.end) if t is None else _checks.number(t, "t", 0.0, strict=True, error=TimeError)
    if end > handle.end * (1 + 1e-12):
        raise TimeError(
            f"t = {end:g} is beyond the run, which ends at {handle.end:g}; extend it first: run.extend(until={end:g})"
        )
    schedule: Schedule = handle.schedule
    return end, schedule.until(end).pieces


def _plans(pieces: tuple[tuple[float, Attention], ...], tokens: int, end: float, run: Any, engine: str) -> list[Plan]:
    """A checked plan of explicit steps for each model."""
    attributes = run._made.attrs
    plans = []
    for number, (begin, model) in enumerate(pieces):
        last = end if number + 1 == len(pieces) else pieces[number + 1][0]
        if not short(model, last - begin):
            raise UnsupportedError(
                f"tangent vectors are carried in explicit steps, which do not reach t = {end:g} in this model; ask for an earlier t: "
                "jacobian_spectrum(run, t)"
            )
        if end * size_of_value(model) < EARLIEST:
            raise TimeError(
                f"t = {end:g} is so early that the derivative is the identity to rounding; ask for at least "
                f"{EARLIEST / size_of_value(model):.2g}"
            )
        directions = tokens * (model.dim - 1 + (1 if model.norm.has_radius else 0))
        if directions > LARGEST:
            raise UnsupportedError(
                f"{tokens} tokens in dimension {model.dim} have {directions} directions, and the spectrum multiplies matrices of order "
                f"{LARGEST} at the most; take fewer tokens"
            )
        chosen = select.choose_derivative(model, tokens, engine)
        wishes = Wishes("tsit5", chosen, "direct", attributes["rtol"], attributes["atol"], None, MAX_STEPS)
        plan = make((model,), tokens, Save(last - begin, np.array([last - begin])), wishes)
        plans.append(replace(plan, save=Save(last - begin, np.array([last - begin]))))
    return plans


def _full_frame(state: FloatArray, dim: int) -> FloatArray:
    """Orthonormal tangent vectors at a packed state, (tokens, width, directions): of token 0, of token 1, ...; radii last."""
    tokens, width = state.shape
    own = tangent.tangent_frame(state[:, :dim])
    frame = np.zeros((tokens, width, tokens * (width - 1)))
    for k in range(tokens):
        frame[k, :dim, k * (dim - 1) : (k + 1) * (dim - 1)] = own[k].T
        if width > dim:
            frame[k, dim, tokens * (dim - 1) + k] = 1.0
    return frame
