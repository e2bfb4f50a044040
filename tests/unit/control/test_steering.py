"""Schedules that hold and release clusters, against full simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest

import metastable as ms
from metastable.analysis import cluster_radius
from metastable.control import schedule
from metastable.control.reduced import clusters_of, tree_of
from metastable.errors import GoalError, MetastableError, UnsupportedError

MODEL = ms.Attention(dim=2, beta=16.0)


@pytest.fixture(scope="module")
def run():
    return ms.simulate(MODEL, ms.sphere.uniform(40, dim=2, seed=2), until=100.0)


@pytest.fixture(scope="module")
def tree(run):
    return run.predict_merges()


def test_pieces_with_one_beta_are_no_pieces(run):
    """A flow that is stopped and taken up is the flow: a joint changes nothing when beta does not."""
    clusters = clusters_of(run.final, MODEL, 100.0, cluster_radius(MODEL))
    whole, parts = tree_of(clusters), tree_of(clusters, [(0.0, 16.0), (3e3, 16.0), (1e7, 16.0)])
    np.testing.assert_array_equal(whole.child, parts.child)
    np.testing.assert_array_equal(whole.parent, parts.parent)
    np.testing.assert_allclose(np.log10(whole.time), np.log10(parts.time), atol=1e-4)


@pytest.mark.parametrize("power", [0.85, 1.2])
def test_a_merge_is_moved_and_earlier_ones_stay(run, tree, power):
    row = len(tree) - 1
    at = float(tree.time[row] ** power)
    assert at > tree.time[row - 1]
    found = schedule(run, (tree.child[row], tree.parent[row]), at=at)
    assert abs(math.log10(found.achieved) - math.log10(at)) < 0.01
    assert found.undisturbed
    assert found.run.status == "success"
    assert (found.change > 0) == (power > 1)
    assert found.schedule.models[0] == found.schedule.models[2] == MODEL
    # Simulated without the change: the merges before it are the same ones, at the same times.
    plain = ms.merge_tree(ms.simulate(MODEL, run.start, until=0.99 * found.window[0] + 1.0))
    steered = ms.merge_tree(found.run, ms.analysis.cluster_radius(MODEL))
    shared = steered.time[: len(plain)]
    np.testing.assert_allclose(shared, plain.time, rtol=1e-3)


def test_a_fall_into_another_cluster_is_not_the_one_that_was_asked_for(run, tree, monkeypatch):
    """The simulation is told to have the cluster fall elsewhere at the right time: nothing was achieved."""
    row = len(tree) - 2
    child, parent = int(tree.child[row]), int(tree.parent[row])
    other = next(int(leader) for leader in (*tree.parent, *tree.child) if leader not in (child, parent))
    at = float(tree.time[row] ** 1.05)

    def elsewhere(seen, radius):
        found = ms.merge_tree(seen, radius)
        moved = np.array(found.parent)
        moved[found.child == child] = other
        keep = np.isin(found.child, [child]) | (found.time < 100.0)
        names = ("time", "before", "child", "child_size", "parent_size")
        return replace(found, parent=moved[keep], **{name: getattr(found, name)[keep] for name in names})

    assert math.isfinite(schedule(run, (child, parent), at=at).achieved)
    monkeypatch.setattr("metastable.control.steering.merge_tree", elsewhere)
    assert schedule(run, (child, parent), at=at).achieved == math.inf


def test_the_size_of_a_value_matrix_is_the_unit_of_time(run, tree):
    """V = 4 I is V = I, four times as fast: the same change of beta, a quarter of all times."""
    fast = ms.simulate(MODEL.replace(value=4.0 * np.eye(2)), run.start, until=25.0)
    row = len(tree) - 1
    event, at = (tree.child[row], tree.parent[row]), float(tree.time[row] ** 0.9)
    plain, found = schedule(run, event, at=at, verify=False), schedule(fast, event, at=0.25 * at, verify=False)
    assert found.changed == pytest.approx(plain.changed, rel=1e-3)
    np.testing.assert_allclose(4.0 * np.array(found.window), plain.window, rtol=1e-3)


def test_nothing_merges_before_its_time(run, tree):
    at = float(1e3 * tree.time[0])
    found = schedule(run, at=at)
    assert found.achieved >= at * (1.0 - 1e-9)
    assert found.change > 0
    assert found.window == (100.0, at)
    assert "no merge" in repr(found)
    assert found.met
    assert not replace(found, achieved=0.5 * at).met
    assert "Steering" in found._repr_html_()
    assert found.facts["goal met"] == "yes"
    missed = replace(found, achieved=0.5 * at)
    assert missed.facts["goal met"] == "no"
    assert "goal met no" in repr(missed)


def test_how_far_a_merge_may_be_off_is_said(run, tree):
    """It was a number that nobody was told."""
    row, at = len(tree) - 1, float(tree.time[-1] ** 1.1)
    found = schedule(run, (tree.child[row], tree.parent[row]), at=at)
    assert found.tolerance == pytest.approx(0.005 * math.log10(at))
    assert found.off == pytest.approx(math.log10(found.achieved / at))
    assert found.met
    assert f"up to {found.tolerance:.2g} are left as they are" in found.facts["simulated"]
    assert not replace(found, achieved=at * 10.0 ** (1.01 * found.tolerance)).met
    assert not replace(found, undisturbed=False).met
    elsewhere = replace(found, achieved=math.inf)
    assert (elsewhere.met, elsewhere.off) == (False, math.inf)
    unseen = replace(found, run=None, achieved=None)
    assert unseen.met is None
    assert unseen.off is None
    assert unseen.facts["simulated"] == ""
    assert unseen.facts["goal met"] == ""


def test_a_goal_that_is_not_met_is_said_to_be_so(run, tree):
    """Two decades late read "up to 0.1 are left as they are", as if that were near enough; and on time was "early"."""
    row, at = len(tree) - 1, float(tree.time[-1] ** 1.1)
    found = schedule(run, (tree.child[row], tree.parent[row]), at=at, verify=False)
    late, met = (replace(found, run=run, achieved=time) for time in (100.0 * at, at))
    assert late.facts["goal met"] == "no"
    assert f"(2 decades late; up to {late.tolerance:.2g} would do)" in late.facts["simulated"]
    assert met.facts["goal met"] == "yes"
    assert f"(on time; up to {met.tolerance:.2g} are left as they are)" in met.facts["simulated"]
    moved = replace(met, undisturbed=False)
    assert moved.facts["goal met"] == "no"


def test_what_is_returned_was_simulated(run, tree, monkeypatch):
    """Also where no simulation is good enough, and beta is corrected to the last."""
    monkeypatch.setattr("metastable.control.steered.GOOD", 0.0)
    row = len(tree) - 1
    found = schedule(run, (tree.child[row], tree.parent[row]), at=float(tree.time[row] ** 1.1))
    assert found.run.schedule == found.schedule
    again = ms.merge_tree(ms.simulate(found.schedule, run.start, until=found.run.end), cluster_radius(MODEL))
    assert found.achieved == pytest.approx(float(again.time[again.child == tree.child[row]][0]), rel=1e-6)


def test_the_returned_run_has_a_tree_without_further_ado(run, tree):
    """Its models have two radii of clusters; that of the model is meant."""
    found = schedule(run, (tree.child[-1], tree.parent[-1]), at=float(tree.time[-1] ** 1.1))
    mine, said = ms.merge_tree(found.run), ms.merge_tree(found.run, cluster_radius(MODEL))
    np.testing.assert_array_equal(mine.time, said.time)
    assert ms.merge_tree(schedule(run, at=float(10.0 * tree.time[0])).run).radius == said.radius


@pytest.fixture(scope="module")
def sunk(run):
    """The same tokens with a frozen one."""
    model = MODEL.replace(frozen=ms.Frozen(np.array([[0.0, 1.0]]), np.array([0.7])))
    return ms.simulate(model, run.start, until=100.0)


def test_events_are_refused_beside_a_frozen_token(sunk):
    """Its clusters are numbered with the frozen token in front: 5 was taken for 4."""
    with pytest.raises(UnsupportedError, match="held apart there"):
        schedule(sunk, (5, 0), at=1e6)


def test_clusters_are_held_apart_from_a_frozen_token_too(sunk):
    radius, sink = cluster_radius(MODEL), sunk.model.frozen.tokens
    clusters = clusters_of(sunk.final, sunk.model, 100.0, radius)
    natural = tree_of(clusters)
    at = float(1e3 * natural.time[0])
    found = schedule(sunk, at=at)
    assert found.change > 0
    assert found.achieved >= at
    # Independently: until then nobody comes to the sink, and as many clusters are left. Without the change they are fewer.
    away = ms.sphere.distance(sunk.final, sink) > radius
    plain = ms.simulate(sunk.model, sunk.start, until=at)
    state = found.run.at(0.999 * at)
    left = [len(set(ms.cluster_labels(x, radius=radius))) for x in (sunk.final, state, plain.final)]
    near = [int((ms.sphere.distance(x[away], sink) < radius).sum()) for x in (state, plain.final)]
    assert left[1] == left[0]
    assert near[0] == 0
    assert left[2] < left[0] or near[1] > 0


def test_holds_that_no_beta_makes_are_told_in_words(run):
    with pytest.raises(GoalError, match=r"; without a change the first merge is .* into .* at t = "):
        schedule(run, at=1e290, verify=False)


def test_nothing_is_changed_where_nothing_must_be(run, tree):
    found = schedule(run, at=float(0.5 * (100.0 + tree.time[0])), verify=False)
    assert found.change == 0.0
    assert found.schedule.models == (MODEL,)


def test_merges_against_the_order_of_tokens_are_refused(run, tree):
    with pytest.raises(GoalError, match="later leader falls into the earlier one"):
        schedule(run, (tree.parent[0], tree.child[0]), at=1e6)


def test_tokens_of_one_cluster_are_refused(run):
    labels = ms.cluster_labels(run.final, radius=cluster_radius(MODEL))
    together = np.flatnonzero(labels == np.bincount(labels).argmax())[:2]
    with pytest.raises(GoalError, match="in one cluster"):
        schedule(run, tuple(together), at=1e6)


def test_a_time_before_an_earlier_merge_is_refused(run, tree):
    with pytest.raises(GoalError, match="comes before the fall"):
        schedule(run, (tree.child[-1], tree.parent[-1]), at=float(0.5 * (100.0 + tree.time[0])))


def test_a_fall_into_another_cluster_is_refused(run, tree):
    """A cluster that always falls into one neighbour cannot be sent past it."""
    first = int(tree.child[0])
    labels = tree.labels_at(float(tree.time[0]))
    others = [int(leader) for leader in tree.parent if leader < first and labels[leader] != labels[first]]
    assert others
    with pytest.raises(GoalError):
        schedule(run, (first, others[0]), at=float(10.0 * tree.time[0]))


@pytest.mark.parametrize(
    "arguments",
    [
        {"run": 3},
        {"at": 50.0},
        {"at": None},
        {"event": 3},
        {"event": (1, 2, 3)},
        {"event": (1, 4000)},
        {"since": 1e5},
        {"radius": 0.0},
        {"verify": "no"},
    ],
)
def test_nonsense_is_told(run, arguments):
    with pytest.raises(MetastableError):
        schedule(**{"run": run, "at": 1e6, "verify": False, **arguments})


def test_models_whose_clusters_are_no_points_are_refused():
    model = ms.Attention(dim=2, beta=9.0, mask=ms.Window(3))
    window = ms.simulate(model, ms.sphere.uniform(10, dim=2, seed=0), until=10.0)
    with pytest.raises(MetastableError, match="points until they fall"):
        schedule(window, at=1e6)
