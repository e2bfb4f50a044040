"""The lengths that a model sets, for whoever was not told others: how near tokens are one cluster, how far apart centers are.

Two tokens attract each other most at a distance of about beta^(-1/2) (`theory.interaction_peak`), and every default is a multiple of
that width. The command line, the explorer, the films, `merge_tree` and the observables of sweeps share them: the same
state has the same number of clusters everywhere. (`merge_tree` counts the links that stay: while tokens still pass by one another,
early in a run, it has more clusters than the distances at that moment have.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from metastable import _checks
from metastable.errors import InvalidInputError, UnsupportedError
from metastable.model import Attention

CLUSTER_FRACTION = 0.5
"""Tokens closer than this many widths are linked: a cluster that falls into another one stretches, so a much smaller radius takes
it apart again for a while."""
CENTER_SEPARATION = 4.0
"""delta in widths: that of the paper's figures."""
CONSUMED_FRACTION = 0.1
"""A token within this fraction of delta of a center is consumed by it."""


def attraction_width(model: Attention) -> float:
    """beta^(-1/2) of the head with the largest beta in size, in radians; at most 1."""
    if getattr(model, "beta", 0.0) is None and not isinstance(model, Attention):
        raise UnsupportedError(
            "the layers of a checkpoint have no inverse temperature from which a length could be taken; give it, for example "
            "radius=0.3 (or delta=)"
        )
    _checks.instance(model, Attention, "model")
    return 1.0 / math.sqrt(max(1.0, *(abs(head.beta) for head in model.all_heads)))


def cluster_radius(model: Attention) -> float:
    """Geodesic distance below which tokens are one cluster unless told otherwise: 0.5 beta^(-1/2), at most 0.5."""
    return CLUSTER_FRACTION * attraction_width(model)


def center_separation(model: Attention) -> float:
    """delta of the Renyi centers unless told otherwise: 4 beta^(-1/2), at most pi."""
    return min(math.pi, CENTER_SEPARATION * attraction_width(model))


def cluster_radius_of_run(run: Any) -> float:
    """`cluster_radius` of the model of a run; of its models, where all agree, or where the run ends with the model that it began with
    (a change for a while, such as `metastable.control.schedule` makes). Elsewhere no one length fits the whole run.
    """
    return _length_of_run(run, cluster_radius, "radius", "radii of clusters")


def center_separation_of_run(run: Any) -> float:
    """`center_separation` of a run, where it has one, as `cluster_radius_of_run`."""
    return _length_of_run(run, center_separation, "delta", "separations of centers")


def _length_of_run(run: Any, length: Callable[[Attention], float], argument: str, lengths: str) -> float:
    models = getattr(run, "models", (run.model,))
    if models[0] == models[-1]:
        return length(models[0])
    found = sorted({length(model) for model in models})
    if len(found) > 1:
        raise InvalidInputError(
            f"the models of this run have different beta, and so different {lengths}, {found[0]:.3g} to {found[-1]:.3g}; say "
            f"which one counts for the whole run, for example {argument}={found[0]:.3g}"
        )
    return found[0]
