"""`simulate` and `Run`: what users call and what they hold."""

from metastable.run.handle import Run, load
from metastable.run.simulation import simulate
from metastable.run.trees import MergeTree, merge_tree, predict_merges

__all__ = ["MergeTree", "Run", "load", "merge_tree", "predict_merges", "simulate"]
