"""Reproduce papers on attention dynamics: their figures, lemmas and theorems, recomputed, drawn and compared with what they say.

>>> from metastable.reproduce import all_papers, catalogue
>>> [recipe.name for recipe in catalogue()][:3]
['figure-1', 'figure-2', 'figure-3']
>>> [recipe.name for recipe in catalogue("2312.10794")][0]
'phase-diagram'

- `Paper`, `all_papers()`, `load_paper(folder)`: a paper is a folder that defines `PAPER`
- `Recipe`, `Settings`, `Finding`: what an item is
- `catalogue(paper)`: all items of a paper
- `run_recipes(recipes, settings, out)`: compute, judge, draw and store, skipping what is done
- `write_report(results, out, command, paper)`: `report.html`; `write_index(found, out, command)`: `index.html` over papers
"""

from metastable.reproduce.index import write_index
from metastable.reproduce.paper import FIRST, Paper, all_papers, find_papers, load_paper
from metastable.reproduce.recipe import Finding, Recipe, Settings
from metastable.reproduce.report import write_report
from metastable.reproduce.result_store import Result
from metastable.reproduce.runner import choose, run_recipes, with_earlier

__all__ = [
    "Finding",
    "Paper",
    "Recipe",
    "Result",
    "Settings",
    "all_papers",
    "catalogue",
    "choose",
    "find_papers",
    "load_paper",
    "run_recipes",
    "with_earlier",
    "write_index",
    "write_report",
]


def catalogue(paper: str = FIRST) -> tuple[Recipe, ...]:
    """All items of a paper ("all": of every paper), in the order of the report."""
    return tuple(recipe for one in find_papers(paper) for recipe in one.recipes)
