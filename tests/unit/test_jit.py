"""Caches of compiled code are tied to all of the package, not to one file."""

from metastable import _jit
from metastable.kernels.cpu import compiled


def test_every_cached_function_carries_the_stamp_of_the_package():
    from metastable.analysis import _kernels
    from metastable.integrate.fused import members as fused_members

    for function in (compiled.aligned, _kernels.compiled(lambda x: x), fused_members.work):
        store = getattr(function._cache, "_cache_file", None)
        assert store is not None, "this version of Numba keeps its cache elsewhere: look at metastable._jit again"
        assert store._source_stamp == _jit.source_stamp()


def test_the_stamp_sees_every_file(tmp_path, monkeypatch):
    for room in _jit.ROOMS:
        (tmp_path / room / "deep").mkdir(parents=True)
        (tmp_path / room / "deep" / "file.py").write_text("x = 1")
    monkeypatch.setattr(_jit, "__file__", str(tmp_path / "_jit.py"))
    before = _jit.source_stamp.__wrapped__()
    (tmp_path / "analysis" / "deep" / "file.py").write_text("x = 22")
    assert _jit.source_stamp.__wrapped__() != before
