"""Metastability: strong Renyi centers stand still and consume the other tokens.

    python examples/metastability.py

Writes metastability.png into the current folder.
"""

import numpy as np

import metastable as ms
from metastable.figures import style
from metastable.figures.circle_view import draw_world_lines

beta = 64.0
delta = 4 / np.sqrt(beta)  # separation of centers: four times the range of the interaction
start = ms.sphere.uniform(200, dim=2, seed=4)
run = ms.simulate(ms.Attention(dim=2, beta=beta), start, until=150.0)

renyi = ms.renyi_centers(start, delta)  # far from every earlier center
strong = ms.renyi_centers(start, delta, strong=True)  # far from every earlier token
print(
    f"{len(renyi)} Renyi centers, of which {len(strong)} strong; expected {ms.theory.strong_centers(delta, 2, 200):.1f} strong"
)

moved = ms.sphere.distance(run.final, start)
print(f"strong centers moved by {np.median(moved[strong]):.4f} rad (median), all tokens by {np.median(moved):.4f}")
for t in (0.0, 5.0, 20.0, 150.0):
    share = ms.consumed(run.at(t), strong, radius=0.1 * delta)
    print(f"t = {t:5g}: strong centers have consumed {100 * share:.0f} % of the tokens")

with style.theme("screen"):
    page, ax = style.figure(width=8, height=4.5)
    colors = {int(k): style.RENYI for k in renyi} | {int(k): style.STRONG for k in strong}
    times = np.linspace(0, 150, 300)
    draw_world_lines(ax, times, np.stack([run.at(t) for t in times]), colors=["#9db8cf"], highlight=colors)
    style.panel(ax, "", "Renyi centers black, strong ones red")
    style.save(page, "metastability")
print("wrote metastability.png")
