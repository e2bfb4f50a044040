"""`metastable.ensemble` of the paper's Figure 3 on a GPU, the whole call: both capture curves, both precisions, a profile.

python benchmarks/gpu/ensemble.py [--members 5000 50000] [--engine cuda]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

import numpy as np

from benchmarks.gpu import common

REPEATS = 5


def whole_call(members: int, dtype: str, engine: str) -> None:
    """One ensemble, as a user asks for it."""
    import metastable as ms

    delta = 4.0 / common.BETA**0.5
    ms.ensemble(
        ms.Attention(dim=2, beta=common.BETA),
        tokens=common.TOKENS,
        members=members,
        times=np.linspace(common.HORIZON / common.OUTPUTS, common.HORIZON, common.OUTPUTS),
        seed=0,
        observe={"renyi": ms.observe.consumed(delta), "strong": ms.observe.consumed(delta, strong=True)},
        method="tsit5",
        interaction="direct",
        engine=engine,
        dtype=dtype,
        progress=False,
    )


def parts(members: int) -> None:
    """What is done before the kernel: the starts, and their way to the device."""
    from metastable.kernels.cpu import starts

    begin = time.perf_counter()
    drawn = starts.uniform(0, 0, members, common.TOKENS, 2)
    took = time.perf_counter() - begin
    from numba import cuda

    begin = time.perf_counter()
    cuda.to_device(drawn)
    cuda.synchronize()
    print(f"  starts drawn in {1e3 * took:.1f} ms, copied in {1e3 * (time.perf_counter() - begin):.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="*", default=[5000, 50000])
    parser.add_argument("--engine", default="cuda")
    arguments = parser.parse_args()
    for members in arguments.members:
        for dtype in ("float32", "float64"):
            whole_call(members, dtype, arguments.engine)  # compiles
            took = []
            for _ in range(REPEATS):
                begin = time.perf_counter()
                whole_call(members, dtype, arguments.engine)
                took.append(time.perf_counter() - begin)
            print(f"{members} members, {dtype}: least {min(took):.4f} s, median {sorted(took)[REPEATS // 2]:.4f} s")
            if arguments.engine == "cuda":
                parts(members)
            profile = cProfile.Profile()
            profile.runcall(whole_call, members, dtype, arguments.engine)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(28)


if __name__ == "__main__":
    main()
