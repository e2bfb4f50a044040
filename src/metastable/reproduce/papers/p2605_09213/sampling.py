"""Correlations between where a token began and where a later one is, measured with little noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from metastable import sphere
from metastable.model import ALiBi, Attention, Causal
from metastable.reproduce.draws import each
from metastable.reproduce.recipe import Report
from metastable.run import simulate


def model(tokens: int, beta: float, slope: float) -> Attention:
    """theta_j' = -sum_{k<j} w_jk sin(theta_j - theta_k) e^(beta cos(theta_j - theta_k)): the paper's flow at depth beta t."""
    return Attention(
        dim=2, beta=beta, weights="unnormalized", mask=Causal(include_self=False), bias=ALiBi(slope / tokens)
    )


def batch_of_starts(tokens: int, readers: int, runs: int, seed: int) -> Any:
    """Angles (runs, tokens), each run uniform and independent on its own, and spread evenly over the batch (a Latin hypercube).

    Readers (the last `readers` tokens) begin at the same place in all runs of a batch. Each other token takes every one of `runs`
    equal arcs once, in an order of its own, so that what does not depend on it cancels: the average of cos(theta_j - theta_s) over
    the batch holds the influence of s, of size 1/n, and not the noise of size 1.
    """
    generator = np.random.default_rng(seed)
    order = generator.permuted(np.tile(np.arange(runs), (tokens, 1)), axis=1).T
    angles = 2 * np.pi * (order + generator.random(tokens)) / runs
    angles[:, tokens - readers :] = 2 * np.pi * generator.random(readers)
    return angles


def correlations(parameters: Mapping[str, Any], tokens: int, chosen: list[int], report: Report) -> Any:
    """j E[cos m(theta_j(t) - theta_s(0))] of the last readers j, as measured in each batch. Shape (batch, time, mode, reader, token).

    A prefix of j tokens is the same system with n = j and lambda j/n, so every reader counts; theory is evaluated for each.
    """
    beta, slope, modes = parameters["beta"], parameters["slope"], np.arange(1, parameters["modes"] + 1)
    readers, runs = min(parameters["readers"], tokens // 4), parameters["runs"]
    system, times = model(tokens, beta, slope), np.array(parameters["depths"], dtype=float)

    def one(seed: int) -> Any:
        starts = batch_of_starts(tokens, readers, runs, seed)
        total = np.zeros((times.size, modes.size, readers, tokens))
        for start in starts:
            run = simulate(system, sphere.from_angle(start), times=beta * times, rtol=1e-5, atol=1e-7, progress=False)
            # cos m(a - b) is the real part of e^(ima) conj(e^(imb)): one product of matrices for all readers and sources.
            for t, x in enumerate(run.states[:, tokens - readers :]):
                later = (x[:, 0] + 1j * x[:, 1])[None, :] ** modes[:, None]
                earlier = np.exp(1j * modes[:, None] * start[None, :])
                total[t] += (later[:, :, None] * earlier.conj()[:, None, :]).real
        length = np.arange(tokens - readers + 1, tokens + 1)
        return total / runs * length[None, None, :, None]

    return np.array(each(one, chosen, report))
