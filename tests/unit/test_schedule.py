"""`Schedule`: models that follow one another in depth, in one run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import metastable as ms
from metastable.errors import (
    InvalidInputError,
    ModelError,
    ObservableError,
    StoppedEarlyWarning,
    TimeError,
    UnsupportedError,
)
from tests import variants

OPTIONS = {"method": "tsit5", "engine": "reference", "progress": False}
JOINTS = (0.0, 0.7, 1.1)


def models(norm: ms.PostLN | ms.PreLN | ms.MixLN | ms.SqrtScaling | None = None, dim: int = 3) -> list[ms.Attention]:
    """Three models that have little in common."""
    rng = np.random.default_rng(3)
    low = ms.Head(rng.normal(size=(2, dim)), rng.normal(size=(2, dim)), None, 3.0, rotary=ms.Rotary())
    norm = norm or ms.PostLN()
    return [
        ms.Attention(dim=dim, beta=4.0, norm=norm),
        ms.Attention(dim=dim, heads=(low,), mask=ms.Full(), norm=norm),
        ms.Attention(dim=dim, beta=1.0, value=-0.5 * np.eye(dim), norm=norm),
    ]


def schedule(norm=None, dim: int = 3) -> ms.Schedule:
    return ms.Schedule(list(zip(JOINTS, models(norm, dim))))


def start(dim: int = 3, tokens: int = 6) -> np.ndarray:
    return variants.tokens(np.random.default_rng(1), tokens, dim)


def test_a_schedule_is_restarting_at_every_joint():
    """Bit for bit, states and steps alike."""
    run = ms.simulate(schedule(), start(), until=2.0, **OPTIONS)
    state, accepted = start(), 0
    for begin, end, model in zip(JOINTS, (*JOINTS[1:], 2.0), models()):
        piece = ms.simulate(model, state, until=end - begin, **OPTIONS)
        state, accepted = piece.final, accepted + piece.stats.accepted
        # The dense output knows every piece, up to the joints and beyond.
        for t in np.linspace(begin, end, 7)[1:-1]:
            np.testing.assert_allclose(run.at(float(t)), piece.at(float(t - begin)), atol=1e-14)
    np.testing.assert_array_equal(run.final, state)
    assert (run.stats.accepted, run.end, run.status) == (accepted, 2.0, "success")
    assert set(JOINTS) <= set(run.times.tolist())
    assert (np.diff(run.times) > 0).all()
    for joint in JOINTS[1:]:
        np.testing.assert_allclose(run.at(joint - 1e-13), run.at(joint), atol=1e-11)


def test_chosen_times_are_kept_wherever_they_fall():
    """At a joint, between, at the start and at the end."""
    times = [0.0, 0.3, 0.7, 0.9, 1.1, 1.5, 2.0]
    chosen = ms.simulate(schedule(), start(), times=times, **OPTIONS)
    whole = ms.simulate(schedule(), start(), until=2.0, **OPTIONS)
    np.testing.assert_array_equal(chosen.times, times)
    np.testing.assert_allclose(chosen.states, [whole.at(t) for t in times], atol=1e-13)
    early = ms.simulate(schedule(), start(), times=[0.2, 0.5], **OPTIONS)
    assert len(early.models) == 1
    np.testing.assert_allclose(early.final, whole.at(0.5), atol=1e-6)


def jumping(plan: ms.Schedule, x: np.ndarray, until: float) -> np.ndarray:
    """The final state by DOP853, from joint to joint, in true depth, with the loop over pairs; packed where there is a radius."""
    n, d = x.shape
    radius = plan.models[0].norm.has_radius
    y = np.concatenate([x, np.ones((n, 1))], axis=1).ravel() if radius else x.ravel()
    norms = {b for model in plan.models for b in model.norm.breakpoints}
    stops = sorted({*plan.joints, *norms, until})
    for begin, end in itertools.pairwise(stops):
        model = plan.at(begin)

        def velocity(t, y, model=model, begin=begin, end=end):
            state = y.reshape(n, -1)
            unit = state[:, :d] / np.linalg.norm(state[:, :d], axis=1, keepdims=True)
            inside = min(max(t, begin), np.nextafter(end, 0.0))
            v, rate = variants.slow_velocity(model, unit, inside, state[:, d] if radius else None)
            return (np.concatenate([v, rate[:, None]], axis=1) if radius else v).ravel()

        y = solve_ivp(velocity, (begin, end), y, method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]
    return y.reshape(n, -1)


@pytest.mark.parametrize("norm", [ms.PostLN(), ms.PreLN(), ms.MixLN(0.9), ms.SqrtScaling()], ids=repr)
def test_schedules_equal_dop853_in_true_depth(norm):
    """Also for norms that depend on depth: a joint does not set the clock back."""
    plan, x = schedule(norm), start(tokens=4)
    run = ms.simulate(plan, x, until=1.6, rtol=1e-10, atol=1e-12, **OPTIONS)
    truth = jumping(plan, x, 1.6)
    np.testing.assert_allclose(run.final, truth[:, :3], atol=1e-8)
    if run.radius is not None:
        np.testing.assert_allclose(run.radius[-1], truth[:, 3], atol=1e-8)


@pytest.mark.parametrize(("joint", "tau"), [(0.93, 1.32), (0.2, 0.27), (0.5, 1.59)])
def test_a_norm_that_jumps_behind_a_joint_is_stepped_onto_all_the_same(joint, tau):
    """0.93 + (1.32 - 0.93) is 1.32, and so is 0.93 plus the number before that difference: no stage may be taken across the jump."""
    value = np.random.default_rng(0).normal(size=(3, 3))
    model = ms.Attention(dim=3, beta=2.0, value=value, norm=ms.MixLN(tau))
    options = {**OPTIONS, "until": 4.0, "rtol": 1e-8}
    one = ms.simulate(model, start(), **options)
    two = ms.simulate(ms.Schedule([(0.0, model), (joint, model)]), start(), **options)
    assert two.stats.rejected == 0
    assert two.stats.accepted <= one.stats.accepted + 8
    np.testing.assert_allclose(two.final, one.final, atol=1e-10)


@pytest.mark.parametrize(("joint", "tau"), [(0.93, 1.32), (0.5, 1.59)])
def test_derivatives_take_no_stage_across_a_jump(joint, tau):
    value = np.random.default_rng(0).normal(size=(3, 3))
    model = ms.Attention(dim=3, beta=2.0, value=value, norm=ms.MixLN(tau))
    options = {"until": 2.0, "wrt": "start", "engine": "reference", "rtol": 1e-8, "progress": False}
    observable = ms.derivatives.order_parameter()
    one = ms.gradient(model, start(), observable, **options)
    two = ms.gradient(ms.Schedule([(0.0, model), (joint, model)]), start(), observable, **options)
    np.testing.assert_allclose(two["start"], one["start"], atol=1e-8)


def test_the_order_of_convergence_is_kept():
    """Errors, of states and of dense output near the joints, fall with the tolerance as those of one model do."""
    exact = ms.simulate(schedule(), start(), until=2.0, rtol=1e-13, atol=1e-14, **OPTIONS)
    moments = np.array([0.35, 0.69, 0.71, 1.09, 1.12, 1.7, 2.0])
    truth, errors, steps = exact.at(moments), [], []
    for rtol in (1e-5, 1e-7, 1e-9):
        run = ms.simulate(schedule(), start(), until=2.0, rtol=rtol, atol=1e-3 * rtol, **OPTIONS)
        errors.append(np.abs(run.at(moments) - truth).max())
        steps.append(run.stats.accepted)
    assert errors[0] < 1e-3
    orders = np.diff(np.log(errors)) / -np.diff(np.log(steps))
    assert (orders > 3.5).all(), (errors, steps)


def test_implicit_pieces():
    """method="rodas" on the circle, where its dense output is in angles, beside an explicit whole."""
    pieces = ms.Schedule([(0.0, ms.Attention(dim=2, beta=4.0)), (1.0, ms.Attention(dim=2, beta=16.0))])
    x = start(dim=2)
    options = {"until": 3.0, "rtol": 1e-9, "atol": 1e-11, "progress": False}
    explicit, implicit = (ms.simulate(pieces, x, method=name, **options) for name in ("tsit5", "rodas"))
    assert implicit.method == "rodas"
    np.testing.assert_allclose(explicit.at([0.5, 1.0, 1.5, 3.0]), implicit.at([0.5, 1.0, 1.5, 3.0]), atol=1e-6)


def test_a_run_says_which_model_is_when(tmp_path):
    run = ms.simulate(schedule(), start(), until=2.0, **OPTIONS)
    run.save(tmp_path / "run.zarr")
    for kept in (run, ms.load(tmp_path / "run.zarr")):
        assert kept.schedule == schedule()
        assert kept.models == tuple(models())
        assert [kept.model_at(t) for t in (0.0, 0.69, 0.7, 2.0)] == [models()[i] for i in (0, 0, 1, 2)]
        assert kept.notes["joints"] == list(JOINTS)
    short = ms.simulate(schedule(), start(), until=0.5, **OPTIONS)
    assert short.schedule == ms.Schedule([(0.0, models()[0])])
    one = ms.simulate(models()[0], start(), until=0.5, **OPTIONS)
    assert one.schedule == ms.Schedule([(0.0, models()[0])])
    damaged = run.dataset.assign_attrs(schedule="[0.0, 0.7]")
    from metastable import dataset

    with pytest.raises(InvalidInputError, match="2 joints for 3 models"):
        dataset.check_run(damaged)


def entropy(model: ms.Attention, x: np.ndarray) -> np.ndarray:
    """Entropy of the attention of each token, by hand (plain causal heads)."""
    logits = np.where(np.tri(len(x), dtype=bool), model.beta * x @ x.T, -np.inf)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return -np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0).sum(axis=1)


def test_observables_see_the_model_of_their_time():
    """Scheduled and layered runs: the entropy of attention at each depth is that of the weights of this depth."""
    cold, hot = ms.Attention(dim=3, beta=0.1), ms.Attention(dim=3, beta=60.0)
    run = ms.simulate(ms.Schedule([(0.0, cold), (1.0, hot)]), start(), times=[0.0, 0.5, 1.0, 1.5], **OPTIONS)
    wanted = [entropy(model, x) for model, x in zip((cold, cold, hot, hot), run.states)]
    np.testing.assert_allclose(run.observe(ms.observe.attention_entropy()).values, wanted, atol=1e-12)
    layered = ms.simulate([cold, hot], start(), step=0.1, progress=False)
    wanted = [entropy(model, x) for model, x in zip((cold, hot, hot), layered.states)]
    np.testing.assert_allclose(layered.observe(ms.observe.attention_entropy()).values, wanted, atol=1e-12)
    matrices = layered.observe(ms.observe.attention()).values
    assert matrices.shape == (3, 6, 6)
    # What does not look at the model is measured as a whole.
    np.testing.assert_allclose(
        run.observe(ms.observe.mean_cosine()).values,
        [ms.observe.mean_cosine().measure(x[None], start=x, model=cold, times=[0.0])[0] for x in run.states],
    )


def test_layers_of_rounded_steps_find_their_model():
    """0.1 + 0.1 + 0.1 is not 0.3: a saved depth belongs to the layer that starts there all the same."""
    layers = [ms.Attention(dim=3, beta=float(beta)) for beta in range(1, 8)]
    run = ms.simulate(layers, start(), step=0.1, progress=False)
    wanted = [entropy(layers[min(i, 6)], x) for i, x in enumerate(run.states)]
    np.testing.assert_allclose(run.observe(ms.observe.attention_entropy()).values, wanted, atol=1e-12)


def test_a_run_is_classified_by_the_model_of_its_end():
    point, apart = ms.Attention(dim=3, beta=1.0), ms.Attention(dim=3, beta=1.0, value=-np.eye(3))
    run = ms.simulate(ms.Schedule([(0.0, apart), (0.1, point)]), start(), until=60.0, **OPTIONS)
    assert ms.classify(run).row == 1


def test_steps_are_counted_over_all_pieces():
    whole = ms.simulate(schedule(), start(), until=2.0, **OPTIONS)
    steps = whole.stats.accepted + whole.stats.rejected
    with pytest.warns(StoppedEarlyWarning, match=f"after {steps - 1} steps at t = 1."):
        run = ms.simulate(schedule(), start(), until=2.0, max_steps=steps - 1, **OPTIONS)
    assert run.status == "max_steps"
    assert 1.1 < run.end < 2.0


WRONG = {
    "nothing": (lambda: ms.Schedule([]), "begins at depth 0"),
    "a late start": (lambda: ms.Schedule([(1.0, models()[0])]), "begins at depth 0"),
    "depths that fall": (lambda: ms.Schedule([(0.0, models()[0]), (2.0, models()[0]), (1.0, models()[0])]), "increase"),
    "two dimensions": (lambda: ms.Schedule([(0.0, models()[0]), (1.0, models(dim=4)[0])]), "another dim"),
    "a radius and none": (lambda: ms.Schedule([(0.0, models()[0]), (1.0, models(ms.PreLN())[0])]), "kind of norm"),
    "no model": (lambda: ms.Schedule([(0.0, 3.0)]), "Attention"),
    "no pairs": (lambda: ms.Schedule(7), "list of"),
    "a depth of text": (lambda: ms.Schedule([("0", models()[0])]), "must be a number"),
    "no depth": (lambda: ms.Schedule([(0.0, models()[0]), (np.nan, models()[0])]), "must be finite"),
    "the piece at no depth": (lambda: schedule().index(np.nan), "must be finite"),
    "the piece before the start": (lambda: schedule().index(-1.0), "at least 0"),
    "the pieces up to nowhere": (lambda: schedule().until(np.nan), "must be finite"),
    "the pieces up to a word": (lambda: schedule().until("end"), "must be a number"),
    "several ends": (lambda: ms.simulate(schedule(), start(), until=np.array([1.0, 2.0])), "must be a number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_schedule_is_said(name):
    make, words = WRONG[name]
    with pytest.raises((ModelError, TimeError), match=words):
        make()


def test_what_takes_no_schedule_says_so():
    x = start()
    with pytest.raises(UnsupportedError, match="list of models"):
        ms.simulate(schedule(), x, until=2.0, method="layers", step=0.1, progress=False)
    noisy = ms.Schedule([(0.0, models()[0].replace(noise=0.1))])
    with pytest.raises(UnsupportedError, match="takes no Schedule"):
        ms.simulate(noisy, x, until=2.0, seed=0, progress=False)
    with pytest.raises(UnsupportedError, match="takes one model"):
        ms.simulate(schedule(), x, until="settled", progress=False)
    with pytest.raises(UnsupportedError, match="rodas"):
        ms.simulate(schedule(), x, until=2.0, method="rodas", progress=False)
    run = ms.simulate(schedule(), x, until=2.0, **OPTIONS)
    with pytest.raises(UnsupportedError, match="one model"):
        run.append(x[:1], progress=False)
    with pytest.raises(InvalidInputError, match=r"start=run\.final"):
        ms.simulate(schedule(), run, until=2.0, progress=False)
    with pytest.raises(InvalidInputError):
        ms.ensemble(schedule(), tokens=3, members=2, times=[1.0], seed=0, progress=False)
    with pytest.raises(InvalidInputError):
        ms.velocity(schedule(), x)


def test_functions_of_ones_own_get_the_model_of_their_time():
    """f(states, times, model): once for the times of each model; f(x) and runs of one model as ever."""
    cold, hot = ms.Attention(dim=3, beta=9.0), ms.Attention(dim=3, beta=0.5)
    run = ms.simulate(ms.Schedule([(0.0, cold), (1.0, hot)]), start(), times=[0.0, 0.5, 1.0, 2.0], **OPTIONS)
    seen = []

    def temperature(states, times, model):
        seen.append((list(times), len(states)))
        return np.full(len(times), model.beta)

    np.testing.assert_array_equal(run.observe(temperature).values, [9.0, 9.0, 0.5, 0.5])
    assert seen == [([0.0, 0.5], 2), ([1.0, 2.0], 2)]
    layered = ms.simulate([cold, hot], start(), method="layers", step=0.5, progress=False)
    np.testing.assert_array_equal(layered.observe(temperature).values, [9.0, 0.5, 0.5])
    with pytest.raises(ObservableError, match=r"returned \(2,\) numbers per time for one model of the run and \(1,\)"):
        run.observe(lambda states, times, model: np.zeros((len(times), 1 if model.beta == 9.0 else 2)))


@pytest.mark.parametrize("stored", [False, True])
def test_a_scheduled_run_is_not_extended_but_simulated_again(tmp_path, stored):
    """The refusal says the call that does it, and that call gives what an extension would have given."""
    plan = schedule()
    run = ms.simulate(plan, start(), until=1.5, **OPTIONS)
    if stored:
        run.save(tmp_path / "run.zarr")
        run = ms.load(tmp_path / "run.zarr")
    with pytest.raises(UnsupportedError, match=r"metastable\.simulate\(schedule, run\.start, until=\.\.\.\)"):
        run.extend(2.0)
    longer = ms.simulate(run.schedule, run.start, until=2.0, **OPTIONS)
    whole = ms.simulate(plan, start(), until=2.0, **OPTIONS)
    np.testing.assert_array_equal(longer.final, whole.final)


def _hot_then_cold(until):
    pieces = [(0.0, ms.Attention(dim=2, beta=2.0)), (2.0, ms.Attention(dim=2, beta=32.0))]
    return ms.simulate(ms.Schedule(pieces), ms.sphere.uniform(20, dim=2, seed=0), until=until)


def test_merges_are_predicted_from_the_last_joint_on():
    run = _hot_then_cold(100.0)
    with pytest.raises(UnsupportedError, match="t >= 2"):
        run.predict_merges(1.5)
    again = ms.predict_merges(run.at(50.0), run.models[1], 50.0)
    assert run.predict_merges(50.0).time.tolist() == again.time.tolist()
    with pytest.raises(UnsupportedError, match="depth 2, which the run does not reach"):
        _hot_then_cold(1.5).predict_merges()
    layers = ms.simulate([ms.Attention(dim=2, beta=beta) for beta in (2.0, 32.0)], run.start)
    with pytest.raises(UnsupportedError, match="t >= 1"):
        layers.predict_merges(0.0)
    assert layers.predict_merges().radius == ms.analysis.cluster_radius(layers.models[1])


def test_lengths_that_the_models_disagree_about_must_be_given(tmp_path):
    run = _hot_then_cold(5.0)
    for measure in (ms.merge_tree, lambda run: run.observe(ms.observe.clusters())):
        with pytest.raises(InvalidInputError, match="radius="):
            measure(run)
    assert ms.merge_tree(run, radius=0.1).radius == 0.1
    assert run.observe(ms.observe.clusters(radius=0.1)).dims == ("time",)
    same = ms.simulate(
        ms.Schedule([(0.0, run.models[1]), (1.0, run.models[1].replace(mask=ms.Full()))]), run.start, 3.0
    )
    assert ms.merge_tree(same).radius == ms.analysis.cluster_radius(run.models[1])
    run.animate(tmp_path / "film.gif", seconds=0.2, frames_per_second=5)


@pytest.mark.parametrize("joint", [0.1, 0.7, 1.0, 1.3])
def test_the_jump_of_a_norm_inside_a_piece_costs_no_steps(joint):
    """Depth is joint + time, which is rounded onto the jump or short of it: before, the step onto it was tried with the law behind it,
    refused, and halved some fifty times, and the error was a multiple of the tolerance."""
    mixed = ms.Attention(dim=3, beta=6.0, norm=ms.MixLN(1.5), value=np.diag([1.0, 0.5, 0.2]))
    start = ms.sphere.uniform(5, dim=3, seed=2)
    whole = ms.simulate(mixed, start, until=4.0)
    run = ms.simulate(ms.Schedule([(0.0, mixed), (joint, mixed)]), start, until=4.0)
    assert np.isclose(run.times, 1.5, rtol=1e-15).any()
    assert run.stats.rejected == whole.stats.rejected
    assert run.stats.accepted <= whole.stats.accepted + 6
    np.testing.assert_allclose(run.final, whole.final, atol=1e-6)
    assert whole.radius is not None
    assert run.radius is not None
    np.testing.assert_allclose(run.radius[-1], whole.radius[-1], rtol=1e-6)
