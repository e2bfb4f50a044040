"""`simulate` and `Run`: refusals, partial results, stores, appended tokens."""

import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import metastable as ms
from metastable import errors
from tests import variants

MODEL = ms.Attention(dim=2, beta=4.0)
START = ms.sphere.uniform(6, dim=2, seed=0)
ADDED = ms.sphere.uniform(8, dim=2, seed=1)


def run(**options) -> ms.Run:
    return ms.simulate(MODEL, START, **({"until": 3.0, "engine": "reference"} | options))


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("start", "word"),
    [
        ([[1.0, float("nan")]], "NaN"),
        ([[1.0, float("inf")]], "infinity"),
        ([[0.0, 0.0], [1.0, 0.0]], "zero vector"),
        ([[2.0, 0.0]], r"metastable\.sphere\.normalize"),
        ([1.0, 0.0], "shape"),
        ([[1.0], [1.0]], "dimension 1"),
        ([[1.0, 0.0, 0.0]], "dim=2"),
        (np.empty((0, 2)), "no token"),
        ([["a", "b"]], "real numbers"),
        ([[1.0, 0.0], [1.0]], "array"),
    ],
)
def test_bad_starts_are_refused(start, word):
    with pytest.raises(errors.TokenError, match=word):
        ms.simulate(MODEL, start, until=1.0)


def test_mask_of_the_wrong_size():
    with pytest.raises(errors.ModelError, match="4 x 4"):
        ms.simulate(MODEL.replace(mask=ms.Mask(np.eye(4))), START, until=1.0)


@pytest.mark.parametrize(
    ("options", "kind", "word"),
    [
        ({"until": None}, errors.TimeError, "until"),
        ({"until": 0.0}, errors.TimeError, "until"),
        ({"until": -1.0}, errors.TimeError, "until"),
        ({"until": float("nan")}, errors.TimeError, "until"),
        ({"until": "later"}, errors.TimeError, "settled"),
        ({"until": None, "times": [1.0, 0.5]}, errors.TimeError, "increase"),
        ({"until": None, "times": [1.0, 1.0]}, errors.TimeError, "increase"),
        ({"until": None, "times": [-1.0, 1.0]}, errors.TimeError, "negative"),
        ({"until": None, "times": []}, errors.TimeError, "at least one"),
        ({"until": None, "times": [0.0]}, errors.TimeError, "only 0"),
        ({"until": None, "times": 3.0}, errors.TimeError, "list"),
        ({"until": 1.0, "times": [2.0]}, errors.TimeError, "beyond"),
        ({"rtol": 1e-20}, errors.InvalidInputError, "rounding"),
        ({"until": 3.0, "times": [2.0]}, errors.TimeError, "would not be kept"),
        ({"method": "euler"}, errors.InvalidInputError, "tsit5"),
        ({"engine": "gpu"}, errors.InvalidInputError, "cuda"),
        ({"interaction": "fast"}, errors.InvalidInputError, "series"),
        ({"interaction": "series", "engine": "reference"}, errors.UnsupportedError, "cpu"),
        ({"rtol": 0.0}, errors.InvalidInputError, "rtol"),
        ({"atol": -1.0}, errors.InvalidInputError, "atol"),
        ({"max_steps": 0}, errors.InvalidInputError, "max_steps"),
        ({"method": "layers"}, errors.InvalidInputError, "step"),
        ({"method": "layers", "step": 0.7}, errors.TimeError, "multiple"),
        ({"method": "layers", "step": 1.0, "engine": "cpu"}, errors.UnsupportedError, "reference"),
        ({"method": "tsit5", "step": 0.1}, errors.InvalidInputError, "step"),
        ({"method": "sde", "step": -0.1}, errors.InvalidInputError, "step"),
        ({"method": "tsit5", "until": "settled"}, errors.UnsupportedError, "rodas"),
        ({"threads": 0}, errors.InvalidInputError, "threads"),
    ],
)
def test_bad_options_are_refused(options, kind, word):
    with pytest.raises(kind, match=word):
        run(**options)


def test_methods_refuse_variants_they_cannot_do():
    noisy = MODEL.replace(noise=0.1)
    with pytest.raises(errors.UnsupportedError, match="sde"):
        ms.simulate(noisy, START, until=1.0, method="tsit5")
    with pytest.raises(errors.InvalidInputError, match="seed"):
        ms.simulate(noisy, START, until=1.0, engine="reference")
    with pytest.raises(errors.UnsupportedError, match="layers"):
        ms.simulate([MODEL, MODEL], START, until=1.0, method="tsit5")
    with pytest.raises(errors.InvalidInputError, match="Attention"):
        ms.simulate("model", START, until=1.0)


def test_large_runs_must_say_what_to_keep():
    with pytest.raises(errors.TimeError, match="times"):
        ms.simulate(MODEL, ms.sphere.uniform(150_000, dim=2, seed=0), until=1.0)


# ------------------------------------------------------------------------------------------------------- results


def test_what_a_run_says():
    r = run()
    assert r.status == "success"
    assert r.engine == "reference"
    assert r.times[0] == 0.0
    assert r.end == 3.0
    assert r.stats.accepted == len(r.times) - 1
    assert r.stats.evaluations == 2 + 6 * (r.stats.accepted + r.stats.rejected)
    assert r.final.shape == (6, 2)
    assert r.dataset.x.dims == ("time", "token", "coord")
    assert "6 tokens" in repr(r)
    np.testing.assert_allclose(r.at(3.0), r.final, atol=1e-14)
    np.testing.assert_allclose(r.at(0.0), START, atol=1e-15)


def test_saved_times_equal_dense_output():
    dense, saved = run(), run(until=None, times=[0.0, 0.5, 1.7, 3.0])
    np.testing.assert_array_equal(saved.times, [0.0, 0.5, 1.7, 3.0])
    for t, state in zip(saved.times, saved.states):
        np.testing.assert_allclose(dense.at(t), state, atol=1e-14)
    np.testing.assert_array_equal(saved.at(1.7), saved.states[2])
    np.testing.assert_array_equal(dense.at([0.5, 1.7]), [dense.at(0.5), dense.at(1.7)])
    for wrong in ("clusters", ms.observe.clusters):
        with pytest.raises(errors.InvalidInputError, match="observable such as"):
            dense.observe(wrong)
    with pytest.raises(errors.TimeError, match="simulate without times"):
        saved.at(1.0)
    with pytest.raises(errors.TimeError, match="outside"):
        dense.at(4.0)
    with pytest.raises(errors.TimeError, match="at least 0"):
        dense.at(-1.0)


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        (
            {},
            {"until": 4.0, "method": "layers", "step": 0.5},
            "kept 9 states, .* its layers are 0.5 apart, with nothing in between$",
        ),
        (
            {},
            {"times": [1.0, 4.0], "method": "layers", "step": 0.5},
            "kept 2 states, .* between, and without times= every layer is kept$",
        ),
        ({"noise": 0.1}, {"until": 1.0, "step": 0.5, "seed": 0}, "its steps are 0.5 apart, with nothing in between$"),
    ],
)
def test_what_is_between_the_states_that_a_run_kept(fields, options, said):
    """Layers without `times` were said to have kept chosen times, and that without `times` there would be every t."""
    r = ms.simulate(MODEL.replace(**fields), START, engine="reference", **options)
    with pytest.raises(errors.TimeError, match=said):
        r.at(0.7)
    with pytest.raises(errors.TimeError, match="outside the run, which ends at"):
        r.at(7.0)


def test_what_is_between_the_states_of_a_run_that_was_extended_by_times():
    r = run().extend(times=[4.0, 5.0])
    with pytest.raises(errors.TimeError, match=r"(simulated or extended with times= a run keeps states alone)"):
        r.at(4.5)


def test_max_steps_keeps_the_part_that_was_computed():
    with pytest.warns(errors.StoppedEarlyWarning, match="raise max_steps"):
        r = run(until=1000.0, max_steps=5)
    assert r.status == "max_steps"
    assert "max_steps" in r.message
    assert 0 < r.end < 1000.0
    assert np.isfinite(r.final).all()
    np.testing.assert_allclose(r.final, run(until=r.end).final, atol=1e-6)


def test_divergence_is_a_status_not_a_number():
    """PreLN with a repelling V shrinks the radius to zero in finite time."""
    m = ms.Attention(dim=2, beta=1.0, value=-np.eye(2), norm=ms.PreLN())
    r = ms.simulate(m, START[:1], until=5.0, engine="reference")
    assert r.status == "diverged"
    assert 0.9 < r.end <= 1.001
    assert np.isfinite(r.states).all()


def test_one_token():
    r = ms.simulate(MODEL, START[:1], until=3.0, engine="reference")
    np.testing.assert_allclose(r.final, START[:1], atol=1e-15)


def test_observables_of_a_run():
    r = run()

    class Spread:
        dims = ("token",)

        def measure(self, states, *, start, model, times):
            return np.linalg.norm(states - start, axis=2)

    observed = r.observe(Spread())
    assert observed.dims == ("time", "token")
    assert observed.values[0].max() < 1e-15


# -------------------------------------------------------------------------------------------------------- stores


def test_store_round_trip(tmp_path):
    r = run()
    r.save(tmp_path / "run.zarr")
    back = ms.load(tmp_path / "run.zarr")
    np.testing.assert_array_equal(back.states, r.states)
    np.testing.assert_array_equal(back.at(1.234), r.at(1.234))
    assert back.model == r.model
    assert back.stats == r.stats
    assert back.dataset.attrs == r.dataset.attrs
    assert os.listdir(tmp_path) == ["run.zarr"]


def test_an_existing_store_is_never_overwritten_unasked(tmp_path):
    path = tmp_path / "run.zarr"
    run().save(path)
    with pytest.raises(errors.StoreExistsError, match="overwrite=True"):
        run(until=1.0).save(path)
    assert ms.load(path).end == 3.0
    run(until=1.0).save(path, overwrite=True)
    assert ms.load(path).end == 1.0


def test_notes_within_a_store_are_not_lost(tmp_path):
    """Overwriting replaces the folder, so what somebody put into it would go with it."""
    path = tmp_path / "run.zarr"
    run().save(path)
    (path / ".DS_Store").write_text("left by a file manager")
    run().save(path, overwrite=True)
    (path / "notes.txt").write_text("mine")
    (path / "x" / "remark.txt").write_text("mine")
    (path / ".git").mkdir()
    run().save(path / "second.zarr")
    with pytest.raises(errors.StoreExistsError, match=r"\.git, notes\.txt, second\.zarr, x/remark\.txt"):
        run(until=1.0).save(path, overwrite=True)
    assert (path / "notes.txt").read_text() == "mine"
    assert ms.load(path).end == 3.0


def test_something_else_is_never_overwritten(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(errors.StoreExistsError, match="not a metastable store"):
        run().save(tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


def test_a_folder_that_is_missing_is_one_mistake(tmp_path):
    """Also where the folder is missing that a page or a film goes to: they raised three errors, or said three things."""
    folder, said = tmp_path / "no", set()
    for write in (
        lambda: run().save(folder / "run.zarr"),
        lambda: run().animate(folder / "run.gif"),
        lambda: run().to_html(folder / "run.html"),
    ):
        with pytest.raises(errors.StoreError, match="no does not exist; create it first") as found:
            write()
        said.add((type(found.value), str(found.value)))
    assert len(said) == 1


def test_a_store_nowhere(tmp_path):
    with pytest.raises(errors.StoreError, match="does not exist"):
        run().save(tmp_path / "no" / "run.zarr")
    with pytest.raises(errors.StoreError, match="does not exist"):
        ms.load(tmp_path / "nothing.zarr")
    (tmp_path / "folder").mkdir()
    with pytest.raises(errors.StoreError, match="not a metastable store"):
        ms.load(tmp_path / "folder")


def test_an_unwritable_folder_is_told(tmp_path, monkeypatch):
    def refused(*args, **options):  # what a user without rights would see
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(errors.StoreError, match="not writable"):
        run().save(tmp_path / "run.zarr")
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_the_old_store(tmp_path, monkeypatch):
    """A disk that fills up while writing loses neither the old store nor leaves a half-written one."""
    import xarray as xr

    path = tmp_path / "run.zarr"
    run().save(path)

    def full_disk(self, target, **options):
        (target / "x").mkdir(parents=True)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(xr.Dataset, "to_zarr", full_disk)
    with pytest.raises(errors.StoreError, match="No space left"):
        run(until=1.0).save(path, overwrite=True)
    monkeypatch.undo()
    assert ms.load(path).end == 3.0
    assert os.listdir(tmp_path) == ["run.zarr"]


def test_half_written_stores_are_recognised(tmp_path):
    path = tmp_path / "run.zarr"
    run().save(path)
    chunk = next(p for p in sorted((path / "x").rglob("*")) if p.is_file() and p.name != "zarr.json")
    shutil.copytree(path, tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / chunk.relative_to(path)).unlink()
    with pytest.raises(errors.IncompleteStoreError, match="damaged"):
        ms.load(tmp_path / "a.zarr")
    shutil.copytree(path, tmp_path / "b.zarr")
    shutil.rmtree(tmp_path / "b.zarr" / "x")
    with pytest.raises(errors.IncompleteStoreError):
        ms.load(tmp_path / "b.zarr")
    shutil.copytree(path, tmp_path / "c.zarr")
    metadata = json.loads((tmp_path / "c.zarr" / "zarr.json").read_text())
    del metadata["attributes"]["checksums"]
    (tmp_path / "c.zarr" / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(errors.IncompleteStoreError, match="not finished"):
        ms.load(tmp_path / "c.zarr")


# -------------------------------------------------------------------------------------------------------- append


@pytest.mark.parametrize("mask", [ms.Causal(), ms.Window(4), ms.Sink(2, 3), ms.Prefix(5)])
@pytest.mark.parametrize("norm", [ms.PostLN(), ms.PreLN()])
def test_append_equals_simulating_all_at_once(mask, norm, tmp_path):
    rng = np.random.default_rng(5)
    m = ms.Attention(dim=3, beta=3.0, value=np.eye(3) + 0.1 * rng.normal(size=(3, 3)), mask=mask, norm=norm)
    x = variants.tokens(rng, 12, 3)
    options = {"until": 4.0, "engine": "reference", "rtol": 1e-8, "atol": 1e-11}
    whole = ms.simulate(m, x, **options)
    grown = ms.simulate(m, x[:7], **options).append(x[7:10]).append(x[10:])
    assert grown.final.shape == (12, 3)
    np.testing.assert_allclose(grown.final, whole.final, atol=2e-7)
    np.testing.assert_allclose(grown.at(1.3), whole.at(1.3), atol=2e-7)
    grown.save(tmp_path / "grown.zarr")
    np.testing.assert_array_equal(ms.load(tmp_path / "grown.zarr").at(1.3), grown.at(1.3))


@pytest.mark.parametrize("mask", [ms.Mask(lambda k, j: j <= k), ms.Mask(np.tri(6, dtype=bool))], ids=["rule", "matrix"])
def test_append_says_that_a_matrix_has_one_size(mask):
    """Under a causal matrix earlier tokens do not move differently: nobody knows whom the new ones see."""
    m = ms.Attention(dim=3, beta=3.0, mask=mask)
    x = variants.tokens(np.random.default_rng(5), 9, 3)
    with pytest.raises(errors.UnsupportedError, match="a matrix for 6 tokens"):
        ms.simulate(m, x[:6], until=1.0, engine="reference").append(x[6:])


def test_a_rule_extends_where_earlier_tokens_see_the_same():
    assert ms.Mask(lambda k, j: j <= k).extends(4, 7)
    assert not ms.Mask(lambda k, j: j <= k + 1).extends(4, 7)


@pytest.mark.parametrize("until", [50.0, "settled"])
def test_append_to_a_run_that_stopped_early_says_how_to_finish_it(until):
    """And that call does it."""
    model, start = ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(5, dim=2, seed=0)
    with pytest.warns(errors.StoppedEarlyWarning):
        run = ms.simulate(model, start, until=until, max_steps=5)
    with pytest.raises(errors.UnsupportedError, match=r"finish it first: run.extend\(") as refused:
        run.append(start[:1])
    call = str(refused.value).split("finish it first: ")[1].replace("...", "10_000")
    assert eval(call, {"run": run}).status == "success"


def test_times_may_be_arrays_without_axes():
    model, start = ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(5, dim=2, seed=0)
    run = ms.simulate(model, start, until=np.array(2.0))
    np.testing.assert_array_equal(run.at(run.dataset.time[2]), run.states[2])
    for bad in (np.array(True), np.array("2"), np.array(2j), np.ma.array(2.0, mask=True), np.array(np.nan)):
        with pytest.raises(errors.TimeError, match="until"):
            ms.simulate(model, start, until=bad)
    kept = ms.simulate(model, start, times=[1.0, 5.0])
    with pytest.raises(errors.TimeError, match=r"none at t = 4.9999999999 \(the nearest is at 5.0\)"):
        kept.at(4.9999999999)


def test_a_path_may_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(5, dim=2, seed=0), until=1.0)
    run.save("~/run.zarr")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.zarr"]
    np.testing.assert_array_equal(ms.load("~/run.zarr").final, run.final)
    with pytest.raises(errors.InvalidInputError, match="'~nobody-of-that-name', whose home folder is not known"):
        run.save("~nobody-of-that-name/run.zarr")


def test_append_is_refused_where_it_would_be_wrong():
    full = ms.simulate(MODEL.replace(mask=ms.Full()), START, until=1.0, engine="reference")
    with pytest.raises(errors.UnsupportedError, match="Full"):
        full.append(START[:1])
    with pytest.raises(errors.TokenError, match="dim=2"):
        run().append([[1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"until": None, "times": [1.0, 3.0]}, 1e-5),
        ({"method": "layers", "step": 0.5}, 1e-14),
        ({"method": "layers", "step": 0.5, "until": None, "times": [1.0, 3.0]}, 1e-14),
        ({"method": "sde", "step": 0.1, "seed": 3}, 1e-14),
        ({"method": "rodas", "engine": "cpu", "until": 1e5}, 1e-5),
        ({"method": "auto", "engine": "auto", "until": 1e5}, 1e-5),
    ],
    ids=["times", "layers", "layers with times", "sde", "rodas", "auto"],
)
def test_where_nothing_can_be_appended_the_message_says_the_call_that_does_it(options, tolerance):
    """That call, with all tokens together, leaves the earlier ones where they were: noise and layers to rounding, else to tolerance."""
    model = MODEL.replace(noise=0.2) if options.get("method") == "sde" else MODEL
    earlier = ms.simulate(model, START[:5], **({"until": 3.0, "engine": "reference"} | options))
    with pytest.raises(errors.UnsupportedError, match="together") as caught:
        earlier.append(START[5:])
    call = str(caught.value).split("as before: ")[1]
    later = eval(call, {"metastable": ms, "numpy": np, "run": earlier, "tokens": START[5:]})
    assert later.method == earlier.method
    assert later.final.shape == START.shape
    np.testing.assert_allclose(later.final[:5], earlier.final, atol=tolerance)
    if not options.get("until", 0) and "times" in options:
        np.testing.assert_array_equal(later.times, earlier.times)


@pytest.mark.parametrize(
    ("field", "earlier", "whole"),
    [
        ("masses", np.arange(1.0, 6.0), np.arange(1.0, 9.0)),
        ("bias", ms.LogitBias(np.zeros((5, 5))), ms.LogitBias(np.zeros((8, 8)))),
    ],
)
def test_where_the_model_is_made_for_the_tokens_the_message_says_the_call_with_another(field, earlier, whole):
    """ "give one for each token" asked for what append cannot be given."""
    run = ms.simulate(MODEL.replace(**{field: earlier}), ADDED[:5], until=2.0)
    with pytest.raises(errors.ModelError, match=r"for 8 tokens: metastable\.simulate\(model, ") as caught:
        run.append(ADDED[5:])
    call = str(caught.value).split("made for 8 tokens: ")[1]
    names = {"metastable": ms, "numpy": np, "run": run, "tokens": ADDED[5:]}
    later = eval(call, {**names, "model": run.model.replace(**{field: whole})})
    np.testing.assert_allclose(later.final[:5], run.final, atol=1e-5)


def test_steps_keep_radii_to_the_tolerance_as_well():
    """Local errors of all steps against DOP853 at 1e-13, in units of the tolerance, root mean square over tokens, radii relative.

    Here weights reach exp(9), so radii grow eightfold in a thousandth of the time, and the flow makes errors of angles up to 55 times
    as large by the end: the run is off by 1.7e-4 although no step is by more than 1.2 tolerances.
    """
    n, beta = 10, 9.0
    model = ms.Attention(dim=2, beta=beta, norm=ms.PreLN(), weights="unnormalized")
    run = ms.simulate(model, ms.sphere.uniform(n, dim=2, seed=0), until=5.0)
    assert run.radius is not None
    seen = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]

    def field(_, y):
        x, r = y[: 2 * n].reshape(n, 2), y[2 * n :]
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        pull = (seen * np.exp(beta * x @ x.T)) @ x
        radial = (x * pull).sum(axis=1)
        return np.concatenate([((pull - radial[:, None] * x) / r[:, None]).ravel(), radial])

    packed = np.concatenate([run.states.reshape(len(run.times), -1), run.radius], axis=1)
    worst = 0.0
    for i in range(len(run.times) - 1):
        true = solve_ivp(field, run.times[i : i + 2], packed[i], method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1]
        error = packed[i + 1] - true
        parts = np.concatenate([error[: 2 * n].reshape(n, 2), (error[2 * n :] / true[2 * n :])[:, None]], axis=1)
        worst = max(worst, np.sqrt((parts**2).sum(axis=1).mean()) / 1e-6)
    assert worst < 2.0


def test_a_run_that_ends_at_a_singularity_keeps_no_moment_twice():
    """A radius that reaches zero under PeriLN: steps shrink until time does not advance any more; such steps were kept before."""
    rng = np.random.default_rng(0)
    ends = []
    for seed, value in list(enumerate(rng.normal(size=(12, 3, 3))))[10:]:
        model = ms.Attention(dim=3, beta=1.5, value=value, norm=ms.PeriLN(), weights="unnormalized")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.StoppedEarlyWarning)
            found = ms.simulate(model, ms.sphere.uniform(4, dim=3, seed=seed), until=4.0)
        ends.append(found.status)
        assert (np.diff(found.times) > 0).all()
    assert "diverged" in ends
