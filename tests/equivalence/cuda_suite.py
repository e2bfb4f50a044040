"""The CUDA engine against the reference: every supported variant.

Runs on the CUDA simulator in small sizes (`test_cuda.py` starts it in a process of its own, since Numba decides when it is
imported) and on a real GPU in larger ones (`make test-gpu`).
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from metastable.errors import DeviceMemoryError, UnsupportedError
from metastable.integrate import explicit, tsit5
from metastable.integrate.fused import cuda as fused_cuda
from metastable.integrate.plan import Accuracy, Plan, Save
from metastable.integrate.tableau import TSIT5
from metastable.kernels import cuda, reference
from metastable.kernels.cuda import device, support
from metastable.kernels.select import Backend
from metastable.model import (
    NGPT,
    ALiBi,
    Attention,
    Causal,
    Frozen,
    Full,
    Head,
    MixLN,
    PeriLN,
    Prefix,
    PreLN,
    Sink,
    SqrtScaling,
    Window,
    why_not,
)
from tests.explicit import solve_system

REAL = not device.SIMULATED
RELATIVE = 1e-13
SINGLE = 1e-5
"""Relative error of a float32 right-hand side: exponents of size beta are rounded to about beta 1e-7."""


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def points(*shape: int, seed: int = 0) -> np.ndarray:
    x = generator(seed).normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def matrix(dim: int, seed: int) -> np.ndarray:
    return generator(seed).normal(size=(dim, dim)) / np.sqrt(dim)


def general(dim: int, beta: float, **fields) -> Attention:
    return Attention(dim=dim, beta=beta, query=matrix(dim, 1), key=matrix(dim, 2), value=matrix(dim, 3), **fields)


def plan(model: Attention, times: np.ndarray | None, until: float | None = None, **options) -> Plan:
    """What `ensemble` or `simulate` would ask for; `options` are fields of `Accuracy` and `Backend`."""
    backend = {name: options.pop(name) for name in ("dtype", "interaction") if name in options}
    end = float(times[-1]) if until is None else until
    return Plan((model,), "tsit5", Save(end, times), Accuracy(**options), Backend("cuda", **backend))


def solve_members(model: Attention, starts: np.ndarray, times: np.ndarray, **options):
    return fused_cuda.solve_members(plan(model, times, **options), starts, 0, lambda done: None)


def velocities(
    model: Attention, tokens: int, first: int = 0, t: float = 0.3, **options
) -> tuple[np.ndarray, np.ndarray]:
    """Reference and CUDA velocity at a random state that is not exactly normalised."""
    y = 1.01 * points(tokens, model.dim, seed=tokens)
    if model.norm.has_radius:
        y = np.concatenate([y, generator(5).uniform(0.5, 2.0, (tokens, 1))], axis=1)
    expected, found = np.zeros_like(y), np.full_like(y, np.nan)
    found[:first] = 0.0
    reference.right_hand_side(model, tokens, first)(t, y, expected)
    cuda.right_hand_side(model, tokens, first, **options)(t, y, found)
    return expected, found


def relative(expected: np.ndarray, found: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


TOKENS = 1000 if REAL else 19
VARIANTS = {
    "circle": Attention(dim=2, beta=64.0),
    "circle, cold": Attention(dim=2, beta=600.0),
    "circle, Q K V": general(2, 3.0),
    "sphere": Attention(dim=3, beta=9.0),
    "beta 0": Attention(dim=3, beta=0.0),
    "dim 8": Attention(dim=8, beta=4.0),
    "dim 5, Q K V": general(5, 2.0),
    "weights out of range of the bound": general(3, 900.0),
    "two heads": Attention(dim=4, heads=(Head(matrix(4, 4), matrix(4, 5), matrix(4, 6), 1.5), Head(beta=3.0))),
    "full": Attention(dim=3, beta=4.0, mask=Full()),
    "window": Attention(dim=3, beta=4.0, mask=Window(7)),
    "sink": Attention(dim=3, beta=4.0, mask=Sink(3, 5)),
    "prefix": Attention(dim=3, beta=4.0, mask=Prefix(9)),
    "alibi": Attention(dim=3, beta=4.0, bias=ALiBi(0.3)),
    "unnormalized": Attention(dim=3, beta=4.0, weights="unnormalized"),
    "frozen": Attention(dim=3, beta=4.0, frozen=Frozen(points(4, 3, seed=9), [0.5, 0.0, 2.0, 1.0])),
    "frozen, unnormalized, full": Attention(
        dim=3, beta=2.0, weights="unnormalized", mask=Full(), frozen=Frozen(points(3, 3, seed=8))
    ),
    "pre": Attention(dim=3, beta=4.0, norm=PreLN()),
    "mix, before": Attention(dim=3, beta=4.0, norm=MixLN(0.5)),
    "mix, after": Attention(dim=3, beta=4.0, norm=MixLN(0.1)),
    "peri": Attention(dim=3, beta=4.0, norm=PeriLN()),
    "ngpt": Attention(dim=3, beta=4.0, norm=NGPT(0.4)),
    "square root": Attention(dim=3, beta=4.0, norm=SqrtScaling()),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_right_hand_side(name):
    assert relative(*velocities(VARIANTS[name], TOKENS)) < RELATIVE


@pytest.mark.parametrize("tokens", [1, 2, 9, *((129, 513, 4000) if REAL else (16,))])
def test_any_number_of_tokens(tokens):
    expected, found = velocities(Attention(dim=3, beta=9.0), tokens)
    # A token that sees only itself stands still up to rounding.
    assert np.linalg.norm(found - expected) <= RELATIVE * np.linalg.norm(expected) + 1e-15


@pytest.mark.parametrize("dim", [17, 20, 32] if REAL else [20, 32])
def test_large_dimension(dim):
    tokens = 700 if REAL else 9
    assert relative(*velocities(general(dim, 2.0), tokens)) < RELATIVE


@pytest.mark.parametrize("dim", [17, 20, 32] if REAL else [20, 32])
def test_large_dimension_in_single_precision(dim):
    model = general(dim, 2.0, mask=Sink(3, 5), bias=ALiBi(0.1))
    tokens = 700 if REAL else 9
    assert relative(*velocities(model, tokens, dtype="float32")) < SINGLE


def test_only_new_tokens_move():
    expected, found = velocities(general(3, 2.0, mask=Sink(2, 6)), TOKENS, first=TOKENS // 2)
    assert relative(expected, found) < RELATIVE
    assert not found[: TOKENS // 2].any()


@pytest.mark.parametrize("name", ["circle", "sphere", "dim 5, Q K V"])
def test_single_precision(name):
    assert relative(*velocities(VARIANTS[name], TOKENS, dtype="float32")) < SINGLE


# ------------------------------------------------------------------------------------------------------- ensembles

FUSED = {
    "circle": (Attention(dim=2, beta=8.0), 200 if REAL else 9),
    "circle, even": (Attention(dim=2, beta=8.0), 137 if REAL else 6),
    "sphere, Q K V": (general(3, 2.0), 100 if REAL else 5),
    **(
        {
            "long": (Attention(dim=2, beta=64.0), 1500),
            "dim 8": (Attention(dim=8, beta=3.0), 60),
            "two heads": (VARIANTS["two heads"], 65),
            "two tokens": (Attention(dim=2, beta=1.0), 2),
            "one token": (Attention(dim=3, beta=1.0), 1),
        }
        if REAL
        else {}
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_members_march_as_the_reference_does(name):
    model, tokens = FUSED[name]
    times = np.array([0.0, 0.1, 0.5] if not REAL else [0.0, 0.3, 1.7, 5.0])
    starts = points(3 if REAL else 1, tokens, model.dim, seed=3)
    states, counts, status = solve_members(model, starts, times)
    assert (status == 0).all()
    for member, start in enumerate(starts):
        velocity = reference.right_hand_side(model, tokens)
        expected = solve_system(tsit5.System(velocity, start, model.dim), Save(times[-1], times))
        assert np.abs(states[member] - expected.states).max() < 2e-5
        steps = expected.statistics
        assert abs(counts[member, 0] - steps.accepted) <= 2
        assert counts[member, 2] == 2 + 6 * (counts[member, 0] + counts[member, 1])


def test_members_converge_to_the_reference():
    model = Attention(dim=2, beta=16.0 if REAL else 4.0)
    tokens, until = (40, 20.0) if REAL else (4, 0.2)
    starts = points(2 if REAL else 1, tokens, 2, seed=4)
    tight = {"rtol": 1e-11, "atol": 1e-12} if REAL else {"rtol": 1e-9, "atol": 1e-10}
    states, _, _ = solve_members(model, starts, np.array([until]), **tight)
    for member, start in enumerate(starts):
        velocity = reference.right_hand_side(model, tokens)
        expected = solve_system(tsit5.System(velocity, start, 2, Accuracy(**tight)), Save(until, np.array([until])))
        assert np.abs(states[member] - expected.states).max() < 1e-7


def test_members_in_single_precision():
    model, tokens = Attention(dim=2, beta=8.0), 200 if REAL else 5
    times = np.array([5.0 if REAL else 0.2])
    starts = points(20 if REAL else 1, tokens, 2, seed=5)
    single, _, _ = solve_members(model, starts, times, dtype="float32")
    double, _, _ = solve_members(model, starts, times, rtol=1e-9)
    assert np.median(np.abs(single - double).max(axis=(1, 2, 3))) < 2e-5


def test_members_that_run_out_of_steps_say_so():
    model = Attention(dim=2, beta=8.0)
    starts = points(1, 4, 2, seed=6)
    states, counts, status = solve_members(model, starts, np.array([0.0, 50.0]), max_steps=1)
    assert status.tolist() == [1]
    assert counts[:, 0].max() == 1
    assert np.abs(states[:, 0] - starts).max() < 1e-15
    assert np.isnan(states[:, 1]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_where_a_member_goes_does_not_depend_on_when_it_is_looked_at(dtype):
    model = Attention(dim=3, beta=4.0)
    starts = points(1, 200 if REAL else 5, 3, seed=3)
    seen, counts, _ = solve_members(model, starts, np.array([0.01, 0.05, 0.1, 0.2]), dtype=dtype)
    unseen, same, _ = solve_members(model, starts, np.array([0.2]), dtype=dtype)
    assert np.array_equal(seen[:, -1], unseen[:, -1])
    assert np.array_equal(counts, same)


def test_members_do_not_depend_on_their_neighbours():
    model = Attention(dim=2, beta=8.0)
    starts = points(2, 4, 2, seed=7)
    together, _, _ = solve_members(model, starts, np.array([0.1]))
    alone, _, _ = solve_members(model, starts[1:], np.array([0.1]))
    assert np.array_equal(together[1], alone[0])


def test_models_that_do_not_fit_into_a_block_go_launch_by_launch():
    model = Attention(dim=3, beta=2.0, mask=Window(3))
    assert support.fused_refusal(model, 4) is not None
    starts = points(1, 4, 3, seed=8)
    states, _, status = solve_members(model, starts, np.array([0.1]))
    expected = solve_system(tsit5.System(reference.right_hand_side(model, 4), starts[0], 3), Save(0.1, np.array([0.1])))
    assert status.tolist() == [0]
    assert np.abs(states[0] - expected.states).max() < 1e-9


def test_observables_on_the_device():
    from metastable import observe
    from metastable.analysis import _balls
    from metastable.kernels.cuda.observables import Capture, Components

    model, delta = Attention(dim=2, beta=16.0), 1.0
    tokens = 200 if REAL else 6
    starts = points(4 if REAL else 1, tokens, 2, seed=9)
    times = np.array([0.0, 20.0]) if REAL else np.array([0.0, 0.01])
    radius = 0.1 * delta
    bounds = _balls.within_or_at(delta), _balls.within_or_at(radius)
    wanted = {
        "renyi": Capture(*bounds),
        "strong": Capture(*bounds, strong=True, moving=False),
        "clusters": Components(_balls.closer_than(0.05)),
    }
    values, _, _ = fused_cuda.observe_members(plan(model, times), starts, wanted)
    states, _, _ = solve_members(model, starts, times)
    on_host = {
        "renyi": observe.consumed(delta, radius),
        "strong": observe.consumed(delta, radius, strong=True, moving=False),
        "clusters": observe.clusters(0.05),
    }
    for name, observable in on_host.items():
        for member, start in enumerate(starts):
            expected = observable.measure(states[member], start=start, model=model, times=times)
            assert np.array_equal(values[name][member], expected), name


# --------------------------------------------------------------------------------------------------- single systems


def test_simulation_on_the_device_marches_as_on_the_host():
    model = general(3, 2.0, norm=MixLN(0.07))
    tokens = 300 if REAL else 3
    start = np.concatenate([points(tokens, 3, seed=10), np.ones((tokens, 1))], axis=1)
    times = np.array([0.0, 0.05, 0.1])
    found = explicit.solve(plan(model, times), start, None)
    velocity = reference.right_hand_side(model, tokens)
    expected = solve_system(tsit5.System(velocity, start, 3), Save(0.1, times), model.norm.breakpoints)
    assert np.array_equal(found.times, expected.times)
    assert np.abs(found.states - expected.states).max() < 1e-9
    assert found.statistics == expected.statistics
    assert found.status == "success"


def test_dense_output_and_limits_on_the_device():
    model = Attention(dim=2, beta=4.0)
    start = points(3, 2, seed=11)
    found = explicit.solve(plan(model, None, 50.0, max_steps=1), start, None)
    assert found.status == "max_steps"
    assert found.dense is not None
    end = found.dense.end
    assert np.abs(found.dense(end) - found.states[-1]).max() < 1e-12
    expected = solve_system(
        tsit5.System(reference.right_hand_side(model, 3), start, 2), Save(end, np.array([0.5 * end]))
    )
    assert np.abs(found.dense(0.5 * end) - expected.states[0]).max() < 1e-6


def test_slopes_that_were_not_evaluated_yet_count_for_nothing(monkeypatch):
    from metastable.kernels.cuda import intrinsics

    def used_before(shape, dtype=np.float64):
        return intrinsics.cuda.to_device(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -1, dtype))

    model, start = Attention(dim=3, beta=4.0), points(3, 3, seed=12)
    expected = explicit.solve(plan(model, np.array([0.02])), start, None)
    monkeypatch.setattr(intrinsics.cuda, "device_array", used_before)
    found = explicit.solve(plan(model, np.array([0.02])), start, None)
    assert np.array_equal(found.states, expected.states)
    assert found.statistics == expected.statistics


def test_simulate_runs_on_the_engine_that_is_named():
    from metastable.run import simulate

    model, start = Attention(dim=3, beta=4.0), points(3, 3, seed=12)
    found = simulate(model, start, until=0.02, engine="cuda", progress=False)
    expected = simulate(model, start, until=0.02, engine="reference", progress=False)
    assert found.engine == "cuda"
    assert np.abs(found.final - expected.final).max() < 1e-9
    more = found.append(points(1, 3, seed=13), progress=False)
    assert more.engine == "cuda"
    assert np.abs(more.final[:3] - found.final).max() < 1e-14


# ------------------------------------------------------------------------------------------------ what it says no to


def test_refusals_name_the_engine_that_can():
    hard = Attention(dim=2, beta=1.0, weights="hardmax")
    assert "engine='cpu'" in (cuda.refusal(hard, 3) or "")
    with pytest.raises(UnsupportedError, match="hardmax"):
        solve_members(hard, points(1, 3, 2), np.array([1.0]))
    large = Attention(dim=2, beta=100.0, weights="unnormalized")
    assert why_not(large, support.DIRECT["float64"]) is None
    assert why_not(large, support.DIRECT["float32"]) is not None
    assert cuda.refusal(VARIANTS["circle"], 3) is None
    assert cuda.series_refusal(VARIANTS["circle"], 3) is None
    assert cuda.series_refusal(VARIANTS["sphere"], 3) is None
    assert "direct" in (cuda.series_refusal(VARIANTS["dim 8"], 3) or "")
    for name in ("circle", "sphere"):
        assert cuda.series_wins(VARIANTS[name], 10**6)
        assert not cuda.series_wins(VARIANTS[name], 10**3)


def test_too_large_a_request_is_refused_before_it_is_made():
    model = Attention(dim=2, beta=1.0)
    with pytest.raises(DeviceMemoryError, match="GiB"):
        device.require_memory(10**15, "this test", "ask for less")
    from metastable.kernels.cuda.batch import MemberBatch
    from metastable.kernels.cuda.members import Limits

    starts, times = np.broadcast_to(points(4, 2), (10**7, 4, 2)), np.linspace(0.0, 1.0, 10**5)
    with pytest.raises(DeviceMemoryError, match="GPU memory"):
        MemberBatch(model, starts, times, Limits(1e-6, 10), fused_cuda.scheme_of(TSIT5))
    states, _, _ = solve_members(model, points(1, 4, 2), np.array([0.01]))
    assert np.isfinite(states).all()


def test_causal_is_what_is_fused():
    assert support.fused_refusal(Attention(dim=2, beta=1.0, mask=Causal()), 200) is None
    for changed in ({"mask": Full()}, {"norm": PreLN()}, {"bias": ALiBi(1.0)}, {"weights": "unnormalized"}):
        assert support.fused_refusal(Attention(dim=2, beta=1.0, **changed), 200) is not None
    assert support.fused_refusal(general(3, 1e4), 20) is not None
    assert support.fused_refusal(Attention(dim=2, beta=1.0), 10**5) is not None


def test_small_grids_warn_nobody():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        device.missing.cache_clear()
        device.missing()
        warnings.warn(
            "\x1b[1mGrid size 8 will likely result in GPU under-utilization due to low occupancy.\x1b[0m", stacklevel=1
        )
        assert not [item for item in seen if "Grid size" in str(item.message)]
        warnings.warn("something else", stacklevel=1)
        assert [item for item in seen if "something else" in str(item.message)]


@pytest.mark.parametrize("norm", [PreLN(), SqrtScaling()], ids=repr)
def test_a_system_is_taken_up_where_it_was(norm):
    """`integrate.extend` on the device: the memory of the step control, the depth and the radii go on."""
    model = Attention(dim=2, beta=4.0, norm=norm)
    start = points(3, 2)
    packed = np.concatenate([start, np.ones((3, model.width - 2))], axis=1)
    short = explicit.solve(plan(model, None, 0.3), packed, None)
    assert short.resume is not None
    assert 0.0 < short.resume.t < 0.3
    longer = replace(plan(model, None, 0.6), resume=short.resume)
    further = explicit.solve(longer, short.resume.state, None)
    whole = explicit.solve(plan(model, None, 0.6), packed, None)
    assert further.statistics.accepted == whole.statistics.accepted
    np.testing.assert_allclose(further.states[-1], whole.states[-1], atol=1e-12)


def test_a_radius_that_reaches_zero_ends_the_run():
    """PreLN and V = -I: r(t) = 1 - t for a single token, whose direction stands still, so that no error tells that it is gone at 1."""
    model, start = Attention(dim=2, beta=1.0, value=-np.eye(2), norm=PreLN()), np.array([[0.6, 0.8, 1.0]])
    found = explicit.solve(plan(model, np.array([0.5, 5.0])), start, None)
    assert found.status == "diverged"
    np.testing.assert_allclose(found.times, [0.5])
    np.testing.assert_allclose(found.states, [[[0.6, 0.8, 0.5]]], atol=1e-12)
