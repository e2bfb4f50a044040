r"""What do rotary positions do to a head?

A head as transformers have it: thin, of rank 16 in dimension 64, with rotary positions that turn queries and keys by
their place in the sequence. The tokens come from four topics in random order. Dark: whom token $k$ looks at
(logarithmic). Without positions the head finds the earlier tokens of the same topic, however far back (the pattern of
columns). With rotary positions it is the near ones. Right: the mean weight of a token against how far back it is.
"""

import numpy as np

import metastable as ms
from metastable.figures import draw_attention, style

d, rank, tokens = 64, 16, 96
generator = np.random.default_rng(3)
query = generator.normal(size=(rank, d)) / np.sqrt(rank)  # keys are made by the same matrix: a token looks for its like
value, output = generator.normal(size=(rank, d)), generator.normal(size=(d, rank)) / d
start = ms.starts.mixture(tokens, d, seed=0, centers=4, concentration=600.0)

with style.theme("screen"):
    page, axes = style.figure(9.2, 3.3, columns=3)
    kinds = (("without positions", None, style.BLUE), ("rotary positions", ms.Rotary(base=1000.0), style.VERMILLION))
    for ax, (name, rotary, color) in zip(axes, kinds):
        head = ms.Head(query=query, key=query, value=value, output=output, beta=8.0, rotary=rotary)
        run = ms.simulate(ms.Attention(dim=d, heads=(head,)), start, until=0.1)
        weights = run.observe(ms.observe.attention()).values[0]
        draw_attention(ax, weights, log=True, floor=1e-4)
        style.panel(ax, "", name)
        late = weights[tokens // 2 :]  # tokens that have as many to look back at
        back = [np.mean([row[tokens // 2 + k - lag] for k, row in enumerate(late)]) for lag in range(1, tokens // 2)]
        print(
            f"{name}: the last ten tokens get {sum(back[:10]):.0%} of the attention, the thirty-seven before them {sum(back[10:]):.0%}"
        )
        axes[2].plot(range(1, tokens // 2), back, color=color, label=name)
    axes[2].set_xlabel("tokens back")
    axes[2].set_ylabel("mean attention weight")
    axes[2].set_yscale("log")
    axes[2].legend(loc="upper right")
    style.grid(axes[2])
    style.save(page, "heads")
