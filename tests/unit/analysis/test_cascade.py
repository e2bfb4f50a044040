"""`predict_merges`: the cascade from the clusters at one moment, against simulations, an independent slow way, and by hand."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import metastable as ms
from metastable import sphere
from metastable.analysis import _probes, cluster_leaders, leaders
from metastable.analysis._film import by_first_token
from metastable.analysis._kernels import compiled
from metastable.analysis.followers import MOST_POINTS, groups_of, parted_by_mass
from metastable.analysis.standing import COPIES, Clusters
from metastable.errors import InvalidInputError, NumericalRangeError, StoppedEarlyWarning, UnsupportedError
from metastable.integrate import rodas
from metastable.integrate.plan import Accuracy, Save
from metastable.integrate.rodas.forces import lines_of, plain_surroundings


def on_circle(angles):
    return np.column_stack([np.cos(angles), np.sin(angles)])


def compare(model, tokens, seed, t0=100.0, radius=None):
    """Errors in decades of the predicted times, and whether every child found its parent."""
    run = ms.simulate(model, sphere.uniform(tokens, dim=model.dim, seed=seed), until="settled", progress=False)
    truth = ms.merge_tree(run, radius=radius)
    guess = ms.predict_merges(run.at(t0), model, t0, radius=radius)
    first = set(cluster_leaders(guess.start_labels).tolist())
    later = {
        int(c): (int(p), t) for c, p, t in zip(truth.child, truth.parent, truth.time) if t > t0 and int(c) in first
    }
    found = {int(c): (int(p), t) for c, p, t in zip(guess.child, guess.parent, guess.time)}
    assert later
    off = [abs(np.log10(found[c][1] / t)) for c, (_, t) in later.items()]
    return np.array(off), all(found[c][0] == p for c, (p, _) in later.items())


# ------------------------------------------------------------------------------------------------ against simulations


@pytest.mark.parametrize(("dim", "beta", "seed"), [(2, 16.0, 1000), (2, 32.0, 1001), (3, 9.0, 1002), (4, 6.0, 3)])
def test_predicts_what_a_simulation_does(dim, beta, seed):
    off, right = compare(ms.Attention(dim=dim, beta=beta), 40, seed)
    assert right
    assert np.median(off) < 0.002
    assert off.max() < 0.05


def test_predicts_under_random_queries_and_keys():
    query, key = np.random.default_rng([2, 1]).normal(size=(2, 3, 3))
    off, right = compare(ms.Attention(dim=3, beta=4.0, query=query, key=key), 60, 1002, radius=0.05)
    assert right
    assert off.max() < 0.02


@pytest.mark.parametrize("seed", [8, 23])
def test_followers_that_part_are_carried_along_and_called_doubtful(seed):
    """Draws where leaders by themselves take 22 of 40 tokens along that stay (8), or end in the wrong cluster (23)."""
    query, key = np.random.default_rng(1000 + seed).normal(size=(2, 3, 3))
    model = ms.Attention(dim=3, beta=5.0, query=query, key=key)
    run = ms.simulate(model, sphere.uniform(40, dim=3, seed=seed), until=1e5, progress=False)
    tree = run.predict_merges(50.0)
    truth = ms.merge_tree(run, radius=tree.radius)
    assert tree.doubtful.any()
    seen = np.append(tree.time[tree.time < run.end], run.end)
    for moment in np.sqrt(seen[1:] * seen[:-1]):
        np.testing.assert_array_equal(tree.labels_at(moment), truth.labels_at(moment))


@pytest.mark.parametrize("t0", [20.0, 60.0])
def test_followers_that_a_heavy_cluster_draws_over_are_carried_along(t0):
    """Q = K = I. Token 0 never moves; 17 tokens come near, and its six followers go over to them before they arrive."""
    model = ms.Attention(dim=2, beta=16.0)
    run = ms.simulate(model, sphere.uniform(40, dim=2, seed=0), until=130.0, progress=False)
    truth, guess = ms.merge_tree(run), ms.predict_merges(run.at(t0), model, t0)
    later, seen = truth.time > t0, guess.time < run.end
    for name in ("child", "parent", "child_size", "parent_size"):
        assert getattr(guess, name)[seen].tolist() == getattr(truth, name)[later].tolist()
    np.testing.assert_allclose(guess.time[seen], truth.time[later], rtol=2e-3)
    # Torn from t0 on in the tree, whole in the state until t = 100: the merges of the six say so, and those behind them do not.
    torn = (guess.child == 22) | (guess.child == 1)
    np.testing.assert_array_equal(guess.doubtful, torn)


def test_one_that_leaves_is_told_from_one_that_stays():
    """A follower of a resting leader: with a second place of mass m at a distance where its own resting place is there, and is not."""
    for angle, stays in ((1.2, True), (0.7, False)):
        pieces = np.zeros((40, 5, 2, 2))
        pieces[:, 0] = on_circle([0.0, angle])
        width = np.full(40, 5.0)
        begin = 100.0 + np.cumsum(width) - width
        one = _probes.Followers(
            on_circle([0.0]), np.ones(1), np.zeros(1, dtype=np.int64), _probes.with_nobody(np.array([[1.0, 17.0]]))
        )
        seen = _probes.leaving(begin, width, pieces, one, _probes.Rule(16.0, np.eye(2), True, 0.125, 0.02))
        assert seen.left.tolist() == [not stays]
        assert seen.back.tolist() == [0.0 if stays else np.inf]
        assert seen.visited.tolist() == [[False, not stays]]


@compiled
def probe_steps(y, places, masses, rule, h, steps):
    """Steps of a probe of mass 1, in place; whether it stays in all of them."""
    d, width = places.shape
    work, stays = _probes.make_work(width, d), True
    for _ in range(steps):
        stays &= _probes._step(y, 1.0, places, masses, rule, h, work)
    return stays


@pytest.mark.parametrize("general", [False, True], ids=["Q = K = I", "Q, K"])
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_a_probe_moves_like_a_token_among_frozen_places(dim, general):
    """One step against simulation (short steps), and against its rest (long ones)."""
    places, masses = sphere.uniform(4, dim=dim, seed=3), np.array([3.0, 1.0, 2.0, 5.0])
    lines, seen = lines_of(places), lines_of(masses[:, None])[0]
    form = np.eye(dim) + 0.2 * general * np.random.default_rng(dim).normal(size=(dim, dim))
    model = ms.Attention(dim=dim, beta=4.0, key=form, frozen=ms.Frozen(places, masses))
    rule = _probes.Rule(4.0, form, not general, 0.1, 0.02)
    token = sphere.retract(places[0] + 0.05 * places[1])
    y = token.copy()
    assert probe_steps(y, lines, seen, rule, 1e-3, 2000)
    run = ms.simulate(model, token[None], until=2.0, progress=False)
    np.testing.assert_allclose(y, run.final[0], atol=2e-3)
    rest = ms.simulate(model, token[None], until=400.0, rtol=1e-10, atol=1e-12, progress=False).final[0]
    y = sphere.retract(rest + 1e-3 * places[1])
    assert probe_steps(y, lines, seen, rule, 1e9, 30)
    np.testing.assert_allclose(y, rest, atol=1e-8)


def test_three_at_once_are_called_doubtful():
    """d = 8: leaders say 2 into 1 and both into 0; stretched followers of 0 link 2 to 0 first."""
    model = ms.Attention(dim=8, beta=9.0)
    run = ms.simulate(model, sphere.uniform(40, dim=8, seed=6), until=400.0, rtol=1e-9, atol=1e-12, progress=False)
    truth, guess = ms.merge_tree(run), run.predict_merges(100.0)
    clusters = Clusters(run.at(100.0), model, 100.0, truth.radius)
    alone = clusters.read(clusters.path(clusters.places, 0.003))
    assert alone.parent[alone.child == 2].tolist() == [1]
    assert truth.parent[truth.child == 2].tolist() == guess.parent[guess.child == 2].tolist() == [0]
    assert guess.doubtful[guess.child == 2].tolist() == [True]
    assert not guess.doubtful[guess.time > 400.0].any()


def test_groups_of_followers_keep_the_leader_alone():
    labels = np.repeat([0, 1], [70, 30])
    groups = groups_of(labels)
    first = cluster_leaders(groups)
    assert (np.bincount(groups)[groups[[0, 70]]] == 1).all()
    assert all(len(set(labels[groups == g])) == 1 for g in range(len(first)))
    assert len(first) <= MOST_POINTS
    assert len(cluster_leaders(groups_of(labels, most=8))) <= 8
    torn = groups_of(labels, np.array([False, True]), most=8)
    assert (np.bincount(torn[labels == 0]) > 0).sum() < (np.bincount(torn[labels == 1]) > 0).sum()
    np.testing.assert_array_equal(groups_of(labels[64:76]), np.arange(12))


def test_value_matrix_sets_the_pace():
    model = ms.Attention(dim=2, beta=16.0)
    state = on_circle([0.0, 1.2, -1.9])
    plain, fast = (ms.predict_merges(state, m, t0=7.0) for m in (model, model.replace(value=4.0 * np.eye(2))))
    np.testing.assert_allclose(fast.time - 7.0, (plain.time - 7.0) / 4.0, rtol=1e-5)
    assert fast.parent.tolist() == plain.parent.tolist()


def test_full_attention_by_clusters_with_masses():
    model = ms.Attention(dim=2, beta=9.0, mask=ms.Full())
    angles = np.repeat([0.0, 1.5, 3.5], [5, 3, 8])
    run = ms.simulate(model, on_circle(angles + 1e-9 * np.arange(16)), until=1e7, progress=False)
    truth, guess = ms.merge_tree(run), ms.predict_merges(run.start, model)
    seen = guess.time < run.end
    assert len(truth) >= 1
    assert guess.parent[seen].tolist() == truth.parent.tolist()
    np.testing.assert_allclose(guess.time[seen], truth.time, rtol=1e-3)


def test_clusters_of_full_attention_are_where_their_masses_put_them():
    """A cluster of a heavy and a light token gathers at the heavy one, as twenty copies of it and one token would.

    The time is that of the three tokens by DOP853 at rtol 1e-12; by the mean without masses it came out as 21.3.
    """
    masses = np.array([20.0, 1.0, 5.0])
    heavy = ms.Attention(dim=2, beta=6.0, mask=ms.Full(), masses=masses)
    tree = ms.predict_merges(on_circle([0.0, 0.2, 1.7]), heavy)
    copies = ms.predict_merges(on_circle([0.0] * 20 + [0.2] + [1.7] * 5), heavy.replace(masses=None))
    np.testing.assert_allclose(tree.time, copies.time, rtol=1e-9)

    def velocity(t, angles):
        apart = angles[None] - angles[:, None]
        weights = masses * np.exp(6.0 * (np.cos(apart) - 1.0))
        return (weights * np.sin(apart)).sum(1) / weights.sum(1)

    def met(t, angles):
        return angles[2] - angles[1] - tree.radius

    met.terminal = True
    exact = solve_ivp(velocity, (0.0, 1e3), [0.0, 0.2, 1.7], method="DOP853", rtol=1e-12, atol=1e-14, events=met)
    (found,) = exact.t_events[0]
    assert abs(math.log10(tree.time[0] / found)) < min(0.001, 3.0 * tree.uncertainty[0])


def test_masses_count_as_tokens():
    angles = np.array([0.0, 0.0, 0.0, 1.4, 1.4, -2.0])
    many = ms.predict_merges(on_circle(angles), ms.Attention(dim=2, beta=16.0))
    few = ms.predict_merges(
        on_circle(angles[[0, 3, 5]]), ms.Attention(dim=2, beta=16.0, masses=np.array([3.0, 2.0, 1.0]))
    )
    # Under the causal mask the leader counts once for itself: what weighs is what the others see of a cluster.
    assert many.parent.tolist() == [0, 0]
    assert few.parent.tolist() == [0, 0]
    np.testing.assert_allclose(few.time[1], many.time[1], rtol=1e-4)


def test_a_heavy_follower_stays_longer_than_its_leader():
    state = on_circle([0.3, 2.0, 2.0])
    model = ms.Attention(dim=2, beta=6.0, masses=[1.0, 0.1, 10.0])
    truth, guess = ms.merge_tree(ms.simulate(model, state, until=1500.0)), ms.predict_merges(state, model)
    assert guess.child_size.tolist() == truth.child_size.tolist() == [1, 1]
    np.testing.assert_allclose(guess.time, truth.time, rtol=1e-4)
    assert guess.doubtful.all()


@pytest.mark.parametrize("seed", range(3))
def test_predicts_under_random_masses(seed):
    generator = np.random.default_rng(seed)
    model = ms.Attention(dim=2, beta=5.0, masses=np.exp(generator.normal(0.0, 1.5, 14)))
    run = ms.simulate(model, sphere.uniform(14, dim=2, seed=generator), until=4000.0, max_steps=10**6)
    truth, guess = ms.merge_tree(run), ms.predict_merges(run.at(20.0), model, 20.0)
    later = {int(c): (int(p), t) for c, p, t in zip(truth.child, truth.parent, truth.time) if t > 20.0}
    found = {int(c): (int(p), t) for c, p, t in zip(guess.child, guess.parent, guess.time) if t < run.end}
    assert later
    assert {child: parent for child, (parent, _) in found.items()} == {c: p for c, (p, _) in later.items()}
    # A fall under way at t0 takes a time of order one.
    np.testing.assert_allclose([found[c][1] for c in later], [t for _, t in later.values()], rtol=0.02, atol=1.0)


def test_groups_are_no_heavier_than_their_first_token():
    generator = np.random.default_rng(0)
    labels, masses = by_first_token(generator.integers(0, 4, 100)), generator.exponential(size=100)
    groups = parted_by_mass(labels, masses)
    for group in range(groups.max() + 1):
        members = np.flatnonzero(groups == group)
        assert masses[members].max() == masses[members[0]]
        assert len(set(labels[members].tolist())) == 1
    assert groups.max() < 50  # a new one for every record only


def test_more_followers_than_can_be_followed_make_all_doubtful():
    state = on_circle(np.concatenate([[0.3], np.full(401, 2.0)]))
    tree = ms.predict_merges(state, ms.Attention(dim=2, beta=6.0, masses=np.linspace(1.0, 2.0, 402)))
    assert tree.doubtful.tolist() == [True]


# ------------------------------------------------------------------------------------------------ an independent way


def piecewise(state, labels, model, radius):
    """The cascade with standing clusters: leaders in order, each one token among `Frozen(places, masses)`, simulated piece by piece.

    The creep of a cluster before its own fall is left out, so times that follow shortly after one another differ a little.
    """
    first = cluster_leaders(labels)
    history, merges = {0: [(0.0, 0)]}, {}
    for c in range(1, len(first)):
        ahead = list(history)
        count = {a: int((labels[: first[c]] == a).sum()) for a in ahead}
        events = sorted({t for a in ahead for t, _ in history[a] if t > 0})
        y, now, home = state[first[c]][None], 0.0, -1
        for until in [*events, 1e250]:
            at = {a: [p for t, p in history[a] if t <= now][-1] for a in ahead}
            roots = sorted(set(at.values()))
            mass = np.array([sum(count[a] for a in ahead if at[a] == r) for r in roots], float)
            places = state[first[roots]]
            solved = rodas.solve(model.replace(frozen=ms.Frozen(places, mass)), y, Save(until - now, settled=True))
            gap = sphere.distance(solved.dense.evaluate(len(solved.dense.start) - 1, 1.0), places)
            if gap.min() < radius:
                home = roots[int(gap.argmin())]
                for step in range(len(solved.dense.start) - 1, -1, -1):
                    if sphere.distance(solved.dense.evaluate(step, 0.0), places[int(gap.argmin())])[0] > radius:
                        break
                low, high = 0.0, 1.0
                for _ in range(60):
                    u = 0.5 * (low + high)
                    near = sphere.distance(solved.dense.evaluate(step, u), places[int(gap.argmin())])[0] < radius
                    low, high = (low, u) if near else (u, high)
                now += float(solved.dense.start[step] + high * solved.dense.width[step])
                break
            y, now = solved.states[-1], until
        history[c] = [(0.0, c), (now, home), *[(t, p) for t, p in history[home] if t > now]]
        merges[int(first[c])] = (int(first[home]), now)
    return merges


@pytest.mark.parametrize(("dim", "beta"), [(2, 40.0), (3, 20.0)])
def test_equals_one_token_among_frozen_places(dim, beta):
    generator = np.random.default_rng(5)
    model = ms.Attention(dim=dim, beta=beta)
    drawn = (sphere.uniform(4, dim=dim, seed=generator) for _ in range(1000))
    apart = (x for x in drawn if np.sort(sphere.distance(x[:, None], x[None]).ravel())[4] > 5 / np.sqrt(beta))
    for places in itertools.islice(apart, 3):
        labels = np.concatenate([np.arange(4), generator.integers(0, 4, 25)])
        guess = ms.predict_merges(places[labels], model, radius=0.05)
        slow = piecewise(places[labels], guess.start_labels, model, 0.05)
        found = {int(c): (int(p), t) for c, p, t in zip(guess.child, guess.parent, guess.time)}
        if any(p in slow and abs(np.log10(slow[p][1] / t)) < 0.1 for p, t in slow.values()):
            # A cluster that is caught while it falls itself: standing places say too little, the simulation knows.
            run = ms.simulate(model, places[labels], until="settled", progress=False)
            truth = ms.merge_tree(run, radius=0.05)
            slow = {int(c): (int(p), t) for c, p, t in zip(truth.child, truth.parent, truth.time)}
        assert {c: p for c, (p, _) in found.items()} == {c: p for c, (p, _) in slow.items()}
        assert max(abs(np.log10(found[c][1] / t)) for c, (_, t) in slow.items()) < 2e-3


def test_a_pair_falls_at_the_exact_time():
    """Two leaders: t = integral of (1 + e^{beta(1 - cos x)}/m)/sin x dx, here m = 1 (`theory.pair_collapse_time`)."""
    tree = ms.predict_merges(on_circle([0.0, 2.5]), ms.Attention(dim=2, beta=30.0), radius=0.1)
    exact = ms.theory.pair_collapse_time(0.1, 30.0, start=2.5)
    np.testing.assert_allclose(tree.time, [exact], rtol=1e-4)
    assert (tree.child.tolist(), tree.parent.tolist()) == ([1], [0])


def test_flow_of_leaders_equals_the_flow_of_their_tokens():
    """With all masses one the leaders are plain tokens: the states agree with `rodas` where times can be told apart."""
    x = sphere.uniform(6, dim=3, seed=1)
    around = plain_surroundings(np.tril(np.ones((6, 6))), np.eye(3), 9.0, 2, 1e-9)
    path = leaders.solve(x, around, begin=0.0, until=300.0, tolerance=1e-9, max_steps=10_000)
    solved = rodas.solve(ms.Attention(dim=3, beta=9.0), x, Save(300.0, path.begin[1:]), Accuracy(1e-9))
    places = path.pieces[1:, 0]
    assert len(path.begin) > 30
    np.testing.assert_allclose(places, solved.states, atol=1e-6)


# ------------------------------------------------------------------------------------------------ what it says of itself


def test_a_leader_in_the_middle_is_called_doubtful():
    """Token 3 stands between two clusters of equal mass: a displacement below the blur decides where it goes, and the tree says so."""
    model = ms.Attention(dim=2, beta=30.0)
    for gap, doubtful in ((1e-7, True), (0.05, False)):
        tree = ms.predict_merges(on_circle([0.0, 2.0, 1.0 + gap]), model, radius=0.05)
        row = int(np.flatnonzero(tree.child == 2)[0])
        assert tree.doubtful[row] == doubtful
        assert tree.parent[row] == (0 if gap < 0 else 1)
    sharp = ms.predict_merges(on_circle([0.0, 2.0, 1.0 + 1e-7]), model, radius=0.05, blur=1e-9)
    assert sharp.uncertainty.max() < 0.01
    assert not sharp.doubtful.any()


def test_uncertainty_grows_with_the_blur_and_is_reproducible():
    model, state = ms.Attention(dim=2, beta=30.0), on_circle([0.0, 2.2, 1.0, 3.7])
    small, large = (ms.predict_merges(state, model, blur=blur) for blur in (1e-5, 1e-3))
    again = ms.predict_merges(state, model, blur=1e-3)
    assert COPIES > 1
    np.testing.assert_allclose(large.uncertainty / small.uncertainty, 100.0, rtol=0.2)
    np.testing.assert_array_equal(again.uncertainty, large.uncertainty)
    np.testing.assert_array_equal(again.time, small.time)
    assert "uncertainty" in large.to_columns()


def test_one_cluster_has_no_future():
    tree = ms.predict_merges(np.repeat(on_circle([0.3]), 5, axis=0), ms.Attention(dim=2, beta=4.0), t0=3.0)
    assert (len(tree), tree.complete) == (0, True)


def test_rotations_and_the_order_of_followers_change_nothing():
    model, generator = ms.Attention(dim=3, beta=12.0), np.random.default_rng(2)
    places = sphere.uniform(4, dim=3, seed=8)
    state = places[np.concatenate([np.arange(4), np.repeat(np.arange(4), 3)])]
    turn = np.linalg.qr(generator.normal(size=(3, 3)))[0]
    one, other = ms.predict_merges(state, model), ms.predict_merges(state @ turn.T, model)
    np.testing.assert_allclose(np.log10(other.time), np.log10(one.time), atol=1e-5)
    assert other.parent.tolist() == one.parent.tolist()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"value": np.diag([1.0, 0.5])}, "multiple of the identity"),
        ({"value": -np.eye(2)}, "attract"),
        ({"beta": -3.0}, "beta < 0|repulsion|negative"),
        ({"noise": 0.1}, "noise"),
        ({"mask": ms.Window(3)}, "Window"),
        ({"mask": ms.Causal(include_self=False)}, "see itself"),
        ({"norm": ms.PreLN()}, "PreLN"),
        ({"weights": "hardmax"}, "hardmax"),
        ({"bias": ms.ALiBi(0.1)}, "bias"),
        ({"frozen": ms.Frozen(np.eye(2))}, "frozen"),
        ({"beta": None, "heads": (ms.Head(beta=1.0), ms.Head(beta=2.0))}, "one head"),
    ],
)
def test_refuses_what_does_not_stand_still(changes, words):
    model = dataclasses.replace(ms.Attention(dim=2, beta=9.0), **changes)
    start = on_circle([0.0, 1.0])
    with pytest.raises(UnsupportedError, match=words) as caught:
        ms.predict_merges(start, model)
    # The call that it names instead works.
    call = str(caught.value).split("simulate it: ")[1].replace("1000.0", "20.0")
    found = eval(call, {"metastable": ms, "model": model, "start": start})
    assert found.tokens == 2


def test_refuses_nonsense():
    model = ms.Attention(dim=2, beta=9.0)
    with pytest.raises(InvalidInputError, match="nothing is metastable yet"):
        ms.predict_merges(sphere.uniform(500, dim=2, seed=0), model, radius=1e-7)
    with pytest.raises(InvalidInputError, match="t0"):
        ms.predict_merges(on_circle([0.0]), model, t0=-1.0)
    with pytest.raises(InvalidInputError, match="radius must be at least 1e-08"):
        ms.predict_merges(on_circle([0.0, 1.0]), model, radius=1e-10)
    with pytest.raises(NumericalRangeError, match="leave double precision"):
        ms.predict_merges(on_circle([0.0, 1.0]), ms.Attention(dim=2, beta=400.0))
    with pytest.raises(InvalidInputError, match="dim"):
        ms.predict_merges(np.eye(3), model)


# ------------------------------------------------------------------------------------------------------- exact balances

ANTIPODES = np.array([[1.0, 0.0], [-1.0, 0.0]])


@pytest.mark.parametrize(
    ("state", "fields", "left"),
    [
        (ANTIPODES, {}, 2),
        (np.repeat(ANTIPODES, 2, axis=0), {}, 2),
        (np.repeat(ANTIPODES, 2, axis=0), {"query": np.diag([1.0, 1.2]), "key": np.eye(2)}, 2),
        (np.repeat(ANTIPODES, 2, axis=0), {"masses": np.arange(1.0, 5.0)}, 2),
        (np.concatenate([ANTIPODES, on_circle([0.3])]), {}, 2),
        (on_circle(np.pi / 2 * np.arange(4.0)), {"mask": ms.Full()}, 4),
    ],
)
def test_clusters_in_an_exact_balance_are_left_and_said_to_be(state, fields, left):
    """They were one cluster at the end of a tree without merges, or an IndexError."""
    state = np.round(state, 15) / np.linalg.norm(np.round(state, 15), axis=1, keepdims=True)
    tree = ms.predict_merges(state, ms.Attention(dim=2, beta=4.0, **fields), radius=0.1)
    assert tree.final_labels.max() + 1 == left == tree.count(1e300)
    assert not tree.complete
    assert tree.balanced
    assert "balance" in repr(tree)
    assert "balance" in tree._repr_html_()


def test_other_cascades_are_not_in_balance():
    tree = ms.predict_merges(on_circle([0.0, 2.5, 1.0]), ms.Attention(dim=2, beta=4.0), radius=0.1)
    assert tree.complete
    assert not tree.balanced
    assert not ms.predict_merges(ANTIPODES[:1], ms.Attention(dim=2, beta=4.0), radius=0.1).balanced


@pytest.mark.parametrize("mask", [ms.Causal(), ms.Full()], ids=repr)
@pytest.mark.parametrize("beta", [340.0, 347.0, 349.9])
@pytest.mark.parametrize("angle", [2.0, 3.0, 3.1, 3.14])
def test_the_latest_merge_of_a_pair_is_there(angle, beta, mask):
    """As late as double precision tells, 1e304: what came after 1e300 was missing without a word. Both fall under full attention."""
    tree = ms.predict_merges(sphere.from_angle([0.0, angle]), ms.Attention(dim=2, beta=beta, mask=mask))
    wait = ms.theory.log_pair_collapse_time(tree.radius, beta, start=angle) / np.log(10.0)
    assert len(tree) == 1
    assert tree.doubtful is not None
    assert not tree.doubtful.any()
    np.testing.assert_allclose(np.log10(tree.time), wait - np.log10(2.0 if mask == ms.Full() else 1.0), atol=1e-3)


@pytest.mark.parametrize("beta", [340.0, 347.0, 349.0])
def test_merges_at_the_end_of_time_are_there(beta):
    """Behind 1e298 a tree had one cluster less at its end, and no merge."""
    state = ms.simulate(ms.Attention(dim=2, beta=9.0), sphere.uniform(20, dim=2, seed=0), until=50.0).final
    tree = ms.predict_merges(state, ms.Attention(dim=2, beta=beta), 50.0)
    assert len(tree) == tree.start_labels.max() - tree.final_labels.max() == 1
    gap = float(sphere.distance(*state[cluster_leaders(tree.start_labels)]))
    # From its start to the fall a leader at this distance needs about exp(beta (1 - cos)) / (mass beta sin^2).
    seen = (tree.start_labels[: cluster_leaders(tree.start_labels)[1]] == 0).sum()
    wait = beta * (1.0 - np.cos(gap)) / np.log(10.0) - np.log10(seen * beta * np.sin(gap) ** 2)
    np.testing.assert_allclose(np.log10(tree.time[0]), wait, atol=0.05)


@pytest.mark.parametrize("beta", [9.0, 150.0])
@pytest.mark.parametrize("mask", [ms.Causal(), ms.Full()], ids=repr)
@pytest.mark.parametrize("corners", [2, 4])
def test_a_balance_that_rounding_ends_is_doubtful(corners, mask, beta):
    """Antipodes and squares at any angle: nothing moves, or rounding moves it, and no merge is sure."""
    for seed in range(8):
        angles = np.random.default_rng(seed).uniform(0.0, 2.0 * np.pi) + 2.0 * np.pi * np.arange(corners) / corners
        model = ms.Attention(dim=2, beta=beta, mask=mask)
        tree = ms.predict_merges(sphere.from_angle(angles), model, 50.0)
        assert tree.doubtful is not None
        if (
            corners == 2 or mask == ms.Full()
        ):  # a causal square is no balance: its second corner sees the first one only
            assert tree.balanced if len(tree) == 0 else tree.doubtful.all()


def test_followers_that_are_away_for_six_per_cent_of_the_time_make_their_merges_doubtful():
    """Heavy tokens: 5 and 8 merge early, part at t = 810 and are back at 866; the tree reads them as together, and must say so."""
    start = sphere.retract(
        [
            [-0.262960, -0.161945, -0.951118],
            [-0.947804, 0.188915, -0.256862],
            [0.737651, -0.493839, 0.460428],
            [-0.516952, -0.217687, 0.827873],
            [-0.735604, 0.384770, -0.557529],
            [0.864930, 0.336070, 0.372765],
            [0.838973, 0.258406, -0.478906],
            [0.880070, -0.354848, -0.315530],
            [-0.824387, -0.565350, -0.027666],
            [0.908912, -0.370303, 0.191715],
        ]
    )
    masses = [1.0, 0.2, 0.5, 0.5, 1.0, 10.0, 1.0, 0.5, 10.0, 1.0]
    model = ms.Attention(dim=3, beta=5.891762, masses=masses)
    run = ms.simulate(model, start, until=1000.0, rtol=1e-8, atol=1e-8, progress=False)
    assert sphere.distance(run.at(844.0)[5], run.at(844.0)[0]) > 1.0
    for t0 in (20.0, 30.0, 50.0):
        tree = run.predict_merges(t0)
        assert tree.doubtful is not None
        assert tree.doubtful[tree.time > 60.0].all()


@pytest.mark.parametrize("blur", [2e-3, 4e-3, 1e-2])
def test_times_that_are_uncertain_put_no_parent_in_doubt(blur):
    """Two tokens can merge in one way only, whenever that is."""
    tree = ms.predict_merges(sphere.from_angle(np.array([0.0, 2.0])), ms.Attention(dim=2, beta=64.0), blur=blur)
    assert tree.uncertainty is not None
    assert tree.doubtful is not None
    assert tree.uncertainty[0] > 0.05
    assert not tree.doubtful.any()


def test_uncertainties_know_the_pace_and_the_digits_of_times():
    start = sphere.from_angle(np.array([0.0, 0.5, 1.2]))
    plain = ms.predict_merges(start, ms.Attention(dim=2, beta=20.0))
    fast = ms.predict_merges(start, ms.Attention(dim=2, beta=20.0, value=1e8 * np.eye(2)))
    np.testing.assert_allclose(fast.uncertainty, plain.uncertainty, rtol=1e-6)
    late = ms.predict_merges(start, ms.Attention(dim=2, beta=20.0), t0=1e18)
    assert late.uncertainty is not None
    wait = late.time - 1e18
    assert (np.abs(np.log10(np.maximum(wait, 1.0) / plain.time)) < 5.0 * late.uncertainty + 1e-4).all()


@pytest.mark.parametrize("beta", [85.0, 90.23, 100.0])
def test_rates_of_blocks_of_very_different_size(beta):
    """LAPACK's iteration did not converge before one of the last merges, and its error came through."""
    start = sphere.retract(
        [
            [0.95768806, 0.28690946, -0.02272744],
            [0.49204563, -0.86892772, 0.05343895],
            [-0.76747445, 0.38070733, 0.51579541],
            [0.34600971, -0.38098832, -0.85739441],
            [0.49247995, 0.65563829, 0.57236521],
            [0.27850649, -0.38029592, -0.88193489],
            [0.34278851, 0.93664268, 0.0720869],
            [0.27494964, -0.42004067, -0.86485174],
        ]
    )
    model = ms.Attention(dim=3, beta=beta, mask=ms.Full())
    tree = ms.predict_merges(start, model)
    truth = ms.merge_tree(ms.simulate(model, start, until=1e70, method="rodas", progress=False))
    np.testing.assert_array_equal(tree.parent, truth.parent)
    assert np.abs(np.log10(tree.time / truth.time)).max() < 0.005


@pytest.mark.parametrize("mask", [ms.Causal(), ms.Full()])
def test_a_way_whose_steps_run_out_says_how_far_it_came(mask, monkeypatch):
    """The tree ended there without a word, as if nothing merged any more."""
    monkeypatch.setattr("metastable.analysis.standing.MAX_STEPS", 40)
    start, model = sphere.uniform(8, dim=2, seed=3), ms.Attention(dim=2, beta=30.0, mask=mask)
    with pytest.warns(StoppedEarlyWarning, match="what merges later is not known"):
        tree = ms.predict_merges(start, model, radius=0.05)
    assert tree.until is not None
    assert (tree.time <= tree.until).all()
    assert "no further" in repr(tree)
    assert not tree.complete
    assert not tree.balanced  # clusters are left because steps ran out


def test_late_states_give_numbers_and_no_warnings():
    """Squares of times left double precision."""
    tree = ms.predict_merges(sphere.from_angle(np.array([0.0, 1.0, 2.5])), ms.Attention(dim=2, beta=4.0), t0=1e300)
    assert tree.uncertainty is not None
    assert np.isfinite(tree.uncertainty).all()
    assert (tree.uncertainty > 200.0).all()  # nothing is known of a wait of 250 then
