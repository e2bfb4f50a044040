"""Papers from outside the package that an output folder has results of: remembered as data, so that later calls show them too.

    out/my-paper/paper.json    title, citation, summary, and of each item what its fingerprint is made of

A later call without `--from` has no code of theirs and runs none: it shows what is stored, and says whose it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from metastable import _checks, stores
from metastable.errors import InvalidInputError
from metastable.reproduce.paper import Paper, all_papers
from metastable.reproduce.recipe import Recipe
from metastable.reproduce.result_store import explain_disk_errors

NOTE = "paper.json"
_OF_PAPER = ("number", "title", "citation", "summary", "covers", "picture")
_OF_RECIPE = (
    "name",
    "title",
    "statement",
    "parameters",
    "origin",
    "uses",
    "revision",
    "hindsight",
    "options",
    "source",
)


def is_own(paper: Paper) -> bool:
    """True for papers that `load_paper` (or `remembered`) gave: their items carry the hash of their code."""
    return any(recipe.source for recipe in paper.recipes)


def remember(paper: Paper, out: str | Path) -> None:
    """Write `paper.json` beside the results of a paper from outside the package (papers of the package need none)."""
    if not is_own(paper):
        return
    content: dict[str, Any] = {name: getattr(paper, name) for name in _OF_PAPER}
    content["recipes"] = [{name: getattr(recipe, name) for name in _OF_RECIPE} for recipe in paper.recipes]
    folder = paper.folder(out)
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        stores.write_file(folder / NOTE, json.dumps(content, indent=1, ensure_ascii=False, default=_plain).encode())


def remembered(out: str | Path) -> list[Paper]:
    """The papers whose notes lie below `out`, by number. Their items can be shown, not computed: for that `--from` is needed."""
    root, known = _checks.path(out, "out"), {paper.number for paper in all_papers()}
    found = [_read(path) for path in sorted(root.glob(f"*/{NOTE}"))]
    return [paper for paper in found if paper is not None and paper.number not in known]


def _plain(value: Any) -> Any:
    """As `Recipe.fingerprint` writes what JSON has no word for."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def _read(path: Path) -> Paper | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        recipes = tuple(_recipe(item) for item in content.pop("recipes"))
        return Paper(**content, recipes=recipes)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, InvalidInputError):
        return None  # no note of ours: what lies there is left alone


def _recipe(item: dict[str, Any]) -> Recipe:
    def absent(*arguments: Any) -> NoReturn:
        raise InvalidInputError(f"the code of {item['name']} is not at hand; run it with {item['options']}")

    uses = tuple(item.pop("uses"))
    return Recipe(**item, uses=uses, measure=absent, judge=absent, draw=absent)
