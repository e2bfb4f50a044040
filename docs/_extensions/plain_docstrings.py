"""Docstrings of metastable are plain text with `code` in backticks, formulas in indented lines, and simple sections.

This small extension turns them into reStructuredText without asking their authors to escape every bar, star and underscore:
prose is escaped, indented lines become literal blocks, `Args:` sections and `Parameters` headings become definition lists.
"""

from __future__ import annotations

import re
from typing import Any

SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Fields|Returns|Raises|Reference|References|Attributes|Notes?|Examples?):(.*)$"
)
UNDERLINE = re.compile(r"^-{3,}$")
ENTRY = re.compile(r"^(\*{0,2}[\w ,.`'\"*()\[\]|-]{1,80}?)\s?:\s+(.*)$")
CODE = re.compile(r"(`[^`\n]+`)")


def escape(text: str) -> str:
    """Prose with every character that reStructuredText would interpret made literal, except `code`."""
    parts = CODE.split(text)
    cleaned = []
    for place, part in enumerate(parts):
        if not CODE.fullmatch(part):
            cleaned.append(re.sub(r"([\\*|`_])", r"\\\1", part))
            continue
        # An inline literal needs white space or punctuation around it: an escaped space is none, but counts as one.
        before, after = parts[place - 1][-1:], parts[place + 1][:1]
        left = "\\ " if before.isalnum() else ""
        right = "\\ " if after.isalnum() or after == "(" else ""
        cleaned.append(f"{left}``{part[1:-1]}``{right}")
    return "".join(cleaned)


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def convert(lines: list[str]) -> list[str]:
    """reStructuredText for the lines of one docstring."""
    result: list[str] = []
    index = 0
    entries = False
    while index < len(lines):
        line = lines[index]
        following = lines[index + 1] if index + 1 < len(lines) else ""
        section = SECTION.match(line)
        if not line.strip():
            result.append("")
        elif line.startswith(">>>"):
            block = [""]
            while index < len(lines) and lines[index].strip():
                block.append(lines[index])
                index += 1
            result += [*block, ""]
            continue
        elif UNDERLINE.match(following.strip()) and indent_of(line) == 0:
            result += ["", f"**{escape(line.strip())}**", ""]
            entries = True
            index += 1
        elif section:
            rest = section.group(2).strip()
            result += ["", f"**{section.group(1)}.** {escape(rest)}".rstrip(), ""]
            entries = section.group(1) in ("Args", "Arguments", "Parameters", "Fields", "Attributes", "Raises")
            index = consume_section(lines, index + 1, result, entries, bool(rest))
            continue
        elif indent_of(line) >= 2:
            index = consume_literal(lines, index, result)
            continue
        elif line.lstrip().startswith(("- ", "* ")):
            index = consume_bullet(lines, index, result)
            continue
        elif entries and ENTRY.match(line):
            index = consume_entry(lines, index, result)
            continue
        else:
            result.append(escape(line))
        index += 1
    return result


def consume_section(lines: list[str], index: int, result: list[str], entries: bool, inline: bool) -> int:
    """The indented body of `Args:`, `Returns:` and so on; returns the next index."""
    body = []
    while index < len(lines) and (not lines[index].strip() or indent_of(lines[index]) > 0):
        body.append(lines[index])
        index += 1
    if inline:  # `Reference: text` that goes on in unindented lines
        while index < len(lines) and lines[index].strip() and not SECTION.match(lines[index]):
            result.append(escape(lines[index]))
            index += 1
    depth = min((indent_of(line) for line in body if line.strip()), default=0)
    body = [line[depth:] for line in body]
    inner = 0
    while inner < len(body):
        if not body[inner].strip():
            result.append("")
            inner += 1
        elif entries and ENTRY.match(body[inner]):
            inner = consume_entry(body, inner, result)
        else:
            result.append(escape(body[inner].strip()))
            inner += 1
    result.append("")
    return index


def consume_entry(lines: list[str], index: int, result: list[str]) -> int:
    """`name : text` with indented continuation lines, as one item of a list."""
    match = ENTRY.match(lines[index])
    assert match is not None
    text = [match.group(2).strip()]
    index += 1
    while index < len(lines) and lines[index].strip() and indent_of(lines[index]) > 0:
        text.append(lines[index].strip())
        index += 1
    name = match.group(1).strip().replace("`", "")
    result += [f"- ``{name}``: {escape(' '.join(text))}", ""]
    return index


def consume_bullet(lines: list[str], index: int, result: list[str]) -> int:
    """A bullet with its continuation lines, as one line."""
    text = [lines[index].lstrip()[2:]]
    depth = indent_of(lines[index])
    index += 1
    while index < len(lines) and lines[index].strip() and indent_of(lines[index]) > depth:
        text.append(lines[index].strip())
        index += 1
    if result and result[-1] and not result[-1].startswith("- "):
        result.append("")
    result.append(f"- {escape(' '.join(text))}")
    if index < len(lines) and lines[index].strip() and not lines[index].lstrip().startswith(("- ", "* ")):
        result.append("")
    return index


def consume_literal(lines: list[str], index: int, result: list[str]) -> int:
    """Indented lines (formulas, code) as a literal block."""
    block = []
    while index < len(lines) and (not lines[index].strip() or indent_of(lines[index]) >= 2):
        block.append(lines[index])
        index += 1
    while block and not block[-1].strip():
        block.pop()
    result += ["", "::", "", *(f"    {line}" if line.strip() else "" for line in block), ""]
    return index


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sphinx event `autodoc-process-docstring`."""
    if (getattr(obj, "__module__", None) or name).startswith("metastable") or name.startswith("metastable"):
        lines[:] = [*convert(list(lines)), ""]


def setup(app: Any) -> dict:
    """Register the extension."""
    app.connect("autodoc-process-docstring", process)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
