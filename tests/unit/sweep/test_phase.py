"""Phase diagrams: what is drawn is what was measured."""

import itertools

import numpy as np
import pytest
import xarray as xr

from metastable.errors import InvalidInputError
from metastable.figures import phase, style


@pytest.fixture
def results():
    """A quantity over masks, beta, members and time, with one point that is not done."""
    beta, time = np.geomspace(4, 256, 7), np.geomspace(1, 1e6, 13)
    values = np.sqrt(beta)[None, :, None, None] * np.array([1.0, 0.5])[:, None, None, None] / np.log(2 + time)
    noise = np.random.default_rng(0).normal(1.0, 0.1, (2, 7, 20, 13))
    array = xr.DataArray(
        values * noise,
        dims=("mask", "beta", "member", "time"),
        coords={"mask": ["causal", "full"], "beta": beta, "time": time},
        name="clusters",
    )
    array[1, -1] = np.nan
    return array


def test_scales_are_recognised():
    assert phase.is_log(np.geomspace(1, 100, 5))
    assert not phase.is_log(np.linspace(1, 100, 5))
    assert not phase.is_log([0.0, 1.0, 100.0])
    assert not phase.is_log([2, 3, 4])
    assert phase.cell_edges([1.0, 2.0, 3.0]).tolist() == [0.5, 1.5, 2.5, 3.5]
    assert phase.cell_edges([1.0, 100.0], log=True) == pytest.approx([0.1, 10.0, 1000.0])


def test_map_shows_the_mean_and_leaves_out_what_is_not_done(results):
    page = phase.phase_figure(results, contours=[2.0])
    maps = [ax.collections[0] for ax in page.axes[:2]]
    for place, mesh in enumerate(maps):
        cells = np.ma.asarray(mesh.get_array()).reshape(7, 13)
        expected = results.isel(mask=place).mean("member").values
        assert np.ma.getmaskarray(cells)[:, 0].tolist() == np.isnan(expected)[:, 0].tolist()
        assert cells.compressed() == pytest.approx(expected[np.isfinite(expected)])
    assert page.axes[0].get_xscale() == page.axes[0].get_yscale() == "log"
    assert [ax.get_title(loc="left")[-13:] for ax in page.axes[:2]] == ["mask = causal", "  mask = full"]


def test_curves_have_bands(results):
    page = phase.phase_figure(results, x="beta", kind="curves", at={"time": 90.0})
    ax = page.axes[0]
    chosen = results.sel(time=100.0, method="nearest")
    drawn = [line.get_ydata() for line in ax.lines if line.get_label() in ("causal", "full")]
    assert drawn[0] == pytest.approx(chosen.sel(mask="causal").mean("member").values)
    low = results.sel(mask="causal").sel(time=100.0, method="nearest").quantile(0.1, "member")
    edges = [line.get_ydata() for line in ax.lines]
    assert any(np.allclose(edge, low) for edge in edges)


@pytest.mark.filterwarnings("ignore:All-NaN")
def test_draws_are_averaged_like_members(results):
    draws = xr.concat([results, results + 2.0], xr.DataArray([0, 1], dims="draw", name="draw"))
    assert np.allclose(phase.reduce_members(draws).mean, results.mean("member") + 1.0, equal_nan=True)
    assert phase.reduce_members(draws, keep=("draw",)).mean.sizes["draw"] == 2
    page = phase.phase_figure(draws, x="beta", at={"time": 0.9}, title="both")
    assert page._suptitle.get_text() == "both: $t$ = 1 (nearest to 0.9)"


def test_statistics_are_drawn_like_members(results):
    statistic = xr.concat(
        [
            results.mean("member"),
            results.quantile(0.1, "member", skipna=True),
            results.quantile(0.9, "member", skipna=True),
            results.count("member"),
        ],
        dim=xr.DataArray(["mean", "q10", "q90", "count"], dims="statistic"),
        coords="minimal",
        compat="override",
    )
    one, other = phase.reduce_members(results), phase.reduce_members(statistic)
    assert one.total == other.total
    for name in ("mean", "low", "high", "count"):
        assert np.allclose(
            getattr(one, name).transpose("mask", "beta", "time"),
            getattr(other, name).transpose("mask", "beta", "time"),
            equal_nan=True,
        )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, phase.Arrangement("time", "beta", None, ("mask",))),
        ({"kind": "curves"}, phase.Arrangement("time", None, "mask", ("beta",))),
        ({"x": "beta", "kind": "curves"}, phase.Arrangement("beta", None, "mask", ("time",))),
        ({"x": "beta", "y": "time"}, phase.Arrangement("beta", "time", None, ("mask",))),
        ({"x": "mask", "kind": "curves"}, phase.Arrangement("mask", None, "beta", ("time",))),
    ],
)
def test_arrangements(results, options, expected):
    assert phase.arrange(results.mean("member"), **options) == expected


def test_one_value_per_token_is_averaged(results):
    shifted = xr.concat([results, results + 2.0, results * np.nan], dim="token")
    assert np.allclose(phase.reduce_members(shifted).mean, results.mean("member") + 1.0, equal_nan=True)


def test_one_axis_is_a_curve(results):
    line = results.sel(mask="causal", drop=True).isel(time=3, drop=True)
    assert phase.arrange(line.mean("member")) == phase.Arrangement("beta", None, None, ())
    assert len(phase.phase_figure(line).axes) == 1


def test_curves_say_what_they_show_beside_the_data():
    """Grid values have ticks, a geometric grid a logarithmic axis; the legend is outside the panels and explains the band."""
    values = np.random.default_rng(0).normal(1.0, 0.1, (4, 2, 20))
    coords = {"tokens": [25, 50, 100, 200], "mask": ["causal", "full"]}
    page = phase.phase_figure(xr.DataArray(values, dims=("tokens", "mask", "member"), coords=coords, name="clusters"))
    ax = page.axes[0]
    assert ax.get_legend() is None
    words = [text.get_text() for text in page.legends[0].get_texts()]
    assert words[:2] == ["causal", "full"]
    assert "10 % to 90 %" in words[2]
    assert ax.get_xscale() == "log"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["25", "50", "100", "200"]
    page.canvas.draw()
    box = page.legends[0].get_window_extent()
    assert not box.overlaps(ax.get_window_extent())
    even = xr.DataArray(values[:3, 0], dims=("tokens", "member"), coords={"tokens": [10, 20, 30]}, name="clusters")
    lone = phase.phase_figure(even).axes[0]
    assert (lone.get_xscale(), lone.get_xticks().tolist()) == ("linear", [10.0, 20.0, 30.0])


@pytest.mark.parametrize("panels", [1, 3, 6])
@pytest.mark.parametrize(
    "values",
    [
        np.arange(1, 8) / 9,
        np.arange(1, 8) * 1e5,
        np.linspace(1.234e-5, 7.9e-5, 7),
        [0.0, 0.1, 0.2, 1.0],
        [-1.234, -0.1234, 0.1234],
    ],
)
def test_numbers_of_narrow_panels_do_not_stand_on_each_other(panels, values):
    array = xr.DataArray(
        np.random.default_rng(0).random((panels, len(values), 5)),
        dims=("mask", "beta", "tokens"),
        coords={"mask": [f"m{k}" for k in range(panels)], "beta": values, "tokens": [1, 2, 3, 4, 5]},
        name="clusters",
    )
    for x, y in (("beta", "tokens"), ("tokens", "beta")):
        page = phase.phase_figure(array, x=x, y=y, kind="map")
        page.canvas.draw()
        for ax in page.axes[:panels]:
            for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
                boxes = [label.get_window_extent() for label in labels if label.get_text()]
                assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_numbers_at_ticks_are_told_apart():
    assert phase.numbers_apart(np.array([1.00001, 1.00002, 2.0])) == ["1.00001", "1.00002", "2"]
    assert phase.numbers_apart(np.array([1.0, 10.0, 1e4])) == ["1", "10", "1e+04"]


def test_numbers_at_ticks_do_not_stand_on_each_other():
    """Uneven grids of a few values had the numbers of neighbours on top of each other."""
    values = np.ones((5, 5))
    for beta, shown in (
        ([1.0, 1.1, 1.2, 9.0, 64.0], ["1", "", "", "9", "64"]),
        ([64.0, 63.0, 9.0, 8.9, 1.0], ["64", "", "", "8.9", "1"]),
        ([1.0, 4.0, 9.0, 16.0, 25.0], ["1", "4", "9", "16", "25"]),
        ([1.0, 10.0, 110.0, 11.0, 1e4], ["1", "10", "110", "", "1e+04"]),
    ):
        coords = {"beta": beta, "tokens": [1, 2, 3, 4, 5]}
        page = phase.phase_figure(
            xr.DataArray(values, dims=("beta", "tokens"), coords=coords, name="clusters"), x="beta"
        )
        page.canvas.draw()
        ax = page.axes[0]
        names = dict(zip(np.round(ax.get_xticks(), 9), (label.get_text() for label in ax.get_xticklabels())))
        assert [names[value] for value in beta] == shown
        boxes = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
        assert not any(one.overlaps(other) for one in boxes for other in boxes if one is not other)


def test_mistakes_are_named(results):
    with pytest.raises(InvalidInputError, match="is no axis"):
        phase.phase_figure(results, x="gamma")
    with pytest.raises(InvalidInputError, match="is no axis"):
        phase.phase_figure(results, at={"gamma": 1})
    with pytest.raises(InvalidInputError, match="has no value 'window'; it has causal, full"):
        phase.phase_figure(results, at={"mask": "window"})
    with pytest.raises(InvalidInputError, match="panels are too many"):
        phase.phase_figure(results.expand_dims(copy=30), x="beta", y="time")
    with pytest.raises(InvalidInputError, match="shape"):
        phase.draw_phase(style.figure()[1], [1, 2], [1, 2, 3], np.zeros((2, 3)))


@pytest.mark.filterwarnings("ignore:All-NaN")
def test_a_band_of_statistics_averaged_over_draws_says_so(results):
    """Each draw's own quantiles were averaged under the name of those over all members."""
    mean = results.mean("member")
    labels = xr.DataArray(["mean", "q10", "q90", "count"], dims="statistic")
    kept = xr.concat([mean, mean - 1.0, mean + 1.0, xr.full_like(mean, 20.0)], dim=labels)
    draws = xr.concat([kept, kept], dim="draw")
    assert phase.reduce_members(kept).band == "10 % to 90 %\nof 20 members"
    assert phase.reduce_members(draws).band == "10 % to 90 %\nof 20 members,\nmean over draws"
    assert phase.reduce_members(xr.concat([results, results + 1.0], dim="draw")).band == "10 % to 90 %\nof 40 members"
    page = phase.phase_figure(draws, x="beta", kind="curves", at={"time": 0.9})
    words = [text.get_text() for text in page.legends[0].get_texts()]
    assert "10 % to 90 %\nof 20 members,\nmean over draws" in words


def test_maps_say_over_how_many_members_they_average(results):
    """Legends of curves did (of their bands), and maps have none."""
    assert phase.phase_figure(results).axes[-1].get_ylabel() == "clusters\nmean of 20 members"
    draws = xr.concat([results, results + 2.0], xr.DataArray([0, 1], dims="draw", name="draw"))
    page = phase.phase_figure(draws, label="how many, in $d = 2$")
    assert page.axes[-1].get_ylabel() == "how many, in $d = 2$\nmean of 40 members"
    alone = results.isel(member=0)
    assert phase.phase_figure(alone).axes[-1].get_ylabel() == "clusters"


def test_names_of_observables_are_as_their_users_wrote_them(results):
    """`x_y` became "x y", and dollar signs began formulas."""
    for name, label in (("x_y", "x_y"), ("in_$", r"in_\$")):
        page = phase.phase_figure(results.rename(name), x="beta", kind="curves", at={"time": 0.9})
        assert page.axes[0].get_ylabel() == label


def test_a_picture_says_how_many_members_stopped_early(results):
    said = "12 members of the sweep stopped early"
    curves = {"x": "beta", "kind": "curves", "at": {"time": 0.9}, "title": "trial"}
    assert phase.phase_figure(results, **curves)._suptitle.get_text() == "trial: $t$ = 1 (nearest to 0.9)"
    array = results.assign_attrs(unfinished=12)
    assert said in phase.phase_figure(array, **curves)._suptitle.get_text()
    assert said in phase.phase_figure(array)._suptitle.get_text()


def test_a_picture_tells_members_that_failed_from_those_that_stopped(results):
    """A failing observable was said to have "stopped early"."""
    said = {
        (12, 12): "12 members of the sweep could not be drawn or measured (left out)",
        (
            12,
            11,
        ): "1 member of the sweep stopped early (left out from there on), 11 members of the sweep could not be drawn or measured "
        "(left out)",
    }
    for (early, failed), words in said.items():
        page = phase.phase_figure(results.assign_attrs(unfinished=early, failed=failed))
        assert page._suptitle.get_text().replace("\n", " ") == words


# --------------------------------------------------------------------------------------- sweeps that are not finished


def test_a_sweep_that_runs_is_drawn_as_far_as_it_is(results):
    """Panels and legends had a place for everything that is still to come."""
    results = results.copy().assign_attrs(tasks=14, done_tasks=7)
    results[1, :] = np.nan
    page = phase.phase_figure(results)
    assert [ax.get_title(loc="left") for ax in page.axes[:-1]] == ["mask = causal"]
    page = phase.phase_figure(results, x="beta", kind="curves", at={"time": 90.0})
    assert [text.get_text() for text in page.legends[0].get_texts()][:-1] == ["causal"]
    # Of two axes of panels those places are left out that nobody has come to.
    both = xr.concat([results, results], dim="draw_of_value").assign_coords(draw_of_value=[0, 1])
    both[1, 0, 3:] = np.nan
    assert both.attrs["tasks"] == 14
    page = phase.phase_figure(both, x="time", kind="curves", at={"beta": 256.0})
    assert len([ax for ax in page.axes if ax.axison]) == 1
    # Where there is nothing, nothing is left out.
    assert len(phase.phase_figure((results * np.nan).assign_attrs(results.attrs)).axes) == 3


def test_panels_without_values_stay_in_a_sweep_that_is_finished(results):
    """A mask under which a quantity is never a number vanished, and nothing said so."""
    results = results.copy()
    results[1, :] = np.nan
    page = phase.phase_figure(results, contours=[2.0])
    assert [ax.get_title(loc="left")[-6:] for ax in page.axes[:2]] == ["causal", "= full"]
    page = phase.phase_figure(results, x="beta", kind="curves", at={"time": 90.0})
    assert [text.get_text() for text in page.legends[0].get_texts()][:-1] == ["causal", "full"]
    page = phase.phase_figure(results.sel(mask=["full"]), x="beta", kind="curves", at={"time": 90.0})
    assert page.legends == []


# ------------------------------------------------------------------------------------------------ axes without a coordinate


@pytest.fixture
def slots():
    """A quantity over beta, time and three slots, which have no coordinate: an observable of one's own with dims=("slot",)."""
    values = np.random.default_rng(0).uniform(1.0, 2.0, (5, 6, 3))
    coords = {"beta": np.geomspace(4, 64, 5), "time": np.arange(1.0, 7.0)}
    return xr.DataArray(values, dims=("beta", "time", "slot"), coords=coords, name="it")


def test_panels_over_an_axis_without_a_coordinate_are_numbered(slots):
    """A bare KeyError."""
    page = phase.phase_figure(slots, x="beta", y="time")
    assert [ax.get_title(loc="left")[-8:] for ax in page.axes[:3]] == ["slot = 0", "slot = 1", "slot = 2"]
    part = slots.where(slots["slot"] != 1).assign_attrs(tasks=3, done_tasks=2)
    page = phase.phase_figure(part, x="beta", y="time")
    assert [ax.get_title(loc="left")[-8:] for ax in page.axes[:2]] == ["slot = 0", "slot = 2"]
    assert phase.phase_figure(slots, x="beta", y="time", at={"slot": 2})._suptitle.get_text() == "slot = 2"


def test_curves_of_an_axis_without_a_coordinate_keep_their_numbers(slots):
    """The curve of slot 2 was called 1 where slot 1 had no value yet."""
    part = slots.where(slots["slot"] != 1).assign_attrs(tasks=3, done_tasks=2)
    page = phase.phase_figure(part, x="beta", kind="curves", at={"time": 2.0})
    assert [text.get_text() for text in page.legends[0].get_texts()] == ["0", "2"]
    assert page.axes[0].lines[-1].get_ydata() == pytest.approx(slots.sel(time=2.0, slot=2).values)


def test_pictures_say_how_much_of_a_sweep_is_done(results):
    part = results.assign_attrs(tasks=14, done_tasks=7)
    assert phase.phase_figure(part, title="trial")._suptitle.get_text() == "trial\n7 of 14 tasks of the sweep are done"
    lost = results.assign_attrs(tasks=14, done_tasks=1, failed_tasks=2)
    assert phase.phase_figure(lost)._suptitle.get_text() == "1 of 14 tasks of the sweep is done, 2 failed"
    whole = phase.phase_figure(results.assign_attrs(tasks=14, done_tasks=14), title="trial")
    assert whole._suptitle.get_text() == "trial"


def test_bands_of_what_tokens_have_each_are_over_members():
    """They went over members and tokens together, and were called those of members."""
    values = np.random.default_rng(0).standard_normal((4, 20, 30)) + 10.0 * np.arange(30)
    array = xr.DataArray(values, dims=("beta", "member", "token"))
    reduced = phase.reduce_members(array)
    np.testing.assert_allclose(reduced.low, np.quantile(values.mean(2), 0.1, axis=1))
    np.testing.assert_allclose(reduced.high, np.quantile(values.mean(2), 0.9, axis=1))
    np.testing.assert_allclose(reduced.mean, values.mean((1, 2)))
    assert reduced.band == "10 % to 90 %\nof 20 members,\nmean over tokens"
    alone = phase.reduce_members(array.isel(member=0))
    np.testing.assert_array_equal(alone.low, alone.high)
    assert phase.reduce_members(array.rename(member="draw")).band == "10 % to 90 %\nof 20 draws,\nmean over tokens"


# ------------------------------------------------------------------------------------------------- axes in any order


GROWN = (4.0, 16.0, 64.0, 256.0, 8.0, 32.0, 128.0)
"""A grid that was grown at its end."""
AXES = {
    "grown": GROWN,
    "falling": tuple(sorted(GROWN, reverse=True)),
    "even": (3.0, 1.0, 4.0, 2.0, 5.0),
    "even and falling": (5.0, 4.0, 3.0, 2.0, 1.0),
}


@pytest.fixture(params=AXES.values(), ids=AXES)
def mixed(request):
    """A quantity that says where it was measured: beta + time / 1000, and three members around it; the numbers in any order."""
    beta, time = np.array(request.param), np.array([100.0, 1.0, 10.0, 1000.0])
    values = beta[:, None, None] + time[None, :, None] / 1000 + np.array([-0.1, 0.0, 0.1])
    coords = {"beta": beta, "time": time}
    return xr.DataArray(values, dims=("beta", "time", "member"), coords=coords, name="it")


def test_every_cell_of_a_map_stands_at_its_values(mixed):
    """Rows were painted over by others."""
    mesh = phase.phase_figure(mixed, x="time", y="beta").axes[0].collections[0]
    corners = mesh.get_coordinates()
    across, up = corners[0, :, 0], corners[:, 0, 1]
    assert (np.diff(across) > 0).all()
    assert (np.diff(up) > 0).all()
    cells = np.asarray(mesh.get_array()).reshape(len(up) - 1, len(across) - 1)
    for beta in mixed.beta.values:
        for time in mixed.time.values:
            row, column = np.searchsorted(up, beta) - 1, np.searchsorted(across, time) - 1
            assert cells[row, column] == pytest.approx(beta + time / 1000)


def test_every_point_of_a_curve_stands_at_its_value(mixed):
    """Curves and bands zigzagged."""
    (ax,) = phase.phase_figure(mixed, x="beta", kind="curves", at={"time": 100.0}).axes
    dots = next(line for line in ax.lines if line.get_marker() == "o")
    assert dots.get_xdata().tolist() == sorted(mixed.beta.values)
    np.testing.assert_allclose(dots.get_ydata(), dots.get_xdata() + 0.1)
    for line in ax.lines:
        assert (np.diff(line.get_xdata()) > 0).all()
        assert (np.abs(line.get_ydata() - 0.1 - line.get_xdata()) < 0.1).all()


def test_curves_of_a_family_keep_their_names_and_colours_in_order(mixed):
    page = phase.phase_figure(mixed, x="time", kind="curves")
    named = [line for line in page.axes[0].lines if not line.get_label().startswith("_")]
    labels = [float(line.get_label()) for line in named]
    assert labels == sorted(mixed.beta.values)
    for line, beta in zip(named, labels):
        assert line.get_xdata().tolist() == [1.0, 10.0, 100.0, 1000.0]
        np.testing.assert_allclose(line.get_ydata(), beta + line.get_xdata() / 1000)
    expected = style.sequence_map()(np.linspace(0, 0.9, len(labels)))
    np.testing.assert_array_equal([line.get_color() for line in named], expected)


def test_panels_are_in_order(mixed):
    several = mixed * xr.DataArray([3.0, 1.0, 2.0], dims="level", coords={"level": [3.0, 1.0, 2.0]})
    page = phase.phase_figure(several, x="time", y="beta")
    assert [ax.get_title(loc="left")[-9:] for ax in page.axes[:3]] == ["level = 1", "level = 2", "level = 3"]
    tops = [float(ax.collections[0].get_array().max()) for ax in page.axes[:3]]
    assert tops == pytest.approx([factor * float(mixed.mean("member").max()) for factor in (1.0, 2.0, 3.0)])


def test_a_place_is_found_in_any_order(mixed):
    for beta in mixed.beta.values:
        assert phase.select(mixed, {"beta": str(beta)}).beta == beta


def test_axes_that_neither_rise_nor_fall_are_not_drawn():
    ax = style.figure()[1]
    with pytest.raises(InvalidInputError, match="must rise, or fall"):
        phase.draw_phase(ax, [1.0, 2.0], [1.0, 3.0, 2.0], np.zeros((3, 2)))
    with pytest.raises(InvalidInputError, match="must rise, or fall"):
        phase.draw_family(ax, [1.0, 3.0, 2.0], np.zeros((1, 3)))
    mesh = phase.draw_phase(ax, [1.0, 2.0], [3.0, 2.0], [[1.0, 2.0], [3.0, 4.0]])
    assert mesh.get_coordinates()[:, 0, 1].tolist() == [3.5, 2.5, 1.5]


# -------------------------------------------------------------------------------------------------- what is said


def test_places_that_were_not_asked_for_are_said_or_refused(results):
    """Beta = 900 was silently drawn at 256."""
    page = phase.phase_figure(results, x="time", kind="curves", at={"beta": 30.0})
    assert page._suptitle.get_text() == r"$\beta$ = 32 (nearest to 30)"
    page = phase.phase_figure(results, x="time", kind="curves", at={"beta": "16", "mask": "full"})
    assert page._suptitle.get_text() == r"$\beta$ = 16, mask = full"
    for asked in (900.0, 0.0, float("nan"), "many"):
        with pytest.raises(InvalidInputError, match=r"beta has no value .*; it has 4.0, .*256.0"):
            phase.phase_figure(results, at={"beta": asked})
    with pytest.raises(InvalidInputError, match=r"time has no value '1e9'; it has 1.0, .*, \.\.\., 1000000.0"):
        phase.phase_figure(results, at={"time": "1e9"})


def test_colours_that_cannot_be_logarithmic_say_so(results):
    """They were linear without a word."""
    from matplotlib.colors import LogNorm, Normalize

    page = phase.phase_figure(results, log=True)
    assert isinstance(page.axes[0].collections[0].norm, LogNorm)
    assert page._suptitle is None
    page = phase.phase_figure(results - 1.0, log=True)
    assert type(page.axes[0].collections[0].norm) is Normalize
    assert page._suptitle.get_text() == "colours are linear, not logarithmic: some values are not above 0"
    page = phase.phase_figure(results - 1.0, x="time", kind="curves", at={"beta": 4.0}, log=True)
    assert (
        page._suptitle.get_text()
        .replace("\n", " ")
        .endswith("values that are not above 0 have no place on the logarithmic axis")
    )


def test_names_are_not_joined(results):
    """Lines and bands went from one name to the next, as if there were something between."""
    page = phase.phase_figure(results.isel(beta=[0, 1]), x="mask", kind="curves", at={"time": 1.0})
    (ax,) = page.axes
    assert {line.get_linestyle() for line in ax.lines} == {"None"}
    assert len(ax.collections) == 2
    for row, (line, bars) in enumerate(zip(ax.lines, ax.collections)):
        part = results.isel(beta=row, time=0)
        np.testing.assert_allclose(line.get_ydata(), part.mean("member"))
        assert np.round(line.get_xdata()).tolist() == [0.0, 1.0]
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        np.testing.assert_allclose(ends, part.quantile([0.1, 0.9], "member").transpose("mask", "quantile"))
    assert page.legends[0].get_texts()[-1].get_text() == "10 % to 90 %\nof 20 members"


def test_long_headings_and_titles_are_broken_between_words(results):
    """They made the page twice as wide, and parted names from their values."""
    page = phase.phase_figure(results, title=" ".join(["a sweep with many words"] * 10))
    page.canvas.draw()
    assert page._suptitle.get_window_extent().width < page.bbox.width
    page = phase.phase_figure(results, x="beta", kind="curves", at={"time": 1.0}, title=" ".join(["many words"] * 10))
    page.canvas.draw()
    assert not page._suptitle.get_window_extent().overlaps(page.legends[0].get_window_extent())
    kinds = [f"long_{name}(tau=1.0)" for name in "abc"]
    panels = xr.concat([results.sel(mask="full")] * 3, dim=xr.DataArray(kinds, dims="norm", name="norm"))
    page = phase.phase_figure(panels)
    for ax, name in zip(page.axes, kinds):
        assert ax.get_title(loc="left").endswith(f"norm = {name}")


def test_draws_count_by_the_members_that_are_left():
    """The mean over draws of which many members had failed was one over the means of draws."""
    labels = ["mean", "q10", "q90", "count"]
    draws = [[[1.0, 0.0, 2.0, 30.0]], [[5.0, 4.0, 6.0, 10.0]], [[np.nan, np.nan, np.nan, 0.0]]]
    array = xr.DataArray(draws, dims=("draw", "beta", "statistic"), coords={"statistic": labels})
    reduced = phase.reduce_members(array)
    assert reduced.mean.values.tolist() == [2.0]
    assert (reduced.low.values.tolist(), reduced.high.values.tolist()) == ([2.0], [4.0])
    assert np.isnan(phase.reduce_members(array.isel(draw=[2])).mean.values).all()


@pytest.mark.parametrize("kind", ["map", "curves"])
@pytest.mark.parametrize("keep", ["members", "statistics"])
def test_pictures_say_over_how_many_members_their_means_are(results, kind, keep):
    """Means over the few members that still have a value were drawn like all others, without a word."""
    few = results.where((results.member % 4 == 0) | (results.time < 10.0))
    if keep == "statistics":
        parts = [few.mean("member"), few.mean("member"), few.mean("member"), few.count("member")]
        names = xr.DataArray(["mean", "q10", "q90", "count"], dims="statistic")
        few = xr.concat(parts, dim=names, coords="minimal", compat="override").assign_attrs(
            members=results.sizes["member"]
        )
    said = phase.phase_figure(few, x="time", kind=kind).get_suptitle().replace("\n", " ")
    left = len(range(0, results.sizes["member"], 4))
    assert f"means are over {left} to {results.sizes['member']} of {results.sizes['member']} members" in said
    assert "means are over" not in phase.phase_figure(results, x="time", kind=kind).get_suptitle()


def test_pictures_say_where_infinite_members_leave_no_mean(results):
    far = results.where((results.member > 0) | (results.time < 50.0), np.inf)
    said = phase.phase_figure(far).get_suptitle().replace("\n", " ")
    assert f"no mean in {int((results.time >= 50.0).sum()) * 14} of 182 places: members are infinite there" in said
