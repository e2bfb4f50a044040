"""Variants of the kernels side by side: registers and forms of the ensemble kernel, rows per thread of the pair kernel."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.gpu import common


def ensembles(result: dict[str, Any]) -> None:
    """Registers per thread for the Figure 3 ensemble."""
    from metastable.model import Attention

    starts, times = common.figure_3()
    model = Attention(dim=2, beta=common.BETA)
    accurate = common.batch(model, starts[:500], times, 1e-9)
    accurate.launch()
    truth = accurate.states()
    for dtype, registers in (*(("float32", n) for n in (64, 80, 96)), *(("float64", n) for n in (104, 128))):
        begin = time.time()
        batch = common.batch(model, starts, times, 1e-6 + 1e-9, dtype, registers=registers)
        found = common.seconds(batch.launch, 5, 1)
        counts = batch.counts()
        error = np.abs(batch.out[:500].copy_to_host().astype(float) - truth).max(axis=(2, 3))
        found |= {
            "accepted": float(counts[:, 0].mean()),
            "rejected": float(counts[:, 1].mean()),
            "evaluations": int(counts[:, 2].sum()),
            "median_error": float(np.median(error[:, -1])),
            "q99_error": float(np.quantile(error[:, -1], 0.99)),
            "compile_and_run": time.time() - begin,
        }
        result[f"ensemble {dtype} registers={registers}"] = found
        print(dtype, registers, found, flush=True)


def spheres(result: dict[str, Any]) -> None:
    """Registers per thread for an ensemble in three dimensions."""
    from metastable.model import Attention

    x = np.random.default_rng(2).normal(size=(common.MEMBERS, common.TOKENS, 3))
    starts = x / np.linalg.norm(x, axis=-1, keepdims=True)
    model, times = Attention(dim=3, beta=9.0), np.linspace(1.0, 20.0, 20)
    for dtype, registers in (("float32", 80), ("float32", 128), ("float32", 168), ("float64", 128), ("float64", 168)):
        batch = common.batch(model, starts, times, 1e-6, dtype, registers=registers)
        found = common.seconds(batch.launch, 3, 1)
        result[f"sphere {dtype} registers={registers}"] = found
        print("sphere", dtype, registers, found, flush=True)


def pairs(result: dict[str, Any]) -> None:
    """Rows per thread and launch bounds of the kernels for long sequences."""
    from metastable.kernels.cuda import engine
    from metastable.kernels.cuda import pairs as pair_module
    from metastable.kernels.cuda.intrinsics import ARITHMETIC
    from metastable.model import Attention

    plan = [(3, "float32", 2**20, (2, 4, 6, 8), (128,), (None, 4)), (2, "float32", 2**19, (4, 8), (128,), (None,))]
    plan += [(3, "float64", 2**18, (1, 2, 4), (128,), (None, 6)), (8, "float32", 2**18, (2, 4), (128,), (None,))]
    plan += [(16, "float32", 2**17, (1, 2), (128,), (None,)), (16, "float64", 2**16, (1, 2), (128,), (None,))]
    plan += [(8, "float64", 2**17, (1, 2), (128,), (None,))]
    original_rows = engine.rows_per_thread
    for dim, dtype, tokens, row_choices, thread_choices, block_choices in plan:
        for rows in row_choices:
            for threads in thread_choices:
                for blocks in block_choices:
                    options = {} if blocks is None else {"launch_bounds": (threads, blocks)}
                    kernel = pair_module.make_kernel(ARITHMETIC[dtype], dim, rows, threads, False, **options)
                    engine.rows_per_thread = lambda *_, rows=rows: rows
                    engine.PAIR_THREADS = threads
                    sums = engine.DirectSums(Attention(dim=dim, beta=9.0), tokens, 0, dtype)
                    engine.pair_kernel.cache_clear()
                    original, engine.pair_kernel = engine.pair_kernel, lambda *_, kernel=kernel: kernel
                    _one(result, f"pairs dim={dim} {dtype} n={tokens} rows={rows} bounds={blocks}", sums, tokens)
                    engine.pair_kernel = original
    engine.rows_per_thread = original_rows


def wide(result: dict[str, Any]) -> None:
    """Blocks per multiprocessor of the kernel for large dimension."""
    from metastable.kernels.cuda import engine, tiles
    from metastable.kernels.cuda.intrinsics import ARITHMETIC
    from metastable.model import Attention

    for dtype, blocks in (("float32", 1), ("float32", 2), ("float32", 3), ("float64", 2)):
        kernel = tiles.make_kernel(ARITHMETIC[dtype], 64, False, launch_bounds=(tiles.THREADS, blocks))
        sums = engine.DirectSums(Attention(dim=32, beta=9.0), 2**16, 0, dtype)
        original, engine.pair_kernel = engine.pair_kernel, lambda *_, kernel=kernel: kernel
        _one(result, f"dim=32 {dtype} n={2**16} blocks={blocks}", sums, 2**16)
        engine.pair_kernel = original


def _one(result: dict[str, Any], name: str, sums: Any, tokens: int) -> None:
    from numba import cuda

    y = cuda.to_device(common.unit_tokens(tokens, sums.model.dim))
    out = cuda.device_array_like(y)
    try:
        found = common.seconds(lambda: sums.evaluate(0.0, y, out), 3, 1)
    except Exception as reason:
        print(name, "failed:", repr(reason)[:200], flush=True)
        return
    found["pairs_per_second"] = 0.5 * tokens * tokens / found["median"]
    result[name] = found
    print(name, f"{found['median']:.5f} s, {found['pairs_per_second']:.3g} pairs/s", flush=True)


def series(result: dict[str, Any]) -> None:
    """Series against direct sums on the circle."""
    from metastable.kernels.cuda import engine
    from metastable.model import Attention

    model = Attention(dim=2, beta=common.BETA)
    for tokens in (10_000, 30_000, 100_000, 1_000_000):
        for name, kind in (("series", engine.SeriesSums), ("direct", engine.DirectSums)):
            if name == "direct" and tokens > 200_000:
                continue
            _one(result, f"circle float64 n={tokens} {name}", kind(model, tokens), tokens)


PARTS = {"ensembles": ensembles, "spheres": spheres, "pairs": pairs, "wide": wide, "series": series}


def main(only: list[str] | None = None) -> dict[str, Any]:
    """Everything, or some `PARTS`; prints as it goes."""
    parts = [PARTS[name] for name in only or PARTS]
    result: dict[str, Any] = {"machine": common.machine()}
    print(result["machine"], flush=True)
    for part in parts:
        begin = time.time()
        part(result)
        print(f"-- {part.__name__}: {time.time() - begin:.0f} s", flush=True)
    return result
