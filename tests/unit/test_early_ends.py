"""Runs that cannot go on say so: what a day of use once met as a success, a raw error or a wrong sentence."""

import numpy as np
import pytest

import metastable as ms
from metastable import errors

X = ms.sphere.uniform(6, dim=2, seed=0)


def test_a_layer_that_carries_a_token_to_zero_ends_the_run():
    model = ms.Attention(dim=2, beta=4.0, value=-np.eye(2))
    with pytest.warns(errors.StoppedEarlyWarning, match="token 0 to zero"):
        run = ms.simulate(model, X, until=3.0, method="layers", step=1.0)
    assert run.status == "diverged"
    assert np.linalg.norm(run.states, axis=-1) == pytest.approx(1.0)


def test_a_run_that_stopped_early_takes_no_more_tokens():
    with pytest.warns(errors.StoppedEarlyWarning):
        run = ms.simulate(ms.Attention(dim=2, beta=4.0), X, until=50.0, method="tsit5", max_steps=5)
    with pytest.raises(errors.UnsupportedError, match="stopped early"):
        run.append(ms.sphere.uniform(1, dim=2, seed=1))


@pytest.mark.parametrize("size", [1e155, 1e200])
def test_huge_velocities_take_tiny_steps(size):
    model = ms.Attention(dim=3, beta=1.0, value=size * np.diag([1.0, 0.5, 0.2]))
    x = ms.sphere.uniform(4, dim=3, seed=0)
    with pytest.warns(errors.StoppedEarlyWarning, match="after 50 steps"):
        run = ms.simulate(model, x, until=1.0, method="tsit5", max_steps=50)
    assert np.isfinite(run.states).all()


def test_noise_never_settles():
    with pytest.raises(errors.UnsupportedError, match="never settle"):
        ms.simulate(ms.Attention(dim=2, beta=4.0, noise=0.1), X, until="settled", seed=0)


def test_all_steps_are_counted():
    x = ms.sphere.uniform(40, dim=2, seed=0)
    with pytest.warns(errors.StoppedEarlyWarning, match="after 120 steps"):
        run = ms.simulate(ms.Attention(dim=2, beta=32.0), x, until=1e30, max_steps=120)
    assert run.stats.accepted + run.stats.rejected == 120


def test_why_steps_are_explicit_is_said_when_they_run_out():
    with pytest.warns(errors.StoppedEarlyWarning, match="underflow limit"):
        ms.simulate(ms.Attention(dim=2, beta=400.0), X, until=1e30, max_steps=50)


def test_implicit_runs_sum_directly():
    model = ms.Attention(dim=2, beta=4.0)
    with pytest.raises(errors.UnsupportedError, match="directly"):
        ms.simulate(model, X, until=10.0, method="rodas", interaction="series")
    run = ms.simulate(model, X, until=10.0, method="rodas")
    assert run.interaction == "direct"


def test_an_observable_that_never_works_is_said_at_once():
    class Wrong:
        dims = ()

        def measure(self, states, *, start, model, times):
            raise ValueError("no")

    observe = {"cosine": ms.observe.mean_cosine(), "wrong": Wrong()}
    with pytest.raises(errors.OwnFunctionError, match="'wrong' raised ValueError for member 0 of seed 0: no"):
        ms.ensemble(ms.Attention(dim=2, beta=4.0), tokens=5, members=3, times=[1.0], seed=0, observe=observe)


def test_who_runs_out_of_implicit_steps_while_tokens_rotate_is_told_to_go_explicitly():
    model = ms.Attention(dim=2, beta=2.0, value=np.array([[0.1, -3.0], [3.0, 0.1]]))
    start = ms.sphere.uniform(5, dim=2, seed=5)
    for options, horizon in (({"until": 1e5}, "use a shorter horizon"), ({"until": "settled"}, "give a horizon")):
        for method in ("auto", "rodas"):
            with pytest.warns(errors.StoppedEarlyWarning):
                run = ms.simulate(model, start, **options, max_steps=3000, method=method, progress=False)
            assert run.message == (
                f"stopped after 3000 steps at t = {run.end:.6g}: the leading eigenvalues of the value matrix are the complex pair 0.1 "
                "+- 3 i, so token 1 rotates for ever and the others follow it, which asks for short steps; "
                f"{horizon}; up to about t = 3.33e+05 method='tsit5' may do"
            )
    assert ms.simulate(model, start, until=1e5, max_steps=3000, method="tsit5", progress=False).status == "success"


def test_who_runs_out_of_implicit_steps_before_a_near_end_is_told_of_explicit_ones():
    """Where nobody knows why: no eigenvalue is complex."""
    x = ms.sphere.uniform(40, dim=2, seed=0)
    model = ms.Attention(dim=2, beta=32.0)
    said = "stopped after 120 steps at t = {:.6g}; raise max_steps"
    for until, more in ((1e5, ", or try method='tsit5'"), (1e30, "")):
        with pytest.warns(errors.StoppedEarlyWarning):
            run = ms.simulate(model, x, until=until, max_steps=120, progress=False)
        assert run.notes["segments"][-1]["method"] == "rodas"
        assert run.message == said.format(run.end) + more


def test_why_steps_ran_out_is_said_in_a_schedule():
    """In the steps and the time of the whole, and with the reason, which was left out."""
    model = ms.Attention(dim=2, beta=2.0, value=np.array([[0.1, -3.0], [3.0, 0.1]]))
    plan = ms.Schedule(((0.0, ms.Attention(dim=2, beta=2.0)), (5.0, model)))
    with pytest.warns(errors.StoppedEarlyWarning):
        run = ms.simulate(plan, ms.sphere.uniform(5, dim=2, seed=5), until=1e5, max_steps=3000, progress=False)
    assert run.message.startswith(
        f"stopped after 3000 steps at t = {run.end:.6g}: the leading eigenvalues of the value matrix are"
    )


def test_the_end_of_dense_steps_names_the_way_on():
    """It said that the method ends there, which goes on with a horizon."""
    model = ms.Attention(dim=3, beta=32.0, mask=ms.Full(), value=1.78 * np.eye(3))
    start = ms.sphere.uniform(8, dim=3, seed=1)
    with pytest.warns(errors.StoppedEarlyWarning, match=r"had not settled .* give a horizon \(until=1e30"):
        assert ms.simulate(model, start, until="settled").status == "max_steps"
    run = ms.simulate(model, start, until=1e30)
    assert (run.status, len(np.unique(ms.cluster_labels(run.final, radius=1e-3)))) == ("success", 1)


def test_a_time_outside_of_a_run_is_told_from_its_end():
    run = ms.simulate(ms.Attention(dim=2, beta=4.0), X, until=3.0)
    with pytest.raises(errors.TimeError, match=r"t = 3\.0000001 is outside the run, which covers 0\.0 to 3\.0"):
        run.at(3.0000001)


def test_a_lambda_is_asked_for_a_name():
    with pytest.raises(errors.InvalidInputError, match="a lambda"):
        ms.ensemble(ms.Attention(dim=2, beta=4.0), tokens=4, members=2, times=[1.0], seed=0, observe=lambda x: x[0, 0])
