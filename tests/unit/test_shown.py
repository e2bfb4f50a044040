"""What objects show of themselves: short in a shell, a table in a notebook; and progress there."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import metastable as ms
from metastable import _progress
from metastable.analysis.atlas import sizes_text

RANDOM = np.random.default_rng(0)
MANY = 300


@pytest.fixture(scope="module")
def run():
    return ms.simulate(ms.Attention(dim=2, beta=4.0), ms.sphere.uniform(MANY, dim=2, seed=0), times=[0.0, 2.0])


@pytest.fixture(scope="module")
def objects(run):
    big = ms.Attention(
        dim=40,
        heads=tuple(ms.Head(*RANDOM.normal(size=(3, 40, 40)), beta=2.0) for _ in range(12)),
        frozen=ms.Frozen(ms.sphere.uniform(50, dim=40, seed=1)),
        feedforward=ms.FeedForward(*(RANDOM.normal(size=shape) for shape in ((9, 40), 9, (40, 9), 40))),
        mask=ms.Mask(np.tri(MANY, dtype=bool)),
        masses=np.ones(MANY),
    )
    return {
        "Attention": big,
        "Run": run,
        "Prediction": ms.predict(run.model),
        "Classification": ms.classify(run),
        "MergeTree": ms.merge_tree(run),
    }


@pytest.mark.parametrize("name", ["Attention", "Run", "Prediction", "Classification", "MergeTree"])
def test_short_in_a_shell_and_a_table_in_a_notebook(objects, name):
    text, page = repr(objects[name]), objects[name]._repr_html_()
    assert name in text
    assert len(text) < 500
    assert "\n" not in text
    assert page.startswith("<div><strong>")
    assert name in page
    assert page.count("<tr>") >= 4
    assert len(page) < 4000
    assert "array(" not in text + page


def test_models_show_what_is_not_the_default():
    model = ms.Attention(dim=3, beta=9.0, value=np.diag([1.0, 0.5, -1.0]), norm=ms.NGPT(0.5))
    assert repr(model) == "Attention(dim=3, beta=9.0, value=diag(1, 0.5, -1), norm=NGPT(alpha=0.5))"
    assert eval(repr(ms.Attention(dim=2, beta=64.0, mask=ms.Window(8))), vars(ms)) == ms.Attention(
        dim=2, beta=64.0, mask=ms.Window(8)
    )
    assert "&lt;array 3 x 3&gt;" in model.replace(value=RANDOM.normal(size=(3, 3)))._repr_html_()


def test_ensembles_show_themselves_as_datasets():
    stats = ms.ensemble(
        ms.Attention(dim=2, beta=4.0), tokens=5, members=3, times=[1.0], seed=0, engine="reference", observe=_top
    )
    assert len(repr(stats)) < 3000
    assert "member" in stats._repr_html_()


def _top(x):
    return x.max()


class Page:
    """What a notebook would show."""

    def __init__(self):
        self.shown: list[str] = []

    def add(self, picture, raw, display_id=None):
        assert raw
        assert set(picture) == {"text/html", "text/plain"}
        self.shown.append(picture["text/html"])
        return SimpleNamespace(update=self.add)


@pytest.fixture
def page(monkeypatch):
    page = Page()
    shell, display = SimpleNamespace(kernel=object()), SimpleNamespace(display=page.add)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    return page


def test_progress_in_a_notebook(page, monkeypatch):
    monkeypatch.setattr(_progress, "REFRESH", -1.0)
    monkeypatch.setattr(_progress, "PATIENCE", -1.0)
    with _progress.progress_bar("work <i>", 10.0) as report:
        report(2.5)
        _progress.tell_compiling(True)
        _progress.tell_compiling(False)
        report(10.0)
    assert "25.0 %" in page.shown[0]
    assert "&lt;i&gt;" in page.shown[0]
    assert _progress.COMPILING in page.shown[1]
    assert "100.0 %" in page.shown[-2]
    assert page.shown[-1] == ""  # gone when the work is done
    before = len(page.shown)
    with _progress.progress_bar("work", 10.0, show=False) as report:
        report(5.0)
    assert len(page.shown) == before


def test_a_part_of_a_larger_work_moves_its_bar():
    """Twelve runs of a flow had one bar that stood still during each of them."""
    heard = []
    with _progress.part_of(heard.append, 3.0, 10.0):
        with _progress.progress_bar("run", 200.0) as report:
            report(50.0)
            report(400.0)
        with _progress.progress_bar("another", 1.0, show=False) as report:
            report(0.5)
        with _progress.progress_bar("a second one", 1.0, show=True) as report:
            report(0.1)  # was 4.0: the bar went back
            report(1.0)
    assert heard == [5.5, 13.0, 13.0, 13.0, 13.0]
    with _progress.progress_bar("run", 200.0, show=False) as report:
        report(50.0)
    assert len(heard) == 5


def test_short_work_shows_nothing(page, monkeypatch):
    monkeypatch.setattr(_progress, "PATIENCE", 1e9)
    with _progress.progress_bar("work", 10.0) as report:
        report(2.5)
    assert page.shown == []


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_without_a_bar_is_told_once_that_code_is_compiled(terminal, capsys, monkeypatch):
    _progress._tell_terminal.cache_clear()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    for begins in (True, False, True, False):
        _progress.tell_compiling(begins)
    assert capsys.readouterr().err.count(_progress.COMPILING) == terminal
    _progress._tell_terminal.cache_clear()


def test_progress_that_is_not_wanted_is_not_told_either(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    _progress._tell_terminal.cache_clear()
    with _progress.progress_bar("work", 10.0, show=False):
        _progress.tell_compiling(True)
    assert capsys.readouterr().err == ""
    _progress._tell_terminal.cache_clear()


def test_a_shell_in_a_terminal_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert _progress._notebook() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert _progress._notebook() is None


# ------------------------------------------------------------------------------------- what is said where one looks


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([5], "1 group of 5"),
        ([1], "1 group of 1"),
        ([1] * 8, "8 groups of 1 each"),
        ([100, 200], "2 groups of 200 and 100"),
        ([1, 1, 2, 1], "4 groups of 2 and 3 x 1"),
        ([9, 8, 8, 7, 6, 5, 4, 3, 2, 2], "10 groups of 9, 2 x 8, 7, 6, 5, 4 and 3 smaller"),
    ],
)
def test_sizes_of_groups_read_well(sizes, words):
    """`tokens: 1, 1, 1, 1, 1, 1 and 1 smaller`, of eight tokens that are all apart."""
    assert sizes_text(sizes) == words


def test_one_of_a_thing_is_not_called_many():
    one = ms.simulate(ms.Attention(dim=2, beta=1.0), [[1.0, 0.0]], times=[1.0], method="layers", step=1.0)
    assert repr(one).startswith("<Run: 1 token on the sphere")
    assert ", 1 step," in repr(one)
    assert repr(ms.merge_tree(one)).startswith("<MergeTree: 1 token, 0 merges, 1 cluster left")
    assert "tokens 1, in 1 group of 1" in repr(ms.classify(one))


def test_all_tokens_at_one_point_are_not_two():
    """`classify` said "two points, xi and -xi" when all 300 tokens were at one."""
    model = ms.Attention(dim=3, beta=9.0, value=np.diag([1.0, 0.5, 0.0]))
    north = ms.sphere.cap(MANY, [1.0, 0.0, 0.0], 0.5, seed=0)
    together = ms.classify(ms.simulate(model, north, times=[60.0]))
    assert together.configuration == "one point, xi or -xi"
    assert together.row == 3
    apart = ms.classify(ms.simulate(model, np.concatenate([north[:9], -north[9:12]]), times=[60.0]))
    assert apart.configuration == "two points, xi and -xi"


@pytest.mark.parametrize(
    ("fields", "still"),
    [
        ({}, True),
        ({"value": 2 * np.eye(3)}, True),
        ({"mask": ms.Full()}, True),
        ({"norm": ms.PreLN()}, True),
        ({"mask": ms.Causal(include_self=False)}, False),
        ({"value": np.diag([1.0, 0.5, 0.2])}, False),
        ({"query": np.diag([1.0, 0.5, 2.0])}, False),
    ],
    ids=["plain", "multiple", "full", "radius", "others only", "value", "query"],
)
def test_hardmax_that_never_moves_is_warned_about(fields, still):
    model = ms.Attention(dim=3, beta=2.0, weights="hardmax", **fields)
    start = ms.sphere.uniform(8, dim=3, seed=0)
    if still:
        with pytest.warns(ms.errors.StandstillWarning, match="include_self=False"):
            run = ms.simulate(model, start, times=[1.0])
        np.testing.assert_allclose(run.final, start, atol=1e-12)
        with pytest.warns(ms.errors.StandstillWarning):
            ms.ensemble(model, tokens=4, members=1, times=[1.0], seed=0)
    else:
        run = ms.simulate(model, start, times=[1.0])
        assert np.abs(run.final - start).max() > 1e-3


def test_a_backend_that_is_loaded_by_our_figure_stays_interactive():
    """A notebook whose first figure was ours showed none of the later ones."""
    import matplotlib as mpl

    from metastable.figures import style

    before = mpl.is_interactive()
    try:
        mpl.interactive(False)
        with style.theme("screen"):
            mpl.interactive(True)  # as the backend of notebooks does when it is loaded
        assert mpl.is_interactive()
    finally:
        mpl.interactive(before)
