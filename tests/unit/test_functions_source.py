"""What tells a function that can be imported from its own edited version: the text of whatever defines it."""

import importlib
import os
import subprocess
import sys

import pytest

from metastable._functions.source import fingerprint
from metastable._functions.written import not_as_written, note
from tests.unit.test_functions import EQUAL_LETTERS

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


class Lab:
    """Modules in a folder, which nobody imports unless a test does."""

    def __init__(self, folder, monkeypatch):
        monkeypatch.syspath_prepend(folder)
        self.folder, self.monkeypatch = folder, monkeypatch

    def write(self, **texts):
        for name, text in texts.items():
            place = self.folder / f"{name}.py"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        importlib.invalidate_caches()

    def imported(self, name):
        for known in [known for known in sys.modules if known.partition(".")[0] == name.partition(".")[0]]:
            self.monkeypatch.delitem(sys.modules, known)
        return importlib.import_module(name)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    yield Lab(tmp_path, monkeypatch)
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


BOTH = {"measure", "lifted"}
EDITS = [
    (("1.5", "1.25"), BOTH),
    (("np.mean", "np.median"), BOTH),
    (("axis=0", "axis=1"), BOTH),
    (("] > cut", "] < cut"), BOTH),
    (("[y + 1.5", "[1.5 - y"), BOTH),
    (("x[:, 0] > cut", "x[0, :] > cut"), BOTH),
    (("x.max() + 11", "x.max() - x.min()"), BOTH),
    (("RADIUS = 0.1", "RADIUS = 0.11"), BOTH),
    (('"power": 2', '"power": 3'), BOTH),
    (('{"power": 2}', '{"power": 2, "more": [1]}'), BOTH),
    (("(measure, 3.0)", "(measure, 4.0)"), {"lifted"}),
    (("self.size = 7", "self.size = 8"), {"of_tool"}),
    (("self.size - 4", "self.size - 5"), {"of_tool"}),
    (("0.25", "0.5"), {"Named", "named"}),
    (("states[:, 0, 0]", "states[:, 0, 3]"), {"Named", "named"}),
    (("11", "12"), BOTH),
    (("named = Named()", "named = Named(0.75)"), {"named"}),
    (("tool = Tool()\n", "tool = Tool()\ntool.size = 9\n"), {*NAMES}),
    (("RADIUS = 0.1\n", "RADIUS = 0.1\nRADIUS *= 2\n"), BOTH),
    (('SETTINGS = {"power": 2}\n', 'SETTINGS = {"power": 2}\nSETTINGS.update(power=3)\n'), {*NAMES}),
    (("What it says", "What it really says"), set()),
    (("    kept = [", "    # A comment.\n\n    kept = ["), set()),
    (("def near(x, cut):", "def near(x: object, cut: float = ...) -> bool:"), BOTH),
    (("def near(x, cut):", "def near(x: object, cut: float) -> bool:"), set()),
    (("import numpy as np", "import numpy as np, json\nother = 3\nprint(other)"), set()),
    (("import reach", "import reach, more"), set()),
]


@pytest.mark.parametrize(("edit", "differ"), EDITS)
def test_what_is_edited_is_seen(lab, edit, differ):
    def known():
        return {name: fingerprint("lab_of_tests", name) for name in NAMES}

    lab.write(lab_of_tests=SOURCE, helper_of_tests=HELPER)
    before = known()
    assert known() == before
    assert edit[0] in SOURCE + HELPER
    lab.write(lab_of_tests=SOURCE.replace(*edit), helper_of_tests=HELPER.replace(*edit))
    after = known()
    assert {name for name in NAMES if before[name] != after[name]} == differ
    assert "lab_of_tests" not in sys.modules  # nothing is imported


@pytest.mark.parametrize(("one", "other"), EQUAL_LETTERS)
def test_the_order_of_what_functions_name_counts(lab, one, other):
    def known(body, before=""):
        lab.write(letters_of_tests=f"import numpy as np\n{before}\ndef f(x):\n    return {body}")
        return fingerprint("letters_of_tests", "f")

    assert known(one) != known(other)
    assert known(one) == known(one, "# elsewhere\n\nunused = 3")


def test_modules_of_somebody_are_followed(lab):
    """Of packages, by every way to import them, what is used of them and nothing else."""
    tools = "LEVEL = 1\ndef reach(x):\n    return x + LEVEL\ndef other(x):\n    return x + 20\ndef unused(x):\n    return 300\n"
    ways = {
        "plain": "import package_of_tests.deep.tools\ndef f(x):\n    return package_of_tests.deep.tools.reach(x)",
        "short": "import package_of_tests.deep.tools as short\ndef f(x):\n    return short.reach(x)",
        "names": "from package_of_tests.deep.tools import reach as r, unused\ndef f(x):\n    return r(x)",
        "module": "from package_of_tests.deep import tools\ndef f(x):\n    return tools.reach(x)",
        "relative": "from .deep import tools\ndef f(x):\n    return tools.reach(x)",
        "up": "from .deep.tools import reach\ndef f(x):\n    return reach(x)",
        "all": "from package_of_tests.deep.tools import *\ndef f(x):\n    return reach(x)",
        "late": "def f(x):\n    from package_of_tests.deep.tools import reach\n    return reach(x)",
        "handed": "import package_of_tests\ndef f(x):\n    return package_of_tests.reach(x)",
        "perhaps": "try:\n    from package_of_tests.deep.tools import reach\nexcept ImportError:\n    reach = None\n"
        "def f(x):\n    return reach(x)",
        "by_word": "import package_of_tests.deep.tools as t\ndef f(x):\n    return getattr(t, 'reach')(x)",
    }
    lab.write(**{"package_of_tests/__init__": "from package_of_tests.deep.tools import reach\n"})
    lab.write(**{f"package_of_tests/{way}": text for way, text in ways.items()})

    def known(*edit):
        lab.write(**{"package_of_tests/deep/tools": tools.replace(*edit) if edit else tools})
        return {way: fingerprint(f"package_of_tests.{way}", "f") for way in ways}

    marks = known()
    for edit in (("x + LEVEL", "x - LEVEL"), ("LEVEL = 1", "LEVEL = 2")):
        assert [way for way, mark in known(*edit).items() if mark == marks[way]] == []
    for edit in (("x + 20", "x + 21"), ("300", "301")):
        others = known(*edit)
        assert {way for way in ways if others[way] != marks[way]} == {"by_word"}  # which takes all of the module


def test_what_a_process_does_is_no_edit(lab):
    """Tables, counters, loggers, hashes, times: whatever modules hold when they are read."""
    lab.write(
        busy_of_tests="import logging, time, os, itertools, uuid\nfrom os import environ\nlog = logging.getLogger(__name__)\n"
        "begun, ids, mark, TABLE, calls = time.time(), itertools.count(), uuid.uuid4(), {}, 0\n"
        "def f(x):\n    global calls\n    calls += 1\n    TABLE[len(TABLE)] = next(ids)\n    log.debug(x)\n"
        "    return x + (time.time() > begun) * len(environ) * len({'a', str(mark)})\n"
    )
    mark = fingerprint("busy_of_tests", "f")
    made = lab.imported("busy_of_tests")
    for _ in range(3):
        made.f(1.0)
        assert fingerprint("busy_of_tests", "f") == mark
        assert not_as_written("busy_of_tests", "f") == ""
    for seed in ("1", "2"):
        command = "from metastable._functions.source import fingerprint as f; import busy_of_tests; print(f('busy_of_tests', 'f'))"
        found = subprocess.run(
            [sys.executable, "-O", "-c", command],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path), "MORE": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == mark


LOADED = "CUT = 0.5\nTABLE = {}\ndef near(x):\n    return x > CUT\nclass Near:\n    def measure(self, x):\n        return near(x)\n"


@pytest.mark.parametrize("edit", [("x > CUT", "x < CUT"), ("0.5", "0.75"), ("return near(x)", "return not near(x)")])
def test_what_is_edited_after_its_import_is_not_as_written(lab, edit):
    """Results would be kept as those of the text, which this process has not."""
    lab.write(loaded_of_tests=LOADED)
    made = lab.imported("loaded_of_tests")
    made.TABLE["a"] = 1
    assert not_as_written("loaded_of_tests", "Near") == ""
    lab.write(loaded_of_tests=LOADED.replace(*edit))
    assert not_as_written("loaded_of_tests", "Near").startswith("loaded_of_tests:")
    importlib.reload(made)
    assert not_as_written("loaded_of_tests", "Near") == ""


@pytest.mark.parametrize("edit", [("x > CUT", "x < CUT"), ("0.5", "0.75"), ("return near(x)", "return not near(x)")])
def test_what_was_edited_before_anybody_asked_is_not_as_written(lab, edit):
    lab.write(early_of_tests=LOADED)
    lab.imported("early_of_tests")
    lab.write(early_of_tests=LOADED.replace(*edit))
    assert not_as_written("early_of_tests", "Near").startswith("early_of_tests:")


def test_tables_that_are_edited_after_the_first_question(lab):
    text = "SETTINGS = {'radius': 0.1}\ndef f(x):\n    return x < SETTINGS['radius']\n"
    lab.write(table_of_tests=text)
    lab.imported("table_of_tests")
    assert not_as_written("table_of_tests", "f") == ""
    lab.write(table_of_tests=text.replace("0.1", "0.2"))
    assert not_as_written("table_of_tests", "f") == "table_of_tests:SETTINGS"


def test_constants_that_are_set_from_outside_are_not_as_written(lab):
    lab.write(outside_of_tests=LOADED)
    made = lab.imported("outside_of_tests")
    made.CUT = 0.6
    assert not_as_written("outside_of_tests", "near") == "outside_of_tests:CUT"


DECORATED = """
import functools
import numba
from dataclasses import dataclass

def twice(function):
    @functools.wraps(function)
    def doubled(x):
        return 2 * function(x)
    return doubled

def plainly(function):
    def called(x):
        return function(x)
    return called

@twice
def a(x):
    return x + 1

@plainly
def b(x):
    return x + 2

@functools.lru_cache
def c(x):
    assert x < 10
    return x + 3

@numba.njit
def d(x):
    return x + 4

@dataclass(frozen=True)
class E:
    level: float = 0.5

    @property
    def more(self):
        return self.level + 5

    @staticmethod
    def of(x):
        return x + 6

e = E(0.25)
f = functools.partial(a, 7)
g = lambda x: x + 8
h = [a, b]
"""


@pytest.mark.parametrize("name", "abcdEefgh")
def test_whatever_is_made_of_functions_is_as_written(lab, name):
    lab.write(decorated_of_tests=DECORATED)
    lab.imported("decorated_of_tests")
    assert not_as_written("decorated_of_tests", name) == ""


def test_a_text_that_cannot_be_read_is_another_one(lab):
    lab.write(broken_of_tests="def f(x):\n    return x\n")
    mark = fingerprint("broken_of_tests", "f")
    lab.write(broken_of_tests="def f(x):\n    return (x\n")
    assert fingerprint("broken_of_tests", "f") != mark
    assert fingerprint("nowhere_of_tests", "f") == fingerprint("nowhere_of_tests", "f")


TOOLS = "LEVEL = 1\ndef reach(x):\n    return x + LEVEL\n"
PACKAGES = {
    "submodule of the package": {
        "__init__": "from . import tools",
        "f": "from seen_lab import tools\ndef f(x):\n    return tools.reach(x)",
    },
    "by a dot": {"__init__": "from . import tools", "f": "from . import tools\ndef f(x):\n    return tools.reach(x)"},
    "package": {
        "__init__": "from . import tools",
        "f": "import seen_lab\ndef f(x):\n    return seen_lab.tools.reach(x)",
    },
    "elsewhere imported": {
        "__init__": "import seen_lab.tools",
        "f": "import seen_lab\ndef f(x):\n    return seen_lab.tools.reach(x)",
    },
    "all of it": {
        "__init__": "from .tools import *",
        "f": "from seen_lab import reach\ndef f(x):\n    return reach(x)",
    },
    "all of all": {
        "__init__": "from .more import *",
        "more": "from .tools import *",
        "f": "import seen_lab\ndef f(x):\n    return seen_lab.reach(x)",
    },
    "all, perhaps": {
        "__init__": "try:\n    from .tools import *\nexcept ImportError:\n    pass",
        "f": "import seen_lab\ndef f(x):\n    return seen_lab.reach(x)",
    },
    "settings over defaults": {"__init__": "", "f": "LEVEL = 0\nfrom .tools import *\ndef f(x):\n    return x + LEVEL"},
    "alias": {"__init__": "", "f": "from . import tools\nT = tools\ndef f(x):\n    return T.reach(x)"},
    "in a table": {"__init__": "", "f": "from . import tools\nT = {'t': tools}\ndef f(x):\n    return T['t'].reach(x)"},
    "by name": {
        "__init__": "",
        "f": "import importlib\ndef f(x):\n    return importlib.import_module('seen_lab.tools').reach(x)",
    },
    "by the package, unasked": {
        "__init__": "from . import config\nfrom .tools import LEVEL\nconfig.CUT = LEVEL",
        "config": "CUT = 0",
        "f": "from .config import CUT\ndef f(x):\n    return x + CUT",
    },
    "setting another module": {
        "__init__": "import seen_lab.config as config\nfrom .tools import LEVEL\nconfig.CUT = LEVEL",
        "config": "CUT = 0",
        "f": "from seen_lab import config\ndef f(x):\n    return x + config.CUT",
    },
}


@pytest.mark.parametrize("kind", PACKAGES)
def test_whatever_way_a_helper_is_imported(lab, kind):
    for name, text in PACKAGES[kind].items():
        lab.write(**{f"seen_lab/{name}": text})
    found = []
    for level in (1, 1, 2):
        lab.write(**{"seen_lab/tools": TOOLS.replace("1", str(level))})
        values = lab.imported("seen_lab.f").f(0), fingerprint("seen_lab.f", "f")
        found.append(values)
        assert values == (level, fingerprint("seen_lab.f", "f"))
    assert found[0] == found[1]
    assert found[0][1] != found[2][1]


DOINGS = [
    (
        "R = {}\ndef register(g):\n    R[g.__name__] = g\n    return g\n"
        "@register\ndef a(x):\n    return EDIT\ndef f(x):\n    return R['a'](x)"
    ),
    (
        "import functools\n@functools.singledispatch\ndef size(x):\n    return 0\n"
        "@size.register\ndef _(x: int):\n    return EDIT\ndef f(x):\n    return size(x)"
    ),
    ("CUT = None\ndef configure(v):\n    global CUT\n    CUT = v\nconfigure(EDIT)\ndef f(x):\n    return CUT"),
    ("class A:\n    level = 0\nfor c in (A,):\n    c.level = EDIT\ndef f(x):\n    return A.level"),
    (
        "R = []\nclass Base:\n    def __init_subclass__(cls):\n        R.append(cls)\n"
        "class One(Base):\n    level = EDIT\ndef f(x):\n    return R[0].level"
    ),
    ("T = {}\nU = T\nU['a'] = EDIT\ndef f(x):\n    return T['a']"),
    ("match (1, EDIT):\n    case (LOW, HIGH):\n        pass\ndef f(x):\n    return HIGH"),
    ("if __name__ == '__main__':\n    CUT = 7\nelse:\n    CUT = EDIT\ndef f(x):\n    return CUT"),
    ("T = []\n[T.append(k) for k in (0, EDIT)]\ndef f(x):\n    return T[1]"),
]


@pytest.mark.parametrize("text", DOINGS)
def test_what_modules_do_when_they_are_imported_counts(lab, text):
    marks = []
    for value in (3, 4):
        lab.write(doing_lab=text.replace("EDIT", str(value)))
        assert lab.imported("doing_lab").f(0) == value
        assert not_as_written("doing_lab", "f") == ""
        marks.append(fingerprint("doing_lab", "f"))
    assert marks[0] != marks[1]


def test_the_order_of_statements_counts(lab):
    lines = ["R = 0.1", "CUT = 2 * R", "R = 0.5", "def f(x):\n    return x < CUT"]
    lab.write(order_lab="\n".join(lines))
    mark = fingerprint("order_lab", "f")
    lab.write(order_lab="\n".join([lines[0], lines[2], lines[1], lines[3]]))
    assert fingerprint("order_lab", "f") != mark


def test_a_module_of_ones_own_may_be_called_like_one_of_python(lab):
    marks = []
    for value in (1, 2):
        lab.write(
            graphlib=f"def reach(x):\n    return {value}\n",
            like_lab="import graphlib\ndef f(x):\n    return graphlib.reach(x)\n",
        )
        marks.append(fingerprint("like_lab", "f"))
    assert marks[0] != marks[1]


def test_a_helper_that_alone_was_imported_again(lab):
    """The function still had the former one, and its numbers were kept as those of the new one."""
    lab.write(
        helping_lab="def reach(x):\n    return 1.0\n",
        helped_lab="from helping_lab import reach\ndef f(x):\n    return reach(x)\n",
    )
    made = lab.imported("helped_lab")
    note("helped_lab", "f")
    lab.write(helping_lab="def reach(x):\n    return 2000.0\n")
    assert not_as_written("helped_lab", "f")
    importlib.reload(sys.modules["helping_lab"])
    assert not_as_written("helped_lab", "f") == "helped_lab:reach"
    importlib.reload(made)
    assert not_as_written("helped_lab", "f") == ""


@pytest.mark.parametrize(
    "edit",
    [("cut=1.0", "cut=20.0"), ("'r': 1.0", "'r': 20.0"), ("1 / 3", "2 / 3"), ("partial(pow, 1)", "partial(pow, 20)")],
)
def test_edits_between_the_import_and_the_first_question_by_the_bytecode(lab, monkeypatch, edit):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    text = "import functools\nS = {'r': 1.0}\nP = functools.partial(pow, 1)\nT = 1 / 3\n"
    text += "def f(x, cut=1.0):\n    return x * S['r'] * T * P(2)\n"
    lab.write(compiled_lab=text)
    lab.imported("compiled_lab")
    lab.write(compiled_lab=text.replace(*edit))
    assert not_as_written("compiled_lab", "f")


def test_functions_that_are_set_from_outside(lab):
    lab.write(replaced_lab="def g(x):\n    return 1.0\ndef f(x):\n    return g(x)\n")
    made = lab.imported("replaced_lab")
    assert not_as_written("replaced_lab", "f") == ""
    made.g = lambda x: 7.0
    assert not_as_written("replaced_lab", "f") == "replaced_lab:g"


def test_two_functions_of_one_module_are_noted(lab):
    lab.write(
        first_lab="A = [1]\n",
        second_lab="B = [1]\n",
        both_lab="import first_lab, second_lab\ndef f(x):\n    return first_lab.A\ndef g(x):\n    return second_lab.B\n",
    )
    lab.imported("both_lab")
    note("both_lab", "f")
    note("both_lab", "g")
    lab.write(second_lab="B = [2]\n")
    assert not_as_written("both_lab", "f") == ""
    assert not_as_written("both_lab", "g") == "second_lab:B"


def test_counters_in_another_module_are_no_edit(lab):
    lab.write(
        count_lab="calls = 0\nMODE = None\n",
        counted_lab="import count_lab\ndef f(x):\n    count_lab.calls += 1\n    count_lab.MODE = 'fast'\n    return x\n",
    )
    made = lab.imported("counted_lab")
    assert not_as_written("counted_lab", "f") == ""
    made.f(1)
    assert not_as_written("counted_lab", "f") == ""


def test_long_formulas_and_numbers(lab):
    marks = []
    for value in (0, 1):
        terms = "+".join(f"{k}*x" for k in range(1500))
        lab.write(long_lab=f"N = 0x1{'0' * 5000}{value}\ndef f(x):\n    return {terms}+{value}\n")
        lab.imported("long_lab")
        assert not_as_written("long_lab", "f") == ""
        marks += [fingerprint("long_lab", "f"), fingerprint("long_lab", "N")]
    assert len({*marks}) == 4


def test_a_file_that_is_half_saved_is_not_as_written(lab):
    lab.write(half_lab="def f(x):\n    return x\n")
    lab.imported("half_lab")
    lab.write(half_lab="def f(x):\n    return (x\n")
    assert not_as_written("half_lab", "f")
