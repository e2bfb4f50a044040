"""Tokens that are put somewhere: found places serve, impossible wishes are refused."""

import math

import numpy as np
import pytest

import metastable as ms
from metastable.analysis import cluster_radius
from metastable.control import Apart, Together, place
from metastable.control.placement import NEVER, Trial
from metastable.control.reduced import clusters_of, tree_of
from metastable.errors import GoalError, MetastableError, UnsupportedError

MODEL = ms.Attention(dim=2, beta=12.0)
START = ms.sphere.uniform(16, dim=2, seed=3)


def test_a_frozen_token_is_a_first_token_with_its_weight():
    """The flow of clusters with a sink against a full simulation with a frozen token."""
    model = MODEL.replace(frozen=ms.Frozen(np.array([[0.0, 1.0]]), np.array([3.0])))
    run = ms.simulate(model, START, until=1e7)
    tree = ms.merge_tree(run, radius=0.14)
    reduced = tree_of(clusters_of(run.at(100.0), model, 100.0, 0.14))
    # Who has fallen into the sink by the end, in both.
    said = reduced.labels_at(1e7)[1:] == 0
    np.testing.assert_array_equal(said, ms.sphere.distance(run.final, np.array([[0.0, 1.0]])) < 0.14)
    assert said.any()
    assert not said.all()
    # Who meets somewhere else, and when.
    seen = {(int(c), int(p)): t for c, p, t in zip(tree.child, tree.parent, tree.time) if t > 100.0}
    for child, parent, time in zip(reduced.child - 1, reduced.parent - 1, reduced.time):
        if parent >= 0 and time < 1e7:
            assert math.log10(seen[(child, parent)]) == pytest.approx(math.log10(time), abs=0.05)


@pytest.mark.parametrize("kind", ["frozen", "first"])
def test_chosen_tokens_are_gathered(kind):
    labels = ms.cluster_labels(ms.simulate(MODEL, START, until=100.0).final, radius=0.14)
    leaders = ms.analysis.cluster_leaders(labels)
    goal = Together(tuple(leaders[-2:].tolist()))
    found = place(MODEL, START, goal=goal, until=1e5, kind=kind, weight=(1.0, 1e3), tries=12)
    assert found.met
    assert found.simulated
    assert found.time <= 1e5 < found.without or found.time < found.without
    final = ms.simulate(found.model, found.start, until=1e5).final[np.array(goal.tokens) + (kind == "first")]
    assert float(ms.sphere.distance(final[0], final[1])) < 0.14
    assert "met" in repr(found)
    assert "Placement" in found._repr_html_()


def test_clusters_are_kept_apart():
    run = ms.simulate(MODEL, START, until=100.0)
    tree = run.predict_merges()
    found = place(
        run, goal=Apart(int(tree.child[0]), int(tree.parent[0])), until=float(1e3 * tree.time[0]), tries=16, weight=4.0
    )
    assert found.met
    assert found.without == pytest.approx(tree.time[0], rel=0.05)


@pytest.mark.parametrize("factor", [0.05, 30.0])
def test_the_size_of_a_value_matrix_is_the_unit_of_time(factor):
    """V = c I is V = I, c times as fast: meetings are where they were, over c, also those before t = 1 and those of slow tokens."""
    goal, token = Together((2, 7)), np.array([0.6, 0.8])
    meetings = []
    for scale in (1.0, factor):
        model = MODEL.replace(value=scale * np.eye(2))
        trial = Trial(model, START, goal, 1e12 / scale, "frozen", 0.14, [0])
        meetings.append([trial.meeting(None, 0.0) + math.log10(scale), trial.meeting(token, 4.0) + math.log10(scale)])
    assert min(meetings[0]) < 300.0
    np.testing.assert_allclose(meetings[1], meetings[0], atol=1e-3)


def test_tokens_that_are_together_from_the_start_met_at_no_later_time():
    start = ms.sphere.from_angle([0.0, 0.01, 2.0])
    trial = Trial(MODEL, start, Together((0, 1)), 50.0, "frozen", 0.14, [0])
    assert trial.meeting(None, 0.0) == -math.inf


def test_larger_weights_are_tried_where_the_simulation_says_no(monkeypatch):
    """The flow of clusters is told to be wrong about all places below a weight of 50."""
    plain, asked = Trial.simulated, []

    def simulated(self, token, weight):
        asked.append(weight)
        return weight > 50.0 and plain(self, token, weight)

    monkeypatch.setattr(Trial, "simulated", simulated)
    monkeypatch.setattr("metastable.control.placement.FINEST", 0.05)
    goal = {"goal": Together((1, 4)), "until": 1e5, "tries": 6}
    found = place(MODEL, START, weight=(10.0, 1000.0), **goal)
    assert found.met
    assert found.weight > 50.0
    assert min(asked) == 10.0  # where the flow of clusters says that it serves
    assert asked.count(10.0) > 1  # at more places than the best
    assert place(MODEL, START, weight=(10.0, 1000.0), verify=False, **goal).weight == 10.0
    never = place(MODEL, START, weight=10.0, **goal)
    assert not never.met
    assert never.time <= 1e5


@pytest.mark.parametrize("weight", [1e-300, 1e-4, 0.01])
def test_a_token_of_little_weight_holds_nobody(weight):
    """Tokens near it, but not on it, were taken for resting there: against full simulation."""
    run = ms.simulate(MODEL, START, until=100.0)
    tree = run.predict_merges()
    child, parent = int(tree.child[0]), int(tree.parent[0])
    goal = Apart(child, parent)
    beside = ms.sphere.from_angle([float(np.arctan2(run.final[child, 1], run.final[child, 0])) + 0.1])[0]
    trial = Trial(MODEL, START, goal, float(100.0 * tree.time[0]), "frozen", cluster_radius(MODEL), [0])
    model = MODEL.replace(frozen=ms.Frozen(beside[None], np.array([weight])))
    seen = ms.merge_tree(ms.simulate(model, START, until=trial.until), cluster_radius(MODEL))
    assert float(ms.sphere.distance(run.final[child], beside)) < cluster_radius(MODEL)
    falls = seen.time[seen.child == child]
    assert trial.meeting(beside, weight) == pytest.approx(math.log10(falls[0]) if falls.size else NEVER, abs=0.01)


def test_an_appended_token_does_nothing_under_a_causal_mask():
    with pytest.raises(GoalError, match="no earlier token sees it"):
        place(MODEL, START, goal=Together((1, 2)), until=1e3, kind="appended")


@pytest.mark.parametrize(
    "arguments",
    [
        {"source": 3},
        {"start": np.ones((2, 2))},
        {"goal": (1, 2)},
        {"goal": Together((1, 400))},
        {"until": None},
        {"kind": "thrown"},
        {"weight": 0.0},
        {"weight": (1.0,)},
        {"tries": 1},
        {"radius": -1.0},
        {"source": MODEL.replace(noise=0.1)},
    ],
)
def test_nonsense_is_told(arguments):
    with pytest.raises(MetastableError):
        place(**{"source": MODEL, "start": START, "goal": Together((1, 2)), "until": 1e3, **arguments})


def test_tokens_that_move_alike_are_not_parted(monkeypatch):
    """Two tokens in one point under full attention, refused before any work."""
    monkeypatch.setattr("metastable.control.placement.simulate", None)
    start = np.concatenate([START, START[2:3]])
    for mask in (ms.Full(), ms.Full(include_self=False)):
        with pytest.raises(GoalError, match="move alike"):
            place(MODEL.replace(mask=mask), start, goal=Apart(2, 16), until=1e3)


def test_a_frozen_token_is_no_first_one_under_full_attention():
    """There the first token moves, and the flow of clusters is not asked."""
    model = MODEL.replace(mask=ms.Full(), frozen=ms.Frozen(np.array([[0.0, 1.0]]), np.array([0.5])))
    run = ms.simulate(model, START, until=50.0)
    with pytest.raises(UnsupportedError, match="causal mask only"):
        ms.control.elasticities(run)
    found = place(MODEL.replace(mask=ms.Full()), START, goal=Together((1, 2)), until=300.0, tries=4, verify=False)
    final = ms.simulate(found.model, START, until=300.0).final
    near = float(ms.sphere.distance(final[1], final[2])) < 0.14
    assert near == found.met


@pytest.mark.parametrize("tokens", [(), (1,), (1, 1), (1, -2), (0.5, 1), (True, 0), np.array([True, False]), "ab", 3])
def test_goals_are_checked(tokens):
    with pytest.raises(MetastableError):
        Together(tokens)
    with pytest.raises(MetastableError):
        Apart(1, 1)
