"""Ensembles that were joined along something else than members, and summaries of what was selected of them."""

import warnings

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable.errors import InvalidInputError, StoppedEarlyWarning

DROP = {"combine_attrs": "drop_conflicts"}


def made(beta=4.0, times=(0.0, 1.0), seed=0, max_steps=100):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoppedEarlyWarning)
        return ms.ensemble(
            ms.Attention(dim=2, beta=beta),
            tokens=5,
            members=3,
            times=list(times),
            seed=seed,
            engine="reference",
            max_steps=max_steps,
            observe={"clusters": ms.observe.clusters(radius=0.1), "x": ms.observe.state()},
        )


def stored(stats, tmp_path):
    ms.save_ensemble(stats, tmp_path / "stats.zarr")
    return ms.load_ensemble(tmp_path / "stats.zarr")


def test_how_each_part_went_is_kept(tmp_path):
    """Statuses and steps of all parts but the first were lost, and the store said "success"."""
    parts = made(max_steps=1000), made(64.0, max_steps=1)
    joined = xr.concat(parts, xr.IndexVariable("beta", [4.0, 64.0]), **DROP)
    found = stored(joined, tmp_path)
    assert found.status.dims == ("beta", "member")
    assert found.status.values.tolist() == [["success"] * 3, ["max_steps"] * 3]
    for name in ("accepted", "rejected", "evaluations"):  # (what both share is said once)
        np.testing.assert_array_equal(found[name].broadcast_like(joined[name]), joined[name])
    assert found.attrs["status"] == "incomplete" == ms.summarize(joined).attrs["status"]
    assert "model" not in found.attrs
    np.testing.assert_array_equal(found.clusters, joined.clusters)


def test_what_parts_share_is_said_once(tmp_path):
    joined = xr.concat([made(), made(64.0)], xr.IndexVariable("beta", [4.0, 64.0]), **DROP)
    found = stored(joined.where(joined.clusters > 1), tmp_path)
    assert found.status.dims == ("member",)
    assert found.attrs["status"] == "success"


@pytest.mark.parametrize("axis", ["beta", "time"])
def test_parts_of_another_model_are_refused_under_the_attributes_of_the_first(tmp_path, axis):
    later = (2.0, 3.0) if axis == "time" else (0.0, 1.0)
    one, other = made(), made(16.0, later)
    with pytest.raises(InvalidInputError, match="not all of its parts are whole and as computed"):
        stored(xr.concat([one, other], axis), tmp_path)
    assert not (tmp_path / "stats.zarr").exists()
    found = stored(xr.concat([one, other], axis, **DROP), tmp_path)
    assert "model" not in found.attrs
    assert found.attrs["values"] != "as computed"


def test_whole_parts_of_one_model_are_as_computed(tmp_path):
    first, later, other = made(), made(times=(2.0, 3.0)), made(seed=1)
    for number, (joined, seeds) in enumerate(
        (
            (xr.concat([first, later], "time", **DROP), 0),
            (xr.concat([first, later], "time"), 0),
            (xr.concat([first, other], "replica"), [0, 1]),
        )
    ):
        ms.save_ensemble(joined, tmp_path / f"{number}.zarr")
        found = ms.load_ensemble(tmp_path / f"{number}.zarr")
        assert found.attrs["values"] == "as computed"
        assert found.attrs["seed"] == seeds
        np.testing.assert_array_equal(found.x, joined.x)
        ms.save_ensemble(found, tmp_path / f"{number} again.zarr")


@pytest.mark.parametrize("place", [{"time": 0}, {"time": 3}, {"time": 3, "member": 1}])
def test_changed_values_of_any_part_are_refused(tmp_path, place):
    joined = xr.concat([made(), made(times=(2.0, 3.0))], "time")
    joined.clusters[place] = 7
    with pytest.raises(InvalidInputError, match="not all of its parts"):
        stored(joined, tmp_path)


def test_selections_of_joined_ensembles_are_kept_but_not_checked(tmp_path):
    times = xr.concat([made(), made(times=(2.0, 3.0))], "time", **DROP)
    seeds = xr.concat([made(), made(seed=1)], "replica", **DROP)
    chosen = (
        times.isel(time=slice(0, 3)),
        times.isel(time=[3, 2, 1, 0]),
        times.drop_vars("x"),
        seeds.isel(time=[1]),
        seeds.drop_vars("x"),
    )
    for number, stats in enumerate(chosen):
        ms.save_ensemble(stats, tmp_path / f"{number}.zarr")
        found = ms.load_ensemble(tmp_path / f"{number}.zarr")
        assert found.attrs["values"] != "as computed"
        np.testing.assert_array_equal(found.clusters, stats.clusters)


def test_joined_ensembles_without_what_is_said_of_members_are_no_traceback(tmp_path):
    seeds = xr.concat([made(), made(seed=1)], "replica", **DROP)
    text = seeds.assign(clusters=seeds.clusters.astype(str))
    for number, stats in enumerate((seeds.drop_vars("accepted"), seeds.drop_vars("status"), text)):
        ms.save_ensemble(stats, tmp_path / f"{number}.zarr")
        assert ms.load_ensemble(tmp_path / f"{number}.zarr").attrs["values"] != "as computed"


def test_parts_of_different_sizes_are_told_how(tmp_path):
    parts = [made(), made(64.0).isel(member=[0, 1])]
    axis = xr.IndexVariable("beta", [4.0, 64.0])
    with pytest.raises(InvalidInputError, match='join="inner"'):
        ms.summarize(xr.concat(parts, axis, join="outer", **DROP))
    assert stored(xr.concat(parts, axis, join="inner", **DROP), tmp_path).sizes["member"] == 2


def test_two_seeds_along_time_are_no_traceback(tmp_path):
    joined = xr.concat([made(), made(times=(2.0, 3.0), seed=1)], "time", **DROP)
    assert stored(joined, tmp_path).attrs["seed"] == [0, 1]


# ------------------------------------------------------------------------------------------------------------ summaries


def test_one_moment_has_a_summary():
    stats = made()
    whole, alone = ms.summarize(stats), ms.summarize(stats.sel(time=1.0))
    assert set(alone.data_vars) == set(whole.data_vars)
    xr.testing.assert_allclose(alone.drop_vars("time"), whole.sel(time=1.0).drop_vars("time"))
    over = ms.summarize(stats[["clusters"]].mean("time", keep_attrs=True))
    assert float(over.clusters_mean) == pytest.approx(float(stats.clusters.mean()))


def test_yes_and_no_have_a_share_and_text_has_none():
    stats = made()
    more = stats.assign(few=stats.clusters <= 3, note=("member", np.array(["a", "b", "a"])))
    found = ms.summarize(more)
    np.testing.assert_allclose(found.few_mean, (stats.clusters <= 3).mean("member"))
    assert not any(str(name).startswith(("note", "status", "accepted", "member_digest")) for name in found.data_vars)


def test_lengths_that_each_model_sets_are_not_measured():
    stats = ms.ensemble(
        lambda generator: ms.Attention(dim=2, beta=float(generator.uniform(4.0, 9.0))),
        tokens=5,
        members=3,
        times=[0.0, 1.0],
        seed=0,
        observe={"clusters": ms.observe.clusters()},
    )
    assert "clusters_radius" in stats
    assert set(ms.summarize(stats).data_vars) == {"clusters_mean", "clusters_error", "clusters_quantile"}


def test_variables_that_are_called_like_lengths_have_summaries():
    stats = ms.ensemble(
        ms.Attention(dim=2, beta=4.0),
        tokens=5,
        members=3,
        times=[0.0, 1.0],
        seed=0,
        observe={"cap": ms.observe.mean_cosine(), "cap_radius": ms.observe.mean_cosine()},
    )
    found = ms.summarize(stats.assign(mine=2 * stats.cap, mine_radius=3 * stats.cap))
    assert {"cap_mean", "cap_radius_mean", "mine_mean", "mine_radius_mean"} <= set(found.data_vars)


def test_empty_moments_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(ms.summarize(made(64.0, max_steps=1)).clusters_mean.values[-1])


def test_pictures_of_ensembles_joined_along_time():
    """Statuses along time, which are text, were taken for an observable."""
    joined = xr.concat([made(), made(times=(2.0, 3.0))], "time", **DROP)
    page = ms.plot_ensemble(joined.assign(note=xr.full_like(joined.clusters, "a", dtype=object)))
    assert len([ax for ax in page.axes if ax.lines]) == 1


@pytest.mark.parametrize("nobody", [{"member": []}, {"time": []}])
@pytest.mark.parametrize("use", [ms.summarize, ms.plot_ensemble])
def test_empty_selections_are_refused_by_name(nobody, use):
    with pytest.raises(InvalidInputError, match="no members, or no times, left"):
        use(made().isel(nobody))
