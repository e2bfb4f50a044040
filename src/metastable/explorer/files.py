"""The files of the page, as they lie in the package."""

from __future__ import annotations

import os
from importlib import resources

MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def static_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page: name (with its folder) -> (content, media type)."""
    files = {}
    folders = [(resources.files("metastable.explorer") / "static", "")]
    for folder, prefix in folders:
        for entry in folder.iterdir():
            suffix = os.path.splitext(entry.name)[1]
            if entry.is_dir():
                folders.append((entry, f"{prefix}{entry.name}/"))
            elif suffix in MEDIA:
                files[prefix + entry.name] = (entry.read_bytes(), MEDIA[suffix])
    return files
