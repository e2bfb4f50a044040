r"""What does it look like on a sphere?

The same in three dimensions: three hundred tokens at $\beta = 30$, their paths to $t = 50$, and where they stand
then. A dot has the colour of its cluster; rings are caps of radius $\delta/2$ around the strong Rényi centers, which
were found in the start alone: no two of them overlap, and each holds a cluster. The clusters between them are led by
other Rényi centers. What lies behind the ball is paler.
"""

import numpy as np

import metastable as ms
from metastable.figures import View, draw_ball, draw_caps, draw_paths, draw_points, sample, style

beta = 30.0
delta = 4 / np.sqrt(beta)
start = ms.sphere.uniform(300, dim=3, seed=3)
run = ms.simulate(ms.Attention(dim=3, beta=beta), start, until=50.0)
strong = ms.renyi_centers(start, delta, strong=True)
labels = ms.cluster_labels(run.final, radius=0.1)
print(
    f"{labels.max() + 1} clusters; {len(strong)} strong centers, expected {ms.theory.strong_centers(delta, 3, 300):.1f}"
)

with style.theme("screen"):
    page, ax = style.figure(4.6, 4.6)
    view = View(azimuth=30, elevation=25)
    colors = style.cluster_colors(labels)
    draw_ball(ax, view)
    draw_paths(ax, sample(run, 150)[1], view, colors=colors, width=0.6)
    draw_points(ax, run.final, view, colors=colors, size=34)
    draw_caps(ax, start[strong], delta / 2, view, colors=style.INK, width=1.1)
    style.save(page, "sphere")
