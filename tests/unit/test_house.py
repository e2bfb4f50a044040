"""The size of the house: parameters of functions, names of files, and nothing written twice."""

import ast
import copy
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

import metastable
import metastable as ms
from metastable.errors import UnsupportedError
from metastable.kernels import reference, select
from metastable.model import Support, why_not

ROOT = Path(metastable.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> list[tuple[str, Function]]:
    """Every function of the package with its file."""
    trees = ((str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in FILES)
    return [(name, node) for name, tree in trees for node in ast.walk(tree) if isinstance(node, Function)]


def parameters(node: Function) -> int:
    """How many parameters a function has; all `*args` are one."""
    given = node.args
    named = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
    return named + (given.vararg is not None) + (given.kwarg is not None)


@pytest.mark.parametrize(("more_than", "most"), [(12, 5), (8, 35)])
def test_few_functions_have_many_parameters(more_than, most):
    """Commands aside, whose parameters are the flags of the command line."""
    found = [
        (parameters(node), name, node.name)
        for name, node in functions()
        if parameters(node) > more_than and not name.startswith("cli/")
    ]
    assert len(found) <= most, sorted(found, reverse=True)


def test_no_file_name_stands_more_than_twice():
    counts = Counter(path.name for path in FILES if path.name != "__init__.py")
    assert {name: count for name, count in counts.items() if count > 2} == {}


class _Anonymous(ast.NodeTransformer):
    """Names in the order in which they appear."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def _call(self, name: str) -> str:
        return self.known.setdefault(name, f"name{len(self.known)}")

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._call(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg, node.annotation = self._call(node.arg), None
        return node


def shape(node: Function) -> tuple[int, str]:
    """The number of nodes of a function and what is left of it without names, types, decorators and docstring."""
    node = copy.deepcopy(node)
    node.name, node.decorator_list, node.returns = "", [], None
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        node.body = node.body[1:]
    return sum(1 for _ in ast.walk(node)), ast.dump(_Anonymous().visit(node))


def test_no_function_is_written_twice():
    alike = defaultdict(list)
    for name, node in functions():
        size, form = shape(node)
        if size >= 60:
            alike[form].append(f"{name}:{node.name}")
    assert [names for names in alike.values() if len(names) > 1] == []


def test_an_engine_is_a_module_with_three_names(monkeypatch):
    """As CONTRIBUTING says: `Support`, `refusal`, `right_hand_side`; what has to do with series only where it has some."""
    support = Support("engine='mirror'", frozenset({"post_ln"}), frozenset({"causal"}), frozenset({"softmax"}))
    engine = SimpleNamespace(
        SUPPORT=support,
        refusal=lambda model, tokens=None: why_not(model, support, tokens),
        right_hand_side=lambda model, tokens, first=0, **options: reference.right_hand_side(model, tokens, first),
    )
    monkeypatch.setitem(sys.modules, "metastable.kernels.mirror", engine)
    monkeypatch.setattr(select, "ENGINES", (*select.ENGINES, "mirror"))
    model, x = ms.Attention(dim=3, beta=2.0), ms.sphere.uniform(7, dim=3, seed=0)
    run = ms.simulate(model, x, until=1.0, engine="mirror", progress=False)
    expected = ms.simulate(model, x, until=1.0, engine="reference", progress=False)
    assert (run.engine, run.interaction) == ("mirror", "direct")
    assert (run.final == expected.final).all()
    with pytest.raises(UnsupportedError, match="engine='mirror'"):
        ms.simulate(ms.Attention(dim=3, beta=2.0, mask=ms.Full()), x, until=1.0, engine="mirror")
    with pytest.raises(UnsupportedError, match="no series"):
        ms.simulate(model, x, until=1.0, engine="mirror", interaction="series")
