"""Variants added to the finished house: repulsion, masks without oneself, masses. Engines against a loop over the pairs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import metastable as ms
from metastable.analysis import scales
from metastable.errors import InvalidInputError, ModelError, NumericalRangeError, UnsupportedError
from metastable.kernels import cpu, reference
from tests import variants
from tests.equivalence.test_cpu import lanes_velocity

TIME = 0.7
TOKENS = 19
MODELS = 48
NORMS = (ms.PostLN(), ms.NGPT(0.6), ms.SqrtScaling(), ms.PreLN())
ADDITIONS = ("repulsion", "others only", "masses")


def added(name: str, rng: np.random.Generator, model: ms.Attention, tokens: int) -> ms.Attention:
    """The model with what was added."""
    if name == "others only":
        causal = isinstance(model.mask, ms.Causal) or rng.random() < 0.3
        return model.replace(mask=ms.Causal(include_self=False) if causal else ms.Full(include_self=False))
    if name == "masses":
        return model.replace(masses=10.0 ** rng.uniform(-3.0, 3.0, tokens))
    assert name == "repulsion"
    if model.beta is not None:
        return model.replace(beta=-model.all_heads[0].beta)
    heads = tuple(ms.Head(head.query, head.key, head.value, -head.beta) for head in model.all_heads)
    # Where there are several, some still attract.
    return model.replace(heads=(*heads[:1], *model.all_heads[1:]))


def random_model(name: str, number: int) -> tuple[ms.Attention, np.ndarray, np.random.Generator]:
    """Model `number` of an addition and its tokens: dimensions, masks, norms and kinds of weights in turn, the rest at random."""
    rng = np.random.default_rng([number, *name.encode()])
    d, tokens = (2, 3, 5)[number % 3], int(rng.integers(2, TOKENS))
    mask = variants.MASKS[number % 6] if number % 4 else ("causal", "full")[number // 4 % 2]
    fields = {"norm": NORMS[number // 3 % 4], "weights": variants.WEIGHTS[(0, 0, 1, 0, 2)[number % 5]]}
    if number % 7:
        fields["feedforward"] = None
    beta = float(rng.choice([0.3, 4.0, 12.0]))
    model = variants.model(rng, tokens, d, beta, mask, heads=1 + number % 2, **fields)
    if number % 6 == 0:  # what the kernels for Q = K = V = I do
        model = model.replace(heads=(ms.Head(beta=beta),))
    return added(name, rng, model, tokens), variants.tokens(rng, tokens, d), rng


def slow(model: ms.Attention, x: np.ndarray, radius: np.ndarray | None = None) -> tuple:
    """Velocity pair by pair, and for each token the size that errors are measured by: |A_k| over the norm's scale."""
    v, radial = variants.slow_velocity(model, x, TIME, radius)
    size = np.array([np.linalg.norm(variants.slow_attention(model, x, k)) for k in range(len(x))])[:, None]
    return v, radial, np.full_like(size, model.norm.alpha) if isinstance(model.norm, ms.NGPT) else size


@pytest.mark.parametrize("name", ADDITIONS)
def test_engines_equal_the_loop_over_pairs(name):
    compiled = 0
    for number in range(MODELS):
        model, x, rng = random_model(name, number)
        radius = rng.uniform(0.5, 2.0, len(x)) if model.norm.has_radius else None
        v, radial, size = slow(model, x, radius)
        y = x if radius is None else np.concatenate([x, radius[:, None]], axis=1)
        for module in (reference, cpu):
            if module.refusal(model, len(x)) is not None:
                assert module is cpu
                continue
            compiled += module is cpu
            out = np.zeros_like(y)
            module.right_hand_side(model, len(x))(TIME, y, out)
            assert (np.abs(out[:, : model.dim] - v) <= 1e-12 * size).all(), (number, model)
            if radius is not None:
                assert (np.abs(out[:, model.dim] - radial) <= 1e-12 * size[:, 0]).all(), (number, model)
    assert compiled >= 18


@pytest.mark.parametrize("name", ADDITIONS)
def test_lanes_equal_the_loop_over_pairs(name):
    seen = 0
    for number in range(MODELS):
        model, x, _ = random_model(name, number)
        if cpu.refusal(model, len(x)) is not None:
            continue
        seen += 1
        starts = np.stack([x, x[::-1], -x])
        for start, found in zip(starts, lanes_velocity(model.replace(norm=ms.PostLN()), starts)):
            v, _, size = slow(model.replace(norm=ms.PostLN()), start)
            assert (np.abs(found - v) <= 1e-12 * size).all(), (number, model)
    assert seen >= 18


@pytest.mark.parametrize("name", ADDITIONS)
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_adaptive_runs_equal_dop853(name, dim):
    """Both tight, the oracle with the loop over pairs."""
    rng = np.random.default_rng(dim)
    plain = ms.Attention(dim=dim, beta=5.0, value=None if dim == 2 else np.diag(np.linspace(1.0, 0.4, dim)))
    model, x = added(name, rng, plain, 7), variants.tokens(rng, 7, dim)

    def velocity(t, y):
        unit = y.reshape(x.shape) / np.linalg.norm(y.reshape(x.shape), axis=1, keepdims=True)
        return variants.slow_velocity(model, unit, t)[0].ravel()

    oracle = solve_ivp(velocity, (0.0, 1.5), x.ravel(), method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
    for engine in ("cpu", "reference"):
        run = ms.simulate(model, x, until=1.5, method="tsit5", engine=engine, rtol=1e-11, atol=1e-13, progress=False)
        np.testing.assert_allclose(run.final, oracle.reshape(x.shape), atol=2e-9)


@pytest.mark.parametrize("name", ADDITIONS)
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_ensembles_equal_single_runs(name, dim):
    model = added(name, np.random.default_rng(dim), ms.Attention(dim=dim, beta=6.0), 9)
    exact = {"rtol": 1e-10, "atol": 1e-12, "progress": False, "method": "tsit5", "engine": "cpu"}
    stats = ms.ensemble(model, tokens=9, members=11, times=[0.0, 2.0], seed=3, **exact)
    for member in (0, 7, 10):
        start, final = stats["x"].values[member]
        np.testing.assert_allclose(ms.simulate(model, start, until=2.0, **exact).final, final, atol=1e-8)


@pytest.mark.parametrize("name", ADDITIONS)
def test_models_survive_stores(name, tmp_path):
    model, x, _ = random_model(name, 1)
    for text in (ms.Attention.from_json(model.to_json()), ms.Attention.from_toml(model.to_toml())):
        assert text == model
        assert hash(text) == hash(model)
    run = ms.simulate(model, x, until=0.1, progress=False)
    run.save(tmp_path / "run.zarr")
    assert ms.load(tmp_path / "run.zarr").model == model


@pytest.mark.parametrize("name", ADDITIONS)
def test_layers_and_noise_go_through_the_readable_engine(name):
    for dim in (2, 4):
        model = added(name, np.random.default_rng(dim), ms.Attention(dim=dim, beta=3.0), 6)
        x, step = ms.sphere.uniform(6, dim=dim, seed=dim), 1e-6
        run = ms.simulate(model, x, until=step, method="layers", step=step, progress=False)
        np.testing.assert_allclose((run.final - x) / step, variants.slow_velocity(model, x)[0], atol=1e-5)
        noisy = ms.simulate(model.replace(noise=0.1), x, until=0.1, seed=0, progress=False)
        assert noisy.status == "success"


# ------------------------------------------------------------------------------------------------------ repulsion


@pytest.mark.parametrize("beta", [-1e-9, -1.0, -64.0, -299.0, -301.0, -5000.0])
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_strong_repulsion_stays_in_range(beta, dim):
    """The largest weight is that of the farthest token, exp(2 |beta|) times a token's own."""
    for mask in (ms.Causal(), ms.Full(), ms.Window(4)):
        model = ms.Attention(dim=dim, beta=beta, mask=mask, frozen=ms.Frozen(ms.sphere.uniform(2, dim=dim, seed=9)))
        starts = np.stack([ms.sphere.uniform(33, dim=dim, seed=seed) for seed in range(3)])
        found = lanes_velocity(model, starts)
        for start, lanes in zip(starts, found):
            v, _, size = slow(model, start)
            tolerance = (1e-12 + 1e-15 * abs(beta)) * size
            assert (np.abs(lanes - v) <= tolerance).all()
            for engine in ("cpu", "reference"):
                assert (np.abs(ms.velocity(model, start, engine=engine) - v) <= tolerance).all()


def test_a_pushed_token_ends_at_the_antipode():
    """V = -I pushes the second token away from the first, all the more where it only looks at who is far."""
    x = np.array([[1.0, 0.0], [np.cos(0.3), np.sin(0.3)]])
    run = ms.simulate(ms.Attention(dim=2, beta=-4.0, value=-np.eye(2)), x, until=50.0, method="tsit5", progress=False)
    np.testing.assert_allclose(run.final[1], -run.final[0], atol=1e-6)


def test_what_repulsion_is_refused_by():
    model = ms.Attention(dim=2, beta=-4.0)
    x = ms.sphere.uniform(5, dim=2, seed=0)
    for call in (
        lambda: ms.simulate(model, x, until=1.0, method="rodas", progress=False),
        lambda: ms.velocity(model, x, interaction="series", engine="cpu"),
        lambda: ms.analysis.token_energies(model, x),
        lambda: reference.jacobian(model, x),
    ):
        with pytest.raises(UnsupportedError, match=r"repulsion \(beta = -4 is below zero\)"):
            call()
    with pytest.raises(UnsupportedError, match="unnormalized weights below"):
        ms.velocity(model.replace(beta=-800.0, weights="unnormalized"), x, engine="cpu")
    with pytest.raises(NumericalRangeError, match="lower beta"):
        ms.velocity(ms.Attention(dim=2, beta=-1e308, query=100 * np.eye(2)), x)
    assert "repulsion" in ms.predict(model).reason
    # Far horizons are explicit, and say why.
    run = ms.simulate(model, x, until=5000.0, progress=False)
    assert run.engine == "cpu"
    assert "repulsion" in str(run.notes)
    assert scales.cluster_radius(model) == 0.25


# --------------------------------------------------------------------------------------------- masks without oneself


@pytest.mark.parametrize("beta", [0.0, 64.0, 299.0, 301.0, 5000.0])
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_others_far_away_still_count(beta, dim):
    """All weights may be exp(-2 beta) of what a token's own would be: they are divided by their own sum all the same."""
    for mask, bias in ((ms.Causal(False), None), (ms.Full(False), None), (ms.Causal(False), ms.ALiBi(40.0))):
        model = ms.Attention(dim=dim, beta=beta, mask=mask, bias=bias)
        starts = np.stack([ms.sphere.uniform(33, dim=dim, seed=seed) for seed in range(3)])
        starts[:, 1] = -starts[:, 0] + 1e-3 * starts[:, 2]
        starts /= np.linalg.norm(starts, axis=2, keepdims=True)
        for start, lanes in zip(starts, lanes_velocity(model, starts)):
            v, tolerance = slow(model, start)[0], 1e-13 + 1e-15 * beta
            assert (np.abs(lanes - v) <= tolerance).all()
            for engine in ("cpu", "reference"):
                assert (np.abs(ms.velocity(model, start, engine=engine) - v) <= tolerance).all()


@pytest.mark.parametrize("norm", variants.NORMS, ids=repr)
@pytest.mark.parametrize("weights", variants.WEIGHTS)
def test_who_sees_nobody_stands_still(norm, weights):
    """Exactly: the first token under Causal(include_self=False), a single one under Full(include_self=False)."""
    for dim in (2, 3, 5):
        for mask, count in ((ms.Causal(include_self=False), 8), (ms.Full(include_self=False), 1)):
            model = ms.Attention(dim=dim, beta=3.0, mask=mask, norm=norm, weights=weights)
            x = ms.sphere.uniform(count, dim=dim, seed=dim)
            for engine in ("reference", "cpu"):
                if engine == "cpu" and cpu.refusal(model, count) is not None:
                    continue
                assert not ms.velocity(model, x, engine=engine)[0].any()
            run = ms.simulate(model, x, until=2.0, progress=False)
            # (States are put back onto the sphere after every step: rounding, no motion.)
            np.testing.assert_allclose(
                run.states[:, 0], np.broadcast_to(x[0], run.states[:, 0].shape), atol=1e-15, rtol=0
            )
            if norm.has_radius:
                assert (run.radius[:, 0] == 1.0).all()


def test_masks_without_oneself_are_written_and_read():
    for kind, text in ((ms.Causal, "Causal"), (ms.Full, "Full")):
        assert repr(kind()) == f"{text}()"
        assert repr(kind(include_self=False)) == f"{text}(include_self=False)"
        assert kind(include_self=0) == kind(False) != kind()
        assert not kind(False).matrix(4).diagonal().any()
        assert (kind(False).matrix(4) | np.eye(4, dtype=bool) == kind().matrix(4)).all()
        with pytest.raises(InvalidInputError, match=f"{text}.include_self must be True or False"):
            kind("no")
        assert ms.Attention(dim=2, beta=1.0, mask=kind(False)).to_dict()["mask"]["include_self"] is False
    assert ms.Causal(False).is_causal(5)
    assert ms.Causal(False).extends(3, 5)
    assert not ms.Full(False).extends(3, 5)


def test_append_under_a_mask_without_oneself():
    model, x = ms.Attention(dim=3, beta=4.0, mask=ms.Causal(include_self=False)), ms.sphere.uniform(9, dim=3, seed=2)
    exact = {"until": 2.0, "rtol": 1e-9, "atol": 1e-12, "method": "tsit5", "progress": False}
    both = ms.simulate(model, x[:6], **exact).append(x[6:], progress=False)
    np.testing.assert_allclose(both.final, ms.simulate(model, x, **exact).final, atol=1e-7)


@pytest.mark.parametrize("dim", [2, 3])
def test_rodas_takes_masks_without_oneself_where_everybody_sees_somebody(dim):
    x, exact = ms.sphere.uniform(7, dim=dim, seed=4), {"rtol": 1e-8, "atol": 1e-10, "progress": False}
    anchors = ms.Frozen(ms.sphere.uniform(2, dim=dim, seed=9), [0.5, 2.0])
    for fields in ({"mask": ms.Full(False)}, {"mask": ms.Causal(False), "frozen": anchors}):
        model = ms.Attention(dim=dim, beta=4.0, **fields)
        implicit = ms.simulate(model, x, until=5.0, method="rodas", **exact).final
        np.testing.assert_allclose(implicit, ms.simulate(model, x, until=5.0, method="tsit5", **exact).final, atol=1e-5)
        assert (ms.analysis.gradient_flow_defect(model, x) < 1e-12).all()
    with pytest.raises(UnsupportedError, match="sees nobody"):
        ms.simulate(ms.Attention(dim=dim, beta=4.0, mask=ms.Causal(False)), x, until=5.0, method="rodas")


# --------------------------------------------------------------------------------------------------------- masses


@pytest.mark.parametrize("weights", variants.WEIGHTS)
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_a_token_of_mass_two_is_two_tokens(weights, dim):
    """Copies of tokens under full attention: the velocity of the others does not know whether they are one of mass m or m of one."""
    x, masses = ms.sphere.uniform(5, dim=dim, seed=dim), np.array([1.0, 3.0, 2.0, 1.0, 4.0])
    copies = np.repeat(x, masses.astype(int), axis=0)
    model = ms.Attention(dim=dim, beta=3.0, mask=ms.Full(), weights=weights)
    many = ms.velocity(model, copies, engine="reference")
    first = np.concatenate([[0], np.cumsum(masses.astype(int))[:-1]])
    for engine in ("reference",) if weights == "hardmax" else ("reference", "cpu"):
        few = ms.velocity(model.replace(masses=masses), x, engine=engine)
        np.testing.assert_allclose(few, many[first], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_masses_of_very_different_sizes(dim):
    """What a window sees is added up by itself, however heavy the tokens outside are."""
    rng = np.random.default_rng(dim)
    masses = 10.0 ** rng.uniform(-60, 60, 40)
    x = ms.sphere.uniform(40, dim=dim, seed=dim)
    for weights in ("softmax", "unnormalized"):
        for mask in (ms.Causal(), ms.Full(), ms.Window(3), ms.Sink(2, 5), ms.Prefix(4), ms.Full(include_self=False)):
            model = ms.Attention(dim=dim, beta=8.0, masses=masses, mask=mask, weights=weights)
            v, _, size = slow(model, x)
            for engine in ("cpu", "reference"):
                assert (np.abs(ms.velocity(model, x, engine=engine) - v) <= 1e-12 * np.maximum(size, 1e-2)).all()


def test_equal_masses_are_no_masses():
    """Softmax does not know their common size; nor do unnormalised weights, which are divided by it."""
    x = ms.sphere.uniform(12, dim=3, seed=0)
    for weights in variants.WEIGHTS:
        model = ms.Attention(dim=3, beta=3.0, weights=weights)
        found = ms.velocity(model.replace(masses=np.full(12, 7.0)), x)
        np.testing.assert_allclose(found, ms.velocity(model, x), atol=1e-14)


def test_masses_are_checked():
    for bad in ([1.0, 0.0], [1.0, -1.0], [], [1.0, np.nan], [1e308, 1e308], [[1.0]], "heavy"):
        with pytest.raises(InvalidInputError, match="masses"):
            ms.Attention(dim=2, beta=1.0, masses=bad)
    model, x = ms.Attention(dim=2, beta=1.0, masses=[1.0, 2.0, 3.0]), ms.sphere.uniform(4, dim=2, seed=0)
    quiet = {"progress": False}
    for call in (
        lambda: ms.velocity(model, x),
        lambda: ms.simulate(model, x, until=1.0, **quiet),
        lambda: ms.ensemble(model, tokens=4, members=2, times=[1.0], seed=0, **quiet),
        lambda: cpu.right_hand_side(model, 4),
        lambda: reference.right_hand_side(model, 4),
        lambda: reference.attention_weights(model, x),
        lambda: ms.simulate([model.replace(masses=None), model], x, method="layers", step=0.1, **quiet),
        lambda: ms.simulate(model, x[:3], until=1.0, method="tsit5", **quiet).append(x[3:], progress=False),
    ):
        with pytest.raises(ModelError, match="masses has 3 entries for 4 tokens; give one for each token"):
            call()
    with pytest.raises(UnsupportedError, match="logarithm of a mass"):
        ms.velocity(model.replace(masses=[1e300, 1.0, 1.0], beta=30.0, weights="unnormalized"), x[:3], engine="cpu")
    assert not model.masses.flags.writeable
    assert model.replace(masses=[1.0, 2.0, 4.0]) != model
