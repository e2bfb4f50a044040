"""What densities are made of: which basis belongs to a dimension, how high a degree, functions of users, shares of mass."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import InvalidInputError, ResolutionError, UnsupportedError
from metastable.meanfield import bases
from metastable.meanfield.bases import Basis, Circle, Sphere, Zonal, resized
from metastable.meanfield.witnesses import difference, witnesses

DEGREE = 32
"""Degree that a density starts with where nothing asks for more."""
LARGEST_DEGREE: dict[type[Basis], int] = {Circle: 4096, Zonal: 1024, Sphere: 128}
"""Degrees beyond which tables and steps take too long."""
TAIL = 1e-13
"""Part of a function (in mean square) that may be left in the last tenth of its modes."""
LAST = 0.1
"""Share of the degrees of a series that are its end."""
LEVELS = tuple(10.0**-exponent for exponent in range(17))
"""Sizes of modes that are looked at one after the other where a series ends: its pattern may differ between strong and weak ones."""
BETWEEN = 1e-11
"""How far (root mean square) a series may be from its function at points off its nodes (`witnesses`)."""
BLOCK = 2**22
"""Numbers in a table of functions at points, at most."""


def kind_of(dim: int, axis: Any) -> type[Basis]:
    """The basis for a dimension; `axis` not None: zonal."""
    if axis is not None:
        return Zonal
    if dim in (2, 3):
        return Circle if dim == 2 else Sphere
    raise UnsupportedError(
        f"densities exist on the circle, on S^2, and zonal in any dimension; for dim={dim} give the axis of symmetry: axis=[1, 0, ...]"
    )


def degree_of(kind: type[Basis], size: int) -> int:
    """The degree of a series of so many coefficients."""
    degree = {Circle: (size - 1) // 2, Zonal: size - 1, Sphere: math.isqrt(size) - 1}[kind]
    if degree < 0 or {Circle: 2 * degree + 1, Zonal: degree + 1, Sphere: (degree + 1) ** 2}[kind] != size:
        raise InvalidInputError(f"{size} coefficients are no full set of degrees on the {kind.__name__.lower()}")
    return degree


def tail_of(basis: Basis, coefficients: FloatArray) -> float:
    """Part of the series (root mean square) at its end, behind which more may have been cut off: see `tail_of_sizes`."""
    return tail_of_sizes(sizes_of(basis, coefficients), LAST)


def sizes_of(basis: Basis, coefficients: FloatArray) -> FloatArray:
    """Root mean square of what series (..., size) have in each degree, (degree + 1,)."""
    squares = np.square(coefficients).reshape(-1, basis.size).sum(axis=0)
    return np.sqrt(np.bincount(basis.degrees.astype(int), squares))


def last_part(sizes: FloatArray, share: float) -> float:
    """Part of what has sizes (degree + 1,) in the degrees 0, 1, .. that the last `share` of them holds."""
    whole, degree = float(np.linalg.norm(sizes)), len(sizes) - 1
    return float(np.linalg.norm(sizes[np.arange(degree + 1) > (1.0 - share) * degree])) / whole if whole > 0 else 0.0


def tail_of_sizes(sizes: FloatArray, share: float) -> float:
    """Part, of what has sizes (degree + 1,) in the degrees 0, 1, .., that stands at their end; behind it more may have been cut off.

    It is what the last `share` of the degrees holds, or, where that is more, the last mode of its size that stands nearer to the
    end than modes of that size (or a larger one) stand to each other. A density that turns by 2 pi/k leave alone has the modes
    k, 2 k, 3 k, .. only: the last tenth may hold none of them and says nothing, but 55 among 11, 22, .., 55 of degree 64 says that
    66 is missing.
    """
    left, degree = last_part(sizes, share), len(sizes) - 1
    parts = sizes / (float(np.linalg.norm(sizes)) or 1.0)
    for height in LEVELS:
        if height <= left:
            break
        seen = np.flatnonzero(parts >= height)
        # Gaps are not wider than the last mode is far from 0, so that it needs no look in the first half.
        if seen.size and 2 * seen[-1] > degree and degree - seen[-1] < np.diff(seen, prepend=0).max():
            return max(left, float(parts[seen[-1]]))
    return left


def lift_of(basis: Basis, coefficients: FloatArray) -> float:
    """How much of the uniform law, as a part of the mass, `lifted` mixes into the one of these laws that needs most of it.

    Where the law is large somewhere this may be much, however small the negative values are beside the largest one: a node at -m
    (the uniform law is 1 everywhere) takes m/(1 + m). Whoever lifts has to see to it that it is little.
    """
    lowest = min(float(basis.values(coefficients).min()), 0.0)
    return -lowest / (1.0 - lowest)


def lifted(basis: Basis, coefficients: FloatArray) -> FloatArray:
    """Laws (..., size), each mixed with as much of the uniform law (`lift_of`) as it takes to be nowhere negative at the nodes: mass
    stays."""
    lowest = np.minimum(basis.values(coefficients).min(axis=-1, keepdims=True), 0.0)
    result = coefficients / (1.0 - lowest)
    result[..., 0] = coefficients[..., 0]
    return result


def check_degree(degree: Any, kind: type[Basis], name: str = "degree") -> int:
    """`degree` as the degree of a series of this kind."""
    return _checks.count(degree, name, minimum=1, maximum=LARGEST_DEGREE[kind])


def check_axis(axis: Any, dim: int) -> FloatArray | None:
    """`axis` as a unit vector of R^dim."""
    if axis is None:
        return None
    return _checks.tokens(_checks.vector(axis, "axis", dim)[None, :], "axis", dim=dim)[0]


def in_frame(points: FloatArray, axis: FloatArray | None) -> FloatArray:
    """Points as a basis sees them: a zonal one looks at the height along the axis only, in the first coordinate."""
    if axis is None:
        return points
    height = np.clip(points @ axis, -1.0, 1.0)
    flat = np.zeros_like(points)
    flat[:, 0], flat[:, 1] = height, np.sqrt(1.0 - height**2)
    return flat


def out_of_frame(points: FloatArray, axis: FloatArray | None, towards: FloatArray | None = None) -> FloatArray:
    """Points of the space for nodes of a basis: on the meridian towards some direction across the axis."""
    if axis is None:
        return points
    across = np.eye(axis.size)[int(np.argmin(np.abs(axis)))] if towards is None else towards
    across = across - (across @ axis) * axis
    return points[:, :1] * axis + points[:, 1:2] * (across / np.linalg.norm(across))


def at_nodes(function: Callable[[FloatArray], Any], axis: FloatArray | None) -> Callable[[FloatArray], FloatArray]:
    """A user's function as one of the nodes of a basis, over its largest value there. With an axis it must depend on the height
    alone (`InvalidInputError`)."""

    def evaluated(nodes: FloatArray) -> FloatArray:
        points = out_of_frame(nodes, axis)
        values = _answer(function, points)
        if axis is not None:
            # Another meridian, at an odd angle to the first one where there is room and on the other side, shows what depends on more.
            towards = np.random.default_rng(0).standard_normal(axis.size)
            first = points[len(points) // 2] - (points[len(points) // 2] @ axis) * axis
            other = _answer(function, out_of_frame(nodes, axis, -np.sign(towards @ first) * towards))
            wrong = float(np.abs(other - values).max() / values.max())
            if wrong > 1e-9:
                raise InvalidInputError(
                    f"with an axis function must depend on <x, axis> alone, but at equal heights it differs by {wrong:.2g} of its "
                    "largest value; leave axis out (on the circle and on S^2), or average function around the axis"
                )
        return values / values.max()

    return evaluated


def _answer(function: Callable[[FloatArray], Any], points: FloatArray) -> FloatArray:
    """A user's function at points (m, dim): finite, not negative, one number each."""
    if not callable(function):
        raise InvalidInputError(f"function must take unit vectors (m, dim) and return m numbers, not be {function!r}")
    try:
        answer = function(_checks.readonly(points.copy()))
    except Exception as reason:
        raise InvalidInputError(
            f"function failed at unit vectors (m, dim): {type(reason).__name__}: {reason}"
        ) from reason
    values = _checks.real_array(answer, "what function returns")
    if values.shape != (len(points),):
        raise InvalidInputError(f"function must return one number for each of {len(points)} points, not {values.shape}")
    if (values < 0).any():
        raise InvalidInputError(f"a density is not negative, but function returns {values.min():g}")
    if not values.max() > 0:
        raise InvalidInputError("function is zero everywhere: that is no density")
    return values


def projected(
    function: Callable[[FloatArray], FloatArray], kind: type[Basis], dim: int, degree: int | None
) -> FloatArray:
    """Coefficients (..., size) of a function of nodes (q, dim) to (..., q): of so high a degree as it needs, or those up to `degree`.

    The nodes of a rule see nothing of a wave that vanishes on them, and take a faster one for a slower one. So the series is compared
    with the function at points off the nodes, too, and a given degree does not say how fine the rule is, only where the series is cut.
    """
    wanted = None if degree is None else check_degree(degree, kind)
    used = DEGREE
    while True:
        basis = bases.make(kind, dim, used)
        values = function(np.concatenate([basis.nodes, witnesses(basis)[0]]))
        coefficients = basis.project(values[..., : len(basis.nodes)])
        # No pattern is looked for here: the witnesses see what is missing behind the end.
        left, wrong = last_part(sizes_of(basis, coefficients), LAST), math.inf
        if left <= TAIL:
            wrong = difference(basis, coefficients, values[..., len(basis.nodes) :])
        resolved, last = left <= TAIL and wrong <= BETWEEN, 2 * used > LARGEST_DEGREE[kind]
        if wanted is not None and (resolved or last):
            return resized(coefficients, bases.make(kind, dim, wanted).size)
        if resolved:
            return coefficients
        if last:
            why = (
                f"the last of them have {left:.1e} of it"
                if left > TAIL
                else f"between its nodes it is off by {wrong:.1e}"
            )
            raise ResolutionError(
                f"function has more detail than {used} modes hold ({why}); smooth it, or say degree= to take what there is"
            )
        used *= 2


def check_kept(basis: Basis, coefficients: FloatArray, degree: int, tolerance: float, why: str) -> None:
    """Refuse to cut series (..., size) at `degree` where more than the tolerance is lost by it (`ResolutionError`)."""
    sizes = sizes_of(basis, coefficients)
    sizes = sizes / np.linalg.norm(sizes)
    lost = float(np.linalg.norm(sizes[degree + 1 :]))
    if lost > tolerance:
        highest = max(degree + 1, int(np.flatnonzero(sizes > 0.1 * tolerance)[-1]))
        raise ResolutionError(
            f"the density has modes up to degree {highest}, but {why}, so that {lost:.1e} of it would be lost; allow more of them, "
            f"or cut it yourself: density.with_degree({degree})"
        )


def smearing(
    count: float, dim: int, kind: type[Basis], bandwidth: float | None, degree: int | None
) -> tuple[float, int]:
    """The bandwidth at which so many tokens are smeared out, and the degree that shows it, where one or both are not given."""
    if degree is not None:
        degree = check_degree(degree, kind)
    reach = math.sqrt(-2.0 * math.log(TAIL))
    if bandwidth is None:
        bandwidth = 0.5 * count ** (-1.0 / (dim + 3)) if degree is None else reach / degree
    # Beyond half a turn or so everything is uniform.
    bandwidth = min(_checks.number(bandwidth, "bandwidth", 0.0, strict=True), 1e3)
    if degree is None:
        needed = max(4.0, reach / bandwidth)
        if needed > LARGEST_DEGREE[kind]:
            raise ResolutionError(
                f"a bandwidth of {bandwidth:g} needs {needed:.3g} modes, more than {LARGEST_DEGREE[kind]}; "
                f"use bandwidth={1.01 * reach / LARGEST_DEGREE[kind]:.2g} or more"
            )
        degree = math.ceil(needed)
    return bandwidth, degree


def smeared(
    tokens: FloatArray, shares: FloatArray, axis: FloatArray | None, bandwidth: float, degree: int
) -> FloatArray:
    """Series (m, size) of tokens (n, dim) under the heat kernel, with each line of `shares` (m, n) as weights."""
    n, dim = tokens.shape
    kind = kind_of(dim, axis)
    basis = bases.make(kind, dim, degree)
    coefficients = np.zeros((len(shares), basis.size))
    rows = max(1, BLOCK // (basis.size * (degree if kind is Sphere else 1)))
    framed = in_frame(tokens, axis)
    for first in range(0, n, rows):
        part = slice(first, first + rows)
        coefficients += shares[:, part] @ basis.functions(framed[part])
    return coefficients * np.exp(-0.5 * bandwidth**2 * basis.laplacian)


def angles_of_shares(basis: Circle, coefficients: FloatArray, shares: FloatArray) -> FloatArray:
    """Angles t (m,) at which the law of each row (m or 1, size) has mass `shares` between 0 and t."""
    k = np.arange(1.0, basis.degree + 1.0)
    modes = basis.complex_modes(coefficients)[:, 1:]
    grid = np.linspace(0.0, 2.0 * np.pi, 4 * basis.degree + 65)

    def law(at: FloatArray, rows: np.ndarray) -> tuple[FloatArray, FloatArray]:
        """Mass up to `at`, and the density in the angle there."""
        waves = np.exp(1j * at[:, None] * k) * rows
        mass = at + 2.0 * ((waves - rows) / (1j * k)).sum(axis=1).real
        return mass / (2.0 * np.pi), (1.0 + 2.0 * waves.sum(axis=1).real) / (2.0 * np.pi)

    table = (np.exp(1j * grid[:, None] * k) - 1.0) / (1j * k)
    rows = max(1, BLOCK // (8 * grid.size))
    found = np.empty(shares.size)
    for first in range(0, shares.size, rows):
        part = slice(first, first + rows)
        own = modes if len(modes) == 1 else modes[part]
        known = (grid + 2.0 * (own @ table.T).real) / (2.0 * np.pi)
        wanted = shares[part]
        left = np.array(
            [np.searchsorted(known[0 if len(known) == 1 else i], share) for i, share in enumerate(wanted)], dtype=int
        )
        low, high = grid[np.clip(left - 1, 0, None)], grid[np.clip(left, 1, grid.size - 1)]
        at = 0.5 * (low + high)
        for _ in range(60):  # Newton's method, kept between what is known to be below and above
            share, height = law(at, own)
            low, high = np.where(share < wanted, at, low), np.where(share < wanted, high, at)
            with np.errstate(divide="ignore", invalid="ignore"):
                better = at - (share - wanted) / height
            inside = (better > low) & (better < high)
            better = np.where(inside, better, 0.5 * (low + high))
            moved = np.abs(better - at).max()
            at = better
            if moved < 1e-14:
                break
        found[part] = at
    return found
