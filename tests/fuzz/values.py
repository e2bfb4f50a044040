"""What the fuzz tests hand to public functions: for each name of a parameter values that make sense, and values that make none.

Arrays are read-only: a function that writes into what it was given fails.
"""

from __future__ import annotations

import decimal
import fractions
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import metastable as ms
from metastable.sweep import Estimate
from tests.fuzz.surface import Entry


class Stranger:
    """An object that nothing is known about."""

    def __repr__(self) -> str:
        return "Stranger()"


def array(value: Any) -> np.ndarray:
    """A read-only array."""
    result = np.array(value)
    result.setflags(write=False)
    return result


NONSENSE: tuple[Any, ...] = (
    *(None, True, "", "softmax", "x" * 300, b"bytes", Stranger(), len, {}, {"kind": "causal"}, set(), (), iter(())),
    *(0, 1, 2, 3, -1, 2**31, 2**40, 2**63 - 1, 2**63, 10**30, 10**400, -(10**400)),
    *(-0.0, 0.5, 2.5, -2.5, 1e-17, 5e-324, 1e-300, 1e300, 1.7e308, -1.7e308, float("nan"), float("inf"), -float("inf")),
    *(1j, fractions.Fraction(1, 3), decimal.Decimal("0.5"), np.float32(0.5), np.int8(3), np.uint8(200), np.bool_(True)),
    *([], [[]], [None], ["a"], [1, 2, 3], [[1.0, 0.0]], [[1.0, 2.0], [3.0]], range(3), [float("nan")], [10**400]),
    *(
        array(0.5),
        array([]),
        array([1.0, np.nan]),
        array([[np.inf, 0.0]]),
        array(["a", "b"]),
        array([1j]),
        array([None]),
    ),
    *(
        array(np.eye(2)),
        array(np.zeros((0, 2))),
        array(np.zeros((2, 2))),
        array(np.ones((2, 2, 2))),
        array([1e300, 1e300]),
    ),
    *(array([[1e-300, 0.0]]), array([1e300, -1e-300]), array([5e-324, 0.0, 0.0]), array(np.full((3, 3), 1e300))),
    *(ms.Causal(), ms.PostLN(), ms.Attention(dim=2, beta=1e308)),
)
"""Values that hardly any parameter takes, or at the edge of what it takes."""


def _points(tokens: int, dim: int, seed: int) -> np.ndarray:
    return array(ms.sphere.uniform(tokens, dim=dim, seed=seed))


@functools.cache
def models() -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        ms.Attention(dim=2, beta=4.0),
        ms.Attention(dim=3, beta=2.0, value=np.diag([2.0, 1.0, -1.0]), mask=ms.Full()),
        ms.Attention(dim=3, beta=1.0, query=rng.normal(size=(3, 3)), key=rng.normal(size=(3, 3)), norm=ms.PreLN()),
        ms.Attention(dim=2, beta=1.0, weights="hardmax", mask=ms.Window(2)),
        ms.Attention(dim=3, beta=600.0, weights="unnormalized", mask=ms.Prefix(2), norm=ms.SqrtScaling()),
        ms.Attention(dim=2, beta=9.0, noise=0.3),
        ms.Attention(
            dim=2, heads=(ms.Head(beta=1.0), ms.Head(value=-np.eye(2))), bias=ms.ALiBi(0.5), norm=ms.NGPT(0.5)
        ),
        ms.Attention(dim=3, beta=1.0, frozen=ms.Frozen(_points(2, 3, 1)), mask=ms.Sink(1, 2), norm=ms.PeriLN()),
        ms.Attention(dim=2, beta=3.0, mask=ms.Mask(np.tri(4, dtype=bool)), norm=ms.MixLN(0.5)),
        ms.Attention(dim=2, beta=1e6),
        ms.Attention(
            dim=3,
            heads=(
                ms.Head(
                    np.ones((2, 3)),
                    np.ones((2, 3)),
                    np.ones((1, 3)),
                    2.0,
                    np.ones((3, 1)),
                    ms.Rotary(),
                    value_bias=[1.0],
                ),
            ),
        ),
        ms.Attention(dim=2, beta=2.0, mask=ms.Mask(lambda k, j: j <= k), bias=ms.LogitBias(np.eye(4))),
        ms.Attention(dim=2, beta=1.0, query=1e300 * np.eye(2), key=1e300 * np.eye(2)),
    ]


@functools.cache
def runs() -> list[Any]:
    plain, sphere = models()[0], models()[1]
    start = _points(4, 2, 0)
    return [
        ms.simulate(plain, start, until=2.0, engine="reference", method="tsit5"),
        ms.simulate(plain, start, times=[1.0, 2.0], engine="reference", method="tsit5"),
        ms.simulate(sphere, _points(4, 3, 0), until=1.0, engine="reference", method="tsit5"),
        ms.simulate(plain, start, until=0.3, step=0.1, engine="reference", method="layers"),
    ]


@functools.cache
def weights() -> list[Any]:
    return [
        ms.checkpoints.random_weights(4, 2, 2),
        ms.checkpoints.random_weights(6, 3, 1, head_dim=2, kv_head_count=1, rope=ms.checkpoints.Rope(1e4, 2)),
    ]


@functools.cache
def states() -> list[Any]:
    import xarray as xr

    rng = np.random.default_rng(1)
    cloud = xr.Dataset({"x": (("layer", "token", "feature"), rng.normal(size=(3, 6, 4)))})
    return [
        array(ms.sphere.normalize(rng.normal(size=(2, 5, 4)))),
        _points(5, 4, 2),
        cloud,
        array(rng.normal(size=(5, 4))),
    ]


@functools.cache
def statistics() -> list[Any]:
    with_state = ms.ensemble(
        models()[0], tokens=3, members=2, times=[0.0, 0.5], seed=0, engine="reference", method="tsit5"
    )
    observed = {"mean_cosine": ms.observe.mean_cosine()}
    return [
        with_state,
        ms.ensemble(models()[0], tokens=3, members=3, times=[0.5], seed=0, engine="reference", observe=observed),
    ]


@functools.cache
def sweeps() -> list[Any]:
    table = {"model": {"dim": 2}, "grid": {"beta": [1.0, 2.0]}, "observe": {"mean_cosine": {}}, "tokens": 3}
    return [
        ms.Sweep(**table, times=[1.0], members=2),
        ms.Sweep(**table, times={"range": [1.0, 2.0], "count": 3}, members=1),
    ]


@functools.cache
def densities() -> list[Any]:
    return [
        ms.meanfield.Density.perturbed(2, {1: 0.5}, degree=8),
        ms.meanfield.Density.perturbed(3, {2: 0.5}, degree=4),
        ms.meanfield.Density.perturbed(4, {1: 0.5}, degree=8, axis=[1, 0, 0, 0]),
        ms.meanfield.CausalDensity.alike(ms.meanfield.Density.uniform(2, degree=8), 3),
    ]


@functools.cache
def balances() -> list[Any]:
    """Models with noise for which densities exist."""
    full = ms.Attention(dim=2, beta=1.0, mask=ms.Full(), noise=1.2)
    return [full, full.replace(weights="unnormalized"), ms.Attention(dim=3, beta=2.0, mask=ms.Full(), noise=0.9)]


@functools.cache
def evolutions() -> list[Any]:
    return [ms.meanfield.evolve(balances()[0], densities()[0], [0.0, 0.5])]


@functools.cache
def branch_list() -> list[Any]:
    return [ms.meanfield.branch(balances()[1], limits=(1.5, 1.9))]


@functools.cache
def figure_axes() -> list[Any]:
    from matplotlib.figure import Figure

    return [Figure().add_subplot()]


TOKENS = (
    _points(4, 2, 0),
    _points(4, 3, 1),
    _points(1, 2, 2),
    [[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]],
    array([[0.0, 1.0]]),
)
MATRICES = (
    array(np.eye(2)),
    array(np.diag([2.0, 1.0, 1.0])),
    array([[1.0, 1.0], [0.0, 1.0]]),
    array(-np.eye(3)),
    [[0.0, -1.0], [1.0, 0.0]],
)
LABELS = ([0, 0, 1, 0], array([0, 1, 1]), [0], array([3, 7, 3, 3]))
COUNTS = (1, 2, 3, 4, 7)
LENGTHS = (0.1, 1e-3, 1.0, 3.0, 1e-12, 50.0)
TIMES = ([1.0], [0.0, 0.5, 2.0], array([0.1, 1.0]), [0.0], [1e-9], [20.0])
CHOICE = (
    "auto",
    "reference",
    "cpu",
    "softmax",
    "unnormalized",
    "hardmax",
    "tsit5",
    "rodas",
    "layers",
    "sde",
    "direct",
    "series",
)

SENSE: dict[str, tuple[Any, ...] | Callable[[], list[Any]]] = {
    **dict.fromkeys(
        ("x", "y", "start", "state", "samples", "first", "points", "center", "centers", "v", "direction"), TOKENS
    ),
    **dict.fromkeys(("query", "key", "value", "metric", "subspace", "basis", "allowed"), (None, *MATRICES)),
    **dict.fromkeys(("dim", "tokens", "members", "width", "sinks", "length", "size", "position", "heads"), COUNTS),
    **dict.fromkeys(
        ("radius", "delta", "angle", "resolution", "window", "tolerance", "cloud_angle", "eps", "gap", "end", "blur"),
        LENGTHS,
    ),
    **dict.fromkeys(
        ("beta", "c", "sigma", "noise", "tau", "alpha", "slope", "t", "t0", "since", "time", "theta"),
        (0.0, 0.5, 1.0, 4.0, 64.0, 1e3),
    ),
    **dict.fromkeys(("times",), TIMES),
    **dict.fromkeys(("labels", "renyi", "strong", "leaders"), LABELS),
    "output": (None, *MATRICES),
    "matrix": MATRICES,
    **dict.fromkeys(("query_bias", "key_bias", "value_bias"), (None, [1.0, 0.5], array([0.0, 0.0, 0.0]))),
    "rotary": (None, ms.Rotary(), ms.Rotary(100.0, 2, True)),
    "base": (10000.0, 2.0, 0.5),
    "pieces": lambda: [[(0.0, models()[0]), (1.0, models()[0])], [(0.0, models()[1])]],
    "rho": (-0.2, 0.0, 0.3, 0.999, 1.0, [0.1, 0.2]),
    "correlation": (0.0, 0.3, 0.999, 1.0),
    "concentration": (0.0, 0.5, 8.0, 1e15, 1e300),
    "function": (len, np.mean, np.linalg.norm, lambda x: x[0], lambda states, times, model: times),
    "dims": (None, 2, 4, (), ("token",), ["token", "coord"]),
    "ball_measure": ([0.1, 0.5], 1.0, array([1e-300])),
    "seed": (0, 1, 2**64, 10**30),
    "step": (0.1, 0.5, 0.01),
    "until": (0.5, 2.0, 20.0, 1e-9),
    "max_steps": (1, 10, 1000),
    "method": ("auto", "tsit5", "rodas", "layers", "sde"),
    "engine": ("auto", "reference", "cpu"),
    "interaction": ("auto", "direct", "series"),
    "weights": lambda: ["softmax", "unnormalized", "hardmax", [1.0, 2.0], *weights()],
    "activation": ("gelu", "relu"),
    "progress": (None, False),
    "threads": (None, 1, 2),
    "dtype": ("float64",),
    "memory": (2**20, 1),
    "rtol": (1e-3, 1e-6, 1e-14),
    "atol": (0.0, 1e-9),
    "observe": lambda: [None, {"mean_cosine": ms.observe.mean_cosine()}, {"clusters": {"radius": 0.1}}, {"state": {}}],
    "observable": lambda: [
        ms.observe.mean_cosine(),
        ms.observe.clusters(0.1),
        ms.observe.consumed(1.0),
        ms.observe.distance_to(np.eye(2)[:, :1]),
        ms.observe.own(len),
        np.mean,
        ms.derivatives.order_parameter(),
        ms.derivatives.pair_angle(0, 1),
    ],
    **dict.fromkeys(("token", "other"), (0, 1, 2)),
    "target": ([1.0, 0.0], [0.0, 0.6, 0.8], array([[0.0, 1.0]])),
    "wrt": (None, "start", ("beta", "value"), ["masses"]),
    "differences": (None, "central", "complex"),
    "max_step": (None, 0.5),
    "model": lambda: [*models(), *balances(), models()[:2], {"dim": 2, "beta": 1.0}],
    "density": densities,
    "amplitudes": ({}, {1: 0.1}, {2: -0.3, 1: 0.1}),
    "axis": (None, [1.0, 0.0], [0.0, 0.6, 0.8]),
    "degree": (None, 4, 16),
    "modes": (None, 1, 8),
    "mode": (1, 2),
    "positions": (2, 5),
    "u": (0.0, 0.3, 1.0),
    "bandwidth": (None, 0.3, 1.0),
    "masses": (None, [1.0, 2.0, 1.0, 4.0]),
    "coefficients": (array([1.0, 0.1, 0.0]), array([[1.0, 0.1, 0.0], [1.0, 0.0, 0.2]])),
    "parameter": ("kappa", "beta"),
    "limits": ((1.0, 3.0), [0.5, 2.5]),
    "evolution": evolutions,
    "branches": branch_list,
    "cells": (2, 36),
    "run": runs,
    "tree": lambda: [ms.merge_tree(run, 0.5) for run in runs()[:2]],
    "settings": lambda: [ms.reproduce.Settings(), ms.reproduce.Settings(seed=1, members=2)],
    "names": (["figure-1"], []),
    "number": (0, 1),
    "workers": (0, 1, 4),
    "wanted": COUNTS,
    "mask": lambda: [ms.Causal(), ms.Full(), ms.Window(2), ms.Sink(1, 1), ms.Prefix(2), ms.Mask(np.tri(4, dtype=bool))],
    "norm": lambda: [ms.PostLN(), ms.PreLN(), ms.MixLN(0.5), ms.PeriLN(), ms.NGPT(0.5), ms.SqrtScaling()],
    "bias": lambda: [None, ms.ALiBi(0.5)],
    "frozen": lambda: [None, ms.Frozen(_points(2, 2, 1))],
    "feedforward": lambda: [None, ms.FeedForward(np.ones((3, 2)), np.zeros(3), np.ones((2, 3)), np.zeros(2))],
    "w1": (array(np.ones((3, 2))),),
    "b1": (array(np.ones(3)),),
    "w2": (array(np.ones((2, 3))),),
    "b2": (array(np.ones(2)),),
    "data": lambda: [model.for_tokens(4).to_dict() for model in models()] + [sweep.to_dict() for sweep in sweeps()],
    "text": lambda: [
        models()[0].to_json(),
        models()[1].to_toml(),
        sweeps()[0].to_toml(),
        "{",
        "[model",
        "dim = 2\nbeta = 1",
        "null",
        "[]",
    ],
    "stats": statistics,
    "quantiles": ((0.1, 0.9), [0.5]),
    "dataset": lambda: [run.dataset for run in runs()],
    "grid": ({"beta": [1.0, 2.0]}, {"beta": {"range": [1.0, 2.0], "count": 3}}, {"tokens": [2, 3]}, {}),
    "options": ({}, {"method": "tsit5"}),
    "levels": ((0.1, 0.5), [0.5]),
    "head": (0, 1),
    "layer": lambda: [0, 1, *(item.layer(0) for item in weights())],
    "index": (0, 1),
    "lag": (0.0, 1.0, 5.0),
    "states": states,
    "spectra": lambda: [ms.checkpoints.ov_spectra(weights()[0])],
    "distances": lambda: [array(ms.sphere.pairwise_distance(_points(4, 3, 0)))],
    "speeds": ([0.0, 0.0, 0.0, 0.0], array([1e-9] * 4)),
    "elapsed": (1.0, 0.0),
    "head_count": COUNTS,
    "layer_count": (1, 2),
    "rotary_dim": (2, 4),
    "ax": figure_axes,
    "view": lambda: [ms.figures.View()],
    "color": ("#0072b2", "red"),
    "found": lambda: [ms.analysis.features(TOKENS[1], TOKENS[1][0], np.eye(3)[:, :1], np.zeros(4), 1.0)],
    "groups": lambda: [ms.analysis.group(TOKENS[1], 0.1)],
    "prediction": lambda: [ms.predict(model) for model in models()[:2]],
    "eigenvalues": (array([1.0, 2j, -1.0]), [1.0]),
    "merges": ([(1.0, 1, 0)], []),
    "middle": ([1.0, 2.0],),
    "low": (None, [0.5, 1.0]),
    "high": (None, [1.5, 3.0]),
    "path": (Path("there/is/nothing.zarr"),),
    "knobs": lambda: [None, ["beta"], ["masses", "distance"]],
    "source": ("there/is/nothing", "there/is/nothing.gguf", Path("nothing.safetensors"), "no-such-package"),
}
"""Parameter -> values that make sense for some function with a parameter of that name. A name that is not here gets `ANY`."""

ANY: tuple[Any, ...] = (0.5, 1, "auto", *TOKENS[:2], *MATRICES[:1])


def sensible(name: str) -> tuple[Any, ...]:
    """Values that make sense for a parameter of this name."""
    found = SENSE.get(name, ANY)
    return tuple(found() if callable(found) else found)


@functools.cache
def specimens(owner: type) -> list[Any]:
    """Instances of a public class whose methods are called; made from values that make sense where none is listed."""
    known = (
        *models(),
        *runs(),
        *weights(),
        *sweeps(),
        *sensible("mask"),
        *sensible("norm"),
        ms.ALiBi(0.5),
        ms.figures.View(),
        ms.checkpoints.from_states(np.random.default_rng(0).normal(size=(3, 5, 4))),
    )
    known += (*models()[0].all_heads, *sensible("layer")[2:], ms.checkpoints.Rope(1e4, 2), sensible("frozen")[1])
    known += (
        sensible("feedforward")[1],
        weights()[0].layer(0).norm,
        *(find(run, 0.5) for run in runs()[:2] for find in (ms.merge_tree, ms.analysis.merge_tree)),
    )
    known += (*sensible("found"), *sensible("groups"), *sensible("prediction"), *(sweep.task(0) for sweep in sweeps()))
    known += (ms.control.Elasticities((), ()),)
    known += (*densities(), *evolutions(), *branch_list(), ms.meanfield.onset(balances()[1]))
    known += (
        branch_list()[0].states[0],
        ms.reproduce.Settings(),
        ms.reproduce.catalogue()[0],
        ms.reproduce.all_papers()[0],
        Estimate(2, 2, 3.0, 1.0, 2.0, 100),
    )
    return [item for item in known if type(item) is owner]


@st.composite
def calls(draw: Any, entry: Entry) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(instance or nothing, arguments): all that is required, some of the rest, at most two of them nonsense."""
    instance = () if entry.owner is None else (draw(st.sampled_from(specimens(entry.owner))),)
    given = [item for item in entry.parameters if item.default is item.empty or draw(st.integers(0, 3)) == 0]
    wrong = draw(st.lists(st.integers(0, max(0, len(given) - 1)), max_size=2))
    arguments = {
        item.name: draw(st.sampled_from(NONSENSE if number in wrong else sensible(item.name)))
        for number, item in enumerate(given)
    }
    return instance, arguments
