"""Rotary position embeddings (Su et al., arXiv:2104.09864), in the half-split layout that Llama and GPT-NeoX use.

Position p rotates the plane (i, i + rotary_dim/2) of a head by the angle p f_i; R_p denotes that rotation. Logits depend on the
lag p_query - p_key only: <R_s q, R_t k> = <q, R_{t-s} k>.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.errors import CheckpointError, UnsupportedError

KNOWN_KINDS = ("default", "linear", "llama3", "factors")


@dataclass(frozen=True)
class Rope:
    """Rotary parameters: base `theta`, number of rotated coordinates `rotary_dim`, and how frequencies are rescaled.

    `kind`: `"default"` f_i = theta^(-2i/rotary_dim); `"linear"` f_i / factor; `"llama3"` low frequencies divided by factor with a
    smooth passage; `"factors"` f_i / factors_i (as GGUF files store it). Other kinds are kept, and refused when used.
    """

    theta: float
    rotary_dim: int
    kind: str = "default"
    parameters: tuple[tuple[str, Any], ...] = ()

    @property
    def frequencies(self) -> FloatArray:
        """Angles per position, shape (rotary_dim // 2,)."""
        if self.kind not in KNOWN_KINDS:
            raise UnsupportedError(
                f"rotary embeddings of type {self.kind!r} are not implemented (known: {', '.join(KNOWN_KINDS)}); "
                "spectra do not need them: use ov_spectra, or inverse_temperature(..., rope=False)"
            )
        base = self.theta ** (-np.arange(0, self.rotary_dim, 2) / self.rotary_dim)
        options = dict(self.parameters)
        if self.kind == "linear":
            return base / options["factor"]
        if self.kind == "factors":
            return base / np.asarray(options["factors"])
        if self.kind == "llama3":
            return _llama3(base, options)
        return base

    def rotate(self, x: FloatArray, positions: FloatArray) -> FloatArray:
        """R_p x for rows x of shape (..., tokens, head_dim) at `positions` (tokens,)."""
        angle = np.asarray(positions, dtype=np.float64)[:, None] * self.frequencies
        cosine, sine = np.cos(angle), np.sin(angle)
        half = self.rotary_dim // 2
        first, second = x[..., :half], x[..., half : self.rotary_dim]
        turned = (first * cosine - second * sine, second * cosine + first * sine, x[..., self.rotary_dim :])
        return np.concatenate(turned, axis=-1)

    def rotation(self, lag: float, head_dim: int) -> FloatArray:
        """R_{-lag}, shape (head_dim, head_dim): the matrix between a query and a key that stands `lag` tokens before it."""
        return self.rotate(np.eye(head_dim), np.full(head_dim, -float(lag))).T


def _llama3(base: FloatArray, options: Mapping[str, Any]) -> FloatArray:
    """Llama 3.1's frequencies: unchanged above high_freq_factor turns of the old context, divided by `factor` below low."""
    context = options["original_max_position_embeddings"]
    low, high, factor = options["low_freq_factor"], options["high_freq_factor"], options["factor"]
    turns = context * base / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * base / factor + smooth * base


def rope_from_config(config: Mapping[str, Any], head_dim: int, default_theta: float, default_fraction: float) -> Rope:
    """Rotary parameters from a model's config.json, in its present and its older spellings."""
    options = dict(config.get("rope_parameters") or {})
    scaling = dict(config.get("rope_scaling") or {})
    options = {**scaling, **options}
    kind = options.pop("rope_type", None) or options.pop("type", None) or "default"
    options.pop("type", None)
    theta = (
        options.pop("rope_theta", None) or config.get("rope_theta") or config.get("rotary_emb_base") or default_theta
    )
    fraction = options.pop("partial_rotary_factor", None)
    for name in ("partial_rotary_factor", "rotary_pct"):
        if fraction is None:
            fraction = config.get(name)
    if kind == "llama3":
        options.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    needed = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }.get(kind, ())
    missing = [name for name in needed if options.get(name) is None]
    if missing:
        raise CheckpointError(f"config.json: rotary embeddings of type {kind!r} need {', '.join(missing)}; add them")
    rotary_dim = int(head_dim * (default_fraction if fraction is None else float(fraction)))
    kept = tuple(sorted((name, _hashable(value)) for name, value in options.items()))
    return Rope(float(theta), rotary_dim, str(kind), kept)


def _hashable(value: Any) -> Any:
    """Lists as tuples, so that a `Rope` stays hashable."""
    return tuple(value) if isinstance(value, list) else value
