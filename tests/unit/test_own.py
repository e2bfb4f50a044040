"""Observables, starts and models of one's own: plain functions."""

import functools
import itertools
import warnings

import numpy as np
import pytest

import metastable as ms
from metastable.errors import InvalidInputError, ModelError, ObservableError, OwnFunctionError, StoppedEarlyWarning

MODEL = ms.Attention(dim=2, beta=4.0)
TIMES = [0.0, 1.0, 4.0]
RUN = ms.simulate(MODEL, ms.sphere.uniform(6, dim=2, seed=0), times=TIMES, engine="reference")

COUNT = itertools.count(1)


def height(x):
    """One number of a state."""
    return x[:, 1].max()


def spread(states, times, model):
    """A number per time of all states."""
    assert states.shape[0] == times.size
    return np.linalg.norm(states - states[:, :1], axis=2).max(axis=1) * model.beta


def ensemble(**options):
    settings = {"tokens": 6, "members": 4, "times": TIMES, "seed": 0, "engine": "reference", "progress": False}
    model = options.pop("model", MODEL)
    return ms.ensemble(model, **(settings | options))


# -------------------------------------------------------------------------------------------------- observables


def test_functions_of_a_state():
    found = RUN.observe(height)
    assert found.name == "height"
    assert found.dims == ("time",)
    np.testing.assert_array_equal(found, [x[:, 1].max() for x in RUN.states])
    matrix = RUN.observe(lambda x: x @ x.T)
    assert matrix.shape == (3, 6, 6)
    assert matrix.dims[0] == "time"


def test_functions_of_all_states():
    found = RUN.observe(spread)
    assert found.dims == ("time",)
    np.testing.assert_array_equal(found, spread(RUN.states, RUN.times, MODEL))


def test_dimensions_can_be_named():
    found = RUN.observe(ms.observe.own(lambda x: x[:, 0], dims=("token",), name="east"))
    assert found.dims == ("time", "token")
    assert found.name == "east"
    assert RUN.observe(functools.partial(np.quantile, q=[0.1, 0.9])).dims == ("time", "quantile_0")


def test_ensembles_measure_functions():
    stats = ensemble(observe={"top": height, "wide": spread, "gram": lambda x: x @ x.T, "states": ms.observe.state()})
    assert stats.top.dims == stats.wide.dims == ("member", "time")
    assert stats.gram.dims == ("member", "time", "gram_0", "gram_1")
    np.testing.assert_array_equal(stats.top, stats.states[..., 1].max("token"))
    assert "height" in stats.attrs["observe"]
    assert ensemble(observe=height).height.dims == ("member", "time")


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (lambda states, times, model: np.ones(1), r"\(1,\) for 3 times"),
        (lambda states, times, model: 3.0, r"\(\) for 3 times"),
        (lambda states, times, model: np.ones((6, 3)), r"\(6, 3\) for 3 times"),
        (lambda states, times, model: "high", "real numbers"),
        (lambda x: None, "returned None"),
        (lambda x: np.ones(next(COUNT)), "different shapes"),
    ],
)
def test_what_is_not_one_entry_per_time_is_refused_by_name(function, word):
    """It used to be broadcast over time, or to make every member 'failed' with the advice to raise max_steps."""
    with pytest.raises(ObservableError, match=word) as caught:
        ensemble(observe={"peculiar": function})
    assert "'peculiar'" in str(caught.value)
    with pytest.raises(ObservableError, match=word):
        RUN.observe(function)


class Transposed:
    """An observable in the form of a class, with time last."""

    dims = ("token",)

    def measure(self, states, *, start, model, times):
        return states[:, :, 0].T


class Undeclared(Transposed):
    """The same with an axis that it does not declare."""

    dims = ()

    def measure(self, states, *, start, model, times):
        return states[:, :, 0]


def test_classes_are_checked_like_functions():
    for odd in (Transposed(), Undeclared()):
        with pytest.raises(ObservableError, match="'odd'"):
            ensemble(observe={"odd": odd})
        with pytest.raises(ObservableError, match=type(odd).__name__):
            RUN.observe(odd)


def test_shapes_must_agree_between_members():
    with pytest.raises(ObservableError, match="another"):
        ensemble(observe={"ragged": lambda states, times, model: np.ones((len(states), int(states[0, 0, 0] > 0) + 1))})


def test_why_a_member_failed_is_said():
    def moody(states, times, model):
        if states[0, 0, 0] < 0:
            raise ValueError("west of here")
        return np.zeros(len(states))

    with pytest.warns(StoppedEarlyWarning, match="west of here") as caught:
        stats = ensemble(members=8, observe={"moody": moody})
    assert "max_steps" not in str(caught[0].message)
    assert set(stats.status.values) == {"success", "failed"}


@pytest.mark.parametrize(
    "wrong",
    [ms.observe.clusters, ms.observe.distance_to, ms.observe.Observable, 3, "clusters", lambda: 1, lambda x, y: 1],
)
def test_what_is_no_observable_is_refused(wrong):
    with pytest.raises(InvalidInputError, match="observ"):
        RUN.observe(wrong)


# ------------------------------------------------------------------------------------------------------- starts


def test_starts_of_ones_own():
    def sized(generator, tokens, dim):
        return ms.starts.von_mises_fisher(tokens, dim, generator, concentration=1e4)

    stats = ensemble(start=sized, observe={"cosine": ms.observe.mean_cosine()})
    assert float(stats.cosine.isel(time=0).min()) > 0.99
    assert stats.attrs["start"] == "sized"
    plain = ensemble(start=lambda generator: sized(generator, 6, 2), observe={"cosine": ms.observe.mean_cosine()})
    np.testing.assert_array_equal(stats.cosine, plain.cosine)
    with pytest.raises(InvalidInputError, match="generator, tokens, dim"):
        ensemble(start=lambda generator, tokens: None)


# ------------------------------------------------------------------------------------------------------- models


def gaussian(generator):
    """A random value matrix."""
    return ms.Attention(dim=2, beta=4.0, value=generator.normal(size=(2, 2)))


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_model_for_each_member(engine):
    observe = {
        "x": ms.observe.state(),
        "trace": lambda states, times, model: np.full(len(times), np.trace(model.value)),
    }
    stats = ensemble(model=gaussian, observe=observe, engine=engine)
    one = ensemble(engine=engine)
    np.testing.assert_array_equal(stats.x[:, 0], one.x[:, 0])  # the starts are those of any ensemble with this seed
    for member in range(4):
        generator = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(member, 1)))
        model = gaussian(generator)
        np.testing.assert_array_equal(stats.trace[member], np.trace(model.value))
        alone = ms.simulate(model, one.x[member, 0].values, times=TIMES, engine=engine)
        np.testing.assert_allclose(stats.x[member], alone.states, atol=1e-10)
    assert '"drawn"' in stats.attrs["model"]


def test_random_models_with_noise_and_layers():
    noisy = ensemble(model=lambda generator: gaussian(generator).replace(noise=0.1))
    still = ensemble(model=gaussian, method="layers", step=0.5)
    assert noisy.attrs["method"] == "sde"
    assert still.attrs["method"] == "layers"
    assert (noisy.status == "success").all()
    assert (still.status == "success").all()


def test_bad_random_models_are_refused():
    with pytest.raises(InvalidInputError, match="return an Attention"):
        ensemble(model=lambda generator: 3)
    with pytest.raises(InvalidInputError, match="model must be"):
        ensemble(model=ms.Attention)
    drawn = iter(range(2, 9))
    with pytest.raises(ModelError, match="same dimension"):
        ensemble(model=lambda generator: ms.Attention(dim=next(drawn), beta=1.0))


# ---------------------------------------------------------------------------------------------- arrays of a run


@pytest.mark.parametrize("name", ["final", "states", "start", "times", "radius"])
def test_arrays_of_a_run_cannot_be_written_to(name, tmp_path):
    """`y = run.final; y[:] = 0; run.save(...)` stored zeros under a valid checksum."""
    run = ms.simulate(MODEL.replace(norm=ms.PreLN()), RUN.start, until=1.0)
    run.save(tmp_path / "run.zarr")
    for each in (run, ms.load(tmp_path / "run.zarr"), run.extend(2.0)):
        array = getattr(each, name)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError, match="read-only"):
            each.dataset["x"].values[...] = 0
    assert (2 * run.dataset["x"]).values.flags.writeable


def test_a_run_keeps_nothing_of_the_callers_arrays():
    start = ms.sphere.uniform(4, dim=2, seed=0)
    run = ms.simulate(MODEL, start, until=1.0, engine="reference")
    before = run.start.copy()
    start[:] = 0
    np.testing.assert_array_equal(run.start, before)


def test_analysis_takes_read_only_arrays():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ms.cluster_labels(RUN.final, radius=0.1)
        ms.renyi_centers(RUN.start, 0.3)
        RUN.observe(ms.observe.consumed(delta=0.5))
        RUN.observe(ms.observe.clusters(radius=0.1))
        ms.merge_tree(RUN)
        ms.classify(RUN)
        ms.velocity(MODEL, RUN.final, engine="cpu")
        ms.simulate(MODEL, RUN.final, until=1.0)


def test_an_observable_cannot_change_what_the_next_one_sees():
    """Members share the array that is measured: whoever writes to it fails, and nobody else is wrong."""

    def spoil(states, times, model):
        states[:] = 0.0
        return np.ones(len(times))

    options = {"tokens": 5, "members": 2, "times": [1.0], "seed": 0, "engine": "reference", "progress": False}
    model = ms.Attention(dim=2, beta=4.0)
    with pytest.raises(OwnFunctionError, match=r"'spoil'.*read-only"):
        ms.simulate(model, ms.sphere.uniform(5, 2, seed=0), times=[1.0]).observe(spoil)
    with pytest.raises(OwnFunctionError, match=r"'spoil'.*read-only"):
        ms.ensemble(model, observe={"spoil": spoil, "cosine": ms.observe.mean_cosine()}, **options)


@pytest.mark.parametrize("name", ["final", "states", "start", "times", "radius"])
def test_the_flag_of_an_array_cannot_be_set_back(name, tmp_path):
    """`run.final.setflags(write=True)` opened what is stored again."""
    run = ms.simulate(MODEL.replace(norm=ms.PreLN()), RUN.start, until=1.0)
    run.save(tmp_path / "run.zarr")
    for each in (run, ms.load(tmp_path / "run.zarr"), run.extend(2.0)):
        for array in (getattr(each, name), each.dataset["x"].values, each.dataset["time"].values, each.dense.start):
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.setflags(write=True)


def test_the_matrices_of_a_model_cannot_be_opened():
    model = ms.Attention(dim=2, beta=1.0, value=[[1.0, 2.0], [0.0, 1.0]], mask=ms.Mask(np.tri(3, dtype=bool)))
    for array in (model.value, model.mask.allowed):
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)


# ------------------------------------------------------------------------------------- exceptions of one's own code


def fail(*arguments):
    raise KeyError("no such word")


class Failing:
    dims = ()

    def measure(self, states, *, start, model, times):
        raise IndexError("past the end")


@pytest.mark.parametrize(
    ("observable", "named", "cause"),
    [
        (lambda x: fail(x), "<lambda>", KeyError),
        (lambda states, times, model: fail(states), "<lambda>", KeyError),
        (Failing(), "Failing", IndexError),
    ],
)
def test_what_an_observable_raises_is_named(observable, named, cause):
    with pytest.raises(OwnFunctionError, match=named) as caught:
        RUN.observe(observable)
    assert type(caught.value.__cause__) is cause
    with pytest.raises(OwnFunctionError, match=r"'mine'.*for member 0 of seed 0") as caught:
        ensemble(observe={"mine": observable})
    assert type(caught.value.__cause__) is cause


def test_our_own_observables_keep_their_errors():
    with pytest.raises(InvalidInputError, match="subspace"):
        RUN.observe(ms.observe.distance_to(np.zeros((2, 1))))


def test_what_is_no_array_is_refused_by_name():
    with pytest.raises(ObservableError, match="'<lambda>' returned no array"):
        RUN.observe(lambda x: [[1.0], [1.0, 2.0]])


def moody(generator):
    """A start that cannot be drawn for some members."""
    x = ms.sphere.uniform(4, dim=2, seed=generator)
    return x if x[0, 0] > 0 else fail()


def moody_model(generator):
    return MODEL if generator.random() < 0.5 else fail()


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("memory", [1, 2**20])
def test_a_start_that_raises_fails_its_member_and_nobody_else(engine, memory):
    options = {"tokens": 4, "members": 9, "times": [0.0, 1.0], "seed": 0, "engine": engine, "memory": memory}
    observe = {"cosine": ms.observe.mean_cosine()}
    whole = ms.ensemble(MODEL, observe=observe, **options)
    with pytest.warns(StoppedEarlyWarning, match=r"drawn.*the start 'moody' raised KeyError for member \d of seed 0"):
        stats = ms.ensemble(MODEL, observe=observe, start=moody, **options)
    failed = stats.status.values == "failed"
    assert 0 < failed.sum() < 9
    assert stats.attrs["status"] == "incomplete"
    assert np.isnan(stats.cosine.values[failed]).all()
    np.testing.assert_array_equal(stats.cosine.values[~failed], whole.cosine.values[~failed])
    for member in range(9):  # exactly those whose start is in the west
        generator = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(member,)))
        assert failed[member] == (ms.sphere.uniform(4, dim=2, seed=generator)[0, 0] <= 0)


def test_a_model_that_raises_fails_its_member():
    with pytest.warns(StoppedEarlyWarning, match="the model 'moody_model' raised KeyError for member"):
        stats = ensemble(model=moody_model, members=8, observe={"cosine": ms.observe.mean_cosine()})
    assert set(stats.status.values) == {"success", "failed"}
    assert np.isnan(stats.cosine.values[stats.status.values == "failed"]).all()


@pytest.mark.parametrize(("argument", "word"), [("start", "the start 'function'"), ("model", "the model 'function'")])
def test_what_has_never_worked_is_an_error(argument, word):
    def function(generator):
        return fail()

    with pytest.raises(OwnFunctionError, match=f"{word} raised KeyError for member 0 of seed 0") as caught:
        ensemble(**{argument: function})
    assert isinstance(caught.value.__cause__, KeyError)


# ----------------------------------------------------------------------------------------------------- progress


@pytest.mark.parametrize("wrong", ["x", "", 2, 0.5, [True]])
def test_every_verb_refuses_an_odd_progress(wrong, tmp_path):
    """`run.extend(progress="x")` was taken for True."""
    sweep = ms.Sweep(
        tokens=4, members=1, times=[0.0, 1.0], seed=0, model={"dim": 2}, grid={"beta": [1.0]},
        observe={"cosine": {"kind": "mean_cosine"}},
    )  # fmt: skip
    run = ms.simulate(MODEL, RUN.start, until=1.0, engine="reference")
    calls = (
        lambda: ms.simulate(MODEL, RUN.start, until=1.0, progress=wrong),
        lambda: ms.simulate(ms.Schedule(((0.0, MODEL),)), RUN.start, until=1.0, progress=wrong),
        lambda: run.extend(2.0, progress=wrong),
        lambda: run.append(RUN.start, progress=wrong),
        lambda: ensemble(progress=wrong),
        lambda: run.animate(tmp_path / "film.gif", progress=wrong),
        lambda: ms.sweep.run(sweep, tmp_path / "sweep", workers=0, progress=wrong),
    )
    for call in calls:
        with pytest.raises(InvalidInputError, match="progress must be True, False or None"):
            call()
    assert not list(tmp_path.iterdir())  # refused before any work


def test_what_a_masked_array_hides_is_not_measured():
    """Missing entries are NaN (before, the numbers behind the mask, and 0 for a mean of nothing)."""
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(4, dim=2, seed=0), times=[0.0, 1.0])

    def right(x):
        return np.ma.masked_array(x[:, 0], x[:, 0] < 0)

    wanted = np.where(run.states[:, :, 0] < 0, np.nan, run.states[:, :, 0])
    np.testing.assert_array_equal(run.observe(right), wanted)
    np.testing.assert_array_equal(
        run.observe(lambda states, times, model: right(states[0])[None].repeat(2, 0))[0], wanted[0]
    )
    assert np.isnan(run.observe(lambda x: np.ma.masked_array([1.0], [True]).mean())).all()
    stats = ms.ensemble(run.model, tokens=4, members=2, times=[1.0], seed=0, observe={"none": lambda x: np.ma.masked})
    assert np.isnan(stats.none).all()


def test_tokens_that_a_masked_array_hides_are_refused():
    hidden = np.ma.masked_array(ms.sphere.uniform(3, dim=2, seed=0), [[True, True], [False, False], [False, False]])
    model = ms.Attention(dim=2, beta=4.0)
    uses = [
        lambda: ms.simulate(model, hidden, until=1.0),
        lambda: ms.velocity(model, hidden),
        lambda: ms.cluster_labels(hidden, 0.1),
        lambda: ms.predict_merges(hidden, model),
        lambda: model.replace(value=hidden[:2]),
        lambda: ms.simulate(model, hidden.data, times=np.ma.masked_array([1.0, 2.0], [False, True])),
        lambda: ms.ensemble(model, tokens=3, members=1, times=[1.0], seed=0, start=lambda generator: hidden),
        lambda: ms.Mask(np.ma.masked_array(np.eye(2, dtype=bool), np.eye(2))),
        lambda: ms.checkpoints.from_states(hidden[None]),
    ]
    for use in uses:
        with pytest.raises(InvalidInputError, match=r"masked array with \d missing"):
            use()
    assert ms.simulate(model, np.ma.masked_array(hidden.data), until=1.0).status == "success"  # nothing is hidden


@pytest.mark.parametrize("name", [None, "", " ", "..", "a/b", "a\\b", 3])
def test_names_that_no_store_takes_are_refused_before_work(name):
    """Before, the ensemble was simulated, and `save_ensemble` refused it."""
    with pytest.raises(InvalidInputError, match="cannot be the name of a result"):
        ms.ensemble(
            ms.Attention(dim=2, beta=4.0), tokens=3, members=1, times=[1.0], seed=0, observe={name: lambda x: 1.0}
        )


def test_whole_numbers_that_an_ensemble_would_round_are_refused():
    model = ms.Attention(dim=2, beta=4.0)
    with pytest.raises(ObservableError, match=r"'code' returned whole numbers beyond 2\*\*53"):
        ms.ensemble(model, tokens=3, members=1, times=[1.0], seed=0, observe={"code": lambda x: 2**53 + 1})
    stats = ms.ensemble(model, tokens=3, members=1, times=[1.0], seed=0, observe={"code": lambda x: -(2**53)})
    assert stats.code.item() == -(2**53)


@pytest.mark.parametrize(
    "observe",
    [
        {"quantile": ms.observe.clusters(), "q": ms.observe.cosine_quantiles()},
        {"angle": ms.observe.clusters(), "d": ms.observe.density(8)},
        {"token": ms.observe.clusters(), "s": ms.observe.state()},
        {"a": lambda x: x[:, 0], "a_0": lambda x: 1.0},
        {"a": ms.observe.own(lambda x: x[:, 0], dims=("a",))},
    ],
    ids=lambda observe: "+".join(observe),
)
def test_an_observable_is_not_called_like_a_dimension(observe):
    """Before, all members were simulated first and then lost in a ValueError; or the result was a coordinate, which `summarize`,
    sweeps and pictures pass over."""
    with pytest.raises(ObservableError, match="name of an observable and of a dimension"):
        ms.ensemble(ms.Attention(dim=2, beta=4.0), tokens=4, members=2, times=[0.0, 1.0], seed=0, observe=observe)


@pytest.mark.parametrize(
    "sampler", [ms.sphere.uniform, functools.partial(ms.starts.von_mises_fisher, concentration=3.0)]
)
def test_samplers_that_take_a_seed_are_told_how_to_be_a_start(sampler):
    with pytest.raises(InvalidInputError, match="lambda generator, tokens, dim"):
        ms.ensemble(MODEL, tokens=5, members=2, times=[1.0], seed=0, start=sampler)
