"""Merge trees as users hold them: what `metastable.analysis` found, with its picture."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

from metastable import analysis
from metastable.analysis import Trajectory, merging
from metastable.model import Attention


@dataclass(frozen=True, repr=False)
class MergeTree(analysis.MergeTree):
    """A `metastable.analysis.MergeTree` that can draw itself; see there for its fields."""

    def plot(self, **options: Any) -> Any:
        """Who merges into whom, in log time; see `metastable.figures.draw_tree`."""
        from metastable import figures

        return figures.draw_tree(self, **options)


def with_picture(tree: analysis.MergeTree) -> MergeTree:
    """The same tree, as users hold it."""
    return MergeTree(**{field.name: getattr(tree, field.name) for field in fields(tree)})


@wraps(analysis.merge_tree)
def merge_tree(
    run: Trajectory, radius: float | None = None, *, window: float = merging.WINDOW, resolution: float = 1e-9
) -> MergeTree:
    tree = merging.tree_of_run(run, radius, window, resolution)
    merging.warn_of_noise(tree)
    return with_picture(tree)


@wraps(analysis.predict_merges)
def predict_merges(
    state: Any, model: Attention, t0: float = 0.0, *, radius: float | None = None, blur: float | None = None
) -> MergeTree:
    return with_picture(analysis.predict_merges(state, model, t0, radius=radius, blur=blur))
