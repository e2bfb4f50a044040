"""Random weights of the same shapes: what a layer would do if nothing had been learned.

- `"gaussian"`: every matrix of the layer (attention and feed-forward part) gets independent Gaussian entries of the matrix's own
  standard deviation. Gains, shifts and biases stay.
- `"haar"`: the value matrices V_h = O_h W_h of all heads become R' V_h R with independent Haar-distributed rotations R, R' of the
  layer. Each keeps its singular values and, as in `ov_spectra_null`, only how its outputs lie to its inputs (and to the stream) is
  random; queries, keys and the feed-forward part stay.

Reference for Haar matrices: F. Mezzadri, math-ph/0609050.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from metastable._checks import FloatArray
from metastable.checkpoints.flows.field import Layer
from metastable.errors import UnsupportedError

WEIGHT_NULLS = ("gaussian", "haar")
NULLS = (*WEIGHT_NULLS, "text")

SEPARATE_VALUES = ("v_proj", "value")
OUTPUTS = ("o_proj", "out_proj", "c_proj", "dense", "wo")


def haar_rotation(generator: np.random.Generator, dim: int) -> FloatArray:
    """A Haar-distributed orthogonal matrix (dim, dim): Q of a Gaussian matrix, columns signed by the diagonal of R."""
    q, r = np.linalg.qr(generator.standard_normal((dim, dim)))
    return q * np.sign(np.diag(r))


def _value_rows(layer: Layer, dim: int) -> tuple[Any, Any, bool]:
    """The weight that holds the value projections, the rows of it that they are (as outputs), and whether it is stored transposed."""
    import torch

    modules = dict(layer.module.named_modules())
    by_last = {name.rsplit(".", 1)[-1]: module for name, module in modules.items() if hasattr(module, "weight")}
    for name in SEPARATE_VALUES:
        if name in by_last:
            return by_last[name].weight, slice(None), False
    if "c_attn" in by_last:  # GPT-2: (in, 3 dim), values last
        return by_last["c_attn"].weight, slice(2 * dim, 3 * dim), True
    if "qkv_proj" in by_last:  # Phi-3: queries, keys, values, one below the other
        weight = by_last["qkv_proj"].weight
        attention = next(module for module in modules.values() if hasattr(module, "num_key_value_heads"))
        size = int(attention.num_key_value_heads) * int(attention.head_dim)
        return weight, slice(weight.shape[0] - size, None), False
    if "query_key_value" in by_last:  # GPT-NeoX: query, key and value of a head one below the other, head by head
        weight = by_last["query_key_value"].weight
        attention = next(module for module in modules.values() if hasattr(module, "head_size"))
        size = int(attention.head_size)
        rows = torch.arange(weight.shape[0]).reshape(-1, 3, size)[:, 2].reshape(-1)
        return weight, rows, False
    raise UnsupportedError(
        f"{layer.call.name}: its value projection is not known ({', '.join(SEPARATE_VALUES)}, c_attn, qkv_proj or query_key_value); "
        "use null='gaussian', which needs no names"
    )


def _output(layer: Layer) -> tuple[Any, bool]:
    """The output projection of a layer's attention, and whether its weight is stored transposed."""
    for name, module in layer.module.named_modules():
        path = name.split(".")
        if path[-1] in OUTPUTS and any("attn" in part or "attention" in part for part in path[:-1]):
            return module, type(module).__name__ == "Conv1D"
    raise UnsupportedError(
        f"{layer.call.name}: its output projection is not known ({', '.join(OUTPUTS)}); use null='gaussian', which needs no names"
    )


def _gaussian(layer: Layer, generator: np.random.Generator) -> list[tuple[Any, Any]]:
    """Parameters and what they become."""
    import torch

    changes = []
    for parameter in layer.module.parameters():
        if parameter.ndim >= 2:
            drawn = generator.normal(0.0, float(parameter.double().std()), tuple(parameter.shape))
            changes.append((parameter, torch.as_tensor(drawn, dtype=parameter.dtype, device=parameter.device)))
    return changes


def _haar(layer: Layer, dim: int, generator: np.random.Generator) -> list[tuple[Any, Any]]:
    """Value and output projections between two random rotations; the output bias turns with its projection."""
    import torch

    weight, rows, transposed = _value_rows(layer, dim)
    output, output_transposed = _output(layer)

    def like(parameter: Any) -> Any:
        drawn = haar_rotation(generator, dim)
        return torch.as_tensor(drawn, dtype=parameter.dtype, device=parameter.device)

    inward, outward = like(weight), like(output.weight)
    values = weight.detach().clone()
    if transposed:
        values[:, rows] = inward @ values[:, rows]
        turned = output.weight @ outward
    else:
        values[rows] = values[rows] @ inward
        turned = outward.T @ output.weight if not output_transposed else output.weight @ outward
    changes = [(weight, values), (output.weight, turned)]
    if getattr(output, "bias", None) is not None:
        changes.append((output.bias, output.bias @ outward))
    return changes


@contextmanager
def random_layers(layers: Sequence[Layer], null: str | None, dim: int, seed: int) -> Iterator[None]:
    """The layers with random weights (`"gaussian"`, `"haar"`); trained again at the end.

    Each is drawn from the child of `seed` that belongs to its number: a layer is the same random layer whatever else was chosen.
    """
    import torch

    if null not in WEIGHT_NULLS:
        yield
        return
    kept: list[tuple[Any, Any]] = []
    unique = {id(layer.module): layer for layer in layers}
    try:
        with torch.no_grad():
            for layer in unique.values():
                generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(layer.number,)))
                make = _gaussian(layer, generator) if null == "gaussian" else _haar(layer, dim, generator)
                for parameter, value in make:
                    kept.append((parameter, parameter.detach().clone()))
                    parameter.copy_(value)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in reversed(kept):
                parameter.copy_(value)
