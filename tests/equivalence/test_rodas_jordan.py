"""Rests that attract from one side only: value matrices with Jordan blocks, where tokens come as near to the rest as 1/t.

With V = [[1, 1], [0, 1]] the token at the angle a has da/dt = -sin(a)^2, so a(t) = arccot(t + cot a(0)), and the antipode is a rest
of the same kind. Whoever is carried over it by an error of 1e-17 leaves for the other one.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import metastable as ms
from metastable.errors import NumericalRangeError
from metastable.integrate import rodas

DECADES = (1e8, 1e13, 1e17, 1e20, 1e30, 1e100)


def jordan(dim):
    value = np.eye(dim)
    value[0, 1] = 1.0
    if dim > 2:
        value[2:, 2:] *= 0.3
    return value


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_first_token_stays_on_its_side(tokens, dim, seed):
    x = ms.sphere.uniform(tokens, dim=dim, seed=seed)
    run = ms.simulate(ms.Attention(dim=dim, beta=4.0, value=jordan(dim)), x, times=DECADES)
    assert run.status == "success"
    # (1 + t V_01) applied to the two components that the block has; the others are nothing.
    t = np.array(DECADES)
    exact = x[0, 1] / (x[0, 0] + t * x[0, 1])
    first = run.states[:, 0]
    np.testing.assert_allclose(first[:, 1] / first[:, 0], exact, rtol=2e-2)
    assert (np.sign(first[:, 0]) == np.sign(x[0, 1])).all()


@pytest.mark.parametrize("mask", [ms.Full(), ms.Prefix(2)], ids=repr)
@pytest.mark.parametrize("seed", range(6))
def test_tokens_of_one_side_stay_there_under_full_attention(mask, seed):
    """Angles in (0, pi) stay there for ever: beside such tokens a token at 0 or pi is not drawn out."""
    generator = np.random.default_rng(seed)
    angles = generator.uniform(0.1, 3.0, int(generator.integers(2, 7)))
    model = ms.Attention(dim=2, beta=generator.uniform(1.0, 9.0), value=jordan(2), mask=mask)
    run = ms.simulate(model, ms.sphere.from_angle(angles), times=10.0 ** np.arange(0.0, 8.1, 0.5))
    assert run.status == "success"
    angle = np.arctan2(run.states[..., 1], run.states[..., 0])
    assert (angle > 0.0).all()
    assert (angle < np.pi).all()
    # A cluster is one token: from then on it goes like 1/t, to the tolerance that curved steps have.
    assert abs(angle[-1].max() * run.times[-1] - 1.0) < 0.2


def test_who_cannot_tell_the_side_refuses():
    x = ms.sphere.uniform(4, dim=2, seed=0)
    full = ms.Attention(dim=2, beta=4.0, value=jordan(2), mask=ms.Full())
    for method in ("auto", "rodas"):
        with pytest.raises(NumericalRangeError, match="one side only"):
            ms.simulate(full, x, until=1e13, method=method)
    for mask in (ms.Causal(), ms.Full()):
        alone = ms.Attention(dim=2, beta=4.0, value=jordan(2), mask=mask)
        with pytest.raises(NumericalRangeError, match="one side only"):
            ms.simulate(alone, x[:1], until=1e13, method="tsit5")
    with pytest.raises(NumericalRangeError, match="one side only"):
        ms.ensemble(full, tokens=4, members=2, times=[1e13], seed=0, observe={"m": ms.observe.mean_cosine()})


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("mask", [ms.Full(), ms.Prefix(3)], ids=repr)
def test_large_blocks_under_full_attention_at_the_last_horizon(size, mask):
    """Tokens at one place are one token: exp(tV) x. A block of four was at the wrong pole in seven of twelve runs at 1e10."""
    value = np.eye(size) + np.eye(size, k=1)
    model = ms.Attention(dim=size, beta=2.0, value=value, mask=mask)
    until = 0.99 * rodas.dense_horizon(model)
    for seed in range(6):
        x = ms.sphere.uniform(1, dim=size, seed=seed)
        run = ms.simulate(model, np.repeat(x, 3, axis=0), until=until)
        exact = (
            sum(until**k / math.factorial(k) * np.linalg.matrix_power(np.eye(size, k=1), k) for k in range(size)) @ x[0]
        )
        assert run.status == "success"
        np.testing.assert_allclose(run.final, np.broadcast_to(exact / np.linalg.norm(exact), (3, size)), atol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("atol", [1e-6, 1e-9, 1e-14])
def test_explicit_steps_up_to_their_last_horizon(size, atol):
    value = np.eye(size) + np.eye(size, k=1)
    until = 0.99e-2 / max(atol, 1e-9)
    for seed in range(20):
        x = ms.sphere.uniform(1, dim=size, seed=seed)
        run = ms.simulate(ms.Attention(dim=size, beta=2.0, value=value), x, until=until, method="tsit5", atol=atol)
        exact = (
            sum(until**k / math.factorial(k) * np.linalg.matrix_power(np.eye(size, k=1), k) for k in range(size)) @ x[0]
        )
        assert run.status == "success"
        assert run.final[0] @ exact / np.linalg.norm(exact) > 0.999


CLOSE = {
    "gap": np.diag([1.0, 0.998]),
    "nearly a block": np.array([[1.0, 1.0], [0.0, 0.999]]),
    "tiny gap": np.diag([1.0, 1.0 - 1e-9]),
    "tiny gap, symmetric": np.array([[1.0, 1e-9], [1e-9, 1.0]]),
    "tiny coupling": np.array([[1.0, 1e-13], [0.0, 1.0]]),
}


@pytest.mark.parametrize("kind", CLOSE)
def test_what_only_looks_like_a_jordan_block_has_its_horizon(kind):
    """Their rests attract from both sides, or nothing happens for very long."""
    for mask in (ms.Full(), ms.Causal()):
        model = ms.Attention(dim=2, beta=3.0, value=CLOSE[kind], mask=mask)
        run = ms.simulate(model, ms.sphere.uniform(4, dim=2, seed=1), until=1e15)
        assert run.status == "success"
        top = {"tiny gap, symmetric": [1.0, 1.0], "tiny coupling": run.final[0]}.get(kind, [1.0, 0.0])
        assert abs(abs(run.final[0] @ top) / np.linalg.norm(top) - 1.0) < 1e-6
