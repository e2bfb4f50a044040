"""What a bug report needs: versions, processor, vector width, threads, GPU, caches, and which extras are there."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

Section = dict[str, str]

LIBRARIES = ("numpy", "scipy", "numba", "llvmlite", "xarray", "zarr", "matplotlib", "plotly", "typer", "rich")
"""Dependencies whose version most often decides."""
FEATURES = ("sse2", "sse4.2", "avx", "avx2", "fma", "avx512f", "neon", "sve")
"""Features of processors that the compiled code makes use of."""
GATHERED = ("all", "dev")
"""Extras of which it is enough to know that they are there: made of others, or for those who change the code."""
VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT",
             "METASTABLE_LANES", "METASTABLE_CACHE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME",
             "HF_HUB_OFFLINE")  # fmt: skip
"""Environment variables that change what is computed or where it is kept."""


def environment() -> dict[str, Section]:
    """The state of this installation, in sections of name -> value. Imports Numba; starts no GPU work beyond asking for its name."""
    from metastable import __version__

    return {
        "metastable": {
            "version": __version__,
            "installed in": str(Path(__file__).parent),
            "Python": f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}",
            "system": platform.platform(),
        },
        "libraries": {name: installed(name) for name in LIBRARIES},
        "processor": _processor(),
        "GPU": _gpu(),
        "caches": _caches(),
        "extras": extras(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ} or {"": "nothing set"},
    }


def installed(name: str) -> str:
    """Version of an installed distribution, or "missing"."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def extras() -> Section:
    """For each extra of the package: the versions that are installed, or what is missing and the command that gets it."""
    wanted: dict[str, list[str]] = {}
    for line in metadata.requires("metastable") or ():
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        if extra:
            wanted.setdefault(extra.group(1), []).append(re.split(r"[\s<>=!~\[(]", requirement.strip(), maxsplit=1)[0])
    found = {}
    for extra, names in wanted.items():
        # An extra that is made of other extras names the package itself, and one may bound what the core needs anyway.
        versions = {name: installed(name) for name in dict.fromkeys(names) if name not in ("metastable", *LIBRARIES)}
        missing = [name for name, version in versions.items() if version == "missing"]
        if missing:
            found[extra] = f'without {", ".join(missing)}: pip install "metastable[{extra}]"'
        elif extra in GATHERED:
            found[extra] = "installed"
        else:
            found[extra] = "installed: " + ", ".join(f"{name} {version}" for name, version in versions.items())
    return found


def processor_name() -> str:
    """Model name of the processor, as far as the system tells."""
    if sys.platform == "linux":
        for line in Path(os.sep, "proc", "cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _processor() -> Section:
    import numba
    from llvmlite.binding import get_host_cpu_features, get_host_cpu_name

    from metastable.kernels.cpu.vector import LANES

    present = get_host_cpu_features()
    chosen = os.environ.get("NUMBA_CPU_NAME")
    return {
        "model": processor_name(),
        "LLVM's name": get_host_cpu_name(),
        "compiled for": chosen or "the processor at hand",
        "features": " ".join(name for name in FEATURES if present.get(name)) or "none that is used",
        "doubles in a vector": str(LANES),
        "processors": str(os.cpu_count()),
        "threads": str(numba.get_num_threads()),
    }


def _gpu() -> Section:
    if installed("numba-cuda") == "missing":
        return {"": 'no CUDA support: pip install "metastable[cuda]"'}
    try:
        from numba import cuda

        if not cuda.is_available():
            return {"": "numba-cuda is installed, but finds no GPU"}
        device = cuda.get_current_device()
        name = device.name if isinstance(device.name, str) else device.name.decode()
        free, total = cuda.current_context().get_memory_info()
        capability = ".".join(map(str, device.compute_capability))
        return {name: f"compute capability {capability}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"}
    except Exception as reason:  # a driver can fail in any way, and that is what the report is for
        return {"": f"asking for the GPU failed: {type(reason).__name__}: {reason}"}


def _caches() -> Section:
    from metastable.checkpoints.cache import cache_folder

    return {
        "compiled code": os.environ.get("NUMBA_CACHE_DIR") or "__pycache__ beside the package's files",
        "converted models": str(cache_folder()),
    }
