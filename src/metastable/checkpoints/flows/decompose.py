"""What attention and feed-forward part each do to the token cloud, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks, sphere
from metastable._checks import FloatArray
from metastable.analysis.energy import global_energy
from metastable.checkpoints.flows import solve
from metastable.checkpoints.flows.field import prepared
from metastable.checkpoints.geometry import mean_cosine
from metastable.errors import TokenError, UnsupportedError

if TYPE_CHECKING:
    import xarray as xr

    from metastable.checkpoints.flows.flow import Flow


MEASURED = 2
"""Tokens that must be left: there is a cosine between two."""


def _unit(x: Any, drop_first: int) -> tuple[FloatArray, FloatArray]:
    """Unit tokens and their lengths, float64."""
    states = solve.to_array(x)[drop_first:].astype(np.float64)
    length = np.linalg.norm(states, axis=1)
    if not (np.isfinite(length).all() and length.all()):
        raise TokenError("a state of this text is zero or not finite, so it has no direction; try dtype='float64'")
    return states / length[:, None], length


def _compare(before: Any, after: Any, drop_first: int, beta: float) -> tuple[FloatArray, float, float, float]:
    """Angle of each token (radians), and the changes of mean cosine, energy and median length (a ratio) of the cloud."""
    (u, r), (v, s) = _unit(before, drop_first), _unit(after, drop_first)
    return (
        sphere.distance(u, v),
        mean_cosine(v) - mean_cosine(u),
        global_energy(v, beta) - global_energy(u, beta),
        float(np.median(s / r)),
    )


def decompose(
    flow: Flow,
    text: Any,
    *,
    beta: float = 1.0,
    drop_first: int = 1,
    max_tokens: int | None = None,
    special_tokens: bool = True,
) -> xr.Dataset:
    """How far attention and feed-forward part each move the tokens on the sphere, and what each does to the cloud.

    Every layer acts on the states that the model itself has there. In sequential and post-norm layers the attention is measured from
    the layer's input to the state between the parts, the feed-forward part from there to the output; in parallel layers both are
    measured from the input.

    Args:
        text: a text, token ids or hidden states, as in `Flow.run`.
        beta: inverse temperature of the energy (1/(2 beta n^2)) sum_ij exp(beta (<x_i, x_j> - 1)), `metastable.analysis.global_energy`.
        drop_first: leading tokens that are not measured (attention sinks).

    Returns:
        Dataset over (layer, part), part `"attention"` or `"mlp"`: `angle` (median geodesic distance that a token moves, radians),
        `angle_low`, `angle_high` (0.1 and 0.9 quantiles over tokens), `mean_cosine_change`, `energy_change`, `length_change`
        (median ratio of lengths); over layer: `mean_cosine` of what enters.
    """
    import xarray as xr

    from metastable.checkpoints.flows.plan import Wish, check_plan

    beta = _checks.number(beta, "beta", 0.0, strict=True)
    drop_first = _checks.count(drop_first, "drop_first", 0)
    untold = [name for name, part in zip(flow.layer_names, flow.parts) if part is None]
    if untold:
        raise UnsupportedError(f"the parts of {untold[0]} cannot be told apart, so there is nothing to decompose")
    plan = check_plan(flow.depth, Wish(), single_precision=True)
    beginning = flow._begin(text, plan, max_tokens, special_tokens)
    tokens = int(beginning.states.shape[1])
    if tokens - drop_first < MEASURED:
        raise TokenError(
            f"the text has {tokens} tokens, and drop_first={drop_first} leaves fewer than {MEASURED} to be measured; give a longer text"
            + (f", or drop_first={tokens - MEASURED} at most" if tokens >= MEASURED else "")
        )
    layers = flow._layers(beginning.calls, range(flow.depth))
    rows = np.empty((flow.depth, 2, 6))
    entering = np.empty(flow.depth)
    x = beginning.states
    with prepared(layers, "all", 1.0, flow.dim) as field:
        for index, layer in enumerate(layers):
            entering[index] = mean_cosine(_unit(x, drop_first)[0])
            between, out = field.middle(index, x)
            parallel = layer.parts is not None and layer.parts.kind == "parallel"
            pairs = ((x, between), (x, x + field.shares["mlp"]) if parallel else (between, out))
            for part, (before, after) in enumerate(pairs):
                angle, cosine, energy, length = _compare(before, after, drop_first, beta)
                low, middle, high = np.quantile(angle, (0.1, 0.5, 0.9))
                rows[index, part] = middle, low, high, cosine, energy, length
            x = out
    names = ("angle", "angle_low", "angle_high", "mean_cosine_change", "energy_change", "length_change")
    return xr.Dataset(
        {
            **{name: (("layer", "part"), rows[..., i]) for i, name in enumerate(names)},
            "mean_cosine": ("layer", entering),
        },
        coords={"layer": np.arange(flow.depth), "part": ["attention", "mlp"]},
        attrs={
            "source": flow.source,
            "beta": beta,
            "drop_first": drop_first,
            "tokens": int(x.shape[1]) - drop_first,
            "layer_kind": flow.kind,
        },
    )
