"""Compiled code is right for every width of vectors, not only for that of the processor that runs the tests.

Another width needs another process: the width is a constant of the compiled code. Their caches are kept between runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import metastable as ms
from metastable.integrate.rodas.circle_sweep import sweep_memory
from metastable.kernels.cpu.vector import LANES
from metastable.kernels.jacobian_circle import ROWS

# Blocks of rows (the plain causal mask) and single rows (a window), at every remainder of tokens.
SCRIPT = """
import numpy as np
import metastable as ms

results = []
for tokens in range(37, 41):
    x = ms.sphere.uniform(tokens, dim=2, seed=tokens)
    for mask in (ms.Causal(), ms.Window(30)):
        run = ms.simulate(ms.Attention(dim=2, beta=16.0, mask=mask), x, times=[1.0, 20.0], method="rodas", max_steps=2000)
        assert run.status == "success", run.message
        results.append(run.states.ravel())
np.save(target, np.concatenate(results))
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> np.ndarray:
    """What `SCRIPT` computes here."""
    target = tmp_path_factory.mktemp("widths") / "here.npy"
    exec(SCRIPT, {"target": target})
    return np.load(target)


@pytest.mark.parametrize("lanes", [lanes for lanes in (2, 4, 8) if lanes != LANES])
def test_rodas_gives_the_same_with_vectors_of_any_width(lanes, expected, tmp_path, pytestconfig):
    target = tmp_path / "there.npy"
    settings = {
        "METASTABLE_LANES": str(lanes),
        "NUMBA_CACHE_DIR": str(pytestconfig.cache.mkdir(f"lanes-{lanes}")),
        "PYTHONPATH": str(Path(ms.__file__).parents[1]),
    }
    check = f"from metastable.kernels.cpu.vector import LANES\nassert LANES == {lanes}\ntarget = {str(target)!r}\n"
    subprocess.run([sys.executable, "-c", check + SCRIPT], env={**os.environ, **settings}, check=True, timeout=600)
    # Sums in another order: rounding, and what the steps (tolerance 1e-6) make of it.
    assert np.abs(np.load(target) - expected).max() < 1e-8


def test_memory_of_the_sweep_holds_whole_blocks_and_vectors():
    for columns in range(1, 3 * LANES):
        memory = sweep_memory(columns)
        width = memory.masses.size
        assert width % LANES == 0
        assert width >= columns + ROWS + LANES
        assert memory.angles.size >= ROWS
        assert memory.carried.size % LANES == 0
        assert all(line.shape == (8, width) for line in memory.stages)
        assert memory.block.biases.shape[1] == memory.block.jacobian.shape[1] == width
        parts = [
            *memory.stages,
            memory.block.biases,
            memory.block.jacobian,
            memory.masses,
            memory.angles,
            memory.carried,
        ]
        assert all(part.ctypes.data % (8 * LANES) == 0 for part in parts)
