"""What the colours of a film mean: the clusters that tokens end in, and the Renyi centers of the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.analysis import renyi_centers
from metastable.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_KEYS_BESIDE = (8, 5, 3)
"""Clusters in the key; where it names centers, or what does not move on a narrow page, as well; where it names both: a line has no room
for more."""
WIDE = 7.0
"""Inches of a page from which on a line has room for more."""
CENTERS = {style.RENYI: "Rényi center", style.STRONG: "strong center"}
"""Colours of centers, and what the key calls them."""


def center_marks(start: np.ndarray, delta: float | None) -> tuple[np.ndarray, list[str]]:
    """Indices of the Renyi centers and their colours. Strong ones are red and come last: where centers meet, red is on top."""
    if delta is None:
        return np.zeros(0, dtype=int), []
    renyi, strong = (np.asarray(renyi_centers(start, delta, strong=which), dtype=int) for which in (False, True))
    weak = renyi[~np.isin(renyi, strong)]
    return np.concatenate([weak, strong]), [style.RENYI] * len(weak) + [style.STRONG] * len(strong)


def draw_key(page: Figure, labels: np.ndarray, tints: Sequence[str], others: Sequence[Any] = ()) -> None:
    """The clusters that tokens end in, largest first, the centers, where there are any of these `tints`, and `others` (handles)."""
    from matplotlib.lines import Line2D

    sizes = np.bincount(labels)
    narrow = bool(page.get_figwidth() < WIDE)
    most = MOST_KEYS_BESIDE[(len(tints) > 0) + (narrow and len(others) > 0)]
    order = np.argsort(-sizes, kind="stable")[:most]
    colors = style.cluster_colors(order)
    options: Any = {"linestyle": "", "marker": "o", "markeredgewidth": 0}
    handles = [Line2D([], [], color=color, label=f"{sizes[k]}", **options) for k, color in zip(order, colors)]
    # The page of a sphere is narrow: what is special stands on a line of its own.
    more = f"\nthe {len(order)} largest of {len(sizes)} clusters" if len(sizes) > len(order) else ""
    again = "; colours repeat" if len(sizes) > len(style.CATEGORICAL) else ""
    title = f"colour: the cluster that a token ends in, with its size{more}{again}"
    style.page_key(page, [*handles, *_center_handles(tints), *others], title)


def draw_center_key(page: Figure, tints: Sequence[str], marker: str, others: Sequence[Any] = ()) -> None:
    """The centers alone, for a film in which colours mean cosines, and `others` (handles)."""
    title = "beside its row: a center of the start" if len(tints) else ""
    style.page_key(page, [*_center_handles(tints, marker), *others], title)


def _center_handles(tints: Sequence[str], marker: str = "o") -> list[Any]:
    from matplotlib.lines import Line2D

    options: Any = {"linestyle": "", "marker": marker, "markeredgewidth": 0}
    return [Line2D([], [], color=tint, label=name, **options) for tint, name in CENTERS.items() if tint in tints]

