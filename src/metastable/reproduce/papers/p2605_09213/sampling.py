"""Correlations between where a token began and where a later one is, measured with little noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from metastable import sphere
from metastable.model import Attention, Causal
from metastable.reproduce.draws import each, whole
from metastable.reproduce.recipe import Report
from metastable.run import simulate


def model(tokens: int, beta: float, slope: float) -> Attention:
    """theta_j' = -sum_{k<j} w_jk sin(theta_j - theta_k) e^(beta cos(theta_j - theta_k)): the paper's flow at depth beta t.

    w_jk = e^(-lambda (j-k)/n)/sum_{k<j}: what depends on j cancels, so tokens have the masses e^(lambda k/n).
    """
    masses = np.exp(slope * np.arange(tokens) / tokens)
    return Attention(dim=2, beta=beta, weights="unnormalized", mask=Causal(include_self=False), masses=masses)


def reader_places(tokens: int, most: int = 32) -> Any:
    """Indices of the readers: the last token and every third before it. The tokens between them stay sources, so that those near a
    reader are seen too.
    """
    return tokens - 1 - 3 * np.arange(min(most, tokens // 8))[::-1]


def batch_of_starts(tokens: int, readers: Any, runs: int, seed: int) -> Any:
    """Angles (runs, tokens), each run uniform and independent on its own, and spread evenly over the batch (a Latin hypercube).

    Readers (their indices) begin at the same place in all runs of a batch. Each other token takes every one of `runs`
    equal arcs once, in an order of its own, so that what does not depend on it cancels: the average of cos(theta_j - theta_s) over
    the batch holds the influence of s, of size 1/n, and not the noise of size 1.
    """
    generator = np.random.default_rng(seed)
    order = generator.permuted(np.tile(np.arange(runs), (tokens, 1)), axis=1).T
    angles = 2 * np.pi * (order + generator.random(tokens)) / runs
    angles[:, readers] = 2 * np.pi * generator.random(readers.size)
    return angles


def correlations(parameters: Mapping[str, Any], tokens: int, chosen: list[int], report: Report) -> Any:
    """j E[cos m(theta_j(t) - theta_s(0))] of the readers j, as measured in each batch. Shape (batch, time, mode, reader, token).

    A prefix of j tokens is the same system with n = j and lambda j/n, so every reader counts; theory is evaluated for each.
    """
    beta, slope, modes = parameters["beta"], parameters["slope"], np.arange(1, parameters["modes"] + 1)
    readers, runs = reader_places(tokens), parameters["runs"]
    system, times = model(tokens, beta, slope), np.array(parameters["depths"], dtype=float)

    def one(seed: int) -> Any:
        starts = batch_of_starts(tokens, readers, runs, seed)
        total = np.zeros((times.size, modes.size, readers.size, tokens))
        for start in starts:
            run = whole(
                simulate(system, sphere.from_angle(start), times=beta * times, rtol=1e-5, atol=1e-7, progress=False)
            )
            # cos m(a - b) is the real part of e^(ima) conj(e^(imb)): one product of matrices for all readers and sources.
            for t, x in enumerate(run.states[:, readers]):
                later = (x[:, 0] + 1j * x[:, 1])[None, :] ** modes[:, None]
                earlier = np.exp(1j * modes[:, None] * start[None, :])
                total[t] += (later[:, :, None] * earlier.conj()[:, None, :]).real
        return total / runs * (readers + 1)[None, None, :, None]

    return np.array(each(one, chosen, report))
