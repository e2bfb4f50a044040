"""`jacobian_spectrum`: how fast small changes of the start grow along a run, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable._progress import progress_bar
from metastable.errors import ConvergenceError, InvalidInputError, TimeError, UnsupportedError
from metastable.handle import Handle
from metastable.integrate import tangent
from metastable.integrate.plan import MAX_STEPS, Plan, Save, Wishes, short
from metastable.integrate.planning import make
from metastable.kernels import select
from metastable.model import Attention, Schedule

if TYPE_CHECKING:
    from metastable.run import Run

LARGEST = 3000
"""Tangent directions at the most: matrices of this order are multiplied in every step."""
CLOSE, WIDEST = 6.0, 600.0
"""Logarithms of singular values that differ by more than `CLOSE` are told apart by sweeps over the factors of a run, closer ones in
groups, which must not span more than `WIDEST` (the range of double precision)."""
RESOLVED = 24.0
"""A sweep makes values at the distance D in their logarithms better by exp(-2 D): how much there must be in all."""
ROUNDS = 300
"""Rounds of the iteration for the leading direction at the most."""


@dataclass(frozen=True, eq=False, repr=False)
class JacobianSpectrum:
    """Growth of small changes of the start; made by `jacobian_spectrum`.

    Fields
    ------
    t : the time up to which the run was followed.
    exponents : finite-time Lyapunov exponents (1/t) ln s_i, the largest first; s_i the singular values of the derivative of the
        state at t in the start. tokens (dim - 1) of them; as many more as tokens for norms with a radius.
    direction : the change of the start that grows most, (tokens, dim), of length one, tangent to the sphere.
    image : what becomes of it, (tokens, dim), divided by its growth: of length one (together with its radii).
    token : the unstable one: that with the largest part of `direction`.
    responding : the token with the largest part of `image`.
    shares : part of each token in the squared length of `direction`, (tokens,).
    """

    t: float
    exponents: FloatArray
    direction: FloatArray
    image: FloatArray
    token: int
    responding: int
    shares: FloatArray

    def __repr__(self) -> str:
        return (
            f"<JacobianSpectrum: t = {self.t:g}, {len(self.exponents)} exponents from {self.exponents[0]:.4g} to "
            f"{self.exponents[-1]:.4g}, the unstable token is {self.token}>"
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
    state = plans[0].packed(tokens)
    frame = _full_frame(state, tokens.shape[1])
    vectors, factors = frame, []
    with progress_bar("jacobian_spectrum", end, progress) as report:
        for (begin, _), plan in zip(pieces, plans):
            state, vectors, found = tangent.carry(plan, state, vectors, lambda s, begin=begin: report(begin + s), begin)
            factors += found
    exponents = _log_singular_values(factors) / end
    leading, image = _leading(factors)
    direction, final = frame @ leading, vectors @ image
    shares = np.einsum("kd,kd->k", direction, direction)
    dim = tokens.shape[1]
    return JacobianSpectrum(
        end,
        _checks.readonly(exponents),
        _checks.readonly(np.ascontiguousarray(direction[:, :dim])),
        _checks.readonly(np.ascontiguousarray(final[:, :dim])),
        int(shares.argmax()),
        int(np.einsum("kd,kd->k", final, final).argmax()),
        _checks.readonly(shares / shares.sum()),
    )


def _asked(run: Any, t: Any) -> tuple[float, tuple[tuple[float, Attention], ...]]:
    """The time, and the models up to it with the depths at which they begin."""
    if not isinstance(run, Handle) or not hasattr(run, "schedule"):
        raise InvalidInputError(f"run must be a metastable.Run, not {type(run).__name__}; simulate first")
    handle: Any = run
    for word in handle.method.split("+"):
        if word not in ("tsit5", "rodas", "auto"):
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


def _heights(factors: list[FloatArray]) -> FloatArray:
    """Logarithms of the diagonal of a triangular product."""
    with np.errstate(divide="ignore"):
        return np.sum([np.log(np.abs(np.diagonal(factor))) for factor in factors], axis=0)


def _log_singular_values(factors: list[FloatArray]) -> FloatArray:
    """Natural logarithms of the singular values of R_m ... R_1, the largest first, each relatively exact.

    A sweep of QR over the factors in turn, P^T = R_1^T ... R_m^T = Z T_1 ... T_m, makes another triangular product with the same
    singular values, whose diagonal is nearer to them: Rutishauser's iteration for R^T R, in factors. Values further apart than
    exp(`CLOSE`) are told apart by a few of them; groups of closer ones are products of small blocks on the diagonal, whose singular
    values LAPACK finds to relative precision (dgejsv). Nothing is multiplied out as a whole, so nothing overflows and small values
    are not buried under large ones.
    """
    from scipy.linalg.lapack import dgejsv  # pyright: ignore[reportAttributeAccessIssue]

    size = len(factors[0])
    heights = _heights(factors)
    close = CLOSE if np.ptp(heights) < WIDEST else min(CLOSE, WIDEST / size)
    for _ in range(int(np.ceil(RESOLVED / close))):
        turned, made = np.eye(size), []
        for factor in factors[::-1]:
            turned, upper = np.linalg.qr(factor.T @ turned)
            made.append(upper)
        factors = made
    heights = _heights(factors)
    cuts = (np.flatnonzero(~(np.abs(np.diff(heights)) <= close)) + 1).tolist()
    found = []
    for first, last in zip([0, *cuts], [*cuts, size]):
        if last - first == 1:
            found.append(heights[first:last])
            continue
        block, scale = np.eye(last - first), 0.0
        for factor in factors:
            block = factor[first:last, first:last] @ block
            top = float(np.abs(block).max())
            block, scale = block / top, scale + np.log(top)
        values, _, _, work, _, failed = dgejsv(np.asfortranarray(block), jobu=3, jobv=3)
        if failed:
            raise ConvergenceError(
                f"the singular values of a block of {last - first} close ones did not converge; ask for another t"
            )
        found.append(np.log(values) + np.log(work[0] / work[1]) + scale)
    return np.sort(np.concatenate(found))[::-1]


def _leading(factors: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """The leading right and left singular vectors of R_m ... R_1, by iteration with P^T P, normalised after every factor."""
    vector = np.random.default_rng(0).standard_normal(len(factors[0]))
    vector /= np.linalg.norm(vector)
    image = vector
    for _ in range(ROUNDS):
        image = vector
        for factor in factors:
            image = factor @ image
            image /= np.linalg.norm(image)
        back = image
        for factor in factors[::-1]:
            back = factor.T @ back
            back /= np.linalg.norm(back)
        moved, vector = float(np.linalg.norm(back - vector)), back
        if moved < 1e-13:
            break
    return vector, image
