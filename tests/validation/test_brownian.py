"""Brownian motion on the sphere: the law of a step, against the heat kernel's own moments and independent solvers.

Provenance: on S^(d-1) a spherical harmonic of degree l is an eigenfunction of the Laplacian with eigenvalue -l (l + d - 2), so for
noise sigma alone E[C_l(<X_t, X_0>)/C_l(1)] = exp(-l (l + d - 2) sigma^2 t / 2), C_l the Gegenbauer polynomial of index (d - 2)/2.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import linalg

import metastable as ms
from metastable.integrate import brownian, sde

MEMBERS = 20_000


def gegenbauer(l: int, d: int, z: np.ndarray) -> np.ndarray:
    """C_l(z)/C_l(1) of index (d - 2)/2, by its recurrence."""
    before, now = np.ones_like(z), z
    for k in range(1, l):
        before, now = now, ((2 * k + d - 2) * z * now - k * before) / (k + d - 2)
    return now if l else before


def still(d: int, sigma: float) -> ms.Attention:
    """Noise and nothing else."""
    return ms.Attention(dim=d, beta=0.0, value=np.zeros((d, d)), noise=sigma, mask=ms.Window(1))


LEGENDRE = np.polynomial.legendre.leggauss(200)


def chi_rule(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for the chi law of d - 1 degrees of freedom."""
    node, weight = LEGENDRE
    low, high = max(0.0, math.sqrt(d - 1) - 9), math.sqrt(d - 1) + 9
    r = low + 0.5 * (high - low) * (node + 1)
    density = np.exp((d - 2) * np.log(r) - 0.5 * r * r - (0.5 * (d - 1) - 1) * math.log(2) - math.lgamma(0.5 * (d - 1)))
    weight = 0.5 * (high - low) * weight * density
    return r, weight / weight.sum()


@pytest.mark.parametrize("d", [3, 4, 9, 64, 128, 1024])
@pytest.mark.parametrize("variance", [1e-9, 1e-6, 2e-5, 5e-3, 0.045, 0.7, 6.0])
def test_every_step_has_the_moments_of_the_heat_kernel(d, variance):
    """No sampling here: the angle as a function of a chi variable, integrated; relative to 1 - E cos, which may be tiny."""
    r, weight = chi_rule(d)
    angle = brownian.angle_map(d, variance)(r)
    assert weight @ (2 * np.sin(0.5 * angle) ** 2) == pytest.approx(-math.expm1(-0.5 * (d - 1) * variance), rel=1e-8)
    for l in range(1, 7):
        expected = math.exp(-0.5 * l * (l + d - 2) * variance)
        assert weight @ gegenbauer(l, d, np.cos(angle)) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("d", [3, 64])
@pytest.mark.parametrize("variance", [0.02, 0.5])
def test_the_chain_of_the_angle_is_a_law(d, variance):
    """E[M(M-1)..(M-k+1)/((M+theta)..(M+theta+k-1))] = exp(-k (k + theta - 1) t/2), theta = d - 1: the chain's eigenfunctions."""
    states, weights = brownian.chain_law(d, variance)
    assert (weights >= 0).all()
    for k in range(1, 5):
        ratio = np.prod([(states - i) / (states + d - 1 + i) for i in range(k)], axis=0)
        assert weights @ ratio == pytest.approx(math.exp(-0.5 * k * (k + d - 2) * variance), abs=1e-11)


@pytest.mark.parametrize(
    ("d", "sigma", "t"),
    [
        (2, 1.0, 1.0),
        (2, 3.0, 0.1),
        (3, 1.0, 0.5),
        (3, 3.0, 0.1),
        (64, 1.0, 0.03),
        (128, 1.0, 0.01),
        (128, 3.0, 0.01),
        (1024, 1.0, 0.01),
    ],
)
def test_brownian_motion_at_the_default_step(d, sigma, t):
    """Through `simulate`, with the default step: first and second Gegenbauer moments within four standard errors."""
    n = MEMBERS if d < 64 else 4000
    x = np.zeros((n, d))
    x[:, 0] = 1.0
    engine = "cpu" if d < 64 else "reference"
    if engine == "reference":  # an n x n mask for every token would be slow, and drift there is none
        end = x
        draw = sde.normals(5, n, d)
        for i in range(round(t / 0.01)):
            end = sde.strang_step(lambda t, y, out: None, 0.0, end, d, 0.01, sigma, draw(i))
    else:
        run = ms.simulate(still(d, sigma), x, times=[t], seed=5, engine=engine)
        assert run.dataset.attrs["step"] == 0.01
        end = run.final
    np.testing.assert_allclose(np.linalg.norm(end, axis=1), 1.0, atol=1e-13)
    for l in (1, 2):
        moment = gegenbauer(l, d, end[:, 0]) if d > 2 else np.cos(l * np.arctan2(end[:, 1], end[:, 0]))
        expected = math.exp(-0.5 * l * (l + d - 2) * sigma**2 * t)
        assert abs(moment.mean() - expected) < 4 * moment.std() / math.sqrt(n)


def test_ensembles_take_the_same_step():
    """d = 64, sigma = 1: E cos was off by 15 % with stochastic Heun at this step."""
    d, t = 64, 0.02
    start = np.zeros((40, d))
    start[:, 0] = 1.0
    stats = ms.ensemble(
        still(d, 1.0), tokens=40, members=50, times=[t], seed=1, start=lambda generator: start, engine="reference"
    )
    cosine = stats.x.values[:, 0, :, 0].ravel()
    assert abs(cosine.mean() - math.exp(-0.5 * (d - 1) * t)) < 4 * cosine.std() / math.sqrt(cosine.size)


@pytest.mark.parametrize("d", [2, 3, 8])
def test_the_uniform_law_is_stationary_and_directions_are_isotropic(d):
    """Uniform stays uniform (moments of a coordinate), and a step from a pole has no preferred direction, whichever pole."""
    generator = np.random.default_rng(0)
    x = ms.sphere.uniform(MEMBERS, d, generator)
    end = brownian.move(x, generator.standard_normal(x.shape), 0.3)
    for power, expected in ((1, 0.0), (2, 1 / d), (4, 3 / (d * (d + 2)))):
        for coordinate in end.T:
            values = coordinate**power
            assert abs(values.mean() - expected) < 4.5 * values.std() / math.sqrt(MEMBERS)
    pole = ms.sphere.uniform(1, d, generator)
    moved = brownian.move(np.repeat(pole, MEMBERS, axis=0), generator.standard_normal(x.shape), 0.3)
    tangent = moved - (moved @ pole[0])[:, None] * pole
    covariance = tangent.T @ tangent / MEMBERS
    wanted = np.trace(covariance) / (d - 1) * (np.eye(d) - np.outer(pole, pole))
    assert np.abs(covariance - wanted).max() < 5 / math.sqrt(MEMBERS)
    assert np.abs(tangent.mean(axis=0)).max() < 5 / math.sqrt(MEMBERS)


def test_rotated_noise_gives_the_rotated_path():
    """Turning start and increments together turns the step: equivariance path by path, hence in law."""
    generator = np.random.default_rng(1)
    for d in (3, 7):
        turn, _ = np.linalg.qr(generator.standard_normal((d, d)))
        x, normal = ms.sphere.uniform(50, d, generator), generator.standard_normal((50, d))
        np.testing.assert_allclose(
            brownian.move(x @ turn.T, normal @ turn.T, 0.2), brownian.move(x, normal, 0.2) @ turn.T, atol=1e-13
        )


# ------------------------------------------------------------------------------------------- drift and noise together

MATRIX = np.array([[1.0, 0.4], [-0.3, -0.5]])
"""A single token under dx/dt = P(Vx): on the circle dth/dt = b(th), a trigonometric polynomial."""


def circle_drift(t, y, out):
    x = y / np.linalg.norm(y, axis=1, keepdims=True)
    image = x @ MATRIX.T
    out[:] = image - (image * x).sum(axis=1, keepdims=True) * x


def fokker_planck(sigma: float, t: float, modes: int = 40) -> np.ndarray:
    """E[f(th_t) | th_0] for f = e^{i th}: the backward equation u_t = b u' + sigma^2/2 u'' in Fourier space, as coefficients."""
    m = np.arange(-modes, modes + 1)
    skew = 0.5 * (MATRIX[1, 0] - MATRIX[0, 1])
    even, odd = 0.5 * (MATRIX[1, 0] + MATRIX[0, 1]), 0.5 * (MATRIX[1, 1] - MATRIX[0, 0])
    # b = skew + even cos(2 th) + odd sin(2 th); multiplication by e^{+-2 i th} shifts by two.
    up = np.eye(m.size, k=-2)
    multiply = skew * np.eye(m.size) + 0.5 * (even - 1j * odd) * up + 0.5 * (even + 1j * odd) * up.T
    generator = multiply @ np.diag(1j * m) - np.diag(0.5 * sigma**2 * m**2)
    start = (m == 1).astype(complex)
    return linalg.expm(t * generator) @ start


def transfer(sigma: float, t: float, steps: int) -> np.ndarray:
    """The same expectation under `steps` steps of the integrator itself, its noise integrated by Gauss-Hermite: no sampling error."""
    points, nodes = 64, 28
    grid = 2 * np.pi * np.arange(points) / points
    node, weight = np.polynomial.hermite_e.hermegauss(nodes)
    weight = weight / weight.sum()
    x = np.stack([np.cos(grid), np.sin(grid)], axis=1)
    across = np.stack([-np.sin(grid), np.cos(grid)], axis=1)
    first, second = (item.ravel() for item in np.meshgrid(node, node, indexing="ij"))
    tokens = np.repeat(x, nodes**2, axis=0)
    # Only the part of the increment across the token counts; the second one is taken across where the token then is.
    normal = np.zeros((len(tokens), 2, 2))
    normal[:, 0] = np.tile(first, points)[:, None] * np.repeat(across, nodes**2, axis=0)
    middle = sde.drift_step(
        circle_drift, 0.0, brownian.move(tokens, normal[:, 0], 0.5 * sigma**2 * t / steps), 2, t / steps
    )
    normal[:, 1] = np.tile(second, points)[:, None] * np.stack([-middle[:, 1], middle[:, 0]], axis=1)
    end = sde.strang_step(circle_drift, 0.0, tokens, 2, t / steps, sigma, normal)
    angle = np.arctan2(end[:, 1], end[:, 0])
    value = np.exp(1j * grid)
    m = np.fft.fftfreq(points, 1 / points)
    matrix = (
        np.exp(1j * angle[:, None] * m).reshape(points, nodes, nodes, points) * weight[:, None, None] * weight[:, None]
    ).sum((1, 2))
    for _ in range(steps):
        value = matrix @ (np.fft.fft(value) / points)
    return value


def test_weak_order_two_against_the_fokker_planck_equation():
    """The integrator's own transfer operator on the circle, against the Fourier solution: measured 1.88, 1.96, 1.98."""
    sigma, t = 0.8, 1.0
    grid = 2 * np.pi * np.arange(64) / 64
    truth = np.exp(1j * grid[:, None] * np.arange(-40, 41)) @ fokker_planck(sigma, t)
    steps = np.array([4, 8, 16, 32])
    errors = np.array([np.abs(transfer(sigma, t, int(count)) - truth).max() for count in steps])
    orders = np.log2(errors[:-1] / errors[1:])
    assert ((orders > 1.85) & (orders < 2.1)).all(), (errors, orders)
    assert np.abs(transfer(sigma, t, 100) - truth).max() < 5e-5  # the default step


def test_sampled_runs_agree_with_the_fokker_planck_equation():
    """The same through `simulate`: one token alone many times (`Window(1)`), at a long step."""
    sigma, t, n = 0.8, 1.0, MEMBERS
    model = ms.Attention(dim=2, beta=1.0, value=MATRIX, noise=sigma, mask=ms.Window(1))
    run = ms.simulate(model, np.tile([[0.6, 0.8]], (n, 1)), times=[t], step=0.05, seed=2)
    coefficients = fokker_planck(sigma, t)
    expected = coefficients @ np.exp(1j * math.atan2(0.8, 0.6) * np.arange(-40, 41))
    for values, wanted in ((run.final[:, 0], expected.real), (run.final[:, 1], expected.imag)):
        assert abs(values.mean() - wanted) < 4 * values.std() / math.sqrt(n) + 1e-4


def causal_members(tokens: int, dim: int, beta: float):
    """Causal attention for many members in one packed state (members * tokens, dim), written anew."""
    allowed = np.tril(np.ones((tokens, tokens), dtype=bool))

    def rhs(t, y, out):
        x = (y / np.linalg.norm(y, axis=1, keepdims=True)).reshape(-1, tokens, dim)
        logits = np.where(allowed, beta * x @ x.transpose(0, 2, 1), -np.inf)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        A = (weights @ x) / weights.sum(axis=2, keepdims=True)
        out[:] = (A - (A * x).sum(axis=2, keepdims=True) * x).reshape(y.shape)

    return rhs


@pytest.mark.parametrize(("dim", "beta", "draw"), [(2, 4.0, 1), (3, 2.0, 5)])
def test_causal_drift_and_noise_converge_weakly_with_order_two(dim, beta, draw):
    """E<x_1, x_3> of three causal tokens by steps of 2, 1, 1/2, 1/4 on the same increments: differences fall by four each time."""
    tokens, sigma, horizon, members, finest = 3, 0.2, 4.0, 20_000, 16
    generator = np.random.default_rng(dim)
    start = np.tile(ms.sphere.uniform(tokens, dim, draw), (members, 1))
    increments = generator.standard_normal((2 * finest, members * tokens, dim)) / math.sqrt(2 * finest)
    rhs = causal_members(tokens, dim, beta)

    def answers(steps: int) -> np.ndarray:
        halves = increments.reshape(2 * steps, -1, members * tokens, dim).sum(axis=1) * math.sqrt(2 * steps)
        y = start
        for i in range(steps):
            y = sde.strang_step(rhs, 0.0, y, dim, horizon / steps, sigma, halves[2 * i : 2 * i + 2].transpose(1, 0, 2))
        x = y.reshape(members, tokens, dim)
        return (x[:, 0] * x[:, 2]).sum(axis=1)

    level = [answers(steps) for steps in (2, 4, 8, 16)]
    change = np.array([(first - second).mean() for first, second in pairwise(level)])
    error = [(first - second).std() / math.sqrt(members) for first, second in pairwise(level)]
    assert (np.abs(change) > 6 * np.array(error)).all()  # there is something to see
    assert 1.6 < math.log2(change[0] / change[1]) < 2.2
    assert 1.4 < math.log2(change[1] / change[2]) < 2.4
