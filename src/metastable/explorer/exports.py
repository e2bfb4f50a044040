"""Downloads of a run: CSV, a zarr store (zipped), a film, or the setting as TOML for `metastable simulate`."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.explorer import measure
from metastable.explorer.setting import Clock, Setting

if TYPE_CHECKING:
    from metastable.run import Run

FORMATS = {
    "csv": "text/csv; charset=utf-8",
    "zarr": "application/zip",
    "mp4": "video/mp4",
    "toml": "application/toml; charset=utf-8",
}
"""What can be downloaded, and its media type."""
PIECE = 2**20
"""Bytes per message."""
CSV_ROWS = 250_000
"""A table has at most about this many rows; with more tokens it has fewer moments."""
FILM_SECONDS, FILM_RATE = 6.0, 24

Message = dict[str, Any] | bytes


def export(kind: str, setting: Setting, clock: Clock, run: Callable[[], Run]) -> Iterator[Message]:
    """A file as messages: its name and media type first, then its bytes."""
    name, body = _MAKERS[kind](setting, clock, run)
    media = "application/zip" if name.endswith(".zip") else FORMATS[kind]
    yield {"type": "file", "name": name, "media": media, "size": len(body)}
    for first in range(0, len(body), PIECE):
        yield body[first : first + PIECE]


def _csv(setting: Setting, clock: Clock, run: Callable[[], Run]) -> tuple[str, bytes]:
    """One row per moment and token: time, token (from 0), coordinates, first token of its cluster."""
    from metastable.explorer.job import states_at

    result = run()
    times = setting.times(clock)
    stride = max(1, int(np.ceil(len(times) * setting.start.total / CSV_ROWS)))
    states = states_at(result, times)
    kept = np.unique(np.append(np.arange(0, len(states), stride), len(states) - 1))
    leaders = measure.leaders(states[kept], setting.cluster_radius)
    frames, tokens, dim = len(kept), states.shape[1], states.shape[2]
    columns = np.column_stack(
        [
            np.repeat(times[kept], tokens),
            np.tile(np.arange(tokens), frames),
            states[kept].reshape(-1, dim),
            leaders.ravel(),
        ]
    )
    head = ",".join(["time", "token", *(f"x{axis + 1}" for axis in range(dim)), "cluster"])
    text = io.StringIO()
    np.savetxt(text, columns, fmt=["%.17g", "%d", *["%.17g"] * dim, "%d"], delimiter=",", header=head, comments="")
    return "run.csv", text.getvalue().encode()


def _zarr(setting: Setting, clock: Clock, run: Callable[[], Run]) -> tuple[str, bytes]:
    """The run as `Run.save` writes it; unpack it and open it with `metastable.load("run.zarr")`."""
    with tempfile.TemporaryDirectory(prefix="metastable-") as folder:
        store = Path(folder) / "run.zarr"
        run().save(store)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(store.rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(folder).as_posix())
    return "run.zarr.zip", packed.getvalue()


def _mp4(setting: Setting, clock: Clock, run: Callable[[], Run]) -> tuple[str, bytes]:
    """The film of `Run.animate`."""
    with tempfile.TemporaryDirectory(prefix="metastable-") as folder:
        path = Path(folder) / "run.mp4"
        run().animate(
            path,
            seconds=FILM_SECONDS,
            frames_per_second=FILM_RATE,
            log=clock.log,
            delta=setting.separation,
            radius=setting.cluster_radius,
            progress=False,
        )
        return "run.mp4", path.read_bytes()


def _toml(setting: Setting, clock: Clock, run: Callable[[], Run]) -> tuple[str, bytes]:
    """A file for `metastable simulate`; with its tokens beside it (as a zip) unless they are uniform."""
    import tomli_w

    start = setting.start
    by_hand = start.by_hand or start.kind != "uniform"
    tokens: dict[str, Any] = {"file": "start.csv"} if by_hand else {"tokens": start.tokens, "seed": start.seed}
    options: dict[str, Any] = {"until": clock.until}
    if setting.step is not None:
        options |= {"step": setting.step, "method": "sde"}
    else:
        options["max_steps"] = setting.options(clock)["max_steps"]
    text = "# metastable simulate run.toml\n" + tomli_w.dumps(
        {"model": setting.model.to_dict(), "start": tokens, "run": options}
    )
    if not by_hand:
        return "run.toml", text.encode()
    rows = io.StringIO()
    np.savetxt(rows, setting.positions, fmt="%.17g", delimiter=",")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run.toml", text)
        archive.writestr("start.csv", rows.getvalue())
    return "run.toml.zip", packed.getvalue()


_MAKERS: dict[str, Callable[[Setting, Clock, Callable[[], Any]], tuple[str, bytes]]] = {
    "csv": _csv,
    "zarr": _zarr,
    "mp4": _mp4,
    "toml": _toml,
}
assert set(_MAKERS) == set(FORMATS)
