r"""How many clusters does the temperature allow?

Tokens feel each other at distances of about $\beta^{-1/2}$, so about $2\pi/(4\beta^{-1/2})$ of them can park on the
circle. Dots: clusters at $t = 50$ in ensembles of a hundred draws, with the 10 % to 90 % band. Lines: the expected
number of strong centers, $\pi/\delta$ (a closed formula), and Rényi's parking number, $0.7476 \cdot 2\pi/\delta$,
with $\delta = 4\beta^{-1/2}$. Four times the inverse temperature, twice the clusters.
"""

import numpy as np

import metastable as ms
from metastable.figures import style

betas = np.array([4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0])
delta = 4 / np.sqrt(betas)
counts = []
for beta in betas:
    stats = ms.ensemble(
        ms.Attention(dim=2, beta=beta),
        tokens=150,
        members=100,
        times=[0.0, 50.0],
        seed=0,
        observe={"clusters": ms.observe.clusters()},
    )
    counts.append(stats.clusters.sel(time=50.0).values)
counts = np.array(counts)

with style.theme("screen"):
    page, ax = style.figure(5.6, 3.6)
    low, high = np.quantile(counts, [0.1, 0.9], axis=1)
    mean = counts.mean(axis=1)
    ax.errorbar(
        betas, mean, [mean - low, high - mean], fmt="o", color=style.MEASURED, capsize=2, label="clusters at $t = 50$"
    )
    ax.plot(betas, [ms.theory.renyi_centers_limit(d) for d in delta], color=style.RENYI, label="Rényi's parking number")
    ax.plot(
        betas,
        [ms.theory.strong_centers(d, 2) for d in delta],
        color=style.STRONG,
        linestyle=(0, (4, 2)),
        label="strong centers",
    )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(betas, [f"{beta:g}" for beta in betas])
    ax.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    ax.set_xlabel(r"inverse temperature $\beta$")
    ax.set_ylabel("number on the circle")
    ax.legend(loc="upper left")
    style.grid(ax)
    style.save(page, "temperature")
