"""Runs recipes one after the other, skips what is already done, and writes reports."""

from __future__ import annotations

import difflib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from metastable._checks import instance, instances, path
from metastable.errors import InvalidInputError, MetastableError, StoreError
from metastable.reproduce import index, report, result_store
from metastable.reproduce.own_papers import remember, remembered
from metastable.reproduce.paper import Paper, all_papers
from metastable.reproduce.recipe import Recipe, Report, Settings
from metastable.reproduce.result_store import Result

FORMATS = ("png", "pdf", "svg")


@dataclass(frozen=True)
class Watch:
    """What a display may listen to; every function has a default that does nothing."""

    started: Callable[[Recipe, int, int], Report] = lambda recipe, number, total: lambda fraction: None
    ended: Callable[[Result, int, int], None] = lambda result, number, total: None


def choose(names: Sequence[str], recipes: Sequence[Recipe]) -> list[Recipe]:
    """The recipes with these names, in the catalogue's order (all of them when none is named)."""
    names, recipes = instances(names, str, "names"), instances(recipes, Recipe, "recipes")
    known = {recipe.name: recipe for recipe in recipes}
    wanted = [name.strip().lower().replace("_", "-").replace(" ", "-") for name in names]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        raise InvalidInputError(
            f"there is no item {unknown[0]!r}{hint} `metastable reproduce --list` shows all {len(known)} items"
        )
    return [recipe for recipe in recipes if not wanted or recipe.name in wanted]


def select(names: Sequence[str], papers: Sequence[Paper]) -> dict[Paper, list[Recipe]]:
    """The items with these names of each paper, papers without any left out; a name that none of them has is refused."""
    papers = instances(papers, Paper, "papers")
    every = [recipe for paper in papers for recipe in paper.recipes]
    wanted = {recipe.name for recipe in choose(names, every)}
    chosen = {paper: [recipe for recipe in paper.recipes if recipe.name in wanted] for paper in papers}
    return {paper: recipes for paper, recipes in chosen.items() if recipes}


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Formats of figures, checked."""
    kinds = tuple(dict.fromkeys(kind.strip().lower().lstrip(".") for kind in instances(formats, str, "formats")))
    wrong = [kind for kind in kinds if kind not in FORMATS]
    if wrong or not kinds:
        raise InvalidInputError(
            f"format must be among {', '.join(FORMATS)} (comma separated), not {', '.join(wrong) or 'empty'}"
        )
    return kinds


def run_recipes(
    recipes: Sequence[Recipe],
    settings: Settings,
    out: str | Path,
    formats: Sequence[str] = ("png",),
    watch: Watch | None = None,
) -> list[Result]:
    """Compute, judge, draw and store each recipe; one that fails is recorded and the others go on.

    An item whose stored result has the same fingerprint is not computed again (only drawn again, from its data, if a new format
    is asked for). Errors of the disk stop the whole run, since nothing after them could be kept.
    """
    kinds = check_formats(formats)
    recipes = instances(recipes, Recipe, "recipes")
    instance(settings, Settings, "settings")
    display = Watch() if watch is None else instance(watch, Watch, "watch")
    folder = result_store.prepare(path(out, "out"))
    results = []
    for number, recipe in enumerate(recipes, start=1):
        tell = display.started(recipe, number, len(recipes))
        result = _one(recipe, settings, folder, kinds, tell)
        display.ended(result, number, len(recipes))
        results.append(result)
    return results


def _one(recipe: Recipe, settings: Settings, folder: Path, kinds: tuple[str, ...], tell: Report) -> Result:
    done = result_store.finished(recipe, settings, folder)
    if done is not None:
        return _complete_formats(recipe, done, kinds)
    begun = time.perf_counter()
    try:
        dataset = recipe.measure(recipe.parameters, settings, tell)
        return result_store.store(recipe, settings, dataset, time.perf_counter() - begun, folder, kinds)
    except StoreError:
        raise
    except Exception as reason:  # one broken item must not cost the others their results; the report shows it as failed
        named = isinstance(reason, MetastableError)
        text = str(reason) if named else f"{type(reason).__name__}: {reason}"
        spent = time.perf_counter() - begun
        return result_store.failure(recipe, settings, text, spent, traceback.format_exc())


def _complete_formats(recipe: Recipe, done: Result, kinds: tuple[str, ...]) -> Result:
    assert done.folder is not None
    # A picture that the marker does not name was being drawn when its process was killed.
    whole = [kind for kind in done.formats if (done.folder / f"figure.{kind}").is_file()]
    missing = [kind for kind in ("png", *kinds) if kind not in whole]
    if not missing:
        return done
    with result_store.explain_disk_errors(done.folder):
        result_store.draw(recipe, result_store.read_data(done.folder), done.folder, missing)
        result = replace(done, formats=tuple(dict.fromkeys((*done.formats, *missing))))
        result_store.write_marker(result, done.folder)
    return result


def with_earlier(
    results: Sequence[Result], recipes: Sequence[Recipe], settings: Settings, out: str | Path
) -> list[Result]:
    """`results` and what earlier runs with the same settings left in `out`, in the order of `recipes`: what a report shows."""
    fresh = {result.name: result for result in instances(results, Result, "results")}
    recipes, folder = instances(recipes, Recipe, "recipes"), path(out, "out")
    instance(settings, Settings, "settings")
    found = [fresh.get(recipe.name) or result_store.finished(recipe, settings, folder) for recipe in recipes]
    return [result for result in found if result is not None]


@dataclass(frozen=True)
class Outcome:
    """What `run_papers` made: the results of each paper, the reports, and the page over all papers (None: there is one only)."""

    results: Mapping[Paper, list[Result]]
    reports: list[Path]
    index: Path | None


def run_papers(
    selection: Mapping[Paper, Sequence[Recipe]],
    settings: Settings,
    out: str | Path,
    command: str,
    formats: Sequence[str] = ("png",),
    watch: Watch | None = None,
    known: Sequence[Paper] = (),
) -> Outcome:
    """Run the chosen items of each paper into its folder below `out`, with a report each and a page over all.

    The page is written when `out` holds results of more than one paper: of those of the package, of those `known`, and of
    papers from outside the package that earlier calls ran into `out` (`own_papers`).
    """
    root, kinds = path(out, "out"), check_formats(formats)
    results, reports = {}, []
    every = {paper.number: paper for paper in (*all_papers(), *remembered(root), *known, *selection)}.values()
    others = {p for p in every if with_earlier([], p.recipes, settings, p.folder(root))}
    many = len(others | set(selection)) > 1
    for paper, recipes in selection.items():
        folder = paper.folder(root)
        results[paper] = run_recipes(recipes, settings, folder, kinds, watch)
        remember(paper, root)
        whole = with_earlier(results[paper], paper.recipes, settings, folder)
        reports.append(report.write_report(whole, folder, command, paper, index=many))
    there = {p: with_earlier(results.get(p, []), p.recipes, settings, p.folder(root)) for p in every}
    there = {paper: some for paper, some in there.items() if some}
    page = index.write_index(there, root, command) if len(there) > 1 else None
    return Outcome(results, reports, page)
