"""The names users type: the stubs beside `__init__.py` list them, and every one of them is there and documented."""

import subprocess
import sys
from importlib import import_module

import pytest

import metastable as ms


@pytest.mark.parametrize("package", ["metastable", "metastable.figures", "metastable.checkpoints"])
def test_every_listed_name_is_there_and_documented(package):
    module = import_module(package)
    assert len(module.__all__) > 10
    for name in module.__all__:
        value = getattr(module, name)
        assert value.__doc__, f"{package}.{name} has no docstring"


def test_what_users_hold_has_a_public_name():
    """A tree is a `MergeTree` in the docs and in its repr, and was nowhere to be found under that name."""
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(4, dim=2, seed=0), until=2.0)
    for held, name in ((run, "Run"), (ms.merge_tree(run), "MergeTree"), (run.predict_merges(), "MergeTree")):
        assert type(held) is getattr(ms, name)
        assert f"<{name}:" in repr(held)


def test_names_that_do_not_exist_are_said_not_to():
    with pytest.raises(AttributeError, match="simulat"):
        ms.simulat  # noqa: B018


@pytest.mark.parametrize(
    "name",
    [
        "sweep.run",
        "control.temperature",
        "reproduce.catalogue",
        "figures.long_runs",
        "observe.mean_cosine",
        "derivatives.spread",
    ],
)
def test_rooms_need_no_import_of_their_own(name):
    code = f"import metastable as ms; ms.{name}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_imports_nothing_heavy():
    heavy = "numpy", "numba", "xarray", "matplotlib", "torch", "dask"
    code = f"import sys, metastable; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
