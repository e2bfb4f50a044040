"""What all sums share, each written once: whom a token sees, what it weighs, and how the norm scales its drift."""

from __future__ import annotations

import math

from metastable.kernels.cpu.compiled import inlined, inner
from metastable.kernels.cpu.vector import lanes, load, maximum, root, where


@inlined
def inverse_length(x, start, dim):
    """1/|x| of the vector of `dim` numbers from `start` on."""
    square = 0.0
    for a in range(start, start + dim):
        square += x[a] * x[a]
    return 1.0 / root(square)


@inlined
def seen_range(problem, k, q):
    """The q-th of the two ranges of tokens that token k sees."""
    return problem.intervals[k, q, 0], problem.intervals[k, q, 1]


@inlined
def range_of_others(problem, k, q):
    """The q-th of the four ranges of tokens that token k sees without itself: each of the two before and behind it."""
    start, stop = seen_range(problem, k, q // 2)
    if q % 2 == 0:
        return start, min(stop, k)
    return max(start, k + 1), stop


@inlined
def own_weight(problem, k):
    """What token k weighs in its own sum, relative to the largest weight: one where it sees itself, else nothing."""
    weight = 0.0
    for q in range(2):
        if problem.intervals[k, q, 0] <= k < problem.intervals[k, q, 1]:
            weight = 1.0
    return weight


@inlined
def biased(problem, head):
    """True when logits of a head depend on more than the directions of the tokens."""
    return problem.slope[head] != 0.0 or problem.weighed


@inlined
def member_logit(problem, head, k, j, logit):
    """What token j weighs for token k, as a logit, in every lane: that of the directions and what its place and mass add."""
    placed = logit - problem.slope[head] * abs(k - j)
    return placed + problem.lift[j] if problem.weighed else placed


@inlined
def row_logits(problem, head, k, j, logit):
    """The same for the tokens j, j + 1, ..., one in each lane."""
    distance = lanes() + (1.0 * (j - k))
    return logit - problem.slope[head] * maximum(distance, 0.0 - distance) + load(problem.lift, j)


@inlined
def divisor(weight_sum):
    """The sum of weights to divide by: one for a token that sees nobody, whose sums are zero."""
    return where(weight_sum, weight_sum, 1.0)


@inner
def pace(problem, time):
    """The part of the norm's factor 1/s that depends on time alone: amplitude (t + 1)^-decay."""
    if problem.decay == 0.0:
        return problem.amplitude
    if problem.decay == 0.5:
        return problem.amplitude / math.sqrt(time + 1.0)
    return problem.amplitude * (time + 1.0) ** -problem.decay


@inlined
def norm_factor(problem, pace, square):
    """1/s, from `pace` and the squared length of the attention sum (no force, no motion: 0/1 instead of 0/0)."""
    return pace / where(square, root(square), 1.0) if problem.by_length else pace


@inlined
def write_spin(problem, k, c, s, spin, out):
    """The velocity of a token on the circle that turns with angular velocity `spin`."""
    if problem.components == 1:
        out[k] = spin
    else:
        out[2 * k] = -s * spin
        out[2 * k + 1] = c * spin
