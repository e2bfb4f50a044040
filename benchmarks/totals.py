"""Series under full attention and prefixes, one thread: `python -m benchmarks.totals [--tokens 1000000] [--beta 64]`.

CPU milliseconds for each right-hand side on the circle, against causal attention in the same run, and the error of the series against
direct sums (relative, the largest over all tokens) for ten thousand tokens. (The GPU's are in `benchmarks.gpu.totals`.)
"""

from __future__ import annotations

import argparse

import numpy as np

import metastable as ms
from benchmarks.timing import Contender, race, repeat
from metastable.kernels import cpu

CHECKED = 10**4
"""Tokens for which direct sums are compared with."""


def contender(mask: ms.Full | ms.Causal | ms.Prefix, tokens: int, beta: float) -> Contender:
    model = ms.Attention(dim=2, beta=beta, mask=mask)
    x = ms.sphere.uniform(tokens, dim=2, seed=0)
    out = np.zeros_like(x)
    velocity = cpu.right_hand_side(model, tokens, interaction="series", threads=1)
    times = max(1, 2 * 10**6 // tokens)
    return Contender(repr(mask), repeat(lambda: velocity(0.0, x, out), times), times)


def error(mask: ms.Full | ms.Causal | ms.Prefix, beta: float) -> float:
    model, x = ms.Attention(dim=2, beta=beta, mask=mask), ms.sphere.uniform(CHECKED, dim=2, seed=0)
    series, direct = (ms.velocity(model, x, engine="cpu", interaction=kind) for kind in ("series", "direct"))
    return float(np.abs(series - direct).max() / np.abs(direct).max())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.totals", description=__doc__)
    parser.add_argument("--tokens", type=int, default=10**6)
    parser.add_argument("--beta", type=float, default=64.0)
    given = parser.parse_args()
    cases = [
        (make(given.tokens), make(CHECKED))
        for make in (lambda n: ms.Full(), lambda n: ms.Prefix(n // 2), lambda n: ms.Causal())
    ]
    found = race([contender(mask, given.tokens, given.beta) for mask, _ in cases], rounds=8)
    causal = found[-1].best
    print(f"{given.tokens} tokens, beta = {given.beta:g}, one thread: CPU ms for a right-hand side")
    for item, (_, small) in zip(found, cases):
        ratio = causal / item.best
        print(
            f"  {item.name:16s} {1e3 * item.best:7.2f} ms, {ratio:4.2f} times as fast as causal, error {error(small, given.beta):.1e}"
        )


if __name__ == "__main__":
    main()
