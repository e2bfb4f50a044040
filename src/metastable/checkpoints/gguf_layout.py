"""The layout of a GGUF file, checked against its size before anything else reads it.

The gguf library trusts what a file says about itself: one that claims an array of 2^40 items makes it loop and fill the memory. Here
every length, count and offset is compared with the bytes that are there, in one pass over the header:

    "GGUF" | version | number of tensors | number of entries | entries (name, type, value) | tensors (name, shape, type, offset) | data
"""

from __future__ import annotations

import itertools
import mmap
import struct
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each type of number."""
STRING, ARRAY = 8, 9
ALIGNMENT = 32
MOST_ITEMS = 1 << 22
"""Items of all arrays together. The library makes some hundred bytes of each; vocabularies have a few hundred thousand."""
MOST_DIMS = 4
DEEPEST = 4
"""Arrays in arrays."""


class LayoutError(Exception):
    """Why a file is not a complete GGUF file."""


def check_layout(path: Path) -> None:
    """Raise `LayoutError` unless all that the header of `path` announces lies inside the file, once, and has a known type."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    sizes = {int(kind): GGML_QUANT_SIZES[kind] for kind in GGMLQuantizationType if kind in GGML_QUANT_SIZES}
    with path.open("rb") as file:
        size = path.stat().st_size
        if size < 24:
            raise LayoutError(f"it has {size} bytes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Header(data, size).check(sizes)


class _Header:
    """A reading position in the bytes of a file, which never leaves them."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self.data, self.size = data, size
        self.place, self.order = 0, "<"
        self.items = 0
        self.alignment = ALIGNMENT

    def check(self, sizes: dict[int, tuple[int, int]]) -> None:
        if self.take(4, "the magic number") != MAGIC:
            raise LayoutError("it does not begin with 'GGUF'")
        version = self.number("I", "the version")
        if version & 0xFFFF == 0:
            self.order, self.place = ">", 4
            version = self.number("I", "the version")
        if version not in VERSIONS:
            raise LayoutError(f"it has version {version}; versions {' and '.join(map(str, VERSIONS))} can be read")
        tensors = self.count("Q", 24, "tensors")
        entries = self.count("Q", 13, "entries")
        names: set[str] = set()
        for _ in range(entries):
            name = self.string("the name of an entry")
            if name in names:
                raise LayoutError(f"the entry {name!r} is there twice")
            names.add(name)
            self.value(name)
        self.tensors([self.tensor() for _ in range(tensors)], sizes)

    # ----------------------------------------------------------------------------------------------- pieces

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes."""
        self.skip(length, what)
        return self.data[self.place - length : self.place]

    def skip(self, length: int, what: str) -> None:
        if length > self.size - self.place:
            raise LayoutError(f"{what} has {length} bytes at byte {self.place}, but the file has {self.size}")
        self.place += length

    def number(self, kind: str, what: str) -> int:
        """A number of the `struct` type `kind`."""
        return struct.unpack(self.order + kind, self.take(struct.calcsize(kind), what))[0]

    def count(self, kind: str, least: int, what: str) -> int:
        """How many things of at least `least` bytes follow; no more than the rest of the file could hold."""
        found = self.number(kind, f"the number of {what}")
        if found > (self.size - self.place) // least:
            raise LayoutError(f"it claims {found} {what}, but the file has {self.size} bytes")
        return found

    def string(self, what: str) -> str:
        return self.take(self.number("Q", what), what).decode(errors="replace")

    def value(self, name: str) -> None:
        kind = self.number("I", f"the type of {name!r}")
        if name == "general.alignment":
            if kind != 4:
                raise LayoutError("general.alignment is not a 32-bit number")
            self.alignment = self.number("I", "general.alignment")
            if self.alignment < 1 or self.alignment & (self.alignment - 1):
                raise LayoutError(f"general.alignment is {self.alignment}, which is no power of two")
            return
        self.typed(kind, name, 0)

    def typed(self, kind: int, name: str, depth: int) -> None:
        if kind in SCALARS:
            self.skip(SCALARS[kind], f"{name!r}")
        elif kind == STRING:
            self.skip(self.number("Q", f"{name!r}"), f"{name!r}")
        elif kind == ARRAY and depth < DEEPEST:
            self.array(name, depth)
        else:
            raise LayoutError(f"{name!r} has the unknown type {kind}")

    def array(self, name: str, depth: int) -> None:
        kind = self.number("I", f"the type of {name!r}")
        length = self.count("Q", SCALARS.get(kind, 8 if kind == STRING else 12), f"items in {name!r}")
        self.items += length
        if self.items > MOST_ITEMS:
            raise LayoutError(f"its arrays have more than {MOST_ITEMS} items, which no vocabulary has")
        if kind in SCALARS:
            self.skip(length * SCALARS[kind], f"{name!r}")
            return
        for _ in range(length):
            self.typed(kind, name, depth + 1)

    # ---------------------------------------------------------------------------------------------- tensors

    def tensor(self) -> tuple[str, list[int], int, int]:
        """Name, shape, type and offset of a tensor."""
        name = self.string("the name of a tensor")
        dims = self.number("I", f"the shape of {name!r}")
        if not 1 <= dims <= MOST_DIMS:
            raise LayoutError(f"the tensor {name!r} has {dims} dimensions; between 1 and {MOST_DIMS} can be read")
        shape = [self.number("Q", f"the shape of {name!r}") for _ in range(dims)]
        return name, shape, self.number("I", f"the type of {name!r}"), self.number("Q", f"the place of {name!r}")

    def tensors(self, found: list[tuple[str, list[int], int, int]], sizes: dict[int, Any]) -> None:
        """Every tensor inside the file, none on top of another."""
        first = -(-self.place // self.alignment) * self.alignment
        places: list[tuple[int, int, str]] = []
        names: set[str] = set()
        for name, shape, kind, offset in found:
            if kind not in sizes:
                raise LayoutError(f"the tensor {name!r} has the unknown type {kind}")
            if name in names:
                raise LayoutError(f"the tensor {name!r} is there twice")
            names.add(name)
            block, width = sizes[kind]
            items = 1
            for extent in shape:
                items *= extent
            if items == 0 or shape[0] % block:
                raise LayoutError(f"the tensor {name!r} of shape {shape} does not fill blocks of {block}")
            begin, end = first + offset, first + offset + items // block * width
            if offset % self.alignment or end > self.size:
                raise LayoutError(
                    f"it is cut or damaged: the tensor {name!r} lies at bytes {begin} to {end}, but the file has {self.size}"
                )
            places.append((begin, end, name))
        places.sort()
        for (_, end, name), (begin, _, other) in itertools.pairwise(places):
            if begin < end:
                raise LayoutError(f"the tensors {name!r} and {other!r} overlap")
