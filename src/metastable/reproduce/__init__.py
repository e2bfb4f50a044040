"""Reproduce arXiv:2411.04990: every figure, table, lemma and theorem, recomputed, drawn and compared with the paper.

>>> from metastable.reproduce import catalogue
>>> [recipe.name for recipe in catalogue()][:3]
['figure-1', 'figure-2', 'figure-3']

- `Recipe`, `Settings`, `Finding`: what an item is
- `catalogue()`: all items
- `run_recipes(recipes, settings, out)`: compute, judge, draw and store, skipping what is done
- `write_report(results, out, command)`: `report.html`
"""

from metastable.reproduce.recipe import Finding, Recipe, Settings
from metastable.reproduce.report import write_report
from metastable.reproduce.result_store import Result
from metastable.reproduce.runner import choose, run_recipes, with_earlier

__all__ = [
    "Finding",
    "Recipe",
    "Result",
    "Settings",
    "catalogue",
    "choose",
    "run_recipes",
    "with_earlier",
    "write_report",
]


def catalogue() -> tuple[Recipe, ...]:
    """All items, in the order of the report."""
    from metastable.reproduce.recipes import CATALOGUE

    return CATALOGUE
