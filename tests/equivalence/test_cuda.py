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
from metastable.kernels import cuda, select
from metastable.kernels.cuda import device
from metastable.model import Attention

SUITE = Path(__file__).parent / "cuda_suite.py"


VELOCITIES = "right_hand_side or tokens or dimension or series or precision"
MEMBERS = "members or block"
PARTS = (VELOCITIES, f"({MEMBERS}) and not ({VELOCITIES})", f"not ({VELOCITIES}) and not ({MEMBERS})")
"""Selections of tests that together are the whole suite: three processes, where tests run in parallel."""


@pytest.mark.parametrize("part", PARTS, ids=["velocities", "members", "rest"])
def test_suite_on_the_simulator(part):
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
        str(SUITE),
        "-k",
        part,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_without_a_gpu_the_message_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(device, "missing", lambda: "engine='cuda' needs an NVIDIA GPU; use engine='cpu'")
    model = Attention(dim=2, beta=1.0)
    assert "GPU" in (cuda.refusal(model, 3) or "")
    assert not cuda.wins(model, 10**6, 1)
    with pytest.raises(UnsupportedError, match="NVIDIA GPU"):
        select.choose(model, 3, engine="cuda")
    with pytest.raises(UnsupportedError, match="engine='cpu'"):
        fused_cuda.solve_members(model, np.array([[[1.0, 0.0]]]), np.array([1.0]))


def test_what_is_missing_is_a_sentence_with_a_fix():
    reason = device.missing()
    assert reason is None or ("engine='cuda'" in reason and ("install" in reason or "engine='cpu'" in reason))


def test_small_problems_stay_on_the_cpu(monkeypatch):
    monkeypatch.setattr(device, "missing", lambda: None)
    model = Attention(dim=2, beta=64.0)
    assert not cuda.wins(model, 50, 1)
    assert cuda.wins(model, 200, 5000)
    assert cuda.wins(Attention(dim=3, beta=9.0), 10**5, 1)
    assert not cuda.wins(model.replace(weights="hardmax"), 10**5, 1)
