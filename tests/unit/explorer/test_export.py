"""The exported page: one script out of modules, recordings that give back what was recorded, folders that are left alone."""

from __future__ import annotations

import base64
import errno
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metastable as ms
from metastable.errors import InvalidInputError, StoppedEarlyWarning
from metastable.explorer import export_frames, job, presets, protocol
from metastable.explorer.export_bundle import bundle
from metastable.explorer.export_site import MARK, export, html, recordings
from metastable.explorer.files import static_files

SETTING = {"model": {"dim": 3, "beta": 9.0}, "start": {"tokens": 12, "seed": 2}}
CLOCK = {"until": 20.0, "log": False}


def test_modules_run_after_those_they_import() -> None:
    script = bundle(
        {
            "main.js": 'import { a as first, b } from "./parts/x.js";\nimport {\n  c,\n} from "./y.js";\nuse(first, b, c);\n',
            "parts/x.js": 'import { c } from "../y.js";\nexport const a = c;\nexport function b() {}\nexport class D {}\n',
            "y.js": "export const c = 1;\n",
            "unused.js": "export const nobody = 1;\n",
        },
        "main.js",
    )
    assert [script.index(f"modules['{name}'] =") for name in ("y.js", "parts/x.js", "main.js")] == sorted(
        script.index(f"modules['{name}'] =") for name in ("y.js", "parts/x.js", "main.js")
    )
    assert "const { a: first, b } = modules['parts/x.js'];" in script
    assert "return { a, b };" in script
    assert "nobody" not in script
    assert "export" not in script


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        (
            {"main.js": 'import { a } from "./x.js";\n', "x.js": 'import { b } from "./main.js";\n'},
            "import one another",
        ),
        ({"main.js": 'import { a } from "./gone.js";\n'}, "imports gone.js, which is not there"),
        ({"main.js": "export default 1;\n"}, "cannot be bundled"),
        ({"main.js": "export let a = 1;\n"}, "cannot be bundled"),
        ({"main.js": 'import * as x from "./x.js";\n', "x.js": ""}, "cannot be bundled"),
        ({"main.js": 'const x = await import("./x.js");\n'}, "cannot be bundled"),
        ({"main.js": "await later();\n"}, "cannot be bundled"),
    ],
)
def test_what_cannot_be_bundled_is_refused(modules: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        bundle(modules, "main.js")


def decoded(text: str) -> dict[str, Any]:
    """A recording, read as `static/engine/recorded.js` reads it."""
    body = zlib.decompress(base64.b64decode(text))
    (length,) = struct.unpack_from("<I", body)
    head = json.loads(body[4 : 4 + length])
    at, found = 4 + length, []
    for numbers in (head["tokens"] * head["components"], head["tokens"], head["tokens"]):
        count = head["frames"] * numbers
        low, high = (np.frombuffer(body, np.uint8, count, at + part * count).astype(np.uint16) for part in (0, 1))
        found.append(np.cumsum((low | high << 8).reshape(head["frames"], -1), axis=0, dtype=np.uint16))
        at += 2 * count
    assert at == len(body)
    positions, distance, leaders = found
    return {
        **head,
        "positions": positions.view(np.int16).reshape(head["frames"], head["tokens"], -1) / 32767,
        "distance": np.pi * distance / 65535,
        "leaders": leaders,
    }


@pytest.mark.parametrize("clock", [CLOCK, {"until": 1e5, "log": True}])
def test_a_recording_gives_back_what_was_sent(clock: dict[str, Any]) -> None:
    found = decoded(export_frames.record(SETTING, clock))
    messages: dict[str, Any] = {}
    shown: dict[int, dict[int, Any]] = {protocol.POSITIONS: {}, protocol.LEADERS: {}}
    for message in job.perform({"kind": "simulate", "panel": 0, "run": 0, "setting": SETTING, "clock": clock}):
        if isinstance(message, bytes):
            kind, first, parts = export_frames._unpacked(message)
            shown[kind][first] = parts
        else:
            messages[message["type"]] = message
    for first, (positions, distance) in shown[protocol.POSITIONS].items():
        part = slice(first, first + len(positions))
        assert np.abs(found["positions"][part] - positions).max() <= 0.51 / 32767
        assert np.abs(found["distance"][part] - distance).max() <= 0.51 * np.pi / 65535
    for first, (leaders,) in shown[protocol.LEADERS].items():
        np.testing.assert_array_equal(found["leaders"][first : first + len(leaders)], leaders)
    assert found["messages"]["curves"]["clusters"] == messages["curves"]["clusters"]
    assert found["messages"]["facts"]["centers"] == messages["facts"]["centers"]
    assert found["messages"]["end"]["reached"] == messages["end"]["reached"]
    assert found["messages"]["end"]["engine"] == f"{messages['end']['engine']} (recorded)"


def test_every_panel_of_every_preset_can_be_recorded() -> None:
    names = [item["name"] for item in presets.catalogue()["items"]]
    found = recordings(names)
    assert [item["name"] for item in found if item["panel"] == 0] == names
    assert {item["name"] for item in found if item["panel"] == 1} == {"full-causal", "norms", "temperature"}


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InvalidInputError, match="has other files in it"):
        export(tmp_path, lambda text: None, recorded=())
    with pytest.raises(InvalidInputError, match="is a file"):
        export(tmp_path / "thesis.tex", lambda text: None, recorded=())
    with pytest.raises(InvalidInputError, match="there is no preset 'sphinx'"):
        export(tmp_path / "site", lambda text: None, recorded=("sphinx",))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_earlier_export_is_written_again(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        export(tmp_path / "site", said.append, recorded=())
    assert "recorded runs 0.00 MB" in said[-1]
    assert MARK in (tmp_path / "site" / "index.html").read_text()


def test_a_page_that_loads_otherwise_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="another way to load"):
        html("<!doctype html><script src='other.js'></script>", None)


def test_the_page_asks_for_nothing_that_an_exported_one_has_not() -> None:
    """Addresses of the server are known to the transport and the enlarged chart alone."""
    for name, (body, _) in static_files().items():
        if name.endswith(".js") and name not in ("socket.js", "enlarge.js", "frame.js", "offline.js"):
            assert not re.search(rb"""["'`]/[a-z]|\bfetch\(""", body), name


RUN = ms.Attention(dim=2, beta=9.0)


def test_runs_that_make_no_page_say_why(tmp_path: Path) -> None:
    start = ms.sphere.uniform(5, dim=2, seed=0)
    run = ms.simulate(RUN, start, until=1.0)
    with pytest.raises(InvalidInputError, match="frames must be"):
        run.to_html(tmp_path / "run.html", frames=1)
    with pytest.raises(InvalidInputError, match="is too large; use frames=4000000"):
        run.to_html(tmp_path / "run.html", frames=10**9)
    with pytest.raises(InvalidInputError, match="delta must be"):
        run.to_html(tmp_path / "run.html", delta=0.0)
    with pytest.warns(StoppedEarlyWarning):
        still = ms.simulate(RUN, start, times=[50.0], max_steps=1)
    with pytest.raises(InvalidInputError, match="only its start"):
        still.to_html(tmp_path / "run.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "run",
    [
        lambda: ms.simulate(RUN, ms.sphere.uniform(6, dim=2, seed=0), until=1e6),
        lambda: ms.simulate(RUN.replace(noise=0.1), ms.sphere.uniform(6, dim=2, seed=0), until=1.0, seed=1),
        lambda: ms.simulate(RUN, ms.sphere.uniform(6, dim=2, seed=0), until=1.0, method="layers", step=0.1),
        lambda: ms.simulate(
            ms.Schedule(((0.0, RUN), (1.0, RUN.replace(beta=2.0)))), ms.sphere.uniform(6, dim=2, seed=0), until=2.0
        ),
        lambda: ms.simulate(RUN.replace(norm=ms.PreLN()), ms.sphere.uniform(6, dim=2, seed=0), times=[0.5, 2.0]),
        lambda: ms.simulate(
            RUN.replace(frozen=ms.Frozen([[1.0, 0.0]])), ms.sphere.uniform(6, dim=2, seed=0), until=5.0
        ),
    ],
)
def test_every_kind_of_run_becomes_a_page(run: Any, tmp_path: Path) -> None:
    made = run()
    made.to_html(tmp_path / "run.html", frames=20)
    page = (tmp_path / "run.html").read_text()
    text = page.split('METASTABLE_RECORDED = {"run": ["')[1].split('"')[0]
    found = decoded(text.replace("<\\/", "</"))
    assert found["messages"]["begin"]["times"][0] == 0.0
    assert found["messages"]["begin"]["times"][-1] == made.end
    assert found["frames"] == len(found["messages"]["begin"]["times"]) <= 20
    np.testing.assert_allclose(found["positions"][-1], made.final, atol=2e-5)
    np.testing.assert_allclose(found["positions"][0], made.start, atol=2e-5)


def test_the_command_line_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from metastable.cli.app import build
    from metastable.explorer import export_site

    whole = export_site.export
    monkeypatch.setattr(export_site, "export", lambda folder, announce: whole(folder, announce, recorded=()))
    arguments = ["explore", "--export", str(tmp_path / "site")]
    done = CliRunner().invoke(build(arguments), arguments)
    assert done.exit_code == 0, done.output
    assert "open" in done.output
    assert (tmp_path / "site" / "page.js").is_file()


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, half a page stood there after a full disk or a kill, and the one that was there was gone."""
    run = ms.simulate(ms.Attention(dim=2, beta=9.0), ms.sphere.uniform(4, dim=2, seed=0), until=2.0)
    page = tmp_path / "run.html"
    run.to_html(page, frames=5)
    old = page.read_bytes()

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(Path, "write_text", lambda self, text, **_: full(self, text.encode()))
    with pytest.raises(ms.errors.StoreFullError, match="no room left"):
        run.to_html(page, frames=7)
    assert page.read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]
