"""Integrators against SciPy's DOP853 at 1e-12, and their orders of convergence."""

import itertools

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import metastable as ms
from metastable.errors import StoppedEarlyWarning
from metastable.integrate import layers, march, sde, tsit5
from metastable.integrate.plan import Accuracy, Plan, Save
from metastable.kernels import reference
from tests import variants
from tests.explicit import solve_system


def packed(m: ms.Attention, x: np.ndarray) -> np.ndarray:
    return np.column_stack([x, np.ones(len(x))]) if m.norm.has_radius else x


def oracle(m: ms.Attention, x: np.ndarray, times: list[float]) -> np.ndarray:
    """States at `times` by DOP853 at 1e-12, restarted at the jumps of the right-hand side."""
    y = packed(m, x)
    shape = y.shape
    f = reference.right_hand_side(m, len(x))
    edges = [0.0, *[b for b in m.norm.breakpoints if b < times[-1]], times[-1]]
    states = {}
    for left, right in itertools.pairwise(edges):
        latest = np.nextafter(right, 0) if right != times[-1] else right

        def velocity(t, flat, latest=latest):
            out = np.zeros(shape)
            f(min(t, latest), flat.reshape(shape), out)
            return out.ravel()

        inside = [t for t in times if left < t <= right]
        solved = solve_ivp(
            velocity, (left, right), y.ravel(), "DOP853", t_eval=sorted({*inside, right}), rtol=1e-12, atol=1e-13
        )
        states |= {t: solved.y[:, i].reshape(shape) for i, t in enumerate(inside)}
        y = solved.y[:, -1].reshape(shape)
    return np.array([states[t] for t in times])[:, :, : m.dim]


def cases() -> dict[str, ms.Attention]:
    rng = np.random.default_rng(7)
    n = 14

    def random(d, kind="causal", heads=1, beta=4.0, **fields):
        fields = {"frozen": None, "bias": None, "feedforward": None} | fields
        return variants.model(rng, n, d, beta, kind, heads, **fields)

    return {
        "identity circle": ms.Attention(dim=2, beta=16.0),
        "identity sphere": ms.Attention(dim=3, beta=9.0),
        "general": random(3),
        "two heads": random(4, heads=2),
        "full": random(3, "full"),
        "window": random(3, "window"),
        "sink": random(3, "sink"),
        "prefix": random(2, "prefix"),
        "matrix mask": random(3, "matrix"),
        "unnormalized": random(3, weights="unnormalized", beta=2.0),
        "frozen": random(2, frozen=ms.Frozen(variants.tokens(rng, 3, 2))),
        "alibi": random(3, bias=ms.ALiBi(0.5)),
        "feed-forward": random(
            3,
            feedforward=ms.FeedForward(
                rng.normal(size=(4, 3)), rng.normal(size=4), rng.normal(size=(3, 4)), rng.normal(size=3), "tanh"
            ),
        ),
        "pre-ln": ms.Attention(dim=3, beta=2.0, value=np.diag([1.0, 0.5, 0.2]), norm=ms.PreLN()),
        "mix-ln": ms.Attention(dim=3, beta=2.0, value=np.diag([1.0, 0.5, 0.2]), norm=ms.MixLN(1.0)),
        "peri-ln": random(3, norm=ms.PeriLN(), beta=2.0),
        "ngpt": random(3, norm=ms.NGPT(0.5)),
        "sqrt": random(3, norm=ms.SqrtScaling()),
    }


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_tsit5_keeps_its_tolerance(name):
    """Worst token within 20 times the tolerance at rtol 1e-4, 1e-6, 1e-9, at saved times and in between."""
    m = CASES[name]
    x = variants.tokens(np.random.default_rng(11), 14, m.dim)
    times = [0.9, 1.7, 3.0]
    truth = oracle(m, x, times)
    for rtol in (1e-4, 1e-6, 1e-9):
        run = ms.simulate(m, x, times[-1], method="tsit5", engine="reference", rtol=rtol, atol=1e-3 * rtol)
        assert run.status == "success"
        assert np.abs(run.final - truth[-1]).max() <= 20 * rtol
        assert np.abs(run.at(0.9) - truth[0]).max() <= 20 * rtol
        saved = ms.simulate(m, x, times=times, method="tsit5", engine="reference", rtol=rtol, atol=1e-3 * rtol)
        assert np.abs(saved.states - truth).max() <= 20 * rtol


def in_steps(f, y, dim, until, step):
    """Tsit5 without error control."""
    return solve_system(tsit5.System(f, y, dim, Accuracy(step=step)), Save(until))


def slope(steps, errors) -> float:
    return float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


@pytest.mark.parametrize("name", ["identity sphere", "general", "pre-ln", "ngpt"])
def test_tsit5_has_order_five_with_retraction(name):
    m = CASES[name]
    x = variants.tokens(np.random.default_rng(5), 8, m.dim)
    truth = oracle(m, x, [4.0])[0]
    f = reference.right_hand_side(m, 8)
    steps = np.array([1 / 4, 1 / 8, 1 / 16])
    errors = [np.abs(in_steps(f, packed(m, x), m.dim, 4.0, h).states[-1][:, : m.dim] - truth).max() for h in steps]
    assert 4.6 < slope(steps, errors) < 7.0


def test_dense_output_has_order_four():
    """Error in the middle of steps falls like step^4 at least (global order of the interpolant)."""
    m = CASES["general"]
    x = variants.tokens(np.random.default_rng(5), 8, m.dim)
    f = reference.right_hand_side(m, 8)
    steps = np.array([1 / 8, 1 / 16, 1 / 32])
    errors = []
    for h in steps:
        middle = [h * (k + 0.4) for k in range(int(1 / h))]
        truth = oracle(m, x, middle)
        dense = in_steps(f, x, m.dim, 1.0, h).dense
        errors.append(max(np.abs(dense(t) - y).max() for t, y in zip(middle, truth)))
    assert slope(steps, errors) > 3.7


@pytest.mark.parametrize("name", ["identity circle", "general", "pre-ln", "peri-ln", "ngpt", "sqrt", "mix-ln"])
def test_layers_have_order_one(name):
    m = CASES[name]
    x = variants.tokens(np.random.default_rng(5), 8, m.dim)
    truth = oracle(m, x, [2.0])[0]
    steps = np.array([1 / 64, 1 / 128, 1 / 256])
    errors = [np.abs(ms.simulate(m, x, 2.0, method="layers", step=h).final - truth).max() for h in steps]
    assert 0.85 < slope(steps, errors) < 1.2


def test_layers_with_weights_of_their_own():
    """A list of models is applied one per layer."""
    rng = np.random.default_rng(3)
    models = [variants.model(rng, 6, 3, 1.0, "causal", feedforward=None, frozen=None, bias=None) for _ in range(4)]
    x = variants.tokens(rng, 6, 3)
    run = ms.simulate(models, x, step=0.5)
    y = x
    for i, m in enumerate(models):
        y = layers.layer(m, y, 0.5 * i, 0.5)
    np.testing.assert_allclose(run.final, y, atol=1e-14)
    assert run.end == 2.0
    assert run.models == tuple(models)


@pytest.mark.parametrize(("dim", "order"), [(2, 0.5), (3, 0.5)])
def test_strong_order_of_noise(dim, order):
    """Coupled increments, mean distance to a fine solution: order 1/2, since the increments are those of the ambient space."""
    m = ms.Attention(dim=dim, beta=2.0, noise=0.7)
    horizon, n, finest = 0.5, 20, 9
    rng = np.random.default_rng(0)
    f = reference.right_hand_side(m, n)
    levels = (2, 3, 4, 5)
    errors = np.zeros(len(levels))
    members = 6
    for _ in range(members):
        x = variants.tokens(rng, n, dim)
        fine = rng.standard_normal((2 ** (finest + 1), n, dim))  # two halves a step

        def end_of(level, fine=fine, x=x):
            halves = fine.reshape(2 ** (level + 1), -1, n, dim).sum(axis=1) * np.sqrt(2.0 ** (level - finest))

            def draw(number):
                return halves[2 * number : 2 * number + 2].transpose(1, 0, 2)

            plan = Plan((m,), "sde", Save(horizon), Accuracy(step=horizon / 2**level))
            return sde.solve(plan, f, x, draw, None).states[-1]

        truth = end_of(finest)
        for i, level in enumerate(levels):
            end = end_of(level)
            errors[i] += np.linalg.norm(end - truth, axis=1).mean() / members
    steps = horizon / 2.0 ** np.array(levels)
    assert order - 0.1 < slope(steps, errors) < order + 0.25, errors


@pytest.mark.parametrize("tau", [0.2, 0.2033])
def test_the_drift_keeps_order_two_where_the_norm_jumps(tau):
    """With hardly any noise, at a jump that is a multiple of the step and at one within a step."""
    m = ms.Attention(dim=3, beta=4.0, value=np.random.default_rng(1).normal(size=(3, 3)), norm=ms.MixLN(tau))
    x = variants.tokens(np.random.default_rng(0), 8, 3)
    truth = ms.simulate(m, x, 0.6, method="tsit5", engine="reference", rtol=1e-11, atol=1e-13)
    steps = np.array([0.02, 0.01, 0.005])
    runs = [ms.simulate(m.replace(noise=1e-12), x, 0.6, seed=3, step=float(step), engine="reference") for step in steps]
    for name in ("x", "radius"):
        wanted = truth.dataset[name].values[-1]
        errors = np.array([np.abs(run.dataset[name].values[-1] - wanted).max() for run in runs])
        assert slope(steps, errors) > 1.8, (name, errors)


def test_a_radius_with_noise_ends_at_zero_as_without():
    """V = -I: dr/dt = -1 for a single token. Behind t = 1 the radius was negative, and the run a success."""
    m = ms.Attention(dim=2, beta=1.0, value=-np.eye(2), norm=ms.PreLN())
    for noise in (0.0, 0.1):
        with pytest.warns(StoppedEarlyWarning):
            run = ms.simulate(m.replace(noise=noise), np.eye(2)[:1], until=2.0, seed=3, progress=False)
        assert run.status == "diverged"
        assert run.end == pytest.approx(1.0, abs=0.02)
        assert (run.dataset["radius"].values > 0).all()
    assert "token 0 reached radius zero" in run.message


def test_a_layer_that_begins_at_a_jump_is_behind_it():
    """100 times 0.57 is 56.99999999999999: the first layer without a norm is number 100, not 101."""
    assert 100 * 0.57 < 57.0
    m = ms.Attention(dim=3, beta=1.0, norm=ms.MixLN(57.0))
    x = variants.tokens(np.random.default_rng(0), 5, 3)
    run = ms.simulate(m, x, until=101 * 0.57, method="layers", step=0.57)
    radius = run.dataset["radius"].values
    np.testing.assert_array_equal(radius[100], 1.0)
    assert (radius[101] > 1.1).all()


def test_brownian_motion_decays_like_the_laplacian():
    """E <X_t, X_0> = exp(-(d-1) sigma^2 t / 2) for Brownian motion on the sphere (V = 0: no drift)."""
    d, sigma, t, n = 3, 0.8, 0.5, 800
    m = ms.Attention(dim=d, beta=0.0, value=np.zeros((d, d)), noise=sigma, mask=ms.Window(1))
    x = np.tile([[0.0, 0.0, 1.0]], (n, 1))
    run = ms.simulate(m, x, t, seed=3, engine="reference", step=0.0125, times=[t])
    cosine = run.final[:, 2]
    expected = np.exp(-(d - 1) * sigma**2 * t / 2)
    assert abs(cosine.mean() - expected) < 4 * cosine.std() / np.sqrt(n)


def test_noise_is_reproducible():
    m = ms.Attention(dim=3, beta=4.0, noise=0.3)
    x = variants.tokens(np.random.default_rng(0), 10, 3)
    first, second, other = (ms.simulate(m, x, 1.0, seed=s, engine="reference") for s in (1, 1, 2))
    np.testing.assert_array_equal(first.states, second.states)
    assert np.abs(first.final - other.final).max() > 1e-3


def test_noise_depends_on_seed_step_and_token_alone():
    """A longer run and one with more tokens behind go through the same states, bit for bit; steps can be drawn in any order."""
    m = ms.Attention(dim=3, beta=4.0, noise=0.3)
    x = variants.tokens(np.random.default_rng(0), 10, 3)
    short, long = (ms.simulate(m, x, t, seed=1, engine="reference") for t in (0.5, 1.0))
    np.testing.assert_array_equal(long.states[: len(short.times)], short.states)
    fewer = ms.simulate(m, x[:6], 0.5, seed=1, engine="reference")
    np.testing.assert_allclose(fewer.states, short.states[:, :6], atol=1e-13)
    draw = sde.normals(7, 4, 3)
    forwards = [draw(i) for i in range(5)]
    for i in (3, 0, 4, 1, 2):
        np.testing.assert_array_equal(draw(i), forwards[i])
    assert np.abs(forwards[0] - forwards[1]).max() > 0.1


def test_noise_moves_directions_and_leaves_radii_to_the_drift():
    """PreLN under noise alone (V = 0): the radius stays one, the directions move."""
    m = ms.Attention(dim=3, beta=1.0, value=np.zeros((3, 3)), noise=0.5, norm=ms.PreLN())
    run = ms.simulate(m, variants.tokens(np.random.default_rng(0), 5, 3), 0.1, seed=0)
    np.testing.assert_array_equal(run.radius, 1.0)
    assert np.abs(run.final - run.start).max() > 1e-2


@pytest.mark.parametrize("dim", [2, 3])
def test_states_outlive_the_growth_of_their_memory(dim, monkeypatch):
    """Every step kept, in memory that has to grow several times: the states are those that a run with `times` saves."""
    m, x = ms.Attention(dim=dim, beta=9.0), ms.sphere.uniform(12, dim=dim, seed=3)
    velocity = reference.right_hand_side(m, len(x))
    whole = solve_system(tsit5.System(velocity, x, dim), Save(20.0))
    monkeypatch.setattr(march, "FEWEST", 1)
    monkeypatch.setattr(march, "MOST", 1)
    grown = solve_system(tsit5.System(velocity, x, dim), Save(20.0))
    assert len(grown.times) > 16
    assert np.array_equal(grown.states, whole.states)
    np.testing.assert_array_equal(grown.states[0], x)
    saved = solve_system(tsit5.System(velocity, x, dim), Save(20.0, grown.times))
    assert np.array_equal(grown.states, saved.states)
    assert np.array_equal(grown.dense.coefficients[:, 0], grown.states[:-1])
