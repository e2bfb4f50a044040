"""From 200 tokens to one: the whole cascade of merges, over fifty decades of depth.

    python examples/long_horizon.py

Writes long_horizon.png into the current folder.
"""

import numpy as np

import metastable as ms
from metastable.figures import style
from metastable.figures.long_runs import long_run
from metastable.figures.moments import sample

beta = 64.0
model = ms.Attention(dim=2, beta=beta)
start = ms.sphere.uniform(200, dim=2, seed=1)

# No merge takes longer than about exp(2 beta); `until="settled"` would stop right behind the last one.
run = ms.simulate(model, start, until=1e57)
for segment in run.notes["segments"]:
    print(f"{segment['method']}: t = {segment['from']:g} to {segment['to']:.3g} in {segment['steps']} steps")
print(f"farthest token from x_1(0) at the end: {np.abs(run.final - start[0]).max():.1e}")

tree = ms.merge_tree(run, radius=0.5 / np.sqrt(beta))
for time, child, parent in zip(tree.time[-4:], tree.child[-4:], tree.parent[-4:]):
    print(f"t = {time:.3g}: the cluster of token {child + 1} merges into that of token {parent + 1}")

times, states = sample(run, 400, log=True)
law = np.array([ms.theory.cluster_count(t, beta, 2) if t > 1 else np.nan for t in times])
style.save(long_run(times, states, tree, since=1e2, law=law, title=rf"$n = 200$, $\beta = {beta:g}$"), "long_horizon")
print("wrote long_horizon.png")
