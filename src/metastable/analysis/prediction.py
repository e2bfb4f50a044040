"""Table 1 before a run: the row, the width of its clouds and what to be careful about, read off the spectrum of V."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from metastable import _checks
from metastable._checks import FloatArray
from metastable._words import counted
from metastable.analysis import _html
from metastable.analysis.spectrum import LeadingEigenvalue, leading_eigenvalue
from metastable.errors import InvalidInputError, NumericalRangeError
from metastable.model import Attention, Rule, Support, why_not
from metastable.theory import CloudWidth, cloud_covariance, cloud_width

Basis = Literal["theorem", "conjecture", "none"]

FIRST_TOKEN = "one point, x_1(0)"
ONE_POINT = "one point in L"
TWO_POINTS = "two points, xi and -xi"
CLOUD = "a cloud of points around L"
TWO_CLOUDS = "two clouds, around xi and -xi"
ROTATION = "one point rotating in L"
APART = "token 1 rotating in L, the others apart from it"
FIRST_ROTATES = "token 1 rotating in L"
OTHER = "none of the atlas"

ROWS = {1: FIRST_TOKEN, 2: ONE_POINT, 3: TWO_POINTS, 4: CLOUD, 5: TWO_CLOUDS}
"""Table 1: final configuration of each row."""

CLOUD_ANGLE = math.pi / 6
"""Largest median distance to L at which `classify` speaks of a cloud around L."""

LARGEST_BLOCK = 64
"""Largest number of directions across L for which the width of a cloud is computed when V is not symmetric."""

LOWEST_BETA = 2.0
"""The law of the width was tested from this inverse temperature on."""


@dataclass(frozen=True, repr=False)
class Prediction(_checks.LockedArrays):
    """Table 1's row for a model, before running it.

    Fields
    ------
    row : 1 to 5 as in Table 1, None when no row applies (`reason` says why).
    configuration : the expected final set, in words.
    eigenvalue : leading eigenvalue of V (largest real part), complex for a pair.
    multiplicity, geometric_multiplicity, longest_block : of that eigenvalue.
    subspace : (d, k) orthonormal columns spanning L.
    basis : "theorem" (row 1, Theorem 4.1), "conjecture" (rows 2 to 5) or "none".
    reason : a sentence on why.
    tolerance : the relative tolerance of the decisions.
    caveat : a sentence on when the row is not what a run shows; empty where nothing is known.
    width : rows 4 and 5 with Q^T K a positive multiple of the identity: predicted distance of tokens to L and the number of
        tokens from which it is meant (see `metastable.theory.cloud_width`); None elsewhere.
    """

    row: int | None
    configuration: str
    eigenvalue: float | complex
    multiplicity: int
    subspace: FloatArray
    basis: Basis
    geometric_multiplicity: int
    longest_block: int
    reason: str
    tolerance: float
    caveat: str = ""
    width: CloudWidth | None = None

    @property
    def is_complex(self) -> bool:
        """True when the leading eigenvalue is one of a complex pair."""
        return isinstance(self.eigenvalue, complex)

    def _facts(self) -> dict[str, str]:
        """What a short form shows, by name."""
        times = "" if self.multiplicity == 1 else f", {self.multiplicity} times"
        facts = {
            "row": "none" if self.row is None else f"{self.row} ({self.basis})",
            "leading eigenvalue": f"{number_text(self.eigenvalue)}{times}",
            "dim L": f"{self.subspace.shape[1]} of {self.subspace.shape[0]}",
        }
        if self.width is not None:
            facts["median distance to L"] = f"{self.width.median:.3g} rad from {counted(self.width.tokens, 'token')} on"
        return facts

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {text}" for name, text in self._facts().items())
        why = f" ({self.reason})" if self.configuration == OTHER else ""
        return f"<Prediction: {self.configuration}{why}; {facts}>"

    def _repr_html_(self) -> str:
        notes = {"reason": self.reason, "caveat": self.caveat}
        return _html.table(f"Prediction: {self.configuration}", {**self._facts(), **notes})


def number_text(value: float | complex) -> str:
    """`1.5`, or `0.5 +- 2i` for a pair."""
    if isinstance(value, complex):
        return f"{value.real:.4g} +- {abs(value.imag):.4g}i"
    return f"{value:.4g}"


def predict(model: Attention, *, tolerance: float = 1e-9) -> Prediction:
    """Where every token ends, read off the spectrum of V (Table 1).

    The atlas is about causal softmax attention with one head and `PostLN()`. For any other model the spectrum is still
    reported, but `row` is None and `basis` "none". Several heads count as one when all have the same beta Q^T K (then their V
    add up exactly); otherwise the spectrum is that of the sum of the V, which governs token 1 alone.

    Args:
        model: an `Attention`.
        tolerance: relative to the norm of V, for equality and sign of eigenvalues (see `leading_eigenvalue`).

    Reference: arXiv:2411.04990, Theorem 4.1, Conjectures 1 and 2, Table 1. Q and K do not enter there; simulations show that
    they can matter for rows 3 to 5, which `caveat` says.
    """
    if not isinstance(model, Attention):
        raise InvalidInputError(
            f"model must be an Attention, not {type(model).__name__}; for a matrix use metastable.analysis.predict_value"
        )
    values = [head.value_matrix(model.dim) for head in model.all_heads]
    value = np.sum(values, axis=0)
    # Heads may cancel: what is left below the rounding of their sum is zero.
    scale = sum(float(np.linalg.norm(part, 2)) for part in values)
    leading = leading_eigenvalue(value, tolerance, scale=scale)
    obstacle = why_not(model, SUPPORT)
    if obstacle is not None:
        return _prediction(leading, None, OTHER, "none", obstacle)
    head = model.all_heads[0]
    form = head.beta * (np.eye(model.dim) if head.bilinear is None else head.bilinear)
    return _row(leading, value, form)


def _forms_rule(model: Attention, tokens: int | None) -> str | None:
    """Heads with one beta Q^T K are one head: their V add up."""
    identity = np.eye(model.dim)
    forms = [head.beta * (identity if head.bilinear is None else head.bilinear) for head in model.all_heads]
    if all(np.array_equal(form, forms[0]) for form in forms[1:]):
        return None
    return (
        "covers no heads with different Q, K or beta (the spectrum is that of the sum of their V, which moves token 1)"
    )


SUPPORT = Support(
    "the atlas",
    norms=frozenset({"post_ln"}),
    masks=frozenset({"causal"}),
    weights=frozenset({"softmax"}),
    parts=frozenset({"heads", "bilinear", "value"}),
    rules=(Rule("heads", _forms_rule),),
    verb="covers",
)
"""The models that Table 1 is about."""


def predict_value(value: ArrayLike, *, tolerance: float = 1e-9) -> Prediction:
    """Table 1's row for a value matrix V under causal softmax attention, whatever Q, K and beta (see `predict`)."""
    leading = leading_eigenvalue(value, tolerance)
    return _row(leading, np.asarray(value, dtype=np.float64), None)


def _row(leading: LeadingEigenvalue, value: FloatArray, form: FloatArray | None) -> Prediction:
    """The row of V; `form` is beta Q^T K, None when it is not known."""
    dim, size = leading.subspace.shape
    defective = (
        "" if leading.longest_block == 1 else " (defective: L closes the longest Jordan blocks, reached like C/t)"
    )
    if leading.is_complex or not leading.alone:
        text, others, caveat = ROTATIONS[leading.sign]
        reason = f"the leading eigenvalues are complex: token 1 rotates for ever and {others}"
        return _prediction(leading, None, text, "none", reason, caveat)
    if leading.sign == 0:
        reason = "the leading eigenvalue is 0 within the tolerance, which Table 1 leaves out"
        return _prediction(leading, None, OTHER, "none", reason)
    if leading.sign > 0 and leading.geometric_multiplicity == dim:
        reason = "Theorem 4.1: V is a positive multiple of the identity"
        return _prediction(leading, 1, ROWS[1], "theorem", reason, SLOW)
    if leading.sign > 0:
        row = 2 if size >= 2 else 3
        reason = f"Conjecture {row - 1}: lambda_max > 0 with dim L = {size}"
        caveat = SLOW if row == 2 else _point_caveat(leading.subspace[:, 0], form)
        return _prediction(leading, row, ROWS[row], "conjecture", reason + defective, caveat)
    row = 4 if size >= 2 else 5
    reason = f"Table 1, supported by the authors' simulations: lambda_max < 0 with dim L = {size}"
    width = None if form is None else _width(leading, value, form)
    caveat = _cloud_caveat(size == dim, form, width)
    return _prediction(leading, row, ROWS[row], "conjecture", reason + defective, caveat, width)


ROTATIONS = {
    1: (ROTATION, "the others follow it", ""),
    0: (
        FIRST_ROTATES,
        "nothing is known of the others",
        "the real part is 0 within the tolerance: to first order tokens near token 1 neither come closer nor leave; on the circle two "
        "tokens come together like 1/t, in higher dimensions they need not",
    ),
    -1: (
        APART,
        "the others do not gather at it",
        "the real part is negative: a token at which k - 1 earlier ones stand leaves them at the mean rate (1 - 1/k) |Re lambda|, "
        "whatever Q, K and beta; where it ends is not known in general (two tokens under V = -a I + J on the circle: 2 atan(a) apart)",
    ),
}
"""By the sign of the real part of a complex leading pair: the configuration, what the others do, and why.

Where token k stands at all earlier ones, e = x_k - x_1 obeys e' = P V e / k - <x_1, V x_1> e to first order (P projects across x_1).
Along L of dimension m its rates add up to m Re lambda / k - Re lambda / k - (m - 1) Re lambda in the mean over time, because
<x_1, V x_1> has the mean Re lambda: together (m - 1) times -(1 - 1/k) Re lambda.
"""

SLOW = (
    "reached only after a time exponential in beta: until then tokens stand in metastable clusters; run to rest with "
    "until='settled'"
)


def _point_caveat(axis: FloatArray, form: FloatArray | None) -> str:
    """Row 3: what Q and K do to it."""
    known = "simulations hold where xi^T Q^T K xi > 0, with few exceptions, and mostly fail where it is below 0: tokens rest "
    known += "between xi and -xi"
    if form is None:
        return f"depends on Q and K: {known}"
    own = float(axis @ form @ axis)
    return f"depends on Q and K: {known}; here beta xi^T Q^T K xi = {own:.3g}"


def _cloud_caveat(whole: bool, form: FloatArray | None, width: CloudWidth | None) -> str:
    """Rows 4 and 5: how wide, or why that is not known."""
    if whole:
        return "L is the whole space: the cloud is the whole sphere"
    degree = "a cloud is a matter of degree: its width falls with beta and with the gap of V below lambda_max"
    if width is None:
        unknown = "Q, K and beta are not known" if form is None else "there is no law of the width for these Q, K, V"
        return f"{degree}; {unknown}, and simulations with random Q and K often end otherwise"
    text = (
        f"{degree}; the mean field says a median distance of {width.median:.3g} rad to L (root mean square "
        f"{width.rms:.3g}) from {width.tokens} tokens on; fewer mostly leave it narrower"
    )
    return text if width.median <= CLOUD_ANGLE else text + ", wider than the pi/6 up to which `classify` says cloud"


def _width(leading: LeadingEigenvalue, value: FloatArray, form: FloatArray) -> CloudWidth | None:
    """Width of the cloud around L when Q^T K is a positive multiple of the identity; None where no law is known."""
    dim, size = leading.subspace.shape
    beta = float(np.trace(form)) / dim
    multiple = np.abs(form - beta * np.eye(dim)).max() <= leading.tolerance * np.abs(form).max()
    if not multiple or beta < LOWEST_BETA or size == dim or leading.longest_block > 1 or not leading.alone:
        return None
    across = np.linalg.qr(leading.subspace, mode="complete")[0][:, size:]
    block = across.T @ value @ across / complex(leading.eigenvalue).real
    if np.allclose(block, block.T, rtol=0.0, atol=1e-12 * np.abs(block).max()):
        ratios = np.linalg.eigvalsh(block)
    elif len(block) <= LARGEST_BLOCK:
        try:
            ratios = 1.0 + 1.0 / np.linalg.eigvalsh(cloud_covariance(block))
        except (NumericalRangeError, InvalidInputError):
            return None  # a gap so small that the cloud fills the sphere
    else:
        return None
    return cloud_width(ratios, beta, size) if ratios.min() > 1.0 else None


def _prediction(
    leading: LeadingEigenvalue,
    row: int | None,
    text: str,
    basis: Basis,
    reason: str,
    caveat: str = "",
    width: CloudWidth | None = None,
) -> Prediction:
    return Prediction(
        row,
        text,
        leading.eigenvalue,
        leading.multiplicity,
        leading.subspace,
        basis,
        leading.geometric_multiplicity,
        leading.longest_block,
        reason,
        leading.tolerance,
        caveat,
        width,
    )


def check_prediction(value: Any) -> Prediction:
    """`value` if it is a `Prediction`."""
    if not isinstance(value, Prediction):
        raise InvalidInputError(f"prediction must be what metastable.predict returns, not {type(value).__name__}")
    return value
