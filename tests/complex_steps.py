"""A slow, independent run in complex numbers: derivatives of what a run computes, by complex steps, exact to rounding.

The right-hand side is written from the definitions, pair by pair in matrices and without any trick; the steps are those that `simulate`
took, so what is differentiated is exactly what it computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import erf

import metastable as ms
from metastable.integrate.tableau import TSIT5

STEP = 1e-60
FIELDS = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias")


def numbers(model: ms.Attention, tokens: int) -> dict[str, Any]:
    """All parameters of a model, identities written out, None where there is no such part."""
    d = model.dim
    heads = []
    for head in model.all_heads:
        entry = {name: getattr(head, name) for name in FIELDS}
        for name in ("query", "key", "value"):
            if entry[name] is None:
                entry[name] = np.eye(d)
        entry["beta"] = head.beta
        heads.append({name: None if part is None else np.array(part, dtype=complex) for name, part in entry.items()})
    masses = np.ones(tokens) if model.masses is None else model.masses
    frozen = np.empty((0, d)) if model.frozen is None else model.frozen.tokens
    weights = np.empty(0) if model.frozen is None else model.frozen.weights
    return {
        "heads": heads,
        "masses": np.array(masses, dtype=complex),
        "frozen": np.array(frozen, dtype=complex),
        "frozen_weights": np.array(weights, dtype=complex),
    }


def turned(rotary: ms.Rotary | None, rows: np.ndarray) -> np.ndarray:
    """Rows turned to their positions, pair by pair."""
    if rotary is None:
        return rows
    out, rank = rows.copy(), rows.shape[1]
    dims = rank if rotary.dims is None else rotary.dims
    for k in range(len(rows)):
        for i in range(dims // 2):
            a, b = (2 * i, 2 * i + 1) if rotary.interleaved else (i, i + dims // 2)
            angle = k * rotary.base ** (-2.0 * i / dims)
            c, s = np.cos(angle), np.sin(angle)
            out[k, a], out[k, b] = rows[k, a] * c - rows[k, b] * s, rows[k, b] * c + rows[k, a] * s
    return out


def attention(model: ms.Attention, parameters: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """A_k of all tokens."""
    n, total = len(x), np.zeros_like(x)
    anchors, visible = parameters["frozen"], model.mask.matrix(n)
    counted = visible * parameters["masses"]
    place = np.arange(n, dtype=float)
    for number, (head, entry) in enumerate(zip(model.all_heads, parameters["heads"])):

        def made(name, rows, entry=entry):
            bias = entry[f"{name}_bias"]
            return rows @ entry[name].T + (0.0 if bias is None else bias)

        queries, keys = made("query", x), made("key", x)
        moving = entry["beta"] * turned(head.rotary, queries) @ turned(head.rotary, keys).T
        added = np.zeros((n, n))
        if model.bias is not None:
            added = model.bias.logits(number, len(model.all_heads), place, place)
        moving = moving + added
        fixed = entry["beta"] * queries @ made("key", anchors).T
        top = np.concatenate([np.where(visible, moving.real, -np.inf), fixed.real], axis=1).max(axis=1, initial=-1e9)[
            :, None
        ]
        weights = np.exp(np.where(visible, moving - top, 0.0)) * counted
        others = np.exp(fixed - top) * parameters["frozen_weights"]
        if model.weights == "softmax":
            divisor = weights.sum(axis=1, keepdims=True) + others.sum(axis=1, keepdims=True)
        else:
            seen = (counted * np.exp(added)).sum(axis=1, keepdims=True)
            divisor = (seen + parameters["frozen_weights"].sum()) * np.exp(-top)
        divisor = np.where(divisor == 0, 1.0, divisor)
        summed = (weights @ made("value", x) + others @ made("value", anchors)) / divisor
        total = total + (summed if entry["output"] is None else summed @ entry["output"].T)
    if model.feedforward is not None:
        layer = model.feedforward
        z = x @ layer.w1.T + layer.b1
        active = {
            "relu": lambda: z * (z.real > 0),
            "tanh": lambda: np.tanh(z),
            "identity": lambda: z,
            "silu": lambda: z / (1.0 + np.exp(-z)),
            "gelu": lambda: 0.5 * z * (1.0 + erf(z / np.sqrt(2.0))),
        }[layer.activation]()
        total = total + active @ layer.w2.T + layer.b2
    return total


def velocity(model: ms.Attention, parameters: dict[str, Any], law, t: float, y: np.ndarray) -> np.ndarray:
    """dy/dt of packed states in complex numbers (no conjugates: analytic in everything)."""
    d = model.dim
    x = y[:, :d] / np.sqrt((y[:, :d] ** 2).sum(axis=1, keepdims=True))
    A = attention(model, parameters, x)
    square = (A**2).sum(axis=1, keepdims=True)
    length = np.sqrt(np.where(square == 0, 1.0, square))
    update = law.amplitude * (t + 1.0) ** -law.decay * A / length**law.length_power
    radius = y[:, d:] if model.norm.has_radius else 1.0
    along = (x * update).sum(axis=1, keepdims=True)
    out = np.zeros_like(y)
    out[:, :d] = (update - along * x) / radius**law.radius_power
    if model.norm.has_radius:
        out[:, d:] = law.radial * along
    return out


def run(
    model: ms.Attention, parameters: dict[str, Any], start: np.ndarray, steps, chart: str = "ambient"
) -> list[np.ndarray]:
    """Unit tokens (complex) after each of the steps (t, h), the start first. `chart` "angle": steps are made in angles."""
    d = model.dim
    y = np.array(start, dtype=complex)
    if model.norm.has_radius:
        y = np.concatenate([y, np.ones((len(y), 1))], axis=1)
    angle = np.array([np.arctan2(r.imag, r.real) for r in (start[:, 0].real + 1j * start[:, 1].real)], dtype=complex)
    # The imaginary part of a start moves its angle along (-sin, cos).
    angle += 1j * (start[:, 1].imag * start[:, 0].real - start[:, 0].imag * start[:, 1].real)
    if chart == "angle":
        y = angle[:, None]
    found = [y]

    def slope(law, t, place):
        if chart == "ambient":
            return velocity(model, parameters, law, t, place)
        x = np.concatenate([np.cos(place), np.sin(place)], axis=1)
        moved = velocity(model, parameters, law, t, x)
        return (moved[:, 1] * x[:, 0] - moved[:, 0] * x[:, 1])[:, None]

    for t, h in steps:
        law, k = model.norm.law(t), []
        for i in range(6):
            place = y + h * sum((TSIT5.a[i, j] * k[j] for j in range(i)), np.zeros_like(y))
            k.append(slope(law, t + TSIT5.c[i] * h, place))
        y = y + h * sum(TSIT5.a[6, j] * k[j] for j in range(6))
        if chart == "ambient":
            y[:, :d] /= np.sqrt((y[:, :d] ** 2).sum(axis=1, keepdims=True))
        found.append(y)
    if chart == "angle":
        return [np.concatenate([np.cos(y), np.sin(y)], axis=1) for y in found]
    return [y[:, :d] for y in found]
