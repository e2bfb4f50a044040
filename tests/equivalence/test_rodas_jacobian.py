"""The Jacobian of Rodas against finite differences, against the reference engine, and inside the triangular solve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import metastable as ms
from benchmarks.bench_rodas import circle_rows
from metastable.integrate import rodas
from metastable.integrate.rodas import control as rodas_control
from metastable.integrate.rodas import prepare as rodas_prepare
from metastable.integrate.rodas.charts import bound_of_turning, rate_of_modes, rate_of_pair
from metastable.integrate.rodas.tableau import GAMMA
from metastable.kernels import reference
from metastable.kernels.cpu.compiled import compiled
from tests import variants


def chart_velocity(model, x, bases, y):
    """Velocity in gnomonic charts at x, from the reference engine: dy/dt = r (E^T A - y <x0, A>) with A = dx/dt."""
    r = np.sqrt(1 + np.einsum("kb,kb->k", y, y))[:, None]
    moved = (x + np.einsum("kab,kb->ka", bases, y)) / r
    A = ms.velocity(model, moved, engine="reference")
    return r * (np.einsum("kab,ka->kb", bases, A) - y * np.einsum("ka,ka->k", x, A)[:, None])


def by_differences(model, x, bases, width=2e-6):
    n, _, m = bases.shape
    result = np.empty((n, m, n, m))
    for j in range(n):
        for b in range(m):
            y = np.zeros((n, m))
            y[j, b] = width
            ahead, behind = chart_velocity(model, x, bases, y), chart_velocity(model, x, bases, -y)
            result[:, :, j, b] = (ahead - behind) / (2 * width)
    return result


@pytest.mark.parametrize("dim", [2, 3, 4, 8])
def test_against_finite_differences_with_random_matrices(dim):
    rng = np.random.default_rng(dim)
    query, key, value = (rng.normal(size=(dim, dim)) / np.sqrt(dim) for _ in range(3))
    model = ms.Attention(dim=dim, beta=1.5, query=query, key=key, value=value)
    x = variants.tokens(rng, 7, dim)
    bases, jacobian = rodas.chart_jacobian(model, x)
    assert np.abs(jacobian - by_differences(model, x, bases)).max() < 1e-8


@pytest.mark.parametrize("kind", variants.MASKS)
def test_against_the_reference_for_every_mask(kind):
    rng = np.random.default_rng(3)
    frozen = ms.Frozen(variants.tokens(rng, 2, 3), [0.5, 2.0])
    model = variants.model(rng, 8, 3, 2.0, kind, heads=2, feedforward=None, frozen=frozen, bias=ms.ALiBi(0.2))
    x = variants.tokens(rng, 8, 3)
    bases, jacobian = rodas.chart_jacobian(model, x)
    ambient = reference.jacobian(model, x)
    expected = np.einsum("kda,kdje,jeb->kajb", bases, ambient, bases)
    assert np.abs(jacobian - expected).max() < 1e-13


@pytest.mark.parametrize("kind", ["causal", "sink"])
@pytest.mark.parametrize("dim", [2, 3, 6])
def test_the_sweep_solves_with_this_jacobian(dim, kind):
    """u_1 of the row sweep obeys (I/(h gamma) - J) u_1 = f with J assembled block by block."""
    rng = np.random.default_rng(dim)
    frozen = ms.Frozen(variants.tokens(rng, 2, dim), [0.5, 2.0])
    model = variants.model(rng, 9, dim, 2.0, kind, heads=2, feedforward=None, frozen=frozen)
    x = variants.tokens(rng, 9, dim)
    system = rodas_prepare.sphere_system(model, x, first=0)
    h = 0.05
    rodas_control.run(system, "attempt", h)
    _, jacobian = rodas.chart_jacobian(model, x)
    size = 9 * (dim - 1)
    matrix = np.eye(size) / (h * GAMMA) - jacobian.reshape(size, size)
    velocity = system.velocity.reshape(size)
    assert np.abs(matrix @ system.increments[0].reshape(size) - velocity).max() < 1e-12


def test_circle_kernels():
    rng = np.random.default_rng(0)
    angles = rng.uniform(-np.pi, np.pi, 21)
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    tangent = np.stack([-x[:, 1], x[:, 0]], axis=1)
    model = ms.Attention(dim=2, beta=7.0)
    out, again, jacobian = np.zeros(21), np.zeros(21), np.zeros((21, 21))
    circle_rows(angles, 7.0, out, np.empty((0, 0)))
    circle_rows(angles, 7.0, again, jacobian)
    expected = np.einsum("ka,ka->k", tangent, ms.velocity(model, x, engine="reference"))
    assert np.abs(out - expected).max() < 1e-15
    assert np.abs(again - expected).max() < 1e-15
    ambient = reference.jacobian(model, x)
    assert np.abs(jacobian - np.einsum("ka,kajb,jb->kj", tangent, ambient, tangent)).max() < 1e-14


def test_forces_far_below_rounding_keep_their_relative_accuracy():
    """Two far clusters at beta = 64: the force on the second is about 1e-49, against long double arithmetic."""
    angles = np.array([0.0, 2.8, 2.8])
    out = np.zeros(3)
    circle_rows(angles, 64.0, out, np.empty((0, 0)))
    gap = np.longdouble(2.8)
    weight = np.exp(np.longdouble(64.0) * (np.cos(gap) - 1))
    assert out[1] == pytest.approx(float(-weight * np.sin(gap) / (1 + weight)), rel=1e-13)
    assert out[2] == pytest.approx(float(-weight * np.sin(gap) / (2 + weight)), rel=1e-13)


FIVEFOLD = np.loadtxt(Path(__file__).parents[1] / "unit" / "data" / "fivefold.txt")
"""Of a leader in dimension 8 (V = I): an eigenvalue of multiplicity five, and LAPACK's iteration for general matrices does not converge
(OpenBLAS 0.3.31; in its last bits only)."""


@compiled
def _rate(block, m, result):
    rate_of_modes(block, m, result)


@compiled
def _rate_of_pair(block):
    return rate_of_pair(block)


@compiled
def _turning(block, m):
    return bound_of_turning(block, m)


def rate(block: np.ndarray) -> float:
    """The largest |lambda| of an eigenvalue that grows, else the largest real part, as NumPy has them."""
    size = np.abs(block).max()
    values = np.linalg.eigvals(block / size)
    growing = values[values.real > 1e-8]
    return float(size * (np.abs(growing).max() if growing.size else values.real.max()))


def test_the_rate_of_unstable_modes():
    """Symmetric matrices by their own algorithm; general ones as LAPACK has them; spirals with their turning, where they grow."""
    rng, result = np.random.default_rng(0), np.zeros(1)
    blocks = [
        FIVEFOLD,
        1e-200 * FIVEFOLD,
        *rng.normal(size=(20, 6, 6)),
        *(rng.normal(size=(20, 5, 5)) - 2.5 * np.eye(5)),
    ]
    blocks += [block + block.T for block in rng.normal(size=(3, 7, 7))]
    for block in blocks:
        _rate(block, len(block), result)
        assert abs(result[0] - rate(block)) < 1e-13 * np.abs(block).max()
        assert np.abs(np.linalg.eigvals(block).imag).max() <= _turning(block, len(block)) * (1 + 1e-12)
    for block in (*rng.normal(size=(50, 2, 2)), *(1e-170 * rng.normal(size=(20, 2, 2)))):
        assert abs(_rate_of_pair(block) - rate(block)) < 1e-13 * np.abs(block).max()
    # A rotation that neither grows nor shrinks is no unstable mode, whichever way its real part was rounded.
    for growth in (0.0, 1e-15, -1e-15):
        assert _rate_of_pair(np.array([[growth, -1.0], [1.0, growth]])) == growth
    assert _rate_of_pair(np.array([[1e-3, -1.0], [1.0, 1e-3]])) == pytest.approx(np.hypot(1e-3, 1.0), rel=1e-15)
