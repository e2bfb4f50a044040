"""Derivatives of runs: `gradient` of an observable in the start and in the parameters of the model, the smooth observables that it is
taken of, and `jacobian_spectrum`, how fast small changes grow."""

from metastable.derivatives.gradients import Gradient, gradient
from metastable.derivatives.lyapunov import JacobianSpectrum, jacobian_spectrum
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
    "JacobianSpectrum",
    "Smooth",
    "gradient",
    "interaction_energy",
    "jacobian_spectrum",
    "mean_cosine",
    "order_parameter",
    "pair_angle",
    "pair_cosine",
    "soft_clusters",
    "spread",
]
