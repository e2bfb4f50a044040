"""Series where tokens see one another wholly (full attention, a prefix): one total for all, against the reference and direct sums."""

import numpy as np
import pytest

import metastable as ms
from metastable import sphere
from metastable.errors import InvalidInputError
from metastable.kernels import cpu, reference, select
from metastable.kernels.cpu import stretches, system
from metastable.kernels.cpu.memory import Reference
from metastable.kernels.cpu.support import CIRCLE_TOTAL, SPHERE_TOTAL
from metastable.model import NGPT, Attention, Causal, Frozen, Full, Prefix, SqrtScaling, why_not
from tests.equivalence.test_cpu import lanes_velocity

TIME = 0.3
TILT = np.array([[1.0, 0.1], [-0.05, 1.1]])
BLIND = Full(include_self=False)


def variants(tokens):
    """Models that a total serves, by name. Masses differ by a factor of three."""
    anchors, points = (Frozen(sphere.uniform(11, dim=dim, seed=5), np.linspace(0.0, 2.0, 11)) for dim in (2, 3))
    masses = 1.0 + np.arange(tokens) % 3
    half = Prefix(max(1, tokens // 2))
    usa = {"mask": Full(), "weights": "unnormalized"}
    return {
        "circle": Attention(dim=2, beta=64.0, mask=Full()),
        "circle, beta 0": Attention(dim=2, beta=0.0, mask=Full()),
        "circle, beta 1000": Attention(dim=2, beta=1000.0, mask=Full()),
        "circle, prefix": Attention(dim=2, beta=64.0, mask=half),
        "circle, all prefix": Attention(dim=2, beta=64.0, mask=Prefix(10**6)),
        "circle, prefix, frozen": Attention(dim=2, beta=9.0, mask=half, frozen=anchors),
        "circle, frozen, sqrt": Attention(dim=2, beta=9.0, mask=Full(), frozen=anchors, norm=SqrtScaling()),
        "circle, masses": Attention(dim=2, beta=64.0, mask=Full(), masses=masses),
        "circle, usa": Attention(dim=2, beta=9.0, masses=masses, frozen=anchors, **usa),
        "circle, usa, blind": Attention(dim=2, beta=9.0, masses=masses, mask=BLIND, weights="unnormalized"),
        "circle, blind": Attention(dim=2, beta=3.5, mask=BLIND, masses=masses),
        "circle, repulsion": Attention(dim=2, beta=-3.5, mask=Full(), masses=masses, frozen=anchors),
        "circle, repulsion, blind": Attention(dim=2, beta=-3.5, mask=BLIND),
        "circle, repulsion, usa": Attention(dim=2, beta=-9.0, **usa),
        "circle, ngpt": Attention(dim=2, beta=9.0, mask=Full(), norm=NGPT(0.5), masses=masses),
        "circle, matrices": Attention(dim=2, beta=8.0, mask=Full(), query=TILT, value=-TILT, frozen=anchors),
        "circle, matrices, prefix": Attention(dim=2, beta=8.0, mask=half, query=TILT, value=-TILT, frozen=anchors),
        "circle, matrices, repulsion": Attention(dim=2, beta=-3.0, mask=Full(), key=TILT, masses=masses),
        "sphere": Attention(dim=3, beta=30.0, mask=Full()),
        "sphere, prefix, sqrt": Attention(dim=3, beta=9.0, mask=half, norm=SqrtScaling()),
        "sphere, masses": Attention(dim=3, beta=9.0, mask=Full(), masses=masses),
        "sphere, usa, blind": Attention(dim=3, beta=9.0, mask=BLIND, masses=masses, weights="unnormalized"),
        "sphere, blind": Attention(dim=3, beta=3.5, mask=BLIND),
        "sphere, repulsion": Attention(dim=3, beta=-3.5, mask=Full(), masses=masses),
        "sphere, repulsion, frozen": Attention(dim=3, beta=-3.5, mask=Full(), frozen=points),
        "sphere, frozen, sqrt": Attention(dim=3, beta=30.0, mask=Full(), frozen=points, norm=SqrtScaling()),
        "sphere, prefix, frozen": Attention(dim=3, beta=9.0, mask=half, frozen=points),
        "sphere, causal, frozen": Attention(dim=3, beta=9.0, frozen=points),
        "sphere, usa, frozen": Attention(dim=3, beta=9.0, masses=masses, frozen=points, **usa),
    }


def bound(model, tokens):
    """The promise: the larger of the mode tolerance and ten roundings per token (times the largest weight, where it is not divided)."""
    size = np.exp(abs(model.beta)) if model.weights == "unnormalized" else 1.0
    return size * max(1e-12, 10 * tokens * 1e-16)


def velocity_of(make, model, x, **options):
    out = np.zeros_like(x)
    make(model, len(x), **options)(TIME, x, out)
    return out


def agrees(model, x):
    """Whether the series equals the reference, within its bound."""
    actual = velocity_of(cpu.right_hand_side, model, x, interaction="series", threads=1)
    return np.abs(actual - velocity_of(reference.right_hand_side, model, x)).max() <= bound(model, len(x))


def starts(tokens, dim):
    """Random tokens; all at one place; half of them opposite to the others."""
    one = np.tile(sphere.uniform(1, dim=dim, seed=3), (tokens, 1))
    return sphere.uniform(tokens, dim=dim, seed=tokens), one, one * np.where(np.arange(tokens) % 2, -1.0, 1.0)[:, None]


@pytest.mark.parametrize("name", list(variants(1)))
def test_one_system_equals_reference(name):
    for tokens in (1, 2, 17, 200, 2000):
        model = variants(tokens)[name]
        if not model.mask.sees_somebody(tokens):
            continue  # alone and blind: refused below
        for x in starts(tokens, model.dim):
            assert agrees(model, x)


@pytest.mark.parametrize("name", list(variants(1)))
def test_members_equal_reference(name):
    for tokens in (2, 41):
        model = variants(tokens)[name]
        members = np.stack([*starts(tokens, model.dim), sphere.uniform(tokens, dim=model.dim, seed=7)])
        for x, actual in zip(members, lanes_velocity(model, members, interaction="series")):
            out = np.zeros_like(x)
            reference.right_hand_side(model, tokens)(0.7, x, out)
            assert np.abs(actual - out).max() <= bound(model, tokens)


@pytest.mark.parametrize(("dim", "beta"), [(2, 64.0), (3, 9.0)])
def test_ten_thousand_tokens_against_direct_sums(dim, beta):
    """Relative error 1e-12."""
    model, x = Attention(dim=dim, beta=beta, mask=Full()), sphere.uniform(10_000, dim=dim, seed=0)
    series, direct = (ms.velocity(model, x, engine="cpu", interaction=kind) for kind in ("series", "direct"))
    assert np.abs(series - direct).max() <= 1e-12 * np.abs(direct).max()


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("mask", [Full(), Prefix(300), Prefix(50)], ids=repr)
def test_threads_and_stretches(dim, mask, monkeypatch):
    """Bits do not depend on threads; many groups of stretches, with a prefix that ends inside one."""
    monkeypatch.setattr(system, "PARALLEL_WORK", 0)
    monkeypatch.setattr(stretches, "STRETCH", 16)
    model, x = Attention(dim=dim, beta=9.0, mask=mask), sphere.uniform(701, dim=dim, seed=1)
    one, two = (velocity_of(cpu.right_hand_side, model, x, interaction="series", threads=count) for count in (1, 2))
    assert np.array_equal(one, two)
    assert np.abs(one - velocity_of(reference.right_hand_side, model, x)).max() <= bound(model, 701)


def test_a_prefix_of_one_token_is_causal():
    x = sphere.uniform(100, dim=2, seed=1)
    prefix, causal = (
        velocity_of(cpu.right_hand_side, Attention(dim=2, beta=64.0, mask=mask), x, interaction="series")
        for mask in (Prefix(1), Causal())
    )
    np.testing.assert_allclose(prefix, causal, rtol=0, atol=1e-13)


def test_permutations_and_the_centre_of_mass():
    """Full attention knows no order, and unnormalised forces add up to nothing (they are a gradient, the same for all)."""
    x, order = sphere.uniform(3000, dim=2, seed=1), np.random.default_rng(0).permutation(3000)
    model = Attention(dim=2, beta=64.0, mask=Full())
    plain = velocity_of(cpu.right_hand_side, model, x, interaction="series")
    shuffled = velocity_of(cpu.right_hand_side, model, x[order], interaction="series")
    np.testing.assert_allclose(shuffled, plain[order], rtol=0, atol=1e-12)
    usa = model.replace(weights="unnormalized", beta=5.0)
    v = velocity_of(cpu.right_hand_side, usa, x, interaction="series")
    spin = x[:, 0] * v[:, 1] - x[:, 1] * v[:, 0]
    assert abs(spin.sum()) <= 1e-12 * np.abs(spin).sum()


@pytest.mark.parametrize("dim", [2, 3])
def test_masses_may_differ_by_more_than_their_ratio_can_hold(dim):
    """The least over the mean was zero, and divided by."""
    x = ms.sphere.uniform(3, dim=dim, seed=0)
    model = ms.Attention(dim=dim, beta=4.0, mask=ms.Full(), masses=[1e200, 1.0, 1e-200])
    run = ms.simulate(model, x, until=100.0, progress=False)
    assert run.status == "success"
    np.testing.assert_allclose(run.final, np.broadcast_to(x[0], x.shape), atol=1e-6)


def test_first_rows_are_left_alone():
    x, model = sphere.uniform(60, dim=2, seed=1), Attention(dim=2, beta=9.0, mask=Full())
    part = np.full_like(x, 7.0)
    cpu.right_hand_side(model, 60, first=50, interaction="series")(TIME, x, part)
    assert (part[:50] == 7.0).all()
    assert np.abs(part[50:] - velocity_of(reference.right_hand_side, model, x)[50:]).max() <= bound(model, 60)


@pytest.mark.parametrize("interaction", ["direct", "series"])
def test_runs_and_ensembles(interaction):
    """The same run, and the same members, by series as by direct sums of the reference engine."""
    model, times = Attention(dim=2, beta=16.0, mask=Full()), [1.0, 4.0]
    options = {"times": times, "rtol": 1e-9, "progress": False}
    x = sphere.uniform(150, dim=2, seed=4)
    run = ms.simulate(model, x, interaction=interaction, engine="cpu", **options)
    expected = ms.simulate(model, x, engine="reference", **options)
    assert run.interaction == interaction
    assert np.abs(run.states - expected.states).max() < 1e-7
    found = ms.ensemble(
        model, tokens=150, members=3, seed=2, observe={"x": ms.observe.state()}, interaction=interaction, **options
    )
    for member in range(3):
        generator = np.random.default_rng(np.random.SeedSequence(2, spawn_key=(member,)))
        expected = ms.simulate(model, sphere.uniform(150, dim=2, seed=generator), engine="reference", **options)
        assert np.abs(np.asarray(found["x"][member]) - expected.states).max() < 1e-7


@pytest.mark.parametrize(
    ("model", "tokens", "word"),
    [
        (Attention(dim=2, beta=9.0, mask=BLIND), 50, "accuracy"),
        (Attention(dim=2, beta=-9.0, mask=Full()), 50, "accuracy"),
        (Attention(dim=3, beta=-9.0, mask=Full()), 50, "accuracy"),
        (Attention(dim=2, beta=30.0, mask=Full(), masses=np.array([1e-12, 1.0, 1.0])), 3, "accuracy"),
        (Attention(dim=2, beta=1.0, mask=BLIND, masses=np.array([1e12, 1.0, 1.0])), 3, "accuracy"),
        (Attention(dim=2, beta=1.0, mask=BLIND), 1, "sees nobody"),
        (Attention(dim=2, beta=1.0, mask=BLIND, norm=NGPT(1.0)), 50, "divide by the length"),
        (Attention(dim=2, beta=1.0, mask=Full(), weights="unnormalized", value=TILT), 50, "unnormalized"),
        (Attention(dim=3, beta=1.0, mask=Full(), frozen=Frozen(np.eye(3)), norm=NGPT(1.0)), 50, "norm"),
        (Attention(dim=2, beta=30.0, mask=Full(), frozen=Frozen(np.eye(2)[:1], [1e9])), 50, "accuracy"),
        (Attention(dim=2, beta=30.0, frozen=Frozen(np.eye(2)[:1], [1e9])), 50, "accuracy"),
        (Attention(dim=3, beta=30.0, mask=Prefix(3), frozen=Frozen(np.eye(3)[:1], [1e9])), 50, "accuracy"),
        (Attention(dim=2, beta=1.0, mask=Prefix(3), masses=np.ones(50)), 50, "masses"),
        (Attention(dim=2, beta=1.0, mask=Prefix(3), weights="unnormalized"), 50, "softmax"),
    ],
)
def test_what_a_total_cannot_do_is_refused_with_the_fix(model, tokens, word):
    reason = cpu.series_refusal(model, tokens)
    assert reason is not None
    assert word in reason
    assert reason.endswith("use interaction='direct'")
    assert not cpu.series_wins(model, tokens)


def test_the_rule_about_accuracy_is_needed_and_enough():
    """Two far tokens, each the only one that the other sees: what the rule refuses is wrong, what it takes is right."""
    angle = np.array([0.0, 3.1])
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    errors = {}
    for beta in (3.5, 20.0):
        model = Attention(dim=2, beta=beta, mask=BLIND)
        problem = Reference(system.make(_unchecked(model, 2)))
        out = np.zeros(4)
        system.evaluate(problem, 0.0, x.ravel(), out, None)
        errors[beta] = np.abs(out.reshape(2, 2) - velocity_of(reference.right_hand_side, model, x)).max()
        refused = why_not(model, CIRCLE_TOTAL, 2) is not None
        assert refused == (beta == 20.0)
    assert errors[3.5] <= 1e-12
    assert errors[20.0] > 1e-3


@pytest.mark.parametrize("mask", [Full(), Causal()], ids=repr)
def test_heavy_frozen_tokens_drown_the_others_unless_the_series_is_refused(mask):
    """A token opposite to a frozen one of weight w hardly sees it, but rounding errors of its sums are w times as large."""
    tokens = sphere.from_angle(np.pi + np.linspace(-0.5, 0.5, 40))
    for weight, refused in ((1e3, False), (1e9, True)):
        model = Attention(dim=2, beta=30.0, mask=mask, frozen=Frozen(np.array([[1.0, 0.0]]), [weight]))
        assert (cpu.series_refusal(model, 40) is not None) == refused
        out = np.zeros(80)
        system.evaluate(Reference(system.make(_unchecked(model, 40))), 0.0, tokens.ravel(), out, None)
        error = np.abs(out.reshape(40, 2) - velocity_of(reference.right_hand_side, model, tokens)).max()
        assert (error > 1e-10) == refused


def _unchecked(model, tokens):
    """A problem that `prepare` would refuse."""
    from metastable.kernels.cpu import problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "series_refusal", lambda model, tokens: None)
        return problem.prepare(model, tokens, interaction="series")


def test_auto_takes_the_series_where_it_wins():
    """Direct sums make twice as many pairs as under a causal mask: a total pays from half as many tokens on."""
    model = Attention(dim=2, beta=64.0, mask=Full())
    assert not cpu.series_wins(model, 40)
    assert cpu.series_wins(model, 100)
    assert not cpu.series_wins(model.replace(mask=Causal()), 100)
    assert cpu.series_wins(model.replace(mask=Prefix(100)), 100)
    assert select.choose(model, 10**5, "cpu").interaction == "series"
    assert select.choose(Attention(dim=3, beta=9.0, mask=Full()), 10**5, "cpu").interaction == "series"


def test_unnormalised_weights_have_a_clock_of_their_own():
    """A series is refused where the horizon is long in units of e^-beta, not in units of one."""
    model = Attention(dim=2, beta=9.0, mask=Full(), weights="unnormalized")
    assert select.choose(model, 5000, "cpu", "auto", 0.1).interaction == "series"
    assert select.choose(model, 5000, "cpu", "auto", 10.0).interaction == "direct"
    with pytest.raises(InvalidInputError, match=r"beyond t = 0\.12"):
        select.choose(model, 5000, "cpu", "series", 10.0)


def test_noise_hides_what_rounding_would():
    model = Attention(dim=2, beta=9.0, mask=Full(), weights="unnormalized", noise=0.5)
    assert select.choose(model, 5000, "cpu", "auto", 1e5, steps="fixed").interaction == "series"
    assert select.choose(model, 5000, "cpu", "series", 1e5, steps="fixed").interaction == "series"
    assert select.choose(model.replace(noise=0.0), 5000, "cpu", "auto", 1e5).interaction == "direct"


def test_declarations_differ_from_the_causal_ones_by_what_a_total_can_do():
    assert {"repulsion", "masses", "blind"} <= CIRCLE_TOTAL.parts & SPHERE_TOTAL.parts
    assert "frozen" in CIRCLE_TOTAL.parts & SPHERE_TOTAL.parts
