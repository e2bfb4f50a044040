"""The site is built without a warning, documents every public name, and no link within it leads nowhere.

The gallery's scripts are not run here (`test_gallery.py` runs them): blank pictures stand for theirs.
"""

import inspect
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.util.inventory import InventoryFile

from tests.unit.test_stability import ROOMS

ROOT = Path(__file__).parents[2]


def stand_in_for_pictures(docs: Path) -> None:
    """The source archive leaves out the pictures of the docs, for their size; blank ones are put where it did."""
    from PIL import Image

    if (docs / "images").exists():
        return
    for page in docs.rglob("*.md"):
        for name in re.findall(r"images/[\w/-]+\.png", page.read_text(encoding="utf-8")):
            (docs / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (60, 40)).save(docs / name)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built from a copy of the docs (pages of the gallery are written beside its scripts)."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("_build", "pictures"))
    for page in (folder / "docs" / "gallery").glob("*.md"):
        page.unlink()
    stand_in_for_pictures(folder / "docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-D", "gallery_execute=0"]
    done = subprocess.run([*command, str(folder / "docs"), str(folder / "html")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


class Links(HTMLParser):
    """Targets of a page's links and pictures, and the places within it that can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if value is None:
                continue
            if key in ("href", "src"):
                self.targets.append(value)
            elif key in ("id", "name"):
                self.places.add(value)


def dead_links(folder: Path) -> list[str]:
    """Links of the pages in `folder` to files or places that are not there; addresses elsewhere are not asked."""
    pages = {}
    for path in folder.rglob("*.html"):
        pages[path] = Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    dead = []
    for path, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = goal / "index.html" if goal.is_dir() else goal
            there = goal.exists()
            if there and parts.fragment and goal in pages:
                there = parts.fragment in pages[goal].places or unquote(parts.fragment) in pages[goal].places
            if not there:
                dead.append(f"{path.relative_to(folder)}: {target}")
    return dead


def test_no_link_leads_nowhere(site):
    assert dead_links(site) == []


def test_a_dead_link_is_noticed(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html">b</a> <a href="#here">here</a> <h1 id="top"></h1>')
    assert dead_links(tmp_path) == ["a.html: b.html", "a.html: #here"]


def public_names() -> dict[str, set[str]]:
    """Everything users may call, as `metastable.room.name`, with the names under which the reference may have it."""
    places: dict[int, set[str]] = {}
    values = {}
    for room in ROOMS:
        module = import_module("metastable.analysis.observe" if room == "observe" else f"metastable.{room}".rstrip("."))
        for name in getattr(module, "__all__", None) or vars(module):
            value = getattr(module, name)
            home = getattr(value, "__module__", "") or ""
            if name.startswith("_") or not callable(value) or not home.startswith("metastable"):
                continue
            place = f"{module.__name__}.{name}"
            values[place] = value
            places.setdefault(id(value), {f"{home}.{getattr(value, '__qualname__', name)}"}).add(place)
    found = {}
    for place, value in values.items():
        found[place] = places[id(value)]
        if inspect.isclass(value):
            methods = [
                name for name, item in vars(value).items() if not name.startswith("_") and inspect.isfunction(item)
            ]
            found |= {f"{place}.{name}": {f"{one}.{name}" for one in found[place]} for name in methods}
    return found


def test_every_public_name_is_in_the_reference(site):
    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    names = public_names()
    assert len(names) > 200
    assert sorted(place for place, forms in names.items() if not forms & known) == []


def test_links_of_pages_that_github_shows():
    """README and its neighbours link to files that are there."""
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            picture = target.startswith("docs/images/") and not (ROOT / "docs" / "images").exists()
            assert "://" in target or picture or (ROOT / target).exists(), f"{page.name}: {target}"
