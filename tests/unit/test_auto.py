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


def test_on_a_gpu_loops_for_small_dimension_and_products_for_large(monkeypatch):
    """The table of docs/performance-gpu.md, on a machine that says it has a GPU where everything pays."""
    from types import SimpleNamespace

    from metastable.kernels import select
    from metastable.kernels.cuda import support

    has_gpu = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    fake = {
        "cuda": SimpleNamespace(
            refusal=lambda model, tokens: ms.model.why_not(model, support.DIRECT["float64"], tokens),
            pays=lambda model, tokens, members=1: True,
            wins=lambda model, tokens, members=1: ms.model.why_not(model, support.DIRECT["float64"], tokens) is None,
        ),
        "torch": SimpleNamespace(installed=lambda: True, refusal=lambda model, tokens: None, library=lambda: has_gpu),
    }
    real = select.engine_module
    monkeypatch.setattr(select, "engine_module", lambda name: fake.get(name) or real(name))

    def chosen(dim, tokens, members=1):
        return select._choose_engine(ms.Attention(dim=dim, beta=1.0), tokens, "auto", members, True)

    assert [chosen(dim, 4096) for dim in (2, 16, 17, 32, 33, 576)] == ["cuda", "cuda", *["torch"] * 4]
    assert [chosen(dim, 65536) for dim in (2, 16, 17, 32, 33, 576)] == [*["cuda"] * 4, "torch", "torch"]
    assert chosen(20, 100, members=50) == "cuda"
    assert chosen(64, 100, members=50) == "cpu"
    fake["torch"].installed = lambda: False
    assert [chosen(dim, 4096) for dim in (32, 33)] == ["cuda", "cpu"]


def test_kernels_of_the_gpu_end_where_products_win():
    from metastable.kernels.cuda import support

    assert ms.model.why_not(ms.Attention(dim=32, beta=1.0), support.DIRECT["float32"], 100) is None
    assert "engine='torch'" in (ms.model.why_not(ms.Attention(dim=33, beta=1.0), support.DIRECT["float32"], 100) or "")
