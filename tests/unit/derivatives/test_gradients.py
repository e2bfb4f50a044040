"""`ms.gradient`: what it refuses, what it holds in memory, schedules, and observables of one's own."""

import tracemalloc

import numpy as np
import pytest

import metastable as ms
from metastable import derivatives
from metastable.errors import (
    ConvergenceError,
    InvalidInputError,
    NumericalRangeError,
    ObservableError,
    OwnFunctionError,
    TimeError,
    UnsupportedError,
)
from metastable.integrate import adjoint
from metastable.integrate.plan import Save, Wishes
from metastable.integrate.planning import make

MODEL = ms.Attention(dim=3, beta=4.0)
START = ms.sphere.uniform(6, dim=3, seed=0)
GOAL = derivatives.order_parameter()
FIRST = np.eye(6, 3) * [1.0, 0.0, 0.0]
"""The slope of the first coordinate of the first token."""

SMOOTH = [
    derivatives.mean_cosine([0.0, 0.6, 0.8]),
    derivatives.mean_cosine(START[:2], tokens=[4, 1]),
    derivatives.pair_cosine(0, 5),
    derivatives.pair_angle(5, 2),
    derivatives.order_parameter(),
    derivatives.spread([0, 2, 3]),
    derivatives.spread(),
    derivatives.interaction_energy(2.5),
    derivatives.soft_clusters(0.7),
]


@pytest.mark.parametrize("observable", SMOOTH, ids=lambda item: type(item).__name__)
def test_slopes_of_the_smooth_observables_are_their_derivatives(observable):
    value, slope = observable.with_slope(START)
    number, found = derivatives.objectives.measured(lambda x: observable.with_slope(x)[0], START[None], True, "central")
    across = slope - np.sum(slope * START, axis=1, keepdims=True) * START
    assert number == value
    assert np.abs(found[0] - across).max() < 1e-9


def test_energies_are_those_of_the_analysis():
    value, _ = derivatives.interaction_energy(2.5).with_slope(START)
    assert abs(value - ms.analysis.global_energy(START, 2.5)) < 1e-15
    spread, _ = derivatives.spread().with_slope(START)
    assert abs(spread + derivatives.order_parameter().with_slope(START)[0] - 1.0) < 1e-14


def test_soft_clusters_count_clusters():
    points = ms.sphere.from_angle(np.repeat([0.0, 2.0, 4.0], [5, 1, 3]))
    assert abs(derivatives.soft_clusters(0.3).with_slope(points)[0] - 3.0) < 1e-3


def test_differences_agree_with_a_slope_that_is_given():
    C = np.random.default_rng(0).normal(size=START.shape)
    given = ms.gradient(MODEL, START, lambda x: (float(np.sum(C * x)), C), 1.0)
    for differences in ("central", "complex"):
        found = ms.gradient(MODEL, START, lambda x: np.sum(C * x), 1.0, differences=differences)
        for name in given.gradient:
            assert np.abs(found[name] - given[name]).max() < 1e-8, (differences, name)


def test_smooth_observables_are_averaged_over_times():
    times = [0.5, 1.0]
    both = ms.gradient(MODEL, START, GOAL, times=times)
    alone = [ms.gradient(MODEL, START, GOAL, t, rtol=1e-10) for t in times]
    assert abs(both.value - np.mean([found.value for found in alone])) < 1e-6
    assert np.abs(both["start"] - np.mean([found["start"] for found in alone], axis=0)).max() < 1e-5
    assert both.states.shape == (2, 6, 3)
    assert both.rates.shape == (2,)


class Own:
    """A smooth observable of one's own, sum of powers of a coordinate, with a slope that may be wrong."""

    def __init__(self, said=lambda x: 2.0 * x, value=lambda x: float(np.sum(x**2))):
        self.said, self.value = said, value

    def with_slope(self, x):
        slope = np.zeros_like(x)
        slope[:, 0] = self.said(x[:, 0])
        return self.value(x[:, 0]), slope


@pytest.mark.parametrize("times", [None, [0.5, 1.0]])
def test_observables_of_ones_own_are_held_to_their_values(times):
    until = 1.0 if times is None else None
    found = ms.gradient(MODEL, START, Own(), until, "beta", times=times)
    assert np.isfinite(found["beta"])
    for wrong in (lambda x: 2.001 * x, lambda x: -2.0 * x, np.zeros_like):
        with pytest.raises(ObservableError, match="not the derivative"):
            ms.gradient(MODEL, START, Own(wrong), until, times=times)
    with pytest.raises(ObservableError, match="a count"):
        ms.gradient(MODEL, START, Own(np.zeros_like, lambda x: float((x > 0).sum())), until, times=times)


def test_an_observable_of_ones_own_returns_both():
    class Alone:
        def with_slope(self, x):
            return float(x[0, 0])

    with pytest.raises(ObservableError, match="value, slope"):
        ms.gradient(MODEL, START, Alone(), 1.0)


def test_a_function_may_write_into_what_it_is_given():
    def lean(x):
        value, slope = float(x[:, 0].mean()), np.zeros_like(x)
        slope[:, 0] = 1.0 / len(x)
        x[:] = 7.0
        return value, slope

    def clean(x):
        return lean(x.copy())

    found, plain = (ms.gradient(MODEL, START, function, 1.0, "beta") for function in (lean, clean))
    assert found["beta"] == plain["beta"]
    np.testing.assert_array_equal(found.final, plain.final)
    assert found.rate == plain.rate


def test_a_model_with_heads_gets_lists_and_one_without_gets_numbers():
    several = ms.Attention(
        dim=3, heads=(ms.Head(beta=1.0), ms.Head(beta=2.0, output=np.eye(3)[:, :2], value=np.eye(3)[:2]))
    )
    found = ms.gradient(several, START, GOAL, 0.5)
    assert len(found["beta"]) == len(found["query"]) == 2
    assert found["output"][0] is None
    assert found["output"][1].shape == (3, 2)
    plain = ms.gradient(MODEL, START, GOAL, 0.5)
    assert isinstance(plain["beta"], float)
    assert plain["value"].shape == (3, 3)
    assert "frozen" not in plain.gradient
    assert list(ms.gradient(MODEL, START, GOAL, 0.5, wrt="beta").gradient) == ["beta"]


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("norm", [ms.PostLN(), ms.SqrtScaling()])
def test_a_schedule_has_entries_for_its_pieces(engine, norm):
    """Cut in two, the same model has the same derivatives, and those of its pieces add up; simulate makes the same states."""
    model = ms.Attention(dim=2, beta=3.0, norm=norm)
    start = ms.sphere.uniform(7, dim=2, seed=1)
    care = {"engine": engine, "rtol": 1e-11, "atol": 1e-12}
    whole = ms.gradient(model, start, GOAL, times=[0.4, 2.0], **care)
    schedule = ms.Schedule([(0.0, model), (0.7, model)])
    cut = ms.gradient(schedule, start, GOAL, times=[0.4, 2.0], **care)
    run = ms.simulate(schedule, start, times=[0.4, 2.0], method="tsit5", interaction="direct", **care)
    assert np.abs(cut.states - run.states).max() < 1e-13
    assert abs(cut.value - whole.value) < 1e-10
    assert np.abs(cut["start"] - whole["start"]).max() < 1e-9
    for name in ("beta", "query", "key", "value", "masses"):
        assert len(cut[name]) == 2
        assert np.abs(sum(np.asarray(piece) for piece in cut[name]) - whole[name]).max() < 1e-9
    # And a change of the second piece alone.
    h = 1e-4
    ahead, behind = (
        ms.gradient(
            ms.Schedule([(0.0, model), (0.7, model.replace(beta=3.0 + sign * h))]),
            start,
            GOAL,
            times=[0.4, 2.0],
            **care,
        ).value
        for sign in (1, -1)
    )
    assert abs(cut["beta"][1] - (ahead - behind) / (2 * h)) < 1e-7


def test_pieces_behind_the_end_have_zeros():
    """One entry per piece, of its shape, also where a piece has other parts, or such that have no derivatives."""
    model, start = ms.Attention(dim=2, beta=3.0), ms.sphere.uniform(5, dim=2, seed=1)
    later = ms.Attention(
        dim=2,
        heads=[ms.Head(beta=1.0, query=np.ones((1, 2)), key=np.ones((1, 2)))] * 3,
        frozen=ms.Frozen([[1.0, 0.0]]),
    )
    hard = model.replace(weights="hardmax", key=np.array([[0.0, -1.0], [1.0, 0.0]]))
    found = ms.gradient(ms.Schedule([(0.0, model), (1.0, later), (2.0, hard)]), start, GOAL, until=0.5)
    alone = ms.gradient(model, start, GOAL, until=0.5)
    assert found["beta"] == [alone["beta"], [0.0, 0.0, 0.0], 0.0]
    assert [np.shape(entry) for entry in found["query"]] == [(2, 2), (3, 1, 2), (2, 2)]
    assert not np.any(found["query"][1])
    assert not np.any(found["masses"][1])
    np.testing.assert_array_equal(found["query"][0], alone["query"])
    assert [np.shape(entry) for entry in found["masses"]] == [(5,), (5,), (5,)]


def path_of(steps: float, tokens: int = 40, rtol: float = 1e-6) -> adjoint.Path:
    model, start = ms.Attention(dim=3, beta=9.0), ms.sphere.uniform(tokens, dim=3, seed=0)
    wishes = Wishes("tsit5", "reference", "direct", rtol=rtol)
    plan = make((model,), tokens, Save(steps, np.array([steps])), wishes)
    return adjoint.walk(plan, start)


@pytest.mark.parametrize("rtol", [1e-5, 1e-8, 1e-11, 1e-13])
def test_states_that_are_held_grow_like_the_root_of_the_steps(rtol):
    """At most 8 sqrt(steps) + 20 states: those kept on the way and those of the stretch that is walked back."""
    path = path_of(3.0, rtol=rtol)
    trail = path.trail
    assert trail.states_held <= 8.0 * np.sqrt(trail.steps) + 20.0
    assert (trail.steps - 1) // trail.stride + 1 <= len(trail.kept) <= trail.steps // trail.stride + 1
    assert trail.steps == path.solution.statistics.accepted


def test_memory_of_a_gradient_is_what_is_said():
    """Traced allocations of the way back stay below the states that are said to be held."""
    tokens = 60
    path = path_of(60.0, tokens, rtol=1e-13)
    state = tokens * 3 * 8
    assert path.trail.steps > 250
    tracemalloc.start()
    path.back([np.ones((tokens, 3))])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = (path.trail.states_held - len(path.trail.kept)) * state
    # A pullback works in blocks of weights of its own, (tokens, tokens), a dozen at a time; a step in a few states.
    assert peak < held + 30 * tokens * tokens * 8 + 30 * state
    assert path.trail.states_held < path.trail.steps / 2


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_what_the_number_of_kept_states_is_makes_no_difference(engine, monkeypatch):
    found = ms.gradient(MODEL, START, GOAL, 3.0, engine=engine)
    monkeypatch.setattr(adjoint, "BALANCE", 1)
    few = ms.gradient(MODEL, START, GOAL, 3.0, engine=engine)
    for name in found.gradient:
        assert np.abs(found[name] - few[name]).max() < 1e-13


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": ms.Attention(dim=3, beta=1.0, weights="hardmax")}, UnsupportedError, "hardmax"),
        ({"model": ms.Attention(dim=3, beta=1.0, noise=0.1)}, UnsupportedError, "noise"),
        ({"model": "softmax"}, InvalidInputError, "Attention"),
        ({"model": ms.Attention(dim=3, beta=1.0, norm=ms.PreLN()), "engine": "cpu"}, UnsupportedError, "PreLN"),
        ({"engine": "cuda"}, UnsupportedError, "engine='cpu'"),
        ({"engine": "torch"}, UnsupportedError, "engine='cpu'"),
        ({"wrt": "temperature"}, InvalidInputError, "wrt"),
        ({"wrt": ()}, InvalidInputError, "nothing"),
        ({"wrt": ["frozen"]}, InvalidInputError, "no frozen"),
        ({"wrt": ["output"]}, InvalidInputError, "no output"),
        ({"until": None}, TimeError, "how far"),
        ({"until": "settled"}, UnsupportedError, "settled"),
        ({"until": 1e9}, UnsupportedError, "explicit"),
        ({"max_steps": 3}, ConvergenceError, "max_steps"),
        ({"observable": 3.0}, InvalidInputError, "observable"),
        ({"observable": lambda x: 1.0}, ObservableError, "differences"),
        ({"observable": lambda x: (1.0, x[:2])}, ObservableError, "shape"),
        ({"observable": lambda x: (float(x[0, 0]), np.ones_like(x))}, ObservableError, "not the derivative"),
        ({"observable": lambda x: (float(x[0, 0]), 1.0001 * FIRST)}, ObservableError, "not the derivative"),
        ({"observable": lambda x: (1e-12 * float(x[0, 0]), np.zeros_like(x))}, ObservableError, "not the derivative"),
        ({"observable": lambda x: 7, "differences": "central"}, ObservableError, "constant"),
        ({"observable": lambda x: (float((x[:, 0] > 0).sum()), np.zeros_like(x))}, ObservableError, "a count"),
        ({"observable": lambda x: 0.0 * x.sum() + 3.0, "differences": "complex"}, ObservableError, "constant"),
        ({"observable": lambda x: abs(x[0, 0]), "differences": "complex"}, ObservableError, "complex"),
        ({"observable": lambda x: 1 / 0, "differences": "central"}, OwnFunctionError, "division"),
        ({"observable": lambda x: np.nan, "differences": "central"}, ObservableError, "finite"),
        ({"differences": "forward"}, InvalidInputError, "differences"),
        ({"observable": derivatives.pair_cosine(0, 9)}, InvalidInputError, "6 tokens"),
        ({"observable": derivatives.mean_cosine([1.0, 0.0])}, InvalidInputError, "dimension"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(change, error, words):
    arguments = {"model": MODEL, "start": START, "observable": GOAL, "until": 2.0, **change}
    with pytest.raises(error, match=words):
        ms.gradient(**arguments)


def test_a_derivative_of_a_run_that_diverges_is_none():
    model = ms.Attention(dim=2, beta=1.0, norm=ms.PreLN(), value=-np.eye(2))
    with pytest.raises(NumericalRangeError, match="no derivative"):
        ms.gradient(model, ms.sphere.uniform(3, dim=2, seed=0), GOAL, 5.0)


def test_a_frozen_token_of_weight_zero_says_what_it_would_do():
    anchors = ms.sphere.uniform(2, dim=3, seed=9)
    C = np.random.default_rng(1).normal(size=START.shape)

    def value(weight):
        model = MODEL.replace(frozen=ms.Frozen(anchors, [1.0, weight]))
        return ms.gradient(model, START, lambda x: (float(np.sum(C * x)), C), 1.0, rtol=1e-11, engine="cpu")

    found = value(0.0)
    assert abs(found["frozen_weights"][1] - (value(1e-6).value - found.value) / 1e-6) < 1e-4
    assert np.abs(found["frozen"][1]).max() < 1e-100


def test_a_token_at_rest_has_neighbours_that_come_back():
    """A token at rest is stepped over in steps of any length; its neighbours in the start come back like exp(-t) and exp(-3t)."""
    model = ms.Attention(dim=3, beta=1.0, value=np.diag([2.0, 1.0, -1.0]))
    C = np.array([[0.0, 1.0, 1.0]])
    for until, tolerance in ((6.0, 1e-3), (60.0, 1e-2)):
        found = ms.gradient(model, [[1.0, 0.0, 0.0]], lambda x: (float(np.sum(C * x)), C), until)
        rates = found["start"] / [[1.0, np.exp(-until), np.exp(-3.0 * until)]]
        assert np.abs(rates - [[0.0, 1.0, 1.0]]).max() < tolerance
    found = ms.gradient(model, [[1.0, 0.0, 0.0]], lambda x: (float(np.sum(C * x)), C), 6.0, max_step=0.1)
    assert np.abs(found["start"] / [[1.0, np.exp(-6.0), np.exp(-18.0)]] - [[0.0, 1.0, 1.0]]).max() < 1e-4
    assert found.statistics.accepted >= 60
    with pytest.raises(InvalidInputError, match="max_steps"):
        ms.gradient(MODEL, START, GOAL, 6.0, max_step=1e-9)
    with pytest.raises(ConvergenceError, match="tokens rest"):
        ms.gradient(model, [[1.0, 0.0, 0.0]], lambda x: (float(np.sum(C * x)), C), 60.0, max_steps=50)


def circle_derivative(angles, beta, until, step=0.04):
    """The derivative (final, start) of causal attention on the circle, by complex steps through the classical Runge-Kutta method:
    an oracle that shares no code with the package.
    """
    n = len(angles)
    seen = np.tril(np.ones((n, n)))

    def velocity(x):
        gap = x[:, :, None] - x[:, None, :]
        weights = np.exp(beta * (np.cos(gap) - 1.0)) * seen
        return -(weights * np.sin(gap)).sum(axis=2) / weights.sum(axis=2)

    x = np.asarray(angles) + 1e-150j * np.eye(n)
    steps = round(until / step)
    for _ in range(steps):
        a = velocity(x)
        b = velocity(x + 0.5 * step * a)
        c = velocity(x + 0.5 * step * b)
        x = x + step / 6.0 * (a + 2.0 * b + 2.0 * c + velocity(x + step * c))
    return x.imag.T / 1e-150


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("size", [0.0, 1e-13, 1e-10, 1e-7, 1e-5, 1e-3, 1e-1])
def test_gradients_from_rest_and_from_nearly_rest(engine, size):
    """Ten tokens in one point, or that near to it: what the run does not see, the gradient must (it was 12 instead of 0.2)."""
    angles = 0.3 + size * np.random.default_rng(1).normal(size=10)
    weights = np.random.default_rng(0).normal(size=10)
    true = weights @ circle_derivative(angles, 4.0, 12.0)
    model, start = ms.Attention(dim=2, beta=4.0), ms.sphere.from_angle(angles)

    def lean(x):
        """sum_k w_k angle_k, near the angle 0.3."""
        away = np.arctan2(x[:, 1], x[:, 0])
        return float(weights @ away), weights[:, None] * np.stack([-x[:, 1], x[:, 0]], axis=1)

    found = ms.gradient(model, start, lean, 12.0, "start", engine=engine)
    along = np.einsum("ka,ka->k", found["start"], np.stack([-start[:, 1], start[:, 0]], axis=1))
    assert np.abs(along - true).max() < 1e-4 * np.abs(true).max()


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_gradients_through_clusters_that_have_collapsed(engine):
    """Two clusters of twelve tokens, long after they have become points and before the one falls into the other: 1e-4 of the
    largest."""
    angles = np.concatenate([np.linspace(-0.4, 0.4, 6), np.linspace(1.9, 2.6, 6)])
    weights = np.random.default_rng(0).normal(size=12)
    true = weights @ circle_derivative(angles, 6.0, 40.0)
    model, start = ms.Attention(dim=2, beta=6.0), ms.sphere.from_angle(angles)
    final = ms.simulate(model, start, 40.0, method="tsit5").final
    assert ms.cluster_labels(final, radius=1e-3).max() == 1

    def lean(x):
        away = np.arctan2(x[:, 1], x[:, 0])
        return float(weights @ away), weights[:, None] * np.stack([-x[:, 1], x[:, 0]], axis=1)

    found = ms.gradient(model, start, lean, 40.0, "start", engine=engine)
    along = np.einsum("ka,ka->k", found["start"], np.stack([-start[:, 1], start[:, 0]], axis=1))
    assert np.abs(along - true).max() < 1e-4 * np.abs(true).max()


def test_steps_that_follow_no_small_changes_are_an_error(monkeypatch):
    """Where all else fails: a covector that explodes in a step is not returned."""
    monkeypatch.setattr(adjoint, "FOLLOWED", np.inf)
    model, C = ms.Attention(dim=3, beta=1.0, value=np.diag([2.0, 1.0, -1.0])), np.array([[0.0, 1.0, 1.0]])
    with pytest.raises(ConvergenceError, match="max_step"):
        ms.gradient(model, [[1.0, 0.0, 0.0]], lambda x: (float(np.sum(C * x)), C), 60.0)


def test_causality_later_tokens_do_not_matter():
    found = ms.gradient(MODEL, START, derivatives.pair_cosine(0, 2), 2.0)
    assert np.abs(found["start"][3:]).max() == 0.0
    assert np.abs(found["start"][:3]).min(axis=0).max() > 0.0


def test_rotating_everything_rotates_the_gradient():
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    found = ms.gradient(MODEL, START, GOAL, 2.0)
    turned = ms.gradient(MODEL, START @ rotation.T, GOAL, 2.0)
    assert np.abs(turned["start"] - found["start"] @ rotation.T).max() < 1e-12
    assert np.abs(turned["value"] - rotation @ found["value"] @ rotation.T).max() < 1e-12
