"""Statistics of many runs: how much the strong centers have consumed, and how many clusters are left.

    python examples/ensemble_statistics.py

Writes ensemble_statistics.png into the current folder.
"""

import numpy as np

import metastable as ms
from metastable.figures import style
from metastable.figures.curves import draw_band

beta = 64.0
delta = 4 / np.sqrt(beta)
times = np.linspace(0, 100, 41)
stats = ms.ensemble(
    ms.Attention(dim=2, beta=beta),
    tokens=200,
    members=100,
    times=times,
    seed=0,
    observe={
        "consumed": ms.observe.consumed(delta=delta, strong=True),
        "clusters": ms.observe.clusters(radius=0.5 / np.sqrt(beta)),
    },
)
print(stats)

with style.theme("screen"):
    page, axes = style.figure(width=9, height=3.4, columns=2)
    for ax, name, label, factor in (
        (axes[0], "consumed", "consumed by strong centers (%)", 100),
        (axes[1], "clusters", "clusters", 1),
    ):
        values = factor * stats[name].transpose("member", "time").values
        low, high = np.quantile(values, [0.1, 0.9], axis=0)
        draw_band(
            ax, times, values.mean(axis=0), low, high, color=style.STRONG if name == "consumed" else style.MEASURED
        )
        ax.set_xlabel("depth $t$")
        ax.set_ylabel(label)
        style.grid(ax)
    style.save(page, "ensemble_statistics")
print("wrote ensemble_statistics.png")
