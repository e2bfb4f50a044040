"""What does the mask change?

Who may see whom decides how far order travels. Under the causal mask early tokens lead. Under full attention all pull
at all, and places are averages. In a window a token sees the last eight only: leaders pass out of sight, late tokens
(light) gather on their own, and whole stretches of the sequence change their place later. A *sink*, the first four
tokens kept in sight, gives the window an anchor. Colours: place in the sequence, from first (dark) to last (light).
"""

import metastable as ms
from metastable.figures import draw_world_lines, sample, style

start = ms.sphere.uniform(120, dim=2, seed=5)
masks = {"Causal()": ms.Causal(), "Full()": ms.Full(), "Window(8)": ms.Window(8), "Sink(4, 8)": ms.Sink(4, 8)}

with style.theme("screen"):
    page, axes = style.figure(7.2, 4.8, 2, 2, sharex=True, sharey=True)
    for ax, (name, mask) in zip(axes.flat, masks.items()):
        run = ms.simulate(ms.Attention(dim=2, beta=16.0, mask=mask), start, until=1000.0)
        draw_world_lines(ax, *sample(run, 300, log=True), width=0.7, log=True)
        style.panel(ax, "", name)
        print(f"{name}: {ms.cluster_labels(run.final, radius=0.12).max() + 1} clusters at t = 1000")
    for ax in axes[:, 1]:
        ax.set_ylabel("")
    for ax in axes[0]:
        ax.set_xlabel("")
    style.save(page, "masks")
