"""Does it last: ten million member-steps, a thousand calls without leaks, and requests that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gpu import common

MEMBER_STEPS = 10_000_000
CALLS = 1000


def many_steps() -> dict[str, Any]:
    """Figure 3 again and again with fresh starts until ten million member-steps are done; counts what went wrong."""
    from metastable.model import Attention

    _, times = common.figure_3()
    generator = np.random.default_rng(1)
    steps, runs, failures, not_finite, off_circle = 0, 0, 0, 0, 0.0
    while steps < MEMBER_STEPS:
        angle = generator.uniform(0.0, 2.0 * np.pi, (common.MEMBERS, common.TOKENS))
        starts = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        dtype = "float64" if runs % 2 else "float32"
        batch = common.batch(Attention(dim=2, beta=common.BETA), starts, times[-3:], 1e-6, dtype)
        batch.launch()
        counts, states = batch.counts(), batch.states()
        steps += int(counts[:, :2].sum())
        failures += int((counts[:, 3] != 0).sum())
        not_finite += int((~np.isfinite(states)).sum())
        off_circle = max(off_circle, float(np.abs((states**2).sum(axis=-1) - 1.0).max()))
        runs += 1
    return {
        "member_steps": steps,
        "runs": runs,
        "failures": failures,
        "not_finite": not_finite,
        "off_circle": off_circle,
    }


def many_calls() -> dict[str, Any]:
    """A thousand calls of the whole interface: free memory after the first and after the last, and equal results."""
    from metastable.integrate.fused import cuda as fused_cuda
    from metastable.kernels import cuda
    from metastable.kernels.cuda import device
    from metastable.model import Attention

    model = Attention(dim=2, beta=16.0)
    starts = np.stack([common.unit_tokens(50, 2, seed) for seed in range(8)])
    plan, expected = common.plan(model, np.array([1.0])), None
    free = []
    for call in range(CALLS):
        states, _, _ = fused_cuda.solve_members(plan, starts, 0, common.silent)
        out = np.zeros((50, 2))
        cuda.right_hand_side(model, 50)(0.0, starts[0], out)
        expected = states if expected is None else expected
        if not np.array_equal(states, expected):
            return {"calls": call, "failed": "a repeated call gave another result"}
        if call in (9, CALLS - 1):
            free.append(device.free_bytes())
    return {"calls": CALLS, "free_after_ten": free[0], "free_at_the_end": free[1], "lost_bytes": free[0] - free[1]}


def too_large() -> dict[str, Any]:
    """Requests that do not fit, refused ahead and failing in the driver; the device works afterwards."""
    from metastable.errors import DeviceMemoryError
    from metastable.integrate.fused import cuda as fused_cuda
    from metastable.kernels.cuda import device
    from metastable.model import Attention

    model = Attention(dim=2, beta=1.0)
    starts = np.broadcast_to(common.unit_tokens(100, 2), (20_000, 100, 2))
    times = np.linspace(0.0, 1.0, 10**5)
    messages = {}
    ahead = device.require_memory
    for name, check in (("ahead", ahead), ("in the driver", lambda *_: None)):
        device.require_memory = check
        try:
            common.batch(model, starts, times, 1e-6, max_steps=10)
            messages[name] = "was not refused"
        except DeviceMemoryError as reason:
            messages[name] = str(reason)
        finally:
            device.require_memory = ahead
    states, _, _ = fused_cuda.solve_members(common.plan(model, np.array([1.0])), starts[:3], 0, common.silent)
    return {"messages": messages, "usable_afterwards": bool(np.isfinite(states).all())}


def main() -> dict[str, Any]:
    """All three."""
    result = {}
    for part in (many_steps, many_calls, too_large):
        result[part.__name__] = part()
        print(part.__name__, result[part.__name__], flush=True)
    return result
