"""Pictures that commands draw."""

from __future__ import annotations

from pathlib import Path

from metastable.errors import StoreError

FORMATS = (".png", ".pdf", ".svg")


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is computed."""
    if path.suffix.lower() not in FORMATS:
        raise StoreError(f"{path} must end in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise StoreError(f"the folder {path.absolute().parent} does not exist; create it before drawing into it")
