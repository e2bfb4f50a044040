"""The code of the how-to pages runs, in the order of the page."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["continue", "observables", "starts", "pairs", "keep", "models", "../densities"])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    blocks = CODE.findall(text)
    assert blocks
    names: dict = {"__name__": page}
    for block in blocks:
        exec(compile(block, f"{page}.md", "exec"), names)


def test_every_page_is_listed():
    listed = (PAGES / "index.md").read_text(encoding="utf-8")
    for page in PAGES.glob("*.md"):
        assert page.stem == "index" or page.stem in listed
