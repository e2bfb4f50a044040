"""The whole adaptive integration in compiled code, on the CPU (`solver`) and on the GPU (`cuda`)."""

from metastable.integrate.fused.solver import solve_members, system_of

__all__ = ["solve_members", "system_of"]
