"""metastable: the laboratory for attention dynamics.

Tokens are particles on the unit sphere, moved by causal (or any other) self-attention. They clump into metastable clusters
seeded by Renyi parking centers, and in the end collapse as the value matrix dictates (arXiv:2411.04990).

>>> import metastable as ms
>>> model = ms.Attention(dim=2, beta=64.0)
>>> start = ms.sphere.uniform(200, dim=2, seed=0)
>>> run = ms.simulate(model, start, until=200.0)  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "model": (
        "ALiBi",
        "Attention",
        "Causal",
        "FeedForward",
        "Frozen",
        "Full",
        "Head",
        "Mask",
        "MixLN",
        "NGPT",
        "PeriLN",
        "PostLN",
        "PreLN",
        "Prefix",
        "Sink",
        "SqrtScaling",
        "Window",
    ),
    "kernels.select": ("velocity",),
    "run": ("Run", "load", "simulate"),
    "ensembles": ("ensemble", "summarize"),
    "analysis": (
        "classify",
        "cluster_labels",
        "consumed",
        "merge_tree",
        "predict",
        "renyi_centers",
    ),
    "sweep": ("Sweep",),
}
_MODULES = {
    "analysis": "analysis",
    "checkpoints": "checkpoints",
    "errors": "errors",
    "figures": "figures",
    "observe": "analysis.observe",
    "sphere": "sphere",
    "theory": "theory",
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted([*_HOME, *_MODULES, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import on first use: `import metastable` stays fast, and optional parts stay optional."""
    if name in _HOME:
        value = getattr(import_module(f"metastable.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"metastable.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'metastable' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from metastable import analysis, checkpoints, errors, figures, sphere, theory
    from metastable.analysis import (
        classify,
        cluster_labels,
        consumed,
        merge_tree,
        observe,
        predict,
        renyi_centers,
    )
    from metastable.ensembles import ensemble, summarize
    from metastable.kernels.select import velocity
    from metastable.model import (
        NGPT,
        ALiBi,
        Attention,
        Causal,
        FeedForward,
        Frozen,
        Full,
        Head,
        Mask,
        MixLN,
        PeriLN,
        PostLN,
        Prefix,
        PreLN,
        Sink,
        SqrtScaling,
        Window,
    )
    from metastable.run import Run, load, simulate
    from metastable.sweep import Sweep
