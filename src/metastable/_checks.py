"""The one place where arguments that come from users are checked.

Each function returns the value in the form the rest of the package works with (float64, C order, plain Python numbers), or
raises a named exception that says what was wrong and how to fix it.
"""

from __future__ import annotations

import errno
import math
import numbers
import operator
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metastable.errors import InvalidInputError, MetastableError, TimeError, TokenError

FloatArray = NDArray[np.float64]
Kind = TypeVar("Kind")

UNIT_TOLERANCE = 1e-6
"""How far from 1 the length of a token may be before it is refused (within it, tokens are renormalised)."""

UNIT_ROUNDING = 1e-15
"""Deviation from unit length that is rounding and nothing else."""

LARGEST_COUNT = 2**62
"""Counts beyond this overflow 64-bit integers when something is added to them."""

LARGEST_SEED = 2**128 - 1
"""Generators are seeded with 128 bits."""

USUAL_MEMORY = 2**37
"""Bytes that a machine is taken to have where it cannot be asked."""

TOLERANCE_FLOOR = 1e-14
"""Relative tolerances below this ask for more than double precision can hold."""


def _what_it_holds(raw: np.ndarray) -> str:
    """The kind of the entries of an array in words."""
    if raw.dtype.kind in "US":
        words = next((str(entry) for entry in raw.ravel() if not _reads_as_number(str(entry))), "1")
        return f"text such as {words[:20]!r}"
    return {"c": "complex ones", "O": "objects"}.get(raw.dtype.kind, str(raw.dtype))


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def refuse_masked(value: Any, name: str, error: type[MetastableError] = InvalidInputError) -> None:
    """Raise `error` for a masked array with missing entries: behind the mask there is any number."""
    if np.ma.is_masked(value):
        raise error(f"{name} is a masked array with {np.ma.count_masked(value)} missing entries; drop or fill them")


def real_array(value: Any, name: str, error: type[MetastableError] = InvalidInputError) -> FloatArray:
    """`value` as a finite float64 array in C order."""
    try:
        raw = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as reason:  # the last: a tensor that needs its gradient
        raise error(f"{name} is not an array of numbers: {reason}") from None
    if raw.dtype.kind not in "biuf":
        raise error(f"{name} must hold real numbers, not {_what_it_holds(raw)}")
    refuse_masked(value, name, error)
    array = np.array(raw, dtype=np.float64, order="C")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise error(f"{name} holds NaN or infinity, first at index {where}; replace or drop those entries")
    return array


def matrix(
    value: Any,
    name: str,
    rows: int | None = None,
    columns: int | None = None,
    error: type[MetastableError] = InvalidInputError,
) -> FloatArray:
    """`value` as a finite `rows` x `columns` matrix (None: any size)."""
    array = real_array(value, name, error)
    if array.ndim != 2:
        raise error(f"{name} must be a matrix (2 axes), not an array of shape {array.shape}")
    wanted = (array.shape[0] if rows is None else rows, array.shape[1] if columns is None else columns)
    if array.shape != wanted:
        raise error(f"{name} must have shape {wanted}, not {array.shape}")
    return array


def square(value: Any, name: str, dim: int, error: type[MetastableError] = InvalidInputError) -> FloatArray:
    """`value` as a finite `dim` x `dim` matrix."""
    array = real_array(value, name, error)
    if array.shape != (dim, dim):
        raise error(f"{name} must be a {dim} x {dim} matrix to act on tokens of dimension {dim}, not {array.shape}")
    return array


def vector(
    value: Any, name: str, size: int | None = None, error: type[MetastableError] = InvalidInputError
) -> FloatArray:
    """`value` as a finite vector of `size` numbers (None: any size)."""
    array = real_array(value, name, error)
    if array.ndim != 1 or (size is not None and array.size != size):
        wanted = "a vector" if size is None else f"a vector of {size} numbers"
        raise error(f"{name} must be {wanted}, not an array of shape {array.shape}")
    return array


def tokens(value: Any, name: str = "start", dim: int | None = None, unit: bool = True) -> FloatArray:
    """`value` as tokens: shape (tokens, dim), at least one token, unit rows.

    Rows within `UNIT_TOLERANCE` of unit length are renormalised to rounding; anything else is refused by name.
    """
    array = real_array(value, name, TokenError)
    if array.ndim != 2:
        raise TokenError(f"{name} must have shape (tokens, dim), not {array.shape}; one token is a row: x[None, :]")
    if array.shape[0] == 0:
        raise TokenError(f"{name} holds no token; give at least one row")
    if array.shape[1] < 2:
        raise TokenError(f"{name} has tokens of dimension {array.shape[1]}; the sphere needs dimension 2 or more")
    if dim is not None and array.shape[1] != dim:
        raise TokenError(f"{name} has tokens of dimension {array.shape[1]}, but the model has dim={dim}")
    if not unit:
        return array
    length = np.sqrt(np.einsum("ij,ij->i", array, array))
    if (length == 0).any():
        raise TokenError(f"{name}: token {int(np.argmin(length))} is the zero vector, which has no direction; drop it")
    off = np.abs(length - 1)
    if off.max() > UNIT_TOLERANCE:
        worst, count = int(off.argmax()), int((off > UNIT_TOLERANCE).sum())
        others = f" (and {count - 1} more)" if count > 1 else ""
        raise TokenError(
            f"{name}: token {worst} has length {length[worst]:.6g}, not 1{others}; "
            f"put tokens on the sphere with metastable.sphere.normalize({name})"
        )
    # Rows that are unit to rounding stay as they are, bit for bit, so that checking twice changes nothing.
    return array / np.where(off > UNIT_ROUNDING, length, 1.0)[:, None]


def number(
    value: Any,
    name: str,
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    strict: bool = False,
    error: type[MetastableError] = InvalidInputError,
) -> float:
    """`value`, a number or an array without axes, as a finite float in [minimum, maximum] (`strict`: in the open interval)."""
    if getattr(value, "shape", None) == () and getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u", "f"):
        refuse_masked(value, name, error)
        value = np.asarray(value)[()]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, np.floating, np.integer)):
        raise error(f"{name} must be a number, not {value!r}")
    try:
        result = float(value)
    except OverflowError:
        raise error(f"{name} must fit into double precision, up to 1.8e308") from None
    if not math.isfinite(result):
        raise error(f"{name} must be finite, not {result}")
    if minimum is not None and (result < minimum or (strict and result == minimum)):
        raise error(f"{name} must be {'greater than' if strict else 'at least'} {minimum:g}, not {result:g}")
    if maximum is not None and (result > maximum or (strict and result == maximum)):
        raise error(f"{name} must be {'less than' if strict else 'at most'} {maximum:g}, not {result:g}")
    return result + 0.0  # -0.0 is 0, and its sign says nothing


def tolerance(value: Any) -> float:
    """`value` as a relative tolerance."""
    result = number(value, "rtol", 0.0, 1.0, strict=True)
    if result < TOLERANCE_FLOOR:
        raise InvalidInputError(f"rtol={result:g} is below the rounding of double precision; use 1e-13 or more")
    return result


def count(
    value: Any,
    name: str,
    minimum: int = 1,
    maximum: int | None = None,
    error: type[MetastableError] = InvalidInputError,
) -> int:
    """`value` as a whole number from `minimum` to `maximum` (None: as large as arrays and compiled code can count)."""
    if isinstance(value, (bool, np.bool_)):
        raise error(f"{name} must be a whole number, not {value!r}")
    try:
        result = operator.index(value)
    except TypeError:
        raise error(f"{name} must be a whole number, not {value!r}") from None
    if result < minimum or (maximum is not None and result > maximum):
        limit = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise error(f"{name} must be {limit}, not {_shown(result)}")
    if maximum is None and result > LARGEST_COUNT:
        raise error(f"{name} must be at most {LARGEST_COUNT}, not {_shown(result)}")
    return result


def _shown(value: int) -> str:
    """A whole number for a message, however long (Python refuses to print more than a few thousand digits)."""
    return str(value) if abs(value) < 10**40 else f"a number of {value.bit_length()} bits"


def flag(value: Any, name: str, error: type[MetastableError] = InvalidInputError) -> bool:
    """`value` as True or False (0 and 1 count)."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
        return bool(value)
    raise error(f"{name} must be True or False, not {value!r}")


def seed(value: Any, name: str = "seed") -> int:
    """`value` as the integer seed of a random generator."""
    return count(value, name, minimum=0, maximum=LARGEST_SEED)


def room(shape: Sequence[int], what: str, error: type[MetastableError] = InvalidInputError) -> None:
    """Refuse an array of doubles of this shape that the machine has no memory for, before it is asked for."""
    wanted, there = 8 * math.prod(shape), _memory()
    if wanted > there:
        sizes = " x ".join(_shown(size) for size in shape)
        raise error(
            f"{what} ({sizes} numbers) would take more than the {there / 2**30:.0f} GiB of this machine; ask for less"
        )


def _memory() -> int:
    """Bytes of memory of this machine."""
    ask = getattr(os, "sysconf", None)  # not on Windows
    try:
        return USUAL_MEMORY if ask is None else ask("SC_PHYS_PAGES") * ask("SC_PAGE_SIZE")
    except (ValueError, OSError):  # whatever does not say
        return USUAL_MEMORY


def choice(value: Any, name: str, allowed: Sequence[str], error: type[MetastableError] = InvalidInputError) -> str:
    """`value` if it is one of the strings `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        listed = ", ".join(repr(item) for item in allowed)
        raise error(f"{name} must be one of {listed}, not {value!r}")
    return value


def text(value: Any, name: str, error: type[MetastableError] = InvalidInputError) -> str:
    """`value` if it is text."""
    if not isinstance(value, str):
        raise error(f"{name} must be text, not {type(value).__name__}")
    return value


def instance(value: Any, kind: type[Kind], name: str, error: type[MetastableError] = InvalidInputError) -> Kind:
    """`value` if it is a `kind`."""
    if not isinstance(value, kind):
        raise error(f"{name} must be a metastable {kind.__name__}, not {value!r}")
    return value


def instances(value: Any, kind: type[Kind], name: str) -> list[Kind]:
    """`value` as a list of `kind` (str: of texts)."""
    return [instance(item, kind, f"each of {name}") for item in listed(value, name, f"a {kind.__name__}")]


def listed(value: Any, name: str, each: str) -> list[Any]:
    """`value` as a list, whatever it holds; `each` says what that should be. Text is no list."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidInputError(f"{name} must be a list, each {each}, not {value!r}")
    try:
        return list(value)
    except TypeError:  # an array without axes
        raise InvalidInputError(f"{name} must be a list, each {each}, not {value!r}") from None


def path(value: Any, name: str = "path") -> Path:
    """`value` as the path of a file or folder; `~` in front is the home folder, as in a shell."""
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes):
        raise InvalidInputError(f"{name} must be the path of a file or folder as text, not {value!r}")
    if not str(value) or "\0" in str(value):
        raise InvalidInputError(f"{name} is empty, or holds a null character: {str(value)!r} names no file")
    try:
        found = Path(value).expanduser()
    except RuntimeError:
        raise InvalidInputError(
            f"{name} begins with {Path(value).parts[0]!r}, whose home folder is not known; write it in full"
        ) from None
    try:
        os.lstat(found)
    except OSError as reason:
        if reason.errno == errno.ENAMETOOLONG:
            raise InvalidInputError(f"{name} is longer than the disk allows ({len(str(value))} letters)") from None
    return found


def output_times(value: Any, name: str = "times") -> FloatArray:
    """`value` as strictly increasing, finite, non-negative output times (at least one)."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TimeError(f"{name} must be a list of numbers, not {value!r}")
    array = real_array(value if isinstance(value, np.ndarray) else list(value), name, TimeError)
    if array.ndim != 1 or array.size == 0:
        raise TimeError(f"{name} must be a list of at least one number, not an array of shape {array.shape}")
    if array[0] < 0:
        raise TimeError(f"{name} must not be negative, but the first is {array[0]:g}; depth starts at 0")
    if (np.diff(array) <= 0).any():
        where = int(np.argmax(np.diff(array) <= 0))
        raise TimeError(
            f"{name} must increase, but entry {where + 1} ({array[where + 1]:g}) does not exceed entry {where} "
            f"({array[where]:g}); use sorted(set({name}))"
        )
    return array


def horizon(until: Any, name: str = "until") -> float:
    """`until` as a positive finite time."""
    return number(until, name, 0.0, strict=True, error=TimeError)


def readonly(array: np.ndarray) -> np.ndarray:
    """A view of `array` that nobody can make writeable: what frozen dataclasses and runs hold.

    (A flag alone could be set back by `setflags(write=True)`; a read-only buffer refuses that. Nothing is copied, and whoever holds the
    given array can still write to it.)
    """
    return np.asarray(memoryview(array).toreadonly())  # pyright: ignore[reportArgumentType]


class LockedArrays:
    """For frozen dataclasses with read-only arrays, which stay so in deep copies and when they are sent between processes.

    One that has a `__post_init__` of its own sees to its arrays there.
    """

    def __post_init__(self) -> None:
        self.__setstate__(vars(self).copy())

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, _locked(value))


def _locked(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return readonly(value)
    return {name: _locked(item) for name, item in value.items()} if type(value) is dict else value


def progress(value: Any) -> bool | None:
    """`value` as what a progress bar is asked for: True, False, or None (where somebody can see it)."""
    if value is None:
        return None
    try:
        return flag(value, "progress")
    except InvalidInputError:
        raise InvalidInputError(
            f"progress must be True, False or None (a bar on a terminal and in a notebook), not {value!r}"
        ) from None
