"""The polynomials of kernels.cpu against libm and against mpmath."""

import math

import mpmath
import numpy as np
import pytest
from numba import njit

from metastable.kernels.cpu.fastmath import exp2, sincos


@njit
def exp2_array(values):
    out = np.empty_like(values)
    for i in range(values.size):
        out[i] = exp2(values[i])
    return out


@njit
def sincos_array(values):
    out = np.empty((2, values.size))
    for i in range(values.size):
        out[0, i], out[1, i] = sincos(values[i])
    return out


def test_exp2_has_full_relative_accuracy():
    y = np.concatenate([np.linspace(-1021, 1022, 50_001), np.linspace(-2, 2, 20_001), -np.geomspace(1e-300, 1, 1000)])
    relative = np.abs(exp2_array(y) / np.exp2(y) - 1)
    assert relative.max() < 6e-16


def test_exp2_is_exact_at_integers():
    y = np.arange(-1021.0, 1023.0)
    assert np.array_equal(exp2_array(y), np.exp2(y))


def test_exp2_stays_tiny_below_its_range():
    assert np.array_equal(exp2_array(np.array([-1021.0, -1e4, -1e300, -np.inf])), np.full(4, 2.0**-1021))


def test_sincos_has_full_absolute_accuracy():
    x = np.concatenate([np.linspace(-20, 20, 50_001), np.random.default_rng(0).uniform(-1e5, 1e5, 20_000)])
    sine, cosine = sincos_array(x)
    assert np.abs(sine - np.sin(x)).max() < 3e-16
    assert np.abs(cosine - np.cos(x)).max() < 3e-16
    assert np.abs(sine**2 + cosine**2 - 1).max() < 5e-16


@pytest.mark.parametrize("x", [1e-300, 1e-20, 1e-8, math.pi, -math.pi, 2 * math.pi, math.pi / 2, 8192 * math.pi])
def test_sincos_is_relatively_accurate_at_zeros(x):
    sine, cosine = sincos_array(np.array([x]))[:, 0]
    exact = mpmath.mpf(x)
    with mpmath.workdps(60):
        expected = (float(mpmath.sin(exact)), float(mpmath.cos(exact)))
    assert sine == pytest.approx(expected[0], rel=1e-15)
    assert cosine == pytest.approx(expected[1], rel=1e-12)
