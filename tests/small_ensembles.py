"""Small ensembles to select, mask and join."""

from __future__ import annotations

import warnings

import metastable as ms
from metastable.errors import StoppedEarlyWarning

DROP = {"combine_attrs": "drop_conflicts"}


def made(beta=4.0, times=(0.0, 1.0), seed=0, **options):
    """Three members of five tokens on the circle; those that stop early do so without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoppedEarlyWarning)
        return ms.ensemble(
            ms.Attention(dim=2, beta=beta),
            tokens=5,
            members=3,
            times=list(times),
            seed=seed,
            engine="reference",
            observe={"clusters": ms.observe.clusters(radius=0.1), "x": ms.observe.state()},
            **options,
        )
