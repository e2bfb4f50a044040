"""Rotary position embeddings (Su et al., arXiv:2104.09864), in the half-split layout that Llama and GPT-NeoX use.

Position p rotates the plane (i, i + rotary_dim/2) of a head by the angle p f_i; R_p denotes that rotation. Logits depend on the
lag p_query - p_key only: <R_s q, R_t k> = <q, R_{t-s} k>.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from metastable._checks import FloatArray, count, number, real_array, room, vector
from metastable.errors import CheckpointError, InvalidInputError, UnsupportedError
from metastable.model import Rotary

KNOWN_KINDS = ("default", "linear", "llama3", "factors")
NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "factors": ("factors",),
}
"""What each kind needs among its parameters."""


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

    def __post_init__(self) -> None:
        number(self.theta, "theta", 0.0, strict=True)
        if count(self.rotary_dim, "rotary_dim", 2) % 2:
            raise InvalidInputError(f"rotary_dim must be even, because rotations turn planes, not {self.rotary_dim}")
        if not isinstance(self.kind, str):
            raise InvalidInputError(f"kind must be a text such as 'default', not {self.kind!r}")
        try:
            options = dict(self.parameters)
        except (TypeError, ValueError):
            raise InvalidInputError(
                f"parameters must be pairs of a name and a value, not {self.parameters!r}"
            ) from None
        missing = [name for name in NEEDED.get(self.kind, ()) if options.get(name) is None]
        if missing:
            raise InvalidInputError(f"rotary embeddings of type {self.kind!r} need {', '.join(missing)}; add them")
        for name in NEEDED.get(self.kind, ()):
            if name != "factors":
                number(options[name], name, 0.0, strict=True)
        if self.kind == "factors" and (vector(options["factors"], "factors", self.rotary_dim // 2) <= 0).any():
            raise InvalidInputError("factors must be positive")
        if self.kind == "llama3" and options["low_freq_factor"] >= options["high_freq_factor"]:
            raise InvalidInputError("low_freq_factor must lie below high_freq_factor")

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

    def as_rotary(self) -> Rotary:
        """The same for heads of an `Attention`."""
        rescaled = None if self.kind == "default" else tuple(self.frequencies.tolist())
        return Rotary(self.theta, self.rotary_dim, frequencies=rescaled)

    def rotate(self, x: FloatArray, positions: FloatArray) -> FloatArray:
        """R_p x for rows x of shape (..., tokens, head_dim) at `positions` (tokens,)."""
        x, places = real_array(x, "x"), vector(positions, "positions")
        if x.ndim < 2 or x.shape[-2] != places.size or x.shape[-1] < self.rotary_dim:
            raise InvalidInputError(
                f"x must have shape (..., tokens, head_dim) with one of the {places.size} positions for each token and "
                f"head_dim >= {self.rotary_dim}, not {x.shape}"
            )
        angle = places[:, None] * self.frequencies
        cosine, sine = np.cos(angle), np.sin(angle)
        half = self.rotary_dim // 2
        first, second = x[..., :half], x[..., half : self.rotary_dim]
        turned = (first * cosine - second * sine, second * cosine + first * sine, x[..., self.rotary_dim :])
        return np.concatenate(turned, axis=-1)

    def rotation(self, lag: float, head_dim: int) -> FloatArray:
        """R_{-lag}, shape (head_dim, head_dim): the matrix between a query and a key that stands `lag` tokens before it."""
        size, turned = count(head_dim, "head_dim", self.rotary_dim), number(lag, "lag")
        room((size, size), "the rotation")
        return self.rotate(np.eye(size), np.full(size, -turned)).T


def _llama3(base: FloatArray, options: Mapping[str, Any]) -> FloatArray:
    """Llama 3.1's frequencies: unchanged above high_freq_factor turns of the old context, divided by `factor` below low."""
    context = options["original_max_position_embeddings"]
    low, high, factor = options["low_freq_factor"], options["high_freq_factor"], options["factor"]
    turns = context * base / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * base / factor + smooth * base


def rope_from_config(config: Mapping[str, Any], head_dim: int, default_theta: float, default_fraction: float) -> Rope:
    """Rotary parameters from a model's config.json, in its present and its older spellings."""
    options: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        table = config.get(name) or {}
        if not isinstance(table, Mapping):
            raise CheckpointError(f"config.json: {name} must be a table, not {table!r}")
        options |= table
    kind = options.pop("rope_type", None) or options.pop("type", None) or "default"
    options.pop("type", None)
    if not isinstance(kind, str):
        raise CheckpointError(f"config.json: the type of rotary embeddings must be a text, not {kind!r}")
    fraction = options.pop("partial_rotary_factor", None)
    theta = options.pop("rope_theta", None)
    for name in ("rope_theta", "rotary_emb_base"):
        theta = config.get(name) if theta is None else theta
    for name in ("partial_rotary_factor", "rotary_pct"):
        fraction = config.get(name) if fraction is None else fraction
    if kind == "llama3":
        options.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    theta = _positive(default_theta if theta is None else theta, "rope_theta")
    fraction = _positive(default_fraction if fraction is None else fraction, "partial_rotary_factor", 1.0)
    kept = tuple(sorted((str(name), _hashable(value)) for name, value in options.items()))
    try:
        return Rope(theta, int(head_dim * fraction), kind, kept)
    except InvalidInputError as reason:
        raise CheckpointError(f"config.json: {reason}") from None


def _positive(value: Any, name: str, maximum: float = math.inf) -> float:
    result = number(value, f"config.json: {name}", error=CheckpointError)
    if not 0.0 < result <= maximum:
        raise CheckpointError(f"config.json: {name} must be positive and at most {maximum:g}, not {result:g}")
    return result


def _hashable(value: Any) -> Any:
    """Lists as tuples and tables as their items, so that a `Rope` stays hashable."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(name), _hashable(item)) for name, item in value.items()))
    return tuple(_hashable(item) for item in value) if isinstance(value, (list, tuple)) else value
