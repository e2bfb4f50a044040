"""What a sweep file says, and what it may not say."""

import numpy as np
import pytest

import metastable as ms
from metastable.errors import StoreError, SweepError
from metastable.sweep import expressions, families
from metastable.sweep.store import DESCRIPTION
from metastable.sweep.tasks import run_ensemble
from tests.unit.sweep import toy
from tests.unit.sweep.toy import small_sweep

TEXT = """
name = "clusters"
seed = 3
members = 10
tokens = 16

[model]
dim = 3
value = {family = "leading", multiplicity = 2, rest = "ratio"}

[grid]
beta = {log_range = [1.0, 100.0], count = 3}
ratio = [0.25, 0.5]
mask = ["causal", {kind = "window", width = "tokens // 4"}]

[run]
until = 10.0
count = 2

[observe.clusters]
radius = "0.5 / sqrt(beta)"
[observe.strong]
kind = "consumed"
delta = "4 / sqrt(beta)"
strong = true
"""


def test_file_to_tasks():
    sweep = ms.Sweep.from_toml(TEXT)
    assert sweep.shape == (3, 2, 2)
    assert [axis.name for axis in sweep.axes] == ["beta", "ratio", "mask"]
    assert sweep.times == (5.0, 10.0)
    sweep.check()
    task = sweep.task(7)
    assert task.index == (1, 1, 1)
    assert task.point == {"beta": pytest.approx(10.0), "ratio": 0.5, "mask": "window(tokens // 4)"}
    assert task.attention().mask == ms.Window(4)
    assert task.observe["clusters"]["radius"] == pytest.approx(0.5 / 10**0.5)
    assert task.observe["strong"] == {"kind": "consumed", "delta": pytest.approx(4 / 10**0.5), "strong": True}
    assert np.linalg.eigvalsh(task.attention().value) == pytest.approx([0.5, 1.0, 1.0])


def test_round_trip_keeps_every_task():
    sweep = ms.Sweep.from_toml(TEXT)
    again = ms.Sweep.from_toml(sweep.to_toml())
    assert again.identity == sweep.identity
    assert [task.key for task in again.tasks()] == [task.key for task in sweep.tasks()]


def test_words_for_people_do_not_change_what_is_swept():
    sweep = ms.Sweep.from_toml(TEXT)
    assert ms.Sweep.from_toml(TEXT.replace('name = "clusters"', 'name = "other"')).identity == sweep.identity
    assert ms.Sweep.from_toml(TEXT.replace("seed = 3", "seed = 4")).identity != sweep.identity


def test_objects_of_the_model_are_understood():
    grid = {
        "mask": [ms.Causal(), ms.Full(), ms.Window(4)],
        "norm": [ms.PostLN(), ms.NGPT(0.5)],
        "beta": np.array([1.0, 2.0]),
    }
    sweep = small_sweep(grid=grid)
    assert [axis.labels for axis in sweep.axes] == [
        ("causal", "full", "window(4)"),
        ("post_ln", "ngpt(0.5)"),
        (1.0, 2.0),
    ]
    assert sweep.task(sweep.size - 1).attention() == ms.Attention(dim=2, beta=2.0, mask=ms.Window(4), norm=ms.NGPT(0.5))


def test_results_follow_tasks_when_the_grid_grows():
    """Keys and seeds depend on the grid point only, not on the rest of the grid nor on the order of its axes."""
    small = small_sweep(grid={"beta": [1.0, 4.0]})
    large = small_sweep(grid={"mask": ["full", "causal"], "beta": [0.5, 1.0, 2.0, 4.0]})
    assert {task.key for task in small.tasks()} <= {task.key for task in large.tasks()}
    seeds = [task.seed for task in large.tasks()]
    assert len(set(seeds)) == len(seeds)


def test_shared_starts():
    sweep = small_sweep(starts="shared", grid={"beta": [1.0, 2.0], "draw": [0, 1]})
    seeds = np.array([task.seed for task in sweep.tasks()]).reshape(2, 2)
    assert (seeds[0] == seeds[1]).all()
    assert seeds[0, 0] != seeds[0, 1]


def test_bundles_change_fields_together():
    grid = {"case": [{"label": "circle", "dim": 2, "tokens": 4}, {"dim": 3, "tokens": 9, "c": 2.0}], "beta": [1.0]}
    sweep = small_sweep(grid=grid, model={}, tokens=None)
    assert sweep.axes[0].labels == ("circle", "dim = 3, tokens = 9, c = 2.0")
    assert [(task.model["dim"], task.tokens) for task in sweep.tasks()] == [(2, 4), (3, 9)]


class TestRanges:
    @pytest.mark.parametrize(
        ("entry", "values"),
        [
            ([1, 2.5], (1.0, 2.5)),
            ({"range": [0.0, 1.0], "count": 3}, (0.0, 0.5, 1.0)),
            ({"range": [0, 6], "step": 2}, (0, 2, 4, 6)),
            ({"range": [0.0, 1.0], "step": 0.1}, tuple(0.1 * k for k in range(11))),
            ({"log_range": [1, 100], "count": 3}, (1.0, 10.0, 100.0)),
            ({"log_range": [1, 9], "count": 5, "integer": True}, (1, 2, 3, 5, 9)),
        ],
    )
    def test_values(self, entry, values):
        assert small_sweep(grid={"beta": entry}).axes[0].values == pytest.approx(values)

    @pytest.mark.parametrize(
        "entry",
        [
            [],
            5.0,
            {"range": [0, 1]},
            {"range": [1, 0], "count": 3},
            {"range": [0, 1], "count": 3, "step": 1},
            {"log_range": [0, 1], "count": 3},
            {"range": [0, 1], "count": 0},
            {"range": [1, 3], "count": 1},
            {"log_range": [1, 3], "count": 1},
            {"from": 0},
            [1.0, 1.0],
        ],
    )
    def test_nonsense_is_refused(self, entry):
        with pytest.raises(SweepError, match=r"grid\.beta"):
            small_sweep(grid={"beta": entry})


class TestFamilies:
    def test_same_matrix_along_other_axes_and_new_ones_along_draw(self):
        sweep = small_sweep(
            model={"dim": 4, "value": "gaussian", "query": "gaussian", "key": "tied"},
            grid={"draw": {"range": [0, 1], "step": 1}, "beta": [1.0, 2.0]},
        )
        models = [task.attention() for task in sweep.tasks()]
        assert (models[0].value == models[1].value).all()
        assert (models[0].value != models[2].value).all()
        assert (models[0].key == models[0].query).all()
        assert (models[0].value != models[0].query).all()

    def test_spectra(self):
        generator = np.random.default_rng(0)
        turn = families.rotation(5, generator)
        assert np.allclose(turn @ turn.T, np.eye(5), atol=1e-14)
        family = {"family": "spectrum", "values": [1.0, 0.5, -1.0]}
        drawn = families.matrix(family, "value", 3, 0, 0, "value")
        assert np.linalg.eigvalsh(drawn) == pytest.approx([-1.0, 0.5, 1.0])
        straight = families.matrix({**family, "rotate": False}, "value", 3, 0, 0, "value")
        assert (straight == np.diag([1.0, 0.5, -1.0])).all()
        assert families.matrix({"family": "identity"}, "value", 3, 0, 0, "value") is None
        assert np.linalg.eigvalsh(families.matrix({"family": "leading", "multiplicity": 3}, "value", 4, 0, 0, "v")) == (
            pytest.approx([0.5, 1, 1, 1])
        )

    def test_gaussian_has_spectral_radius_one(self):
        radius = [
            np.abs(np.linalg.eigvals(families.matrix({"family": "gaussian"}, "value", 64, 0, draw, "v"))).max()
            for draw in range(5)
        ]
        assert np.mean(radius) == pytest.approx(1.0, abs=0.15)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("gauss", "known families"),
            ({"kind": "spectrum", "values": [1.0, 0.5]}, "the key family"),
            ({"family": "spectrum", "values": [1.0]}, "one per dimension"),
            ({"family": "spectrum"}, "needs values"),
            ({"family": "gaussian", "size": 2}, "has no parameter"),
            ({"family": "leading", "rest": 2.0}, "must lie below"),
            ("tied", "is for key"),
        ],
    )
    def test_nonsense_is_refused(self, value, text):
        with pytest.raises(SweepError, match=text):
            small_sweep(model={"dim": 2, "value": value}).check()


class TestExpressions:
    def test_values(self):
        assert expressions.evaluate("2 * (beta + 1) ** 0.5 - -1", {"beta": 3.0}, "x") == 5.0
        assert expressions.evaluate("min(tokens // 3, 7)", {"tokens": 10}, "x") == 3
        assert expressions.names("c / sqrt(beta) + pi", "x") == {"c", "beta"}

    @pytest.mark.parametrize(
        "text",
        [
            "__import__('os').system('true')",
            "beta.real",
            "[1, 2]",
            "beta if 1 else 2",
            "lambda: 1",
            "1 +",
            "gamma",
            "1 / 0",
            "sqrt(-1)",
            "10 ** 400",
            "(-8) ** 0.5",
            "sqrt(1, 2)",
            "True",
            "1" * 300,
        ],
    )
    def test_everything_else_is_refused(self, text):
        with pytest.raises(SweepError, match="radius"):
            expressions.evaluate(text, {"beta": 1.0}, "radius")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dim = 3", "dimension = 3", "has no field 'dimension'"),
        ("members = 10", "", "members is missing"),
        ("members = 10", "members = 0", "members must be at least 1"),
        ("tokens = 16", "", "tokens"),
        ("tokens = 16", "tokens = 16.0", "tokens must be a whole number, not 16.0; in a range .* integer = true"),
        ("ratio = [", "draw = {range = [0, 2], count = 3}\nratio = [", "draw must be a whole number.* integer = true"),
        ("seed = 3", "seeds = 3", "no key 'seeds'"),
        ("until = 10.0", "", "times"),
        ("ratio = [0.25, 0.5]", "ratio = [0.25, 0.5]\nunused = [1, 2]", "unused changes nothing"),
        ("ratio = [0.25, 0.5]", "ratio = [0.25, 1.5]", "must lie below"),
        ("ratio = [0.25, 0.5]", "time = [1.0]", "grid.time"),
        ('"0.5 / sqrt(beta)"', '"0.5 / sqrt(gamma)"', "gamma"),
        ('kind = "consumed"', 'kind = "eaten"', "known observables"),
        ("strong = true", "stronk = true", "stronk"),
        ("count = 2", "count = 2\nsolver = 'x'", "no key 'solver'"),
        ("count = 2", "count = 2\nengine = 'abacus'", "engine must be one of"),
        ("count = 2", "count = 2\nmethod = 'layers'", "needs step"),
        ("count = 2", "count = 2\nstep = 0.1", "leave step out"),
        ("count = 2", "count = 2\nrtol = 1e-30", "rtol"),
        ("until = 10.0", "until = 0.001\nmethod = 'sde'", "steps of 0.01"),
        ("[observe.clusters]", "[observe.status]\nkind = 'clusters'", "cannot be the name"),
        ('"causal"', '"casual"', "unknown kind 'casual'"),
        ("[observe.clusters]", "[observe]\nclusters = 3\n[observe.more]", "must be a table"),
        ("seed = 3", "seed = ", "not TOML"),
    ],
)
def test_mistakes_are_named_before_anything_runs(old, new, message):
    assert old in TEXT
    with pytest.raises(SweepError, match=message):
        ms.Sweep.from_toml(TEXT.replace(old, new, 1)).check()


def test_missing_file(tmp_path):
    with pytest.raises(StoreError, match="cannot be read"):
        ms.Sweep.from_file(tmp_path / "none.toml")


def test_step_belongs_to_the_points_with_noise():
    text = TEXT.replace("[grid]", "[grid]\nnoise = [0.0, 0.1]", 1).replace("until = 10.0", "times = [1.0, 2.0]", 1)
    text = text.replace("count = 2", "step = 0.5", 1)
    sweep = ms.Sweep.from_toml(text)
    sweep.check()
    assert {(task.model.get("noise", 0.0) > 0, "step" in task.options) for task in sweep.tasks()} == {
        (False, False),
        (True, True),
    }


@pytest.mark.parametrize("times", [[0.0], [0], {"range": [0, 0], "count": 1}])
def test_times_that_are_the_start(times):
    with pytest.raises(SweepError, match="times holds only 0, which is the start"):
        small_sweep(times=times)


def test_results_are_not_called_like_axes():
    """Before, the whole sweep was computed, and its store could not be made."""
    common = {"tokens": 4, "members": 2, "seed": 0, "times": [0.0, 1.0]}
    with pytest.raises(SweepError, match=r"observe.beta: 'beta' is an axis of the grid"):
        ms.Sweep(model={"dim": 2}, grid={"beta": [1.0, 4.0]}, observe={"beta": {"kind": "clusters"}}, **common)
    sweep = ms.Sweep(
        model={"dim": 2, "beta": "4 * angle"}, grid={"angle": [1.0, 2.0]}, observe={"density": {}}, **common
    )
    with pytest.raises(SweepError, match="'angle' is an axis of the grid and a dimension of the observable density"):
        run_ensemble(sweep.task(0))


def test_levels_and_cells_are_the_same_all_over_the_grid(tmp_path):
    """Before, the results had those of the first task as the coordinate of all: wrong labels."""
    common = {"model": {"dim": 2, "beta": 4.0}, "members": 2, "seed": 0, "times": [0.0, 1.0]}
    levels = ms.Sweep(grid={"q": [0.1, 0.2]}, tokens=4, observe={"cosine_quantiles": {"levels": ["q", 0.5]}}, **common)
    with pytest.raises(SweepError, match=r"along 'quantile' differs between q = 0.1 and q = 0.2"):
        levels.check()
    cells = ms.Sweep(grid={"tokens": [4, 6]}, observe={"density": {"cells": "tokens"}}, **common)
    with pytest.raises(SweepError, match=r"along 'angle' differs between tokens = 4 and tokens = 6"):
        cells.run(tmp_path / "cells", workers=0)
    assert not (tmp_path / "cells").exists()
    ms.Sweep(grid={"tokens": [4, 6]}, observe={"density": {"cells": 8}, "cosine_quantiles": {}}, **common).check()


def test_a_key_of_plot_that_nobody_knows_is_refused_before_anything_runs():
    """It was refused when the results were drawn."""
    sweep = small_sweep(plot={"colour": "red"})
    with pytest.raises(SweepError, match=r"\[plot\] has no key 'colour'; its keys are: variable, x, y"):
        sweep.check()
    small_sweep(plot={"x": "beta", "contours": [2.0]}).check()


def test_a_stored_sweep_of_half_a_range_can_be_read(tmp_path):
    """Earlier versions took `count = 1` of a range for its first number."""
    sweep = small_sweep(grid={"beta": {"range": [1.0, 1.0], "count": 1}})
    folder = sweep.run(tmp_path / "sweep", workers=0, execute=toy.execute).folder
    text = (folder / DESCRIPTION).read_text(encoding="utf-8")
    assert text.count("1.0,\n    1.0,") == 1
    (folder / DESCRIPTION).write_text(text.replace("1.0,\n    1.0,", "1.0,\n    3.0,"), encoding="utf-8")
    assert ms.sweep.status(folder).total == 1
