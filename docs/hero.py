"""Draws docs/images/hero.png: one real run, two hundred tokens on the circle, over forty-six decades of depth.

    python docs/hero.py

Every line is the angle of one token; the horizontal axis is log depth, stretched at the beginning (ticks say where). Lines take
the colour of the cluster that they form at t = 20 and keep it when their cluster is swallowed, so it reads as a family tree.
"""

from pathlib import Path

import numpy as np

import metastable as ms
from metastable.figures import style
from metastable.figures.circle_view import angles_of, break_wraps

NIGHT, LINE = "#0b1524", "#9fb2c8"
PALETTE = ("#ffb454", "#59c2ff", "#7fd962", "#f28779", "#d4bfff", "#95e6cb", "#ffd173", "#f29e74", "#73d0ff", "#e6b3cc")
FIRST, LAST, STRETCH = 0.1, 1e45, 0.55
SEED, TOKENS, BETA = 11, 200, 64.0

start = ms.sphere.uniform(TOKENS, dim=2, seed=SEED)
run = ms.simulate(ms.Attention(dim=2, beta=BETA), start, until=LAST, method="rodas")
labels = ms.cluster_labels(run.at(20.0), radius=0.5 / np.sqrt(BETA))
place = np.linspace(0, np.log10(LAST / FIRST) ** STRETCH, 1500)
times = FIRST * 10 ** (place ** (1 / STRETCH))
times[-1] = LAST
angles = angles_of(np.stack([run.at(float(t)) for t in times]))

with style.theme("print"):
    page, ax = style.figure(9.6, 3.9)
    page.set_facecolor(NIGHT)
    ax.set_facecolor(NIGHT)
    for token in reversed(range(TOKENS)):
        x, y = break_wraps(place, angles[:, token])
        color = PALETTE[labels[token] % len(PALETTE)]
        leads = token == int(np.flatnonzero(labels == labels[token])[0])
        ax.plot(x, y, color=color, linewidth=3.2 if leads else 1.2, alpha=0.13 if leads else 0.06, zorder=2)
        ax.plot(
            x, y, color=color, linewidth=1.3 if leads else 0.45, alpha=1.0 if leads else 0.55, zorder=4 if leads else 3
        )
    ax.set_xlim(place[0], place[-1])
    style.angle_axis(ax, label="token on the circle")
    ticks = (0, 1, 2, 4, 6, 10, 15, 20, 30, 40)
    names = ["1", "10", *(f"$10^{{{e}}}$" for e in ticks[2:])]
    ax.set_xticks([np.log10(10.0**e / FIRST) ** STRETCH for e in ticks], names)
    ax.set_xlabel("depth $t$")
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(colors=LINE, length=0)
    ax.xaxis.label.set_color(LINE)
    ax.yaxis.label.set_color(LINE)
    target = Path(__file__).parent / "images" / "hero.png"
    page.savefig(target, dpi=170, facecolor=NIGHT, pad_inches=0.12, pil_kwargs={"optimize": True})

print(
    f"{target}: {target.stat().st_size / 1000:.0f} kB; one cluster left at x_1(0) to within "
    f"{ms.sphere.distance(run.final, start[0]).max():.1e} rad"
)
