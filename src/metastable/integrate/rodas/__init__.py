"""Rodas5P with the triangular Jacobian of causal attention: horizons of any length. See `solver`."""

from metastable.integrate.rodas.prepare import DENSE_HORIZON, Departure, dense_tokens, on_circle
from metastable.integrate.rodas.solver import (
    JOINED,
    LOGIT_SPREAD,
    RESTING,
    SETTLED,
    SUPPORT,
    chart_jacobian,
    check_range,
    horizon_refusal,
    member_solver,
    refusal,
    solve,
)

__all__ = [
    "DENSE_HORIZON",
    "JOINED",
    "LOGIT_SPREAD",
    "RESTING",
    "SETTLED",
    "SUPPORT",
    "Departure",
    "chart_jacobian",
    "check_range",
    "dense_tokens",
    "horizon_refusal",
    "member_solver",
    "on_circle",
    "refusal",
    "solve",
]
