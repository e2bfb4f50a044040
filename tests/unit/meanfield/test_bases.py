"""The three bases are orthonormal, with the gradients and the eigenvalues of the sphere, and Funk and Hecke's numbers."""

import numpy as np
import pytest
from scipy import integrate, special

from metastable import sphere
from metastable.meanfield import bases, interaction

KINDS = [(bases.Circle, 2), (bases.Zonal, 2), (bases.Zonal, 3), (bases.Zonal, 7), (bases.Sphere, 3)]


@pytest.mark.parametrize(("kind", "dim"), KINDS)
def test_values_and_coefficients_are_inverse_and_the_series_is_what_is_evaluated(kind, dim):
    basis = kind(dim, 9)
    a = np.random.default_rng(0).normal(size=(3, basis.size))
    values = basis.values(a)
    assert np.abs(basis.project(values) - a).max() < 1e-13
    assert np.abs(basis.functions(basis.nodes) @ a.T - values.T).max() < 1e-12
    assert abs(basis.weights.sum() - 1.0) < 1e-14


@pytest.mark.parametrize(("kind", "dim"), KINDS)
def test_gradients_against_finite_differences_and_the_laplacian(kind, dim):
    basis = kind(dim, 6)
    a = np.random.default_rng(1).normal(size=basis.size)
    gradient, h = basis.gradient(a), 1e-5
    for direction, found in zip(basis.frames, gradient):
        ahead, behind = (sphere.normalize(basis.nodes + sign * h * direction) for sign in (1, -1))
        slope = (basis.functions(ahead) - basis.functions(behind)) @ a / (2 * h)
        assert np.abs(slope - found).max() < 1e-6
    assert np.abs(basis.project_gradient(gradient) - basis.laplacian * a).max() < 1e-11


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_zonal_functions_are_gegenbauer_polynomials(dim):
    z = np.linspace(-1, 1, 7)
    found, _ = bases.zonal_polynomials(dim, 5, z)
    at_one, _ = bases.zonal_polynomials(dim, 5, np.ones(1))
    for l in range(6):
        known = special.eval_chebyt(l, z) if dim == 2 else special.eval_gegenbauer(l, dim / 2 - 1, z)
        top = 1.0 if dim == 2 else special.eval_gegenbauer(l, dim / 2 - 1, 1.0)
        assert np.abs(found[:, l] / at_one[0, l] - known / top).max() < 1e-13


def test_spherical_harmonics_obey_the_addition_theorem():
    x, y = sphere.uniform(6, 3, 0), sphere.uniform(6, 3, 1)
    basis = bases.Sphere(3, 8)
    products = basis.functions(x) * basis.functions(y)
    for l in range(9):
        known = (2 * l + 1) * special.eval_legendre(l, np.einsum("kd,kd->k", x, y))
        assert np.abs(products[:, basis.degrees == l].sum(axis=1) - known).max() < 1e-12


@pytest.mark.parametrize(("dim", "beta"), [(2, 3.0), (3, -5.0), (8, 2.0), (64, 1.0), (700, 3.0), (3, 1e-9)])
def test_numbers_of_funk_and_hecke_against_quadrature(dim, beta):
    z, weights = bases.gauss_rule(dim, 120)
    values, _ = bases.zonal_polynomials(dim, 3, z)
    top, _ = bases.zonal_polynomials(dim, 3, np.ones(1))
    known = (weights * np.exp(beta * z - abs(beta))) @ values / top[0]
    found = interaction.scaled_coefficients(beta, dim, 3)
    assert np.abs(found - known).max() < 1e-14
    assert abs(interaction.forces(beta, dim, 3)[1] - known[1] / beta) < 1e-8 / abs(beta) * abs(known[1]) + 1e-6 * (
        abs(beta) < 1e-6
    )


def test_the_interaction_of_a_zonal_density_against_a_double_integral():
    """(W * mu)(x) in dimension 5, integrated over height and the angle between the directions across."""
    dim, beta, height = 5, 1.5, 0.3
    basis = bases.make(bases.Zonal, dim, 24)
    a = basis.project(np.exp(basis.heights))
    found = basis.functions(np.array([[height, np.sqrt(1 - height**2), 0, 0, 0]])) @ (
        interaction.scaled_coefficients(beta, dim, 24) * a
    )

    def part(turn, z):
        cosine = height * z + np.sqrt((1 - height**2) * (1 - z**2)) * np.cos(turn)
        return np.exp(beta * (cosine - 1) + z) * (1 - z**2) * np.sin(turn) ** 2

    top = integrate.dblquad(part, -1, 1, 0, np.pi)[0]
    bottom = integrate.dblquad(lambda turn, z: (1 - z**2) * np.sin(turn) ** 2, -1, 1, 0, np.pi)[0]
    assert found[0] == pytest.approx(top / bottom, rel=1e-9)
