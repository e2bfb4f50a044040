"""Every public function of `metastable.analysis`, each argument in turn replaced by what it cannot take: named errors only."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import metastable as ms
from metastable import analysis
from metastable.errors import InvalidInputError, MetastableError

MODEL = ms.Attention(dim=3, beta=2.0)
TOKENS = ms.sphere.uniform(6, 3, seed=0)
RUN = ms.simulate(MODEL, TOKENS, until=2.0, engine="reference", method="tsit5")
PREDICTION = analysis.predict(MODEL)
LABELS = [0, 0, 1, 1, 2, 2]
LIMITS = {"radius": 0.01, "cloud_angle": 0.5, "cloud_speed": 1e-3, "drift": 1e-3}
FEATURES = {"x": TOKENS, "first": TOKENS[0], "subspace": PREDICTION.subspace, "speeds": np.zeros(6), "elapsed": 1.0}
TREE = analysis.merge_tree(RUN)

GOOD: dict[str, dict[str, Any]] = {
    "center_separation": {"model": MODEL},
    "classify": {"run": RUN, **LIMITS, "tolerance": 1e-9},
    "cluster_count": {"x": TOKENS, "radius": 0.1},
    "cluster_labels": {"x": TOKENS, "radius": 0.1},
    "cluster_leaders": {"labels": LABELS},
    "cluster_means": {"x": TOKENS, "labels": LABELS},
    "cluster_radius": {"model": MODEL},
    "cluster_sizes": {"labels": LABELS},
    "cluster_spread": {"x": TOKENS, "labels": LABELS},
    "consumed": {"x": TOKENS, "centers": [0, 1], "radius": 0.1},
    "energy_gradients": {"model": MODEL, "x": TOKENS},
    "features": FEATURES,
    "attention_energy": {"model": MODEL.replace(mask=ms.Full()), "x": TOKENS},
    "global_energy": {"x": TOKENS, "beta": 1.0},
    "gradient_flow_defect": {"model": MODEL, "x": TOKENS},
    "group": {"x": TOKENS, "radius": 0.1},
    "leading_eigenvalue": {"value": np.eye(3), "tolerance": 1e-9, "scale": 1.0},
    "match": {
        "found": analysis.features(**FEATURES),
        "groups": analysis.group(TOKENS, 0.1),
        "prediction": PREDICTION,
        **LIMITS,
    },
    "merge_tree": {"run": RUN, "radius": 0.1, "window": 0.1, "resolution": 1e-9},
    "predict": {"model": MODEL, "tolerance": 1e-9},
    "predict_merges": {"state": TOKENS, "model": MODEL, "t0": 1.0, "radius": 0.1, "blur": 1e-3},
    "predict_value": {"value": np.eye(3), "tolerance": 1e-9},
    "renyi_centers": {"x": TOKENS, "delta": 0.1, "strong": False, "metric": np.eye(3), "tie_tolerance": 1e-14},
    "token_energies": {"model": MODEL, "x": TOKENS},
}
"""A call of every function that works."""

OBSERVABLES: dict[str, dict[str, Any]] = {
    "density": {"cells": 8, "axis": [1.0, 0.0]},
    "consumed": {"delta": 0.1, "radius": 0.1, "strong": True, "moving": True},
    "clusters": {"radius": 0.1},
    "cosine_quantiles": {"levels": (0.1, 0.9)},
    "distance_to": {"subspace": PREDICTION.subspace},
    "center_displacement": {"delta": 0.1, "strong": True},
    "attention": {"head": 0},
    "attention_entropy": {"head": 0},
    "attention_rank": {"head": 0, "tolerance": 0.1},
    "own": {"function": len, "dims": ("token",), "name": "count"},
}

JUNK: list[Any] = [
    *(
        None,
        3,
        -1,
        0,
        True,
        math.nan,
        math.inf,
        -math.inf,
        1e-300,
        1e300,
        10**400,
        "a",
        b"x",
        object(),
        dict,
        lambda: 0,
    ),
    *([], [[]], {}, (1,), range(3), [1, 2, "x"], [[1, 2], [3]], np.array(None), np.array(["a"]), np.array([1 + 2j])),
    *(np.zeros((0, 3)), np.full((4, 3), np.nan), np.ones((2, 2, 2)), TOKENS[:, :2], TOKENS.T),
]


def check(call: Callable[..., Any], good: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(**good)
        for name in good:
            refused = 0
            for value in JUNK:
                try:
                    call(**{**good, name: value})
                except MetastableError:
                    refused += 1
            assert refused > len(JUNK) // 2, name


@pytest.mark.parametrize("name", GOOD)
def test_functions_refuse_by_name(name: str) -> None:
    check(getattr(analysis, name), GOOD[name])


@pytest.mark.parametrize("name", OBSERVABLES)
def test_observables_refuse_by_name(name: str) -> None:
    check(getattr(analysis.observe, name), OBSERVABLES[name])


def test_every_public_function_is_here() -> None:
    functions = {name for name in analysis.__all__ if inspect.isfunction(getattr(analysis, name))}
    assert functions == set(GOOD)
    made = {name for name in analysis.observe.__all__ if inspect.isfunction(getattr(analysis.observe, name))}
    assert made == {*OBSERVABLES, "energy", "mean_cosine", "order_parameter", "state"}  # these take nothing


def test_methods_of_a_merge_tree_refuse_by_name() -> None:
    check(TREE.labels_at, {"t": 1.0})
    check(TREE.linkage, {"height": "time", "unmerged": 1.0})


@pytest.mark.parametrize("resolution", [1e-17, 1e-16, 1e-300, 0.0, 2.0])
def test_a_resolution_finer_than_the_numbers_is_refused(resolution: float) -> None:
    """Bisection could never end."""
    with pytest.raises(InvalidInputError, match="resolution"):
        analysis.merge_tree(RUN, resolution=resolution)


def test_the_finest_resolution_works() -> None:
    coarse, fine = analysis.merge_tree(RUN, radius=0.3), analysis.merge_tree(RUN, radius=0.3, resolution=1e-15)
    np.testing.assert_allclose(fine.time, coarse.time, atol=1e-8)
    assert len(fine) > 0
