"""Does it matter where the norm stands?

A transformer normalises tokens before, after or around its attention, and that sets the clock. After it (PostLN, the
paper's case) tokens stay on the unit sphere. Before it (PreLN) they also grow longer, and the longer they are the
less they turn: clustering takes a logarithmic clock. Mean cosine of sixty members for six placements, all from the
same starts.
"""

import numpy as np

import metastable as ms
from metastable.figures import style

norms = {
    "PostLN": ms.PostLN(),
    "PreLN": ms.PreLN(),
    "MixLN, first 5 post": ms.MixLN(5.0),
    "PeriLN": ms.PeriLN(),
    r"nGPT, $\alpha = 0.3$": ms.NGPT(0.3),
    "square root scaling": ms.SqrtScaling(),
}
times = np.geomspace(0.1, 200.0, 40)
with style.theme("screen"):
    page, ax = style.figure(6.2, 3.6)
    for (name, norm), color in zip(norms.items(), style.CATEGORICAL):
        stats = ms.ensemble(
            ms.Attention(dim=3, beta=4.0, norm=norm),
            tokens=32,
            members=60,
            times=times,
            seed=0,
            observe={"cosine": ms.observe.mean_cosine()},
        )
        dashed = (0, (4, 2)) if name == "PeriLN" else "-"  # it lies on PreLN's line
        ax.plot(times, stats.cosine.mean("member"), color=color, linestyle=dashed, label=name)
    style.log_time_axis(ax, times[0], times[-1])
    ax.set_ylabel("mean cosine between tokens")
    ax.set_ylim(0, 1.02)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    style.grid(ax)
    style.save(page, "norms")
