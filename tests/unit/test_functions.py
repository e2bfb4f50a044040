"""What tells a function from another one of the same name, and from its own edited version."""

import functools
import importlib
import sys
from dataclasses import dataclass

import numba
import numpy as np
import pytest

from metastable import _functions
from metastable._functions import fingerprint, made_of, same

SOURCE = '''
"""A laboratory."""
import functools
from dataclasses import dataclass
import numpy as np
from helper_of_tests import reach

RADIUS = 0.1
SETTINGS = {"power": 2}

def near(x, cut):
    return x[:, 0] > cut

def measure(x):
    """What it says."""
    kept = [y + 1.5 for y in x if near(x, RADIUS).any()]
    return np.mean(kept, axis=0) ** SETTINGS["power"] + reach(x)

lifted = functools.partial(measure, 3.0)

class Tool:
    def __init__(self):
        self.size = 7

    def of(self, x):
        return x * self.size - 4

tool = Tool()
of_tool = tool.of

@dataclass(frozen=True)
class Named:
    low: float = 0.25
    dims = ()

    def measure(self, states, *, start, model, times):
        return states[:, 0, 0] > self.low

named = Named()
'''
HELPER = "def reach(x):\n    return x.max() + 11\n"
NAMES = ("measure", "lifted", "of_tool", "Named", "named")


def read(folder, monkeypatch, edit=("", "")):
    """What is known of the functions after an edit, of modules that are imported anew."""
    files = {"lab_of_tests": SOURCE, "helper_of_tests": HELPER}
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    assert any(edit[0] in text for text in files.values())
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text.replace(*edit) if edit[0] else text)
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    _functions._installed.cache_clear()
    module = importlib.import_module("lab_of_tests")
    return {known: (made_of(getattr(module, known)), fingerprint(getattr(module, known))) for known in NAMES}


BOTH = {"measure", "lifted"}
EDITS = [
    # What is edited, in which file, who is made of something else, and who differs in a global or in its instructions only.
    (("1.5", "1.25"), BOTH, set()),
    (("np.mean", "np.median"), BOTH, set()),
    (("axis=0", "axis=1"), BOTH, set()),
    (("] > cut", "] < cut"), set(), BOTH),
    (("RADIUS = 0.1", "RADIUS = 0.11"), set(), BOTH),
    (('"power": 2', '"power": 3'), set(), BOTH),
    (("(measure, 3.0)", "(measure, 4.0)"), {"lifted"}, set()),
    (("self.size = 7", "self.size = 8"), {"of_tool"}, set()),
    (("self.size - 4", "self.size - 5"), {"of_tool"}, set()),
    (("0.25", "0.5"), {"Named", "named"}, set()),
    (("states[:, 0, 0]", "states[:, 0, 3]"), {"Named", "named"}, set()),
    (("11", "12"), BOTH, set()),
    (("What it says", "What it really says"), set(), set()),
    (("    kept = [", "    # A comment.\n\n    kept = ["), set(), set()),
]


@pytest.mark.parametrize(("edit", "made", "differ"), EDITS)
def test_what_is_edited_is_seen(tmp_path, monkeypatch, edit, made, differ):
    before = read(tmp_path / "before", monkeypatch)
    assert read(tmp_path / "again", monkeypatch) == before
    after = read(tmp_path / "after", monkeypatch, edit)
    assert {name for name in NAMES if before[name][0] != after[name][0]} == made
    assert {name for name in NAMES if not same(before[name][1], after[name][1])} == made | differ


def test_the_code_itself_counts_for_one_version_of_python_only():
    less, more = fingerprint(lambda x: x < 0.5), fingerprint(lambda x: x > 0.5)
    assert made_of(lambda x: x < 0.5) == made_of(lambda x: x > 0.5)
    assert not same(less, more)
    assert same(less, more.replace(more.split(":")[0], "3.99"))


def shifted(by):
    return lambda x: x + by


class Cached:
    """Of somebody, with an array that has no fixed type."""

    def __init__(self, words):
        self.words = np.array([*words, None], dtype=object)

    def __call__(self, x):
        return len(self.words)


@dataclass
class Pair:
    first: object
    second: object


def endless(x):
    return endless(x)


def test_what_functions_hold():
    kept = np.arange(5.0)
    assert made_of(shifted(kept)) == made_of(shifted(kept.copy()))
    assert made_of(shifted(kept)) != made_of(shifted(kept + 1e-9))
    assert made_of(shifted(Pair(1, {"a": kept}))) != made_of(shifted(Pair(1, {"b": kept})))
    assert made_of(Cached(["a"])) == made_of(Cached(["a"])) != made_of(Cached(["b"]))
    assert made_of(functools.partial(np.quantile, q=0.1)) != made_of(functools.partial(np.quantile, q=0.2))
    assert made_of(numba.njit(lambda x: x + 2)) == made_of(lambda x: x + 2) != made_of(numba.njit(lambda x: x + 3))
    assert made_of(endless) == made_of(endless)
    assert made_of(shifted({endless: 1, len: 2})) == made_of(shifted({endless: 1, len: 2}))
    assert "0x" not in str(made_of(shifted([object(), {object()}, Pair(object(), iter(()))])))


COUNTED = {}


@functools.lru_cache
def remembered(x):
    COUNTED[x] = True
    return x + 2.5


def test_what_changes_while_a_program_runs_does_not_count():
    before = made_of(remembered)
    remembered(1.0)
    assert COUNTED == {1.0: True}
    assert made_of(remembered) == before
    assert "2.5" in str(before)


def test_libraries_are_known_by_name():
    """Their code is another one in every version, and no one's own."""
    assert made_of(np.median) == made_of(np.median)
    assert "_ureduce" not in str(made_of(np.median))
