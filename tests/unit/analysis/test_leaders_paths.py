"""Paths of leaders, which predicted cascades are made of: how they are computed and read, quick ways against slow ones."""

import dataclasses

import numpy as np
import pytest

import metastable as ms
from metastable import sphere
from metastable.analysis import _paths, leaders
from metastable.analysis._film import Film, RunFilm, refine
from metastable.analysis._kernels import compiled
from metastable.analysis._paths import PathFilm
from metastable.analysis.clusters import link_bound
from metastable.analysis.followers import probes, tree_of_groups, unsteady, watch
from metastable.analysis.merging import tree_of_film
from metastable.analysis.standing import LATEST, Clusters
from metastable.integrate.rodas.forces import plain_surroundings

# ------------------------------------------------------------------------------------------------ reading paths of points


@dataclasses.dataclass(frozen=True)
class PlainPath(Film):
    """A path of points read by the slow way of runs: states by NumPy, bounds on the ways of all points."""

    pieces: np.ndarray

    def tokens(self, step, u):
        x = sum(self.pieces[step, power] * u**power for power in range(5))
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    def look(self, step, u):
        return ms.cluster_labels(self.tokens(step, u), self.radius)

    def held(self, step, low, high):
        return RunFilm.held(self, step, low, high)


def random_path(seed, steps=3, points=7, dim=3):
    """Points that wander: a cubic of random size in each step, joined end to end."""
    generator = np.random.default_rng(seed)
    x, pieces = sphere.uniform(points, dim=dim, seed=generator), []
    for _ in range(steps):
        later = 0.3 * generator.standard_normal((4, points, dim)) / np.array([1.0, 2.0, 3.0, 4.0])[:, None, None]
        pieces.append(np.concatenate([x[None], later]))
        x = pieces[-1].sum(axis=0)
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.array(pieces)


@compiled
def quickly_held(film, step, low, high):
    """What a compiled film says."""
    return _paths.held(film, step, low, high)


@compiled
def quickly_parted(film, together, points, begin, end, resolution):
    """What a compiled film says."""
    return _paths.last_parting(film, together, points, begin, end, resolution)


def films(pieces, radius):
    """A path as a film that is read slowly, and as one that is compiled."""
    steps, points = len(pieces), pieces.shape[2]
    times = np.arange(float(steps)), np.ones(steps), radius, pieces
    return PlainPath(*times), PathFilm(*times, np.tile(np.arange(points), (steps, 1)), link_bound(radius))


@pytest.mark.parametrize("seed", range(6))
def test_held_parts_of_a_path_hold_at_every_moment(seed):
    pieces, radius = random_path(seed), 0.6
    plain, fast = films(pieces, radius)
    generator = np.random.default_rng(seed)
    parted = 0
    for step in range(3):
        for low, length in zip(0.8 * generator.random(20), 0.2 * generator.random(20)):
            high = low + length
            labels, change = quickly_held(fast, step, low, high)
            looks = [plain.look(step, u) for u in np.linspace(low, high, 25)]
            for look in looks:
                assert refine(look, labels).max() == labels.max()
            if change == 0.0:
                assert all((look == labels).all() for look in looks)
                parted += 1
    assert parted > 10


@pytest.mark.parametrize("seed", range(12))
def test_last_parting_of_a_path_is_that_of_the_slow_way(seed):
    pieces, radius = random_path(seed), 0.9
    plain, fast = films(pieces, radius)
    together, points = np.zeros(4, dtype=np.int64), np.array([0, 2, 3, 6])
    for leaders_, labels in ((points, together), (np.arange(7), plain.look(2, 1.0))):
        asked = labels, leaders_, (0, 0.1), (2, 0.95), 1e-9
        slow, quick = plain.last_parting(*asked), quickly_parted(fast, *asked)
        assert quick[0] == slow[0]
        np.testing.assert_allclose(quick[1:], slow[1:], atol=3e-9)


@pytest.mark.parametrize("seed", range(12))
def test_a_compiled_film_has_the_merges_that_it_has_in_python(seed):
    """Points that wander for eight steps over three decades, some of whom go with another one from a step on: every way to read it."""
    generator = np.random.default_rng([seed, 1])
    pieces = random_path(seed, steps=8, points=9)
    owner = np.tile(np.arange(9), (8, 1))
    for step, point in zip(generator.integers(2, 8, 3), (3, 5, 8)):
        owner[step:, point] = owner[step:, point - 2]
        pieces[step:, :, point] = pieces[step:, :, point - 2]
    ends = np.cumsum(10.0 ** generator.uniform(0.0, 3.0, 8))
    times = ends - np.diff(ends, prepend=0.0), np.diff(ends, prepend=0.0)
    for radius in (0.4, 0.8):
        plain, fast = PlainPath(*times, radius, pieces), PathFilm(*times, radius, pieces, owner, link_bound(radius))
        for window in (0.1, 0.5):
            slow, quick = (tree_of_film(film, window, 1e-9) for film in (plain, fast))
            assert slow.start_labels.tolist() == quick.start_labels.tolist()
            assert slow.final_labels.tolist() == quick.final_labels.tolist()
            for name in ("child", "parent", "child_size", "parent_size"):
                np.testing.assert_array_equal(getattr(slow, name), getattr(quick, name))
            np.testing.assert_allclose(quick.time, slow.time, rtol=1e-8)
            np.testing.assert_allclose(quick.before, slow.before, rtol=1e-8)


def test_a_march_of_followers_ends_when_all_are_gathered_for_good():
    """What comes after is nothing: the merges are those of the march to the end of time."""
    query, key = np.random.default_rng([2, 1]).normal(size=(2, 3, 3))
    model = ms.Attention(dim=3, beta=4.0, query=query, key=key)
    state = ms.simulate(model, sphere.uniform(30, dim=3, seed=5), until=100.0, progress=False).final
    around = plain_surroundings(np.tril(np.ones((30, 30))), query.T @ key, 4.0, 2, 0.0)
    options = {"begin": 0.0, "until": LATEST, "tolerance": 1e-6, "max_steps": 10_000}
    short, whole = (leaders.solve(state, around, gathered=near, **options) for near in (1e-4, 0.0))
    assert short.code == leaders.ONE_LEFT
    assert len(short.begin) < len(whole.begin)
    trees = [tree_of_groups(path, np.arange(30), 0.05, 1.0, 1e-9) for path in (short, whole)]
    np.testing.assert_array_equal(trees[0].time, trees[1].time)
    np.testing.assert_array_equal(trees[0].parent, trees[1].parent)
    assert trees[1].complete
    assert len(trees[1]) > 0


@pytest.mark.parametrize("t0", [0.0, 10.0, 1000.0, 1e5])
def test_merges_soon_after_a_late_moment_are_there(t0):
    """Followers are carried here, and their tree is read by windows of its time: ten units are less than one window of a late t0."""
    model = ms.Attention(dim=2, beta=9.0, query=np.diag([1.0, 1.2]), key=np.eye(2))
    tree = ms.predict_merges(sphere.from_angle([0.0, 0.0, 0.9, 0.9, 3.0, 3.0]), model, t0)
    assert [(int(c), int(p)) for c, p in zip(tree.child, tree.parent)] == [(2, 0), (4, 0)]
    np.testing.assert_allclose(tree.time - t0, [10.47, 1.9924e7], rtol=1e-3)
    assert tree.count(t0) == 3
    assert tree.count(1e300) == 1


@pytest.mark.parametrize("dim", [2, 3])
def test_every_predicted_tree_adds_up(dim):
    """A merge for every cluster that is gone at the end, whenever the prediction is made."""
    rng = np.random.default_rng(dim)
    for seed in range(6):
        fields = {} if seed % 2 else {"query": rng.normal(size=(dim, dim)), "key": rng.normal(size=(dim, dim))}
        model = ms.Attention(dim=dim, beta=3.0 if fields else 16.0, **fields)
        times = np.sort(10.0 ** rng.uniform(1.0, 2.5, 4))
        run = ms.simulate(model, sphere.uniform(30, dim=dim, seed=seed), times=times, progress=False)
        for t, state in zip(run.times.tolist(), run.states):
            tree = ms.predict_merges(state, model, t)
            assert len(tree) == tree.start_labels.max() - tree.final_labels.max()
            assert len(set(tree.child.tolist())) == len(tree)
            assert tree.count(1e301) == tree.final_labels.max() + 1


# ------------------------------------------------------------------------------------------- what makes predictions quick


def solved(state, model, radius, **options):
    """The clusters of a state and the path of their leaders, with other options than those of `predict_merges`."""
    clusters = Clusters(state, model, 100.0, radius)
    around = plain_surroundings(clusters.masses, np.eye(model.dim), float(model.beta), clusters.together, 0.02 * radius)
    known = {"begin": 0.0, "until": LATEST, "tolerance": 1e-6, "max_steps": 100_000}
    return clusters, leaders.solve(clusters.places, around, **{**known, **options})


@pytest.mark.parametrize(("dim", "beta", "mask"), [(2, 40.0, ms.Causal()), (3, 16.0, ms.Causal()), (3, 9.0, ms.Full())])
def test_falls_that_may_be_late_are_hardly_late(dim, beta, mask):
    """Against steps that are exact to 1e-9 radians all the way: half as many, the same tree, and times to 1e-4 decades."""
    model, merges = ms.Attention(dim=dim, beta=beta, mask=mask), 0
    for seed in range(6):
        generator = np.random.default_rng([seed, dim])
        state = sphere.uniform(6, dim=dim, seed=generator)[generator.integers(0, 6, 40)]
        clusters, quick = solved(state, model, 0.05)
        _, strict = solved(state, model, 0.05, late=0.0)
        _, exact = solved(state, model, 0.05, late=0.0, tolerance=1e-9)
        assert len(quick.begin) < 0.85 * len(strict.begin)
        one, other = clusters.read(quick), clusters.read(exact)
        np.testing.assert_array_equal(one.child, other.child)
        np.testing.assert_array_equal(one.parent, other.parent)
        np.testing.assert_allclose(np.log10(one.time - 100.0), np.log10(other.time - 100.0), atol=1e-4)
        merges += len(one)
    assert merges > 12


@pytest.mark.parametrize("mask", [ms.Causal(), ms.Full()])
def test_points_that_are_left_behind_change_nothing(mask, monkeypatch):
    model = ms.Attention(dim=3, beta=12.0, mask=mask)
    generator = np.random.default_rng(8)
    state = sphere.uniform(20, dim=3, seed=generator)[generator.integers(0, 20, 60)]
    those_left, calls = leaders._those_left, []
    monkeypatch.setattr(leaders, "_those_left", lambda *known: (calls.append(known), those_left(*known))[1])
    _, fewer = solved(state, model, 0.1)
    assert len(calls) > 1
    monkeypatch.setattr(leaders, "_fewest", lambda *known: 0)
    _, whole = solved(state, model, 0.1)
    assert fewer.code == whole.code == leaders.ONE_LEFT
    np.testing.assert_array_equal(fewer.owner, whole.owner)
    np.testing.assert_allclose(fewer.begin, whole.begin, rtol=1e-6)
    np.testing.assert_allclose(fewer.pieces, whole.pieces, atol=1e-6)


def test_a_path_goes_on_where_another_one_ended():
    model = ms.Attention(dim=2, beta=20.0)
    generator = np.random.default_rng(3)
    state = sphere.uniform(6, dim=2, seed=generator)[generator.integers(0, 6, 30)]
    clusters = Clusters(state, model, 0.0, 0.1)
    first = clusters.path(clusters.places, 0.002, until=1000.0)
    second = clusters.path(_paths.places_at(first.pieces[-1], 1.0), 0.002, begin=1000.0, before=first)
    steps = len(first.begin)
    assert first.code == leaders.REACHED
    np.testing.assert_array_equal(second.begin[:steps], first.begin)
    np.testing.assert_array_equal(second.pieces[:steps], first.pieces)
    assert second.begin[steps] == 1000.0
    whole = clusters.read(clusters.path(clusters.places, 0.002))
    np.testing.assert_allclose(np.log10(clusters.read(second).time), np.log10(whole.time), atol=1e-4)


@pytest.mark.parametrize("seed", [17, 30, 32, 50])
def test_whether_followers_leave_does_not_depend_on_the_steps_of_leaders(seed):
    """A follower that falls within a long step of the leaders was lost: carried to the end of time, for nothing."""
    model = ms.Attention(dim=2, beta=32.0)
    run = ms.simulate(model, sphere.uniform(100, dim=2, seed=1000 + seed), until=100.0, progress=False)
    radius = ms.analysis.cluster_radius(model)
    clusters, usual = solved(run.final, model, radius)
    found = [
        unsteady(clusters, watch(clusters, path, probes(clusters)))
        for path in (usual, solved(run.final, model, radius, late=0.0, tolerance=1e-9)[1])
    ]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=0.02)
    assert found[0][0].any() == (seed == 32)
