"""How the kernels with Jacobians are compiled."""

from __future__ import annotations

from typing import Any

from metastable._jit import njit

OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "fastmath": {"contract"}, "nogil": True}
INTERNAL: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

compiled = njit(**OPTIONS)
"""For functions that Python calls too."""

helper = njit(**OPTIONS, **INTERNAL)
"""For functions that only compiled code calls."""

# Without Numba's run-time system a kernel counts no references to the arrays it is given, which would cost more than the
# arithmetic of a short row. It must not make arrays.
kernel = njit(**OPTIONS, **INTERNAL, _nrt=False)
"""For functions that only compiled code calls and that allocate nothing."""

inlined = njit(**OPTIONS, **INTERNAL, _nrt=False, forceinline=True)
"""For parts of an inner loop: always merged into the caller."""
