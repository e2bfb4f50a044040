"""Compiled right-hand sides for the CPU (Numba, float64)."""
