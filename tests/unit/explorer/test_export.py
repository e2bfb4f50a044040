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
    made.to_html(tmp_path / "run.html", frames=20, delta=1.0, radius=0.1)
    page = (tmp_path / "run.html").read_text()
    text = page.split('METASTABLE_RECORDED = {"run": ["')[1].split('"')[0]
    found = decoded(text.replace("<\\/", "</"))
    assert found["messages"]["begin"]["times"][0] == 0.0
    assert found["messages"]["begin"]["times"][-1] == made.end
    assert found["frames"] == len(found["messages"]["begin"]["times"]) <= 20
    np.testing.assert_allclose(found["positions"][-1], made.final, atol=2e-5)
    np.testing.assert_allclose(found["positions"][0], made.start, atol=2e-5)


def told(run: Any, folder: Path, **options: Any) -> dict[str, Any]:
    """The messages of the page of a run."""
    run.to_html(folder / "run.html", **options)
    text = (folder / "run.html").read_text().split('METASTABLE_RECORDED = {"run": ["')[1].split('"')[0]
    return decoded(text.replace("<\\/", "</"))["messages"]


def sphere_model(beta: float, **fields: Any) -> ms.Attention:
    return ms.Attention(dim=3, beta=beta, **fields)


ON_SPHERE = ms.sphere.uniform(30, dim=3, seed=2)
ANCHORS = ms.sphere.uniform(3, dim=3, seed=5)
LENGTHS = {"delta": 0.8, "radius": 0.1}


@pytest.mark.parametrize(
    "models",
    [
        ms.Schedule([(0.0, sphere_model(4.0)), (11.0, sphere_model(25.0))]),
        [sphere_model(4.0)] * 11 + [sphere_model(25.0)],
    ],
)
def test_a_page_has_all_models_of_its_run(models: Any, tmp_path: Path) -> None:
    """It had the last one, from the start on: the first eleven twelfths of this run are beta = 4."""
    run = ms.simulate(models, ON_SPHERE, until=12.0 if isinstance(models, ms.Schedule) else None)
    messages = told(run, tmp_path, **LENGTHS)
    first, second = messages["view"]["pieces"]
    assert (first["from"], second["from"]) == (0.0, 11.0)
    assert (first["model"]["beta"], second["model"]["beta"]) == (4.0, 25.0)
    assert first["heading"].startswith("n = 30 · d = 3 · β = 4 · causal · model 1 of 2")
    assert second["heading"].startswith("n = 30 · d = 3 · β = 25 · causal · model 2 of 2")
    assert messages["facts"]["law"] is None  # the law of one beta is not that of the run


def test_frozen_tokens_and_spectra_are_those_of_their_time(tmp_path: Path) -> None:
    late = sphere_model(4.0, value=-np.eye(3), frozen=ms.Frozen(ANCHORS))
    run = ms.simulate(ms.Schedule([(0.0, sphere_model(4.0)), (11.0, late)]), ON_SPHERE, until=12.0)
    first, second = told(run, tmp_path)["view"]["pieces"]
    assert first["frozen"] is None
    np.testing.assert_allclose(second["frozen"], ANCHORS)
    assert (first["total"], second["total"]) == ([[1.0, 0.0]] * 3, [[-1.0, 0.0]] * 3)
    assert (first["eigenvalue"], second["eigenvalue"]) == ([1.0, 0.0], [-1.0, 0.0])
    assert "V = I · none frozen" in first["heading"]
    assert "V = -I · 3 frozen tokens" in second["heading"]


def test_the_energy_is_that_of_the_model_at_the_time(tmp_path: Path) -> None:
    """Under the causal mask tokens climb none."""
    full = sphere_model(4.0, mask=ms.Full())
    run = ms.simulate(ms.Schedule([(0.0, sphere_model(4.0)), (1.0, full)]), ON_SPHERE, until=2.0)
    messages = told(run, tmp_path, frames=5)
    energy = messages["curves"]["energy"]
    top = ms.analysis.attention_energy(full, np.repeat(ON_SPHERE[:1], 30, axis=0))
    assert energy[:2] == [None, None]
    np.testing.assert_allclose(
        energy[2:], [ms.analysis.attention_energy(full, run.at(t)) / top for t in (1.0, 1.5, 2.0)]
    )


def test_models_that_are_equal_are_one(tmp_path: Path) -> None:
    run = ms.simulate([sphere_model(4.0)] * 3 + [sphere_model(4.0, mask=ms.Full())] * 2, ON_SPHERE)
    assert [piece["from"] for piece in told(run, tmp_path)["view"]["pieces"]] == [0.0, 3.0]


def test_no_default_length_fits_models_of_different_beta(tmp_path: Path) -> None:
    """The page took those of the last one for all of the run, where `merge_tree` refuses."""
    run = ms.simulate(ms.Schedule([(0.0, sphere_model(4.0)), (1.0, sphere_model(25.0))]), ON_SPHERE, until=2.0)
    with pytest.raises(InvalidInputError, match=r"different separations of centers, 0.8 to 2; .* delta=0.8"):
        run.to_html(tmp_path / "run.html", radius=0.1)
    with pytest.raises(InvalidInputError, match=r"different radii of clusters, 0.1 to 0.25; .* radius=0.1"):
        run.to_html(tmp_path / "run.html", delta=0.8)
    assert not list(tmp_path.iterdir())


def test_runs_without_dense_output_are_held(tmp_path: Path) -> None:
    dense = ms.simulate(RUN, ms.sphere.uniform(6, dim=2, seed=0), until=10.0)
    chosen = ms.simulate(RUN, ms.sphere.uniform(6, dim=2, seed=0), times=[20.0, 40.0])
    assert not told(dense, tmp_path)["begin"]["held"]
    assert told(dense, tmp_path)["view"]["pieces"][0]["heading"] == "n = 6 · d = 2 · β = 9 · causal"
    messages = told(chosen, tmp_path)
    assert messages["begin"]["held"]
    assert messages["begin"]["times"] == [0.0, 20.0, 40.0]
    assert messages["view"]["pieces"][0]["heading"].endswith(" · 3 saved states")
    further = dense.extend(times=[50.0, 1e3])
    assert told(further, tmp_path)["begin"]["held"]
    assert told(further, tmp_path, frames=5)["view"]["pieces"][0]["heading"].endswith(
        f" · 5 of {len(further.times)} saved states"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"query": np.diag([1.0, 2.0])}, "own Q, K"),
        ({"value": [[0.0, 1.0], [2.0, 0.0]]}, "own V"),
        ({"masses": [1.0, 2.0, 1.0, 1.0, 1.0, 1.0]}, "unequal masses"),
        ({"bias": ms.ALiBi(0.1)}, "ALiBi(0.1)"),
        (
            {"feedforward": ms.FeedForward(np.eye(2), np.zeros(2), np.eye(2), np.zeros(2), "relu")},
            "feed-forward layer",
        ),
        ({"mask": ms.Causal(include_self=False)}, "causal without self"),
        ({"mask": ms.Window(4)}, "window(4)"),
        ({"norm": ms.MixLN(4.0)}, "MixLN(4)"),
    ],
)
def test_headings_say_what_titles_say(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    run = ms.simulate(RUN.replace(**fields), ms.sphere.uniform(6, dim=2, seed=0), until=1.0)
    assert words in told(run, tmp_path, frames=3)["view"]["pieces"][0]["heading"].split(" · ")


def test_attention_is_drawn_whatever_it_does_not_depend_on(tmp_path: Path) -> None:
    """The browser has no feed-forward layers, and left the chart of such a run empty."""
    layer = ms.FeedForward(np.eye(2), np.zeros(2), np.eye(2), np.zeros(2), "relu")
    run = ms.simulate(RUN.replace(feedforward=layer, norm=ms.PreLN()), ms.sphere.uniform(6, dim=2, seed=0), until=1.0)
    (piece,) = told(run, tmp_path, frames=3)["view"]["pieces"]
    assert piece["model"] == {"dim": 2, "beta": 9.0}
    heads = (ms.Head(beta=3.0), ms.Head(beta=9.0, value=[[1.0, 2.0]], output=[[1.0], [0.0]]))
    run = ms.simulate(ms.Attention(dim=2, heads=heads), ms.sphere.uniform(6, dim=2, seed=0), until=1.0)
    (piece,) = told(run, tmp_path, frames=3)["view"]["pieces"]
    assert piece["model"]["heads"] == [{"beta": 3.0}, {"beta": 9.0}]
    assert piece["heads"] == 2


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
