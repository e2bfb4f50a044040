"""Which clusters will merge, and when?

No long simulation is needed: from the clusters at $t = 100$, `predict_merges` follows their leaders alone, in
milliseconds. Each branch is a cluster, as wide as it is large, and ends where it is swallowed. Rings are what a full
simulation to the end finds: the same parents, and times that agree to a small part of a decade, over tens of decades.
"""

import numpy as np

import metastable as ms
from metastable.figures import long_runs, style

model = ms.Attention(dim=2, beta=64.0)
start = ms.sphere.uniform(150, dim=2, seed=2)
tree = ms.simulate(model, start, until=100.0).predict_merges()

simulated = ms.merge_tree(ms.simulate(model, start, until="settled"))
later = simulated.time > 100.0
found = {(int(c), int(p)): t for c, p, t in zip(simulated.child[later], simulated.parent[later], simulated.time[later])}
off = [abs(np.log10(t / found[int(c), int(p)])) for c, p, t in zip(tree.child, tree.parent, tree.time)]
print(f"{len(tree.time)} merges, all with the right parent; the largest error of a time is {max(off):.4f} decades")

with style.theme("screen"):
    page, ax = style.figure(6.4, 2.9)
    end = 30 * tree.time[-1]
    long_runs.draw_merges(ax, tree, since=100.0, end=end)
    heights = {int(label.get_text()): place for place, label in zip(ax.get_yticks(), ax.get_yticklabels())}
    for (child, _), t in found.items():
        ax.plot(
            t, heights[child], marker="o", markersize=9, markerfacecolor="none", markeredgecolor=style.INK, zorder=6
        )
    ax.plot(
        [],
        [],
        marker="o",
        markersize=9,
        markerfacecolor="none",
        markeredgecolor=style.INK,
        linestyle="",
        label="simulated",
    )
    ax.legend(loc="upper right")
    style.save(page, "predict_merges")
