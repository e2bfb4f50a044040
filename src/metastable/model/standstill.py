"""Models in which nothing moves, whatever the start."""

from __future__ import annotations

import numpy as np

from metastable.model.attention import Attention
from metastable.model.values import scalar_multiple


def standstill(model: Attention, tokens: int) -> str | None:
    """Why no token moves under this model (with the fix), or None.

    With "hardmax" and Q^T K = I every token that sees itself is its own best match, <x_k, x_k> = 1 >= <x_k, x_j>: it attends to nobody
    else, and where V is a multiple of I its velocity P_x V x is zero.
    """
    law = model.weighting.law
    if law is None or law.score != "largest" or model.noise > 0 or model.bias is not None:
        return None
    if model.feedforward is not None or not model.mask.matrix(tokens).diagonal().all():
        return None
    for head in model.all_heads:
        value = np.eye(model.dim) if head.value is None else head.value
        if head.bilinear is not None or head.beta <= 0 or scalar_multiple(value) is None:
            return None
    return (
        f"nothing moves: with weights={model.weighting.kind!r} and Q = K = I each token is its own best match and attends to no other; "
        "leave it out of what it sees (mask=Causal(include_self=False)), or give query, key or value matrices"
    )
