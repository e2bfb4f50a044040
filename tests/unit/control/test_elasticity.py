"""Elasticities against quadrature, against differences of full simulations, and against laws."""

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import metastable as ms
from metastable import theory
from metastable.control import elasticities
from metastable.control.paired import _lives
from metastable.errors import ConvergenceError, GoalError, MetastableError


def pair(distance, dim=2):
    start = np.zeros((2, dim))
    start[0, 0], start[1, :2] = 1.0, (math.cos(distance), math.sin(distance))
    return start


@pytest.mark.parametrize(
    ("beta", "distance", "mass"), [(1.0, 1.0, 1.0), (16.0, 2.0, 1.0), (64.0, 3.0, 7.0), (300.0, 2.5, 0.2)]
)
def test_quadrature_against_differences(beta, distance, mass):
    """d log t of the collapse time by central differences; mass m enters as e^{beta u}/m, so m = 1 tells all but its own part."""
    found = theory.pair_elasticities(0.05, beta, distance)
    h = 1e-5

    def time(b, d):
        return theory.log_pair_collapse_time(0.05, b, start=d)

    assert found.beta == pytest.approx(
        (time(beta * math.exp(h), distance) - time(beta * math.exp(-h), distance)) / (2 * h), rel=1e-7
    )
    assert found.distance == pytest.approx(
        (time(beta, distance * math.exp(h)) - time(beta, distance * math.exp(-h))) / (2 * h), rel=1e-7
    )
    # t = a + b/m: m dt/dm / t = -(b/m)/t, and a = ln(tan(D/2)/tan(end/2)).
    heavy = theory.pair_elasticities(0.05, beta, distance, mass)
    a = math.log(math.tan(distance / 2) / math.tan(0.025))
    logarithm = time(beta, distance) + math.log1p(-a * math.exp(-time(beta, distance)))  # of b
    share = 1.0 / (1.0 + a * mass * math.exp(-logarithm))
    assert heavy.mass == pytest.approx(-share, rel=1e-9)


@pytest.mark.parametrize(("beta", "distance"), [(4.0, 2.0), (9.0, 3.0), (16.0, 1.0), (64.0, 2.5)])
@pytest.mark.parametrize("dim", [2, 3])
def test_the_pair_to_1e_4(beta, distance, dim):
    """beta (1 - cos D) times the correction of the exact quadrature."""
    run = ms.simulate(ms.Attention(dim=dim, beta=beta), pair(distance, dim), until=1.0)
    found = {row.knob: row for row in elasticities(run, since=0.0)}
    exact = theory.pair_elasticities(0.5 / math.sqrt(beta), beta, distance)
    plain = beta * (1.0 - math.cos(distance))
    correction = exact.beta / plain
    assert found["beta"].value == pytest.approx(plain * correction, rel=1e-4)
    assert found["masses"].value == pytest.approx(exact.mass, rel=1e-4)
    assert found["distance"].value == pytest.approx(exact.distance, rel=1e-4)
    for row in found.values():
        assert row.theory == pytest.approx(row.value, rel=1e-4)
        assert row.high - row.low < 1e-3 * abs(row.value)


def test_every_cluster_of_a_run_against_simulations():
    """The elasticity in beta of the last falls: from full simulations with beta a little larger and smaller from t = 100 on."""
    model = ms.Attention(dim=2, beta=12.0)
    start = ms.sphere.uniform(30, dim=2, seed=4)
    run = ms.simulate(model, start, until=100.0)
    rows = elasticities(run, ["beta"])
    last = max(rows, key=lambda row: row.life)
    child = int(last.cluster.split()[0])
    waits = []
    for factor in (1.01, 1.0 / 1.01):
        other = model.replace(beta=model.beta * factor)
        later = ms.simulate(other, run.final, until=10.0 * last.life)
        tree = ms.merge_tree(later, radius=0.5 / math.sqrt(12.0))
        waits.append(float(tree.time[tree.child == child][0]))
    assert last.value == pytest.approx(math.log(waits[0] / waits[1]) / (2.0 * math.log(1.01)), rel=2e-3)


def test_a_sink_counts_like_a_mass():
    model = ms.Attention(dim=2, beta=16.0, frozen=ms.Frozen(np.array([[1.0, 0.0]]), np.array([3.0])))
    run = ms.simulate(model, np.array([[math.cos(2.0), math.sin(2.0)]]), until=1.0)
    rows = {row.knob: row for row in elasticities(run, since=0.0)}
    exact = theory.pair_elasticities(0.125, 16.0, 2.0, 3.0)
    assert rows["sink"].value == pytest.approx(exact.mass, rel=1e-4)
    assert rows["beta"].value == pytest.approx(exact.beta, rel=1e-4)
    assert rows["beta"].cluster == "0 into the sink"


def test_the_weight_of_a_sink_against_reruns():
    """Two clusters fall into a sink one after the other, so it is a part of what the second one falls onto: full reruns."""
    weight, beta, angles = 2.0, 9.0, np.array([0.7, 0.71, 0.72, -2.0])
    sink = ms.Frozen(np.array([[1.0, 0.0]]), np.array([weight]))
    model, start = ms.Attention(dim=2, beta=beta, frozen=sink), ms.sphere.from_angle(angles)
    run = ms.simulate(model, start, until=0.1)
    rows = {row.cluster: row for row in elasticities(run, ["sink", "beta"]) if row.knob == "sink"}
    assert set(rows) == {"0 into the sink", "3 into the sink"}
    radius, turn = 0.5 / math.sqrt(beta), 0.01

    def falls(value):
        """Times at which tokens 0 and 3 come to the sink, from the state of the run on, by full simulation."""
        other = model.replace(frozen=ms.Frozen(sink.tokens, np.array([value])))
        later = ms.simulate(other, run.final, until=4.0 * rows["3 into the sink"].life, rtol=1e-9)
        found = []
        for token in (0, 3):
            low, high = 0.0, later.end
            for _ in range(60):
                middle = 0.5 * (low + high)
                near = float(ms.sphere.distance(later.at(middle)[token], sink.tokens[0])) < radius
                low, high = (low, middle) if near else (middle, high)
            found.append(high)
        return np.log(found)

    slopes = (falls(weight * math.exp(turn)) - falls(weight * math.exp(-turn))) / (2.0 * turn)
    for name, slope in zip(("0 into the sink", "3 into the sink"), slopes):
        assert rows[name].value == pytest.approx(slope, abs=2e-3), name
    assert -0.9 < rows["3 into the sink"].value < -0.2


def test_paired_ensembles_know_the_pace():
    """nGPT's alpha is the pace: life times go like 1/alpha for every start."""
    model = ms.Attention(dim=2, beta=2.0, norm=ms.NGPT(0.5))
    row = elasticities(model, ["norm"], tokens=8, until=2e3, members=40)[0]
    assert row.theory == -1.0
    assert row.low - 0.01 < -1.0 < row.high + 0.01
    assert "pairs" in row.how


def test_intervals_know_how_times_are_read():
    """At this turn all pairs are the same number of output times apart: they agree with one another better than with the truth."""
    model = ms.Attention(dim=2, beta=2.0, norm=ms.NGPT(0.9))
    row = elasticities(model, ["norm"], tokens=4, until=100.0, members=8, turn=0.9)[0]
    assert row.low < -1.0 < row.high
    assert row.high - row.low < 0.05


def test_paired_ensembles_against_derivatives():
    """Two tokens, uniform: the mean elasticity in beta is that of the quadrature, start by start."""
    model = ms.Attention(dim=2, beta=6.0)
    row = elasticities(model, ["beta"], tokens=2, until=1e7, members=60, seed=5)[0]
    starts = ms.ensemble(model, tokens=2, members=60, times=[0.0, 1.0], seed=5)["x"].values[:, 0]
    angles = ms.sphere.distance(starts[:, 0], starts[:, 1])
    radius = 0.5 / math.sqrt(6.0)
    exact = np.mean([theory.pair_elasticities(radius, 6.0, a).beta for a in angles if a > radius])
    assert row.value == pytest.approx(exact, rel=0.05)
    assert f"{(angles <= radius).sum()} never have more" in row.how


def slow_life(angles, beta, left, radius, until):
    """The time from which at most `left` clusters of a causal run on the circle are there, by SciPy and bisection; None: always."""

    def velocity(t, x):
        gap = x[:, None] - x[None, :]
        weights = np.tril(np.exp(beta * (np.cos(gap) - 1.0)))
        return -(weights * np.sin(gap)).sum(axis=1) / weights.sum(axis=1)

    def clusters(x):
        gaps = np.diff(np.sort(x % (2 * np.pi)), append=np.min(x % (2 * np.pi)) + 2 * np.pi)
        return max(1, int((gaps > radius).sum()))

    dense = solve_ivp(velocity, (0.0, until), angles, rtol=1e-9, atol=1e-12, dense_output=True).sol
    times = np.concatenate([[0.0], np.geomspace(1e-6, until, 600)])
    more = np.array([clusters(dense(t)) > left for t in times])
    if not more.any():
        return None
    low, high = times[np.flatnonzero(more)[-1]], times[np.flatnonzero(more)[-1] + 1]
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if clusters(dense(middle)) > left else (low, middle)
    return high


def test_members_that_have_nothing_to_wait_for_are_left_out():
    """Three tokens until two clusters are left: of the starts some are there already. SciPy, member by member."""
    model, members, turn, until = ms.Attention(dim=2, beta=2.0), 48, 0.1, 200.0
    row = elasticities(model, ["beta"], tokens=3, clusters=2, until=until, members=members, turn=turn, seed=0)[0]
    starts = ms.ensemble(model, tokens=3, members=members, times=[0.0, 1.0], seed=0)["x"].values[:, 0]
    ratios = []
    for x in starts:
        angles, radius = np.arctan2(x[:, 1], x[:, 0]), 0.5 / math.sqrt(2.0)
        lives = [slow_life(angles, 2.0 * math.exp(sign * turn), 2, radius, until) for sign in (1.0, -1.0)]
        assert (lives[0] is None) == (lives[1] is None)
        if lives[0] is not None:
            ratios.append(math.log(lives[0] / lives[1]) / (2.0 * turn))
    assert 10 < len(ratios) < members - 5
    assert row.how.startswith(f"{len(ratios)} pairs")
    assert f"{members - len(ratios)} never have more" in row.how
    assert row.value == pytest.approx(np.mean(ratios), abs=0.03)
    # Counted as zeros they would be a third of it.
    assert abs(row.value - np.sum(ratios) / members) > 0.06


def test_life_times_are_read_between_output_times():
    times = np.array([0.0, 1.0, 2.0, 4.0, 8.0, 16.0])
    counts = np.array(
        [
            [5, 5, 3, 2, 2, 2],  # over between 2 and 4
            [2, 2, 2, 2, 2, 2],  # nothing to wait for
            [1, 4, 4, 2, 2, 2],  # one chain at the start, which parts
            [5, 5, 3, 3, 3, 3],  # not over
            [3, 2, 2, 2, 2, 2],  # before the first output time
            [5, 5, 2, 3, 3, 2],  # comes back
            [5, 5, 2, 3, 2, 2],  # for a moment only
            [5, 5, 2, np.nan, np.nan, np.nan],  # stopped early
        ],
        dtype=float,
    )
    lives, had = _lives(counts, times, 2, first=False)
    between = math.sqrt(8.0)
    np.testing.assert_allclose(
        lives, [between, np.nan, between, np.nan, 0.0, math.sqrt(128.0), math.sqrt(2.0), np.nan], rtol=1e-12
    )
    np.testing.assert_array_equal(had, [True, False, True, True, True, True, True, True])
    first = _lives(counts, times, 2, first=True)[0]
    np.testing.assert_allclose(
        first,
        [between, np.nan, between, np.nan, 0.0, math.sqrt(2.0), math.sqrt(2.0), math.sqrt(2.0)],
        rtol=1e-12,
    )


def test_nothing_to_wait_for_is_told():
    model = ms.Attention(dim=2, beta=2.0)
    with pytest.raises(GoalError, match="never make more"):
        elasticities(model, ["beta"], tokens=4, clusters=4, until=10.0, members=10)
    start = ms.sphere.from_angle([0.0, 0.01, 0.02])
    with pytest.raises(GoalError, match="10 of 10 members never have more"):
        elasticities(model, ["beta"], tokens=3, clusters=2, until=10.0, members=10, start=lambda seed: start)


def test_the_size_of_a_value_matrix_is_the_unit_of_time():
    """V = c I is V = I, c times as fast: the same elasticities, and life times over c, also where clusters have not gathered by 100."""
    start = ms.sphere.uniform(24, dim=2, seed=4)
    rows = []
    for factor in (1.0, 0.02):
        model = ms.Attention(dim=2, beta=9.0, value=factor * np.eye(2))
        run = ms.simulate(model, start, until=100.0 / factor, rtol=1e-9)
        rows.append(elasticities(run, ["beta"]))
    assert len(rows[0]) > 0
    for one, other in zip(*(found.rows for found in rows), strict=True):
        assert one.cluster == other.cluster
        assert other.life * 0.02 == pytest.approx(one.life, rel=1e-4)
        assert other.value == pytest.approx(one.value, rel=1e-4)


def test_life_times_beyond_the_end_are_told():
    with pytest.raises(ConvergenceError, match="later until"):
        elasticities(ms.Attention(dim=2, beta=40.0), ["beta"], tokens=30, until=10.0, members=10)


@pytest.mark.parametrize(
    "arguments",
    [
        {"source": 3},
        {"knobs": ["heat"]},
        {"knobs": "beta"},
        {"knobs": ["sink"]},
        {"since": 5.0},
        {"radius": 0.0},
        {"tokens": 8},
        {"source": ms.Attention(dim=2, beta=1.0), "knobs": ["noise"], "tokens": 8, "until": 10.0},
        {"source": ms.Attention(dim=2, beta=1.0), "knobs": ["tokens"], "tokens": 8, "until": 10.0},
        {"source": ms.Attention(dim=2, beta=1.0), "knobs": "beta", "tokens": 8, "until": 10.0},
        {"source": ms.Attention(dim=2, beta=1.0), "tokens": 8, "until": 10.0, "since": -5},
        {"source": ms.Attention(dim=2, beta=1.0), "tokens": 8, "until": 10.0, "since": 5.0},
        {"source": ms.Attention(dim=2, beta=1.0), "tokens": 8, "until": 10.0, "turn": 1000},
        {"source": ms.Attention(dim=2, beta=1.0), "tokens": 8, "until": 10.0, "turn": 1e-300},
    ],
)
def test_nonsense_is_told(arguments):
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), pair(1.0), until=1.0)
    with pytest.raises(MetastableError):
        elasticities(**{"source": run, **arguments})
