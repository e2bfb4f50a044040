"""Vectors are as wide as the processor that code is compiled for has registers: the rest of this folder is run at every width.

`make test-widths` says which processor by `NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES`; here the machine code itself is read.
"""

from __future__ import annotations

import platform
import re

import numba
import numpy as np
import pytest
from llvmlite import binding
from numba.core import config

from metastable.kernels.cpu.vector import LANES, exp2, load, store


def features() -> set[str]:
    """What code is compiled for: what was asked for, else what the processor has."""
    if config.CPU_NAME is None and config.CPU_FEATURES is None:
        return {name for name, there in binding.get_host_cpu_features().items() if there}
    return {name[1:] for name in (config.CPU_FEATURES or "").split(",") if name.startswith("+")}


@numba.njit
def power_of_two(x, out):
    for first in range(0, x.size, LANES):
        store(out, first, exp2(load(x, first)))


def test_vectors_equal_the_scalar_function():
    x = np.linspace(-1000.0, 0.0, 8 * LANES)
    out = np.empty_like(x)
    power_of_two(x, out)
    np.testing.assert_allclose(out, np.exp2(x), rtol=1e-15)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads the names of x86 registers")
def test_machine_code_uses_the_registers_of_the_processor_it_is_for():
    x = np.zeros(LANES)
    power_of_two(x, x.copy())
    (code,) = power_of_two.inspect_asm().values()
    named = {kind for kind in ("xmm", "ymm", "zmm") if re.search(rf"%{kind}\d", code)}
    there = features()
    if "avx512f" in there:
        assert LANES == 8
        assert "zmm" in named
    elif "avx2" in there:
        assert LANES == 4
        assert "ymm" in named
        assert "zmm" not in named
    else:
        assert LANES == 4
        assert named == {"xmm"}
