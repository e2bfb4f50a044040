"""Named tuples that compiled code reads by reference: every field as Python sees it, at any depth, also while arrays change."""

from collections import namedtuple
from typing import NamedTuple

import numpy as np
import pytest

from metastable.kernels.cpu.compiled import compiled, inner
from metastable.kernels.cpu.memory import Reference


class Inner(NamedTuple):
    count: int
    numbers: np.ndarray
    flags: np.ndarray


class Outer(NamedTuple):
    before: np.ndarray
    inner: Inner
    factor: float
    table: np.ndarray
    last: int


def make(rng):
    inside = Inner(-(2**62) - 1, rng.normal(size=7), rng.random(5) < 0.5)
    return Outer(rng.integers(0, 9, (2, 3, 4)), inside, -0.1, rng.normal(size=(3, 4)), 3)


@inner
def scaled(inside, i, factor):
    return inside.numbers[i] * factor


@compiled
def read(memory, out):
    """Sizes, shapes, numbers and entries into `out`; the table grows by one, and its sum is read again."""
    out[0] = memory.last + memory.inner.count
    out[1] = memory.factor
    out[2] = memory.before[1, 2, 3] + 10 * memory.before[0, 1, 2]
    out[3] = memory.before.size + 100 * memory.table.shape[1]
    out[4] = memory.table[2, 1] + memory.table[1].sum()
    for i in range(memory.inner.numbers.size):
        out[5] += scaled(memory.inner, i, memory.factor)
    for i in range(memory.inner.flags.size):
        out[6] = 2 * out[6] + memory.inner.flags[i]
    for i in range(memory.table.shape[0]):
        memory.table[i, 0] += 1.0
    out[7] = memory.table.sum()


def test_compiled_code_reads_what_python_sees():
    for seed in range(5):
        memory = make(np.random.default_rng(seed))
        table, out = memory.table.copy(), np.zeros(8)
        read(Reference(memory), out)
        bits = int("".join("1" if flag else "0" for flag in memory.inner.flags), 2)
        expected = [
            memory.last + memory.inner.count,
            memory.factor,
            memory.before[1, 2, 3] + 10 * memory.before[0, 1, 2],
            24 + 400,
            table[2, 1] + table[1].sum(),
            memory.factor * memory.inner.numbers.sum(),
            bits,
            table.sum() + 3.0,
        ]
        assert np.allclose(out, expected, rtol=1e-14, atol=0.0)
        assert np.array_equal(memory.table[:, 0], table[:, 0] + 1.0)


@compiled
def second(memory):
    return memory.second


def test_tuples_of_one_name_are_told_apart_by_their_fields():
    first, other = (namedtuple("Pair", fields) for fields in ("first second", "second first"))
    assert second(Reference(first(1.0, 2.0))) == 2.0
    assert second(Reference(other(1.0, 2.0))) == 1.0


def test_a_reference_keeps_its_arrays_alive():
    rng = np.random.default_rng(0)
    reference, out = Reference(make(rng)), np.zeros(8)
    expected = reference.memory.inner.numbers.sum() * reference.memory.factor
    junk = [rng.normal(size=7) for _ in range(1000)]
    read(reference, out)
    assert len(junk) == 1000
    assert np.isclose(out[5], expected, rtol=1e-14)


@pytest.mark.parametrize("wrong", [True, "text", None, np.zeros((4, 4))[:, ::2]])
def test_what_has_no_place_in_memory_is_refused(wrong):
    with pytest.raises(TypeError, match="integers, floats and contiguous arrays"):
        Reference(make(np.random.default_rng(0))._replace(last=wrong))
