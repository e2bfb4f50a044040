"""`Run.extend` against one long run: bit for bit, to rounding (the same steps), or to the tolerance, as its docstring says."""

import json
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

import metastable as ms
from metastable.dataset import save
from metastable.errors import (
    InvalidInputError,
    StoppedEarlyWarning,
    StoreExistsError,
    StoreLockedError,
    TimeError,
    UnsupportedError,
)
from metastable.stores import folders

NORMS = (ms.PostLN(), ms.PreLN(), ms.MixLN(7.0), ms.MixLN(15.0), ms.PeriLN(), ms.NGPT(0.6), ms.SqrtScaling())
WITHOUT_RADIUS = (ms.PostLN(), ms.NGPT(0.6), ms.SqrtScaling())
"""The norms that the compiled engine has."""
ROUNDING = 1e-10
"""Where the same steps are made: step sizes, and with them the saved times, differ by rounding errors and what becomes of them."""
AT_REST = 1e-7
"""The same for implicit steps over merges, which stretch rounding errors. At rest their own errors are nothing else, and so are the
lengths of steps: there may be one or two more (libraries of linear algebra round differently from machine to machine)."""
STEPS_AT_REST = 2
SAME_TIMES = 1e-8
"""Relative difference of the times of the same steps. (Some are long because their errors are small, and those err by more.)"""
TOLERANCE = 1e-5
"""Where other steps are made: ten times rtol."""
HALF, END = 10.0, 20.0


def pair(model, until, end, times=None, later=None, n=16, **options):
    """A run that was extended, and the one that is as long from the beginning."""
    start = ms.sphere.uniform(n, dim=model.dim, seed=3)
    short = ms.simulate(model, start, until, times=times, **options)
    whole = None if times is None else [*times, *later]
    further = short.extend(end, times=later)
    if times is not None:
        np.testing.assert_array_equal(further.states[: len(times)], short.states)  # what was kept stays as it is
    return further, ms.simulate(model, start, end, times=whole, **options)


def agree(further, whole, tolerance, joints=(2,)):
    """Same steps, same times, same states and radii, same work; `joints`: which of chosen times are earlier ends."""
    # A step of an earlier run ended there; the longer run has to interpolate.
    chosen = whole.dense is None and whole.method not in ("layers", "sde")
    within = np.where(chosen & np.isin(np.arange(len(whole.times)), joints), TOLERANCE, tolerance)
    assert further.status == whole.status == "success"
    more = STEPS_AT_REST if tolerance == AT_REST else 0
    assert abs(further.stats.accepted - whole.stats.accepted) <= more
    assert abs(further.stats.rejected - whole.stats.rejected) <= more
    if tolerance < AT_REST or whole.dense is None:
        np.testing.assert_allclose(further.times, whole.times, rtol=SAME_TIMES, atol=0)
        assert (np.abs(further.states - whole.states).max(axis=(1, 2)) <= within).all()
    if whole.radius is not None:
        # A radius grows with time.
        assert (np.abs(further.radius / whole.radius - 1.0).max(axis=1) <= np.maximum(within, SAME_TIMES)).all()
    if whole.dense is not None:
        assert abs(len(further.times) - len(whole.times)) <= more
        middle = [*np.linspace(0.0, whole.end, 37), *np.geomspace(0.1, 0.99 * whole.end, 100)]
        np.testing.assert_allclose(further.at(middle), whole.at(middle), rtol=0, atol=tolerance)
    assert further.method == whole.method
    assert further.end == whole.end


def kept(every, until=HALF, end=END):
    return {} if every else {"times": [0.25 * until, 0.5 * until, until], "later": [until + 0.5 * (end - until), end]}


@pytest.mark.parametrize("every", [True, False], ids=["every step", "times"])
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_explicit_on_the_readable_engine(norm, dim, every):
    model = ms.Attention(dim=dim, beta=6.0, norm=norm)
    agree(*pair(model, HALF, END, method="tsit5", engine="reference", **kept(every)), ROUNDING)


@pytest.mark.parametrize("every", [True, False], ids=["every step", "times"])
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("norm", WITHOUT_RADIUS, ids=repr)
def test_explicit_on_the_compiled_engine(norm, dim, every):
    model = ms.Attention(dim=dim, beta=6.0, norm=norm)
    agree(*pair(model, HALF, END, method="tsit5", engine="cpu", **kept(every)), ROUNDING)


@pytest.mark.parametrize("every", [True, False], ids=["every step", "times"])
@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_layers_have_equal_bits(norm, every):
    further, whole = pair(
        ms.Attention(dim=3, beta=6.0, norm=norm), HALF, END, method="layers", step=0.25, **kept(every)
    )
    agree(further, whole, ROUNDING)
    assert np.array_equal(further.states, whole.states)
    assert whole.radius is None or np.array_equal(further.radius, whole.radius)


@pytest.mark.parametrize("every", [True, False], ids=["every step", "times"])
@pytest.mark.parametrize(
    ("norm", "engine"), [(norm, "reference") for norm in NORMS] + [(norm, "cpu") for norm in WITHOUT_RADIUS], ids=repr
)
@pytest.mark.parametrize("dim", [2, 3])
def test_noise_has_equal_bits(norm, dim, engine, every):
    model = ms.Attention(dim=dim, beta=6.0, norm=norm, noise=0.3)
    further, whole = pair(model, 2.0, 4.0, method="sde", step=0.05, seed=4, engine=engine, **kept(every, 2.0, 4.0))
    agree(further, whole, ROUNDING)
    assert np.array_equal(further.states, whole.states)
    assert whole.radius is None or np.array_equal(further.radius, whole.radius)


@pytest.mark.parametrize("every", [True, False], ids=["every step", "times"])
@pytest.mark.parametrize(
    "fields",
    [{"dim": 2}, {"dim": 3}, {"dim": 3, "value": np.diag([1.0, 0.5, -1.0])}, {"dim": 2, "mask": ms.Full()}],
    ids=["circle", "sphere", "value", "full"],
)
def test_implicit(fields, every):
    """The only norm that `rodas` has is PostLN."""
    model = ms.Attention(beta=6.0, **fields)
    agree(*pair(model, 1e3, 1e8, method="rodas", **kept(every, 1e3, 1e8)), AT_REST)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_further_times_leave_the_exact_state_at_the_earlier_end(engine):
    """It was replaced by one that the new step was interpolated for, 2e-7 away."""
    model, start = ms.Attention(dim=3, beta=9.0), ms.sphere.uniform(20, dim=3, seed=0)
    for options in ({"until": 5.0}, {"times": [1.0, 5.0]}, {"times": [1e-6]}):
        run = ms.simulate(model, start, engine=engine, **options)
        for further in (run.extend(times=[6.0, 9.0]), run.extend(9.0, times=[9.0])):
            np.testing.assert_array_equal(further.times[: len(run.times)], run.times)
            np.testing.assert_array_equal(further.states[: len(run.times)], run.states)
            np.testing.assert_allclose(
                further.states[-1], ms.simulate(model, start, times=further.times[-1:]).final, atol=1e-6
            )


@pytest.mark.parametrize("dim", [2, 3])
def test_automatic_long_runs(dim):
    """Beyond what explicit steps reach the choice does not depend on the horizon."""
    further, whole = pair(ms.Attention(dim=dim, beta=6.0), 1e6, 1e8)
    agree(further, whole, AT_REST)
    assert further.method == "tsit5+rodas"
    assert further.notes["segments"][0] == whole.notes["segments"][0]
    assert further.notes["segments"][1]["to"] == 1e8
    steps = [run.notes["segments"][1]["steps"] for run in (further, whole)]
    assert abs(steps[0] - steps[1]) <= STEPS_AT_REST


@pytest.mark.parametrize("dim", [2, 3])
def test_automatic_runs_within_reach_of_explicit_steps(dim):
    """There the choice depends on what is left: other steps, the same tokens."""
    further, whole = pair(ms.Attention(dim=dim, beta=6.0), 3e3, 1e7)
    assert further.end == whole.end == 1e7
    np.testing.assert_allclose(further.final, whole.final, atol=TOLERANCE)
    np.testing.assert_allclose(
        further.at(np.geomspace(1.0, 9e6, 30)), whole.at(np.geomspace(1.0, 9e6, 30)), atol=TOLERANCE
    )
    assert sum(entry["steps"] for entry in further.notes["segments"]) == further.stats.accepted + further.stats.rejected


@pytest.mark.parametrize("dim", [2, 3])
def test_a_short_run_goes_on_implicitly(dim):
    """A horizon of 20 is explicit, one of 1e6 is not: another sequence of steps."""
    further, whole = pair(ms.Attention(dim=dim, beta=6.0), END, 1e6)
    assert further.method == whole.method == "tsit5+rodas"
    np.testing.assert_allclose(further.final, whole.final, atol=TOLERANCE)
    moments = np.geomspace(0.1, 9e5, 20)
    np.testing.assert_allclose(further.at(moments), whole.at(moments), atol=TOLERANCE)
    assert [entry["method"] for entry in further.notes["segments"]] == ["tsit5", "rodas"]
    assert ms.merge_tree(further).count(1e6) == ms.merge_tree(whole).count(1e6)


def test_who_asked_for_explicit_steps_gets_them():
    model, start = ms.Attention(dim=2, beta=6.0), ms.sphere.uniform(8, dim=2, seed=3)
    explicit = ms.simulate(model, start, END, method="tsit5").extend(3e3)
    assert explicit.method == "tsit5"
    implicit = ms.simulate(model, start, END, method="tsit5").extend(3e3, method="rodas")
    assert implicit.method == "tsit5+rodas"
    np.testing.assert_allclose(explicit.final, implicit.final, atol=TOLERANCE)


def test_until_settled():
    model, start = ms.Attention(dim=2, beta=6.0), ms.sphere.uniform(12, dim=2, seed=3)
    run = ms.simulate(model, start, END).extend("settled")
    assert run.status == "success"
    assert run.notes["settled"] == run.end
    np.testing.assert_allclose(run.final, start[[0]].repeat(12, axis=0), atol=1e-9)
    rest = run.extend(10 * run.end)
    assert "settled" not in rest.notes
    np.testing.assert_allclose(rest.final, run.final, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "tsit5", "norm": ms.PreLN()},
        {"method": "tsit5", "engine": "cpu"},
        {"method": "layers", "step": 0.5},
        {"method": "sde", "noise": 0.2, "step": 0.05, "seed": 1},
        {"method": "rodas"},
    ],
    ids=lambda options: options["method"],
)
@pytest.mark.parametrize("every", [True, False], ids=["every step", "times"])
def test_from_a_store(options, every, tmp_path):
    options = dict(options)
    fields = {name: options.pop(name) for name in ("norm", "noise") if name in options}
    model, start = ms.Attention(dim=2, beta=6.0, **fields), ms.sphere.uniform(10, dim=2, seed=3)
    times = None if every else [1.0, HALF]
    run = ms.simulate(model, start, HALF, times=times, **options)
    run.save(tmp_path / "run.zarr")
    loaded = ms.load(tmp_path / "run.zarr").extend(END)
    assert np.array_equal(loaded.states, run.extend(END).states)
    loaded.save(tmp_path / "run.zarr", overwrite=True)
    third = ms.load(tmp_path / "run.zarr").extend(2 * END)
    whole = ms.simulate(model, start, 2 * END, times=None if every else [1.0, HALF, END, 2 * END], **options)
    agree(third, whole, AT_REST if options["method"] == "rodas" else ROUNDING, joints=(1, 2))


@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_stores_of_version_0_1_go_on_from_their_last_state(norm, tmp_path):
    """They do not say where they can be taken up: other steps, but depth and radii are right."""
    model, start = ms.Attention(dim=2, beta=6.0, norm=norm), ms.sphere.uniform(10, dim=2, seed=3)
    run = ms.simulate(model, start, HALF, engine="reference")
    old = run.dataset.drop_vars("resume_state")
    old.attrs = {
        name: value for name, value in run.dataset.attrs.items() if name not in ("resume", "asked", "computed")
    }
    whole = ms.simulate(model, start, END, engine="reference")
    sparse = old.drop_vars([n for n in old.variables if n.startswith("dense")])
    for name, data in (("old.zarr", old), ("sparse.zarr", sparse)):
        further = ms.load(save(data, tmp_path / name)).extend(END)
        np.testing.assert_allclose(further.final, whole.final, atol=TOLERANCE)
        if whole.radius is not None:
            np.testing.assert_allclose(further.radius[-1], whole.radius[-1], rtol=TOLERANCE)


def test_a_run_that_stopped_early_is_finished():
    model, start = ms.Attention(dim=2, beta=6.0, norm=ms.PreLN()), ms.sphere.uniform(10, dim=2, seed=3)
    with pytest.warns(StoppedEarlyWarning):
        early = ms.simulate(model, start, END, max_steps=7)
    assert early.status == "max_steps"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(early.extend(END, max_steps=1000), ms.simulate(model, start, END), ROUNDING)
    with pytest.warns(StoppedEarlyWarning):
        again = early.extend(END)  # as many steps as it was given: seven more
    assert again.stats.accepted + again.stats.rejected == 14


@pytest.mark.parametrize("times", [None, [15.0, END]], ids=["every step", "times"])
def test_a_run_that_got_nowhere_is_begun_again(times):
    """One step was allowed, and it was rejected or kept nothing."""
    model, start = ms.Attention(dim=2, beta=6.0, norm=ms.PreLN()), ms.sphere.uniform(10, dim=2, seed=3)
    with pytest.warns(StoppedEarlyWarning):
        early = ms.simulate(model, start, END, times=times, max_steps=1)
    further = early.extend(END, max_steps=1000)
    whole = ms.simulate(model, start, END)
    np.testing.assert_allclose(further.final, whole.final, atol=AT_REST)
    if times is None:
        agree(
            further, whole, AT_REST
        )  # the error of a first step is made of rounding errors, and so is the length of the second
    else:
        assert further.times.tolist() == [END]


def test_a_run_with_appended_tokens():
    model, start = ms.Attention(dim=2, beta=6.0), ms.sphere.uniform(12, dim=2, seed=3)
    run = ms.simulate(model, start[:8], HALF, engine="reference").append(start[8:]).extend(END)
    whole = ms.simulate(model, start, END, engine="reference")
    moments = np.linspace(0.0, END, 23)
    np.testing.assert_allclose(run.at(moments), whole.at(moments), atol=TOLERANCE)


@pytest.mark.parametrize("dim", [2, 3])
def test_appended_tokens_go_on_implicitly(dim, tmp_path):
    """Who made the steps so far is told, though a run with appended tokens does not say where it can be taken up."""
    model, start = ms.Attention(dim=dim, beta=9.0), ms.sphere.uniform(12, dim=dim, seed=0)
    short = ms.simulate(model, start[:9], 20.0).append(start[9:])
    short.save(tmp_path / "short.zarr")
    for run in (short.extend(1e5), ms.load(tmp_path / "short.zarr").extend(1e5)):
        assert run.method == "tsit5+rodas"
        assert [(entry["method"], entry["to"]) for entry in run.notes["segments"]] == [("tsit5", 20.0), ("rodas", 1e5)]
        assert sum(entry["steps"] for entry in run.notes["segments"]) == run.stats.accepted + run.stats.rejected


def test_every_step_extended_by_times():
    """Steps so far stay, dense output goes."""
    model, start = ms.Attention(dim=2, beta=6.0), ms.sphere.uniform(8, dim=2, seed=3)
    run = ms.simulate(model, start, HALF, method="tsit5")
    further = run.extend(times=[15.0, END])
    assert further.dense is None
    assert further.times[-2:].tolist() == [15.0, END]
    assert further.times[: len(run.times)].tolist() == run.times.tolist()
    np.testing.assert_allclose(further.final, ms.simulate(model, start, END).final, atol=ROUNDING)


def test_chosen_times_extended_without_any_keep_the_end():
    model, start = ms.Attention(dim=2, beta=6.0), ms.sphere.uniform(8, dim=2, seed=3)
    assert ms.simulate(model, start, times=[1.0, HALF]).extend(END).times.tolist() == [1.0, HALF, END]


def test_a_first_step_cut_by_the_end():
    """A horizon shorter than the first step says nothing about it."""
    model = ms.Attention(dim=2, beta=6.0, norm=ms.SqrtScaling())
    agree(*pair(model, 1e-7, END, method="tsit5", engine="reference"), ROUNDING)


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        ({"until": HALF}, TimeError, "later"),
        ({"until": 1.0}, TimeError, "later"),
        ({"times": [5.0, END]}, TimeError, "later"),
        ({}, TimeError, "how far"),
        ({"until": "tomorrow"}, TimeError, "settled"),
        ({"until": END, "method": "layers"}, InvalidInputError, "method"),
        ({"until": END, "max_steps": 0}, InvalidInputError, "max_steps"),
    ],
)
def test_bad_calls_are_refused(call, error, word):
    run = ms.simulate(ms.Attention(dim=2, beta=6.0), ms.sphere.uniform(4, dim=2, seed=3), HALF, engine="reference")
    with pytest.raises(error, match=word):
        run.extend(**call)


def test_what_cannot_go_on_says_so():
    start = ms.sphere.uniform(4, dim=2, seed=3)
    layers = [ms.Attention(dim=2, beta=beta) for beta in (1.0, 2.0)]
    with pytest.raises(UnsupportedError, match=r"\*run.models"):
        ms.simulate(layers, start).extend(3.0)
    fixed = ms.simulate(layers[0], start, 1.0, method="layers", step=0.25)
    with pytest.raises(TimeError, match="multiples"):
        fixed.extend(1.6)
    with pytest.raises(InvalidInputError, match="goes on as it is"):
        fixed.extend(2.0, method="rodas")
    with pytest.raises(UnsupportedError, match="PreLN"):
        ms.simulate(layers[0].replace(norm=ms.PreLN()), start, 1.0).extend(2.0, method="rodas")


def test_a_run_is_no_start():
    """`simulate(model, run)` could mean two things; `simulate(model, run.final)` means one of them, and forgets depth and radii."""
    model, start = ms.Attention(dim=2, beta=6.0, norm=ms.SqrtScaling()), ms.sphere.uniform(4, dim=2, seed=3)
    run = ms.simulate(model, start, HALF)
    with pytest.raises(InvalidInputError, match="extend"):
        ms.simulate(model, run, until=END)


def test_where_it_can_be_taken_up_is_guarded(tmp_path):
    run = ms.simulate(ms.Attention(dim=2, beta=6.0), ms.sphere.uniform(4, dim=2, seed=3), HALF)
    run.save(tmp_path / "run.zarr")
    place = tmp_path / "run.zarr" / "zarr.json"
    whole = json.loads(place.read_text())
    whole["attributes"]["resume"] = whole["attributes"]["resume"].replace('"t"', '"s"')
    place.write_text(json.dumps(whole))
    with pytest.raises(ms.errors.IncompleteStoreError, match="resume"):
        ms.load(tmp_path / "run.zarr")


@pytest.mark.parametrize(
    "options", [{"method": "layers", "step": 1.0}, {"times": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}], ids=str
)
def test_a_part_of_a_run_is_not_extended(options):
    """The whole one goes on from its end: behind a part there would be a hole."""
    model, start = ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(6, dim=2, seed=0)
    run = ms.simulate(model, start, **({"until": 5.0} if "times" not in options else {}), **options)
    part = ms.Run(run.dataset.isel(time=slice(0, 4)))
    with pytest.raises(InvalidInputError, match=r"part of a run: it ends at .* whole run reached t = 5"):
        part.extend(until=9.0)
    assert run.extend(until=9.0).end == 9.0


def test_a_part_in_time_of_a_run_with_dense_output_is_no_run():
    """Its dense output, and all that reads it, would go on beyond the part."""
    model, start = ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(6, dim=2, seed=0)
    run = ms.simulate(model, start, until=5.0)
    for part in (slice(0, 4), slice(2, None), slice(0, 0)):
        with pytest.raises(InvalidInputError, match=r"part in time of a run .* covers t = 0 to 5"):
            ms.Run(run.dataset.isel(time=part))
    more = run.append(ms.sphere.uniform(2, dim=2, seed=1))
    for whole in (run, more, ms.simulate(model, start, until="settled")):
        assert ms.Run(whole.dataset).end == whole.end


def test_some_tokens_of_a_run_are_no_run():
    model, start = ms.Attention(dim=2, beta=4.0, mask=ms.Full()), ms.sphere.uniform(6, dim=2, seed=0)
    run = ms.simulate(model, start, until=4.0, method="layers", step=1.0)
    for part in ({"token": slice(0, 3)}, {"token": slice(2, None)}, {"coord": slice(0, 1)}):
        with pytest.raises(InvalidInputError, match="other tokens or coordinates"):
            ms.Run(run.dataset.isel(part))
    assert ms.Run(run.dataset.isel(time=slice(0, 2))).end == 1.0


# ------------------------------------------------------------------------------------------------- two of them at once


@pytest.fixture
def stored(tmp_path):
    store = tmp_path / "run.zarr"
    ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(6, dim=2, seed=0), until=2.0).save(store)
    return store


@pytest.mark.parametrize("way", [lambda run: run.extend(4.0), lambda run: run.append([[1.0, 0.0]]), lambda run: run])
def test_of_two_that_take_a_store_further_the_first_stays(stored, way):
    """The second replaced it, and what the first had computed was gone."""
    first, second = (way(ms.load(stored)).extend(until) for until in (8.0, 5.0))
    first.save(stored, overwrite=True)
    with pytest.raises(StoreExistsError, match="something else was stored there meanwhile, and was left untouched"):
        second.save(stored, overwrite=True)
    assert ms.load(stored).end == 8.0
    second.save(stored.with_name("second.zarr"))
    assert sorted(item.name for item in stored.parent.iterdir()) == ["run.zarr", "second.zarr"]


def test_a_run_that_was_saved_is_taken_further_there(stored, tmp_path):
    """Again and again, by whoever holds it or a longer one; a run that continues none takes any place when told to."""
    run = ms.load(stored)
    run.extend(4.0).save(stored, overwrite=True)
    longer = run.extend(8.0)
    longer.dataset.attrs["remark"] = "mine"
    for last in (longer, longer, longer.extend(9.0), run, longer, longer.append([[1.0, 0.0]])):
        last.save(stored, overwrite=True)
        assert ms.load(stored).end == last.end
    ms.load(stored).extend(30.0).save(stored, overwrite=True)
    with pytest.raises(StoreExistsError, match="meanwhile"):
        longer.extend(20.0).save(stored, overwrite=True)
    shutil.rmtree(stored)
    longer.extend(20.0).save(stored, overwrite=True)  # nothing is lost by that
    new = ms.simulate(run.model, run.start, until=1.0)
    new.save(tmp_path / "new.zarr")
    ms.load(stored).save(tmp_path / "new.zarr", overwrite=True)
    with pytest.raises(StoreExistsError, match="meanwhile"):
        new.extend(3.0).save(tmp_path / "new.zarr", overwrite=True)


def test_of_two_continuations_of_one_run_none_replaces_what_it_does_not_hold(stored):
    """The shorter one took the place of the longer one, and one with other tokens that of both."""
    run = ms.load(stored)
    longer, shorter, more = run.extend(20.0), run.extend(15.0), run.append([[1.0, 0.0]]).extend(30.0)
    other = run.append([[0.0, 1.0]]).extend(40.0)
    longer.save(stored, overwrite=True)
    with pytest.raises(
        StoreExistsError, match="another continuation of the same run, which reaches t = 20, and this one t = 15"
    ):
        shorter.save(stored, overwrite=True)
    assert ms.load(stored).end == 20.0
    more.save(stored, overwrite=True)  # it holds all that the longer one does
    for late in (longer, other):
        with pytest.raises(StoreExistsError, match="another continuation of the same run, which has other tokens"):
            late.save(stored, overwrite=True)
    assert len(ms.load(stored).start) == 7
    shorter.save(stored.with_name("shorter.zarr"))


def test_a_store_that_is_replaced_in_the_last_moment_stays(stored, monkeypatch):
    """Between the look at it and the move."""
    first, second = (ms.load(stored).extend(until) for until in (8.0, 5.0))
    put = folders._put

    def late(*given):
        monkeypatch.undo()
        first.save(stored, overwrite=True)
        put(*given)

    monkeypatch.setattr(folders, "_put", late)
    with pytest.raises(StoreExistsError, match="meanwhile"):
        second.save(stored, overwrite=True)
    assert ms.load(stored).end == 8.0
    assert [item.name for item in stored.parent.iterdir()] == ["run.zarr"]


def test_the_command_refuses_a_store_that_another_one_takes_further(stored):
    """Before any work; and it is found again when that one is done, however it ended."""
    from typer.testing import CliRunner

    from metastable.cli.app import build

    script = "import sys; from metastable import stores\nwith stores.claimed(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    call = ["extend", str(stored), "--until", "4", "--quiet"]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(stored)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"held"
        for lock in stored.parent.glob(".*.lock"):
            os.utime(lock, (0, 0))  # however old it looks
        found = CliRunner().invoke(build(call), call)
        assert isinstance(found.exception, StoreLockedError)
        assert ms.load(stored).end == 2.0
        elsewhere = [*call, "--out", str(stored.with_name("longer.zarr"))]
        assert CliRunner().invoke(build(elsewhere), elsewhere).exit_code == 0
        process.kill()
    found = CliRunner().invoke(build(call), call)
    assert found.exit_code == 0, found.output
    assert ms.load(stored).end == 4.0
    assert sorted(item.name for item in stored.parent.iterdir()) == ["longer.zarr", "run.zarr"]


def test_what_a_killed_command_claimed_is_cleaned_up(stored):
    lock = stored.with_name(".run.zarr.claimed_.lock")
    lock.touch()
    os.utime(lock, (0, 0))
    ms.load(stored)
    assert not lock.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_to_a_store_is_followed(tmp_path):
    from typer.testing import CliRunner

    from metastable.cli.app import build

    (tmp_path / "far").mkdir()
    store, link = tmp_path / "far" / "run.zarr", tmp_path / "link.zarr"
    model, start = ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(6, dim=2, seed=0)
    ms.simulate(model, start, until=2.0).save(store)
    link.symlink_to(store)
    call = ["extend", str(link), "--until", "4", "--quiet"]
    found = CliRunner().invoke(build(call), call)
    assert found.exit_code == 0, found.output
    assert link.is_symlink()
    assert ms.load(store).end == ms.load(link).end == 4.0
    ms.simulate(model, start, until=1.0).save(link, overwrite=True)
    assert link.is_symlink()
    assert ms.load(store).end == 1.0
    assert sorted(item.name for item in tmp_path.rglob("*.zarr")) == ["link.zarr", "run.zarr"]
    gone = tmp_path / "gone.zarr"
    gone.symlink_to(tmp_path / "nothing")
    with pytest.raises(StoreExistsError):
        ms.simulate(model, start, until=1.0).save(gone)


def test_layers_that_a_token_did_not_survive_are_not_said_to_have_been_applied():
    """It was "all 2 of them were applied", of which the second failed."""
    layers = [ms.Attention(dim=2, beta=2.0), ms.Attention(dim=2, beta=2.0, value=-np.eye(2))]
    with pytest.warns(StoppedEarlyWarning):
        run = ms.simulate(layers, [[1.0, 0.0]] * 3)
    assert run.status == "diverged"
    with pytest.raises(UnsupportedError, match="this run cannot go on"):
        run.extend(5.0)


def test_masses_never_settle_by_extending_and_a_horizon_is_the_way():
    model = ms.Attention(dim=2, beta=4.0, masses=[1.0, 2.0, 0.5, 1.5])
    run = ms.simulate(model, ms.sphere.uniform(4, dim=2, seed=3), HALF)
    with pytest.raises(UnsupportedError, match="give a horizon"):
        run.extend("settled")
