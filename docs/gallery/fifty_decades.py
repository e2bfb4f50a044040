r"""How long do clusters last?

Ask for the end: `until="settled"`. The implicit solver takes steps as long as nothing happens, so fifty decades of
depth are about a thousand steps. Clusters that are a distance $D$ apart merge at $\ln t \approx \beta(1 - \cos D)$,
one by one, until all tokens sit on the first one, as Theorem 4.1 says they must. Top: every token in the colour of
its cluster. Bottom: how many are left, beside the law $N(t) = \pi/\arccos(1 - \ln t/\beta)$.
"""

import numpy as np

import metastable as ms
from metastable.figures import long_runs, style

model = ms.Attention(dim=2, beta=64.0)
run = ms.simulate(model, ms.sphere.uniform(100, dim=2, seed=0), until="settled")
tree = ms.merge_tree(run)
print(
    f"settled at t = {run.notes['settled']:.2g} after {run.stats.accepted} steps; the last merge is at t = {tree.time[-1]:.2g}"
)

times = np.geomspace(0.1, run.end, 700)
states = run.at(times)
counts = [tree.labels_at(t).max() + 1 for t in times]

with style.theme("screen"):
    page, (top, bottom) = style.figure(6.6, 4.4, rows=2, height_ratios=[1.7, 1.0], sharex=True)
    long_runs.draw_cascade(top, times, states, tree, since=20.0)
    long_runs.draw_cluster_counts(bottom, times, counts, law=ms.theory.cluster_count(np.maximum(times, 1.1), 64.0, 2))
    bottom.legend(loc="upper right")
    top.set_xlabel("")
    style.save(page, "fifty_decades")
