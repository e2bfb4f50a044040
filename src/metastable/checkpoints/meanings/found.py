"""What `meaning` finds, mode by mode, and the dataset that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable._checks import FloatArray
from metastable.checkpoints.flows.lens import names_of
from metastable.checkpoints.meanings.modes import ComplexArray
from metastable.checkpoints.meanings.vocabulary import Vocabulary

if TYPE_CHECKING:
    import xarray as xr

    from metastable.checkpoints.flows.flow import Flow


@dataclass(frozen=True)
class Reading:
    """One mode in words: rows of its lists, how strongly they stand out, and how alike reading and writing are.

    `suppressed` is empty for a complex pair: a plane has no other side.
    """

    read: Any
    written: Any
    suppressed: Any
    read_strength: float
    write_strength: float
    suppress_strength: float
    alike: float


def p_value(alike: float, value: complex, null: FloatArray, null_value: ComplexArray) -> tuple[float, float]:
    """Two-sided p of a mode's `alike` against draws (draws,) of its own kind, real or complex, and their median; NaN without any.

    u^T v = lambda: likeness follows the sign of the real part, so draws of the other sign are mirrored.
    """
    same = np.isfinite(null) & ((null_value.imag == 0) == (value.imag == 0))
    if not same.any() or not np.isfinite(alike):
        return float("nan"), float("nan")
    drawn = null[same] * np.where((null_value[same].real < 0) == (value.real < 0), 1.0, -1.0)
    usual = float(np.median(drawn))
    extreme = int((np.abs(drawn - usual) >= abs(alike - usual)).sum())
    return (1.0 + extreme) / (1.0 + len(drawn)), usual


class Found:
    """What is measured, head by head; what is not there is NaN, or -1 for words."""

    def __init__(self, shape: tuple[int, int, int], words: int, draws: int) -> None:
        self.words = words
        self.numbers = {
            name: np.full(shape, np.nan)
            for name in ("alike", "alike_p", "alike_usual", "read_z", "write_z", "suppress_z")
        }
        self.eigenvalue: ComplexArray = np.full(shape, complex(np.nan, np.nan), dtype=np.complex128)
        self.score = np.zeros(shape[:2])
        self.null = np.full((*shape, draws), np.nan)
        self.null_eigenvalue: ComplexArray = np.full((*shape, draws), complex(np.nan, np.nan), dtype=np.complex128)
        self.null_score = np.full((*shape[:2], draws), np.nan)
        self.read = np.full((*shape, words), -1, dtype=np.int64)
        self.written = np.full((*shape, words), -1, dtype=np.int64)
        self.suppressed = np.full((*shape, words), -1, dtype=np.int64)

    def put_null(self, at: tuple[int, int], alike: FloatArray, eigenvalue: ComplexArray, score: FloatArray) -> None:
        """Keep the Haar heads (draws, modes) of one head and their sign scores (draws,)."""
        self.null[at], self.null_eigenvalue[at], self.null_score[at] = alike.T, eigenvalue.T, score

    def put(
        self, at: tuple[int, int, int], value: complex, reading: Reading, z: tuple[float, ...], items: Any, words: Any
    ) -> None:
        """Keep one mode; lists as token ids, out of those that can be read and those that can be written."""
        self.eigenvalue[at] = value
        if not np.isfinite(reading.alike):
            return
        p, usual = p_value(reading.alike, value, self.null[at], self.null_eigenvalue[at])
        for name, number in zip(self.numbers, (reading.alike, p, usual, *z)):
            self.numbers[name][at] = number
        self.read[at][: len(reading.read)] = items[reading.read]
        self.written[at] = words[reading.written]
        self.suppressed[at][: len(reading.suppressed)] = words[reading.suppressed]

    def dataset(
        self,
        flow: Flow,
        vocabulary: Vocabulary,
        places: tuple[Sequence[int], Sequence[int], Sequence[int]],
        attributes: dict[str, Any],
    ) -> xr.Dataset:
        """Everything with its nulls, at these layers, heads and modes."""
        import xarray as xr

        layers, heads, modes = places
        dims = ("layer", "head", "mode")
        return xr.Dataset(
            {
                "eigenvalue": (dims, self.eigenvalue),
                "is_real": (dims, self.eigenvalue.imag == 0),
                "sign_score": (("layer", "head"), self.score),
                **{name: (dims, values) for name, values in self.numbers.items()},
                "alike_null": ((*dims, "draw"), self.null),
                "null_eigenvalue": ((*dims, "draw"), self.null_eigenvalue),
                "null_is_real": ((*dims, "draw"), self.null_eigenvalue.imag == 0),
                "null_sign_score": (("layer", "head", "draw"), self.null_score),
                "shared": (dims, _shared(self.read, self.written)),
                "shared_suppressed": (dims, _shared(self.read, self.suppressed)),
                "read": ((*dims, "word"), _names(flow.tokenizer, self.read)),
                "written": ((*dims, "word"), _names(flow.tokenizer, self.written)),
                "suppressed": ((*dims, "word"), _names(flow.tokenizer, self.suppressed)),
            },
            coords={
                "layer": list(layers),
                "head": list(heads),
                "mode": list(modes),
                "draw": np.arange(self.null.shape[3]),
                "word": np.arange(self.words),
            },
            attrs={
                "source": flow.source,
                "architecture": flow.architecture,
                "vocabulary": len(vocabulary.ids),
                "writing": vocabulary.writing,
                **attributes,
            },
        )


def _shared(one: Any, other: Any) -> Any:
    """How many of the token ids (.., words) of one list are in the other."""
    return ((one[..., :, None] == other[..., None, :]).any(axis=-1) & (one >= 0)).sum(axis=-1)


def _names(tokenizer: Any, ids: Any) -> Any:
    """Words of an array of token ids, empty where there is none (-1)."""
    unique = np.unique(ids[ids >= 0])
    known = dict(zip(unique.tolist(), names_of(tokenizer, unique)))
    return np.array([known.get(number, "") for number in ids.ravel().tolist()], dtype=str).reshape(ids.shape)
