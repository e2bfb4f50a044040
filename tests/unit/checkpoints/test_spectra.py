"""Spectra of value matrices: small matrices against dim x dim ones, the atlas, and the nulls."""

from __future__ import annotations

import numpy as np
import pytest

from metastable import checkpoints
from metastable.analysis.atlas import predict_value
from metastable.checkpoints.linear import haar_corner
from metastable.checkpoints.spectra import atlas_row, head_cores, layer_core
from metastable.errors import InvalidInputError

FAMILIES = ("llama", "gpt2", "gpt_neox", "bert", "albert")


def nonzero(matrix: np.ndarray, rank: int) -> np.ndarray:
    """The `rank` largest eigenvalues of a dim x dim matrix, in the package's order."""
    values = np.linalg.eigvals(matrix).astype(complex)
    values = values[np.argsort(-np.abs(values))][:rank]
    return values[np.lexsort((-values.imag, -values.real))]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("center", [False, True])
def test_small_matrices_have_the_spectrum_of_the_large_ones(tiny, name: str, center: bool) -> None:
    weights = checkpoints.load_weights(tiny(name)[1])
    spectra = checkpoints.ov_spectra(weights, center=center)
    projection = np.eye(weights.dim) - (np.ones((weights.dim, weights.dim)) / weights.dim if center else 0.0)
    for layer in weights.layers():
        gain = np.ones(weights.dim) if layer.norm.gain is None else layer.norm.gain
        for head in range(weights.head_count):
            full = layer.output[head] @ layer.value[layer.kv_head(head)] * gain
            ours = spectra["eigenvalue"].values[layer.index, head]
            np.testing.assert_allclose(ours, nonzero(projection @ full @ projection, weights.head_dim), atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_layer_spectrum_is_that_of_the_sum(tiny, name: str) -> None:
    weights = checkpoints.load_weights(tiny(name)[1])
    spectra = checkpoints.layer_spectra(weights, center=False)
    layer = weights.layer(0).fold()
    total = np.sum([layer.value_matrix(head) for head in range(weights.head_count)], axis=0)
    ours = spectra["eigenvalue"].values[0]
    np.testing.assert_allclose(ours, nonzero(total, ours.size), atol=1e-10)
    assert ours.size == weights.kv_head_count * weights.head_dim


def test_leading_eigenvalue_with_and_without_the_kernel(tiny) -> None:
    weights = checkpoints.load_weights(tiny("llama")[1])
    spectra = checkpoints.ov_spectra(weights)
    leading = spectra["leading"].values
    assert (spectra["eigenvalue"].values.real.max(axis=-1) == leading.real).all()
    assert (leading.imag >= 0).all()
    expected = np.where(leading.real < 0, 0, leading)
    np.testing.assert_array_equal(spectra["leading_with_kernel"].values, expected)
    for head in range(weights.head_count):
        true = np.linalg.eigvals(weights.layer(0).fold().value_matrix(head)).real.max()
        assert spectra["leading_with_kernel"].values[0, head].real == pytest.approx(true, abs=1e-10)


def test_atlas_rows_are_those_of_predict(tiny) -> None:
    weights = checkpoints.load_weights(tiny("bert")[1])
    spectra = checkpoints.ov_spectra(weights, center=False)
    found = set()
    for layer in weights.layers():
        for head in range(weights.head_count):
            prediction = predict_value(layer.fold().value_matrix(head))
            assert spectra["atlas_row_with_kernel"].values[layer.index, head] == (prediction.row or 0)
            found.add(prediction.row)
    assert len(found) > 1
    for value, row in (([3.0, 1.0, -1.0], 3), ([3.0, 3.0, 1.0], 2), ([-1.0, -2.0, -3.0], 5), ([-1.0, -1.0, -3.0], 4)):
        several = value[0] == value[1]
        assert predict_value(np.diag(value)).row == row == atlas_row(value[0], 2 if several else 1)
    assert list(atlas_row([1 + 1j, 0.0, -1.0, 2.0])) == [0, 0, 5, 3]


def test_random_initialisation_fills_a_disk() -> None:
    weights = checkpoints.random_weights(512, 8, 4, deviation=0.02, seed=3)
    spectra = checkpoints.ov_spectra(weights)
    radius = 0.02**2 * np.sqrt(512 * 64)
    size = np.abs(spectra["eigenvalue"].values)
    assert (size < 1.15 * radius).mean() > 0.99
    assert (size < radius / 2).mean() == pytest.approx(0.25, abs=0.04)
    counts = checkpoints.count_leading(spectra)
    assert counts.heads == 32
    assert counts.real_negative == counts.complex_negative == counts.all_positive == 0
    assert spectra.attrs["fold_gain"] == 1
    again = checkpoints.ov_spectra(checkpoints.random_weights(512, 8, 4, deviation=0.02, seed=3), layers=[2])
    np.testing.assert_array_equal(again["leading"].values[0], spectra["leading"].values[2])


def test_nulls_are_narrow_and_keep_what_they_promise(tiny) -> None:
    weights = checkpoints.random_weights(128, 4, 10, seed=1)
    for kind in ("gaussian", "haar"):
        null = checkpoints.ov_spectra_null(weights, kind, samples=3, seed=5)
        assert dict(null.sizes) == {"sample": 3, "layer": 10, "head": 4, "mode": 32}
        counts = checkpoints.count_leading(null)
        assert counts.real_negative == 0
        assert 0.3 < counts.real_fraction < 0.7
        assert counts.sign_score_deviation < 0.08
        same = checkpoints.ov_spectra_null(weights, kind, samples=3, seed=5, layers=[4])
        np.testing.assert_array_equal(same["leading"].values[:, 0], null["leading"].values[:, 4])
    trained = checkpoints.load_weights(tiny("llama")[1])
    layer = trained.layer(0).fold()
    strengths = np.linalg.svd(layer.value_matrix(0), compute_uv=False)[: trained.head_dim]
    null = checkpoints.ov_spectra_null(trained, "haar", samples=400, seed=0, layers=[0])
    # E tr(V^2) over Haar frames is sum s_i^2 E[B_ii^2] = sum s^2 / dim.
    trace = (null["eigenvalue"].values[:, 0, 0] ** 2).sum(axis=-1).real
    error = trace.std() / np.sqrt(400)
    assert abs(trace.mean() - (strengths**2).sum() / trained.dim) < 5 * error


def test_haar_corner_has_the_moments_of_a_rotation() -> None:
    corner = haar_corner(np.random.default_rng(0), 4000, 6, 3)
    assert corner.mean() == pytest.approx(0, abs=0.01)
    assert (corner**2).mean() == pytest.approx(1 / 6, rel=0.02)
    assert (corner**4).mean() == pytest.approx(3 / (6 * 8), rel=0.05)
    assert (np.linalg.norm(corner, axis=1) < 1 + 1e-12).all()
    full = haar_corner(np.random.default_rng(1), 5, 4, 4)
    np.testing.assert_allclose(full @ full.transpose(0, 2, 1), np.broadcast_to(np.eye(4), (5, 4, 4)), atol=1e-12)


def test_fold_changes_nothing_that_the_layer_computes(tiny) -> None:
    layer = checkpoints.load_weights(tiny("gpt2")[1]).layer(1)
    x = np.random.default_rng(0).normal(size=(7, layer.dim))
    z = layer.norm.standardize(x)
    normed = z * layer.norm.gain + layer.norm.shift
    assert layer.value_bias is not None
    direct = normed @ layer.value[0].T + layer.value_bias[0]
    for center in (False, True):
        folded = layer.fold(center=center)
        assert folded.value_bias is not None
        np.testing.assert_allclose(z @ folded.value[0].T + folded.value_bias[0], direct, atol=1e-12)
    assert head_cores(layer).shape == (4, 6, 6)
    assert layer_core(layer).shape == (24, 24)


def test_bad_arguments(tiny) -> None:
    weights = checkpoints.load_weights(tiny("llama")[1])
    with pytest.raises(InvalidInputError, match="'gaussian', 'haar'"):
        checkpoints.ov_spectra_null(weights, "uniform")
    with pytest.raises(InvalidInputError, match="multiple"):
        checkpoints.random_weights(10, 3)
    with pytest.raises(InvalidInputError, match="kv_head_count"):
        checkpoints.random_weights(12, 3, kv_head_count=2)
