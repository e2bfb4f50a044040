"""`predict_merges` against simulation: `python -m benchmarks.merges --draws 100`.

For each setting, tokens drawn uniformly are simulated until they have settled; from the state at t = 100 the rest of
the cascade is predicted. Reported: |log10 predicted/simulated| of the times (median, 90 % quantile), in how many
draws every child has its true parent, the time of a prediction (of the processor), and what the stated uncertainty is
worth: errors among merges that it calls sure.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import metastable as ms
from metastable.figures import long_runs, style

BEGIN = 100.0
"""The moment of the prediction."""


@dataclass(frozen=True)
class Setting:
    """What is drawn: tokens in dimension `dim` at inverse temperature `beta`, with random Q and K when `gaussian`."""

    name: str
    dim: int
    beta: float
    tokens: int
    gaussian: bool = False
    radius: float | None = None

    @property
    def label(self) -> str:
        """The name in a legend."""
        extra = ", Gaussian $Q, K$" if self.gaussian else ""
        return rf"$d = {self.dim}$, $\beta = {self.beta:g}${extra}"

    def model(self, seed: int) -> ms.Attention:
        """The model of a draw."""
        if not self.gaussian:
            return ms.Attention(dim=self.dim, beta=self.beta)
        generator = np.random.default_rng([seed, 1])
        query, key = generator.normal(size=(2, self.dim, self.dim))
        return ms.Attention(dim=self.dim, beta=self.beta, query=query, key=key)


SETTINGS = (
    Setting("d = 2, beta = 16", 2, 16.0, 100),
    Setting("d = 2, beta = 32", 2, 32.0, 100),
    Setting("d = 2, beta = 64", 2, 64.0, 100),
    Setting("d = 3, beta = 9", 3, 9.0, 60),
    Setting("d = 3, beta = 16", 3, 16.0, 60),
    Setting("d = 3, Gaussian Q, K, beta = 4", 3, 4.0, 60, gaussian=True, radius=0.05),
)


@dataclass(frozen=True)
class Draw:
    """One draw: times and stated uncertainty of each merge, whether the tree is right, seconds of the prediction."""

    simulated: np.ndarray
    predicted: np.ndarray
    uncertainty: np.ndarray
    right: bool
    seconds: float

    @property
    def off(self) -> np.ndarray:
        """|log10 predicted/simulated| of each merge."""
        return np.abs(np.log10(self.predicted / self.simulated))


def truth(setting: Setting, seed: int) -> tuple[np.ndarray, dict[int, tuple[int, float]]] | None:
    """The state at `BEGIN` and the later merges, child -> (parent, time), of a simulation; None when it did not settle."""
    start = ms.sphere.uniform(setting.tokens, dim=setting.dim, seed=1000 + seed)
    run: Any = ms.simulate(setting.model(seed), start, until="settled", progress=False)
    if run.status != "success" or run.end <= BEGIN:
        return None
    tree = ms.merge_tree(run, radius=setting.radius)
    return run.at(BEGIN), {
        int(c): (int(p), float(t)) for c, p, t in zip(tree.child, tree.parent, tree.time) if t > BEGIN
    }


def compare(setting: Setting, seed: int, state: np.ndarray, later: dict[int, tuple[int, float]]) -> Draw:
    """The prediction from a state against the merges of the simulation."""
    model = setting.model(seed)
    begin = time.process_time()
    guess = ms.predict_merges(state, model, BEGIN, radius=setting.radius)
    seconds = time.process_time() - begin
    assert guess.uncertainty is not None
    known = [row for row, child in enumerate(guess.child) if int(child) in later]
    simulated = np.array([later[int(guess.child[row])][1] for row in known])
    # About clusters at t = 100 the two may differ: tokens near each other may part for a moment before they have met
    # for good. That is no prediction, so the trees are compared on the children that lead a cluster at t = 100 in
    # both.
    parents = {int(child): int(parent) for child, parent in zip(guess.child, guess.parent)}
    first = set(ms.analysis.cluster_leaders(guess.start_labels).tolist())
    right = all(parents.get(child) == parent for child, (parent, _) in later.items() if child in first)
    return Draw(simulated, guess.time[known], guess.uncertainty[known], right, seconds)


def trial(setting: Setting, draws: int) -> list[Draw]:
    """The first `draws` draws that settle."""
    found: list[Draw] = []
    seed = 0
    while len(found) < draws:
        known = truth(setting, seed)
        if known is not None:
            found.append(compare(setting, seed, *known))
        seed += 1
    return found


def report(setting: Setting, draws: list[Draw]) -> str:
    """One line of the table."""
    off = np.concatenate([draw.off for draw in draws])
    sure = off[np.concatenate([draw.uncertainty for draw in draws]) < 0.05]
    milliseconds = 1e3 * np.array([draw.seconds for draw in draws[1:] or draws])  # the first one compiles
    return (
        f"{setting.name:32s} {len(draws):4d} draws {len(off):5d} merges  median {np.median(off):.5f}  "
        f"90 % {np.quantile(off, 0.9):.4f}  "
        f"worst {off.max():6.2f}  tree right {sum(draw.right for draw in draws):3d}  "
        f"{np.median(milliseconds):5.1f} ms, at most {milliseconds.max():.0f}; "
        f"sure {len(sure)}, of them off by more than 0.1: {int((sure > 0.1).sum())}"
    )


def picture(found: dict[Setting, list[Draw]]) -> Any:
    """Predicted against simulated times of all merges, and their difference."""
    pairs = {
        setting.label: tuple(
            np.concatenate([getattr(draw, name) for draw in draws]) for name in ("simulated", "predicted")
        )
        for setting, draws in found.items()
    }
    return long_runs.prediction(pairs, ())


def main() -> None:
    """Run the trial and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--draws", type=int, default=100, help="draws of each setting; a hundred take about an hour of CPU"
    )
    parser.add_argument("--figure", type=Path, help="where to put the picture of all merges, without suffix")
    options = parser.parse_args()
    found = {}
    for setting in SETTINGS:
        found[setting] = trial(setting, options.draws)
        print(report(setting, found[setting]), flush=True)
    if options.figure is not None:
        style.save(picture(found), options.figure)


if __name__ == "__main__":
    main()
