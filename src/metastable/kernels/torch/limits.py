"""What the torch engine can do, told without importing torch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from metastable.errors import missing_extra
from metastable.kernels import single
from metastable.kernels.pullback import PARTS
from metastable.model import Attention, Support, why_not

WEIGHTS = {"float64": ("softmax", "unnormalized", "hardmax"), "float32": ("softmax", "unnormalized")}
"""Which tokens tie for the most attended, single precision cannot tell."""

SUPPORT = {
    dtype: Support(
        "engine='torch'" if dtype == "float64" else "engine='torch' in single precision",
        norms=None,
        masks=None,
        weights=frozenset(weights),
        biases=frozenset({"alibi", "logits"}),
        parts=PARTS | {"noise"},
        use="use engine='reference'" if dtype == "float64" else "use dtype='float64'",
        rules=() if dtype == "float64" else (single.RULE,),
    )
    for dtype, weights in WEIGHTS.items()
}


def refusal(model: Attention, tokens: int | None = None, dtype: str = "float64") -> str | None:
    """Why this engine cannot do the model, or None. (Whether torch is installed is another question: `library`.)"""
    return why_not(model, SUPPORT[dtype], tokens)


def installed() -> bool:
    """True when torch can be imported, without doing so (it takes seconds)."""
    try:
        return find_spec("torch") is not None
    except ValueError:  # half a module
        return False


def library() -> Any:
    """The imported module `torch`, or `MissingExtraError` with the command that installs it."""
    try:
        import torch
    except ImportError:
        raise missing_extra("torch", "torch", "engine='torch'") from None
    return torch
