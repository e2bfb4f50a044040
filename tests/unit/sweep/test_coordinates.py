"""What stands along the inner dims of results: the observable's own numbers, in ensembles and sweeps alike; and members that fail."""

import numpy as np
import pytest
import xarray as xr

import metastable as ms
from metastable import sweep as sweeps
from metastable.figures import phase

OBSERVE = {"cosine_quantiles": {}, "density": {"cells": 8}, "state": {}}
LEVELS, ARCS = [0.1, 0.5, 0.9], (-np.pi + (np.arange(8) + 0.5) * np.pi / 4).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("sweep") / "out"
    described = ms.Sweep(
        model={"dim": 2},
        grid={"beta": [1.0, 4.0]},
        observe=OBSERVE,
        times=[0.0, 1.0],
        members=3,
        tokens=5,
        options={"engine": "reference"},
    )
    for _ in range(2):  # the second time the store is found sound
        sweeps.run(described, place, workers=0, progress=False)
    return place


def members(**observe):
    return ms.ensemble(
        ms.Attention(dim=2, beta=1.0),
        tokens=5,
        members=3,
        times=[0.0, 1.0],
        seed=0,
        observe=observe,
        engine="reference",
        progress=False,
    )


def test_a_sweep_has_the_coordinates_of_its_observables(folder):
    found = sweeps.open_results(folder)
    assert found["quantile"].values.tolist() == LEVELS
    assert found["angle"].values.tolist() == pytest.approx(ARCS)
    assert found["member"].values.tolist() == [0, 1, 2]
    assert found["member"].dtype == np.int64
    assert not {"token", "coord"} & set(found.coords)
    same = members(
        cosine_quantiles=ms.observe.cosine_quantiles(), density=ms.observe.density(cells=8), state=ms.observe.state()
    )
    assert not {"token", "coord"} & set(same.coords)
    assert same["angle"].values.tolist() == found["angle"].values.tolist()
    assert same["quantile"].values.tolist() == LEVELS


def test_an_undamaged_store_is_left_alone(folder):
    from metastable.sweep.store import Store

    said = []
    store = Store(folder, sweeps.store.read_description(folder), said.append)
    store.refresh()
    assert said == []


def test_numbers_that_do_not_agree_are_no_coordinate():
    quantiles = ms.observe.cosine_quantiles
    assert "quantile" not in members(a=quantiles((0.1, 0.5)), b=quantiles((0.5, 0.9))).coords
    assert members(a=quantiles((0.1, 0.5)), b=quantiles((0.1, 0.5)))["quantile"].values.tolist() == [0.1, 0.5]


def test_cells_of_the_sphere_have_heights_and_angles():
    run = ms.simulate(ms.Attention(dim=3, beta=1.0), ms.sphere.uniform(4, dim=3, seed=0), times=[0.0, 1.0])
    found = run.observe(ms.observe.density(cells=6))
    assert found["height"].values.tolist() == pytest.approx([-2 / 3, 0.0, 2 / 3])
    assert found["angle"].size == 6
    assert "band" not in run.observe(ms.observe.density(cells=6, axis=[0.0, 0.0, 1.0])).coords
    tokens = np.repeat(ms.sphere.from_angle([2.0]), 3, axis=0)
    still = ms.simulate(ms.Attention(dim=2, beta=1.0), tokens, times=[0.0, 1.0]).observe(ms.observe.density(cells=8))
    assert abs(float(still["angle"][int(np.argmax(still.values[0]))]) - 2.0) <= np.pi / 8


def test_quantiles_over_members_of_quantiles_over_pairs():
    stats = members(cosine_quantiles=ms.observe.cosine_quantiles(), cosine=ms.observe.mean_cosine())
    found = ms.summarize(stats, quantiles=(0.25, 0.75))
    assert found.cosine_quantiles_quantile.dims == ("member_quantile", "time", "quantile")
    assert found.cosine_quantile.dims == ("member_quantile", "time")
    assert found["member_quantile"].values.tolist() == [0.25, 0.75]
    assert found["quantile"].values.tolist() == LEVELS
    expected = np.quantile(stats.cosine_quantiles.values, [0.25, 0.75], axis=0)
    np.testing.assert_allclose(found.cosine_quantiles_quantile.values, expected, rtol=1e-12)
    assert ms.summarize(stats[["cosine"]]).cosine_quantile.dims == ("quantile", "time")


def test_quantiles_are_drawn_with_kept_members(folder):
    array = sweeps.open_results(folder)["cosine_quantiles"].load()
    reduced = phase.reduce_members(array)
    np.testing.assert_allclose(reduced.low.values, np.quantile(array.values, 0.1, axis=array.get_axis_num("member")))
    assert phase.phase_figure(array).axes
    plain = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("beta", "token"), coords={"beta": [1.0, 2.0]})
    assert phase.select(plain, {"token": 2}).values.tolist() == [2.0, 5.0]


def first_fails(task):
    """A task whose first member never finishes: by itself it is no result."""
    if task.members == 1:
        raise ValueError("the first member fails")
    return xr.Dataset({"a": (("member",), np.ones(task.members))})


def test_one_failing_member_does_not_stop_a_sweep():
    described = ms.Sweep(
        model={"dim": 2, "beta": 1.0}, grid={}, observe={"mean_cosine": {}}, times=[1.0], members=40, tokens=5
    )
    found = sweeps.estimate(described, first_fails, seconds=0.1)
    assert found.failures == ()
    assert found.bytes == 2 * 40 * 8
