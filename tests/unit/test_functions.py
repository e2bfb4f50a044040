"""What tells a function from another one of the same name."""

import functools
import importlib
import sys
from dataclasses import dataclass

import numba
import numpy as np
import pytest

from metastable._functions.reading import _CHANGING, read, unchanged


def parts_of(function, home=""):
    return read(function, home).parts


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
    """Names and constants were known without their order: these pairs were taken for one function."""
    assert parts_of(compiled(one)) != parts_of(compiled(other))
    for body in (one, other):
        assert parts_of(compiled(body)) == parts_of(compiled(body, "# elsewhere\n\nunused = 3"))


def test_how_code_was_compiled_does_not_count():
    later = {"__name__": "somewhere"}
    exec("from __future__ import annotations\ndef f(x):\n    return x + 1", later)
    assert parts_of(later["f"]) == parts_of(compiled("x + 1"))


HELD = [
    ("slice(0, 3)", "slice(0, 2)"),
    ("range(3)", "range(4)"),
    ("re.compile('a')", "re.compile('b')"),
    ("datetime.date(2020, 1, 1)", "datetime.date(2020, 1, 2)"),
    ("Fraction(1, 2)", "Fraction(1, 3)"),
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
    ("ms.Attention(dim=2, beta=3.0)", "ms.Attention(dim=2, beta=4.0)"),
    (
        "ms.Attention(dim=2, beta=3.0, value=np.diag([1.0, 2.0]))",
        "ms.Attention(dim=2, beta=3.0, value=np.diag([1.0, 3.0]))",
    ),
    ("ms.observe.clusters(radius=0.1)", "ms.observe.clusters(radius=0.2)"),
    ("SimpleNamespace(deep=SimpleNamespace(a=1))", "SimpleNamespace(deep=SimpleNamespace(a=2))"),
    ("Path('a')", "Path('b')"),
    ("pd.Series([1.0, 2.0])", "pd.Series([1.0, 3.0])"),
    ("torch.nn.Parameter(torch.ones(2))", "torch.nn.Parameter(torch.zeros(2))"),
    ("np.array(['a', None], dtype=object)", "np.array(['b', None], dtype=object)"),
    ("pd.Series([1.0, 2.0], index=['a', 'b'])", "pd.Series([1.0, 2.0], index=['b', 'a'])"),
    ("pd.DataFrame({'a': ['x'], 'b': [1]})", "pd.DataFrame({'a': ['y'], 'b': [1]})"),
    ("pd.DataFrame({'a': [1]})", "pd.DataFrame({'b': [1]})"),
    ("xr.DataArray([1, 2], {'a': [0, 1]}, 'a')", "xr.DataArray([1, 2], {'a': [0, 2]}, 'a')"),
    ("xr.Dataset({'v': ('a', [1, 2])})", "xr.Dataset({'v': ('a', [1, 3])})"),
    ("np.vectorize(lambda y: y + 1)", "np.vectorize(lambda y: y + 2)"),
    ("[{'a': 1, 'b': 2}]", "[{'a': 1, 'b': 3}]"),
    ("dict.fromkeys(range(5000), 0)", "dict.fromkeys(range(5000), 0) | {4000: 1}"),
    ("[[{'a': [k]} for k in range(2000)]]", "[[{'a': [k]} for k in range(1999)] + [{'a': [0]}]]"),
    ("{(0, 1): 2.0}", "{(0, 2): 2.0}"),
    ("{(0, len): 2.0}", "{(0, max): 2.0}"),
    ("{frozenset({1})}", "{frozenset({2})}"),
    ("[[0.5] * 400 for k in range(400)]", "[[0.5] * 400 for k in range(399)] + [[0.5] * 399 + [1.0]]"),
    ("[[1], [1, 2]] * 600", "[[1], [1, 3]] * 600"),
    ("dict.fromkeys(range(5000), 0)", "dict.fromkeys(range(5000), 1)"),
    ("[2.0**53, 2**53]", "[2.0**53, 2**53 + 1]"),
    ("re.compile('a' * 300 + 'b')", "re.compile('a' * 300 + 'c')"),
    ("{'a': 1}.get", "{'a': 2}.get"),
    ("UserDict(a=1)", "UserDict(a=2)"),
    ("array('d', [1.0])", "array('d', [2.0])"),
    (
        "functools.update_wrapper(functools.partial(np.quantile, q=0.1), np.quantile)",
        "functools.update_wrapper(functools.partial(np.quantile, q=0.2), np.quantile)",
    ),
    ("np.zeros((2, 0))", "np.zeros((0, 2))"),
    ("np.array('2020-01-01', 'M8[D]')", "np.array('2020-01-02', 'M8[D]')"),
    ("[[0.0] * 3] * 2000", "[[0.0] * 3] * 1999 + [[0.0, 0.0, 1.0]]"),
]
IMPORTS = """
import datetime, functools, operator, re
from array import array
from collections import UserDict, deque
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
import pandas as pd
import torch
import xarray as xr
import metastable as ms
"""


@pytest.mark.parametrize(("one", "other"), HELD)
def test_what_globals_hold_counts(one, other):
    def known(value):
        return parts_of(compiled("KEPT", f"{IMPORTS}\nKEPT = {value}"))

    assert known(one) == known(one)
    assert known(other) == known(other)
    assert known(one) != known(other)


BUSY = [
    "logging.getLogger('somewhere')",
    "itertools.count()",
    "threading.Lock()",
    "np.random.default_rng()",
    "object()",
    "uuid.uuid4()",
    "torch.Generator()",
    "os.environ",
    "iter([1, 2])",
    "scipy.spatial.cKDTree(np.random.default_rng().normal(size=(50, 2)))",
    "(lambda made: (next(made), made)[1])(itertools.cycle('ab'))",
]
BUSY_IMPORTS = "import itertools, logging, os, sys, threading, uuid\nimport scipy.spatial, torch"


@pytest.mark.parametrize("value", BUSY)
def test_objects_of_libraries_are_known_by_the_name_of_their_type(value):
    """What is inside differs from one process to the next, and while it runs (of a logger, all loggers of all libraries)."""
    one, other = (compiled("KEPT", f"{BUSY_IMPORTS}\nKEPT = {value}") for _ in range(2))
    assert parts_of(one) == parts_of(other)
    assert len(parts_of(one)) < 10


def test_long_chains_of_calls_are_followed_and_wide_ones_are_read_once():
    chain = "\n".join(f"def f{k}(x):\n    return f{k + 1}(x)" for k in range(12)) + "\ndef f12(x):\n    return x + {}"
    assert parts_of(compiled("f0(x)", chain.format(1))) != parts_of(compiled("f0(x)", chain.format(2)))
    layers = "\n".join(
        f"def f{layer}_{k}(x):\n    return {' + '.join(f'f{layer + 1}_{j}(x)' for j in range(8))}"
        for layer in range(8)
        for k in range(8)
    )
    ends = "\n".join(f"def f8_{k}(x):\n    return x + {k}" for k in range(8))
    assert len(parts_of(compiled("f0_0(x)", f"{layers}\n{ends}"))) < 3000


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


class Hostile:
    """Raises whatever it is asked."""

    __slots__ = ("level",)

    def __getattribute__(self, name):
        if name == "__class__":
            return Hostile
        raise RuntimeError(name)


def test_what_raises_when_it_is_read_is_not_told():
    assert parts_of(shifted(Hostile())) == parts_of(shifted(Hostile()))
    assert any("not told" in text for text in parts_of(shifted(Hostile())).values())


def test_nothing_is_imported_to_be_read(tmp_path, monkeypatch):
    """Reading ran a script that the function names, and `sys.exit` in it ended the process."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_late.py").write_text("raise SystemExit('usage')\n")
    found = compiled("x")
    exec("def f(x):\n    from imported_late import deep\n    return deep(x)", found.__globals__)
    assert parts_of(found.__globals__["f"])
    assert "imported_late" not in sys.modules


def test_an_observable_of_the_package_has_a_function_of_somebody(tmp_path, monkeypatch):
    """Of an installed package, whose code is known by name to others only."""
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    (tmp_path / "site-packages/lab_installed").mkdir(parents=True)
    found = []
    for level in (1, 2):
        lines = "import metastable as ms\ndef f(x):\n    return x.max() + {}\nHEIGHT = ms.observe.own(f, dims=())\n"
        (tmp_path / "site-packages/lab_installed/__init__.py").write_text(lines.format(level))
        sys.modules.pop("lab_installed", None)
        importlib.invalidate_caches()
        made = importlib.import_module("lab_installed")
        found.append([parts_of(made.HEIGHT, "lab_installed"), parts_of(made.f), parts_of(shifted(made.f))])
    del sys.modules["lab_installed"]
    assert [one == other for one, other in zip(*found)] == [False, False, True]


def test_globals_that_a_function_does_not_read_do_not_count():
    assert parts_of(compiled("x.mean()", "mean = 3")) == parts_of(compiled("x.mean()", "mean = 4"))
    assert parts_of(compiled("globals()['K'] * x", "K = 3")) != parts_of(compiled("globals()['K'] * x", "K = 4"))


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
RADII = {"near": 2}
SEEN, QUEUE, TABLE = [], [1] * 9, None
MANY = dict.fromkeys(range(2000), 0)
calls = 0


@functools.lru_cache
def remembered(x, kept={}):  # noqa: B006
    global calls, TABLE
    calls += 1
    TABLE = np.arange(5) if TABLE is None else TABLE
    kept[x] = COUNTED[x] = SETTINGS["power"] + RADII["near"]
    SETTINGS["tried"] += 1
    SETTINGS[f"tried {x}"] = True
    SEEN.append(x)
    QUEUE.pop()
    MANY[0] += 1
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


CHANGING = [lambda: remembered, Counts, lambda: counting(lambda x: x + 1)]


@pytest.mark.parametrize("make", CHANGING, ids=["globals", "object", "closure"])
def test_what_a_computation_changes_tells_no_functions_apart(make, monkeypatch):
    """Nor does what is called by hand, before the first computation or between two."""
    function = make()
    found = []
    for value in (1.0, 2.0, 3.0):
        function(10.0 * value)
        before = read(function)
        function(value)
        found.append(unchanged(function, before, read(function)))
    assert found[0] == found[1] == found[2]
    # What somebody changes is seen all the same.
    if function is remembered:
        monkeypatch.setitem(RADII, "near", 3)
    elif isinstance(function, Counts):
        function.level = 4
    else:
        return
    before = read(function)
    assert unchanged(function, before, before) != found[0]


def test_what_computations_change_is_remembered():
    """The second one finds its results in the table, and changes nothing."""
    function = counting(lambda x: x + 1)
    before = read(function)
    function(1.0)
    first = unchanged(function, before, read(function))
    before = read(function)
    assert unchanged(function, before, before) == first


def test_a_large_table_of_results_is_one_place():
    """Each of its entries was compared with each of the others."""
    kept = {}

    def remembering(x):
        return kept.setdefault(x, [np.zeros(2), len])

    before = read(remembering)
    for value in range(20_000):
        remembering(value)
    assert [place for place in unchanged(remembering, before, read(remembering)) if "kept" in place] == []
    assert _CHANGING[remembering] == {".kept"}


def test_functions_that_are_gone_are_forgotten():
    known = len(_CHANGING)
    function = counting(lambda x: x + 1)
    before = read(function)
    function(1.0)
    unchanged(function, before, read(function))
    assert len(_CHANGING) == known + 1
    del function, before
    assert len(_CHANGING) == known


def test_large_things_are_read_quickly():
    """As arrays, once each: lists of objects that know one another were read again for every one."""

    class Link:
        def __init__(self):
            self.others = []

    links = [Link() for _ in range(3000)]
    for link in links:
        link.others = links
    assert len(parts_of(shifted(links))) < 20_000
    assert len(parts_of(shifted(list(range(200_000))))) < 10
    assert len(parts_of(shifted([{"a": k} for k in range(150_000)]))) < 110_000


def test_libraries_are_known_by_name():
    """Their code is another one in every version, and no one's own."""
    assert list(parts_of(np.median).values()) == ["median"]


class Tool:
    def __init__(self, level):
        self.level = level

    @functools.lru_cache  # noqa: B019
    def kept(self, x):
        return x * self.level

    @counting
    def wrapped(self, x):
        return x * self.level


class Decorator:
    def __init__(self, function, level):
        functools.update_wrapper(self, function)
        self.function, self.level = function, level

    def __call__(self, x):
        return self.function(x) * self.level


def attributed(level):
    def f(x):
        return x * f.level

    f.level = level
    return f


ALIKE = {
    "wrapped method": lambda level: Tool(level).wrapped,
    "decorator": lambda level: Decorator(endless, level),
    "attribute": attributed,
    "named tuple": lambda level: shifted({level: Pair(level, 1)}),
    "helper behind a large table": lambda level: compiled(
        "TABLE and g(x)", f"TABLE = {{k: [k, len] for k in range(60000)}}\ndef g(x):\n    return {level}"
    ),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_functions_of_one_name_that_hold_something_else(kind):
    assert parts_of(ALIKE[kind](1)) == parts_of(ALIKE[kind](1))
    assert parts_of(ALIKE[kind](1)) != parts_of(ALIKE[kind](2))
