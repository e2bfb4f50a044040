"""Many members with observables on the fly, and the statistics over them."""

from metastable.ensembles.record import summarize
from metastable.ensembles.simulation import ensemble
from metastable.ensembles.store import load_ensemble, save_ensemble

__all__ = ["ensemble", "load_ensemble", "save_ensemble", "summarize"]
