"""Where does it all end?

The eigenvalue of $V$ with the largest real part decides (Table 1 of the paper). `predict` says it before running,
`classify` after: one point where $V = I$, one point on a circle where the leading eigenvalue is double, two opposite
points where it is simple, and clouds where it is negative, so that tokens repel. Thirty-two tokens, dark to light in
the order of the sequence; red: where they end.
"""

import numpy as np

import metastable as ms
from metastable.figures import sample, style
from metastable.figures.figure_1 import SpherePanel, draw_sphere_panel

start = ms.sphere.uniform(32, dim=3, seed=7)
panels = []
for values in [(1.0, 1.0, 1.0), (1.0, 1.0, -0.5), (1.0, 0.3, -0.5), (-0.5, -1.5, -2.0)]:
    model = ms.Attention(dim=3, beta=9.0, value=np.diag(values))
    run = ms.simulate(model, start, until=1e9 if values[0] > 0 else 2000.0)
    prediction, found = ms.predict(model), ms.classify(run)
    print(f"V = diag{values}: predicted {prediction.configuration!r}, found {found.configuration!r}")
    space = prediction.subspace if prediction.subspace.shape[1] < 3 else None
    title = "$V = $ diag" + str(tuple(f"{v:g}" for v in values)).replace("'", "")
    note = found.configuration.replace("x_1(0)", "$x_1(0)$").replace("xi", r"$\xi$")
    panels.append(SpherePanel(title, sample(run, 200, log=True)[1], note, space))

with style.theme("screen"):
    page, axes = style.figure(7.2, 7.2, 2, 2)
    for ax, panel in zip(axes.flat, panels):
        draw_sphere_panel(ax, panel, width=1.0)
    style.save(page, "value_matrix")
