"""The closed formulas, against quadrature, finite sums and limits computed in other ways."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, linalg

from metastable import sphere, theory
from metastable.errors import InvalidInputError, NumericalRangeError


def test_parking_constant_to_twelve_digits() -> None:
    # Finch, Mathematical Constants, section 5.3: 0.7475979202 5341 1435...
    assert theory.parking_constant() == pytest.approx(0.747597920253411, abs=1e-14)

    def inner(t: float) -> float:
        return integrate.quad(lambda s: -math.expm1(-s) / s, 0.0, t, epsabs=1e-13)[0]

    rough = integrate.quad(lambda t: math.exp(-2 * inner(t)), 0, 5, epsabs=1e-9)[0]
    rest = integrate.quad(lambda v: math.exp(-2 * inner(1 / v)) / v**2, 1e-4, 0.2, epsabs=1e-9)[0]
    assert rough + rest + 1e-4 * math.exp(-2 * np.euler_gamma) == pytest.approx(theory.parking_constant(), abs=1e-8)


def test_parking_limit_is_renyis_delay_equation() -> None:
    """The circle's count 1 + M(2 pi/delta - 1) from Renyi's equation M(x+1) = 1 + (2/x) int_0^x M, at x = 12."""
    step = 1e-3
    x = np.arange(0, 13 + step / 2, step)
    unit = round(1 / step)
    mean = np.where(x < 1, 0.0, 1.0)
    cumulative = np.zeros_like(x)
    for index in range(1, x.size):
        cumulative[index] = cumulative[index - 1] + 0.5 * step * (mean[index - 1] + mean[index])
        if index + unit < x.size:
            mean[index + unit] = 1.0 + 2.0 * cumulative[index] / x[index]
    delta = 2 * math.pi / 13
    assert 1 + mean[12 * unit] == pytest.approx(theory.renyi_centers_limit(delta), rel=1e-3)


def test_interaction_peak() -> None:
    for beta in (0.01, 1.0, 10.0, 64.0, 1e4):
        peak = theory.interaction_peak(beta)
        assert math.cos(peak) == pytest.approx((-1 + math.sqrt(1 + 4 * beta**2)) / (2 * beta), rel=1e-9)
        grid = np.linspace(0, math.pi, 200_001)
        assert grid[theory.interaction(grid, beta).argmax()] == pytest.approx(peak, abs=2e-5)
        slope = theory.interaction(peak * (1 + 1e-4), beta) - theory.interaction(peak * (1 - 1e-4), beta)
        assert abs(slope) < 1e-7
    assert theory.interaction_peak(0.0) == pytest.approx(math.pi / 2)
    assert theory.interaction_peak(1e12) == pytest.approx(1e-6, rel=1e-9)
    assert theory.interaction(-0.3, 10.0) == -theory.interaction(0.3, 10.0)
    assert theory.interaction(1e-9, 1e6) == pytest.approx(1e-9, rel=1e-12)


@pytest.mark.parametrize("weights", ["softmax", "unnormalized"])
def test_equiangular_rate_is_the_velocity_of_equiangular_tokens(weights: str) -> None:
    tokens, beta = 6, 1.7
    for rho in (-0.19, 0.0, 0.3, 0.9):
        gram = np.full((tokens, tokens), rho) + (1 - rho) * np.eye(tokens)
        x = np.linalg.cholesky(gram)
        weight = np.exp(beta * gram)
        total = weight.sum(axis=1, keepdims=True) if weights == "softmax" else float(tokens)
        velocity = sphere.project(x, weight @ x / total)
        rate = velocity[0] @ x[1] + velocity[1] @ x[0]
        assert theory.equiangular_rate(rho, tokens, beta, weights) == pytest.approx(rate, rel=1e-12)  # type: ignore[arg-type]
    assert theory.equiangular_rate(0.0, 10, 2.0) == pytest.approx(0.122, abs=1e-4)


def test_equiangular_flow_solves_its_equation() -> None:
    times = np.linspace(0, 12, 25)
    for weights in ("softmax", "unnormalized"):
        rho = theory.equiangular_flow(0.1, 8, 3.0, times, weights)  # type: ignore[arg-type]
        direct = integrate.solve_ivp(
            lambda _, r: theory.equiangular_rate(r, 8, 3.0, weights),  # type: ignore[arg-type]  # noqa: B023
            (0, 12),
            [0.1],
            "DOP853",
            t_eval=times,
            rtol=1e-11,
            atol=1e-13,
        )
        np.testing.assert_allclose(rho, direct.y[0], atol=1e-9)
    # Long horizons and sharp attention: monotone, and at one point in the end.
    late = theory.equiangular_flow(0.0, 5, 40.0, np.logspace(0, 25, 40))
    assert (np.diff(late) >= -1e-15).all()
    assert late[-1] == pytest.approx(1.0)
    np.testing.assert_array_equal(theory.equiangular_flow(1.0, 5, 1.0, [0.0, 3.0]), 1.0)


def test_single_token_solves_its_equation() -> None:
    generator = np.random.default_rng(0)
    for dim in (2, 3, 7):
        value = generator.standard_normal((dim, dim))
        x = sphere.uniform(4, dim, generator)
        times = np.array([0.0, 0.3, 2.0, 5.0])
        exact = theory.single_token(value, x, times)
        assert exact.shape == (4, 4, dim)
        for row, time in zip(exact, times):
            moved = x @ linalg.expm(time * value).T
            np.testing.assert_allclose(row, sphere.normalize(moved), atol=1e-12)
    np.testing.assert_allclose(theory.single_token(None, x[0], 3.0), x[0], atol=1e-15)


def test_single_token_never_overflows() -> None:
    block = np.array([[2.0, 1.0, 0.0], [0.0, 2.0, 1.0], [0.0, 0.0, 2.0]])
    x = sphere.normalize([0.3, -0.4, 0.5])
    late = theory.single_token(block, x, 1e6)
    assert late[0] == pytest.approx(1.0, abs=1e-11)
    assert late[1] * 1e6 == pytest.approx(2.0, rel=1e-4)
    rotation = np.array([[0.5, -1.0], [1.0, 0.5]])
    np.testing.assert_allclose(theory.single_token(rotation, [1.0, 0.0], 2e5 * math.pi), [1.0, 0.0], atol=1e-8)
    # A start almost orthogonal to the leading eigenvector stays resolved.
    start = np.array([1e-200, 1.0, 0.0])
    early, final = theory.single_token(np.diag([1.0, 0.5, -1.0]), start, [800.0, 1e6])
    assert early[0] == pytest.approx(1e-200 * math.exp(400), rel=1e-9)
    np.testing.assert_allclose(final, [1.0, 0.0, 0.0])
    assert np.isfinite(theory.single_token(1e6 * block, x, 1e6)).all()


def test_spectral_gap_and_jordan_decay() -> None:
    assert theory.spectral_gap(np.diag([1.0, 0.5, -1.0])) == pytest.approx(0.5)
    assert theory.spectral_gap(np.eye(3)) == math.inf
    assert theory.spectral_gap(np.diag([1.0, 1.0 + 1e-12, -1.0])) == pytest.approx(2.0)
    assert [theory.jordan_decay(m) for m in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize("beta", [0.0, 1.0, 9.0, 30.0])
@pytest.mark.parametrize(("end", "start"), [(0.1, 2.5), (1e-4, 1.0), (0.5, 0.6), (2.0, 3.1)])
def test_pair_collapse_time_by_direct_quadrature(beta: float, end: float, start: float) -> None:
    exact, _ = integrate.quad(
        lambda x: (1 + math.exp(beta * (1 - math.cos(x)))) / math.sin(x), end, start, epsabs=0, epsrel=1e-12, limit=400
    )
    assert theory.pair_collapse_time(end, beta, start=start) == pytest.approx(exact, rel=1e-11)
    assert theory.log_pair_collapse_time(end, beta, start=start) == pytest.approx(math.log(exact), abs=1e-11)


def test_pair_collapse_time_near_the_antipode() -> None:
    beta = 64.0
    # Near pi the angle obeys dy/dt = y e^{-2 beta}: each decade of the gap costs ln(10) e^{2 beta}.
    slow = theory.pair_collapse_time(1e-3, beta, gap=1e-12) - theory.pair_collapse_time(1e-3, beta, gap=1e-11)
    assert slow == pytest.approx(math.log(10) * (1 + math.exp(2 * beta)), rel=1e-12)
    assert 1e56 < theory.pair_collapse_time(1e-3, beta, gap=1e-12) < 1e57
    assert theory.pair_collapse_time(0.1, beta, start=2.0) == pytest.approx(
        theory.pair_collapse_time(0.1, beta, gap=math.pi - 2.0), rel=1e-12
    )
    assert theory.log_pair_collapse_time(0.1, 1e4, gap=1e-12) == pytest.approx(2e4 + math.log(24.0), rel=1e-3)
    with pytest.raises(NumericalRangeError, match="log_pair_collapse_time"):
        theory.pair_collapse_time(0.1, 1e4, gap=1e-12)


def test_strong_centers_sum_and_limits() -> None:
    for dim in (2, 3, 5, 9):
        for delta in (0.2, 1.0, 2.0):
            sigma = sphere.cap_measure(delta, dim)
            explicit = sum((1 - sigma) ** k for k in range(50))
            assert theory.strong_centers(delta, dim, 50) == pytest.approx(explicit, rel=1e-12)
            assert theory.strong_centers(delta, dim) == pytest.approx(1 / sigma)
    assert theory.strong_centers(0.5, 2) == pytest.approx(2 * math.pi)
    assert theory.strong_centers(1e-12, 9, 200) == pytest.approx(200)
    assert theory.strong_centers(4.0, 3, 200) == 1.0
    assert theory.strong_centers(np.array([0.5, 1.0]), 3).shape == (2,)


def test_strong_centers_of_any_law() -> None:
    assert theory.strong_centers_from_measure([0.25, 0.5]) == pytest.approx(3.0)
    assert theory.strong_centers_from_measure([0.25, 0.5], tokens=2) == pytest.approx(0.5 * (1.75 + 1.5))
    # Uniform samples reproduce the uniform formula; all n <= N are estimated by the same cloud.
    x = sphere.uniform(2000, 3, seed=4)
    for tokens in (1, 10, 200):
        exact = theory.strong_centers(0.8, 3, tokens)
        assert theory.strong_centers_from_samples(x, 0.8, tokens) == pytest.approx(exact, rel=0.02)


def test_strong_centers_from_samples_is_the_mean_over_orders() -> None:
    """Exact against enumeration of every ordered draw of n out of N samples."""
    import itertools

    x = sphere.uniform(6, 2, seed=8)
    near = sphere.pairwise_distance(x) <= 0.9
    for tokens in (2, 4, 6):
        counts = [
            sum(not any(near[order[s], order[i]] for i in range(s)) for s in range(tokens))
            for order in itertools.permutations(range(6), tokens)
        ]
        assert theory.strong_centers_from_samples(x, 0.9, tokens) == pytest.approx(np.mean(counts), rel=1e-12)


def test_metastability_times() -> None:
    beta, c, eps = 64.0, 4.0, 0.1
    time = theory.strong_center_time(5, beta, c, eps)
    assert theory.strong_center_displacement(5, beta, c, time) == pytest.approx(eps * c / 8)
    for b in (2.0, 16.0, 64.0, 1000.0):
        for factor in (1.5, 2.0, 4.0):
            if factor / math.sqrt(b) < math.pi:
                assert theory.strong_center_sufficient_time(3, b, factor, eps) <= theory.strong_center_time(
                    3, b, factor, eps
                )
    assert theory.strong_center_time(10, beta, c, eps) == pytest.approx(time / 2)
    with pytest.raises(InvalidInputError, match="peak"):
        theory.strong_center_time(3, 64.0, 0.5, eps)


def test_cluster_count_law() -> None:
    t = 10.0 ** np.array([1, 2, 3, 4, 6, 8, 10, 12, 20, 30, 40, 50, 56])
    table = [11.7, 8.2, 6.7, 5.8, 4.7, 4.0, 3.6, 3.25, 2.4, 1.9, 1.55, 1.3, 1.0]
    np.testing.assert_allclose(theory.cluster_count(t, 64.0, 2), table, atol=0.05)
    assert theory.cluster_count(1e6, 64.0, 3) == pytest.approx(128 / math.log(1e6))
    assert math.cos(theory.cluster_reach(1e6, 64.0)) == pytest.approx(1 - math.log(1e6) / 64)


def test_exponent_and_initial_temperature() -> None:
    assert [theory.center_exponent(d) for d in (2, 3, 5)] == [0.5, 1.0, 2.0]
    assert theory.initial_inverse_temperature(0.02, 576) == pytest.approx(5.53, abs=0.005)
    generator = np.random.default_rng(0)
    squares = []
    for _ in range(60):
        query, key = 0.3 * generator.standard_normal((2, 8, 32))
        squares.append(np.sum((32 / math.sqrt(8) * query.T @ key) ** 2) / 32)
    assert math.sqrt(np.mean(squares)) == pytest.approx(theory.initial_inverse_temperature(0.3, 32), rel=0.05)
    both = [theory.strong_centers(4 / math.sqrt(b), 3) for b in (1e6, 4e6)]
    assert math.log(both[1] / both[0], 4) == pytest.approx(theory.center_exponent(3), rel=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.single_token(np.eye(3), [1.0, 0.0], 1.0),
        lambda: theory.single_token(np.eye(2), [1.0, 0.0], -1.0),
        lambda: theory.single_token(np.eye(2), [[[1.0, 0.0]]], 1.0),
        lambda: theory.single_token(np.eye(2), [2.0, 0.0], 1.0),
        lambda: theory.spectral_gap(np.ones((2, 3))),
        lambda: theory.interaction(0.3, -1.0),
        lambda: theory.equiangular_rate(-0.9, 10, 1.0),
        lambda: theory.equiangular_rate(0.5, 1, 1.0),
        lambda: theory.equiangular_rate(0.5, 3, 1.0, "hardmax"),  # type: ignore[arg-type]
        lambda: theory.strong_centers(0.0, 3),
        lambda: theory.strong_centers(0.5, 1),
        lambda: theory.strong_centers(0.5, 3, 0),
        lambda: theory.strong_centers_from_measure([0.0, 0.5]),
        lambda: theory.strong_centers_from_samples(np.eye(3), 0.5, 4),
        lambda: theory.renyi_centers_limit(-1.0),
        lambda: theory.pair_collapse_time(0.5, 1.0),
        lambda: theory.pair_collapse_time(0.5, 1.0, start=1.0, gap=1.0),
        lambda: theory.pair_collapse_time(0.5, 1.0, start=0.4),
        lambda: theory.cluster_count(1.0, 64.0, 2),
        lambda: theory.cluster_count(10.0, 0.0, 2),
        lambda: theory.jordan_decay(0),
        lambda: theory.strong_center_displacement(0, 64.0, 4.0, 1.0),
    ],
)
def test_bad_arguments_are_refused(call: object) -> None:
    with pytest.raises(InvalidInputError):
        call()  # type: ignore[operator]


def test_unnormalised_weights_beyond_double_precision_are_refused() -> None:
    with pytest.raises(NumericalRangeError, match="softmax"):
        theory.equiangular_rate(0.5, 3, 1000.0, "unnormalized")
    assert theory.equiangular_rate(0.5, 3, 1000.0) > 0


# -------------------------------------------------------------------------------------------------------------- clouds


def test_the_mean_exponential_over_a_sphere_is_exact():
    """Against I_0 (m = 2), the uniform law of w_1^2 + w_2^2 (m = 4, equal pairs) and equal exponents in any dimension."""
    from scipy.special import ive

    from metastable.theory.clouds import log_mean_exponential

    for a, b in ((0.0, 3.0), (2.0, 50.0), (400.0, 1.0)):
        exact = np.log(ive(0, abs(a - b) / 2)) + abs(a - b) / 2 - (a + b) / 2
        assert log_mean_exponential([a, b]) == pytest.approx(exact, abs=1e-10)
        exact = np.log((np.exp(-a) - np.exp(-b)) / (b - a)) if a < 100 else np.log(1 / (a - b)) - b
        assert log_mean_exponential([a, a, b, b]) == pytest.approx(exact, abs=1e-10)
    for size in (1, 3, 50, 400):
        assert log_mean_exponential(np.full(size, 2.5)) == pytest.approx(-2.5, abs=1e-10)


def test_the_width_of_a_cloud_has_its_limits():
    """Gaussian for large beta (median of a Rayleigh law), uniform for ratios of 1 (median pi/3 on the sphere)."""
    got = theory.cloud_width([3.0, 3.0], 1e6)
    assert got.median == pytest.approx(np.sqrt(2 * np.log(2)) / np.sqrt(1e6 * 2.0), rel=1e-3)
    assert got.rms == pytest.approx(np.sqrt(2.0) / np.sqrt(1e6 * 2.0), rel=1e-3)
    np.testing.assert_allclose(got.deviations, (1e6 * 2.0) ** -0.5)
    assert got.share == pytest.approx(0.5 * (2 / 3), rel=1e-6)
    assert theory.cloud_width([1 + 1e-9, 1 + 1e-9], 4.0).median == pytest.approx(np.pi / 3, abs=2e-3)
    assert theory.cloud_width([1 + 1e-9], 4.0, rank=2).median == pytest.approx(np.pi / 6, abs=2e-3)
    widths = [theory.cloud_width([r, 2 * r], 9.0).median for r in (1.2, 2.0, 4.0)]
    assert widths == sorted(widths, reverse=True)


def test_the_covariance_of_a_cloud_rests():
    generator = np.random.default_rng(0)
    for size in (2, 3, 5):
        r = np.diag(generator.uniform(1.5, 4.0, size)) + np.triu(generator.standard_normal((size, size)), 1)
        t = theory.cloud_covariance(r)
        n = t @ t @ np.linalg.inv(t + np.eye(size))
        np.testing.assert_allclose(r @ n + n @ r.T, 2 * t, atol=1e-7 * np.abs(t).max())
        assert np.linalg.eigvalsh(t).min() > 0
    symmetric = np.array([[3.0, 0.5], [0.5, 2.0]])
    np.testing.assert_allclose(theory.cloud_covariance(symmetric), np.linalg.inv(symmetric - np.eye(2)), atol=1e-12)
