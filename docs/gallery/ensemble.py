"""One run is an anecdote: what do a thousand say?

Figure 3 of the paper with a thousand members instead of five thousand: how many tokens the Rényi centers (black) and
the strong ones (red) have consumed, mean and 10 % to 90 % of the members. Each member has its own step size and its
own random stream, so that the numbers depend neither on the number of threads nor on who else runs.
"""

import numpy as np

import metastable as ms
from metastable.figures import draw_band, style

beta = 64.0
delta = 4 / np.sqrt(beta)
times = np.linspace(0.0, 100.0, 51)
stats = ms.ensemble(
    ms.Attention(dim=2, beta=beta), tokens=200, members=1000, times=times, seed=0,
    observe={"renyi": ms.observe.consumed(delta=delta), "strong": ms.observe.consumed(delta=delta, strong=True)},
)  # fmt: skip

with style.theme("screen"):
    page, ax = style.figure(5.6, 3.4)
    for name, color, label in (("renyi", style.RENYI, "Rényi centers"), ("strong", style.STRONG, "strong centers")):
        share = 100 * stats[name]
        draw_band(ax, times, share.mean("member"), *share.quantile([0.1, 0.9], "member"), color=color, label=label)
        print(
            f"{label} have consumed {float(share.sel(time=20.0).mean()):.1f} % by t = 20, {float(share[:, -1].mean()):.1f} % by t = 100"
        )
    ax.set_xlabel("depth $t$")
    ax.set_ylabel("tokens consumed (%)")
    ax.set_xlim(0, 100)
    ax.set_ylim(0, 102)
    ax.legend(loc="lower right", title="consumed by")
    style.grid(ax)
    style.save(page, "ensemble")
