# pyright: strict
"""A day's work as a type checker sees it."""

import numpy as np
from numpy.typing import NDArray

import metastable as ms

Array = NDArray[np.float64]


def height(x: Array) -> float:
    return float(x[:, 0].max())


def energy(states: Array, times: Array, model: ms.Attention) -> Array:
    return np.array([np.exp(x @ x.T).mean() for x in states])


def topics(generator: np.random.Generator, tokens: int, dim: int) -> Array:
    return ms.starts.mixture(tokens, dim, generator, centers=3, concentration=40.0)


def gaussian(generator: np.random.Generator) -> ms.Attention:
    return ms.Attention(dim=3, beta=4.0, value=generator.normal(size=(3, 3)))


model = ms.Attention(dim=3, beta=9.0, mask=ms.Window(4), norm=ms.PreLN(), value=np.diag([1.0, 0.5, -1.0]))
heads = ms.Attention(dim=3, heads=(ms.Head(beta=2.0, rotary=ms.Rotary()),))
start = ms.sphere.uniform(20, dim=3, seed=0)
run = ms.simulate(model, start, until=5.0)
further = run.extend(until=10.0, times=[7.0, 8.0])
longer = run.append(start)
state: Array = run.at(3.0)
final: Array = run.final
curve = run.observe(height)
values = run.observe(energy).values
stats = ms.ensemble(
    model, tokens=20, members=5, times=[0.0, 1.0], seed=0, start=topics, observe={"e": energy, "h": height}
)
drawn = ms.ensemble(
    gaussian, tokens=20, members=5, times=[0.0, 1.0], seed=0, observe={"c": ms.observe.clusters(radius=0.1)}
)
ms.plot_ensemble(stats)
ms.save_ensemble(stats, "stats.zarr")
loaded = ms.load_ensemble("stats.zarr")
tree = ms.merge_tree(run)
predicted = ms.predict_merges(final, ms.Attention(dim=3, beta=9.0), 5.0)
later: list[float] = [float(t) for t in predicted.time]
tree.plot()
run.plot()
run.animate("film.mp4", seconds=2.0)
row = ms.predict(model).row
found = ms.classify(run).row
labels = ms.cluster_labels(final, radius=0.1)
centers = ms.renyi_centers(start, 0.5, strong=True)
sweep = ms.Sweep(model={"dim": 2}, grid={"beta": [1.0]}, observe={"mean_cosine": {}}, times=[1.0], members=2, tokens=5)
outcome = ms.sweep.run(sweep, "out", workers=0)
results = ms.sweep.open_results("out")
ms.load("run.zarr").save("again.zarr", overwrite=True)
