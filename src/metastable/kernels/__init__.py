"""Right-hand sides and Jacobians: `reference` (NumPy), `cpu` (Numba), `cuda` (Numba-CUDA), chosen by `select`."""
