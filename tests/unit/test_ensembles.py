"""Ensembles: seeds, batches, threads, failures, interruption, statistics."""

import functools
import itertools
import os
import signal
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

import metastable as ms
from metastable import errors
from metastable.ensembles import problem as problems
from metastable.integrate import layers, methods
from metastable.integrate.solution import one_by_one

MODEL = ms.Attention(dim=2, beta=16.0)
TIMES = [0.0, 1.0, 5.0]


def run(**options):
    base = {"tokens": 12, "members": 9, "times": TIMES, "seed": 4, "observe": {"cosine": ms.observe.mean_cosine()}}
    model = options.pop("model", MODEL)
    return ms.ensemble(model, **(base | options))


@pytest.mark.parametrize("interaction", ["direct", "series"])
def test_bits_do_not_depend_on_threads_batches_or_company(interaction):
    one = run(observe=None, interaction=interaction, threads=1)
    two = run(observe=None, interaction=interaction, threads=2)
    small = run(observe=None, interaction=interaction, memory=8 * 3 * 12 * 2 * 2)
    few = run(observe=None, interaction=interaction, members=4)
    np.testing.assert_array_equal(one.x.values, two.x.values)
    np.testing.assert_array_equal(one.x.values, small.x.values)
    np.testing.assert_array_equal(one.x.values[:4], few.x.values)


def test_members_equal_single_runs():
    """Same start, same numbers as `simulate` to the tolerance; starts are the spawned children of the seed."""
    stats = run(observe=None, rtol=1e-9, atol=1e-12)
    children = np.random.SeedSequence(4).spawn(9)
    for member in (0, 5):
        start = ms.sphere.uniform(12, dim=2, seed=np.random.default_rng(children[member]))
        np.testing.assert_allclose(stats.x[member, 0], start, atol=1e-12)
        single = ms.simulate(MODEL, start, times=TIMES, engine="reference", rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(stats.x[member], single.states, atol=1e-6)


def test_every_engine_and_method_has_the_same_dataset():
    explicit = run()
    for options in ({"engine": "reference"}, {"method": "rodas"}, {"method": "layers", "step": 0.01}):
        other = run(**options)
        assert other.cosine.dims == explicit.cosine.dims == ("member", "time")
        assert (other.status == "success").all()
        np.testing.assert_allclose(other.cosine, explicit.cosine, atol=0.02)


def test_noise_is_reproducible_and_differs_between_members():
    noisy = MODEL.replace(noise=0.3)
    first = run(model=noisy, step=0.05, observe=None)
    second = run(model=noisy, step=0.05, observe=None, memory=1)
    np.testing.assert_array_equal(first.x.values, second.x.values)
    assert first.attrs["method"] == "sde"
    np.testing.assert_array_equal(
        run(model=noisy, observe=None).x.values, run(model=noisy, step=0.01, observe=None).x.values
    )


def test_starts_of_ones_own():
    def arc(generator):
        return ms.sphere.from_angle(generator.uniform(0, 0.1, 12))

    stats = run(start=arc)
    assert float(stats.cosine.isel(time=0).min()) > 0.99
    with pytest.raises(errors.InvalidInputError, match="tokens=12"):
        run(start=lambda generator: arc(generator)[:5])


@dataclass(frozen=True)
class Fragile:
    """An observable that fails for some members only."""

    dims = ()

    def measure(self, states, *, start, model, times):
        if len(self_seen) == 3:
            self_seen.append(0)
            raise ValueError("this member is odd")
        self_seen.append(0)
        return np.ones(len(states))


self_seen: list[int] = []


def test_a_failed_member_stops_nobody():
    self_seen.clear()
    stats = run(observe={"fragile": Fragile()})
    assert list(stats.status.values) == ["success"] * 3 + ["failed"] + ["success"] * 5
    assert np.isnan(stats.fragile[3]).all()
    assert (stats.fragile.drop_sel(member=3) == 1).all()


def test_members_that_do_not_finish_keep_what_they_reached():
    with pytest.warns(errors.StoppedEarlyWarning, match="9 of 9 members stopped early"):
        stats = run(max_steps=3, times=[0.0, 1e-3, 50.0])
    assert stats.attrs["status"] == "incomplete"
    assert (stats.status == "max_steps").all()
    assert np.isfinite(stats.cosine[:, 0]).all()
    assert np.isnan(stats.cosine[:, 2]).all()


@pytest.mark.parametrize("overlap", [False, True])
def test_interruption_returns_what_is_finished(monkeypatch, overlap):
    monkeypatch.setattr(problems.Problem, "overlap", overlap)
    calls = []

    def interrupted(plan, starts, first, report):
        calls.append(first)
        if len(calls) == 3:
            raise KeyboardInterrupt
        times = plan.save.times
        return one_by_one(starts, 3, report, lambda x, _: layers.solve((MODEL,) * 10, x, 0.5, times=times), first)

    monkeypatch.setitem(methods.METHODS, "tsit5", methods.METHODS["tsit5"]._replace(solve_members=interrupted))
    with pytest.warns(UserWarning, match="4 of 9 members"):
        stats = run(memory=8 * 3 * 12 * 2 * (4 if overlap else 2), interaction="direct")
    assert stats.attrs["members"] == 4
    assert stats.attrs["status"] == "interrupted"
    assert list(stats.member.values) == [0, 1, 2, 3]


def test_interruption_before_the_first_member_returns_none(monkeypatch):
    """It was a ValueError about shapes."""

    def interrupted(plan, starts, first, report):
        raise KeyboardInterrupt

    monkeypatch.setitem(methods.METHODS, "tsit5", methods.METHODS["tsit5"]._replace(solve_members=interrupted))
    with pytest.warns(UserWarning, match="0 of 9 members"):
        stats = run(interaction="direct")
    assert stats.attrs["status"] == "interrupted"
    assert stats.sizes["member"] == 0
    assert stats.cosine.dims == ("member", "time")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals for one thread")
@pytest.mark.parametrize("overlap", [False, True])
def test_interruption_while_members_are_measured_leaves_the_rest_alone(monkeypatch, overlap):
    """Before, Ctrl-C waited for a whole batch, here 2 s."""
    monkeypatch.setattr(problems.Problem, "overlap", overlap)
    calls = []

    def slow(x):
        calls.append(0)
        if len(calls) == 10:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.01)
        return x[0, 0]

    options = {"tokens": 3, "members": 200, "times": [1.0], "seed": 0, "progress": False}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background ignores it
    try:
        with pytest.warns(UserWarning, match="of 200 members"):
            stats = ms.ensemble(MODEL, observe={"slow": slow}, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    assert stats.attrs["status"] == "interrupted"
    assert 8 <= stats.sizes["member"] <= len(calls) < 200
    whole = ms.ensemble(MODEL, observe={"slow": lambda x: x[0, 0]}, **options)
    np.testing.assert_array_equal(stats.slow, whole.slow[: stats.sizes["member"]])


def test_measuring_beside_the_simulation_changes_nothing(monkeypatch):
    memory = 8 * 3 * 12 * 2 * 2
    results = []
    for overlap in (False, True):
        monkeypatch.setattr(problems.Problem, "overlap", overlap)
        results.append(run(memory=memory))
    assert results[0].identical(results[1])


def test_auto_stays_explicit_where_the_implicit_method_ends():
    stats = run(model=ms.Attention(dim=2, beta=1e6), times=[1e4], tokens=3, members=2)
    assert stats.attrs["method"] == "tsit5"


def test_statistics_over_members():
    with pytest.raises(errors.InvalidInputError, match="dataset"):
        ms.summarize("stats")
    stats = run()
    summary = ms.summarize(stats, quantiles=[0.25, 0.75])
    np.testing.assert_allclose(summary.cosine_mean, stats.cosine.values.mean(axis=0))
    np.testing.assert_allclose(summary.cosine_error, stats.cosine.values.std(axis=0, ddof=1) / 3)
    np.testing.assert_allclose(summary.cosine_quantile, np.quantile(stats.cosine.values, [0.25, 0.75], axis=0))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"members": 0}, "members"),
        ({"tokens": 0}, "tokens"),
        ({"times": [3.0, 1.0]}, "increase"),
        ({"times": [0.0]}, "only 0"),
        ({"seed": -1}, "seed"),
        ({"seed": None}, "seed"),
        ({"observe": {}}, "observe"),
        ({"observe": {"a": 3}}, "observable"),
        ({"observe": {"status": ms.observe.mean_cosine()}}, "taken"),
        ({"start": "normal"}, "uniform"),
        ({"start": np.eye(2)}, "lambda generator"),
        ({"method": "euler"}, "tsit5"),
        ({"method": "layers"}, "step"),
        ({"step": 0.1}, "step"),
        ({"method": "layers", "step": 0.3}, "multiples"),
        ({"model": MODEL.replace(noise=0.1), "method": "tsit5"}, "sde"),
        ({"engine": "gpu"}, "cuda"),
        ({"model": "attention"}, "Attention"),
    ],
)
def test_bad_calls_are_refused(options, word):
    with pytest.raises(errors.MetastableError, match=word):
        run(**options)


# ------------------------------------------------------------------------------- functions that fail for some members


def failing_in(bad, members=5, what="observe"):
    """An ensemble whose start, model or observable fails for the members `bad` only."""
    model, calls = ms.Attention(dim=2, beta=2.0), itertools.count()
    drawn = [
        float(np.random.default_rng(np.random.SeedSequence(3, spawn_key=(i, *k))).random())
        for k in ((), (1,))
        for i in range(members)
    ]
    starts, models = ({drawn[j * members + i] for i in bad} for j in (0, 1))

    def start(generator):
        if generator.random() in starts:
            raise RuntimeError("this one not")
        return ms.sphere.uniform(4, dim=2, seed=generator)

    def draw(generator):
        if generator.random() in models:
            raise RuntimeError("this one not")
        return model

    def look(x):
        if next(calls) in bad:
            raise RuntimeError("this one not")
        return x[0, 0]

    return ms.ensemble(
        draw if what == "model" else model,
        tokens=4,
        members=members,
        times=[1.0],
        seed=3,
        start=start if what == "start" else "uniform",
        observe={"f": look if what == "observe" else (lambda x: x[0, 0])},
        threads=1,
        progress=False,
    )


@pytest.mark.parametrize("what", ["start", "model", "observe"])
@pytest.mark.parametrize("bad", [{0}, {3}, {0, 1, 4}])
def test_every_member_may_fail_alike(what, bad):
    with pytest.warns(errors.StoppedEarlyWarning, match="this one not"):
        stats = failing_in(bad, what=what)
    assert set(np.flatnonzero(stats.status.values == "failed")) == bad
    assert set(np.flatnonzero(np.isnan(stats.f.values[:, 0]))) == bad


@pytest.mark.parametrize("what", ["start", "model", "observe"])
def test_where_all_members_fail_the_call_does(what):
    with pytest.raises(errors.OwnFunctionError, match="this one not"):
        failing_in(set(range(5)), what=what)


@pytest.mark.parametrize("dims", [("time",), ("member",), ("k", "k")])
def test_dims_that_are_taken_are_refused(dims):
    with pytest.raises(errors.InvalidInputError, match="dims"):
        ms.observe.own(lambda x: x, dims=dims)


def test_one_dimension_has_one_size():
    observe = {
        "a": ms.observe.own(lambda x: x[:, 0], dims=("k",)),
        "b": ms.observe.own(lambda x: x.ravel(), dims=("k",)),
    }
    with pytest.raises(errors.ObservableError, match="'k' has size 6 in the observable 'b' and 3 in 'a'"):
        ms.ensemble(ms.Attention(dim=2, beta=1.0), tokens=3, members=2, times=[1.0], seed=0, observe=observe)


def test_an_argument_that_must_be_named_is_asked_for():
    def above(x, *, level):
        return (x[:, 0] > level).sum()

    with pytest.raises(errors.InvalidInputError, match="needs level by name"):
        ms.observe.own(above)
    assert ms.observe.own(functools.partial(above, level=0.1)).name == "above"


def test_a_start_that_lacks_an_argument_is_refused_before_any_work():
    def chain(generator, *, correlation):
        return ms.starts.chain(10, 2, generator, correlation=correlation)

    with pytest.raises(errors.InvalidInputError, match="'chain' needs correlation by name"):
        run(start=chain)
