"""Gradients against complex steps through an independent run in complex numbers (`tests.complex_steps`), with the steps of `simulate`.

What is compared are directional derivatives in every entry of the gradient; both sides are exact to rounding, so the tolerance, 1e-9 of
|gradient| |direction|, leaves room for nothing but rounding (the acceptance is 1e-6).
"""

import warnings

import numpy as np
import pytest

import metastable as ms
from metastable.kernels import select
from tests import complex_steps, variants

TOLERANCE = 1e-9
UNTIL = 0.8


def observable(rng, n, d):
    """A smooth observable with all tokens in it, as (value, slope) and for complex numbers."""
    C = rng.normal(size=(n, d))

    def value(x):
        return np.sum(C * x) + (x[0] @ x[-1]) ** 2

    def both(x):
        slope = C.copy()
        slope[0] += 2.0 * (x[0] @ x[-1]) * x[-1]
        slope[-1] += 2.0 * (x[0] @ x[-1]) * x[0]
        return float(value(x)), slope

    return value, both


def draw(seed, engine):
    """A random model with its tokens and its run, which must be short: a radius that comes near zero takes thousands of steps."""
    for attempt in range(50):
        rng, model, start = draw_once(seed, engine, attempt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ms.errors.StoppedEarlyWarning)
            run = ms.simulate(model, start, UNTIL, method="tsit5", engine=engine, interaction="direct", max_steps=60)
        if run.status == "success":
            return rng, model, start, run
    raise AssertionError("no short run among 50 draws")


def draw_once(seed, engine, attempt):
    """Every norm, mask, several heads, both weights, masses, frozen tokens, biases."""
    rng = np.random.default_rng([seed, attempt, 23])
    d, n, heads = (2, 3, 8)[seed % 3], int(rng.integers(2, 12)), int(rng.integers(1, 4))
    compiled = engine == "cpu"
    kind = variants.MASKS[seed % (5 if compiled else 6)]
    norms = (
        (ms.PostLN(), ms.NGPT(0.6), ms.SqrtScaling())
        if compiled
        else (*variants.NORMS[:2], ms.MixLN(0.3), *variants.NORMS[3:])
    )
    fields = {
        "norm": norms[(seed // 6 + seed) % len(norms)],
        "weights": ("softmax", "softmax", "unnormalized")[seed // 3 % 3],
    }
    if compiled:
        fields["feedforward"] = None
        if fields["weights"] == "unnormalized":
            fields["bias"] = None
    if rng.random() < 0.5:
        fields["masses"] = 10.0 ** rng.uniform(-1.0, 1.0, n)
    if seed % 4 == 1:
        fields["frozen"] = ms.Frozen(variants.tokens(rng, 3, d), [1.5, 0.0, 0.3])
    model = variants.model(rng, n, d, float(rng.choice([0.5, 3.0, -1.0])), kind, heads, **fields)
    if not compiled and seed % 2:
        model = model.replace(heads=tuple(variants.wide_head(rng, d, head.beta) for head in model.all_heads))
    return rng, model, variants.tokens(rng, n, d)


def moved(model, start, name, place, by):
    """The parameters and the start of a run with one entry of the gradient changed."""
    parameters, begin = complex_steps.numbers(model, len(start)), start.astype(complex)
    if name == "start":
        begin = begin + by
    elif place is None:
        parameters[name] = parameters[name] + by
    else:
        parameters["heads"][place][name] = parameters["heads"][place][name] + by
    return parameters, begin


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("block", range(5))
def test_gradients_are_those_of_the_accepted_steps(engine, block):
    """50 models for each engine, ten to a test."""
    for seed in range(10 * block, 10 * block + 10):
        rng, model, start, run = draw(seed, engine)
        n, d = start.shape
        value, both = observable(rng, n, d)
        found = ms.gradient(model, start, both, UNTIL, engine=engine)
        if found.statistics != run.stats:
            # Steps that are too long for small changes are made shorter: with more care none is.
            care = {"engine": engine, "rtol": 1e-9}
            run = ms.simulate(model, start, UNTIL, method="tsit5", interaction="direct", **care)
            found = ms.gradient(model, start, both, UNTIL, **care)
        assert (found.engine, found.statistics) == (engine, run.stats)
        assert np.abs(found.final - run.final).max() < 1e-13
        steps, chart = list(zip(run.dense.start, run.dense.width)), run.dense.chart
        entries = [("start", None, found["start"])]
        for name in found.gradient:
            if name in ("frozen", "frozen_weights", "masses"):
                entries.append((name, None, found[name]))
            elif name != "start":
                entries += [(name, i, entry) for i, entry in enumerate(found[name]) if entry is not None]
        assert {name for name, _, _ in entries} >= {"start", "beta", "query", "key", "value", "masses"}
        for name, place, entry in entries:
            direction = rng.normal(size=np.shape(entry))
            if name in ("start", "frozen"):
                x = start if name == "start" else model.frozen.tokens
                assert np.abs(np.sum(entry * x, axis=1)).max() < 1e-12 * max(1.0, np.abs(entry).max())
                direction -= np.sum(direction * x, axis=1, keepdims=True) * x
            parameters, begin = moved(model, start, name, place, 1j * complex_steps.STEP * direction)
            true = value(complex_steps.run(model, parameters, begin, steps, chart)[-1]).imag / complex_steps.STEP
            size = np.linalg.norm(entry) * np.linalg.norm(direction)
            error = abs(float(np.sum(entry * direction)) - true)
            assert error <= TOLERANCE * size + 1e-11, (seed, name, place, error / size)


@pytest.mark.parametrize("d", [2, 3, 5, 8])
@pytest.mark.parametrize("n", [1, 7, 40, 600])
def test_compiled_pullbacks_are_those_of_the_reference(n, d):
    """One evaluation, with lengths that fill vectors, tiles and pieces in every way: state and parameters."""
    rng = np.random.default_rng([n, d])
    for number, kind in enumerate(variants.MASKS[:5]):
        masses = 10.0 ** rng.uniform(-1.0, 1.0, n) if number % 2 else None
        weights, norm = (
            ("softmax", "unnormalized")[number // 2 % 2],
            (ms.PostLN(), ms.NGPT(0.7), ms.SqrtScaling())[number % 3],
        )
        model = variants.model(
            rng,
            n,
            d,
            (3.0, 9.0)[number % 2],
            kind,
            1 + number % 2,
            weights=weights,
            norm=norm,
            masses=masses,
            feedforward=None,
            **({} if weights == "softmax" else {"bias": None}),
        )
        if number == 0:
            model = ms.Attention(dim=d, beta=9.0)
        y = variants.tokens(rng, n, d) * rng.uniform(0.8, 1.2, (n, 1))
        covector = rng.normal(size=(n, d))
        answers = []
        for engine in ("reference", "cpu"):
            pull = select.pullback(model, n, select.Backend(engine, threads=1))
            out = np.empty_like(y)
            pull(0.5, y, covector, out)
            answers.append((out, pull.parameters()))
        (slow, slow_parameters), (fast, fast_parameters) = answers
        assert np.abs(fast - slow).max() < 1e-11 * max(1.0, np.abs(slow).max())
        pairs = [(slow_parameters.beta, fast_parameters.beta), (slow_parameters.masses, fast_parameters.masses)]
        pairs += [(slow_parameters.frozen, fast_parameters.frozen)]
        pairs += [(slow_parameters.frozen_weights, fast_parameters.frozen_weights)]
        for left, right in zip(slow_parameters.heads, fast_parameters.heads):
            pairs += [(left[name], right[name]) for name in ("query", "key", "value")]
        for left, right in pairs:
            left, right = np.asarray(left), np.asarray(right)
            assert left.shape == right.shape
            assert np.abs(left - right).max(initial=0.0) < 1e-11 * max(1.0, np.abs(left).max(initial=0.0))


def test_results_do_not_depend_on_threads():
    model, start = ms.Attention(dim=3, beta=9.0), ms.sphere.uniform(700, dim=3, seed=1)
    goal = ms.derivatives.order_parameter()
    one, two = (ms.gradient(model, start, goal, 0.5, engine="cpu", threads=count) for count in (1, 2))
    for name in one.gradient:
        assert np.array_equal(one[name], two[name]), name


@pytest.mark.parametrize(("engine", "dim"), [("reference", 3), ("cpu", 3), ("cpu", 2)])
def test_times_between_steps_are_differentiated_through_the_dense_output(engine, dim):
    """Central differences of states that `simulate` reads off the dense output; the steps change little with the tolerance at hand."""
    rng = np.random.default_rng(5)
    model, start = ms.Attention(dim=dim, beta=2.0), ms.sphere.uniform(6, dim=dim, seed=2)
    times = [0.0, 0.31, 0.77, 1.5]
    C = rng.normal(size=(4, 6, dim))
    care = {"rtol": 1e-11, "atol": 1e-12, "engine": engine}

    def value(x, beta):
        run = ms.simulate(model.replace(beta=beta), x, times=times, method="tsit5", interaction="direct", **care)
        return float(np.sum(C * run.states))

    found = ms.gradient(model, start, lambda states: (float(np.sum(C * states)), C), times=times, **care)
    assert abs(found.value - value(start, 2.0)) < 1e-12
    h = 1e-5
    assert (
        abs(found["beta"] - (value(start, 2.0 + h) - value(start, 2.0 - h)) / (2 * h))
        < 1e-8 * abs(found["beta"]) + 1e-9
    )
    direction = rng.normal(size=start.shape)
    direction -= np.sum(direction * start, axis=1, keepdims=True) * start
    ahead, behind = (ms.sphere.normalize(start + sign * h * direction) for sign in (1, -1))
    difference = (value(ahead, 2.0) - value(behind, 2.0)) / (2 * h)
    assert abs(np.sum(found["start"] * direction) - difference) < 1e-7 * np.linalg.norm(found["start"])
    late = ms.simulate(model, start, times=[1.5 + h], method="tsit5", interaction="direct", **care).final
    early = ms.simulate(model, start, times=[1.5 - h], method="tsit5", interaction="direct", **care).final
    assert abs(found.rate - np.sum(C[-1] * (late - early)) / (2 * h)) < 1e-8
