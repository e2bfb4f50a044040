"""Pictures that commands draw, and what is asked of files before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from metastable import stores
from metastable.errors import StoreError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is computed."""
    check_file(path, FORMATS, "drawing")


def check_file(path: Path, formats: Sequence[str], doing: str) -> None:
    """Refuse a file of another format, or in a folder that is not there."""
    if path.suffix.lower() not in formats:
        raise StoreError(f"{path} must end in {', '.join(formats)}")
    if not path.absolute().parent.is_dir():
        raise StoreError(f"the folder {path.absolute().parent} does not exist; create it before {doing} into it")


def write_picture(page: Figure, path: Path) -> None:
    """Write `page` to `path` in the format that its ending names; a picture that is there is replaced by a whole one, or stays."""
    with stores.new_file(path, durable=False) as partial:
        page.savefig(partial, format=path.suffix[1:].lower())
