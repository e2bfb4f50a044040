"""`evolve` against the same equation on a grid, written without the package's bases: attention by direct sums over nodes (no theorem of
Funk and Hecke), harmonics of SciPy, Runge and Kutta in time; with noise and frozen tokens, on S^2 and zonal in d = 4, 5."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import eval_gegenbauer, roots_jacobi, roots_legendre, sph_harm_y

import metastable as ms
from metastable.meanfield import Density, evolve

DEGREE = 14


def sphere_grid():
    """Nodes with weights, tangent directions, and harmonics with their derivatives there; and their degrees."""
    z, weights = roots_legendre(24)
    around = 2 * np.pi * np.arange(40) / 40
    height, turn = (part.ravel() for part in np.meshgrid(z, around, indexing="ij"))
    fall = np.arccos(height)
    x = np.stack([np.sin(fall) * np.cos(turn), np.sin(fall) * np.sin(turn), height], axis=1)
    down = np.stack([height * np.cos(turn), height * np.sin(turn), -np.sin(fall)], axis=1)
    side = np.stack([-np.sin(turn), np.cos(turn), 0 * turn], axis=1)
    pairs = [(l, m) for l in range(DEGREE + 1) for m in range(-l, l + 1)]
    made = [sph_harm_y(l, m, fall, turn, diff_n=1) for l, m in pairs]
    scale = np.sqrt(4 * np.pi)
    values = scale * np.array([value for value, _ in made])
    slopes = scale * np.array([[slope[..., 0], slope[..., 1] / np.sin(fall)] for _, slope in made])
    return x, np.repeat(weights / 80, 40), down, side, values, slopes, pairs


@pytest.mark.parametrize("weights", ["softmax", "unnormalized"])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_sphere_with_noise(weights, frozen):
    x, area, down, side, values, slopes, pairs = sphere_grid()
    anchors = np.array([[0.6, 0.0, 0.8], [-0.48, 0.8, 0.36]]) if frozen else np.empty((0, 3))
    heavy = np.array([0.4, 0.7]) if frozen else np.empty(0)
    beta, noise, until = 2.0, 0.5, 0.4 if weights == "softmax" else 0.03
    pull, extra = np.exp(beta * x @ x.T), heavy * np.exp(beta * x @ anchors.T)
    degrees = np.array([l for l, _ in pairs])

    def slope(_, c):
        law = area * np.real(values.T @ c)
        force, total = pull @ (law[:, None] * x) + extra @ anchors, pull @ law + extra.sum(axis=1)
        speed = force / (total[:, None] if weights == "softmax" else 1 + heavy.sum())
        flux = np.stack([law * np.einsum("qd,qd->q", speed, way) for way in (down, side)])
        return np.einsum("icq,cq->i", np.conj(slopes), flux) - 0.5 * noise**2 * degrees * (degrees + 1) * c

    def law(x):
        return np.exp(0.6 * x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + 0.4 * x[:, 2])

    begin = np.conj(values) @ (area * law(x))
    c = solve_ivp(slope, (0, until), begin / begin[0], rtol=1e-8, atol=1e-10).y[:, -1]
    points = ms.sphere.uniform(40, 3, seed=5)
    fall, turn = np.arccos(points[:, 2]), np.arctan2(points[:, 1], points[:, 0])
    known = np.sqrt(4 * np.pi) * sum(a * sph_harm_y(l, m, fall, turn) for a, (l, m) in zip(c, pairs)).real
    model = ms.Attention(dim=3, beta=beta, mask=ms.Full(), weights=weights, noise=noise)
    if frozen:
        model = model.replace(frozen=ms.Frozen(anchors, heavy))
    found = evolve(model, Density.from_function(law, 3), [until]).final
    assert np.abs(found(points) - known).max() < 2e-6  # what fourteen degrees leave
    assert found.mass == 1.0


@pytest.mark.parametrize("dim", [4, 5])
@pytest.mark.parametrize("weights", ["softmax", "unnormalized"])
def test_zonal_densities_with_noise_between_two_frozen_tokens(dim, weights):
    beta, noise, until, order = 2.5, 0.4, 0.3 if weights == "softmax" else 0.02, 0.5 * (dim - 2)
    z, area = roots_jacobi(48, order - 0.5, order - 0.5)
    area = area / area.sum()
    across, share = roots_jacobi(30, order - 1.0, order - 1.0)  # the angle between two points, across the axis
    share, flat = share / share.sum(), np.sqrt(1 - z**2)
    cosine = z[:, None, None] * z[:, None] + flat[:, None, None] * flat[:, None] * across
    lean = -flat[:, None, None] * z[:, None] + z[:, None, None] * flat[:, None] * across
    pull, force = np.exp(beta * cosine) @ share, (np.exp(beta * cosine) * lean) @ share
    signs, heavy = np.array([1.0, -1.0]), np.array([0.5, 0.3])
    extra = heavy * np.exp(beta * z[:, None] * signs)
    degrees = np.arange(33)
    polynomials = np.array([eval_gegenbauer(l, order, z) for l in degrees])
    size = np.sqrt(polynomials**2 @ area)[:, None]
    steep = np.array([2 * order * eval_gegenbauer(l - 1, order + 1, z) if l else 0 * z for l in degrees]) * -flat / size
    polynomials = polynomials / size

    def slope(_, c):
        law = area * (polynomials.T @ c)
        total, push = pull @ law + extra.sum(axis=1), force @ law - flat * (extra @ signs)
        speed = push / (total if weights == "softmax" else 1 + heavy.sum())
        return steep @ (law * speed) - 0.5 * noise**2 * degrees * (degrees + dim - 2) * c

    begin = polynomials @ (area * np.exp(0.9 * z + 0.5 * z**2))
    c = solve_ivp(slope, (0, until), begin / begin[0], rtol=1e-10, atol=1e-13).y[:, -1]
    height, axis = np.linspace(-0.95, 0.95, 11), np.eye(dim)[1]
    known = sum(a * eval_gegenbauer(l, order, height) / s for l, a, s in zip(degrees, c, size[:, 0]))
    model = ms.Attention(dim=dim, beta=beta, mask=ms.Full(), weights=weights, noise=noise)
    model = model.replace(frozen=ms.Frozen(signs[:, None] * axis, heavy))
    start = Density.from_function(lambda x: np.exp(0.9 * x @ axis + 0.5 * (x @ axis) ** 2), dim, axis=axis)
    points = height[:, None] * axis + np.sqrt(1 - height**2)[:, None] * np.eye(dim)[0]
    assert np.abs(evolve(model, start, [until]).final(points) - known).max() < 1e-7
