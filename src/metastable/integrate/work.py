"""What a step costs, explicit or implicit, by the size of the system: how `integrate.auto` compares the two methods.

Counted, not timed, so that a run chooses the same way on every machine. The numbers are nanoseconds on one core with AVX-512, fitted
to steps of 55 systems (n = 16 to 256, d = 2 to 64, one and four heads, causal and full attention) on a busy machine: half of the
ratios are within a factor of 1.4 of what was measured, the worst, a very small system, is off by 5. Only ratios are used.
"""

from __future__ import annotations

import numpy as np

from metastable.integrate import rodas
from metastable.model import Attention

STAGES = 6
"""Right-hand sides of an explicit step."""
CALL = 8e3
"""What Python adds to an explicit step. (Implicit ones are strung together by compiled code, but for dense blocks.)"""


def seen(model: Attention, tokens: int) -> float:
    """Pairs of tokens of which the first sees the second."""
    ranges = model.mask.intervals(tokens)
    if ranges is None:
        return float(model.mask.matrix(tokens).sum())
    return float(np.maximum(ranges[:, :, 1] - ranges[:, :, 0], 0).sum())


def explicit_step(model: Attention, tokens: int) -> float:
    """An attempted step of Tsit5: for every pair and head an exponential and products of d numbers, for every token d x d matrices."""
    heads = len(model.all_heads)
    pairs = seen(model, tokens) * heads
    if rodas.on_circle(model, tokens):
        return CALL + STAGES * 0.8 * pairs
    return CALL + STAGES * (pairs * (1.2 + 0.12 * model.dim) + 0.35 * tokens * heads * model.dim**2)


def implicit_step(model: Attention, tokens: int) -> float:
    """An attempted step of Rodas5P.

    In charts: for every pair and head eight stages of d numbers and derivatives of d^2; for every token its block, with
    its eigenvalues, d^3. A dense block of order m is factored, m^3, with some Python around it.
    """
    heads, dim = len(model.all_heads), float(model.dim)
    pairs = seen(model, tokens) * heads
    if rodas.on_circle(model, tokens):
        return 500.0 * tokens + 6.0 * pairs
    charts = pairs * (12.0 + 6.0 * dim + 0.6 * dim**2) + tokens * (1500.0 + (3.0 + 1.5 * heads) * dim**3)
    block = rodas.dense_tokens(model, tokens)
    if not block:
        return charts
    order = block * (dim - 1.0)
    return charts + 6e5 + 1e4 * order + 0.03 * order**3 + 40.0 * heads * order**2


def price(model: Attention, tokens: int) -> float:
    """Explicit steps that cost as much as an implicit one."""
    return implicit_step(model, tokens) / explicit_step(model, tokens)
