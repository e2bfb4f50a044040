"""Do tokens cluster?

Two hundred tokens start anywhere on the circle and move by causal attention, each towards the earlier tokens that it
resembles. Within ten units of depth they stand in a handful of places. From then on little happens: now and then two
clusters that stand too close fall together, and the others wait, for longer than anyone would simulate by small steps.
They are *metastable*. One line is one token, one colour is one cluster at the end.
"""

import metastable as ms
from metastable.figures import draw_world_lines, sample, style

model = ms.Attention(dim=2, beta=64.0)  # causal, Q = K = V = I
start = ms.sphere.uniform(200, dim=2, seed=0)
run = ms.simulate(model, start, until=50.0)

labels = ms.cluster_labels(run.final, radius=0.06)
print(f"{labels.max() + 1} clusters at t = 50, found in {run.stats.accepted} steps")

with style.theme("screen"):
    page, ax = style.figure(6.0, 3.6)
    times, states = sample(run, 300)
    draw_world_lines(ax, times, states, colors=style.cluster_colors(labels), width=0.7)
    style.save(page, "first_clusters")
