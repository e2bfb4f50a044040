"""Models: fields, masks, exact round trips."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metastable as ms
from tests import variants


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(variants.MASKS), st.sampled_from(variants.NORMS), st.integers(1, 3))
def test_round_trips_are_exact(seed, mask, norm, heads):
    """dict, JSON and TOML give back an equal model, to the last bit of every matrix."""
    rng = np.random.default_rng(seed)
    m = variants.model(rng, 6, 3, float(rng.uniform(0, 50)), mask, heads, norm=norm, noise=float(rng.uniform(0, 1)))
    assert ms.Attention.from_dict(m.to_dict()) == m
    assert ms.Attention.from_json(m.to_json()) == m
    assert ms.Attention.from_toml(m.to_toml()) == m
    assert hash(ms.Attention.from_json(m.to_json())) == hash(m)


def test_single_head_round_trip_keeps_its_form():
    m = ms.Attention(dim=2, beta=64.0, value=[[1.0, 1 / 3], [0.0, 0.1]], weights="hardmax", tie_tolerance=1e-9)
    assert json.loads(m.to_json()) == m.to_dict()
    assert ms.Attention.from_toml(m.to_toml()) == m
    assert m.heads is None
    assert len(m.all_heads) == 1


def test_models_are_frozen_and_their_arrays_too():
    m = ms.Attention(dim=2, beta=1.0, value=2 * np.eye(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        m.beta = 2.0
    with pytest.raises(ValueError):
        m.value[0, 0] = 2.0


def test_a_matrix_given_is_copied():
    given_ = 2 * np.eye(2)
    m = ms.Attention(dim=2, beta=1.0, value=given_)
    given_[0, 0] = 5.0
    assert m.value[0, 0] == 2.0


def test_the_identity_has_one_form():
    """np.eye(d) given as a matrix is the identity: equal, stored alike, and on the fast path."""
    plain = ms.Attention(dim=3, beta=2.0)
    for name in ("query", "key", "value"):
        m = ms.Attention(dim=3, beta=2.0, **{name: np.eye(3)})
        assert getattr(m, name) is None
        assert m == plain
        assert hash(m) == hash(plain)
        assert m.to_dict() == plain.to_dict()
        assert m.is_identity
    heads = ms.Attention(dim=3, heads=(ms.Head(np.eye(3), np.eye(3), np.eye(3), 2.0), ms.Head(beta=1.0)))
    assert heads == ms.Attention(dim=3, heads=(ms.Head(beta=2.0), ms.Head(beta=1.0)))
    turned = np.array([[0.0, -1.0], [1.0, 0.0]])
    assert ms.Attention(dim=2, beta=1.0, query=turned, key=turned).is_identity  # Q^T K = I exactly
    almost = ms.Attention(dim=2, beta=1.0, value=np.eye(2) + np.array([[0.0, 1e-300], [0.0, 0.0]]))
    assert almost.value is not None


def test_stored_models_are_read_as_before():
    """Tables as earlier versions wrote them: a bias without a kind, an identity written out."""
    old = {"dim": 2, "beta": 3.0, "value": [[1.0, 0.0], [0.0, 1.0]], "bias": {"slope": 0.5}, "weights": "hardmax"}
    assert ms.Attention.from_dict(old) == ms.Attention(dim=2, beta=3.0, bias=ms.ALiBi(0.5), weights="hardmax")
    assert ms.Attention.from_dict(old).to_dict()["bias"] == {"slope": 0.5}


@pytest.mark.parametrize("kind", variants.MASKS)
@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_masks_follow_their_definition(kind, n):
    rng = np.random.default_rng(n)
    for _ in range(5):
        mask = variants.mask(kind, rng, n)
        expected = np.array([[variants.sees(mask, k, j, n) for j in range(n)] for k in range(n)])
        np.testing.assert_array_equal(mask.matrix(n), expected)
        assert mask.is_causal(n) == (not np.triu(expected, 1).any())
        ranges = mask.intervals(n)
        if ranges is not None:
            for k in range(n):
                listed = [j for a, b in ranges[k] for j in range(a, b)]
                assert listed == list(np.flatnonzero(expected[k]))


def test_which_masks_extend():
    assert ms.Causal().extends(5, 9)
    assert ms.Window(3).extends(5, 9)
    assert ms.Sink(2, 3).extends(5, 9)
    assert ms.Prefix(4).extends(5, 9)
    assert not ms.Prefix(7).extends(5, 9)
    assert not ms.Full().extends(5, 9)
    assert not ms.Mask(np.eye(5)).extends(5, 9)


BAD = {
    "dim 1": ({"dim": 1, "beta": 1.0}, "dim"),
    "dim text": ({"dim": "2", "beta": 1.0}, "dim"),
    "no beta": ({"dim": 2}, "beta"),
    "nan beta": ({"dim": 2, "beta": float("nan")}, "beta"),
    "infinite beta": ({"dim": 2, "beta": float("inf")}, "beta"),
    "boolean beta": ({"dim": 2, "beta": True}, "beta"),
    "wrong query": ({"dim": 2, "beta": 1.0, "query": np.eye(3)}, "query"),
    "non-square key": ({"dim": 2, "beta": 1.0, "key": np.ones((2, 3))}, "key"),
    "nan value": ({"dim": 2, "beta": 1.0, "value": [[1.0, float("nan")], [0, 1]]}, "NaN"),
    "complex value": ({"dim": 2, "beta": 1.0, "value": np.eye(2) * 1j}, "real"),
    "heads and beta": ({"dim": 2, "beta": 1.0, "heads": (ms.Head(),)}, "not both"),
    "no heads": ({"dim": 2, "heads": ()}, "heads"),
    "head of another size": ({"dim": 2, "heads": (ms.Head(value=np.eye(3)),)}, r"heads\[0\]"),
    "weights": ({"dim": 2, "beta": 1.0, "weights": "linear"}, "softmax"),
    "mask text": ({"dim": 2, "beta": 1.0, "mask": "causal"}, "mask"),
    "norm text": ({"dim": 2, "beta": 1.0, "norm": "post"}, "norm"),
    "frozen elsewhere": ({"dim": 2, "beta": 1.0, "frozen": ms.Frozen(np.eye(3))}, "frozen"),
    "frozen array": ({"dim": 2, "beta": 1.0, "frozen": np.eye(2)}, "Frozen"),
    "negative noise": ({"dim": 2, "beta": 1.0, "noise": -0.1}, "noise"),
    "slopes": ({"dim": 2, "beta": 1.0, "bias": ms.ALiBi((0.1, 0.2))}, "slopes"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_fields_are_refused_by_name(name):
    fields, word = BAD[name]
    with pytest.raises(ms.errors.ModelError, match=word):
        ms.Attention(**fields)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: ms.Window(0), "width"),
        (lambda: ms.Sink(1, 2.5), "width"),
        (lambda: ms.Prefix(-1), "length"),
        (lambda: ms.Mask(np.zeros((3, 3))), "nobody"),
        (lambda: ms.Mask(np.ones((2, 3))), "square"),
        (lambda: ms.Mask([[0.5, 1], [1, 1]]), "boolean"),
        (lambda: ms.NGPT(0.0), "alpha"),
        (lambda: ms.MixLN(-1.0), "tau"),
        (lambda: ms.ALiBi(-0.5), "slope"),
        (lambda: ms.FeedForward(np.ones((4, 3)), np.ones(4), np.ones((4, 3)), np.ones(3)), "w2"),
        (lambda: ms.FeedForward(np.ones((4, 3)), np.ones(4), np.ones((3, 4)), np.ones(3), "swish"), "activation"),
        (lambda: ms.Frozen([[3.0, 0.0]]), "normalize"),
        (lambda: ms.Frozen([[1.0, 0.0]], [-1.0]), "negative"),
    ],
)
def test_bad_parts_are_refused_by_name(make, word):
    with pytest.raises(ms.errors.InvalidInputError, match=word):
        make()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"dim": 2, "beta": 1.0, "betta": 3}, "betta"),
        ({"beta": 1.0}, "dim"),
        ({"dim": 2, "beta": 1.0, "mask": {"kind": "windo", "width": 3}}, "windo"),
        ({"dim": 2, "beta": 1.0, "mask": {"kind": "window"}}, "width"),
        ({"dim": 2, "beta": 1.0, "norm": {"kind": "ngpt", "alpha": 1.0, "x": 1}}, "x"),
        ({"dim": 2, "heads": 3}, "heads"),
        ([1, 2], "table"),
    ],
)
def test_bad_tables_are_refused_by_name(data, word):
    with pytest.raises(ms.errors.ModelError, match=word):
        ms.Attention.from_dict(data)


def test_bad_text_is_refused():
    with pytest.raises(ms.errors.ModelError, match="JSON"):
        ms.Attention.from_json("{")
    with pytest.raises(ms.errors.ModelError, match="TOML"):
        ms.Attention.from_toml("= 3")


def test_rescaled_rotary_frequencies():
    plain, same = ms.Rotary(base=100.0, dims=4), ms.Rotary(frequencies=[1.0, 0.1])
    assert same.dims == 4
    np.testing.assert_allclose(same.angles(np.arange(5.0), 6), plain.angles(np.arange(5.0), 6), rtol=1e-15)
    for wrong in ({"frequencies": []}, {"frequencies": [1.0], "dims": 4}, {"frequencies": [np.nan]}):
        with pytest.raises(ms.errors.ModelError, match="frequencies"):
            ms.Rotary(**wrong)
