"""What is simulated: models, heads, masks, norms and parts. Frozen, checked, no loops."""

from metastable.model.attention import Attention, Head
from metastable.model.masks import Causal, Full, Mask, Prefix, Sink, Visibility, Window
from metastable.model.norms import NGPT, MixLN, Norm, PeriLN, PostLN, PreLN, SqrtScaling
from metastable.model.parts import ALiBi, FeedForward, Frozen

__all__ = [
    "NGPT",
    "ALiBi",
    "Attention",
    "Causal",
    "FeedForward",
    "Frozen",
    "Full",
    "Head",
    "Mask",
    "MixLN",
    "Norm",
    "PeriLN",
    "PostLN",
    "PreLN",
    "Prefix",
    "Sink",
    "SqrtScaling",
    "Visibility",
    "Window",
]
