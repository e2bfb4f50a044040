"""What a member costs: a cost model fitted on some settings and checked on others (docs/scale.md).

    seconds per member = evaluations * pairs * a(d),     pairs = n (n + 1)/2            (direct sums)
    seconds per member = evaluations * n * M * b,        M = 7.2 sqrt(beta) modes       (series on the circle)

Processor time of one thread is measured, so that other programs on the machine matter little.

    python examples/sweeps/cost.py
"""

from __future__ import annotations

import time

import numpy as np

import metastable as ms

HORIZON = 20.0
MEMBERS = 16
"""The kernels move eight members at once (four without AVX-512); fewer cost more each."""


def measure(
    dim: int, beta: float, tokens: int, interaction: str, members: int, value: bool = False
) -> tuple[float, float]:
    """Processor seconds and evaluations per member."""
    matrix = np.diag([1.0, 1.0] + [0.0] * (dim - 2)) if value else None
    model = ms.Attention(dim=dim, beta=beta, value=matrix)
    options = {
        "times": [HORIZON],
        "observe": {"cosine": ms.observe.mean_cosine()},
        "interaction": interaction,
        "threads": 1,
    }
    ms.ensemble(model, tokens=tokens, members=1, seed=0, **options)
    begin = time.process_time()
    stats = ms.ensemble(model, tokens=tokens, members=members, seed=1, **options)
    return (time.process_time() - begin) / members, float(stats["evaluations"].mean())


def work(dim: int, beta: float, tokens: int, interaction: str) -> float:
    """Operations of one evaluation, up to a constant."""
    return tokens * (tokens + 1) / 2 if interaction == "direct" else tokens * 7.2 * beta**0.5


FITTED = [(100, 64.0), (200, 16.0), (400, 64.0)]
CHECKED = [(150, 32.0), (300, 64.0), (800, 16.0)]
KINDS = [(2, "direct", False), (2, "series", False), (3, "direct", False), (8, "direct", True)]


def main() -> None:
    """Fit the constants, predict other settings, and print both."""
    print("| case | ns per pair (or token and mode) | n, beta: measured ms / predicted |\n|---|---|---|")
    for dim, interaction, value in KINDS:
        rates = []
        for tokens, beta in FITTED:
            seconds, evaluations = measure(dim, beta, tokens, interaction, MEMBERS, value)
            rates.append(seconds / (evaluations * work(dim, beta, tokens, interaction)))
        rate = float(np.median(rates))
        checks = []
        for tokens, beta in CHECKED:
            seconds, evaluations = measure(dim, beta, tokens, interaction, MEMBERS, value)
            predicted = rate * evaluations * work(dim, beta, tokens, interaction)
            checks.append(f"{tokens}, {beta:g}: {1e3 * seconds:.3g} / {seconds / predicted:.2f}")
        name = f"d = {dim}, {interaction}" + (", V" if value else "")
        print(f"| {name} | {1e9 * rate:.3g} ({1e9 * min(rates):.3g} to {1e9 * max(rates):.3g}) | {'; '.join(checks)} |")
    print("\n| beta | evaluations to t = 20 | to t = 200 | to t = 1000 |\n|---|---|---|---|")
    for beta in (4.0, 16.0, 64.0, 256.0):
        model = ms.Attention(dim=2, beta=beta)
        counts = []
        for until in (20.0, 200.0, 1000.0):
            observe = {"cosine": ms.observe.mean_cosine()}
            stats = ms.ensemble(model, tokens=100, members=8, times=[until], seed=2, observe=observe, method="tsit5")
            counts.append(f"{float(stats['evaluations'].mean()):.0f}")
        print(f"| {beta:g} | {' | '.join(counts)} |")


if __name__ == "__main__":
    main()
