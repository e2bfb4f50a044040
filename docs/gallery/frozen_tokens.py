"""What does a token do that never moves?

Four frozen tokens (dashed lines), as in cross-attention: everybody sees them, they see nobody. Theorem 5.2 says that
every free token ends near one of them. Left: without. Right: with them, each as heavy as ten tokens. Places that the
start decides become places that you decide. Dark: early in the sequence.
"""

import numpy as np

import metastable as ms
from metastable.figures import draw_world_lines, sample, style

angles = np.array([-2.4, -0.8, 0.8, 2.4])
places = np.column_stack([np.cos(angles), np.sin(angles)])
start = ms.sphere.uniform(150, dim=2, seed=1)
models = {
    "nobody frozen": ms.Attention(dim=2, beta=16.0),
    "four frozen tokens": ms.Attention(dim=2, beta=16.0, frozen=ms.Frozen(places, weights=[10.0] * 4)),
}
with style.theme("screen"):
    page, axes = style.figure(7.2, 3.3, columns=2, sharey=True)
    for ax, (name, model) in zip(axes, models.items()):
        run = ms.simulate(model, start, until=1e4)
        away = ms.sphere.pairwise_distance(np.concatenate([places, run.final]))[4:, :4].min(axis=1)
        print(f"{name}: {np.mean(away < 0.1):.0%} of the tokens within 0.1 rad of one of the four places")
        draw_world_lines(ax, *sample(run, 300, log=True), width=0.6, log=True)
        style.panel(ax, "", name)
    for angle in angles:
        axes[1].axhline(angle, color=style.RED, linewidth=1.2, linestyle=(0, (4, 2)), zorder=5)
    axes[1].set_ylabel("")
    style.save(page, "frozen_tokens")
