"""engine="torch" beside plain torch, on a GPU where there is one: seconds per right-hand side, both precisions, interleaved.

    python benchmarks/gpu/products.py [--shrink N] [--variants]

Plain torch is the better one of `scaled_dot_product_attention` and two matrix products with a softmax between. Before anything is
timed, the engine is compared with the reference engine. `--variants` also times other sizes of blocks, torch's own product or blocks
by force, and velocities that are not recorded: what the constants of `kernels.torch.engine` were chosen from.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch

import metastable as ms
from metastable.kernels import reference
from metastable.kernels.torch import engine
from metastable.model import Attention, Head

SIZES = ((4096, 64, 1), (4096, 64, 8), (2048, 576, 9))
REPEATS, WARM = 30, engine.RECORD_AFTER + 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model_of(dim: int, heads: int, rng: np.random.Generator) -> Attention:
    """Heads of rank dim / heads with random matrices."""
    rank = dim // heads

    def draw(rows: int, columns: int) -> np.ndarray:
        return rng.normal(size=(rows, columns)) / columns**0.5

    made = [Head(draw(rank, dim), draw(rank, dim), draw(rank, dim), 1.0, draw(dim, rank)) for _ in range(heads)]
    return Attention(dim=dim, heads=tuple(made))


def plain(model: Attention, tokens: int, real: torch.dtype, product: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same velocity written down in torch."""
    heads = model.all_heads
    place = {"device": DEVICE, "dtype": real}
    query, key, value = (
        torch.tensor(np.concatenate([getattr(head, name) for head in heads]), **place)
        for name in ("query", "key", "value")
    )
    output = torch.tensor(np.concatenate([head.output for head in heads], axis=1).T.copy(), **place)
    hidden = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool, device=DEVICE), 1)

    def velocity(x: torch.Tensor) -> torch.Tensor:
        q, k, v = ((x @ w.T).view(tokens, len(heads), -1).transpose(0, 1) for w in (query, key, value))
        if product:
            sides = (q[None], k[None], v[None])
            z = torch.nn.functional.scaled_dot_product_attention(*sides, is_causal=True, scale=1.0)[0]
        else:
            z = torch.softmax((q @ k.transpose(1, 2)).masked_fill_(hidden, -torch.inf), dim=2) @ v
        drift = z.transpose(0, 1).reshape(tokens, -1) @ output
        return drift - (drift * x).sum(dim=1, keepdim=True) * x

    return velocity


def synchronize() -> None:
    """Wait for the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object]) -> float:
    synchronize()
    begin = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begin


def least(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least time of each, all of them taken in turns, after some calls that do not count."""
    for work in works.values():
        for _ in range(WARM):
            work()
    best = dict.fromkeys(works, float("inf"))
    for _ in range(REPEATS):
        for name, work in works.items():
            best[name] = min(best[name], seconds(work))
    return best


@contextmanager
def setting(held: int | None = None, fused: bool | None = None, recorded: bool = True) -> Iterator[None]:
    """Velocities that are made within hold so many weights, use torch's own product or not, are recorded or not."""
    changes = [mock.patch.object(engine, "RECORD_AFTER", engine.RECORD_AFTER if recorded else 10**9)]
    if held is not None:
        changes.append(mock.patch.dict(engine.HELD, {DEVICE: held}))
    if fused is not None:
        changes.append(mock.patch.object(engine.Velocity, "_is_fused", return_value=fused))
    for change in changes:
        change.start()
    try:
        yield
    finally:
        for change in reversed(changes):
            change.stop()


VARIANTS = {
    "as it is": {},
    "not recorded": {"recorded": False},
    "own product": {"fused": True},
    **{f"blocks of 2^{power}": {"held": 2**power, "fused": False} for power in range(21, 28)},
    "blocks of 2^24, not recorded": {"held": 2**24, "fused": False, "recorded": False},
}


def compare(model: Attention, x: np.ndarray, truth: np.ndarray, dtype: str, variants: dict[str, dict]) -> None:
    """Times, the ratio to plain torch, and how far the velocity is from that of the reference engine, of every variant."""
    real = engine.REAL[dtype]
    state, rows = torch.tensor(x, device=DEVICE), torch.tensor(x, device=DEVICE, dtype=real)
    out = torch.zeros_like(state)
    product, matrices = (plain(model, len(x), real, which) for which in (True, False))
    for name, options in variants.items():
        if options.get("fused") and dtype == "float64" and DEVICE == "cuda":
            continue  # torch's own product makes all pairs there
        with setting(**options):
            ours = engine.Velocity(model, len(x), 0, None, dtype)
            works = {
                "ours": lambda ours=ours: ours.evaluate(0.0, state, out),
                "product": lambda: product(rows),
                "matrices": lambda: matrices(rows),
            }
            best = least(works)
        error = np.abs(out.cpu().numpy() - truth).max() / np.abs(truth).max()
        ratio = best["ours"] / min(best["product"], best["matrices"])
        times = ", ".join(f"{key} {1e3 * value:.3f} ms" for key, value in best.items())
        print(f"  {name:30s} {times}; ratio {ratio:.2f}; error {error:.1e}", flush=True)
        del ours
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def whole_run(model: Attention, x: np.ndarray) -> None:
    """`simulate` to t = 1 at rtol 1e-4, both precisions."""
    for dtype in ("float64", "float32"):
        options = {
            "times": [1.0],
            "rtol": 1e-4,
            "engine": "torch",
            "method": "tsit5",
            "dtype": dtype,
            "progress": False,
        }
        run = ms.simulate(model, x, **options)
        took = min(seconds(lambda options=options: ms.simulate(model, x, **options)) for _ in range(3))
        print(f"  simulate to t = 1, {dtype}: {took:.3f} s, {run.stats.evaluations} right-hand sides", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shrink", type=int, default=1, help="divide the number of tokens by this")
    parser.add_argument("--variants", action="store_true", help="other sizes of blocks too")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    for size, dim, heads in SIZES:
        tokens = size // arguments.shrink
        model = model_of(dim, heads, rng)
        x = rng.normal(size=(tokens, dim))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        truth = np.zeros_like(x)
        reference.right_hand_side(model, tokens)(0.0, x, truth)
        for dtype in ("float64", "float32"):
            print(f"n={tokens} d={dim} heads={heads} {dtype}", flush=True)
            compare(model, x, truth, dtype, VARIANTS if arguments.variants else {"as it is": {}})
    whole_run(model, x)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
