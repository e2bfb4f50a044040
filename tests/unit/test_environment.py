"""`metastable info`: what it says is so."""

import json
import platform
import subprocess
import sys

import numpy as np

import metastable
from metastable import environment
from metastable.kernels.cpu.vector import LANES


def test_sections_say_what_is_installed():
    found = environment.environment()
    assert found["metastable"]["version"] == metastable.__version__
    assert platform.python_version() in found["metastable"]["Python"]
    assert found["libraries"]["numpy"] == np.__version__
    assert found["processor"]["doubles in a vector"] == str(LANES)


def test_missing_extras_are_named_with_the_command(monkeypatch):
    real = environment.installed
    monkeypatch.setattr(environment, "installed", lambda name: "missing" if name in ("dask", "uvicorn") else real(name))
    found = environment.extras()
    assert found["sweep"] == 'without dask: pip install "metastable[sweep]"'
    assert found["explore"] == 'without uvicorn: pip install "metastable[explore]"'


def test_versions_of_extras_are_told(monkeypatch):
    """A bug in a sweep or a flow depends on the versions of Dask or PyTorch more often than on ours."""
    monkeypatch.setattr(environment, "installed", lambda name: "1.2.3")
    found = environment.extras()
    assert found["weights"] == "installed: gguf 1.2.3"
    assert "transformers 1.2.3" in found["transformers"]
    assert "numpy" not in found["cuda"]
    assert found["all"] == found["dev"] == "installed"


def test_a_failing_driver_is_reported_not_raised(monkeypatch):
    monkeypatch.setattr(environment, "installed", lambda name: "0.30")
    monkeypatch.setitem(sys.modules, "numba.cuda", None)
    monkeypatch.delattr("numba.cuda", raising=False)
    assert (
        "asking for the GPU failed: ImportError" in environment._gpu()[""]
        or "ModuleNotFoundError" in environment._gpu()[""]
    )


def test_the_command_prints_json():
    command = [sys.executable, "-m", "metastable", "info", "--json"]
    printed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert set(printed) == {"metastable", "libraries", "processor", "GPU", "caches", "extras", "environment"}
