"""The code of the how-to pages runs, in the order of the page."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


RUN = ["continue", "observables", "starts", "pairs", "keep", "models", "figures", "predict-merges"]
WRITTEN = re.compile(r"""(?:save|animate|savefig|save_ensemble)\([^)"'\n]*["']([\w./-]+)["']""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all pages, as somebody would have who tries them one after the other."""
    return tmp_path_factory.mktemp("pages")


@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    blocks = CODE.findall(text)
    assert blocks
    names: dict = {"__name__": page}
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), names)


def test_no_two_pages_write_the_same_file():
    """So they run in any order in one folder: `keep` after `continue` was refused, as both saved run.zarr."""
    writers: dict[str, str] = {}
    for page in sorted(PAGES.glob("*.md")):
        for block in CODE.findall(page.read_text(encoding="utf-8")):
            for name in set(WRITTEN.findall(block)):
                assert writers.setdefault(name, page.stem) == page.stem, f"{name} is written by {writers[name]}, too"
    assert {"kept.zarr", "run.zarr", "stats.zarr", "ball"} <= set(writers)


def test_every_page_is_listed():
    listed = (PAGES / "index.md").read_text(encoding="utf-8")
    for page in PAGES.glob("*.md"):
        assert page.stem == "index" or page.stem in listed
