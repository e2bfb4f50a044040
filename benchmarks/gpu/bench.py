"""The table of docs/performance-gpu.md: ours and the peers in one run, against the floor of the special function units."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu import common

CHECKED_MEMBERS = 32
"""Members of Figure 3 whose capture curves are compared with the reference engine."""


def _reference_member(member: int) -> np.ndarray:
    """States of one member of Figure 3 by the reference engine (in a process without a GPU)."""
    from metastable.integrate import march, tsit5
    from metastable.integrate.plan import DEFAULT
    from metastable.kernels import reference
    from metastable.model import Attention

    starts, times = common.figure_3()
    velocity = reference.right_hand_side(Attention(dim=2, beta=common.BETA), common.TOKENS)
    system, recorder = tsit5.System(velocity, starts[member], 2), march.Recorder(2, times)
    return march.integrate(system, recorder, times[-1], DEFAULT).states


def figure_3() -> dict[str, Any]:
    """The ensemble of Figure 3: device time, distance to the floor, accuracy, capture curves."""
    from metastable.analysis import _balls
    from metastable.integrate.fused import cuda as fused_cuda
    from metastable.kernels.cuda.observables import Capture
    from metastable.model import Attention

    starts, times = common.figure_3()
    model = Attention(dim=2, beta=common.BETA)
    rate = common.machine()["exponentials_per_second"]
    accurate = common.batch(model, starts[:500], times, 1e-9, max_steps=10**6)
    accurate.launch()
    truth = accurate.states()
    delta = 4.0 / np.sqrt(common.BETA)
    bounds = _balls.within_or_at(delta), _balls.within_or_at(0.1 * delta)
    wanted = {"renyi": Capture(*bounds), "strong": Capture(*bounds, strong=True)}
    with ProcessPoolExecutor(16, mp_context=get_context("spawn")) as pool:
        expected = np.array(list(pool.map(_reference_member, range(CHECKED_MEMBERS))))
    result: dict[str, Any] = {}
    for dtype in ("float32", "float64"):
        batch = common.batch(model, starts, times, 1e-6 + 1e-9, dtype)
        found: dict[str, Any] = common.seconds(batch.launch, 15, 3)
        counts = batch.counts()
        pairs = float(counts[:, 2].sum()) * common.TOKENS * (common.TOKENS - 1) / 2
        error = np.abs(batch.out[:500].copy_to_host().astype(float) - truth).max(axis=(2, 3))[:, -1]
        plan = common.plan(model, times, dtype)
        fused_cuda.observe_members(plan, starts[:8], wanted)
        begin = time.perf_counter()
        curves, _, _ = fused_cuda.observe_members(plan, starts, wanted)
        observed = time.perf_counter() - begin
        begin = time.perf_counter()
        states, _, status = fused_cuda.solve_members(plan, starts, 0, common.silent)
        copied = time.perf_counter() - begin
        on_host = _capture(expected, starts[:CHECKED_MEMBERS], delta)
        found |= {
            "accepted": float(counts[:, 0].mean()),
            "rejected": float(counts[:, 1].mean()),
            "evaluations": int(counts[:, 2].sum()),
            "pairs": pairs,
            "pairs_per_second": pairs / found["median"],
            "floor": pairs / rate,
            "over_floor": found["median"] * rate / pairs,
            "median_error": float(np.median(error)),
            "q99_error": float(np.quantile(error, 0.99)),
            "wall_with_observables": observed,
            "wall_with_states": copied,
            "finite": bool(np.isfinite(states).all() and (status == 0).all()),
            "against_reference": float(np.median(np.abs(states[:CHECKED_MEMBERS] - expected)[:, -1].max(axis=(1, 2)))),
            "capture": {
                name: {f"t={times[i]:g}": float(curve[:, i].mean()) for i in (0, 4, 12, 49)}
                for name, curve in curves.items()
            },
            "capture_against_reference": {
                name: float(np.abs(curves[name][:CHECKED_MEMBERS] - on_host[name]).max()) for name in curves
            },
        }
        result[dtype] = found
        print("figure 3", dtype, found, flush=True)
    return result


def _capture(states: np.ndarray, starts: np.ndarray, delta: float) -> dict[str, np.ndarray]:
    from metastable import observe

    curves = {}
    for name, strong in (("renyi", False), ("strong", True)):
        observable = observe.consumed(delta, strong=strong)
        curves[name] = np.array(
            [observable.measure(x, start=s, model=None, times=None) for x, s in zip(states, starts)]  # type: ignore[arg-type]
        )
    return curves


def right_hand_sides() -> dict[str, Any]:
    """Velocities of long sequences on the device, and their error against float64."""
    from numba import cuda

    from metastable.kernels.cuda import engine
    from metastable.model import Attention

    result: dict[str, Any] = {}
    for tokens, dim, dtype, kind in (
        (10**6, 3, "float32", "direct"),
        (10**6, 3, "float64", "direct"),
        (10**6, 2, "float32", "direct"),
        (10**6, 2, "float64", "direct"),
        (2**17, 8, "float32", "direct"),
        (2**17, 8, "float64", "direct"),
        (2**17, 16, "float32", "direct"),
        (2**17, 16, "float64", "direct"),
        (2**16, 64, "float32", "direct"),
        (2**16, 64, "float64", "direct"),
        (10**5, 2, "float64", "series"),
        (10**5, 2, "float64", "direct"),
        (10**6, 2, "float64", "series"),
        (10**7, 2, "float64", "series"),
    ):
        model = Attention(dim=dim, beta=9.0 if dim > 2 else common.BETA)
        sums = (engine.SeriesSums if kind == "series" else engine.DirectSums)(model, tokens, 0, dtype)
        y = cuda.to_device(common.unit_tokens(tokens, dim))
        out = cuda.device_array_like(y)
        found = common.seconds(lambda sums=sums, y=y, out=out: sums.evaluate(0.0, y, out), 5, 1)
        found["pairs_per_second"] = 0.5 * tokens**2 / found["median"]
        result[f"n={tokens} dim={dim} {dtype} {kind}"] = found
        print(f"n={tokens} dim={dim} {dtype} {kind}", found, flush=True)
    return result


def equivalence() -> dict[str, float]:
    """Relative difference of velocities from the CPU engine, n = 2000."""
    from metastable.kernels import cpu, cuda
    from metastable.model import Attention

    generator = np.random.default_rng(3)
    matrices = [generator.normal(size=(3, 3)) for _ in range(3)]
    result = {}
    for name, model in {
        "circle": Attention(dim=2, beta=common.BETA),
        "sphere": Attention(dim=3, beta=9.0),
        "sphere, Q K V": Attention(dim=3, beta=2.0, query=matrices[0], key=matrices[1], value=matrices[2]),
        "dim 32": Attention(dim=32, beta=9.0),
    }.items():
        y = common.unit_tokens(2000, model.dim)
        expected, found = np.zeros_like(y), np.zeros_like(y)
        cpu.right_hand_side(model, 2000)(0.0, y, expected)
        cuda.right_hand_side(model, 2000)(0.0, y, found)
        result[name] = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        cuda.right_hand_side(model, 2000, dtype="float32")(0.0, y, found)
        result[name + ", float32"] = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    print("against the CPU engine", result, flush=True)
    return result


def sphere_ensemble() -> dict[str, Any]:
    """An ensemble in three dimensions: 5000 members of 200 tokens to T = 50."""
    from metastable.model import Attention

    x = np.random.default_rng(2).normal(size=(common.MEMBERS, common.TOKENS, 3))
    starts = x / np.linalg.norm(x, axis=-1, keepdims=True)
    result: dict[str, Any] = {}
    for dtype in ("float32", "float64"):
        batch = common.batch(Attention(dim=3, beta=9.0), starts, np.linspace(1.0, 50.0, 50), 1e-6, dtype)
        found = common.seconds(batch.launch, 5, 1)
        pairs = float(batch.counts()[:, 2].sum()) * common.TOKENS * (common.TOKENS + 1) / 2
        result[dtype] = found | {"pairs_per_second": pairs / found["median"]}
        print("sphere ensemble", dtype, result[dtype], flush=True)
    return result


def _peers() -> dict[str, Any]:
    """The peers in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "benchmarks.gpu", "peers", "--out", folder], check=False)
        path = Path(folder) / "gpu-peers.json"
        return json.loads(path.read_text()) if path.exists() else {}


def _table(result: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("GPU", result["machine"]["nvidia-smi"])]
    peers = result.get("peers", {})
    for dtype in ("float32", "float64"):
        ours = result["figure_3"][dtype]
        text = f"{ours['median']:.4f} s, {ours['over_floor']:.2f} times the floor of {ours['floor']:.4f} s"
        rows.append((f"Figure 3, 5000 members, {dtype}", text + f", median error {ours['median_error']:.1e}"))
        other = peers.get(f"diffrax {dtype}", {}).get("median")
        if other:
            rows.append((f"  diffrax {dtype}", f"{other:.3f} s: ours is {other / ours['median']:.1f} times faster"))
    for name in ("torch Euler float32", "torch.compile Euler float32"):
        other = peers.get(name, {}).get("median")
        if other:
            ratio = other / result["figure_3"]["float32"]["median"]
            rows.append((f"  {name}", f"{other:.2f} s: ours is {ratio:.0f} times faster"))
    for name, found in result["right_hand_sides"].items():
        rows.append((name, f"{found['median']:.5f} s, {found['pairs_per_second']:.3g} pairs/s"))
    for name, found in peers.items():
        if name.startswith("torch attention"):
            text = (
                f"{found['median']:.4f} s, {found['pairs_per_second']:.3g} pairs/s" if "median" in found else "failed"
            )
            rows.append((f"  {name[6:]}", text))
    for name, value in result["equivalence"].items():
        rows.append((f"against the CPU engine, {name}", f"{value:.1e}"))
    for name, found in result["soak"].items():
        rows.append((name, str(found)[:200]))
    return rows


def main(folder: Path | None = None, quick: bool = False) -> int:
    """Everything; prints the table last and records all numbers as JSON."""
    result: dict[str, Any] = {"machine": common.machine(), "date": time.strftime("%Y-%m-%d")}
    for part in (figure_3, right_hand_sides, equivalence, sphere_ensemble):
        result[part.__name__] = part()
    from benchmarks.gpu import soak

    result["machine"] = common.machine()
    result["soak"] = soak.main()
    if not quick:
        result["peers"] = _peers()
    common.record("gpu", result, folder)
    common.show(_table(result))
    return 0
