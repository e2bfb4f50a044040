r"""What if tokens repel?

There are two ways. With $V = -I$ a token walks away from those that it attends to; with $\beta < 0$ it walks towards
those that are least like itself. Attraction (left) parks the tokens in a few places. With $V = -I$ (middle) they
spread and stay spread. With $\beta < 0$ (right) they first run to opposite sides of the circle, and then all end at
the first token, as Theorem 4.1 says for any $\beta$. Dark: early in the sequence.
"""

import numpy as np

import metastable as ms
from metastable.figures import draw_world_lines, sample, style

start = ms.sphere.uniform(120, dim=2, seed=0)
models = {
    r"attraction, $\beta = 16$": ms.Attention(dim=2, beta=16.0),
    r"$V = -I$, $\beta = 16$": ms.Attention(dim=2, beta=16.0, value=-np.eye(2)),
    r"$\beta = -4$": ms.Attention(dim=2, beta=-4.0),
}
with style.theme("screen"):
    page, axes = style.figure(7.4, 3.2, columns=3, sharey=True)
    for ax, (name, model) in zip(axes, models.items()):
        run = ms.simulate(model, start, until=30.0)
        print(
            f"{name}: largest gap on the circle at t = 30 is {np.diff(np.sort(np.arctan2(*run.final.T))).max():.2f} rad"
        )
        draw_world_lines(ax, *sample(run, 300), width=0.7)
        style.panel(ax, "", name)
    for ax in axes[1:]:
        ax.set_ylabel("")
    style.save(page, "repulsion")
