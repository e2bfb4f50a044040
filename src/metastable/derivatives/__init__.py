"""Derivatives of runs: `gradient` of an observable in the start and in the parameters of the model, and the smooth observables."""

from metastable.derivatives.gradients import Gradient, gradient
from metastable.derivatives.objectives import (
    Smooth,
    interaction_energy,
    mean_cosine,
    order_parameter,
    pair_angle,
    pair_cosine,
    soft_clusters,
    spread,
)

__all__ = [
    "Gradient",
    "Smooth",
    "gradient",
    "interaction_energy",
    "mean_cosine",
    "order_parameter",
    "pair_angle",
    "pair_cosine",
    "soft_clusters",
    "spread",
]
