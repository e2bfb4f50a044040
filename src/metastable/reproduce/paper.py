"""What a paper is: a folder that defines `PAPER`. Those of the package are found by themselves, others by their path."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import pkgutil
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from metastable import _checks
from metastable.errors import InvalidInputError, MetastableError
from metastable.reproduce.recipe import Recipe

FIRST = "2411.04990"
"""The paper that `metastable reproduce` means when none is named; its results lie in the output folder itself."""

ALL = "all"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ARXIV = re.compile(r"\d{4}\.\d{4,5}")


@dataclass(frozen=True, eq=False)
class Paper:
    """A paper and the items that recompute it.

    number : arXiv number, or any short name: what the user types, and the name of its folder of results.
    title : headline of its report.
    citation : authors, title, where and when.
    summary : what it says, in a sentence or two, for the page over all papers.
    recipes : its items, in the order of the report.
    covers : what of it is recomputed, for the first sentence of the report.
    picture : name of the item whose figure stands for the paper on the page over all papers (empty: the first).
    """

    number: str
    title: str
    citation: str
    summary: str
    recipes: tuple[Recipe, ...]
    covers: str = "The statements"
    picture: str = ""

    def __post_init__(self) -> None:
        for name in ("number", "title", "citation", "summary", "covers"):
            _checks.text(getattr(self, name), name)
        if not _NAME.fullmatch(self.number) or self.number == ALL:
            raise InvalidInputError(
                f"number must be an arXiv number or a short name of letters, digits, dots and hyphens, not "
                f"{self.number!r}"
            )
        recipes = _checks.instances(self.recipes, Recipe, "recipes")
        names = [recipe.name for recipe in recipes]
        if not names or len(set(names)) < len(names):
            raise InvalidInputError(f"recipes must be at least one, each with a name of its own; these are {names}")
        wrong = [name for name in names if not _NAME.fullmatch(name)]
        if wrong:
            raise InvalidInputError(
                f"names of recipes are letters, digits, dots and hyphens (they become folders), not {wrong[0]!r}"
            )
        if self.picture and self.picture not in names:
            raise InvalidInputError(f"picture must be the name of a recipe ({', '.join(names)}), not {self.picture!r}")
        options = "" if self.number == FIRST else f"--paper {self.number}"
        object.__setattr__(
            self, "recipes", tuple(recipe if recipe.options else replace(recipe, options=options) for recipe in recipes)
        )

    @property
    def link(self) -> str:
        """Address of the paper on arXiv (empty for other names)."""
        return f"https://arxiv.org/abs/{self.number}" if _ARXIV.fullmatch(self.number) else ""

    @property
    def seconds(self) -> float | None:
        """About how long all items take on two processors (None if no item says)."""
        known = [recipe.seconds for recipe in self.recipes if recipe.seconds is not None]
        return sum(known) if known else None

    def folder(self, out: str | Path) -> Path:
        """Where its results lie below the output folder `out`."""
        root = _checks.path(out, "out")
        return root if self.number == FIRST else root / self.number


@cache
def all_papers() -> tuple[Paper, ...]:
    """Every paper of the package: `FIRST`, then the others by number."""
    from metastable.reproduce import papers as room

    found = []
    for entry in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        module = importlib.import_module(entry.name)
        found.append(_paper_of(module, entry.name))
    return tuple(sorted(found, key=lambda paper: (paper.number != FIRST, paper.number)))


def _paper_of(module: object, where: str) -> Paper:
    paper = getattr(module, "PAPER", None)
    if not isinstance(paper, Paper):
        raise InvalidInputError(
            f"{where} must define PAPER = Paper(number=..., title=..., citation=..., summary=..., recipes=(...)); "
            f"what it has is {'nothing of that name' if paper is None else type(paper).__name__}"
        )
    return paper


def load_paper(folder: str | Path) -> Paper:
    """The paper of a folder outside the package: its `__init__.py` defines `PAPER` (other files: `from . import name`).

    The code of the folder becomes part of every fingerprint, so stored results are computed again when it changes.
    """
    place = _checks.path(folder, "folder")
    opening = place / "__init__.py"
    if not opening.is_file():
        raise InvalidInputError(
            f"{place} is no folder of a paper: there is no {opening}; it must define PAPER = Paper(...)"
        )
    content = b"".join(path.name.encode() + path.read_bytes() for path in sorted(place.rglob("*.py")))
    digest = hashlib.sha256(content).hexdigest()[:16]
    name = f"metastable_paper_{digest}"
    spec = importlib.util.spec_from_file_location(name, opening, submodule_search_locations=[str(place)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except MetastableError:
        raise
    except Exception as reason:  # whatever a user's own file raises
        raise InvalidInputError(
            f"{opening} could not be loaded: {type(reason).__name__}: {reason}; mend the file and run it again"
        ) from reason
    paper = _paper_of(module, str(opening))
    if paper.number in {known.number for known in all_papers()}:
        raise InvalidInputError(
            f"{opening} calls its paper {paper.number}, which the package has; their results would mix: give PAPER "
            "another number"
        )
    options = f"--from {shlex.quote(str(place))}"
    return replace(paper, recipes=tuple(replace(recipe, options=options, source=digest) for recipe in paper.recipes))


def find_papers(names: str, known: Sequence[Paper] | None = None, elsewhere: Sequence[Paper] = ()) -> list[Paper]:
    """The papers with these numbers (comma separated, or "all"), in the order of `all_papers()`.

    `elsewhere`: papers whose code is not at hand (see `own_papers`); asking for one of them is refused with the option that has it.
    """
    every = list(all_papers()) if known is None else _checks.instances(known, Paper, "known")
    wanted = [
        name.strip().lower().removeprefix("arxiv:").replace("_", ".")
        for name in _checks.text(names, "paper").split(",")
    ]
    if ALL in wanted:
        return every
    numbers = [paper.number for paper in every]
    unknown = [name for name in wanted if name not in numbers]
    for paper in elsewhere:
        if paper.number.lower().replace("_", ".") in unknown:
            raise InvalidInputError(
                f"{paper.number} is a paper of your own; its code is asked for each time: {paper.recipes[0].options}"
            )
    if unknown:
        near = difflib.get_close_matches(unknown[0], numbers, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(numbers)}, and all."
        raise InvalidInputError(
            f"there is no paper {unknown[0]!r}; {hint} `metastable reproduce --list` shows them; one of your own: "
            "--from FOLDER"
        )
    return [paper for paper in every if paper.number in wanted]
