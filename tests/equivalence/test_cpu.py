"""Engine equality: every compiled right-hand side against the reference, for one system and for members in lanes.

The error of a velocity is measured against the size of the attention sum A that it is cut from: where P A is far smaller than A
the reference itself has lost those digits (see `test_cpu_accuracy`).
"""

import numpy as np
import pytest

from metastable import sphere
from metastable.errors import UnsupportedError
from metastable.kernels import cpu, reference
from metastable.kernels.cpu import members, rules, system
from metastable.kernels.cpu.compiled import aligned_array, call_address, compiled
from metastable.kernels.cpu.memory import Reference
from metastable.kernels.cpu.problem import prepare
from metastable.kernels.cpu.vector import LANES
from metastable.model import (
    NGPT,
    ALiBi,
    Attention,
    Causal,
    FeedForward,
    Frozen,
    Full,
    Head,
    Mask,
    PeriLN,
    Prefix,
    PreLN,
    Sink,
    SqrtScaling,
    Window,
)

TIME = 0.7


@compiled
def run_members(kernel, problem, time, y, scratch, out):
    call_address(kernel, problem, time * 0.0 + rules.pace(problem, time[0]), y, scratch, out)


def matrices(dim, count, seed):
    generator = np.random.default_rng(seed)
    return [np.eye(dim) + 0.4 * generator.normal(size=(dim, dim)) for _ in range(count)]


def anchors(dim, count=11):
    return Frozen(sphere.uniform(count, dim=dim, seed=5), np.linspace(0.0, 2.0, count))


def variants(dim, beta):
    """Everything the engine supports, by name."""
    q, k, v, w = matrices(dim, 4, seed=dim)
    several = (Head(q, k, v, beta), Head(None, None, w, 0.3 * beta), Head(beta=2.0))
    return {
        "identity": Attention(dim=dim, beta=beta),
        "value": Attention(dim=dim, beta=beta, value=v),
        "matrices": Attention(dim=dim, beta=beta, query=q, key=k, value=v),
        "heads": Attention(dim=dim, heads=several),
        "heads, bias, sink": Attention(dim=dim, heads=several, bias=ALiBi((0.1, 0.02, 0.0)), mask=Sink(3, 20)),
        "full": Attention(dim=dim, beta=beta, mask=Full()),
        "full, matrices, bias": Attention(dim=dim, beta=beta, query=q, value=v, mask=Full(), bias=ALiBi(0.05)),
        "window": Attention(dim=dim, beta=beta, mask=Window(9)),
        "sink": Attention(dim=dim, beta=beta, mask=Sink(4, 7), key=k),
        "prefix": Attention(dim=dim, beta=beta, mask=Prefix(13)),
        "frozen": Attention(dim=dim, beta=beta, frozen=anchors(dim)),
        "frozen, matrices": Attention(dim=dim, beta=beta, key=k, value=v, frozen=anchors(dim), mask=Window(5)),
        "unnormalized": Attention(dim=dim, beta=min(beta, 60.0), weights="unnormalized", mask=Full()),
        "unnormalized, frozen": Attention(
            dim=dim, beta=min(beta, 60.0), weights="unnormalized", key=k, frozen=anchors(dim)
        ),
        "ngpt": Attention(dim=dim, beta=beta, norm=NGPT(2.0), value=v),
        "sqrt": Attention(dim=dim, beta=beta, norm=SqrtScaling()),
    }


NAMES = list(variants(2, 1.0))


def reference_velocity(model, x):
    expected = np.zeros_like(x)
    reference.right_hand_side(model, len(x))(TIME, x, expected)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    size = np.linalg.norm(reference.attention_sum(model, unit), axis=1, keepdims=True)
    if isinstance(model.norm, NGPT):
        size = np.full_like(size, model.norm.alpha)
    return expected, size


def lanes_velocity(model, starts, interaction="direct"):
    """Velocities of members (members, tokens, dim), no more than there are lanes, from the kernel that ensembles use."""
    count, tokens, dim = starts.shape
    chart = "angle" if dim == 2 else "ambient"
    problem = prepare(model, tokens, interaction=interaction, chart=chart)
    state = np.arctan2(starts[..., 1], starts[..., 0])[..., None] if dim == 2 else starts
    shape = (tokens, problem.components, LANES)
    y = aligned_array(tokens * problem.components * LANES)
    y.reshape(shape)[:, :, :] = state[0][..., None]
    y.reshape(shape)[:, :, :count] = np.moveaxis(state, 0, -1)
    out = aligned_array(y.size)
    given, scratch = Reference(problem), Reference(members.make_scratch(problem))
    run_members(members.kernel(problem.kind, given, scratch), given, np.full(LANES, TIME), y, scratch, out)
    result = np.moveaxis(out.reshape(shape), -1, 0)[:count]
    if dim == 2:
        unit = starts / np.linalg.norm(starts, axis=-1, keepdims=True)
        result = result * np.stack([-unit[..., 1], unit[..., 0]], axis=-1)
    return result


@pytest.mark.parametrize("beta", [0.0, 1.0, 9.0, 64.0, 1000.0])
@pytest.mark.parametrize("dim", [2, 3, 4, 6, 33])
@pytest.mark.parametrize("name", NAMES)
def test_one_system_equals_reference(name, dim, beta):
    model = variants(dim, beta)[name]
    for tokens in (1, 2, 7, 40, 131):
        x = sphere.uniform(tokens, dim=dim, seed=tokens) * np.linspace(0.99, 1.02, tokens)[:, None]
        expected, size = reference_velocity(model, x)
        actual = np.zeros_like(x)
        cpu.right_hand_side(model, tokens, threads=1)(TIME, x, actual)
        assert (np.abs(actual - expected) <= 1e-12 * size).all()


@pytest.mark.parametrize("beta", [0.0, 9.0, 1000.0])
@pytest.mark.parametrize("dim", [2, 3, 6])
@pytest.mark.parametrize("name", NAMES)
def test_members_equal_reference(name, dim, beta):
    model = variants(dim, beta)[name]
    for tokens in (1, 2, 37):
        starts = np.stack([sphere.uniform(tokens, dim=dim, seed=seed) for seed in range(4)])
        actual = lanes_velocity(model, starts)
        for x, velocity in zip(starts, actual):
            expected, size = reference_velocity(model, x)
            assert (np.abs(velocity - expected) <= 1e-12 * size).all()


@pytest.mark.parametrize(("dim", "name"), [(2, "identity"), (3, "matrices"), (16, "heads, bias, sink")])
def test_long_sequences_equal_reference(dim, name):
    model = variants(dim, 64.0)[name]
    x = sphere.uniform(2000, dim=dim, seed=1)
    expected, size = reference_velocity(model, x)
    actual = np.zeros_like(x)
    cpu.right_hand_side(model, 2000)(TIME, x, actual)
    assert (np.abs(actual - expected) <= 1e-12 * size).all()


@pytest.mark.parametrize("dim", [2, 3, 16])
@pytest.mark.parametrize("name", ["identity", "matrices", "heads, bias, sink", "prefix"])
def test_threads_do_not_change_bits(dim, name, monkeypatch):
    monkeypatch.setattr(system, "PARALLEL_WORK", 0)
    model = variants(dim, 9.0)[name]
    x = sphere.uniform(300, dim=dim, seed=2)
    results = []
    for threads in (1, 2):
        out = np.zeros_like(x)
        cpu.right_hand_side(model, 300, threads=threads)(TIME, x, out)
        results.append(out)
    assert np.array_equal(*results)


@pytest.mark.parametrize("dim", [2, 3, 16])
def test_first_rows_are_left_alone(dim):
    model = variants(dim, 9.0)["matrices"]
    x = sphere.uniform(50, dim=dim, seed=3)
    whole = np.zeros_like(x)
    cpu.right_hand_side(model, 50)(TIME, x, whole)
    part = np.full_like(x, 7.0)
    cpu.right_hand_side(model, 50, first=41)(TIME, x, part)
    assert (part[:41] == 7.0).all()
    assert np.abs(part[41:] - whole[41:]).max() < 1e-14


def test_output_may_be_any_view():
    model = Attention(dim=3, beta=2.0)
    x = sphere.uniform(9, dim=3, seed=3)
    plain = np.zeros_like(x)
    cpu.right_hand_side(model, 9)(0.0, x, plain)
    strided = np.zeros((9, 6))[:, ::2]
    cpu.right_hand_side(model, 9)(0.0, np.asfortranarray(x), strided)
    assert np.array_equal(plain, strided)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"norm": PreLN()}, "radius"),
        ({"norm": PeriLN()}, "radius"),
        ({"weights": "hardmax"}, "hardmax"),
        ({"mask": Mask(np.eye(4, dtype=bool))}, "Mask"),
        ({"feedforward": FeedForward(np.eye(3), np.zeros(3), np.eye(3), np.zeros(3))}, "feed-forward"),
        ({"weights": "unnormalized", "beta": 1000.0}, "unnormalized"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_fix(options, word):
    model = Attention(**{"dim": 3, "beta": 1.0, **options})
    reason = cpu.refusal(model, 4)
    assert reason is not None
    assert word in reason
    assert "engine='reference'" in reason
    with pytest.raises(UnsupportedError, match="reference"):
        cpu.right_hand_side(model, 4)


def test_supported_masks_are_those_made_of_ranges():
    for mask in (Causal(), Full(), Window(3), Sink(1, 2), Prefix(2)):
        assert cpu.refusal(Attention(dim=2, beta=1.0, mask=mask), 10) is None
