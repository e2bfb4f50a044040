"""Titles of pictures and films: they name what moved the tokens, all of it."""

import numpy as np
import pytest

import metastable as ms
from metastable.errors import StoppedEarlyWarning
from metastable.figures import animation, titles
from metastable.figures.moments import frames

START = ms.sphere.uniform(6, dim=2, seed=0)


def attention(beta, **fields):
    return ms.Attention(dim=2, beta=beta, **fields)


@pytest.fixture(scope="module")
def scheduled():
    second = attention(2.0, mask=ms.Full(), value=-np.eye(2))
    return ms.simulate(ms.Schedule([(0.0, attention(30.0)), (2.0, second)]), START, until=4.0)


def heading(page):
    return " ".join([*(ax.get_title(loc="left") for ax in page.axes), page.get_suptitle()])


def test_pictures_and_films_of_a_schedule_name_all_its_models(scheduled):
    film = animation._scene(scheduled, frames(scheduled, 3), False, 0.1, None, None, animation.DEFAULT_VIEW)
    for page in (scheduled.plot(), film.page):
        assert "2 models" in heading(page)
        assert r"$\beta = 30 \to 2$" in heading(page)
        assert r"causal $\to$ full" in heading(page)
    text = scheduled.plot(backend="plotly").layout.title.text
    assert "2 models, beta = 30 → 2, causal → full, V = I → -I" in text
    assert "$" not in text
    assert "\\" not in text


def test_layers_are_told_by_the_range_of_beta():
    for dim in (2, 3, 5):
        layers = [ms.Attention(dim=dim, beta=beta) for beta in (1.0, 9.0, 3.0)]
        run = ms.simulate(layers, ms.sphere.uniform(6, dim=dim, seed=0))
        assert r"3 models, $\beta$ between 1 and 9, causal" in heading(run.plot())


def test_what_is_there_in_between_only_is_named():
    """It read "none frozen at first, none frozen at last"."""
    plain, frozen = attention(4.0), attention(4.0, frozen=ms.Frozen(START[:2]))
    other = attention(4.0, frozen=ms.Frozen(START[:3]))
    words = titles.words_of([plain, frozen, plain], 6)
    assert words[-1] == "none frozen at first and at last, 2 frozen tokens in between"
    assert (
        titles.words_of([plain, frozen, other, plain], 6)[-1] == "none frozen at first and at last, 2 others in between"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"value": -np.eye(2)}, "$V = -I$"),
        ({"value": np.diag([1.0, 0.5])}, "$V =$ diag(1, 0.5)"),
        ({"value": [[0.0, 1.0], [2.0, 0.0]]}, "own $V$"),
        ({"key": np.diag([1.0, 0.5])}, "own $Q$, $K$"),
        ({"frozen": ms.Frozen(START[:2])}, "2 frozen tokens"),
        ({"frozen": ms.Frozen(START[:1])}, "1 frozen token"),
        ({"frozen": ms.Frozen(START[:1], [2.5])}, "1 frozen token of weight 2.5"),
        ({"frozen": ms.Frozen(START[:3], [3.0, 1.0, 0.5])}, "3 frozen tokens of weights 3, 1, 0.5"),
        ({"frozen": ms.Frozen(START[:4], [3.0, 1.0, 0.5, 0.0])}, "4 frozen tokens of weights 0 to 3"),
        ({"masses": [1.0, 2.0, 1.0, 1.0, 1.0, 1.0]}, "unequal masses"),
        ({"bias": ms.ALiBi(0.1)}, "ALiBi(0.1)"),
        ({"mask": ms.Window(3)}, "window(3)"),
        ({"mask": ms.Sink(2, 4)}, "sink(2, 4)"),
        ({"norm": ms.NGPT(0.5)}, "NGPT(0.5)"),
        ({"mask": ms.Causal(include_self=False)}, "causal without self"),
        ({"noise": 0.5}, r"$\sigma = 0.5$"),
        ({"norm": ms.PreLN()}, "PreLN"),
        ({"weights": "unnormalized"}, "unnormalized"),
    ],
)
def test_what_is_not_usual_is_named(fields, words):
    assert titles.describe(attention(4.0, **fields), 6).endswith(words)
    assert titles.describe(attention(4.0), 6) == r"$n = 6$, $d = 2$, $\beta = 4$, causal"


def test_each_of_several_models_says_what_sets_it_apart():
    """Also what is usual, where the other is not; nothing about matrices of many heads."""
    plain, other = attention(4.0), attention(4.0, value=-np.eye(2), frozen=ms.Frozen(START[:1]))
    first, second = titles.words_of_each([plain, other], 6)
    assert first == ["$n = 6$", "$d = 2$", r"$\beta = 4$", "causal", "$V = I$", "none frozen"]
    assert second == ["$n = 6$", "$d = 2$", r"$\beta = 4$", "causal", "$V = -I$", "1 frozen token"]
    assert titles.words_of_each([plain], 6) == [titles.words_of([plain], 6)]
    heads = ms.Attention(dim=2, heads=(ms.Head(beta=3.0), ms.Head(beta=9.0)))
    assert titles.words_of_each([other, heads], 6)[1][2:] == ["2 heads", "causal", "none frozen"]


def test_formulas_have_letters_where_nobody_typesets_them():
    words = titles.describe(attention(4.0, value=-np.eye(2), noise=0.5), 6)
    assert titles.in_letters(words) == "n = 6, d = 2, β = 4, causal, σ = 0.5, V = -I"


def test_a_run_that_stopped_early_says_so():
    with pytest.warns(StoppedEarlyWarning):
        run = ms.simulate(attention(9.0), START, until=100.0, max_steps=5)
    assert "stopped early at $t = " in heading(run.plot())
    assert "(max_steps)" in heading(run.plot())
    assert "stopped early" in run.plot(backend="plotly").layout.title.text


def test_long_titles_are_broken_between_their_words(scheduled):
    lines = titles.describe_run(scheduled, 2.0).split("\n")
    assert len(lines) > 1
    assert all(line.count("$") % 2 == 0 for line in lines)
    assert all(len(titles.without_formulas(line)) <= 2.0 * titles.PER_INCH + 1 for line in lines)


def test_members_that_failed_did_not_stop_early():
    """Their observable raised: no time of theirs is there."""

    def moody(x):
        if x[0, 0] > 0:
            raise ValueError("no")
        return x[0, 0]

    with pytest.warns(ms.errors.StoppedEarlyWarning):
        stats = ms.ensemble(
            ms.Attention(dim=2, beta=4.0), tokens=4, members=9, times=[0.0, 1.0], seed=0, observe={"mine": moody}
        )
    failed = int((stats.status == "failed").sum())
    assert 1 < failed < 9
    words = heading(ms.plot_ensemble(stats))
    assert f"{failed} members could not be drawn or measured (left out)" in " ".join(words.split())
    assert "stopped early" not in words


def test_what_settings_have_in_common_is_what_all_of_them_say():
    settings = [
        (attention(beta, mask=mask), tokens)
        for beta in (2.0, 4.0)
        for mask, tokens in ((ms.Full(), 9), (ms.Causal(), 7))
    ]
    assert titles.in_common(settings) == "$d = 2$"
    assert titles.in_common(settings[::2]) == "$n = 9$, $d = 2$, full"
    assert titles.in_common(settings[:1]) == r"$n = 9$, $d = 2$, $\beta = 2$, full"
    assert titles.in_common(settings[:1], but=("tokens", "mask")) == r"$d = 2$, $\beta = 2$"
    assert titles.in_common([]) == ""


def test_what_is_added_to_a_title_fits_the_page_too():
    """How many saved states there are stood behind the end of the last line of films, and was cut off."""
    words = titles.describe_run(ms.simulate(ms.Attention(dim=3, beta=4.0), ms.sphere.uniform(5, dim=3, seed=0), 1.0))
    inches = (len(words) + 2) / titles.PER_INCH
    lines = titles.describe_run(
        ms.simulate(ms.Attention(dim=3, beta=4.0), ms.sphere.uniform(5, dim=3, seed=0), 1.0), inches, "8 saved states"
    ).split("\n")
    assert lines[-1] == "8 saved states"
