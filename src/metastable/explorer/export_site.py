"""`metastable explore --export site/`: the page as static files that need no server, from any host or from a folder.

The page's modules become one script, the worker travels in it as text, presets are recorded (`export_frames`), all addresses are
relative. What the page computes it computes in the browser, with the engine in `static/engine`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from metastable import __version__, stores
from metastable.errors import InvalidInputError
from metastable.explorer import export_frames, presets
from metastable.explorer.export_bundle import bundle
from metastable.explorer.files import static_files
from metastable.explorer.session import greeting

MARK = "<!-- made by metastable explore --export -->"
"""In the page of an exported site: a folder that has it may be written again."""
WHERE = f"Computed in this browser, with the methods of metastable {__version__}; the presets were recorded with the package."
SERVED_ONLY = ("frame.html", "frame.css", "frame.js", "index.html", "player.css")
"""Files that an exported site has not, or not as they are."""


def export(folder: Path, announce: Callable[[str], None] = print, recorded: Collection[str] | None = None) -> None:
    """Write the site into `folder`, which must be new, empty or an earlier export.

    `recorded`: names of the presets that are recorded (None: all); the others are computed by the visitor's browser.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(f"{folder} is a file; name a folder for the site")
    page = folder / "index.html"
    if (
        folder.is_dir()
        and any(folder.iterdir())
        and not (page.is_file() and MARK in page.read_text(encoding="utf-8", errors="replace"))
    ):
        raise InvalidInputError(f"{folder} has other files in it; name a new folder, or one that was exported before")
    names = {item["name"] for item in presets.catalogue()["items"]}
    unknown = sorted(set(recorded or ()) - names)
    if unknown:
        raise InvalidInputError(f"there is no preset {unknown[0]!r}; the presets are: {', '.join(sorted(names))}")
    files = dict(site_files(names if recorded is None else recorded, announce))
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        stores.write_file(path, body, durable=False)
    frames = sum(len(body) for name, body in files.items() if name.startswith("recorded/"))
    own = sum(len(body) for body in files.values()) - frames
    announce(f"{folder}: the page {own / 1e6:.2f} MB, recorded runs {frames / 1e6:.2f} MB; open {page}")


def site_files(recorded: Collection[str], announce: Callable[[str], None]) -> Iterator[tuple[str, bytes]]:
    """The files of a site: name and content."""
    made: dict[str, bytes] = {}
    for item in presets.catalogue()["items"]:
        if item["name"] not in recorded:
            continue
        state = item["state"]
        announce(f"recording {item['title']} ...")
        texts = [export_frames.record(panel, state["clock"]) for panel in state["panels"]]
        script = f"(globalThis.METASTABLE_RECORDED ??= {{}})[{json.dumps(item['name'])}] = {json.dumps(texts)};\n"
        made[f"recorded/{item['name']}.js"] = script.encode()
    made |= page_files(recorded)
    version = hashlib.sha256(b"".join(made[name] for name in sorted(made))).hexdigest()[:12]
    made["offline.js"] = _offline(version, ["./", *made]).encode()
    yield from made.items()


def _offline(version: str, files: list[str]) -> str:
    """The service worker that keeps these files."""
    text = static_files()["offline.js"][0].decode()
    for empty, name, value in (('VERSION = ""', "VERSION", version), ("FILES = []", "FILES", files)):
        assert text.count(empty) == 1
        text = text.replace(empty, f"{name} = {json.dumps(value)}")
    return text


def page_files(recorded: Collection[str]) -> dict[str, bytes]:
    """The page itself; the runs that it looks for are in files beside it."""
    files = {name: content for name, (content, _) in static_files().items()}
    first = presets.catalogue()["first"]
    made = {name: body for name, body in files.items() if not name.endswith(".js") and name not in SERVED_ONLY}
    made["page.js"] = script(recordings(recorded), "offline.js").encode()
    made["index.html"] = html(
        files["index.html"].decode(), f"recorded/{first}.js" if first in recorded else None
    ).encode()
    return made


def recordings(recorded: Collection[str]) -> list[dict[str, Any]]:
    """What is recorded, as the page looks for it."""
    return [
        {"name": item["name"], "panel": number, "setting": panel, "clock": item["state"]["clock"]}
        for item in presets.catalogue()["items"]
        for number, panel in enumerate(item["state"]["panels"])
        if item["name"] in recorded
    ]


def script(found: list[dict[str, Any]], offline: str | None = None, player: bool = False, **more: Any) -> str:
    """The page's script with what it carries. `player`: it plays what was recorded and asks for nothing else; `more`: fields of its
    greeting."""
    modules = {name: body.decode() for name, (body, _) in static_files().items() if name.endswith(".js")}
    site = {
        "greeting": {**greeting(), "where": WHERE, **more},
        "worker": bundle(modules, "engine/worker.js"),
        "recordings": found,
        "offline": offline,
        "player": player,
    }
    return f"globalThis.METASTABLE = {json.dumps(site)};\n{bundle(modules, 'main.js')}"


def html(page: str, preload: str | None) -> str:
    """The page with relative addresses and one script; `preload`: a recording that is fetched at once."""
    module = re.compile(r'<script type="module" src="/static/main\.js"></script>')
    early = ""
    if preload is not None:  # unless a link asks for something else
        ask = f'document.head.append(Object.assign(document.createElement("script"), {{ src: "{preload}" }}))'
        early = f"<script>location.hash || {ask};</script>\n"
    scripts = f'{early}<script defer src="page.js"></script>'
    page, count = module.subn(scripts, page)
    if count != 1:
        raise InvalidInputError("index.html has another way to load main.js than the export knows")
    return page.replace('"/static/', '"').replace("<!doctype html>", f"<!doctype html>\n{MARK}", 1)
