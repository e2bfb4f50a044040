"""engine="torch" beside plain torch, on a GPU where there is one: seconds per right-hand side, both precisions, interleaved.

    python benchmarks/gpu/products.py [n divided by]

Plain torch is the better one of `scaled_dot_product_attention` and two matrix products with a softmax between. Before anything is
timed, the engine is compared with the reference engine.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

from metastable.kernels import reference
from metastable.kernels import torch as engine
from metastable.model import Attention, Head

SIZES = ((4096, 64, 1), (4096, 64, 8), (2048, 576, 9))
REPEATS = 20
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model_of(dim: int, heads: int, rng: np.random.Generator) -> Attention:
    """Heads of rank dim / heads with random matrices."""
    rank = dim // heads

    def draw(rows: int, columns: int) -> np.ndarray:
        return rng.normal(size=(rows, columns)) / columns**0.5

    made = [Head(draw(rank, dim), draw(rank, dim), draw(rank, dim), 1.0, draw(dim, rank)) for _ in range(heads)]
    return Attention(dim=dim, heads=tuple(made))


def plain(model: Attention, tokens: int, real: torch.dtype, product: bool):
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
            z = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=1.0)[
                0
            ]
        else:
            z = torch.softmax((q @ k.transpose(1, 2)).masked_fill_(hidden, -torch.inf), dim=2) @ v
        drift = z.transpose(0, 1).reshape(tokens, -1) @ output
        return drift - (drift * x).sum(dim=1, keepdim=True) * x

    return velocity


def synchronize() -> None:
    """Wait for the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds(work) -> float:
    synchronize()
    begin = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begin


def compare(model: Attention, x: np.ndarray, truth: np.ndarray, dtype: str, real: torch.dtype) -> str:
    """One line: times, the ratio to plain torch, and how far the velocity is from that of the reference engine."""
    ours = engine.right_hand_side(model, len(x), dtype=dtype)
    state, rows = torch.tensor(x, device=DEVICE), torch.tensor(x, device=DEVICE, dtype=real)
    out = torch.zeros_like(state)
    product, matrices = (plain(model, len(x), real, which) for which in (True, False))
    works = {
        "ours": lambda: ours.evaluate(0.0, state, out),
        "product": lambda: product(rows),
        "matrices": lambda: matrices(rows),
    }
    best = {name: min(seconds(work) for _ in range(3)) for name, work in works.items()}
    for _ in range(REPEATS):
        for name, work in works.items():
            best[name] = min(best[name], seconds(work))
    error = np.abs(out.cpu().numpy() - truth).max() / np.abs(truth).max()
    ratio = best["ours"] / min(best["product"], best["matrices"])
    times = ", ".join(f"{name} {1e3 * value:.3f} ms" for name, value in best.items())
    return f"{times}; ratio {ratio:.2f}; error {error:.1e}"


def main() -> None:
    rng = np.random.default_rng(0)
    shrink = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for size, dim, heads in SIZES:
        tokens = size // shrink
        model = model_of(dim, heads, rng)
        x = rng.normal(size=(tokens, dim))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        truth = np.zeros_like(x)
        reference.right_hand_side(model, tokens)(0.0, x, truth)
        for dtype, real in (("float64", torch.float64), ("float32", torch.float32)):
            print(f"n={tokens} d={dim} heads={heads} {dtype}: {compare(model, x, truth, dtype, real)}", flush=True)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
