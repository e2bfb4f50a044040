"""Full attention over any horizon: points with masses against LSODA, exact times, and themselves at other tolerances."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy.integrate import LSODA, quad, solve_ivp
from scipy.stats import special_ortho_group

import metastable as ms
from metastable.errors import NumericalRangeError
from metastable.integrate import rodas
from metastable.integrate.rodas import clusters, forces, points
from metastable.integrate.rodas.charts import Charts, bases
from metastable.integrate.rodas.tableau import GAMMA, STAGES, WEIGHTS, A, C
from metastable.kernels import reference
from metastable.kernels.cpu.compiled import compiled

FULL = ms.Full()


def on_circle(angle):
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def settle(model, x, rtol=1e-6, **options):
    return ms.simulate(model, x, until="settled", rtol=rtol, atol=0.0, progress=False, **options)


def lsoda_merges(angles, beta, masses, radius, until, rtol=1e-9):
    """Times at which the number of clusters (gaps of more than `radius`) falls, by LSODA with the analytic Jacobian, and where it gave
    up."""

    def weights(angle):
        apart = angle[None, :] - angle[:, None]
        w = masses * np.exp(beta * (np.cos(apart) - 1.0))
        return apart, w / w.sum(axis=1, keepdims=True)

    def velocity(t, angle):
        apart, p = weights(angle)
        return (p * np.sin(apart)).sum(axis=1)

    def jacobian(t, angle):
        apart, p = weights(angle)
        speed = (p * np.sin(apart)).sum(axis=1, keepdims=True)
        result = p * (np.cos(apart) - beta * np.sin(apart) ** 2 + beta * speed * np.sin(apart))
        np.fill_diagonal(result, 0.0)
        np.fill_diagonal(result, -result.sum(axis=1))
        return result

    def count(angle):
        sorted_angles = np.sort(np.mod(angle, 2 * np.pi))
        return max(1, int((np.diff(sorted_angles, append=sorted_angles[0] + 2 * np.pi) > radius).sum()))

    solver, merges = LSODA(velocity, 0.0, angles, until, rtol=rtol, atol=rtol, jac=jacobian), []
    left = count(solver.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        while solver.status == "running":
            solver.step()
            now = count(solver.y)
            merges += [solver.t] * max(0, left - now)
            left = now
    return np.array(merges), solver.t


@pytest.mark.parametrize("seed", [0, 1])
def test_collapse_agrees_with_lsoda_and_between_tolerances(seed):
    """n = 40, beta = 24, to one cluster near t = 1e19: merges as LSODA has them as far as it goes, and the same at two tolerances."""
    model, x = ms.Attention(dim=2, beta=24.0, mask=FULL), ms.sphere.uniform(40, dim=2, seed=seed)
    coarse, fine = settle(model, x, 1e-6), settle(model, x, 1e-8)
    trees = [ms.merge_tree(run) for run in (coarse, fine)]
    assert all(tree.complete for tree in trees)
    late = trees[1].time > 100.0
    np.testing.assert_allclose(trees[0].time[late], trees[1].time[late], rtol=2e-4)
    assert coarse.notes["settled"] == pytest.approx(fine.notes["settled"], rel=2e-4)
    radius = ms.analysis.cluster_radius(model)
    merges, reached = lsoda_merges(np.arctan2(x[:, 1], x[:, 0]), 24.0, np.ones(40), radius, 1e30)
    seen = trees[1].time[late & (trees[1].time < 1e-2 * reached)]
    assert seen.size >= 2
    np.testing.assert_allclose(merges[-(seen.size + (merges > 1.001 * seen[-1]).sum()) :][: seen.size], seen, rtol=2e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_last_merge_is_that_of_two_masses(seed):
    """When two clusters are left their gap obeys one equation, whose time is an integral; far beyond 1e20 for beta = 40."""
    beta, x = 40.0, ms.sphere.uniform(40, dim=2, seed=seed)
    model = ms.Attention(dim=2, beta=beta, mask=FULL)
    run = settle(model, x, rtol=1e-7)
    radius, tree = ms.analysis.cluster_radius(model), ms.merge_tree(run)
    y = run.at(30 * tree.time[-2])
    labels = ms.cluster_labels(y, radius=radius)
    assert labels.max() == 1
    middles = [ms.sphere.normalize(y[labels == label].mean(axis=0, keepdims=True))[0] for label in (0, 1)]
    a, b = float((labels == 0).sum()), float((labels == 1).sum())

    def slowness(gap):
        pull = math.exp(beta * (math.cos(gap) - 1))
        return 1 / ((b * pull / (a + b * pull) + a * pull / (b + a * pull)) * math.sin(gap))

    gap = math.acos(middles[0] @ middles[1])
    known = 30 * tree.time[-2] + quad(slowness, radius, gap, epsrel=1e-10, limit=2000)[0]
    assert known > 1e20
    assert tree.time[-1] == pytest.approx(known, rel=1e-5)


def test_the_goal_of_two_hundred_tokens():
    """n = 200, beta = 64: from random tokens to one cluster at 1e50 or later, with the tree, in a thousand steps."""
    model = ms.Attention(dim=2, beta=64.0, mask=FULL)
    run = settle(model, ms.sphere.uniform(200, dim=2, seed=0))
    assert run.status == "success"
    assert run.notes["settled"] > 1e50
    assert np.abs(run.final - run.final[0]).max() == 0.0
    tree = ms.merge_tree(run)
    assert tree.complete
    assert run.stats.accepted + run.stats.rejected < 2500
    # What the clusters at t = 100 predict, to the end.
    guess = ms.analysis.predict_merges(run.at(100.0), model, 100.0)
    np.testing.assert_allclose(guess.time[-4:], tree.time[-4:], rtol=1e-3)
    # Between merges the clusters of the tree are those of the state.
    for before, after in zip(tree.time[-6:-1], tree.time[-5:]):
        t = math.sqrt(before * after)
        assert tree.count(t) == ms.cluster_labels(run.at(t), tree.radius).max() + 1


@pytest.mark.parametrize(("beta", "angle"), [(4.0, 1.0), (40.0, 2.5), (150.0, 3.0), (300.0, 1.9)])
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("method", ["rodas", "auto"])
def test_two_tokens_collapse_at_the_exact_time(beta, angle, dim, method):
    """d(angle)/dt = -2 sin(angle) / (1 + e^(beta (1 - cos(angle)))): the integral, up to t = 1e129."""
    x = np.zeros((2, dim))
    x[0, 0], x[1, :2] = 1.0, (np.cos(angle), np.sin(angle))
    run = settle(ms.Attention(dim=dim, beta=beta, mask=FULL), x, 1e-7, method=method)

    def slowness(y):
        return (1.0 + math.exp(beta * (1.0 - math.cos(y)))) / (2.0 * math.sin(y))

    rough, _ = quad(slowness, 1e-2, angle, limit=400, points=[0.9 * angle, 0.99 * angle], epsrel=1e-10)
    # Below 1e-2 the weight is one but for beta y^2 / 2, whose part is added.
    exact = rough + math.log(1e-2 / 2e-12) + beta * 1e-4 / 8.0
    assert run.status == "success"
    # Distances below the tolerance are damped, not followed: when 1e-12 is reached is known to some units of time. An angle that is
    # off by e makes the time off by the part beta sin(angle) e (21 e at beta = 150): 3e-5 was seen, at every vector width.
    assert run.notes["settled"] == pytest.approx(exact, rel=1e-4, abs=15.0)
    np.testing.assert_allclose(run.final[0], run.final[1], atol=1e-12)
    np.testing.assert_allclose(run.final.sum(axis=0) / 2, (x[0] + x[1]) / np.linalg.norm(x[0] + x[1]), atol=1e-5)


@pytest.mark.parametrize("variant", ["sphere", "blind", "matrices"])
def test_variants_between_tolerances_and_rotations(variant):
    rng = np.random.default_rng(3)
    form = np.eye(3) + 0.1 * rng.normal(size=(3, 3))
    model = {
        "sphere": ms.Attention(dim=3, beta=14.0, mask=FULL),
        "blind": ms.Attention(dim=2, beta=10.0, mask=ms.Full(include_self=False)),
        "matrices": ms.Attention(dim=3, beta=10.0, mask=FULL, key=form),
    }[variant]
    x = ms.sphere.uniform(14, dim=model.dim, seed=2)
    first, second = settle(model, x, 1e-6), settle(model, x, 1e-8)
    assert first.status == second.status == "success"
    assert first.notes["settled"] == pytest.approx(second.notes["settled"], rel=1e-3)
    np.testing.assert_allclose(first.final, second.final, atol=1e-3)
    turn = special_ortho_group.rvs(model.dim, random_state=1)
    turned = model if variant != "matrices" else model.replace(key=turn @ form @ turn.T)
    there = settle(turned, x @ turn.T, 1e-6)
    assert there.notes["settled"] == pytest.approx(first.notes["settled"], rel=1e-3)
    # Nothing moves where it claims rest.
    assert np.abs(ms.velocity(model, first.final, engine="reference")).max() < 1e-15


def test_degenerate_starts():
    model = ms.Attention(dim=2, beta=20.0, mask=FULL)
    one = ms.sphere.uniform(1, dim=2, seed=0)
    for x in (one, np.tile(one, (7, 1))):
        run = settle(model, x, method="rodas")
        assert run.status == "success"
        np.testing.assert_array_equal(run.final, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (on_circle(np.array([0.0, np.pi])), on_circle(2 * np.pi / 3 * np.arange(3))):
            run = settle(model, x, method="rodas", max_steps=300)
            assert run.status == "unresolved"
            assert np.abs(run.final - x).max() < 1e-9
    run = settle(model, on_circle(np.array([0.0, 0.0, np.pi - 1e-12])), method="rodas")
    assert run.status == "success"
    assert np.abs(run.final - run.final[0]).max() == 0.0


def test_horizons_output_times_and_extension():
    """A horizon beyond 1e20; states at given times are those of the dense output; a longer run goes on where a shorter one ended."""
    model, x = ms.Attention(dim=2, beta=40.0, mask=FULL), ms.sphere.uniform(30, dim=2, seed=5)
    options = {"rtol": 1e-8, "atol": 0.0, "progress": False}
    times = [1.0, 1e5, 1e21, 1e28, 1e60]
    whole = ms.simulate(model, x, until=1e60, **options)
    some = ms.simulate(model, x, times=times, **options)
    assert whole.end == 1e60
    np.testing.assert_allclose(some.states, [whole.at(t) for t in times], atol=1e-9)
    part = ms.simulate(model, x, until=1e22, **options)
    longer = part.extend(until=1e60)
    np.testing.assert_allclose(longer.at(1e28), whole.at(1e28), atol=1e-6)
    np.testing.assert_allclose(longer.final, whole.final, atol=1e-6)
    assert np.abs(whole.final - whole.final[0]).max() == 0.0
    dense = ms.simulate(model, x, until=1e15, method="rodas", **options)
    np.testing.assert_allclose(dense.final, whole.at(1e15), atol=1e-6)
    # A run that stops early says so and keeps what it has.
    with pytest.warns(ms.errors.StoppedEarlyWarning):
        short = ms.simulate(model, x, until=1e60, max_steps=150, **options)
    assert short.status == "max_steps"
    assert short.stats.accepted + short.stats.rejected == 150
    assert "raise max_steps" in short.message


def test_many_points_are_moved_by_the_dense_system_first(monkeypatch):
    """The same run with the switch to points early and late."""
    model, x = ms.Attention(dim=2, beta=9.0, mask=FULL), ms.sphere.uniform(24, dim=2, seed=1)
    early = settle(model, x, 1e-7, method="rodas")
    monkeypatch.setattr(clusters, "SMALL", 4)
    late = settle(model, x, 1e-7, method="rodas")
    times = settle_at(model, x, [3.0, 50.0, 1e5, early.notes["settled"]])
    assert late.notes["settled"] == pytest.approx(early.notes["settled"], rel=1e-4)
    for t, state in zip(times.times, times.states):
        np.testing.assert_allclose(state, early.at(t), atol=1e-5)


def settle_at(model, x, times):
    return ms.simulate(model, x, until="settled", times=times, rtol=1e-7, atol=0.0, method="rodas", progress=False)


@pytest.mark.parametrize("dim", [2, 3])
def test_loosening_is_the_rate_at_which_parts_of_a_cluster_move_apart(dim):
    """Against differences of velocities of the reference engine, in all directions."""
    form = np.eye(dim) + 0.2 * np.random.default_rng(0).normal(size=(dim, dim))
    model = ms.Attention(dim=dim, beta=12.0, mask=FULL, key=form)
    places = np.concatenate([ms.sphere.uniform(1, dim=dim, seed=1), ms.sphere.uniform(4, dim=dim, seed=2)])
    places[1] = places[0] + 0.5 * places[1]
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    sizes = np.array([2.0, 9.0, 1.0, 3.0, 1.0])
    rate = clusters.loosening(clusters.Field.of(model), places, sizes)[0]
    basis = np.linalg.svd(places[:1])[2][1:]
    step, found = 1e-5, []
    for turn in np.linspace(0.0, np.pi, 181)[:-1] if dim == 3 else [0.0]:
        direction = np.cos(turn) * basis[0] + (np.sin(turn) * basis[1] if dim == 3 else 0.0)
        apart = [places[0] + step * direction, places[0] - step * direction]
        tokens = np.concatenate([apart, np.repeat(places[1:], sizes[1:].astype(int), axis=0)])
        tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
        out = np.zeros_like(tokens)
        reference.right_hand_side(model, len(tokens))(0.0, tokens, out)
        found.append((out[0] - out[1]) @ direction / (2 * step))
    assert rate == pytest.approx(max(found), abs=2e-4)


def test_a_cluster_that_is_pulled_apart_is_released(monkeypatch):
    """Two light tokens that were joined too early, beside a heavy cluster: released on their way, and they arrive when LSODA says."""
    beta, heavy = 64.0, 3000
    angles = np.array([0.0, 0.585, 0.585 + 8e-4])
    x = np.concatenate([np.tile(on_circle(angles[:1]), (heavy, 1)), on_circle(angles[1:])])
    released, release = [], clusters.release

    def counting(places, known, limit):
        result = release(places, known, limit)
        if len(result[1]) > len(known):
            released.append(len(result[1]) - len(known))
        return result

    monkeypatch.setattr(clusters, "release", counting)
    monkeypatch.setattr(clusters, "REACH", 0.9)
    model = ms.Attention(dim=2, beta=beta, mask=FULL)
    run = settle(model, x, 1e-3, method="rodas")
    assert released == [1]
    assert run.status == "success"
    early = ms.merge_tree(run, radius=0.05).time[-1]
    # With the reach as it is nobody is joined that early, and nobody is released. (LSODA is looked at where its steps end.)
    monkeypatch.undo()
    plain = ms.merge_tree(settle(model, x, 1e-6, method="rodas"), radius=0.05).time[-1]
    merges, _ = lsoda_merges(angles, beta, np.array([heavy, 1.0, 1.0]), 0.05, 1e4)
    assert plain == pytest.approx(merges[-1], rel=3e-2)
    assert early == pytest.approx(plain, rel=5e-3)


@compiled
def _linearise(around, work):
    forces.linearise(around, work)


def frames_of(work):
    """Tangent bases E of the points of a `points.Work`, (m, d, n)."""
    rows = slice(len(work.owner))
    return bases(Charts(work.origin.T[rows], work.mirror.T[rows], work.scale[rows]))


def jacobian_of(work):
    """Derivatives of all velocities by all places, (m, n, m, n)."""
    count = len(work.owner)
    found = np.einsum("jbak->kajb", work.jacobian[..., :count]).copy()
    for k in range(count):
        found[k, :, k] += work.own[:, :, k]
    return found


def random_heads(dim, count, rng):
    """Heads whose values add up to something with a real leading eigenvalue above zero."""
    matrices = [np.eye(dim) + 0.3 * rng.normal(size=(3, dim, dim)) for _ in range(count)]
    symmetric = [value + value.T for _, _, value in matrices]
    return tuple(ms.Head(q, k, v, 0.5 + i) for i, ((q, k, _), v) in enumerate(zip(matrices, symmetric)))


@pytest.mark.parametrize(("dim", "count"), [(2, 1), (3, 2), (4, 1)])
def test_forces_on_points_and_their_jacobian(dim, count):
    """Velocities are those of the reference engine for tokens that sit in points, the Jacobian is that of differences, and
    `loosening` is the largest rate of a token beside a point."""
    rng = np.random.default_rng(dim)
    model = ms.Attention(dim=dim, heads=random_heads(dim, count, rng), mask=FULL)
    places, sizes = ms.sphere.uniform(4, dim, 1), np.array([3.0, 1.0, 2.0, 5.0])
    field = clusters.Field.of(model)
    work = points.make_work(field.frame.into(places), 4 * (dim - 1), count)
    around = field.surroundings(sizes, len(sizes), 1e-9)
    _linearise(around, work)
    frames = frames_of(work)
    velocity = field.frame.back(np.einsum("kab,bk->ka", frames, work.velocity[:, :4]))
    tokens = np.repeat(places, sizes.astype(int), axis=0)
    first = np.append(0, np.cumsum(sizes)[:-1]).astype(int)
    np.testing.assert_allclose(velocity, ms.velocity(model, tokens, engine="reference")[first], atol=1e-13)
    step, rates = 1e-6, clusters.loosening(field, field.frame.into(places), sizes)
    n = dim - 1
    for j in range(4):
        for b in range(n):
            moved = []
            for sign in (1.0, -1.0):
                beside = np.array(field.frame.into(places))
                beside[j] += sign * step * frames[j, :, b]
                beside[j] /= np.linalg.norm(beside[j])
                other = points.make_work(beside, 4 * n, count)
                _linearise(around, other)
                ambient = np.einsum("kab,bk->ka", frames_of(other), other.velocity[:, :4])
                # In the chart of the point itself, where the velocity along x turns into one of the chart.
                moved.append(np.einsum("kab,ka->kb", frames, ambient))
            numeric = (moved[0] - moved[1]) / (2 * step)
            np.testing.assert_allclose(numeric, jacobian_of(work)[:, :, j, b], atol=1e-7)
    # A token that nobody sees, at the first point.
    light = points.make_work(field.frame.into(np.concatenate([places, places[:1]])), 5 * n, count)
    masses = forces.lines_of(np.tile(np.append(sizes, 0.0), (5, 1)))
    _linearise(around._replace(masses=masses, together=5 * n), light)
    block = light.own[:, :, 4]
    assert rates[0] == pytest.approx(np.linalg.eigvalsh(0.5 * (block + block.T))[-1], abs=1e-12)


@compiled
def _attempt(around, work, h):
    forces.linearise(around, work)
    points._fill_blocks(work)
    return points._take_step(around, work, h, 0.0)


def plain_stages(around, work, h):
    """The stages (8, m n) of a step of Rodas5P by one dense system: velocities of `forces` in fixed charts, J by `jacobian_of`."""
    frames, origin, count = frames_of(work), points.places_of(work), len(work.owner)
    alone = work.alone[:count, None] != 0.0

    def velocity(y):
        r = np.sqrt(1.0 + (y**2).sum(axis=1, keepdims=True))
        x = (origin + np.einsum("kab,kb->ka", frames, y)) / r
        force = x @ around.rest.T
        for form, beta, value in zip(around.forms, around.betas, around.values):
            logits = beta * (x @ form @ x.T)
            weights = around.masses[:, :count].T * np.exp(logits - logits.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            force += (weights @ x - x) @ value.T
        along = np.einsum("ka,ka->k", origin, force)[:, None]
        return np.where(alone, r * (np.einsum("kab,ka->kb", frames, force) - y * along), 0.0)

    n = origin.shape[1] - 1
    matrix = np.eye(count * n) / (h * GAMMA) - jacobian_of(work).reshape(count * n, -1)
    stages = np.zeros((STAGES, count, n))
    for i in range(STAGES):
        y = np.einsum("j,jkb->kb", A[i, :i], stages[:i])
        right = velocity(y) + np.einsum("j,jkb->kb", C[i, :i], stages[:i]) / h
        stages[i] = np.linalg.solve(matrix, right.ravel()).reshape(count, n)
    return stages


@pytest.mark.parametrize("left", [(), (2, 7)], ids=["all alone", "two not alone"])
@pytest.mark.parametrize(("count", "leading"), [(1, 1), (9, 1), (13, 5), (17, 17), (33, 1)])
@pytest.mark.parametrize(("dim", "heads"), [(2, 1), (3, 2), (5, 1)])
def test_a_step_of_points_is_one_of_a_dense_system(dim, heads, count, leading, left):
    """Several vectors, leading blocks that end within one, and points that are one with another, which have no mass and stand."""
    rng, n = np.random.default_rng([dim, count]), dim - 1
    field = clusters.Field.of(ms.Attention(dim=dim, heads=random_heads(dim, heads, rng), mask=FULL))
    around = field.surroundings(rng.uniform(0.5, 3.0, count), leading, 1e-9)
    work = points.make_work(field.frame.into(ms.sphere.uniform(count, dim, 3)), leading * n, heads)
    for k in left if count > 7 else ():
        around.masses[k] = 0.0
        work.alone[k], work.owner[k] = 0.0, 0
    _linearise(around, work)
    stages = plain_stages(around, work, 0.3)
    error, extent = _attempt(around, work, 0.3)
    found = work.increments[:, :, :count].transpose(0, 2, 1)
    np.testing.assert_allclose(found, stages, atol=1e-12 * max(1.0, np.abs(stages).max()))
    assert error == pytest.approx(np.linalg.norm(stages[-1], axis=1).max(), rel=1e-6, abs=1e-13)
    assert extent == pytest.approx(
        np.linalg.norm(np.einsum("j,jkb->kb", WEIGHTS, stages), axis=1).max(), rel=1e-9, abs=1e-13
    )
    if left and count > 7:
        assert not found[:, list(left)].any()


@pytest.mark.parametrize("kind", ["multiple", "heads", "plane"])
def test_values_and_heads_that_amount_to_the_identity(kind):
    """Horizons beyond 1e20: V = 2 I is twice as fast, heads that share V = I are one, and V = diag(1, 1, 1/2) is I in its plane."""
    beta, angles, until = 30.0, np.array([0.0, 0.05, 1.9, 1.95, 4.0]), 1e30
    x, plain = on_circle(angles), ms.Attention(dim=2, beta=beta, mask=FULL)
    model, pace = plain, 1.0
    if kind == "multiple":
        model, pace = plain.replace(value=2.0 * np.eye(2)), 2.0
    elif kind == "heads":
        model = ms.Attention(
            dim=2,
            heads=(ms.Head(value=0.25 * np.eye(2), beta=beta), ms.Head(value=0.75 * np.eye(2), beta=beta)),
            mask=FULL,
        )
    else:
        turn = special_ortho_group.rvs(3, random_state=0)
        x = np.column_stack([x, np.full(5, 1e-3)]) @ turn.T
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        model = ms.Attention(dim=3, beta=beta, value=turn @ np.diag([1.0, 1.0, 0.5]) @ turn.T, mask=FULL)
    known = ms.simulate(plain, on_circle(angles), until=until, method="rodas", progress=False)
    found = ms.simulate(model, x, until=until, method="rodas", progress=False)
    assert known.status == found.status == "success"
    expected, merges = (ms.merge_tree(run, radius=0.01).time for run in (known, found))
    assert len(expected) == len(merges) == 4
    assert 1e20 < expected[-1] < until
    # Tokens that meet at once are a little off the plane then.
    np.testing.assert_allclose(pace * merges, expected, rtol=1e-3 if kind != "plane" else 2e-2)


@pytest.mark.parametrize(("seed", "betas"), [(0, (75.0, 70.0)), (3, (130.0, 125.0))])
def test_two_heads_in_three_dimensions_creep_as_an_explicit_method_says_in_slow_time(seed, betas):
    """V_1 = 0.4 I + A, V_2 = 0.6 I - A, one Q that is not the identity, tokens far apart: nothing is fast until two of them meet (1e30,
    1e34), so DOP853 follows them in units of their own speed, with forces made of differences."""
    rng = np.random.default_rng(1)
    tilt = rng.normal(size=(3, 3))
    tilt, query = 0.075 * (tilt + tilt.T), np.eye(3) + 0.1 * rng.normal(size=(3, 3))
    values, forms = (0.4 * np.eye(3) + tilt, 0.6 * np.eye(3) - tilt), (query.T, np.eye(3))
    x = ms.sphere.uniform(400, 3, seed)
    chosen: list[int] = []
    for k in range(len(x)):
        if len(chosen) < 4 and (not chosen or (x[chosen] @ x[k]).max() < 0.45):
            chosen.append(k)
    x = x[chosen]

    def velocity(y):
        result = np.empty_like(x)
        for k, here in enumerate(y):
            gaps, force = y - here, np.zeros(3)
            for beta, form, value in zip(betas, forms, values):
                logits = beta * (gaps @ (form.T @ here))
                weights = np.exp(logits - logits.max())
                force = force + value @ (weights @ gaps) / weights.sum()
            result[k] = force - (force @ here) * here
        return result

    def near(t, y):
        y = y.reshape(x.shape)
        return np.linalg.norm(y[:, None] - y, axis=2)[np.triu_indices(len(y), 1)].min() - 0.35

    near.terminal = True  # type: ignore[attr-defined]
    unit = 1.0 / np.linalg.norm(velocity(x))
    known = solve_ivp(
        lambda t, y: unit * velocity(y.reshape(x.shape)).ravel(),
        (0.0, 1e4),
        x.ravel(),
        method="DOP853",
        rtol=1e-10,
        atol=1e-13,
        events=near,
        dense_output=True,
    )
    times = unit * known.t[-1] * np.array([0.1, 0.5, 0.9])
    assert times[0] > 1e20
    heads = [
        ms.Head(beta=betas[0], query=query, key=np.eye(3), value=values[0]),
        ms.Head(beta=betas[1], value=values[1]),
    ]
    model = ms.Attention(dim=3, heads=heads, mask=FULL)
    run = ms.simulate(model, x, times=times, method="rodas", rtol=1e-9, atol=0.0, progress=False)
    assert run.status == "success"
    for t, state in zip(times, run.states):
        assert np.abs(state - ms.sphere.normalize(known.sol(t / unit).reshape(x.shape))).max() < 2e-8


def test_a_value_with_one_leading_eigenvector_brings_everybody_there():
    """Single points go on moving: V = diag(1, 1/2) pulls them to its axis, where they rest at any horizon."""
    model = ms.Attention(dim=2, beta=4.0, value=np.diag([1.0, 0.5]), mask=FULL)
    run = ms.simulate(model, on_circle(np.array([0.3, 0.5, 1.0, 1.2])), until=1e40, method="rodas", progress=False)
    assert run.status == "success"
    assert np.abs(run.final - [1.0, 0.0]).max() < 1e-12


def test_what_has_no_points_is_refused_beyond_the_horizon_of_a_dense_block():
    x = ms.sphere.uniform(4, dim=2, seed=0)
    for fields, word in (
        ({"mask": ms.Mask([[True, True, False, False]] * 4)}, "mask"),
        ({"mask": FULL, "value": np.array([[1.0, -1.0], [1.0, 1.0]])}, "complex"),
        ({"mask": FULL, "value": -np.eye(2)}, "leading eigenvalue of V is -1"),
        ({"mask": FULL, "frozen": ms.Frozen(x[:1])}, "frozen"),
    ):
        model = ms.Attention(dim=2, beta=1.0, **fields)
        with pytest.raises(NumericalRangeError, match=word):
            ms.simulate(model, x, until=1e30, method="rodas", progress=False)
        assert word in (rodas.horizon_refusal(model, 4, 1e30, False) or "")
    assert rodas.horizon_refusal(ms.Attention(dim=2, beta=1.0, mask=FULL), 4, 1e30, False) is None


@pytest.mark.parametrize(("tokens", "beta"), [(2, 8.0), (6, 40.0)])
def test_few_tokens_gather_at_every_horizon(tokens, beta):
    """A dense block that has gathered leaves nothing to divide by: from 1e16 on no step was short enough."""
    model, start = ms.Attention(dim=2, beta=beta, mask=ms.Full()), ms.sphere.uniform(tokens, dim=2, seed=0)
    ends = []
    for until in (1e13, 1e16, 1e19, 1e20, 1.1e20):
        run = ms.simulate(model, start, until=until, method="rodas", progress=False)
        assert run.status == "success"
        ends.append(run.final)
    np.testing.assert_allclose(ends[1:], np.broadcast_to(ends[-1], np.shape(ends[1:])), atol=1e-5)


def test_no_output_time_is_lost_to_rounding():
    """Tokens at rest are there at the very last time, too: begin + (until - begin) may be less than until."""
    first, second = [-0.38266502350020215, 0.9238871574979217], [-0.6808433760033064, -0.7324290391242144]
    start = np.array([first, second, first, second, first, first, first, second])
    times = [
        2664929351941635.0,
        3.987166347931046e16,
        4.8745129768039624e16,
        4.874550756333757e16,
        4.874550756333757e17,
    ]
    run = ms.simulate(
        ms.Attention(dim=2, beta=30.0, mask=ms.Full()), start, times=times, method="rodas", progress=False
    )
    assert run.status == "success"
    np.testing.assert_array_equal(run.times, times)
    assert np.ptp(run.final, axis=0).max() < 1e-9


@pytest.mark.parametrize("seed", [93, 309, 444])
def test_the_last_step_has_room_when_all_are_taken(seed):
    """These come to rest with the last step of a full memory: an IndexError, and the run was lost."""
    start = ms.sphere.uniform(12, dim=3, seed=seed)
    run = ms.simulate(ms.Attention(dim=3, beta=16.0, mask=ms.Full()), start, until="settled", progress=False)
    assert run.status == "success"
    assert run.dense is not None
    assert len(run.dense.start) > 256
    assert ms.sphere.pairwise_distance(run.final).max() < 1e-6
    kept = ms.simulate(run.model, start, times=[100.0, 2.0 * run.end], progress=False)
    np.testing.assert_allclose(kept.final, run.final, atol=1e-4)
