"""Small tables for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def table(title: str, facts: Mapping[str, str]) -> str:
    """A heading and two columns, empty entries left out, everything escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in facts.items()
        if text
    )
    return f"<div><strong>{escape(title)}</strong><table>{rows}</table></div>"
