"""Caches of compiled code are tied to all of the package, not to one file."""

import copy
import pickle

import numba
import pytest

from metastable import _jit, _progress
from metastable.kernels.cpu import system


def test_every_cached_function_carries_the_stamp_of_the_package():
    from metastable.analysis import _kernels
    from metastable.integrate.fused import queue

    for function in (system.evaluate, _kernels.compiled(lambda x: x), queue.work):
        store = getattr(function._cache, "_cache_file", None)
        assert store is not None, "this version of Numba keeps its cache elsewhere: look at metastable._jit again"
        assert store._source_stamp == _jit.source_stamp()


def test_the_stamp_sees_every_file(tmp_path, monkeypatch):
    for room in _jit.ROOMS:
        (tmp_path / room / "deep").mkdir(parents=True)
        (tmp_path / room / "deep" / "file.py").write_text("x = 1")
    (tmp_path / "_jit.py").write_text("x = 1")
    monkeypatch.setattr(_jit, "__file__", str(tmp_path / "_jit.py"))
    before = _jit.source_stamp.__wrapped__()
    (tmp_path / "analysis" / "deep" / "file.py").write_text("x = 22")
    assert _jit.source_stamp.__wrapped__() != before


def test_a_cache_of_a_release_whose_modules_had_other_names_is_out_of_date(tmp_path):
    """Its index cannot even be read: it names types of modules that are gone. That is a miss, not an error."""
    store = system.evaluate._cache._cache_file
    gone = b"cmetastable.kernels.cpu.a_name_of_old\nMemory\n."
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(gone)
    old = copy.copy(store)
    old._index_path = str(tmp_path / "index.nbi")
    (tmp_path / "index.nbi").write_bytes(pickle.dumps(numba.__version__) + gone)
    assert old._load_index() == {}
    old._save_index({"key": "value"})
    assert old._load_index() == {"key": "value"}


def test_a_progress_bar_says_that_code_is_compiled(monkeypatch):
    told: list[bool] = []
    monkeypatch.setattr(_progress, "_listeners", [told.append])
    part = _jit.part(lambda x: x + 1)
    whole = _jit.njit(lambda x: 2 * part(x))
    assert whole(3) == 8
    # Once for the function and its part together.
    assert told == [True, False]
    assert whole(4) == 10
    assert told == [True, False]


def test_a_part_is_for_compiled_code_only():
    part = _jit.part(lambda x: x + 1)
    for _ in range(2):
        with pytest.raises(TypeError, match="part of compiled functions"):
            part(3)
        assert _jit.njit(lambda x: part(x))(3) == 4


def test_a_bar_shows_the_words_while_it_compiles():
    with _progress.progress_bar("simulate", 1.0, show=True) as report:
        (listener,) = _progress._listeners
        report(0.5)
        listener(True)
        listener(False)
    assert _progress._listeners == []
