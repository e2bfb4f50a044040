"""Every code block of the README and of the docs runs, in the order of its page; and so do the examples of docstrings.

What is not run is said on the page, with the reason, and listed by `test_what_is_not_run` (`pytest -s` shows the list).
"""

import doctest
import importlib
import re
import tomllib
from pathlib import Path

import matplotlib as mpl
import pytest

import metastable
from tests.docs.blocks import (
    FILE_NAME,
    ROOT,
    Block,
    blocks_of,
    call,
    check_install,
    commands,
    make_targets,
    pages,
)

SHELL = ("bash", "console")
LANGUAGES = (*SHELL, "python", "toml", "text")
PAGES = [page for page in pages() if any(block.language != "text" for block in blocks_of(page))]
SOURCE = Path(metastable.__file__).parent
EXAMPLES = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8") and path.name != "__main__.py"
]


def try_shell(block: Block, folder: Path) -> None:
    """Commands of ours run; `make` and `pip` would do too much here, but what they name must exist."""
    for command in commands(block):
        program, *words = command.split()
        if program == "metastable":
            call(command, folder)
        elif program == "make":
            assert set(words) <= make_targets(), f"{block.place}: {command}"
        else:
            assert command.startswith("pip install "), f"{block.place}: say why {command!r} is not run"
            check_install(command)


def try_toml(block: Block, folder: Path) -> None:
    """A file that says its name is written for the commands that follow; others must at least be TOML."""
    tomllib.loads(block.text)
    name = FILE_NAME.match(block.text.splitlines()[0])
    if name:
        (folder / name.group(1)).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, request):
    import matplotlib.pyplot as plt

    if "smollm2" in page.read_text(encoding="utf-8"):
        request.getfixturevalue("smollm2_cache")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    with mpl.rc_context({"backend": "agg"}):
        for block in blocks_of(page):
            assert block.language in LANGUAGES, f"{block.place}: say the language of the block, not {block.language!r}"
            if block.reason is not None or block.language == "text":
                continue
            if block.language == "python":
                exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
            elif block.language == "toml":
                try_toml(block, tmp_path)
            else:
                try_shell(block, tmp_path)
        plt.close("all")


def test_what_is_not_run():
    """The list of blocks that are not run is short, and each says why."""
    untried = [block for page in pages() for block in blocks_of(page) if block.reason is not None]
    print("\nblocks that the tests do not run:", *(f"{block.place}: {block.reason}" for block in untried), sep="\n  ")
    shell = [block for page in pages() for block in blocks_of(page) if block.language in SHELL and block.reason is None]
    named = sorted({line for block in shell for line in commands(block) if not line.startswith("metastable ")})
    print("commands of which only the names are checked (they install, or run everything):", *named, sep="\n  ")
    assert all(block.language in LANGUAGES for block in untried)
    assert len(untried) <= 6


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples_of_docstrings(path):
    parts = ["metastable", *path.relative_to(SOURCE).with_suffix("").parts]
    module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    assert "doctest: +SKIP" not in path.read_text(encoding="utf-8")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_block_that_fails_is_noticed(tmp_path):
    """The reader of pages sees blocks, languages and reasons as they are."""
    page = ROOT / "page.md"
    text = """Words.

```python
x = 1
```

Not run by the tests (needs a GPU):

```bash
make all  # all of it
```

```{image} a.png
```
"""
    path = tmp_path / "page.md"
    path.write_text(text)
    found = list(blocks_of(path))
    assert [(block.line, block.language, block.reason) for block in found] == [
        (4, "python", None),
        (10, "bash", "needs a GPU"),
    ]
    assert commands(found[1]) == ["make all"]
    with pytest.raises(AssertionError):
        try_shell(Block(page, 1, "bash", "make no-such-target\n", None), tmp_path)
    with pytest.raises(AssertionError):
        try_shell(Block(page, 1, "bash", 'pip install "metastable[no-such-extra]"\n', None), tmp_path)
    with pytest.raises(AssertionError):
        try_shell(Block(page, 1, "console", "$ metastable simulat\n", None), tmp_path)


def test_workflows_call_what_make_can_do():
    """Everything that runs elsewhere is a target that runs here."""
    called = [
        target
        for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
        for target in re.findall(r"\bmake ([\w-]+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert {"test", "test-core", "test-lowest", "test-arm", "docs", "package"} <= set(called)
    assert set(called) <= make_targets()


def test_every_how_to_page_is_listed():
    folder = ROOT / "docs" / "how-to"
    listed = (folder / "index.md").read_text(encoding="utf-8")
    for page in folder.glob("*.md"):
        assert page.stem == "index" or page.stem in listed


WRITTEN = re.compile(r"""(?:save|animate|savefig|save_ensemble)\([^)"'\n]*["']([\w./-]+)["']""")


def test_no_two_how_tos_write_the_same_file():
    """So they run in any order in one folder: `keep` after `continue` was refused, as both saved run.zarr."""
    writers: dict[str, str] = {}
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md")):
        for block in blocks_of(page):
            for name in set(WRITTEN.findall(block.text)):
                assert writers.setdefault(name, page.stem) == page.stem, f"{name} is written by {writers[name]}, too"
    assert {"kept.zarr", "run.zarr", "stats.zarr", "ball"} <= set(writers)
