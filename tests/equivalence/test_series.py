"""Series on the circle and on the sphere against the reference and against direct sums."""

import math

import numpy as np
import pytest
from scipy.special import ive

from metastable import sphere
from metastable.errors import UnsupportedError
from metastable.kernels import cpu, fourier, harmonics, reference
from metastable.kernels.cpu import stretches, system
from metastable.model import NGPT, ALiBi, Attention, Frozen, Head, SqrtScaling, Window
from tests.equivalence.test_cpu import lanes_velocity

TIME = 0.3
TOLERANCE = 1e-12
TILT = np.array([[1.0, 0.1], [-0.05, 1.1]])


def bound(tokens):
    """The promise: the larger of the mode tolerance and ten roundings per token."""
    return max(TOLERANCE, 10 * tokens * 1e-16)


def variants(beta):
    anchors = Frozen(sphere.uniform(11, dim=2, seed=5), np.linspace(0.0, 2.0, 11))
    small = min(beta, 8.0)
    return {
        "circle": Attention(dim=2, beta=beta),
        "circle, frozen, sqrt": Attention(dim=2, beta=beta, frozen=anchors, norm=SqrtScaling()),
        "circle, value": Attention(dim=2, beta=beta, value=TILT),
        "circle, ngpt": Attention(dim=2, beta=beta, norm=NGPT(0.5)),
        "circle, matrices": Attention(dim=2, beta=small, query=TILT, key=0.9 * np.eye(2), value=-TILT),
        "circle, matrices, frozen": Attention(dim=2, beta=small, key=TILT, frozen=anchors),
        "sphere": Attention(dim=3, beta=min(beta, 200.0)),
        "sphere, sqrt": Attention(dim=3, beta=min(beta, 200.0), norm=SqrtScaling()),
    }


def reference_velocity(model, x):
    out = np.zeros_like(x)
    reference.right_hand_side(model, len(x))(TIME, x, out)
    return out


@pytest.mark.parametrize("beta", [0.0, 1.0, 9.0, 64.0, 1000.0])
@pytest.mark.parametrize("name", list(variants(1.0)))
def test_one_system_equals_reference(name, beta):
    model = variants(beta)[name]
    for tokens in (1, 2, 17, 200, 2000):
        x = sphere.uniform(tokens, dim=model.dim, seed=tokens)
        out = np.zeros_like(x)
        cpu.right_hand_side(model, tokens, interaction="series", threads=1)(TIME, x, out)
        assert np.abs(out - reference_velocity(model, x)).max() <= bound(tokens)


@pytest.mark.parametrize("dim", [2, 3])
def test_the_sign_of_zero_says_nothing(dim):
    """Forces had the wrong sign: a list of inverse temperatures such as -linspace(0, 4, 5) begins with -0.0."""
    made = fourier.circle_series if dim == 2 else harmonics.sphere_series
    for plus, minus in zip(made(0.0, 40, 1e-12), made(-0.0, 40, 1e-12)):
        np.testing.assert_array_equal(plus, minus)
    zero, model = Attention(dim=dim, beta=0.0), Attention(dim=dim, beta=-0.0)
    assert math.copysign(1.0, Head(beta=-0.0).beta) == 1.0
    assert math.copysign(1.0, model.all_heads[0].beta) == 1.0
    x = sphere.uniform(200, dim=dim, seed=1)
    actual, out = np.zeros_like(x), np.zeros_like(x)
    cpu.right_hand_side(model, 200, interaction="series", threads=1)(TIME, x, actual)
    cpu.right_hand_side(zero, 200, interaction="series", threads=1)(TIME, x, out)
    np.testing.assert_array_equal(actual, out)
    assert np.abs(actual - reference_velocity(model, x)).max() <= bound(200)


@pytest.mark.parametrize("beta", [0.0, 9.0, 64.0])
@pytest.mark.parametrize("name", list(variants(1.0)))
def test_members_equal_reference(name, beta):
    model = variants(beta)[name]
    for tokens in (1, 2, 41):
        starts = np.stack([sphere.uniform(tokens, dim=model.dim, seed=seed) for seed in range(3)])
        velocity = lanes_velocity(model.replace(norm=model.norm), starts, interaction="series")
        for x, actual in zip(starts, velocity):
            out = np.zeros_like(x)
            reference.right_hand_side(model, tokens)(0.7, x, out)
            assert np.abs(actual - out).max() <= bound(tokens)


@pytest.mark.parametrize("center", [0.0, np.pi / 2, np.pi, 1.0])
@pytest.mark.parametrize("beta", [9.0, 64.0, 1000.0])
def test_clustered_tokens_seen_from_afar(center, beta):
    """Many equal terms of the series add up coherently: the worst case for rounding."""
    generator = np.random.default_rng(0)
    angle = np.concatenate([center + 1e-3 * generator.normal(size=900), generator.uniform(-np.pi, np.pi, 100)])
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    model = Attention(dim=2, beta=beta)
    out = np.zeros_like(x)
    cpu.right_hand_side(model, 1000, interaction="series")(0.0, x, out)
    assert np.abs(out - reference_velocity(model, x)).max() <= bound(1000)


@pytest.mark.parametrize("dim", [2, 3])
def test_threads_do_not_change_bits(dim, monkeypatch):
    monkeypatch.setattr(system, "PARALLEL_WORK", 0)
    monkeypatch.setattr(stretches, "STRETCH", 16)
    x = sphere.uniform(700, dim=dim, seed=1)
    results = []
    for threads in (1, 2):
        out = np.zeros_like(x)
        cpu.right_hand_side(Attention(dim=dim, beta=9.0), 700, interaction="series", threads=threads)(0.0, x, out)
        results.append(out)
    assert np.array_equal(*results)
    assert np.abs(results[0] - reference_velocity(Attention(dim=dim, beta=9.0), x)).max() <= bound(700)


@pytest.mark.parametrize("dim", [2, 3])
def test_first_rows_are_left_alone(dim):
    x = sphere.uniform(60, dim=dim, seed=1)
    model = Attention(dim=dim, beta=9.0)
    part = np.full_like(x, 7.0)
    cpu.right_hand_side(model, 60, first=50, interaction="series")(TIME, x, part)
    assert (part[:50] == 7.0).all()
    assert np.abs(part[50:] - reference_velocity(model, x)[50:]).max() <= bound(60)


@pytest.mark.parametrize(("beta", "modes"), [(9.0, 26), (16.0, 33), (64.0, 60), (256.0, 116), (1000.0, 227)])
def test_modes_for_a_tolerance(beta, modes):
    """As many modes as measured once: about 7.2 sqrt(beta)."""
    count, coefficients = fourier.modes_for(beta, 1e-12)
    assert abs(count - modes) <= 2
    angle = np.linspace(0, np.pi, 500)
    series = np.cos(np.outer(angle, np.arange(count + 1))) @ coefficients
    assert np.abs(series - np.exp(beta * (np.cos(angle) - 1))).max() < 1.1e-12


def test_a_looser_tolerance_gives_a_looser_answer():
    x = sphere.uniform(400, dim=2, seed=0)
    model = Attention(dim=2, beta=64.0)
    exact = reference_velocity(model, x)
    errors = []
    for tolerance in (1e-4, 1e-8, 1e-12):
        out = np.zeros_like(x)
        cpu.right_hand_side(model, 400, interaction="series", mode_tolerance=tolerance)(0.0, x, out)
        errors.append(np.abs(out - exact).max())
        assert errors[-1] <= tolerance
    assert errors[0] > errors[1] > errors[2]


def test_degree_on_the_sphere():
    degree, g = harmonics.degree_for(9.0, 1e-12)
    assert 24 <= degree <= 27
    assert g[0] == pytest.approx(np.sqrt(np.pi / 18) * ive(0.5, 9.0))
    assert g.sum() == pytest.approx(1.0, abs=1e-12)  # the kernel at distance zero


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (Attention(dim=4, beta=1.0), "dim=4"),
        (Attention(dim=2, heads=(Head(beta=1.0), Head(beta=2.0))), "one head"),
        (Attention(dim=2, beta=1.0, mask=Window(3)), "Causal, Full, Prefix"),
        (Attention(dim=2, beta=1.0, weights="unnormalized"), "softmax"),
        (Attention(dim=2, beta=1.0, bias=ALiBi(0.1)), "bias"),
        (Attention(dim=3, beta=1.0, value=2 * np.eye(3)), "Q = K = V = I"),
        (Attention(dim=3, beta=1.0, norm=NGPT(1.0)), "NGPT"),
        (Attention(dim=3, beta=1.0, frozen=Frozen(np.eye(3), np.full(3, 1e9))), "accuracy"),
        (Attention(dim=2, beta=30.0, query=np.array([[0.0, -1.0], [1.0, 0.0]])), "accuracy"),
    ],
)
def test_what_a_series_cannot_do_is_refused_with_the_fix(model, word):
    reason = cpu.series_refusal(model, 200)
    assert reason is not None
    assert word in reason
    assert "interaction='direct'" in reason
    assert not cpu.series_wins(model, 10**6)
    with pytest.raises(UnsupportedError, match="direct"):
        cpu.right_hand_side(model, 200, interaction="series")


def test_cost_model():
    """A series pays from about 1.6 tokens per mode on the circle, and from a few thousand tokens on the sphere."""
    assert not cpu.series_wins(Attention(dim=2, beta=64.0), 60)
    assert cpu.series_wins(Attention(dim=2, beta=64.0), 200)
    assert not cpu.series_wins(Attention(dim=3, beta=9.0), 200)
    assert cpu.series_wins(Attention(dim=3, beta=9.0), 5000)
