"""What the functions of control are asked with, checked before any work: radii, options of ensembles."""

from __future__ import annotations

import math
from typing import Any

from metastable import _checks
from metastable.analysis import cluster_radius
from metastable.errors import InvalidInputError
from metastable.model import Attention

OPTIONS = (
    "method",
    "engine",
    "interaction",
    "rtol",
    "atol",
    "step",
    "max_steps",
    "memory",
    "threads",
    "dtype",
    "start",
)
"""Options of `metastable.ensemble` that control passes on; what else it takes is said by control itself."""


SMALLEST_RADIUS = 1e-4
"""Least radius of a cluster: states are known to 1e-6 or so, and tokens of a cluster not much larger than that would come and go."""


def own_radius(radius: Any) -> float | None:
    """A radius of clusters, where one is given: below pi, where every token is in one cluster whatever happens, and at least
    `SMALLEST_RADIUS`.
    """
    if radius is None:
        return None
    return _checks.number(_checks.number(radius, "radius", 0.0, math.pi, strict=True), "radius", SMALLEST_RADIUS)


def radius_of(radius: Any, model: Attention) -> float:
    """The same, and that of the model where none is given."""
    given = own_radius(radius)
    return cluster_radius(model) if given is None else given


def ensemble_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options that go to `ensemble`; `InvalidInputError` names the first that it does not have. (Their values are looked at there,
    before its first member.)
    """
    for name in options:
        if name not in OPTIONS:
            raise InvalidInputError(
                f"there is no option {name!r}; options of metastable.ensemble are {', '.join(OPTIONS)}"
            )
    return options
