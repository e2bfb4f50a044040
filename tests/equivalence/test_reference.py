"""The reference engine against an independent loop over pairs, and its Jacobian against differences."""

import itertools
import zlib

import numpy as np
import pytest

import metastable as ms
from metastable.kernels import reference
from tests import variants

CASES = list(itertools.product(variants.MASKS, variants.WEIGHTS, variants.NORMS))


@pytest.mark.parametrize(("mask", "weights", "norm"), CASES)
def test_right_hand_side_equals_the_slow_loop(mask, weights, norm):
    """Relative error below 1e-12 on random d in 2..16, n in 1..40, beta in 0..1000, 1 to 4 heads."""
    rng = np.random.default_rng(zlib.crc32(f"{mask} {weights} {norm}".encode()))
    for heads in (1, 2, 4):
        n, d = int(rng.integers(1, 41)), int(rng.integers(2, 17))
        beta = float(rng.choice([0.0, 1.0, 9.0, 64.0, 1000.0])) * float(rng.uniform(0.5, 1))
        if weights == "unnormalized":
            beta = min(beta, 60.0)
        m = variants.model(rng, n, d, beta, mask, heads, weights=weights, norm=norm)
        x = variants.tokens(rng, n, d)
        t = float(rng.uniform(0, 2))
        radius = rng.uniform(0.5, 2, n) if norm.has_radius else None
        fast = ms.velocity(m, x, engine="reference", t=t, radius=radius)
        slow, slow_radial = variants.slow_velocity(m, x, t, radius)
        scale = max(1.0, np.abs(slow).max())
        assert np.abs(fast - slow).max() <= 1e-12 * scale
        if norm.has_radius:
            out = np.zeros((n, d + 1))
            reference.right_hand_side(m, n)(t, np.column_stack([x, radius]), out)
            assert np.abs(out[:, d] - slow_radial).max() <= 1e-12 * max(1.0, np.abs(slow_radial).max())


def test_huge_beta_with_general_matrices_does_not_overflow():
    rng = np.random.default_rng(1)
    x = variants.tokens(rng, 30, 4)
    m = ms.Attention(dim=4, beta=1000.0, query=10 * rng.normal(size=(4, 4)), key=10 * rng.normal(size=(4, 4)))
    assert np.isfinite(ms.velocity(m, x, engine="reference")).all()


def test_unnormalized_overflow_is_named():
    x = variants.tokens(np.random.default_rng(0), 5, 3)
    with pytest.raises(ms.errors.NumericalRangeError, match="softmax"):
        ms.velocity(ms.Attention(dim=3, beta=1000.0, weights="unnormalized"), x, engine="reference")


def test_only_the_product_of_query_and_key_matters():
    rng = np.random.default_rng(2)
    Q, K, R = (rng.normal(size=(3, 3)) for _ in range(3))
    x = variants.tokens(rng, 12, 3)
    first = ms.velocity(ms.Attention(dim=3, beta=2.0, query=Q, key=K), x, engine="reference")
    second = ms.velocity(ms.Attention(dim=3, beta=2.0, query=R @ Q, key=np.linalg.inv(R).T @ K), x, engine="reference")
    np.testing.assert_allclose(first, second, atol=1e-12)


@pytest.mark.parametrize("mask", variants.MASKS)
@pytest.mark.parametrize("heads", [1, 3])
def test_jacobian_equals_differences(mask, heads):
    """Central differences of the right-hand side, step 1e-6: agreement to 1e-7."""
    rng = np.random.default_rng(heads)
    n, d = 7, 3
    m = variants.model(rng, n, d, 3.0, mask, heads, feedforward=None)
    x = variants.tokens(rng, n, d)
    f = reference.right_hand_side(m, n)
    jacobian = reference.jacobian(m, x)
    step, plus, minus = 1e-6, np.zeros_like(x), np.zeros_like(x)
    for j, c in itertools.product(range(n), range(d)):
        shift = np.zeros_like(x)
        shift[j, c] = step
        f(0.0, x + shift, plus)
        f(0.0, x - shift, minus)
        np.testing.assert_allclose(jacobian[:, :, j, c], (plus - minus) / (2 * step), atol=1e-7)


def test_jacobian_of_causal_attention_is_block_lower_triangular():
    rng = np.random.default_rng(3)
    x = variants.tokens(rng, 6, 3)
    m = variants.model(rng, 6, 3, 4.0, "causal", feedforward=None)
    blocks = np.abs(reference.jacobian(m, x)).max(axis=(1, 3))
    assert (np.triu(blocks, 1) == 0).all()
    assert (np.diag(blocks) > 0).all()


def test_jacobian_refuses_what_it_does_not_cover():
    x = variants.tokens(np.random.default_rng(0), 4, 2)
    with pytest.raises(ms.errors.UnsupportedError, match="PostLN"):
        reference.jacobian(ms.Attention(dim=2, beta=1.0, norm=ms.NGPT(1.0)), x)
    with pytest.raises(ms.errors.UnsupportedError, match="softmax"):
        reference.jacobian(ms.Attention(dim=2, beta=1.0, weights="hardmax"), x)


def test_rows_below_first_are_left_alone():
    rng = np.random.default_rng(4)
    m = variants.model(rng, 9, 3, 2.0, "causal", 2)
    x = variants.tokens(rng, 9, 3)
    whole, part = np.zeros_like(x), np.full_like(x, 7.0)
    reference.right_hand_side(m, 9)(0.0, x, whole)
    reference.right_hand_side(m, 9, first=5)(0.0, x, part)
    assert (part[:5] == 7.0).all()
    np.testing.assert_allclose(part[5:], whole[5:], atol=1e-14)
