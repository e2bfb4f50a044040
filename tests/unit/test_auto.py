"""`method="auto"` as users meet it: which method ran, where it switched, and what it refuses."""

import numpy as np
import pytest

import metastable as ms
from metastable import errors

MODEL = ms.Attention(dim=2, beta=16.0)
START = ms.sphere.uniform(20, dim=2, seed=2)


def test_short_runs_are_explicit():
    run = ms.simulate(MODEL, START, until=50.0)
    assert run.method == "tsit5"
    assert run.engine == "cpu"


def test_long_runs_switch_and_say_where(tmp_path):
    run = ms.simulate(MODEL, START, until=1e30)
    assert run.method == "tsit5+rodas"
    first, second = run.notes["segments"]
    assert first["to"] == second["from"]
    assert second["to"] == run.end == 1e30
    np.testing.assert_allclose(run.at(3.0), ms.simulate(MODEL, START, until=50.0).at(3.0), atol=1e-5)
    run.save(tmp_path / "run.zarr")
    back = ms.load(tmp_path / "run.zarr")
    np.testing.assert_array_equal(back.at(1e7), run.at(1e7))


def test_settled_ends_at_the_first_token():
    """Theorem 4.1 with one call: V = I, everybody ends at x_1(0)."""
    run = ms.simulate(MODEL, START, until="settled")
    assert run.status == "success"
    assert np.abs(run.final - START[0]).max() < 1e-10
    assert ms.classify(run).configuration == ms.predict(MODEL).configuration


def test_engines_without_an_implicit_method_stay_explicit():
    assert ms.simulate(MODEL, START, until=20.0, engine="reference").method == "tsit5"
    for options in ({"until": "settled"}, {"until": 10.0, "method": "rodas"}):
        with pytest.raises(errors.UnsupportedError, match="cpu"):
            ms.simulate(MODEL, START, engine="reference", **options)


def test_appending_to_a_long_run_is_refused_with_the_way_out():
    with pytest.raises(errors.UnsupportedError, match=r"until=1000000\.0, method='auto'"):
        ms.simulate(MODEL, START, until=1e6).append(START[:1])
