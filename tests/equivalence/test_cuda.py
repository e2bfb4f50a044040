"""The CUDA engine on Numba's CUDA simulator, and what it says where there is no GPU.

Numba decides between GPU and simulator when it is imported, so the suite runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from metastable.errors import UnsupportedError
from metastable.integrate.fused import cuda as fused_cuda
from metastable.integrate.plan import Plan, Save
from metastable.kernels import cuda, select
from metastable.kernels.cuda import device
from metastable.kernels.select import Backend
from metastable.model import Attention

SUITE = Path(__file__).parent / "cuda_suite.py"
SERIES = Path(__file__).parent / "cuda_series_suite.py"

VELOCITIES = "right_hand_side or tokens or dimension or precision"
MEMBERS = "members or block"
PARTS = (VELOCITIES, f"({MEMBERS}) and not ({VELOCITIES})", f"not ({VELOCITIES}) and not ({MEMBERS})")
"""Selections of tests that together are the whole suite: processes of their own, where tests run in parallel."""


@pytest.mark.parametrize(
    ("suite", "part"),
    [*((SUITE, part) for part in PARTS), (SERIES, "not sphere"), (SERIES, "sphere")],
    ids=["velocities", "members", "rest", "series", "series on the sphere"],
)
def test_suite_on_the_simulator(suite, part):
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-x",
        "--noconftest",
        str(suite),
        "-k",
        part,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_properties_on_the_simulator():
    """What tests/unit/test_properties.py asks of every engine, with few examples: the simulator is slow."""
    properties = Path(__file__).parents[1] / "unit" / "test_properties.py"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-vv", "-x", "--noconftest", str(properties)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "cuda-direct] PASSED" in done.stdout
    assert "cuda-series] PASSED" in done.stdout


def test_without_a_gpu_the_message_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(device, "missing", lambda: "engine='cuda' needs an NVIDIA GPU; use engine='cpu'")
    model = Attention(dim=2, beta=1.0)
    assert "GPU" in (cuda.refusal(model, 3) or "")
    assert not cuda.wins(model, 10**6, 1)
    with pytest.raises(UnsupportedError, match="NVIDIA GPU"):
        select.choose(model, 3, engine="cuda")
    plan = Plan((model,), "tsit5", Save(1.0, np.array([1.0])), backend=Backend("cuda"))
    with pytest.raises(UnsupportedError, match="engine='cpu'"):
        fused_cuda.solve_members(plan, np.array([[[1.0, 0.0]]]), 0, lambda done: None)


def _no_numba_cuda(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba_cuda", None)  # None: importing it raises ImportError


def _no_gpu(monkeypatch):
    from numba import cuda as numba_cuda

    monkeypatch.setattr(numba_cuda, "is_available", lambda: False)


def _broken_gpu(monkeypatch):
    from numba import cuda as numba_cuda

    def fail():
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(numba_cuda, "is_available", lambda: True)
    monkeypatch.setattr(numba_cuda, "get_current_device", fail)


def _no_compiler(monkeypatch):
    from numba import cuda as numba_cuda
    from numba.cuda.cudadrv import nvvm

    def fail():
        raise OSError("libnvvm.so is not there")

    monkeypatch.setattr(numba_cuda, "is_available", lambda: True)
    monkeypatch.setattr(numba_cuda, "get_current_device", lambda: None)
    monkeypatch.setattr(nvvm, "NVVM", fail)


@pytest.mark.parametrize(
    ("break_it", "cause", "fix"),
    [
        (_no_numba_cuda, "numba-cuda", device.INSTALL),
        (_no_gpu, "NVIDIA GPU", "engine='cpu'"),
        (_broken_gpu, "the driver is too old", "engine='cpu'"),
        (_no_compiler, "libnvvm.so is not there", device.INSTALL),
    ],
    ids=["package", "gpu", "driver", "compiler"],
)
def test_what_is_missing_is_a_sentence_with_a_fix(monkeypatch, break_it, cause, fix):
    """Each thing that can be missing, on a machine with a GPU and on one without."""
    monkeypatch.setattr(device, "SIMULATED", False)
    break_it(monkeypatch)
    reason = device.missing.__wrapped__()  # past the cache: the machine itself is asked elsewhere
    assert reason is not None
    assert reason.startswith("engine='cuda'")
    assert cause in reason
    assert fix in reason


def test_small_problems_stay_on_the_cpu(monkeypatch):
    monkeypatch.setattr(device, "missing", lambda: None)
    model = Attention(dim=2, beta=64.0)
    assert not cuda.wins(model, 50, 1)
    assert cuda.wins(model, 200, 5000)
    assert cuda.wins(Attention(dim=3, beta=9.0), 10**5, 1)
    assert not cuda.wins(model.replace(weights="hardmax"), 10**5, 1)
