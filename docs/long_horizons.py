"""Draw the pictures of the page on long horizons, and print its numbers.

    python docs/long_horizons.py

Takes about a minute on one core.
"""

import math
from pathlib import Path

import numpy as np

import metastable as ms
from metastable.figures import style
from metastable.figures.long_runs import collapse, long_run
from metastable.figures.moments import sample
from metastable.integrate import rodas
from metastable.integrate.plan import Accuracy, Save

IMAGES = Path(__file__).parent / "images"
BETAS = (16.0, 32.0, 64.0)
TOKENS, DRAWS = 200, 100


def law(times: np.ndarray, beta: float) -> np.ndarray:
    """N(t) where it is defined."""
    return np.array([ms.theory.cluster_count(t, beta, 2) if t > 3 else np.nan for t in times])


def one_run(beta: float) -> None:
    """The cascade of one draw."""
    start = ms.sphere.uniform(TOKENS, dim=2, seed=1)
    decades = 2 * beta / math.log(10)
    run = ms.simulate(ms.Attention(dim=2, beta=beta), start, until=10.0 ** math.ceil(decades + 1))
    tree = ms.merge_tree(run, radius=0.5 / math.sqrt(beta))
    times, states = sample(run, 500, log=True)
    page = long_run(
        times,
        states,
        tree,
        since=30.0 if beta < 20 else 100.0,
        law=law(times, beta),
        title=rf"$n = {TOKENS}$, $\beta = {beta:g}$",
    )
    style.save(page, IMAGES / f"long-run-{beta:g}")
    steps = [f"{segment['method']} {segment['steps']} steps" for segment in run.notes["segments"]]
    print(f"beta = {beta:g}: last merge at t = {tree.time[-1]:.3g}; {', '.join(steps)}; complete: {tree.complete}")


def many_runs(beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """log10 of the collapse times, output times, cluster counts and the law for many draws."""
    starts = np.stack([ms.sphere.uniform(TOKENS, dim=2, seed=1000 + draw) for draw in range(DRAWS)])
    times = 10.0 ** np.arange(0.5, 2 * beta / math.log(10) + 1.01, 0.5)
    model, horizon = ms.Attention(dim=2, beta=beta), float(times[-1])
    solved = [rodas.solve(model, x, Save(horizon, times, settled=True), Accuracy(1e-4)) for x in starts]
    assert {solution.status for solution in solved} == {"success"}
    decades = np.array([math.log10(solution.notes["settled"]) for solution in solved])
    radius = 0.5 / math.sqrt(beta)
    counts = np.array([[ms.cluster_labels(x, radius=radius).max() + 1 for x in one.states] for one in solved])
    low, median, high = np.quantile(decades, [0.1, 0.5, 0.9])
    print(
        f"beta = {beta:g}: {DRAWS} draws, log10 of the collapse time {decades.min():.1f}..{decades.max():.1f}, "
        f"median {median:.1f}, 10 % {low:.1f}, 90 % {high:.1f}; bound {2 * beta / math.log(10):.1f}"
    )
    return decades, times, counts, law(times, beta)


for beta in BETAS:
    one_run(beta)
style.save(collapse(BETAS, *zip(*(many_runs(beta) for beta in BETAS))), IMAGES / "collapse-times")
