"""Two tokens: the gradient of their angle equals the derivative of the closed quadrature for the time of its collapse.

With T(end, start; beta) = integral from end to start of (1 + e^{beta (1 - cos x)})/sin x dx (`theory.pair_collapse_time`) the angle
x(t) is given by T(x(t), start; beta) = t, so that

    dx/dbeta = (dT/dbeta) / w(x),        dx/dstart = w(start)/w(x),        dx/dt = -1/w(x),     w(x) = (1 + e^{beta (1 - cos x)})/sin x.
"""

import numpy as np
import pytest

import metastable as ms
from metastable.theory import pair_collapse_time


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize(("beta", "angle", "until"), [(1.0, 1.0, 2.0), (4.0, 1.5, 8.0), (9.0, 0.8, 5.0)])
def test_gradient_of_the_angle_is_that_of_the_quadrature(engine, dim, beta, angle, until):
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(dim, dim)))[0] if dim > 2 else np.eye(2)
    flat = np.zeros((2, dim))
    flat[:, :2] = ms.sphere.from_angle([0.0, angle])
    start = flat @ rotation.T
    model = ms.Attention(dim=dim, beta=beta)
    goal = ms.derivatives.pair_angle(0, 1)
    found = ms.gradient(model, start, goal, until, engine=engine, rtol=1e-12, atol=1e-13)
    end = found.value
    assert abs(pair_collapse_time(end, beta, start=angle) - until) < 1e-8 * until

    def weight(x):
        return (1.0 + np.exp(beta * (1.0 - np.cos(x)))) / np.sin(x)

    h = 1e-4
    times = [pair_collapse_time(end, beta + shift, start=angle) for shift in (2 * h, h, -h, -2 * h)]
    in_beta = (8.0 * (times[1] - times[2]) - (times[0] - times[3])) / (12.0 * h)
    assert abs(found["beta"] / (in_beta / weight(end)) - 1.0) < 1e-8
    # The second token moves along its circle; the first one the other way.
    along = np.zeros((2, dim))
    along[1, :2] = [-np.sin(angle), np.cos(angle)]
    along[0, :2] = [0.0, -1.0]
    slope = found["start"] @ rotation
    assert np.sum(slope[1] * along[1]) == pytest.approx(weight(angle) / weight(end), rel=1e-8)
    assert np.sum(slope[0] * along[0]) == pytest.approx(weight(angle) / weight(end), rel=1e-8)
    assert found.rate == pytest.approx(-1.0 / weight(end), rel=1e-8)
