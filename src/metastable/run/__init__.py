"""`simulate` and `Run`: what users call and what they hold."""

from metastable.run.handle import Run, load
from metastable.run.simulation import simulate

__all__ = ["Run", "load", "simulate"]
