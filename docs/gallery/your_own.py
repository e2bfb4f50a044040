r"""Can I bring my own start and my own measure?

A start is an array of unit vectors, or a function that draws one; an observable is a function of a state. Here tokens
come in four topics, in random order, and the question is whether attention sorts them: the mean cosine within a
topic, and between topics, for three temperatures. Hot attention (small $\beta$) throws the topics together before it
has sorted them. Cold attention keeps them apart.
"""

import numpy as np

import metastable as ms
from metastable.figures import style

tokens, topics = 80, 4
generator = np.random.default_rng(5)
centers = np.linalg.qr(generator.normal(size=(8, topics)))[0].T  # four orthogonal directions in dimension 8
topic = generator.integers(topics, size=tokens)
same = np.equal.outer(topic, topic)


def my_start(generator):
    """Tokens around the center of their topic."""
    x = centers[topic] + 0.28 * generator.normal(size=(tokens, 8))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def within(x):
    """Mean cosine between tokens of one topic."""
    return (x @ x.T)[same].mean()


def between(x):
    """Mean cosine between tokens of different topics."""
    return (x @ x.T)[~same].mean()


times = np.geomspace(0.05, 30.0, 40)
with style.theme("screen"):
    page, axes = style.figure(7.4, 2.9, columns=3, sharey=True)
    for ax, beta in zip(axes, (0.5, 4.0, 16.0)):
        stats = ms.ensemble(
            ms.Attention(dim=8, beta=beta), tokens=tokens, members=16, times=times, seed=0, start=my_start,
            observe={"within": within, "between": between},
        )  # fmt: skip
        ax.plot(times, stats.within.mean("member"), color=style.BLUE, label="within a topic")
        ax.plot(times, stats.between.mean("member"), color=style.VERMILLION, label="between topics")
        style.log_time_axis(ax, times[0], times[-1])
        style.panel(ax, "", rf"$\beta = {beta:g}$")
        style.grid(ax)
    axes[0].set_ylabel("mean cosine")
    axes[0].set_ylim(-0.05, 1.05)
    axes[2].legend(loc="center")
    style.save(page, "your_own")
