"""Rodas5P: order, accuracy against independent integrators, masks, slaved tokens, members, and the hard cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import metastable as ms
from metastable.errors import NumericalRangeError, UnsupportedError
from metastable.integrate import rodas
from metastable.integrate.plan import Accuracy, Save
from metastable.integrate.rodas import circle_system as rodas_circle
from metastable.integrate.rodas import control as rodas_control
from metastable.integrate.rodas import prepare as rodas_prepare
from metastable.integrate.solution import unchart
from metastable.kernels import reference
from tests import implicit, variants


def on_circle(angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def angle_error(x, angles):
    return np.abs(np.angle((x[:, 0] + 1j * x[:, 1]) * np.exp(-1j * angles))).max()


def radau(angles, beta, until):
    """An independent implicit solution on the circle."""

    model = ms.Attention(dim=2, beta=beta)

    def tangents(y):
        return np.stack([-np.sin(y), np.cos(y)], axis=1)

    def velocity(t, y):
        return np.einsum("ka,ka->k", tangents(y), ms.velocity(model, on_circle(y), engine="reference"))

    def jacobian(t, y):
        return np.einsum("ka,kajb,jb->kj", tangents(y), reference.jacobian(model, on_circle(y)), tangents(y))

    return solve_ivp(velocity, (0, until), angles, "Radau", jac=jacobian, rtol=1e-11, atol=1e-12).y[:, -1]


def fixed_steps(model, x, h, steps):
    """Rodas5P with a fixed step."""
    prepared = rodas_prepare.prepare(model, x)
    shape = (len(x), prepared.components)
    journal = rodas_control.new_journal(np.empty(0), np.zeros((0, *shape)), np.zeros((1, 5, *shape)), 4, 0.0, h)
    for number in range(steps):
        # An infinite tolerance accepts whatever step is planned.
        journal.control[rodas_control.H] = h
        journal.control[rodas_control.RATE] = 0.0
        journal.counters[rodas_control.PIECES] = 0
        goal = rodas_control.Goal((number + 1) * h, np.inf, 0.0, 10**9, False)
        prepared.march(journal, goal)
    return unchart(prepared.current().copy(), prepared.chart, model.dim)


@pytest.mark.parametrize("dim", [2, 3])
def test_order_five(dim):
    rng = np.random.default_rng(1)
    # A window as long as the sequence is the causal mask, without slaved tokens (which an infinite tolerance would join).
    model = ms.Attention(dim=dim, beta=3.0, mask=ms.Window(6))
    x = variants.tokens(rng, 6, dim)
    exact = ms.simulate(model, x, until=1.6, method="tsit5", engine="reference", rtol=1e-13, atol=1e-14).final
    errors = [np.abs(fixed_steps(model, x, 1.6 / steps, steps) - exact).max() for steps in (8, 16, 32)]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert 4.5 < orders[-1] < 5.8, (orders, errors)


def test_error_within_three_times_the_tolerance_of_radau():
    rng = np.random.default_rng(0)
    angles = rng.uniform(-np.pi, np.pi, 60)
    exact = radau(angles, 64.0, 200.0)
    for tolerance in (1e-4, 1e-6, 1e-8):
        solution = rodas.solve(ms.Attention(dim=2, beta=64.0), on_circle(angles), Save(200.0), Accuracy(tolerance, 0.0))
        assert angle_error(solution.states[-1], exact) < 3 * tolerance


@pytest.mark.parametrize("kind", variants.MASKS)
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_random_models_against_the_explicit_method(kind, dim):
    rng = np.random.default_rng([dim, variants.MASKS.index(kind)])
    model = variants.model(rng, 9, dim, 2.0, kind, heads=1 + dim % 2, feedforward=None)
    x = variants.tokens(rng, 9, dim)
    exact = ms.simulate(model, x, until=2.0, method="tsit5", engine="reference", rtol=1e-11, atol=1e-13)
    run = ms.simulate(model, x, until=2.0, method="rodas", rtol=1e-7, atol=0.0)
    assert run.status == "success"
    assert np.abs(run.final - exact.final).max() < 3e-7
    assert np.abs(run.at(0.77) - exact.at(0.77)).max() < 3e-7


@pytest.mark.parametrize("mask", [ms.Causal(), ms.Window(3), ms.Sink(2, 3)], ids=repr)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_circle_variants_against_the_explicit_method(mask, frozen, slope):
    rng = np.random.default_rng(5)
    anchors = ms.Frozen(variants.tokens(rng, 3, 2), [0.5, 0.0, 2.0]) if frozen else None
    model = ms.Attention(dim=2, beta=5.0, mask=mask, frozen=anchors, bias=ms.ALiBi(slope) if slope else None)
    x = variants.tokens(rng, 18, 2)
    assert rodas_prepare.on_circle(model, len(x))
    exact = ms.simulate(model, x, until=3.0, method="tsit5", engine="reference", rtol=1e-11, atol=1e-13)
    run = ms.simulate(model, x, until=3.0, method="rodas", rtol=1e-7, atol=0.0)
    assert np.abs(run.final - exact.final).max() < 3e-7


def test_circle_and_sphere_kernels_agree_over_decades():
    """The angle kernel and the general kernel (which sees Q = I given as a matrix) are different codes."""
    x = ms.sphere.uniform(40, dim=2, seed=3)
    times = 10.0 ** np.arange(0, 21, 2.0)
    circle = rodas.solve(ms.Attention(dim=2, beta=32.0), x, Save(1e20, times), Accuracy(1e-8, 0.0))
    general = rodas.solve(ms.Attention(dim=2, beta=32.0, query=np.eye(2)), x, Save(1e20, times), Accuracy(1e-8, 0.0))
    difference = np.abs(circle.states - general.states).max(axis=(1, 2))
    # Most output times fall between merges, where the cascade is reproduced to far below the tolerance.
    assert np.median(difference) < 1e-9
    assert difference[-1] < 1e-9


def test_slaved_tokens_change_nothing():
    angles = np.random.default_rng(2).uniform(-np.pi, np.pi, 50)
    results = []
    for grouping in (True, False):
        system = rodas_circle.make(angles, 32.0, grouping=grouping)
        times = 10.0 ** np.arange(0, 20.1, 1.0)
        saved = np.zeros((times.size, 50, 1))
        journal = rodas_control.new_journal(times, saved, np.zeros((1, 5, 50, 1)), 5000, 0.0, 1e-2)
        goal = rodas_control.Goal(times[-1], 1e-7, 0.0, 5000, False)
        assert rodas_control.march_compiled(system, journal, goal) == rodas_control.REACHED
        results.append((saved[:, :, 0], int(system.count[0])))
    assert results[0][1] < 10
    assert results[1][1] == 50
    gap = np.abs(np.angle(np.exp(1j * (results[0][0] - results[1][0]))))
    assert gap.max() < 1e-6
    assert np.median(gap.max(axis=1)) < 1e-9


def test_saved_times_dense_output_and_steps_fit_together():
    model = ms.Attention(dim=2, beta=16.0)
    x = ms.sphere.uniform(20, dim=2, seed=0)
    run = ms.simulate(model, x, until=1e12, method="rodas")
    assert run.times[0] == 0.0
    assert run.end == 1e12
    assert (np.diff(run.times) > 0).all()
    times = np.array([0.0, 0.5, 3e4, 1e12])
    saved = ms.simulate(model, x, times=times, method="rodas")
    np.testing.assert_array_equal(saved.times, times)
    np.testing.assert_array_equal(saved.states[0], saved.start)
    for t, state in zip(times, saved.states):
        assert np.abs(run.at(t) - state).max() < 1e-12
    assert saved.dense is None


def test_members_do_not_depend_on_threads():
    starts = np.stack([ms.sphere.uniform(24, dim=2, seed=seed) for seed in range(5)])
    model = ms.Attention(dim=2, beta=16.0)
    times = [1.0, 1e3, 1e10]
    (one, statuses), (two, _) = (
        implicit.solve_members(model, starts, times, threads=threads, rtol=1e-5) for threads in (1, None)
    )
    np.testing.assert_array_equal(one, two)
    assert statuses == ["success"] * 5
    alone = rodas.solve(model, starts[3], Save(1e10, np.array(times)), Accuracy(1e-5))
    np.testing.assert_array_equal(one[3], alone.states)
    short, statuses = implicit.solve_members(model, starts, [1.0, 1e10], max_steps=60)
    assert set(statuses) == {"max_steps"}
    assert np.isnan(short[:, 1]).all()


# ----------------------------------------------------------------------------------------------------- hard cases


@pytest.mark.parametrize("dim", [2, 3])
def test_antipodes_leave_their_saddle(dim):
    """A start within rounding of the antipode: the second token must leave it and reach the first."""
    x = np.zeros((2, dim))
    x[0, 0] = 1.0
    x[1, 0], x[1, 1] = -1.0, 1e-13
    run = ms.simulate(ms.Attention(dim=dim, beta=4.0), x, until=1e9, method="rodas")
    assert run.status == "success"
    assert np.abs(run.final - x[0]).max() < 1e-9


def test_exact_rest_stays_and_settles():
    """Exactly antipodal tokens feel exactly nothing: the run is short and says that all stopped."""
    x = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    run = ms.simulate(ms.Attention(dim=3, beta=2.0), x, until="settled", method="rodas")
    assert run.status == "success"
    np.testing.assert_array_equal(run.final, x)
    long = ms.simulate(ms.Attention(dim=3, beta=2.0), x, until=1e40, method="rodas")
    assert long.status == "success"
    np.testing.assert_array_equal(long.final, x)


def test_token_on_a_saddle_between_two_others():
    """Token 3 halfway between tokens that rest for ages: it must pick a side when it is off by 1e-12."""
    angles = np.array([0.0, 1.4, 0.7 + 1e-12])
    model = ms.Attention(dim=2, beta=32.0)
    run = ms.simulate(model, on_circle(angles), until=3e4, method="rodas")
    place = np.arctan2(run.final[2, 1], run.final[2, 0])
    assert place == pytest.approx(1.4, abs=1e-2)


def test_duplicates_stay_together():
    x = np.repeat(ms.sphere.uniform(5, dim=3, seed=1), 4, axis=0)
    run = ms.simulate(ms.Attention(dim=3, beta=9.0), x, until=1e6, method="rodas")
    assert run.status == "success"
    assert np.isfinite(run.final).all()
    angles = ms.sphere.uniform(5, dim=2, seed=1).repeat(3, axis=0)
    circle = ms.simulate(ms.Attention(dim=2, beta=9.0), angles, until=1e6, method="rodas")
    assert np.abs(circle.final - circle.final[0]).max() < 1e-12


@pytest.mark.parametrize("dim", [2, 3])
def test_beta_zero_and_one_token(dim):
    x = ms.sphere.uniform(6, dim=dim, seed=0)
    run = ms.simulate(ms.Attention(dim=dim, beta=0.0), x, until=1e30, method="rodas")
    assert np.abs(run.final - x[0]).max() < 1e-12
    single = ms.simulate(ms.Attention(dim=dim, beta=5.0), x[:1], until=1e30, method="rodas")
    np.testing.assert_allclose(single.final, x[:1], atol=1e-15)


def test_single_token_follows_its_exact_solution():
    value = np.diag([1.0, 0.5, -1.0])
    x = ms.sphere.uniform(1, dim=3, seed=2)
    run = ms.simulate(ms.Attention(dim=3, beta=1.0, value=value), x, until=15.0, method="rodas", rtol=1e-9)
    exact = x[0] * np.exp(15.0 * np.diag(value))
    assert np.abs(run.final[0] - exact / np.linalg.norm(exact)).max() < 1e-8


def test_underflow_limit_is_named():
    x = ms.sphere.uniform(4, dim=2, seed=0)
    with pytest.raises(NumericalRangeError, match="beta <= 350"):
        ms.simulate(ms.Attention(dim=2, beta=400.0), x, until=1e30, method="rodas")
    assert ms.simulate(ms.Attention(dim=2, beta=349.0), x, until=1e30, method="rodas").status == "success"


def test_complex_leading_pair_stops_and_says_that_it_rotates():
    value = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.2]])
    x = ms.sphere.uniform(4, dim=3, seed=0)
    run = ms.simulate(ms.Attention(dim=3, beta=1.0, value=value), x, until=1e30, method="rodas", max_steps=300)
    assert run.status == "max_steps"
    assert "rotates for ever" in run.message


def test_settled():
    model = ms.Attention(dim=2, beta=16.0)
    x = ms.sphere.uniform(30, dim=2, seed=4)
    run = ms.simulate(model, x, until="settled", method="rodas")
    assert run.status == "success"
    assert np.abs(run.final - x[0]).max() < 1e-11
    assert run.notes["settled"] < 1e20
    # It had not stopped a decade before: the last merge was still to come.
    assert np.abs(run.at(run.notes["settled"] / 10) - x[0]).max() > 0.1
    sphere = ms.simulate(
        ms.Attention(dim=3, beta=5.0), ms.sphere.uniform(12, dim=3, seed=4), until="settled", method="rodas"
    )
    assert sphere.status == "success"
    assert np.abs(sphere.final - sphere.final[0]).max() < 1e-11
    frozen = ms.Attention(dim=2, beta=16.0, frozen=ms.Frozen(on_circle(np.array([0.0, 2.0, 4.0]))))
    assert ms.simulate(frozen, x, until="settled", method="rodas").status == "success"


def test_refusals_name_the_way_out():
    x = ms.sphere.uniform(4, dim=2, seed=0)
    for fields in ({"weights": "hardmax"}, {"norm": ms.PreLN()}):
        with pytest.raises(UnsupportedError, match="tsit5"):
            ms.simulate(ms.Attention(dim=2, beta=1.0, **fields), x, until=1.0, method="rodas")
    with pytest.raises(NumericalRangeError, match="causal mask"):
        ms.simulate(
            ms.Attention(dim=2, beta=1.0, mask=ms.Prefix(3), frozen=ms.Frozen(x[:1])), x, until=1e30, method="rodas"
        )
    assert rodas.refusal(ms.Attention(dim=2, beta=1.0, mask=ms.Full()), 10_000) is not None


def test_full_attention_reaches_one_point():
    run = ms.simulate(
        ms.Attention(dim=2, beta=4.0, mask=ms.Full()), ms.sphere.uniform(12, dim=2, seed=0), until=1e8, method="rodas"
    )
    assert run.status == "success"
    assert np.abs(run.final - run.final[0]).max() < 1e-10


def test_max_steps_keeps_what_was_computed():
    x = ms.sphere.uniform(30, dim=2, seed=0)
    run = ms.simulate(ms.Attention(dim=2, beta=64.0), x, until=1e30, method="rodas", max_steps=40)
    assert run.status == "max_steps"
    assert "raise max_steps" in run.message
    assert 0 < run.end < 1e30
    assert run.stats.accepted + run.stats.rejected == 40


@pytest.mark.parametrize(
    "model",
    [
        ms.Attention(dim=2, beta=30.0),
        ms.Attention(dim=2, beta=9.0, mask=ms.Window(5)),
        ms.Attention(dim=2, beta=9.0, frozen=ms.Frozen([[1.0, 0.0], [0.0, -1.0]], [2.0, 0.5])),
        ms.Attention(dim=2, beta=9.0, bias=ms.ALiBi(0.1)),
        ms.Attention(dim=3, beta=9.0),
    ],
    ids=["plain", "window", "frozen", "bias", "sphere"],
)
def test_members_take_over_nothing_from_one_another(model):
    """Memory that one member leaves behind serves the next: every bit must be as if it came first, whoever came before."""
    times = np.array([0.0, 1.0, 1e3, 1e6])
    save, accuracy = Save(1e6, times), Accuracy(1e-6, 1e-8, 1000)
    solve_one = rodas.member_solver(model, save, accuracy)
    for tokens, seed in ((12, 0), (12, 1), (7, 2), (12, 0)):
        start = variants.tokens(np.random.default_rng(seed), tokens, model.dim)
        fresh = rodas.solve(model, start, save, accuracy)
        again = solve_one(start)
        assert (again.status, again.statistics) == (fresh.status, fresh.statistics)
        np.testing.assert_array_equal(again.states, fresh.states)


# --------------------------------------------------------------------------------------------------------- spirals


def spiral(dim: int) -> tuple[ms.Attention, np.ndarray]:
    """A token before two frozen ones, and a rest of it whose modes grow while they turn: lambda = 0.0384 +- 0.867 i.

    Behind the third dimension nothing pulls, so that in all dimensions the same happens.
    """
    rng = np.random.default_rng(2751)
    query, key = rng.normal(size=(2, 3, 3))
    frozen = rng.normal(size=(2, 3))
    frozen /= np.linalg.norm(frozen, axis=1)[:, None]

    def wide(matrix: np.ndarray) -> np.ndarray:
        result = np.zeros((dim, dim))
        result[:3, :3] = matrix
        return result

    value = np.diag([1.0, 1.0, -0.5, *[-1.0] * (dim - 3)])
    model = ms.Attention(
        dim=dim,
        beta=3.0,
        query=wide(query),
        key=wide(key),
        value=value,
        frozen=ms.Frozen(np.pad(frozen, ((0, 0), (0, dim - 3)))),
    )
    rest = np.zeros((1, dim))
    rest[0, :3] = 0.03319636, 0.75819473, -0.65118258
    return model, rest / np.linalg.norm(rest)


@pytest.mark.parametrize("dim", [3, 5])
def test_an_unstable_spiral_is_left(dim):
    """An L-stable step over many turns damps them, however fast they grow: the token stayed where it cannot, with status success."""
    model, rest = spiral(dim)
    start = rest + np.array([0.01, *[0.0] * (dim - 1)])
    start /= np.linalg.norm(start)
    times = [10.0, 30.0, 60.0]
    run = ms.simulate(model, start, times=times, method="rodas", rtol=1e-8, progress=False)
    truth = solve_ivp(
        lambda t, x: ms.velocity(model, x[None] / np.linalg.norm(x), engine="reference")[0],
        (0.0, times[-1]),
        start[0],
        t_eval=times,
        method="DOP853",
        rtol=1e-12,
        atol=1e-12,
    )
    np.testing.assert_allclose(run.states[:, 0], truth.y.T, atol=2e-5)
    # Later it goes round: the rest is far away for good, and no step is as long as a turn.
    late = ms.simulate(model, start, times=np.linspace(400.0, 600.0, 101), method="rodas", progress=False)
    assert late.status == "success"
    assert np.linalg.norm(late.states[:, 0] - rest, axis=1).min() > 0.05
    with pytest.warns(ms.errors.StoppedEarlyWarning):
        far = ms.simulate(model, start, until=1e9, method="rodas", max_steps=3000, progress=False)
    assert far.status == "max_steps"
