"""Pictures of ensembles that were joined, masked, or have values for some members only."""

import warnings

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable.errors import InvalidInputError, RepeatedMembersWarning
from tests.small_ensembles import DROP
from tests.small_ensembles import made as of_beta


def made(times=(0.0, 1.0), seed=0, beta=64.0, **options):
    return of_beta(beta, times, seed, **options)


def heading(page):
    return " ".join(page._suptitle.get_text().split())


def lines(ax):
    return [(line.get_xdata(), line.get_ydata()) for line in ax.lines]


def test_pictures_of_ensembles_joined_along_time():
    """Statuses along time, which are text, were taken for an observable."""
    joined = xr.concat([made(), made(times=(2.0, 3.0))], "time", **DROP)
    page = ms.plot_ensemble(joined.assign(note=xr.full_like(joined.clusters, "a", dtype=object)))
    assert len([ax for ax in page.axes if ax.lines]) == 1


def test_an_interrupted_ensemble_says_so():
    """ "3 members", and no word of those that were asked for."""
    assert heading(ms.plot_ensemble(made())).startswith("3 members, $n")
    assert heading(ms.plot_ensemble(made().assign_attrs(status="interrupted"))).startswith(
        "3 members (interrupted), $n"
    )


def test_names_of_observables_are_as_their_users_wrote_them():
    """`x_y` was called "x y"."""
    stats = made().rename(clusters="x_y")
    stats = stats.assign({"in_$": stats.x_y})
    stats["in_$"][0] = np.nan
    page = ms.plot_ensemble(stats)
    assert {ax.get_title(loc="left").split(",")[0] for ax in page.axes} >= {"x_y", r"in_\$"}
    assert r"in_\$: 2 of 3 members have values" in heading(page)


def test_members_that_stopped_are_counted_once(tmp_path):
    """Along time every cell was: "3 members, 6 members stopped early"."""
    early = made((2.0, 3.0), max_steps=1)
    joined = xr.concat([made(), early], "time", **DROP)
    ms.save_ensemble(joined, tmp_path / "joined.zarr")
    some = joined.where((joined.member != 1) | (joined.time != 3))
    for stats in (joined, ms.load_ensemble(tmp_path / "joined.zarr"), some):
        assert "3 members stopped early" in heading(ms.plot_ensemble(stats))
    nobody = heading(ms.plot_ensemble(early.where(early.clusters > 0)))
    assert "stopped early" not in nobody
    assert "clusters: 0 of 3 members have values" in nobody


def test_parts_along_time_are_drawn_in_the_order_of_times():
    """A part that begins earlier, but was joined later, gave zigzags."""
    first, later = made((0.0, 1.0)), made((2.0, 3.0)).assign_coords(time=[2.0, 2000.0])
    joined = xr.concat([later, first], "time", **DROP)
    for log, count in ((False, 4), (None, 3)):
        ax = ms.plot_ensemble(joined, log=log).axes[0]
        assert ax.get_xscale() == ("log" if log is None else "linear")
        for x, _ in lines(ax):
            assert len(x) == count
            assert (np.diff(x) > 0).all()
        x, y = lines(ax)[-1]
        np.testing.assert_allclose(y, joined.clusters.mean("member").sel(time=x))


def test_few_times_are_dots():
    """Where something was measured was not to be seen."""
    ax = ms.plot_ensemble(made((0.0, 1.0, 4.0))).axes[0]
    dots = [line.get_xdata().tolist() for line in ax.lines if line.get_marker() == "o"]
    assert dots == [[0.0, 1.0, 4.0]]
    many = ms.plot_ensemble(made(tuple(np.linspace(0.0, 1.0, 40)))).axes[0]
    assert not [line for line in many.lines if line.get_marker() == "o"]


def test_one_moment_is_a_dot_with_a_bar():
    """The legend promised a line and a band that were not there."""
    page = ms.plot_ensemble(made((1.0,)))
    ax = page.axes[0]
    assert [line.get_marker() for line in ax.lines] == ["o"]
    (bar,) = ax.collections
    low, high = bar.get_segments()[0][:, 1]
    assert low <= ax.lines[0].get_ydata()[0] <= high
    assert [text.get_text() for text in page.legends[0].get_texts()] == ["mean", "10 % to 90 % of members"]


def test_a_logarithmic_picture_says_what_it_has_no_place_for():
    assert "$t = 0$ is not on the logarithmic axis" in heading(ms.plot_ensemble(made((0.0, 1.0, 4.0)), log=True))


def test_observables_without_values_or_without_a_finite_mean_say_so():
    stats = made((0.0, 1.0, 2.0))
    some = stats.clusters.where(stats.member > 0)
    far = stats.clusters.where((stats.member != 1) | (stats.time < 2), np.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = ms.plot_ensemble(stats.assign(some=some, far=far, lost=xr.full_like(far, np.inf)))
        page.canvas.draw()
    words = heading(page)
    assert "some: 2 of 3 members have values" in words
    assert "far: infinite for 1 of 3 members (no mean there)" in words
    assert "lost: infinite for 3 of 3 members" in words
    assert "clusters" not in words
    panels = {ax.get_title(loc="left").split(",")[0]: ax for ax in page.axes}
    for _, y in lines(panels["far"]):
        np.testing.assert_array_equal(np.isnan(y), [False, False, True])
    assert len({panels[name].get_xlim() for name in ("some", "far", "lost")}) == 1


def test_members_without_values_at_some_times_are_told():
    """A mean over 14 of 40 members, those whose clusters had not met yet, looked like one over all."""
    stats = made((0.0, 1.0, 2.0))
    page = ms.plot_ensemble(stats.assign(gap=stats.clusters.where((stats.member < 2) | (stats.time < 1))))
    assert "gap: 2 to 3 of 3 members have values" in heading(page)
    assert "clusters" not in heading(page)


def test_members_that_stopped_are_not_said_to_lack_values():
    early = made((2.0, 3.0), max_steps=1)
    assert np.isnan(early.clusters).all()
    assert "have values" not in heading(ms.plot_ensemble(early))


def test_ensembles_joined_along_another_dim_are_told_to_select():
    joined = xr.concat([made(beta=4.0), made()], xr.IndexVariable("beta", [4.0, 64.0]), **DROP)
    for names in (None, ["clusters"]):
        with pytest.raises(InvalidInputError, match=r"all go along beta, too: select one first, stats\.isel\(beta=0\)"):
            ms.plot_ensemble(joined, names)
    ms.plot_ensemble(joined.isel(beta=0))
    with pytest.raises(InvalidInputError, match=r"name some in observe"):
        ms.plot_ensemble(made().drop_vars(["clusters", "x"]))


def test_members_that_are_drawn_twice_are_told():
    stats = made()
    with pytest.warns(RepeatedMembersWarning, match="3 of the 6 members") as told:
        ms.plot_ensemble(xr.concat([stats, stats], "member"))
    assert told[0].filename == __file__
