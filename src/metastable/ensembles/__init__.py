"""Many members with observables on the fly, and the statistics over them."""

from metastable.ensembles.members import ensemble
from metastable.ensembles.record import summarize

__all__ = ["ensemble", "summarize"]
