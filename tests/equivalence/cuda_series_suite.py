"""Series on the GPU against the reference: every variant, on the circle and on the sphere. Runs as `cuda_suite` does."""

from __future__ import annotations

import numpy as np
import pytest

from metastable.errors import NumericalRangeError
from metastable.integrate import tsit5
from metastable.integrate.plan import Accuracy, Save
from metastable.kernels import cuda, reference
from metastable.kernels.cuda import support
from metastable.model import NGPT, Attention, Frozen, Full, MixLN, PeriLN, Prefix, PreLN, SqrtScaling
from tests.equivalence.cuda_suite import REAL, SINGLE, points, relative, solve_members, velocities
from tests.explicit import solve_system


@pytest.mark.parametrize("beta", [0.0, 16.0, *((64.0, 1000.0) if REAL else ())])
def test_series(beta):
    tokens = 5000 if REAL else 21
    model = Attention(dim=2, beta=beta)
    assert relative(*velocities(model, tokens, interaction="series")) < tokens * 1e-15
    assert relative(*velocities(model, tokens, first=tokens // 2, interaction="series")) < tokens * 1e-15


COLD = 64.0 if REAL else 0.3
NORMS = {"peri": PeriLN(), "ngpt": NGPT(0.4)}
if REAL:
    NORMS |= {"pre": PreLN(), "mix": MixLN(0.1), "square root": SqrtScaling()}
SERIES = {
    **{f"causal, {name}": Attention(dim=2, beta=COLD, norm=norm) for name, norm in NORMS.items()},
    "full": Attention(dim=2, beta=COLD, mask=Full()),
    "full, beta 0": Attention(dim=2, beta=0.0, mask=Full()),
    **{f"full, {name}": Attention(dim=2, beta=COLD, mask=Full(), norm=norm) for name, norm in NORMS.items()},
    "full, frozen": Attention(
        dim=2, beta=COLD, mask=Full(), frozen=Frozen(points(4, 2, seed=9), [0.5, 0.0, 2.0, 1.0]), norm=NGPT(1.0)
    ),
    "full, unnormalized, frozen": Attention(
        dim=2, beta=4.0, mask=Full(), weights="unnormalized", frozen=Frozen(points(4, 2, seed=9))
    ),
    "prefix, peri": Attention(dim=2, beta=COLD, mask=Prefix(300 if REAL else 6), norm=PeriLN()),
    "prefix of all": Attention(dim=2, beta=COLD, mask=Prefix(10**6)),
}


@pytest.mark.parametrize("name", SERIES)
def test_series_variants(name):
    model = SERIES[name]
    for tokens, first in ((2000, 0), (301, 0), (2000, 100), (2000, 1998)) if REAL else ((17, 5),):
        assert relative(*velocities(model, tokens, first=first, interaction="series")) < tokens * 1e-14


def test_series_of_one_token_and_of_equal_ones():
    model = Attention(dim=2, beta=COLD, mask=Full())
    opposite = np.repeat([[1.0, 0.0], [-1.0, 0.0]], 4, axis=0)
    for y in (points(1, 2), np.tile(points(1, 2), (5, 1)), opposite) if REAL else (opposite,):
        found = np.full_like(y, np.nan)
        cuda.right_hand_side(model, len(y), interaction="series")(0.0, y, found)
        assert np.abs(found).max() < 1e-13


def test_series_under_full_attention_marches_as_the_reference_does():
    model, times = Attention(dim=2, beta=1.0 if REAL else 0.05, mask=Full()), np.array([0.05, 0.1])
    starts, rtol = points(5 if REAL else 1, 300 if REAL else 3, 2), 1e-4 if REAL else 1e-2
    states, _, status = solve_members(model, starts, times, interaction="series", rtol=rtol)
    assert (status == 0).all()
    for start, found in zip(starts, states):
        f = reference.right_hand_side(model, len(start))
        expected = solve_system(tsit5.System(f, start, 2, Accuracy(rtol)), Save(0.1, times))
        np.testing.assert_allclose(found, expected.states, atol=1e-9)


def test_series_has_as_many_modes_as_it_needs():
    # About 7.4 sqrt(beta) of them, here 2500 (on the simulator 350): with a fixed number the velocity is wrong without a word.
    model, tokens = Attention(dim=2, beta=1e5 if REAL else 2e3), 200 if REAL else 10
    angle = 0.001 * np.arange(tokens)
    y, found, expected = np.stack([np.cos(angle), np.sin(angle)], axis=1), np.zeros((tokens, 2)), np.zeros((tokens, 2))
    reference.right_hand_side(model, tokens)(0.0, y, expected)
    cuda.right_hand_side(model, tokens, interaction="series")(0.0, y, found)
    assert relative(expected, found) < 1e-10


# ------------------------------------------------------------------------------------------------------- the sphere

MILD = 9.0 if REAL else 0.1
ANCHORS = Frozen(points(4, 3, seed=9), [0.5, 0.0, 2.0, 1.0])
SPHERE = {
    "causal": Attention(dim=3, beta=MILD),
    "full": Attention(dim=3, beta=MILD, mask=Full()),
    "full, peri, frozen": Attention(dim=3, beta=MILD, mask=Full(), norm=PeriLN(), frozen=ANCHORS),
    "full, unnormalized, frozen": Attention(dim=3, beta=MILD, mask=Full(), weights="unnormalized", frozen=ANCHORS),
    "prefix, ngpt": Attention(dim=3, beta=MILD, mask=Prefix(300 if REAL else 6), norm=NGPT(0.4)),
}
if REAL:
    SPHERE |= {f"causal, {name}": Attention(dim=3, beta=64.0, norm=norm) for name, norm in NORMS.items()}
    SPHERE |= {f"full, {name}": Attention(dim=3, beta=64.0, mask=Full(), norm=norm) for name, norm in NORMS.items()}
    SPHERE |= {"beta 0": Attention(dim=3, beta=0.0, mask=Full()), "cold": Attention(dim=3, beta=1000.0)}


@pytest.mark.parametrize("name", SPHERE)
def test_series_on_the_sphere(name):
    """At every remainder of tokens, and from a token on inside a block and behind it."""
    model = SPHERE[name]
    for tokens, first in ((2000, 0), (301, 0), (2000, 100), (2000, 1998)) if REAL else ((19, 3),):
        assert relative(*velocities(model, tokens, first=first, interaction="series")) < 1e-13 + tokens * 1e-14


@pytest.mark.parametrize("name", ["causal", "full, peri, frozen"])
def test_series_on_the_sphere_in_single_precision(name):
    tokens = 700 if REAL else 18
    assert relative(*velocities(SPHERE[name], tokens, interaction="series", dtype="float32")) < SINGLE


def test_series_on_the_sphere_at_the_poles_and_for_equal_tokens():
    """Harmonics are largest at the poles; tokens at one place, or at two opposite ones, stand still."""
    model, pole = Attention(dim=3, beta=MILD, mask=Full()), np.array([[0.0, 0.0, 1.0]])
    opposite = np.repeat(np.concatenate([pole, -pole]), 3, axis=0)
    for y in (opposite, pole, np.tile(points(1, 3), (5, 1))) if REAL else (opposite,):
        found = np.full_like(y, np.nan)
        cuda.right_hand_side(model, len(y), interaction="series")(0.0, y, found)
        assert np.abs(found).max() < 1e-13


def test_heavy_frozen_tokens_are_refused():
    model = Attention(dim=3, beta=30.0, mask=Full(), frozen=Frozen(points(1, 3), [1e9]))
    assert "accuracy" in (cuda.series_refusal(model, 50) or "")
    assert cuda.series_refusal(model.replace(frozen=ANCHORS), 50) is None


def test_harmonics_beyond_a_precision_are_refused():
    limit = support.LARGEST_DEGREE["float32"]
    model = Attention(dim=3, beta=1500.0, mask=Full())
    with pytest.raises(NumericalRangeError, match=rf"above degree {limit} leave float32.*dtype='float64'"):
        cuda.right_hand_side(model, 5, interaction="series", dtype="float32")
    with pytest.raises(NumericalRangeError, match="interaction='direct'"):
        cuda.right_hand_side(model.replace(beta=1e6), 5, interaction="series")
    assert not cuda.series_wins(model, 10**7)
