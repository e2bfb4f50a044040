"""Compiled integrations against DOP853 at 1e-12, against the step-by-step integrator, and against themselves."""

import _thread
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from metastable import sphere
from metastable.errors import UnsupportedError
from metastable.integrate import march, tsit5
from metastable.integrate.fused import queue
from metastable.integrate.plan import Save
from metastable.integrate.solution import STATUSES, UNFINISHED
from metastable.kernels import reference
from metastable.kernels.cpu import system
from metastable.model import NGPT, Attention, Frozen, Head, Mask, MixLN, PreLN, SqrtScaling, Window
from tests.explicit import solve, solve_members, solve_system

TILT = np.array([[1.0, 0.2], [-0.1, 0.8]])
MODELS = {
    "circle": Attention(dim=2, beta=16.0),
    "circle, matrices": Attention(dim=2, beta=6.0, key=TILT, value=TILT),
    "sphere": Attention(dim=3, beta=9.0),
    "sphere, sqrt": Attention(dim=3, beta=9.0, norm=SqrtScaling()),
    "circle, sqrt": Attention(dim=2, beta=16.0, norm=SqrtScaling()),
    "sphere, ngpt, window": Attention(dim=3, beta=4.0, norm=NGPT(1.0), mask=Window(6), value=np.diag([1.0, 0.5, 0.2])),
    "heads in 6": Attention(dim=6, heads=(Head(beta=3.0), Head(value=-0.3 * np.eye(6), beta=1.0))),
    "frozen": Attention(dim=2, beta=9.0, frozen=Frozen(sphere.uniform(3, dim=2, seed=9))),
}
SERIES = ("circle", "circle, matrices", "sphere", "sphere, sqrt", "circle, sqrt", "frozen")
CASES = [(name, "direct") for name in MODELS] + [(name, "series") for name in SERIES]
TIMES = np.array([0.0, 0.5, 2.0, 5.0])
TOKENS = 12


def oracle(model, x, times):
    f = reference.right_hand_side(model, len(x))

    def velocity(t, y):
        out = np.zeros_like(x)
        f(t, y.reshape(x.shape), out)
        return out.ravel()

    solved = solve_ivp(velocity, (0, times[-1]), x.ravel(), "DOP853", t_eval=times, rtol=1e-12, atol=1e-13)
    return solved.y.T.reshape(len(times), *x.shape)


@pytest.mark.parametrize(("name", "interaction"), CASES)
def test_against_dop853(name, interaction):
    model = MODELS[name]
    starts = np.stack([sphere.uniform(TOKENS, dim=model.dim, seed=seed) for seed in range(3)])
    expected = np.stack([oracle(model, x, TIMES) for x in starts])
    for tolerance in (1e-5, 1e-9):
        options = {"rtol": tolerance, "atol": 0.0, "interaction": interaction}
        states, statistics, status = solve_members(model, starts, TIMES, **options)
        assert not status.any()
        assert np.abs(states - expected).max() < 100 * tolerance
        assert np.abs(np.linalg.norm(states, axis=-1) - 1).max() < 1e-14
        single = solve(model, starts[0], TIMES, TIMES[-1], **options)
        assert single.status == "success"
        assert np.abs(single.states - expected[0]).max() < 100 * tolerance
        # The same method with the same control takes the same steps.
        assert single.statistics.accepted == statistics[0, 0]
        assert single.statistics.rejected == statistics[0, 1]
        assert single.statistics.evaluations == statistics[0, 2]
        dense = solve(model, starts[0], None, TIMES[-1], **options)
        assert dense.dense is not None
        assert np.abs([dense.dense(t) for t in TIMES] - expected[0]).max() < 200 * tolerance
        assert dense.times[0] == 0.0
        assert dense.times[-1] == TIMES[-1]
        assert len(dense.times) == dense.statistics.accepted + 1 == len(dense.states)
        assert np.array_equal(dense.states[-1], dense.dense(TIMES[-1])) or (
            np.abs(dense.states[-1] - dense.dense(TIMES[-1])).max() < 1e-13
        )


@pytest.mark.parametrize("name", ["sphere", "sphere, sqrt", "heads in 6"])
def test_same_steps_as_the_step_by_step_integrator(name):
    model = MODELS[name]
    x = sphere.uniform(TOKENS, dim=model.dim, seed=4)
    ours = solve(model, x, None, 5.0)
    theirs = solve_system(tsit5.System(reference.right_hand_side(model, TOKENS), x, model.dim), Save(5.0))
    assert ours.statistics == theirs.statistics
    # Rounding of a tiny error estimate shifts a step by parts in ten million.
    assert ours.times == pytest.approx(theirs.times, rel=1e-5)
    assert np.abs(ours.states - theirs.states).max() < 1e-6


def test_order_of_dense_output_and_chart():
    model = MODELS["circle"]
    x = sphere.uniform(TOKENS, dim=2, seed=4)
    solution = solve(model, x, None, 4.0, rtol=1e-9, atol=0.0)
    assert solution.dense is not None
    assert solution.dense.chart == "angle"
    assert solution.dense.coefficients.shape == (solution.statistics.accepted, 5, TOKENS, 1)
    joints = [
        np.abs(solution.dense.evaluate(s, 1.0) - solution.states[s + 1]).max() for s in range(len(solution.dense.start))
    ]
    assert max(joints) < 1e-13


@pytest.mark.parametrize("interaction", ["direct", "series"])
@pytest.mark.parametrize("dim", [2, 3])
def test_bits_of_a_member_do_not_depend_on_company_or_threads(dim, interaction):
    model = Attention(dim=dim, beta=16.0)
    starts = np.stack([sphere.uniform(20, dim=dim, seed=seed) for seed in range(21)])
    together, statistics, _ = solve_members(model, starts, TIMES, interaction=interaction, threads=1)
    on_two, _, _ = solve_members(model, starts, TIMES, interaction=interaction, threads=2)
    assert np.array_equal(together, on_two)
    for member in (0, 7, 20):
        alone, own, _ = solve_members(model, starts[member : member + 1], TIMES, interaction=interaction)
        assert np.array_equal(alone[0], together[member])
        assert np.array_equal(own[0], statistics[member])
    backwards, _, _ = solve_members(model, starts[::-1].copy(), TIMES, interaction=interaction)
    assert np.array_equal(backwards[::-1], together)


@pytest.mark.parametrize("interaction", ["direct", "series"])
def test_bits_of_one_system_do_not_depend_on_threads(interaction, monkeypatch):
    monkeypatch.setattr(system, "PARALLEL_WORK", 0)
    x = sphere.uniform(500, dim=2, seed=0)
    runs = [
        solve(Attention(dim=2, beta=16.0), x, None, 2.0, interaction=interaction, threads=threads) for threads in (1, 2)
    ]
    assert np.array_equal(runs[0].states, runs[1].states)
    assert runs[0].dense is not None
    assert runs[1].dense is not None
    assert np.array_equal(runs[0].dense.coefficients, runs[1].dense.coefficients)


def test_dense_output_has_a_limit(monkeypatch):
    monkeypatch.setattr(march, "DENSE_LIMIT", 100_000)
    x = sphere.uniform(5, dim=3, seed=0)
    solution = solve(Attention(dim=3, beta=2.0), x, None, 500.0, rtol=1e-11, atol=0.0)
    assert solution.status == "max_steps"
    assert "times" in solution.message
    assert 0 < solution.times[-1] < 500


def test_max_steps_keeps_what_was_computed():
    x = sphere.uniform(30, dim=2, seed=0)
    model = Attention(dim=2, beta=64.0)
    solution = solve(model, x, TIMES, TIMES[-1], max_steps=5, rtol=1e-9)
    assert solution.status == "max_steps"
    assert "max_steps" in solution.message
    assert 1 <= len(solution.times) < len(TIMES)
    assert len(solution.states) == len(solution.times)
    states, statistics, status = solve_members(model, np.stack([x, x]), TIMES, max_steps=5, rtol=1e-9)
    assert (status == queue.MAX_STEPS).all()
    assert (statistics[:, 0] + statistics[:, 1] == 5).all()
    assert np.isfinite(states[:, 0]).all()
    assert np.isnan(states[:, -1]).all()


def test_a_member_that_leaves_double_precision_stops_alone():
    starts = np.stack([sphere.uniform(6, dim=3, seed=seed) for seed in range(3)])
    starts[1, 3] = np.nan
    states, _, status = solve_members(Attention(dim=3, beta=4.0), starts, TIMES)
    assert list(status) == [queue.SUCCESS, queue.DIVERGED, queue.SUCCESS]
    assert np.isfinite(states[[0, 2]]).all()
    assert np.isnan(states[1, -1]).any()
    single = solve(Attention(dim=3, beta=4.0), starts[1], TIMES, 5.0)
    assert single.status == "diverged"


def test_progress_is_reported():
    seen: list[float] = []
    x = sphere.uniform(200, dim=2, seed=0)
    solve(Attention(dim=2, beta=64.0), x, np.array([5.0]), 5.0, progress=seen.append)
    assert seen[-1] == 5.0
    members: list[float] = []
    solve_members(Attention(dim=2, beta=64.0), np.stack([x] * 9), np.array([5.0]), progress=members.append)
    assert members[-1] == 9.0


def interrupt_soon(event):
    """Send Ctrl-C to ourselves a moment after the event."""

    def send():
        event.wait(20.0)
        time.sleep(0.05)
        if sys.platform == "win32":  # where `os.kill` knows no Ctrl-C and ends the process
            _thread.interrupt_main()
        else:
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()


def test_interruption_returns_the_finished_members():
    model = Attention(dim=2, beta=64.0)
    starts = np.stack([sphere.uniform(300, dim=2, seed=seed) for seed in range(400)])
    solve_members(model, starts[:1], np.array([1.0]))  # compiled before the clock starts
    begun = threading.Event()
    interrupt_soon(begun)
    _, _, status = solve_members(model, starts, np.array([2000.0]), threads=1, progress=lambda done: begun.set())
    assert (status == UNFINISHED).any()


def test_interruption_of_one_system_is_raised():
    model = Attention(dim=2, beta=64.0)
    x = sphere.uniform(3000, dim=2, seed=0)
    solve(model, x[:5], np.array([1.0]), 1.0)
    begun = threading.Event()
    interrupt_soon(begun)
    with pytest.raises(KeyboardInterrupt):
        solve(model, x, np.array([1e5]), 1e5, progress=lambda t: begun.set())


@pytest.mark.parametrize(
    ("model", "interaction"),
    [
        (Attention(dim=4, beta=1.0), "series"),
        (Attention(dim=2, beta=1.0, norm=PreLN()), "direct"),
        (Attention(dim=2, beta=1.0, norm=MixLN(1.0)), "direct"),
        (Attention(dim=2, beta=1.0, mask=Mask(np.eye(5, dtype=bool))), "direct"),
    ],
)
def test_what_compiled_code_cannot_do_is_refused(model, interaction):
    x = sphere.uniform(5, dim=model.dim, seed=0)
    with pytest.raises(UnsupportedError):
        solve(model, x, TIMES, 5.0, interaction=interaction)
    with pytest.raises(UnsupportedError):
        solve_members(model, x[None], TIMES, interaction=interaction)


def test_status_codes_are_in_step():
    assert STATUSES[queue.MAX_STEPS] == "max_steps"
    assert STATUSES[queue.DIVERGED] == "diverged"
    assert STATUSES[queue.SUCCESS] == "success"


def test_cached_code_runs_in_a_fresh_process():
    """The second process loads what the first compiled, also when nothing else has launched Numba's threads before."""
    program = (
        "import numpy as np\n"
        "import metastable as ms\n"
        "model = ms.Attention(dim=2, beta=1.0)\n"
        "print(ms.simulate(model, np.eye(2), until=1.0, engine='cpu', threads=1, progress=False).status)\n"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "success"
