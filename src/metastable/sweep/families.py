"""Named families of matrices for Q, K and V, random or not, drawn from the seed of a sweep.

A random matrix depends on the seed, its field, its family, the dimension and the axis `draw`, on nothing else: along an axis
of beta all points share one V, and `draw = {range = [0, 19], step = 1}` in the grid gives twenty of them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from metastable import _checks
from metastable._checks import FloatArray
from metastable.errors import SweepError

FIELDS = ("query", "key", "value")
"""Fields of the model that a family can fill."""

PARAMETERS: dict[str, tuple[str, ...]] = {
    "identity": ("scale",),
    "gaussian": ("scale",),
    "rotation": ("scale",),
    "spectrum": ("values", "rotate"),
    "leading": ("multiplicity", "top", "rest", "rotate"),
    "tied": (),
}
"""Family -> its parameters.

- `identity`: scale * I.
- `gaussian`: independent normal entries of standard deviation `scale` (default 1/sqrt(dim): spectral radius about 1).
- `rotation`: scale times a Haar-distributed orthogonal matrix.
- `spectrum`: R diag(values) R^T with R Haar-distributed (`rotate = false`: R = I); `values` has dim entries.
- `leading`: the same with `top` on `multiplicity` entries and `rest` on the others: dim L = multiplicity.
- `tied` (key only): K = Q.
"""


def is_family(item: Any) -> bool:
    """True for `"gaussian"` and `{family = "gaussian", ...}`."""
    return isinstance(item, str) or (isinstance(item, Mapping) and "family" in item)


def table(item: Any, where: str) -> dict[str, Any]:
    """A family as a table with a known `family` and known parameters."""
    result = {"family": item} if isinstance(item, str) else {k: v for k, v in item.items() if k != "label"}
    family = result["family"]
    if family not in PARAMETERS:
        raise SweepError(f"{where}: unknown family {family!r}; known families are: {', '.join(PARAMETERS)}")
    unknown = [name for name in result if name != "family" and name not in PARAMETERS[family]]
    if unknown:
        allowed = ", ".join(PARAMETERS[family]) or "none"
        raise SweepError(f"{where}: family {family!r} has no parameter {unknown[0]!r}; its parameters: {allowed}")
    return result


def label(item: Any) -> str:
    """A short name for an axis: `gaussian`, `spectrum(1, 1, 0.5)`, `leading(multiplicity=2, rest=0.5)`."""
    if isinstance(item, str):
        return item
    family = item["family"]
    rest = {name: value for name, value in item.items() if name not in ("family", "label")}
    if not rest:
        return family
    if family == "spectrum" and set(rest) == {"values"}:
        return f"spectrum({', '.join(f'{v:g}' if isinstance(v, (int, float)) else str(v) for v in rest['values'])})"
    return f"{family}({', '.join(f'{name}={value}' for name, value in rest.items())})"


def matrix(family: Mapping[str, Any], field: str, dim: int, seed: int, draw: int, where: str) -> FloatArray | None:
    """The matrix of a family (None: the identity), for every family but `tied`."""
    name = family["family"]
    generator = np.random.default_rng([seed, zlib.crc32(f"{field}:{name}".encode()), dim, draw])
    if name == "identity":
        scale = _number(family.get("scale", 1.0), where)
        return None if scale == 1.0 else scale * np.eye(dim)
    if name == "gaussian":
        return _number(family.get("scale", 1.0 / math.sqrt(dim)), where) * generator.standard_normal((dim, dim))
    if name == "rotation":
        return _number(family.get("scale", 1.0), where) * rotation(dim, generator)
    values = _spectrum(family, dim, where) if name == "spectrum" else _leading(family, dim, where)
    if not family.get("rotate", True):
        return np.diag(values)
    turn = rotation(dim, generator)
    product = (turn * values) @ turn.T
    return 0.5 * (product + product.T)


def rotation(dim: int, generator: np.random.Generator) -> FloatArray:
    """A Haar-distributed orthogonal matrix: QR of a Gaussian one with the signs of the triangle's diagonal taken out."""
    factor, triangle = np.linalg.qr(generator.standard_normal((dim, dim)))
    return factor * np.sign(np.diag(triangle))


def _number(value: Any, where: str) -> float:
    return _checks.number(value, where, error=SweepError)


def _spectrum(family: Mapping[str, Any], dim: int, where: str) -> FloatArray:
    if "values" not in family:
        raise SweepError(f"{where}: family 'spectrum' needs values = [...], one eigenvalue per dimension")
    values = _checks.vector(family["values"], f"{where}.values", error=SweepError)
    if values.size != dim:
        raise SweepError(f"{where}: {values.size} eigenvalues were given for dim = {dim}; give one per dimension")
    return values


def _leading(family: Mapping[str, Any], dim: int, where: str) -> FloatArray:
    multiplicity = _checks.count(family.get("multiplicity", 1), f"{where}.multiplicity", 1, dim, error=SweepError)
    top = _number(family.get("top", 1.0), f"{where}.top")
    rest = _number(family.get("rest", 0.5), f"{where}.rest")
    if rest >= top and multiplicity < dim:
        raise SweepError(f"{where}: rest = {rest:g} must lie below top = {top:g}, which leads")
    return np.concatenate([np.full(multiplicity, top), np.full(dim - multiplicity, rest)])
