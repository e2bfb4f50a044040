"""A first run: two hundred tokens on the circle, moved by causal attention.

    python examples/first_run.py

Writes first_run.png and first_run.gif into the current folder.
"""

import metastable as ms

model = ms.Attention(dim=2, beta=64.0)  # causal attention with Q = K = V = I
start = ms.sphere.uniform(200, dim=2, seed=0)  # 200 unit vectors in the plane
run = ms.simulate(model, start, until=200.0)  # adaptive: there is no step size to choose

print(run)
print("clusters at the start:", ms.cluster_labels(run.at(0.0), radius=0.06).max() + 1)
print("clusters at t = 20:   ", ms.cluster_labels(run.at(20.0), radius=0.06).max() + 1)
print("clusters at t = 200:  ", ms.cluster_labels(run.final, radius=0.06).max() + 1)

run.plot().savefig("first_run.png")
run.animate("first_run.gif", seconds=3, frames_per_second=12)
print("wrote first_run.png and first_run.gif")
