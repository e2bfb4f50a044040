"""What do rotary positions do to a head?

A head as transformers have it: thin, of rank 16 in dimension 64, with rotary positions that turn queries and keys by
their place in the sequence. The tokens come from four topics in random order. Dark: whom token $k$ looks at. Without
positions the head finds all earlier tokens of the same topic, however far back. With them the look back fades with
distance: the same topic, but lately.
"""

import numpy as np

import metastable as ms
from metastable.figures import draw_attention, style

d, rank, tokens = 64, 16, 96
generator = np.random.default_rng(3)
query = generator.normal(size=(rank, d)) / np.sqrt(rank)  # keys are made by the same matrix: a token looks for its like
value, output = generator.normal(size=(rank, d)), generator.normal(size=(d, rank)) / d
start = ms.starts.mixture(tokens, d, seed=0, centers=4, concentration=600.0)
back = np.subtract.outer(np.arange(tokens), np.arange(tokens))

with style.theme("screen"):
    page, axes = style.figure(7.0, 3.5, columns=2)
    for ax, rotary, name in zip(axes, (None, ms.Rotary(base=100.0)), ("without positions", "with rotary positions")):
        head = ms.Head(query=query, key=query, value=value, output=output, beta=12.0, rotary=rotary)
        run = ms.simulate(ms.Attention(dim=d, heads=(head,)), start, until=0.1)
        weights = run.observe(ms.observe.attention()).values[0]
        print(f"{name}: looks back by {(weights * back).sum(axis=1).mean():.1f} tokens on average")
        draw_attention(ax, weights)
        style.panel(ax, "", name)
    style.save(page, "heads")
