"""Observables against direct computation on a short run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import metastable as ms
from metastable import sphere
from metastable.errors import InvalidInputError, UnsupportedError

observe = ms.observe


@pytest.fixture(scope="module")
def run() -> Any:
    start = sphere.uniform(30, 2, seed=1)
    model = ms.Attention(dim=2, beta=20.0)
    return ms.simulate(model, start, times=[0.0, 1.0, 5.0, 20.0], method="tsit5", engine="reference")


def measure(observable: Any, run: Any) -> np.ndarray:
    values = observable.measure(run.states, start=run.start, model=run.model, times=run.times)
    assert isinstance(observable, observe.Observable)
    assert values.shape[0] == len(run.times)
    assert values.ndim == 1 + len(observable.dims)
    hash(observable)
    return values


def test_consumed(run: Any) -> None:
    delta = 4 / math.sqrt(20.0)
    for strong in (False, True):
        centers = ms.renyi_centers(run.start, delta, strong)
        moving = [ms.consumed(x, centers, 0.1 * delta) for x in run.states]
        np.testing.assert_array_equal(measure(observe.consumed(delta=delta, strong=strong), run), moving)
        fixed = [ms.consumed(x, run.start[centers], 0.2) for x in run.states]
        observable = observe.consumed(delta=delta, radius=0.2, strong=strong, moving=False)
        np.testing.assert_array_equal(measure(observable, run), fixed)


def test_clusters_and_state(run: Any) -> None:
    counts = [ms.cluster_labels(x, 0.05).max() + 1 for x in run.states]
    np.testing.assert_array_equal(measure(observe.clusters(radius=0.05), run), counts)
    np.testing.assert_array_equal(measure(observe.state(), run), run.states)
    space = np.stack([sphere.uniform(40, 3, seed) for seed in range(3)])
    values = observe.clusters(0.3).measure(space, start=space[0], model=run.model, times=np.arange(3.0))
    assert values.tolist() == [ms.cluster_labels(x, 0.3).max() + 1 for x in space]


def test_cosines_and_order(run: Any) -> None:
    pairs = np.triu_indices(30, 1)
    cosines = np.array([(x @ x.T)[pairs] for x in run.states])
    np.testing.assert_allclose(measure(observe.mean_cosine(), run), cosines.mean(axis=1), atol=1e-14)
    got = measure(observe.cosine_quantiles((0.25, 0.5)), run)
    np.testing.assert_allclose(got, np.quantile(cosines, (0.25, 0.5), axis=1).T)
    order = np.linalg.norm(run.states.mean(axis=1), axis=1)
    np.testing.assert_allclose(measure(observe.order_parameter(), run), order)
    single = run.states[:, :1]
    assert (
        observe.mean_cosine().measure(single, start=single[0], model=run.model, times=run.times).tolist() == [1.0] * 4
    )


def test_attention(run: Any) -> None:
    matrix = measure(observe.attention(), run)
    np.testing.assert_allclose(matrix.sum(axis=2), 1.0)
    assert (np.triu(matrix[0], 1) == 0).all()
    entropy = measure(observe.attention_entropy(), run)
    assert (entropy[:, 0] == 0).all()
    p = matrix[2, 7, :8]
    assert entropy[2, 7] == pytest.approx(-(p * np.log(p)).sum())
    assert (entropy <= np.log(np.arange(1, 31)) + 1e-12).all()


def test_attention_rank_counts_clusters_under_full_attention() -> None:
    x = np.repeat(sphere.uniform(4, 3, seed=0), 5, axis=0)[None]
    model = ms.Attention(dim=3, beta=30.0, mask=ms.Full())
    rank = observe.attention_rank().measure(x, start=x[0], model=model, times=np.zeros(1))
    assert rank.tolist() == [4]


def test_distance_to(run: Any) -> None:
    got = measure(observe.distance_to([1.0, 1.0]), run)
    angle = np.abs(sphere.to_angle(run.states) - math.pi / 4)
    angle = np.minimum(angle % math.pi, math.pi - angle % math.pi)
    np.testing.assert_allclose(got, angle, atol=1e-12)
    plane = observe.distance_to(np.eye(2))
    assert measure(plane, run).max() == 0.0


def test_center_displacement(run: Any) -> None:
    got = measure(observe.center_displacement(delta=0.9), run)
    centers = ms.renyi_centers(run.start, 0.9, strong=True)
    np.testing.assert_array_equal(np.flatnonzero(~np.isnan(got[0])), centers)
    np.testing.assert_allclose(got[:, centers], sphere.distance(run.states[:, centers], run.start[centers]))
    assert np.nanmax(got[0]) == 0.0


def test_run_observe_gives_a_data_array(run: Any) -> None:
    array = run.observe(observe.distance_to([1.0, 0.0]))
    assert array.dims == ("time", "token")
    np.testing.assert_array_equal(array["time"], run.times)


@pytest.mark.parametrize(
    "call",
    [
        lambda: observe.consumed(delta=0.0),
        lambda: observe.consumed(delta=1.0, radius=-1.0),
        lambda: observe.clusters(radius=0.0),
        lambda: observe.cosine_quantiles(()),
        lambda: observe.cosine_quantiles((1.5,)),
        lambda: observe.distance_to(np.zeros((3, 1))),
        lambda: observe.distance_to(np.zeros((2, 2, 2))),
        lambda: observe.attention(head=-1),
        lambda: observe.center_displacement(delta=-1.0),
    ],
)
def test_bad_arguments_are_refused(call: Any) -> None:
    with pytest.raises(InvalidInputError):
        call()


def test_what_a_model_does_not_have_is_refused(run: Any) -> None:
    with pytest.raises(InvalidInputError, match="head"):
        measure(observe.attention(head=3), run)
    model = run.model.replace(weights="unnormalized")
    with pytest.raises(UnsupportedError, match="softmax"):
        observe.attention_entropy().measure(run.states, start=run.start, model=model, times=run.times)
