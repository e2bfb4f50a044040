"""Methods by the recipe of CONTRIBUTING: a tableau is a method everywhere, and so is a function with a fixed step."""

from __future__ import annotations

import numpy as np
import pytest

import metastable as ms
from metastable.errors import InvalidInputError, UnsupportedError
from metastable.integrate import extend, fixed, methods, planning, scheduled, tableau
from metastable.integrate.plan import Plan
from metastable.kernels import select
from metastable.run import extension, handle
from tests import variants
from tests.explicit import solve_system

DOPRI5 = tableau.Tableau(
    name="dopri5",
    a=tableau._lower(
        [
            [],
            [1 / 5],
            [3 / 40, 9 / 40],
            [44 / 45, -56 / 15, 32 / 9],
            [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
            [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
            [35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
        ]
    ),
    c=np.array([0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0]),
    error=np.array([71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40]),
    dense=np.array(
        [
            [1.0, -8048581381 / 2820520608, 8663915743 / 2820520608, -12715105075 / 11282082432],
            [0.0, 0.0, 0.0, 0.0],
            [0.0, 131558114200 / 32700410799, -68118460800 / 10900136933, 87487479700 / 32700410799],
            [0.0, -1754552775 / 470086768, 14199869525 / 1410260304, -10690763975 / 1880347072],
            [0.0, 127303824393 / 49829197408, -318862633887 / 49829197408, 701980252875 / 199316789632],
            [0.0, -282668133 / 205662961, 2019193451 / 616988883, -1453857185 / 822651844],
            [0.0, 40617522 / 29380423, -110615467 / 29380423, 69997945 / 29380423],
        ]
    ),
)
"""Dormand and Prince, J. Comput. Appl. Math. 6 (1980) 19-26, with Shampine's interpolant (Math. Comp. 46 (1986) 135-150)."""


@pytest.fixture
def dopri5(monkeypatch):
    """The method, as if it stood in `tableau.TABLEAUS`."""
    for name in (tableau.TABLEAUS, methods.EXPLICIT, methods.METHODS, extend.STEP_NAMES):
        assert "dopri5" not in name
    monkeypatch.setitem(tableau.TABLEAUS, "dopri5", DOPRI5)
    monkeypatch.setitem(methods.EXPLICIT, "dopri5", methods._left_to_engines("dopri5", "noise"))
    monkeypatch.setitem(methods.METHODS, "dopri5", methods._explicit("dopri5"))
    monkeypatch.setitem(extend.STEP_NAMES, "dopri5", "step")
    for room in (scheduled, extension):
        monkeypatch.setattr(room, "ADAPTIVE", (*scheduled.ADAPTIVE, "dopri5"))


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_tableau_is_a_method(dopri5, dim, engine):
    """Runs keep their tolerance, also between steps; the engines make the same steps, which are not those of Tsit5."""
    model, x = ms.Attention(dim=dim, beta=4.0), variants.tokens(np.random.default_rng(0), 9, dim)
    truth = ms.simulate(model, x, until=4.0, method="tsit5", engine="reference", rtol=1e-11, atol=0.0, progress=False)
    options = {"engine": engine, "rtol": 1e-7, "atol": 0.0, "progress": False}
    run = ms.simulate(model, x, until=4.0, method="dopri5", **options)
    assert (run.method, run.status) == ("dopri5", "success")
    for t in (0.7, 2.3, 4.0):
        assert np.abs(run.at(t) - truth.at(t)).max() <= 2e-6
    other = ms.simulate(model, x, until=4.0, method="tsit5", **options)
    assert not np.array_equal(run.final, other.final)
    longer = ms.simulate(model, x, until=2.0, method="dopri5", **options).extend(until=4.0, progress=False)
    assert longer.method == "dopri5"
    np.testing.assert_allclose(longer.final, run.final, atol=1e-12)
    schedule = ms.Schedule(((0.0, model), (1.0, model.replace(beta=9.0))))
    assert ms.simulate(schedule, x, until=2.0, method="dopri5", **options).status == "success"
    appended = run.append(variants.tokens(np.random.default_rng(1), 2, dim), progress=False)
    assert appended.method == "dopri5"
    assert np.abs(appended.final[:9] - run.final).max() <= 1e-12


def test_a_tableau_has_its_order(dopri5):
    """Global error of the steps: order five; of the dense output between them: four."""
    from metastable.integrate import tsit5
    from metastable.integrate.plan import Accuracy, Save
    from metastable.kernels import reference

    model, x = ms.Attention(dim=3, beta=4.0), variants.tokens(np.random.default_rng(2), 6, 3)
    truth = ms.simulate(model, x, until=2.0, engine="reference", rtol=1e-12, atol=0.0, progress=False)
    steps, ends, middles = np.array([1 / 4, 1 / 8, 1 / 16]), [], []
    for step in steps:
        system = tsit5.System(reference.right_hand_side(model, 6), x, 3, Accuracy(step=step), tableau=DOPRI5)
        solution = solve_system(system, Save(2.0))
        assert solution.dense is not None
        ends.append(np.abs(solution.states[-1] - truth.final).max())
        middle = [step * (k + 0.4) for k in range(int(2.0 / step))]
        middles.append(max(np.abs(solution.dense(t) - truth.at(t)).max() for t in middle))
    assert np.polyfit(np.log(steps), np.log(ends), 1)[0] > 4.5
    assert np.polyfit(np.log(steps), np.log(middles), 1)[0] > 3.7


def test_ensembles_have_a_tableau_and_refuse_what_it_cannot_do(dopri5):
    model = ms.Attention(dim=2, beta=4.0)
    options = {"tokens": 9, "members": 3, "times": [1.0], "seed": 0, "progress": False}
    options |= {"observe": {"state": ms.observe.state()}}
    found = [ms.ensemble(model, method="dopri5", engine=engine, **options) for engine in ("cpu", "reference")]
    expected = ms.ensemble(model, method="tsit5", engine="cpu", **options)
    np.testing.assert_allclose(found[0].state, found[1].state, atol=1e-9)
    np.testing.assert_allclose(found[0].state, expected.state, atol=1e-4)
    assert (found[0].state.values != expected.state.values).any()
    with pytest.raises(UnsupportedError, match="method='dopri5' has no noise"):
        ms.simulate(model.replace(noise=0.1), np.eye(2), until=1.0, method="dopri5", seed=0, progress=False)
    with pytest.raises(InvalidInputError, match="chooses its own steps"):
        ms.simulate(model, np.eye(2), until=1.0, method="dopri5", step=0.1, progress=False)


def test_a_function_with_a_fixed_step_is_a_method(monkeypatch):
    """Heun's method: a module's `solve`, its line in the table, and the checks, the extension and the shown call know it."""

    def solve(plan: Plan, start, report):
        rhs, step = select.right_hand_side(plan.model, len(start), plan.backend), plan.accuracy.step

        def advance(number, y):
            first, second = np.zeros_like(y), np.zeros_like(y)
            rhs(number * step, y, first)
            rhs((number + 1) * step, y + step * first, second)
            new = y + 0.5 * step * (first + second)
            return new / np.linalg.norm(new, axis=1, keepdims=True), ""

        steps = fixed.Steps("heun", step, plan.steps, 2)
        return fixed.solve(steps, advance, start, plan.save.times, report, plan.steps_done)

    support = methods._left_to_engines("heun", "noise", "radius")
    heun = methods.Method(lambda model, tokens: ms.model.why_not(model, support, tokens), solve, None, "fixed")
    monkeypatch.setitem(methods.METHODS, "heun", heun)
    for room in (methods, planning, extension, handle):
        monkeypatch.setattr(room, "FIXED_STEP", (*methods.FIXED_STEP, "heun"))
    model, x = ms.Attention(dim=3, beta=4.0), variants.tokens(np.random.default_rng(3), 7, 3)
    truth = ms.simulate(model, x, until=1.0, engine="reference", rtol=1e-11, atol=0.0, progress=False).final
    runs = [ms.simulate(model, x, until=1.0, method="heun", step=step, progress=False) for step in (0.1, 0.05)]
    errors = [np.abs(run.final - truth).max() for run in runs]
    assert 3.0 < errors[0] / errors[1] < 5.5
    halfway = ms.simulate(model, x, until=0.5, method="heun", step=0.1, progress=False)
    longer = halfway.extend(until=1.0, progress=False)
    assert longer.method == "heun"
    np.testing.assert_array_equal(longer.final, runs[0].final)
    with pytest.raises(InvalidInputError, match="method='heun' needs step="):
        ms.simulate(model, x, until=1.0, method="heun", progress=False)
    with pytest.raises(UnsupportedError, match="method='heun' is for single systems"):
        ms.ensemble(model, tokens=5, members=2, times=[0.5], seed=0, method="heun", step=0.1, progress=False)
    with pytest.raises(UnsupportedError, match="method='heun' has no norm with a radius"):
        ms.simulate(model.replace(norm=ms.PreLN()), x, until=1.0, method="heun", step=0.1, progress=False)
