"""From which dimension on engine="torch" beats engine="cuda" on this GPU: seconds per right-hand side of one head with random Q, K, V.

python -m benchmarks.gpu.crossover
"""

from __future__ import annotations

import numpy as np

from benchmarks.gpu import common

DIMS = (8, 16, 20, 32)
TOKENS = (4096, 16384, 65536)


def main() -> None:
    import torch
    from numba import cuda

    from metastable.kernels.cuda import engine as kernels
    from metastable.kernels.torch.engine import RECORD_AFTER, Velocity
    from metastable.model import Attention

    for dim in DIMS:
        rng = np.random.default_rng(0)
        matrices = {name: rng.normal(size=(dim, dim)) / dim**0.5 for name in ("query", "key", "value")}
        model = Attention(dim=dim, beta=1.0, **matrices)
        for tokens in TOKENS:
            x = common.unit_tokens(tokens, dim)
            for dtype in ("float32", "float64"):
                sums = kernels.DirectSums(model, tokens, 0, dtype)
                y, out = cuda.to_device(x), cuda.device_array_like(x)
                ours = common.seconds(lambda sums=sums, y=y, out=out: sums.evaluate(0.0, y, out), 7, 2)["least"]
                velocity = Velocity(model, tokens, 0, None, dtype)
                state = torch.tensor(x, device="cuda")
                result = torch.empty_like(state)
                for _ in range(RECORD_AFTER + 2):
                    velocity.evaluate(0.0, state, result)
                times = []
                for _ in range(7):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    velocity.evaluate(0.0, state, result)
                    end.record()
                    torch.cuda.synchronize()
                    times.append(begin.elapsed_time(end) / 1e3)
                error = np.abs(result.cpu().numpy() - out.copy_to_host()).max()
                print(
                    f"d={dim} n={tokens} {dtype}: cuda {1e3 * ours:.3f} ms, torch {1e3 * min(times):.3f} ms, "
                    f"cuda/torch {ours / min(times):.2f}, difference {error:.1e}",
                    flush=True,
                )
                del velocity, sums
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
