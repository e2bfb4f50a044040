r"""Who leads a cluster?

Scan the sequence once: a token that is further than $\delta = 4\beta^{-1/2}$ from every earlier center is a *Rényi
center* (black), and one that is further than that from every earlier *token* is a strong one (red). They are known
before anything moves. Left: where the centers are at $t = 20$, with the other tokens piled up on them. Right: the
share of tokens within $\delta/10$ of a center. Strong centers stand still, and most others park at one.
"""

import numpy as np

import metastable as ms
from metastable.figures import draw_centers, draw_circle, draw_tokens, style

beta = 64.0
delta = 4 / np.sqrt(beta)
start = ms.sphere.uniform(200, dim=2, seed=1)
times = np.geomspace(0.1, 200.0, 60)
run = ms.simulate(ms.Attention(dim=2, beta=beta), start, until=200.0)
renyi = ms.renyi_centers(start, delta)
strong = ms.renyi_centers(start, delta, strong=True)

moved = ms.sphere.distance(run.final, start)
print(f"{len(renyi)} Rényi centers, {len(strong)} of them strong")
print(
    f"by t = 200 strong centers moved by {np.median(moved[strong]):.4f} rad, all tokens by {np.median(moved):.2f} (medians)"
)

with style.theme("screen"):
    page, (circle, curve) = style.figure(7.2, 3.4, columns=2, width_ratios=[1.0, 1.2])
    draw_circle(circle, limit=1.45)
    draw_tokens(circle, run.at(20.0), stack=0.03, size=9, reach=0.42)
    draw_centers(circle, run.at(20.0), renyi, strong, size=42, labels=True)
    circle.legend(loc="center", handletextpad=0.2)
    for centers, color, name in ((renyi, style.RENYI, "a Rényi center"), (strong, style.STRONG, "a strong center")):
        share = [100 * ms.consumed(run.at(t), centers, radius=0.1 * delta) for t in times]
        curve.plot(times, share, color=color, label=f"at {name}")
    style.log_time_axis(curve, times[0], times[-1])
    curve.set_ylabel("tokens (%)")
    curve.set_ylim(0, 103)
    curve.legend(loc="upper left")
    style.grid(curve)
    style.save(page, "renyi_centers")
