"""Code blocks of Markdown pages, and how each kind of them is tried.

A block that cannot run in the tests says so, visibly, in the line before it: `Not run by the tests (reason):`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^ {0,3}```(.*)$")
UNTRIED = re.compile(r"^Not run by the tests \((.+)\):$")
FILE_NAME = re.compile(r"^# ([\w-]+\.toml)$")


@dataclass(frozen=True)
class Block:
    """One block: its page, the number of its first line, its language, its text, and why it is not run (or None)."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page that people write: those of the gallery are made from scripts, which have tests of their own."""
    docs = [path for path in sorted((ROOT / "docs").rglob("*.md")) if not {"_build", "gallery"} & set(path.parts)]
    return [*sorted(ROOT.glob("*.md")), *docs]


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page in their order, directives of the documentation left out."""
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    before = ""
    while number < len(lines):
        opened = FENCE.match(lines[number])
        if not opened:
            before = lines[number] if lines[number].strip() else before
            number += 1
            continue
        end = next(k for k in range(number + 1, len(lines)) if FENCE.match(lines[k]))
        said = UNTRIED.match(before.strip())
        if not opened.group(1).startswith("{"):
            text = "\n".join(lines[number + 1 : end]) + "\n"
            yield Block(page, number + 2, opened.group(1).strip(), text, said.group(1) if said else None)
        before, number = "", end + 1


def commands(block: Block) -> list[str]:
    """The commands of a block for a shell: all its lines, or those behind a `$`; comments are gone."""
    lines = [line.strip() for line in block.text.splitlines()]
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    found = [" ".join(shlex.split(line, comments=True)) for line in lines]
    return [line for line in found if line]


def make_targets() -> set[str]:
    """Targets of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", text, re.MULTILINE))


def extras() -> set[str]:
    """Names of the optional dependencies."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return set(tomllib.load(file)["project"]["optional-dependencies"])


def check_install(command: str) -> None:
    """`pip install` is not run, but what it names exists: extras, and packages that the Makefile installs, too."""
    bundled = re.search(r"^MODELS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert bundled is not None
    known = {"metastable", ".", "torch", *bundled.group(1).split()}
    for word in shlex.split(command)[2:]:
        if word.startswith("--"):
            continue
        name, _, rest = word.partition("[")
        assert name in known, f"pip install {word}: nobody knows this package"
        assert set(filter(None, rest.rstrip("]").split(","))) <= extras(), f"pip install {word}: no such extra"


def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "140", "NO_COLOR": "1", "TERM": "dumb", "MPLBACKEND": "agg"}


def call(command: str, folder: Path) -> None:
    """Run `metastable ...` in a process of its own."""
    words = shlex.split(command)
    arguments = [sys.executable, "-m", *words]
    if words[1] == "explore" and "--export" not in words:
        serve([*arguments, "--no-browser", "--port", "0"], folder)
        return
    done = subprocess.run(arguments, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def serve(arguments: list[str], folder: Path) -> None:
    """Start the explorer, get its page, and stop it by Ctrl-C."""
    server = subprocess.Popen(arguments, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(address.group(0), timeout=60) as answer:
            assert b"<html" in answer.read(2000)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
