"""What the theory talks about, measured."""

from metastable.analysis.centers import consumed, renyi_centers
from metastable.analysis.clusters import (
    cluster_count,
    cluster_labels,
    cluster_leaders,
    cluster_means,
    cluster_sizes,
    cluster_spread,
)

__all__ = [
    "cluster_count",
    "cluster_labels",
    "cluster_leaders",
    "cluster_means",
    "cluster_sizes",
    "cluster_spread",
    "consumed",
    "renyi_centers",
]
