"""What tells a function from another one of the same name, and from its own edited version."""

import functools
import importlib
import sys
from dataclasses import dataclass

import numba
import numpy as np
import pytest

from metastable._functions import fingerprint, note_changes, read, same, watched

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


def imported(folder, monkeypatch, edit=("", "")):
    """What is known of the functions after an edit, of modules that are imported anew."""
    files = {"lab_of_tests": SOURCE, "helper_of_tests": HELPER}
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    assert any(edit[0] in text for text in files.values())
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text.replace(*edit) if edit[0] else text)
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    module = importlib.import_module("lab_of_tests")
    return {known: fingerprint(getattr(module, known)) for known in NAMES}


BOTH = {"measure", "lifted"}
EDITS = [
    # What is edited, who differs for every version of Python, and who in its instructions only.
    (("1.5", "1.25"), BOTH, set()),
    (("np.mean", "np.median"), BOTH, set()),
    (("axis=0", "axis=1"), BOTH, set()),
    (("] > cut", "] < cut"), set(), BOTH),
    (("[y + 1.5", "[1.5 - y"), set(), BOTH),
    (("x[:, 0] > cut", "x[0, :] > cut"), set(), BOTH),
    (("x.max() + 11", "x.max() - x.min()"), BOTH, set()),
    (("RADIUS = 0.1", "RADIUS = 0.11"), BOTH, set()),
    (('"power": 2', '"power": 3'), BOTH, set()),
    (('{"power": 2}', '{"power": 2, "more": [1]}'), BOTH, set()),
    (("(measure, 3.0)", "(measure, 4.0)"), {"lifted"}, set()),
    (("self.size = 7", "self.size = 8"), {"of_tool"}, set()),
    (("self.size - 4", "self.size - 5"), {"of_tool"}, set()),
    (("0.25", "0.5"), {"Named", "named"}, set()),
    (("states[:, 0, 0]", "states[:, 0, 3]"), {"Named", "named"}, set()),
    (("11", "12"), BOTH, set()),
    (("What it says", "What it really says"), set(), set()),
    (("    kept = [", "    # A comment.\n\n    kept = ["), set(), set()),
]


def words(found):
    """A fingerprint as another version of Python reads it."""
    return found.replace(found.split(":")[0], "3.99", 1)


@pytest.mark.parametrize(("edit", "made", "differ"), EDITS)
def test_what_is_edited_is_seen(tmp_path, monkeypatch, edit, made, differ):
    before = imported(tmp_path / "before", monkeypatch)
    assert imported(tmp_path / "again", monkeypatch) == before
    after = imported(tmp_path / "after", monkeypatch, edit)
    assert {name for name in NAMES if not same(before[name], words(after[name]))} == made
    assert {name for name in NAMES if not same(before[name], after[name])} == made | differ


def test_the_code_itself_counts_for_one_version_of_python_only():
    less, more = fingerprint(lambda x: x < 0.5), fingerprint(lambda x: x > 0.5)
    assert not same(less, more)
    assert same(less, words(more))


def parts_of(function):
    return read(function).parts


EQUAL_LETTERS = [
    ("x.max() - x.min()", "x.min() - x.max()"),
    ("x * 2 + 3", "x * 3 + 2"),
    ("x[0] - x[1]", "x[1] - x[0]"),
    ("np.sin(x) / np.cos(x)", "np.cos(x) / np.sin(x)"),
    ("x.sum(keepdims=True)", "x.sum(keepdims=False)"),
    ("dict(a=1, b=2)", "dict(b=1, a=2)"),
    ("x.f(1, a=1, b=x)", "x.f(1, b=1, a=x)"),
    ("f'{x:.3f}'", "f'{x!r:.3f}'"),
    ("x[1:2]", "x[2:1]"),
    ("x if x else 1", "1 if x else x"),
    ("x and 1 or 2", "x or 1 and 2"),
    ("[a for a in x for b in a]", "[b for a in x for b in a]"),
    ("x + 1", "x + 1.0"),
    ("x + 1", "x + True"),
    ("x", "-x"),
    ("[y for y in x if y > 1]", "[y for y in x if y >= 1]"),
    ("(lambda a, b: a - b)(x, 1)", "(lambda b, a: a - b)(x, 1)"),
]


def compiled(body, before=""):
    """A function of somebody, defined behind some lines of a module."""
    module = {"__name__": "somewhere"}
    exec(f"import numpy as np\n{before}\ndef f(x):\n    return {body}", module)
    return module["f"]


@pytest.mark.parametrize(("one", "other"), EQUAL_LETTERS)
def test_the_order_of_what_functions_name_counts(one, other):
    """Names and constants were known without their order: these pairs were taken for one function after an edit."""
    assert not same(fingerprint(compiled(one)), fingerprint(compiled(other)))
    for body in (one, other):
        again = compiled(body, "# elsewhere\n\nunused = 3")
        assert fingerprint(compiled(body)) == fingerprint(again)


HELD = [
    ("slice(0, 3)", "slice(0, 2)"),
    ("range(3)", "range(4)"),
    ("re.compile('a')", "re.compile('b')"),
    ("datetime.date(2020, 1, 1)", "datetime.date(2020, 1, 2)"),
    ("Fraction(1, 2)", "Fraction(1, 3)"),
    ("stats.norm(0, 1)", "stats.norm(0, 2)"),
    ("operator.itemgetter(1)", "operator.itemgetter(2)"),
    ("np.sin", "np.cos"),
    ("np.sum", "np.mean"),
    ("deque([1])", "deque([2])"),
    ("np.ma.array([1.0, 2.0], mask=[0, 1])", "np.ma.array([1.0, 2.0], mask=[1, 0])"),
    ("np.ma.array([1.0, 2.0], mask=[0, 1])", "np.ma.array([3.0, 2.0], mask=[0, 1])"),
    ("Enum('E', 'a b').a", "Enum('E', 'a b').b"),
    ("np.float32(0.1)", "np.float64(0.1)"),
    ("{'a': {'b': 1}}", "{'a': {'b': 2}}"),
    ("[1, 2]", "(1, 2)"),
    ("{1, 2}", "{1, 3}"),
    ("list(range(5000))", "[*range(4999), 0]"),
    ("lambda y: y + 1", "lambda y: y + 2"),
    ("functools.partial(np.quantile, q=0.1)", "functools.partial(np.quantile, q=0.2)"),
    ("np.vectorize(lambda y: y + 1)", "np.vectorize(lambda y: y + 2)"),
    ("np.poly1d([1, 2])", "np.poly1d([1, 3])"),
    ("np.array(['a', None], dtype=object)", "np.array(['b', None], dtype=object)"),
    ("xr.DataArray([1, 2], {'a': [0, 1]}, 'a')", "xr.DataArray([1, 2], {'a': [0, 2]}, 'a')"),
    ("ms.Attention(dim=2, beta=3.0)", "ms.Attention(dim=2, beta=4.0)"),
    (
        "ms.Attention(dim=2, beta=3.0, value=np.diag([1.0, 2.0]))",
        "ms.Attention(dim=2, beta=3.0, value=np.diag([1.0, 3.0]))",
    ),
    ("ms.observe.clusters(radius=0.1)", "ms.observe.clusters(radius=0.2)"),
]
IMPORTS = """
import datetime, functools, operator, re
from collections import deque
from enum import Enum
from fractions import Fraction
from scipy import stats
import xarray as xr
import metastable as ms
"""


@pytest.mark.parametrize(("one", "other"), HELD)
def test_what_globals_hold_counts(one, other):
    def known(value):
        return fingerprint(compiled("KEPT", f"{IMPORTS}\nKEPT = {value}"))

    assert known(one) == known(one)
    assert known(other) == known(other)
    assert not same(known(one), known(other))


def test_modules_of_somebody_are_followed(tmp_path, monkeypatch):
    """Of `lab.deep.tools.reach`, and where two functions use one module, each what it names."""
    monkeypatch.syspath_prepend(tmp_path)
    text = {
        "lab_of_modules/deep/tools.py": "def reach(x):\n    return x + 1\ndef other(x):\n    return x + 2\n",
        "lab_of_modules/main.py": "import lab_of_modules.deep.tools as short\nimport lab_of_modules.deep.tools\n"
        "def helper(x):\n    return short.other(x)\n"
        "def measure(x):\n    return lab_of_modules.deep.tools.reach(x) + helper(x)\n",
    }

    def known(*edit):
        for name, lines in text.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)  # (packages without __init__.py)
            (tmp_path / name).write_text(lines.replace(*edit) if edit else lines)
        for name in [name for name in sys.modules if name.startswith("lab_of_modules")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return fingerprint(importlib.import_module("lab_of_modules.main").measure)

    marks = [known(), known(), known("x + 1", "x + 8"), known("x + 2", "x + 9")]
    assert same(marks[0], marks[1])
    assert not same(marks[0], marks[2])
    assert not same(marks[0], marks[3])


def test_long_chains_of_calls_are_followed_and_wide_ones_are_read_once():
    chain = "\n".join(f"def f{k}(x):\n    return f{k + 1}(x)" for k in range(12)) + "\ndef f12(x):\n    return x + {}"
    assert not same(*(fingerprint(compiled("f0(x)", chain.format(number))) for number in (1, 2)))
    layers = "\n".join(
        f"def f{layer}_{k}(x):\n    return {' + '.join(f'f{layer + 1}_{j}(x)' for j in range(8))}"
        for layer in range(8)
        for k in range(8)
    )
    ends = "\n".join(f"def f8_{k}(x):\n    return x + {k}" for k in range(8))
    assert len(read(compiled("f0_0(x)", f"{layers}\n{ends}")).parts) < 3000


class Odd(dict):
    """Answers with a KeyError when it is asked for an attribute that it has not."""

    __getattr__ = dict.__getitem__

    def __call__(self, x):
        return x


@pytest.mark.parametrize("kind", [dict, list, tuple, set])
def test_collections_of_somebody_have_methods_too(kind):
    def made(level, items=(("a", 1),)):
        return type("Made", (kind,), {"__module__": __name__, "scaled": lambda self: level})(items)

    assert parts_of(shifted(made(1))) == parts_of(shifted(made(1)))
    assert parts_of(shifted(made(1))) != parts_of(shifted(made(2)))
    assert parts_of(shifted(made(1))) != parts_of(shifted(made(1, (("a", 2),))))


def test_odd_objects_are_read():
    assert parts_of(shifted(Odd(level=1))) != parts_of(shifted(Odd(level=2)))


def test_an_observable_of_the_package_has_a_function_of_somebody(tmp_path, monkeypatch):
    """Of an installed package, whose code is known by name to others only."""
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    (tmp_path / "site-packages/lab_installed").mkdir(parents=True)
    found = []
    for level in (1, 2):
        lines = (
            f"import metastable as ms\ndef f(x):\n    return x.max() + {level}\nHEIGHT = ms.observe.own(f, dims=())\n"
        )
        (tmp_path / "site-packages/lab_installed/__init__.py").write_text(lines)
        sys.modules.pop("lab_installed", None)
        importlib.invalidate_caches()
        made = importlib.import_module("lab_installed")
        found.append(
            [fingerprint(made.HEIGHT, home="lab_installed"), fingerprint(made.f), fingerprint(shifted(made.f))]
        )
    assert [same(*pair) for pair in zip(*found)] == [False, False, True]


def test_globals_that_a_function_does_not_read_do_not_count():
    assert fingerprint(compiled("x.mean()", "mean = 3")) == fingerprint(compiled("x.mean()", "mean = 4"))


def test_what_a_function_imports_when_it_is_called_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for level in (1, 2):
        (tmp_path / "imported_late.py").write_text(f"LEVEL = {level}\ndef deep(x):\n    return x + LEVEL\n")
        sys.modules.pop("imported_late", None)
        importlib.invalidate_caches()
        module = {"__name__": "somewhere"}
        exec("def f(x):\n    from imported_late import deep\n    return deep(x)", module)
        found.append(fingerprint(module["f"]))
    assert not same(*found)


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
    array = np.arange(5.0)
    assert parts_of(shifted(array)) == parts_of(shifted(array.copy()))
    assert parts_of(shifted(array)) != parts_of(shifted(array + 1e-9))
    assert parts_of(shifted(Pair(1, {"a": array}))) != parts_of(shifted(Pair(1, {"b": array})))
    assert parts_of(Cached(["a"])) == parts_of(Cached(["a"])) != parts_of(Cached(["b"]))
    assert parts_of(functools.partial(np.quantile, q=0.1)) != parts_of(functools.partial(np.quantile, q=0.2))
    assert parts_of(numba.njit(lambda x: x + 2)) == parts_of(lambda x: x + 2) != parts_of(numba.njit(lambda x: x + 3))
    assert parts_of(endless) == parts_of(endless)
    assert parts_of(shifted({endless: 1, len: 2})) == parts_of(shifted({endless: 1, len: 2}))
    assert "0x" not in str(parts_of(shifted([object(), {object()}, Pair(object(), iter(()))])))


def test_what_holds_itself_is_read_once():
    ring = [1.0]
    ring.append(ring)
    many = [[]]
    for _ in range(60):
        many = [many, many]
    assert parts_of(shifted(ring)) == parts_of(shifted(ring))
    assert len(parts_of(shifted(many))) < 300


def test_methods_count_but_those_of_dataclasses():
    def made(**methods):
        return type("Made", (), {"__module__": __name__, **methods})()

    assert parts_of(made(__call__=lambda self, x: x + 1)) != parts_of(made(__call__=lambda self, x: x + 2))
    assert parts_of(made(__getitem__=lambda self, x: x + 1)) != parts_of(made(__getitem__=lambda self, x: x + 2))
    for wrap in (property, functools.cached_property, staticmethod, classmethod):
        assert parts_of(made(of=wrap(lambda self: 1))) != parts_of(made(of=wrap(lambda self: 2)))
    assert parts_of(made(LEVEL=1)) != parts_of(made(LEVEL=2))
    assert not any("__eq__" in place for place in parts_of(Pair(1, 2)))


COUNTED = {}
SETTINGS = {"power": 2, "tried": 0}
SEEN, QUEUE, TABLE = [], [1, 2], None
MANY = dict.fromkeys(range(2000), 0)
calls = 0


@functools.lru_cache
def remembered(x, kept={}):  # noqa: B006
    global calls, TABLE
    calls += 1
    TABLE = np.arange(5) if TABLE is None else TABLE
    kept[x] = COUNTED[x] = SETTINGS["power"]
    SETTINGS["tried"] += 1
    SETTINGS[f"tried {x}"] = True
    SEEN.append(x)
    QUEUE.pop()
    MANY[x] = 1
    return x + 2.5


class Counts:
    def __init__(self):
        self.calls, self.level = 0, 3
        self.array = np.zeros(3)

    def __call__(self, x):
        self.calls += 1
        self.array[0] += 1
        self.last = x
        return x + self.level


def counting(function):
    """A decorator that remembers."""
    asked = []

    @functools.wraps(function)
    def asking(x):
        asked.append(x)
        return function(x)

    return asking


@pytest.mark.parametrize(
    "make", [lambda: remembered, Counts, lambda: counting(lambda x: x + 1)], ids=["globals", "object", "closure"]
)
def test_what_a_computation_changes_tells_no_functions_apart(make, monkeypatch):
    function = make()
    first, mark = read(function), fingerprint(function)
    for value in (1.0, 2.0):
        before = read(function)
        assert before.parts == first.parts
        function(value)
        assert value > 1.0 or read(function).parts != first.parts
        note_changes(before, read(function))
        assert read(function).parts == first.parts
        assert fingerprint(function) == mark
    # What somebody changes is seen all the same.
    if function is remembered:
        monkeypatch.setitem(SETTINGS, "power", 3)
        assert {place for place, text in read(function).parts.items() if first.parts.get(place) != text} == {
            ".SETTINGS['power']"
        }
        monkeypatch.setattr(sys.modules[__name__], "TABLE", np.arange(6))  # of what a computation has changed, too
        assert any(
            place.startswith(".TABLE") for place, text in read(function).parts.items() if first.parts.get(place) != text
        )
    elif isinstance(function, Counts):
        function.level = 4
        assert not same(fingerprint(function), mark)
        function.level, function.calls = 3, 100
        assert not same(fingerprint(function), mark)


def test_what_somebody_puts_where_a_computation_has_written_counts():
    function = Counts()
    marks = []
    for calls in (0, 100, 0):
        function.calls = calls
        marks.append(fingerprint(function))
        with watched([function]):
            function(1.0)
        assert function.calls == calls + 1
        assert fingerprint(function) == marks[-1]
    assert marks[0] != marks[1]


def test_changes_are_noted_when_a_computation_fails():
    function = Counts()
    mark = fingerprint(function)
    with pytest.raises(TypeError), watched([function]):
        function("text")
    assert function.calls == 1
    assert fingerprint(function) == mark


def test_libraries_are_known_by_name():
    """Their code is another one in every version, and no one's own."""
    assert list(parts_of(np.median).values()) == ["median"]
