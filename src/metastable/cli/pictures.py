"""Pictures that commands draw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from metastable import stores
from metastable.errors import StoreError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be drawn, before anything is computed."""
    if path.suffix.lower() not in FORMATS:
        raise StoreError(f"{path} must end in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise StoreError(f"the folder {path.absolute().parent} does not exist; create it before drawing into it")


def write_picture(page: Figure, path: Path) -> None:
    """Write `page` to `path` in the format that its ending names; a picture that is there is replaced by a whole one, or stays."""
    with stores.new_file(path, durable=False) as partial:
        page.savefig(partial, format=path.suffix[1:].lower())
