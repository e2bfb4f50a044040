"""The atlas: the value matrix decides where tokens end.

    python examples/atlas.py

Writes atlas.png into the current folder.
"""

import numpy as np

import metastable as ms
from metastable.figures import style
from metastable.figures.figure_1 import SpherePanel, figure_1
from metastable.figures.moments import sample

start = ms.sphere.uniform(32, dim=3, seed=7)
panels = []
for eigenvalues in [(1.0, 1.0, 1.0), (1.0, 1.0, -0.5), (1.0, 0.3, -0.5), (-0.5, -0.5, -2.0), (-0.5, -1.5, -2.0)]:
    model = ms.Attention(dim=3, beta=9.0, value=np.diag(eigenvalues))
    # One point is reached only on the long horizon; clouds are there at the paper's T = 5000.
    run = ms.simulate(model, start, until=1e9 if eigenvalues[0] > 0 else 5000.0)
    prediction, found = ms.predict(model), ms.classify(run)
    print(f"V = diag{eigenvalues}: predicted {prediction.configuration!r}, found {found.configuration!r}")
    _, states = sample(run, 200, log=True)
    space = prediction.subspace if prediction.subspace.shape[1] < 3 else None
    panels.append(SpherePanel(f"$V = $ diag{eigenvalues}", states, found.configuration, space))

style.save(figure_1(panels), "atlas")
print("wrote atlas.png")
