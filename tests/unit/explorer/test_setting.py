"""Settings: what a page may ask for, and what is refused with a sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest

import metastable as ms
from metastable.errors import InvalidInputError, ModelError, TokenError
from metastable.explorer import limits, presets
from metastable.explorer.python_code import python_code
from metastable.explorer.setting import Clock, Setting, from_eigenvalues
from metastable.explorer.starting import STARTS


def setting(model=None, start=None, **rest):
    return Setting.from_dict(
        {"model": {"dim": 2, "beta": 4.0, **(model or {})}, "start": {"tokens": 5, **(start or {})}, **rest}
    )


def test_round_trip_through_json():
    first = setting(
        {"value": {"eigenvalues": [[1.0, 0.5]]}, "mask": {"kind": "window", "width": 3}},
        {"seed": 3, "placed": [[1, [0.0, 2.0]]], "appended": [[1.0, 1.0]]},
        delta=0.3,
        radius=0.01,
        projection="principal",
    )
    second = Setting.from_dict(json.loads(json.dumps(first.to_dict())))
    assert second == first
    assert second.model == first.model
    np.testing.assert_array_equal(second.positions, first.positions)


def test_start_is_the_uniform_one_with_hand_made_changes():
    x = setting(None, {"seed": 7, "placed": [[0, [0.0, 3.0]]], "appended": [[2.0, 0.0]]}).positions
    np.testing.assert_array_equal(x[1:5], ms.sphere.uniform(5, dim=2, seed=7)[1:])
    np.testing.assert_allclose(x[[0, 5]], [[0.0, 1.0], [1.0, 0.0]], atol=1e-15)


def test_tokens_are_taken_out_and_indices_stay():
    """Indices of moved and removed tokens count all tokens, appended ones included, before any is taken out."""
    start = {"seed": 7, "appended": [[1.0, 0.0], [0.0, 1.0]], "placed": [[6, [-1.0, 0.0]]], "removed": [5, 0]}
    data = setting(None, start)
    x = data.positions
    assert len(x) == data.start.total == 5
    np.testing.assert_array_equal(x[:4], ms.sphere.uniform(5, dim=2, seed=7)[1:])
    np.testing.assert_allclose(x[4], [-1.0, 0.0], atol=1e-15)
    assert Setting.from_dict(data.to_dict()) == data
    with pytest.raises(TokenError, match="at least one must stay"):
        setting(None, {"removed": [0, 1, 2, 3, 4]})


@pytest.mark.parametrize("offered", STARTS, ids=lambda item: item["kind"])
def test_every_start_is_the_one_of_the_package(offered):
    numbers = {entry["name"]: entry["suggestion"] for entry in offered["fields"]}
    data = setting(None, {"kind": offered["kind"], "seed": 3, **numbers})
    make = ms.sphere.uniform if offered["kind"] == "uniform" else getattr(ms.starts, offered["kind"])
    np.testing.assert_array_equal(data.positions, make(5, dim=2, seed=3, **numbers))
    assert Setting.from_dict(json.loads(json.dumps(data.to_dict()))) == data
    scope = {}
    code = python_code([data], Clock(1.0)).split("run = ")[0]
    exec(code, scope)
    np.testing.assert_array_equal(scope["start"], data.positions)


def test_matrices_of_heads_have_the_same_abbreviations():
    heads = [{"beta": 2.0, "value": {"eigenvalues": [[1, 0], [-1, 0]]}}, {"beta": 3.0, "value": {"gaussian": 4}}]
    model = setting({"beta": None, "heads": heads}).model
    np.testing.assert_array_equal(model.heads[0].value, np.diag([1.0, -1.0]))
    np.testing.assert_array_equal(model.heads[1].value, np.random.default_rng(4).standard_normal((2, 2)))


@pytest.mark.parametrize(
    "pairs",
    [[[1, 0], [0.5, 0], [-1, 0]], [[1, 0.5], [0.2, 0]], [[0.2, 0], [1, 0.5], [1, -0.5]], [[-2, 0], [0.3, 1.5]]],
)
def test_matrix_has_the_wanted_spectrum(pairs):
    wanted = sorted(
        [complex(re, im) for re, im in pairs]
        + [complex(re, -im) for re, im in pairs if im > 0 and [re, -im] not in pairs],
        key=lambda z: (z.real, z.imag),
    )
    found = sorted(np.linalg.eigvals(from_eigenvalues(pairs, 3)), key=lambda z: (z.real, z.imag))
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[1, 0]], "needs 3 eigenvalues"),
        ([[1, 0]] * 4, "4 eigenvalues"),
        ([[1, 0], [1, 0], [1, 1]], "more than 3 dimensions"),
        ([[1, 1], [1, -2], [1, 0]], "conjugate"),
        ([[1, 0], "x", [1, 0]], "pairs"),
        ([[1, 0], [1, 0], [1, None]], "must be a number"),
    ],
)
def test_bad_spectra_are_refused(pairs, message):
    with pytest.raises(ModelError, match=message):
        from_eigenvalues(pairs, 3)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({}, ModelError, "model must be a table"),
        ({"model": {"dim": 2, "beta": 1.0}}, InvalidInputError, "start must be a table"),
        ({"model": {"dim": 2, "beta": 1.0}, "start": {"tokens": 10**6}}, limits.LimitError, "up to 2000 tokens"),
        ({"model": {"dim": 10**9, "beta": 1.0}, "start": {"tokens": 1}}, limits.LimitError, "up to 32 dimensions"),
        ({"model": {"dim": 32, "beta": 1.0}, "start": {"tokens": 2000}}, limits.LimitError, "64000 numbers"),
        ({"model": {"dim": 2, "beta": float("nan")}, "start": {"tokens": 1}}, ModelError, "beta"),
        ({"model": {"dim": 2, "beta": -1e9}, "start": {"tokens": 1}}, limits.LimitError, "beta"),
        ({"model": {"dim": 2, "beta": 1e9}, "start": {"tokens": 1}}, limits.LimitError, "beta"),
        ({"model": {"dim": 2, "beta": 1.0, "evil": 1}, "start": {"tokens": 1}}, ModelError, "no field 'evil'"),
        ({"model": {"dim": 2, "beta": 1.0}, "start": {"tokens": 1, "path": "/"}}, InvalidInputError, "no field 'path'"),
        ({"model": {"dim": 2, "beta": 1.0, "value": [[1, 2], [3]]}, "start": {"tokens": 1}}, ModelError, "value"),
        ({"model": {"dim": 2, "beta": 1.0, "value": {"x": 1}}, "start": {"tokens": 1}}, ModelError, "value must be"),
        ({"model": {"dim": 2, "beta": 1.0}, "start": {"tokens": 1, "appended": [[0, 0]]}}, TokenError, "direction"),
        (
            {"model": {"dim": 2, "beta": 1.0}, "start": {"tokens": 1, "placed": [[4, [1, 0]]]}},
            InvalidInputError,
            "index",
        ),
        ({"model": {"dim": 2, "beta": 1.0}, "start": {"tokens": 1}, "delta": 0}, InvalidInputError, "delta"),
        (
            {"model": {"dim": 2, "beta": 1.0, "frozen": {"tokens": [[1, 0]] * 65}}, "start": {"tokens": 1}},
            limits.LimitError,
            "64 frozen",
        ),
    ],
)
def test_bad_settings_are_refused_with_a_reason(data, error, message):
    with pytest.raises(error, match=message):
        Setting.from_dict(data)


@pytest.mark.parametrize("data", [{}, {"until": 0}, {"until": 1e99}, {"until": "1"}, {"until": 1.0, "log": 1}, [1]])
def test_bad_clocks_are_refused(data):
    with pytest.raises(InvalidInputError):
        Clock.from_dict(data)


@pytest.mark.parametrize("log", [False, True])
def test_clock_runs_from_start_to_horizon(log):
    times = Clock(1e30 if log else 7.0, log).times()
    assert times.size == limits.FRAMES
    assert times[0] == 0
    assert times[-1] == (1e30 if log else 7.0)
    assert (np.diff(times) > 0).all()


def test_noise_takes_whole_steps_and_has_a_limit():
    noisy = setting({"noise": 0.1})
    steps = noisy.times(Clock(5.0)) / noisy.step
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-9)
    with pytest.raises(limits.HorizonError, match="with noise") as caught:
        noisy.check_clock(Clock(1e6))
    noisy.check_clock(Clock(caught.value.until))


def test_steps_are_bounded_by_memory():
    assert limits.steps_allowed(2000, 4) * 5 * 8 * 2000 * 4 <= limits.DENSE_BYTES
    assert limits.steps_allowed(10, 2) == limits.MAX_STEPS


def test_every_preset_is_sound():
    catalogue = presets.catalogue()
    names = [item["name"] for item in catalogue["items"]]
    assert len(names) == len(set(names))
    assert catalogue["first"] in names
    assert {
        "figure-2",
        "cascade",
        "full-causal",
        "frozen",
        "norms",
        *(f"figure-1{letter}" for letter in "abcde"),
    } <= set(names)
    json.dumps(catalogue, allow_nan=False)
