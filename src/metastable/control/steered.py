"""What `schedule` found: `Steering`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from metastable.analysis.merging import MergeTree
from metastable.control.reduced import fall_of
from metastable.model import Schedule
from metastable.model.describe import table
from metastable.run import Run
from metastable.run.trees import MergeTree as DrawnTree

GOOD = 0.005
"""Part of log10 T by which a simulated merge may be off."""


@dataclass(frozen=True, repr=False)
class Steering:
    """What `schedule` found.

    Fields
    ------
    schedule : the `Schedule`; `simulate(steering.schedule, run.start, until=...)` is the run under it.
    beta, changed : the inverse temperature of the model, and that of the change (the same one where none is needed).
    window : the depths between which the change holds.
    event, at : the merge (first tokens of the two clusters; None: that nothing merges) and the time asked for.
    natural, tree : the merges without and with the change, as the flow of clusters says. (A frozen token is their token 0, and the
        tokens of the run come behind it.)
    run : the simulation of the schedule (None: it was not asked for); achieved : time of the merge in it (or of the first merge of
        all), infinite where there is none up to its end, or where the cluster falls into another one than that asked for.
    undisturbed : True when all earlier merges are as without the change (in the simulation, where there is one).
    """

    schedule: Schedule
    beta: float
    changed: float
    window: tuple[float, float]
    event: tuple[int, int] | None
    at: float
    natural: DrawnTree
    tree: DrawnTree
    run: Run | None
    achieved: float | None
    undisturbed: bool

    @property
    def change(self) -> float:
        """The change of beta."""
        return self.changed - self.beta

    @property
    def tolerance(self) -> float:
        """Decades by which a simulated merge may be off the time T asked for: 0.005 log10 T, and 0.005 at least."""
        return GOOD * max(1.0, abs(math.log10(self.at)))

    @property
    def off(self) -> float | None:
        """Decades by which the simulated merge is late (negative: early), log10(achieved/T); None without a simulation."""
        if self.achieved is None:
            return None
        return math.log10(self.achieved) - math.log10(self.at) if math.isfinite(self.achieved) else math.inf

    @property
    def met(self) -> bool | None:
        """True when the simulation meets the goal: the merge is off by no more than `tolerance`, or there is none before T, and earlier
        merges are as without the change. None without a simulation.
        """
        if self.run is None or self.off is None:
            return None
        if self.event is None:
            return self.off >= -1e-9 and self.run.end >= self.at
        return abs(self.off) <= self.tolerance and self.undisturbed

    @property
    def facts(self) -> dict[str, str]:
        """What was found, in words, by name."""
        goal = "no merge" if self.event is None else f"{self.event[0]} into {self.event[1]}"
        before = first_time(self.natural) if self.event is None else fall_time(self.natural, self.event[0])
        seen = ""
        if self.achieved is not None and self.off is not None:
            seen = f"{self.achieved:.4g}" + ("" if self.undisturbed else ", and earlier merges moved")
            if self.event is not None and math.isfinite(self.off):
                late = f"{abs(self.off):.2g} decades {'late' if self.off > 0 else 'early'}" if self.off else "on time"
                close = "are left as they are" if abs(self.off) <= self.tolerance else "would do"
                seen += f" ({late}; up to {self.tolerance:.2g} {close})"
        return {
            "goal": f"{goal} {'before' if self.event is None else 'at'} t = {self.at:.4g}",
            "without": f"t = {before:.4g}",
            "beta": f"{self.beta:.6g}, and {self.changed:.6g} from t = {self.window[0]:.4g} to {self.window[1]:.4g}",
            "simulated": seen and f"t = {seen}",
            "goal met": {None: "", True: "yes", False: "no"}[self.met],
        }

    def __repr__(self) -> str:
        return "<Steering: " + "; ".join(f"{name} {text}" for name, text in self.facts.items() if text) + ">"

    def _repr_html_(self) -> str:
        return table("Steering", self.facts)

    def plot(self, **options: Any) -> Any:
        """World lines without and with the change; see `metastable.figures.draw_steering`."""
        from metastable import figures

        return figures.draw_steering(self, **options)


def first_time(tree: MergeTree) -> float:
    """When the first merge of a tree is; infinite where there is none."""
    return float(tree.time[0]) if len(tree) else math.inf


def fall_time(tree: MergeTree, child: int, into: int | None = None) -> float:
    """When cluster `child` falls (into the cluster that `into` is part of then); infinite: never."""
    fall = fall_of(tree, child, into)
    return math.inf if fall is None else fall.time
