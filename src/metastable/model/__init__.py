"""What is simulated: models, heads, masks, norms, weights and parts, each declaring itself. Frozen, checked, no loops."""

from metastable.model.attention import Attention
from metastable.model.biases import ALiBi, Bias, LogitBias
from metastable.model.heads import Head, Rotary
from metastable.model.masks import Causal, Full, Mask, Masking, Prefix, Sink, Window
from metastable.model.norms import NGPT, Law, MixLN, Norm, PeriLN, PostLN, PreLN, SqrtScaling
from metastable.model.parts import FeedForward, Frozen
from metastable.model.refusals import EVERY_PART, Rule, Support, require, why_not
from metastable.model.schedule import Schedule
from metastable.model.weights import Weights, WeightsLaw

__all__ = [
    "EVERY_PART",
    "NGPT",
    "ALiBi",
    "Attention",
    "Bias",
    "Causal",
    "FeedForward",
    "Frozen",
    "Full",
    "Head",
    "Law",
    "LogitBias",
    "Mask",
    "Masking",
    "MixLN",
    "Norm",
    "PeriLN",
    "PostLN",
    "PreLN",
    "Prefix",
    "Rotary",
    "Rule",
    "Schedule",
    "Sink",
    "SqrtScaling",
    "Support",
    "Weights",
    "WeightsLaw",
    "Window",
    "require",
    "why_not",
]
