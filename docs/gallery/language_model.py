"""Does my language model park?

Take one layer of SmolLM2, switch its feed-forward part off and let it run on for ever: attention alone, as in the
theory. Left: the tokens of a text do gather, as they do with random weights, and the trained layer is the slower one.
Right: but not at Rényi centers. The share of tokens near a center (black) is what as many random tokens have around
them (grey band). So this layer clusters, and does not park. `"smollm2"` may be a hub id, a folder, a `.gguf` file or
a model in memory: ask yours.
"""

import numpy as np

import metastable as ms
from metastable import checkpoints
from metastable.figures import draw_band, style

flow = checkpoints.flow("smollm2")
text = checkpoints.sample_text()
times = np.concatenate([[0.0], np.geomspace(1.0, 60.0, 24)])
options = {"layer": 10, "parts": "attention", "until": 60.0, "times": times, "max_tokens": 64}
trained = flow.run(text, **options).drop_first(1)
random = flow.run(text, **options, null="gaussian").drop_first(1)
counts = [[ms.cluster_labels(x, radius=0.3).max() + 1 for x in run.states] for run in (trained, random)]

distances = ms.sphere.pairwise_distance(trained.start)
delta = float(np.quantile(distances[np.triu_indices(len(distances), 1)], 0.1))
capture = checkpoints.capture_curves(trained.dataset, delta, radius=delta / 4)
print(f"{len(trained.start)} tokens; clusters at t = 60: {counts[0][-1]} (trained), {counts[1][-1]} (random weights)")
print(
    f"largest excess of centers over random tokens: {100 * float((capture.consumed - capture.null_high).max()):+.0f} points"
)

with style.theme("screen"):
    page, (left, right) = style.figure(7.6, 3.3, columns=2)
    left.plot(times[1:], counts[0][1:], color=style.INK, label="trained")
    left.plot(times[1:], counts[1][1:], color=style.VERMILLION, linestyle=(0, (4, 2)), label="random weights")
    left.set_ylabel("clusters")
    left.set_yscale("log")
    left.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    left.minorticks_off()
    near = [100 * capture[name].values[1:] for name in ("null_mean", "null_low", "null_high")]
    draw_band(right, times[1:], *near, color=style.MUTED, label="as many random tokens", dashed=True)
    right.plot(times[1:], 100 * capture.consumed.values[1:], color=style.INK, label="Rényi centers")
    right.set_ylabel("tokens near one of them (%)")
    right.set_ylim(0, 102)
    for ax in (left, right):
        style.log_time_axis(ax, times[1], times[-1], "depth in the loop (layers)")
        style.grid(ax)
        ax.legend(loc="best")
    style.save(page, "language_model")
