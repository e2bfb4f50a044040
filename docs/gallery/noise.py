r"""How much noise do clusters survive?

Tokens may do a Brownian motion on the sphere as well. A little noise ($\sigma = 0.1$) shakes the clusters, and lets
them find each other much sooner than without. More of it ($\sigma = 0.7$) melts them: a token that is carried further
than $\beta^{-1/2}$ is out of reach of those that held it. Right: the mean cosine between tokens at $t = 50$, mean and
10 % to 90 % band of two dozen members. In between lies the noise that gathers most.
"""

import numpy as np

import metastable as ms
from metastable.figures import draw_band, draw_world_lines, style

beta = 16.0
start = ms.sphere.uniform(60, dim=2, seed=0)
sigmas = np.array([0.02, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8])
cosines = []
for sigma in sigmas:
    stats = ms.ensemble(
        ms.Attention(dim=2, beta=beta, noise=sigma), tokens=40, members=24, times=[0.0, 50.0], seed=1, step=0.05,
        observe={"cosine": ms.observe.mean_cosine()},
    )  # fmt: skip
    cosines.append(stats.cosine.sel(time=50.0).values)
cosines = np.array(cosines)

with style.theme("screen"):
    page, (calm, wild, ax) = style.figure(8.4, 3.1, columns=3, width_ratios=[1, 1, 1.1])
    for panel, sigma in ((calm, 0.1), (wild, 0.7)):
        run = ms.simulate(
            ms.Attention(dim=2, beta=beta, noise=sigma), start, times=np.linspace(0, 30, 301), step=0.02, seed=3
        )
        draw_world_lines(panel, run.times, run.states, width=0.5, opacity=0.7)
        style.panel(panel, "", rf"$\sigma = {sigma}$")
    wild.set_ylabel("")
    low, high = np.quantile(cosines, [0.1, 0.9], axis=1)
    draw_band(ax, sigmas, cosines.mean(axis=1), low, high)
    ax.set_xlabel(r"noise $\sigma$")
    ax.set_ylabel("mean cosine at $t = 50$")
    style.grid(ax)
    style.save(page, "noise")
