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

# Vectors that are narrower or wider than the dimension: rows of matrices are padded to whole ones.
VELOCITIES = """
import numpy as np
import metastable as ms

rng = np.random.default_rng(0)
results = []
for dim in (2, 3, 4, 5, 9):
    x = ms.sphere.uniform(21, dim=dim, seed=dim)
    matrix = np.eye(dim) + 0.2 * rng.normal(size=(dim, dim))
    models = [ms.Attention(dim=dim, beta=4.0), ms.Attention(dim=dim, beta=2.0, query=matrix, value=matrix.T, mask=ms.Full())]
    for model in models:
        results.append(ms.velocity(model, x, engine="cpu").ravel())
    if dim <= 3:
        results.append(ms.velocity(models[0], x, engine="cpu", interaction="series").ravel())
np.save(target, np.concatenate(results))
"""


OTHERS = [lanes for lanes in (2, 4, 8) if lanes != LANES]


def here(script: str, folder: Path) -> np.ndarray:
    """What a script computes in this process."""
    exec(script, {"target": folder / "here.npy"})
    return np.load(folder / "here.npy")


def there(script: str, lanes: int, folder: Path, cache: Path) -> np.ndarray:
    """What it computes in a process with vectors of another width."""
    target = folder / f"there-{lanes}.npy"
    settings = {
        "METASTABLE_LANES": str(lanes),
        "NUMBA_CACHE_DIR": str(cache),
        "PYTHONPATH": str(Path(ms.__file__).parents[1]),
    }
    check = f"from metastable.kernels.cpu.vector import LANES\nassert LANES == {lanes}\ntarget = {str(target)!r}\n"
    subprocess.run([sys.executable, "-c", check + script], env={**os.environ, **settings}, check=True, timeout=600)
    return np.load(target)


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> np.ndarray:
    """What `SCRIPT` computes here."""
    return here(SCRIPT, tmp_path_factory.mktemp("widths"))


@pytest.mark.parametrize("lanes", OTHERS)
def test_rodas_gives_the_same_with_vectors_of_any_width(lanes, expected, tmp_path, pytestconfig):
    found = there(SCRIPT, lanes, tmp_path, pytestconfig.cache.mkdir(f"lanes-{lanes}"))
    # Sums in another order: rounding, and what the steps (tolerance 1e-6) make of it.
    assert np.abs(found - expected).max() < 1e-8


@pytest.mark.parametrize("lanes", OTHERS)
def test_velocities_are_the_same_in_every_dimension(lanes, tmp_path, pytestconfig):
    found = there(VELOCITIES, lanes, tmp_path, pytestconfig.cache.mkdir(f"lanes-{lanes}"))
    assert np.abs(found - here(VELOCITIES, tmp_path)).max() < 1e-13


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
