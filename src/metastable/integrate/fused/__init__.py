"""The whole adaptive integration in compiled code, on the CPU (`solver`) and on the GPU (`cuda`)."""

from metastable.integrate.fused.solver import solve, solve_members, supports, system_of

__all__ = ["solve", "solve_members", "supports", "system_of"]
