"""Counting the clusters of many members at one depth, as cheaply as the model allows.

Short horizons, and models whose clusters do not stand still, are simulated to the end (`ensemble`, `observe.clusters`). Elsewhere
members are simulated to t = 100/|V|, where clusters are points, and the flow of their leaders goes on from there
(`analysis.cascade.counts_after`): a few milliseconds for any number of decades. Both count alike, and `Counter.paired` compares
them member by member.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable import ensembles
from metastable._checks import FloatArray
from metastable.analysis import observe
from metastable.analysis.cascade import LONGEST_COUNT, counts_after, counts_refusal
from metastable.errors import StoppedEarlyWarning
from metastable.model import Attention

GATHERED = 100.0
"""Depth at which tokens have gathered, and leaders take over, times the size of V: see `gathered`."""
SIMULATED = "simulated to the end"


def speed(model: Attention) -> float:
    """|V|, summed over the heads: times of a model go like its inverse. One where nothing moves."""
    size = float(sum(head.value_size for head in model.all_heads))
    return size if size > 0.0 else 1.0


def gathered(model: Attention) -> float:
    """The depth at which the tokens of a model have gathered, and leaders take over."""
    return GATHERED / speed(model)


@dataclass(frozen=True)
class Counter:
    """How clusters are counted at depth `until`; `radius` None: that of each model; `options` go to `ensemble`."""

    until: float
    seed: int
    radius: float | None
    options: dict[str, Any]
    exact: bool = False
    """True: always simulate to the end."""

    def reduced(self, model: Attention, tokens: int) -> bool:
        """True where the flow of the leaders counts."""
        if self.exact or self.until <= 2.0 * gathered(model) or self.until > LONGEST_COUNT or "method" in self.options:
            return False
        return counts_refusal(model, tokens) is None

    def said(self, model: Attention, tokens: int) -> str:
        """How clusters are counted, in words."""
        if not self.reduced(model, tokens):
            return SIMULATED
        return f"simulated to t = {gathered(model):g}, then the flow of the leaders"

    def stream(self, number: int) -> int:
        """The seed of try `number`: members of different tries are independent."""
        words = np.random.SeedSequence(self.seed, spawn_key=(number,)).generate_state(2, np.uint64)
        return int(words[0])

    def counts(self, model: Attention, tokens: int, members: int, number: int) -> FloatArray:
        """Clusters of members 0..members - 1 of stream `number`, shape (members,); NaN for those that stopped early."""
        seed = self.stream(number)
        if not self.reduced(model, tokens):
            return self._simulated(model, tokens, members, seed)
        moment = gathered(model)
        stats = ensembles.ensemble(
            model, tokens=tokens, members=members, times=[moment], seed=seed, progress=False, **self.options
        )
        times = np.array([self.until])
        states = stats["x"].values[:, 0]
        return np.array(
            [
                counts_after(x, model, moment, times, radius=self.radius)[0] if np.isfinite(x).all() else np.nan
                for x in states
            ]
        )

    def paired(self, model: Attention, tokens: int, members: int, number: int) -> FloatArray:
        """Clusters counted by leaders minus those of full simulations of the same members, shape (members,)."""
        exact = self._simulated(model, tokens, members, self.stream(number))
        return self.counts(model, tokens, members, number) - exact

    def _simulated(self, model: Attention, tokens: int, members: int, seed: int) -> FloatArray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoppedEarlyWarning)  # NaN says it
            stats = ensembles.ensemble(
                model,
                tokens=tokens,
                members=members,
                times=[self.until],
                seed=seed,
                observe={"clusters": observe.clusters(radius=self.radius)},
                progress=False,
                **self.options,
            )
        return stats["clusters"].values[:, 0]
