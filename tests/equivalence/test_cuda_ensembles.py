"""Ensembles and runs on the CUDA engine as users call them, on Numba's CUDA simulator (a process of its own)."""

import os
import subprocess
import sys

SCRIPT = """
import numpy as np, pytest
import metastable as ms
model = ms.Attention(dim=2, beta=9.0)
observe = {"renyi": ms.observe.consumed(delta=1.0), "clusters": ms.observe.clusters(radius=0.2)}
call = dict(tokens=8, members=3, times=[0.0, 1.0, 3.0], seed=1)
host = ms.ensemble(model, engine="reference", observe=observe, **call)
for dtype in ("float64", "float32"):
    device = ms.ensemble(model, engine="cuda", dtype=dtype, observe=observe, **call)
    assert device.attrs["engine"] == "cuda" and device.attrs["dtype"] == dtype
    for name in observe:
        np.testing.assert_allclose(device[name], host[name], atol=1e-12)
mixed = ms.ensemble(model, engine="cuda", observe={**observe, "cosine": ms.observe.mean_cosine()}, **call)
np.testing.assert_allclose(mixed.renyi, host.renyi, atol=1e-12)
run = ms.simulate(model, ms.sphere.uniform(6, dim=2, seed=0), times=[1.0], engine="cuda", dtype="float32")
assert run.engine == "cuda" and run.dataset.attrs["dtype"] == "float32"
with pytest.raises(ms.errors.UnsupportedError, match="cuda"):
    ms.simulate(model, ms.sphere.uniform(6, dim=2, seed=0), until=1.0, dtype="float32", engine="cpu")
"""


def test_capture_curves_on_the_device_equal_those_on_the_host():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    result = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
