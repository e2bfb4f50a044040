"""`Run.to_html`: any run as one page with the explorer's player, that needs nothing but a browser."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from metastable import __version__, _checks, stores
from metastable._checks import FloatArray
from metastable._words import counted
from metastable.analysis.scales import center_separation_of_run, cluster_radius_of_run
from metastable.errors import InvalidInputError
from metastable.explorer import export_frames, export_models, job, limits, measure, outcome
from metastable.explorer.export_models import Stretch
from metastable.explorer.export_site import script
from metastable.explorer.files import static_files
from metastable.model import Attention
from metastable.run import Run

NAME = "run"
"""What the page calls its only preset."""
LONG = 1000.0
"""Runs that go further are shown in logarithmic time unless told otherwise."""
MOST_TOKENS = 2**16 - 1
MOST_NUMBERS = 2 * 10**7
"""Frames times tokens: some twenty megabytes of page."""


@dataclass(frozen=True)
class Shown:
    """A run as `measure` and `outcome` look at settings: the attributes of a `Setting` that they read. Its `model` is the last one."""

    model: Attention
    positions: FloatArray
    separation: float
    cluster_radius: float
    projection: str

    @property
    def start(self) -> Any:
        return SimpleNamespace(total=len(self.positions))

    @property
    def beta(self) -> float:
        return max(head.beta for head in self.model.all_heads)


def write(
    run: Run,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    text: str = "",
    frames: int = limits.FRAMES,
    log: bool | None = None,
    delta: float | None = None,
    radius: float | None = None,
) -> None:
    """See `Run.to_html`."""
    target = Path(_checks.path(path))
    stores.check_folder(target)
    if target.is_dir():
        raise InvalidInputError(f"{target} is a folder; give the name of a file, for example {target / 'run.html'}")
    frames = _checks.count(frames, "frames", 2)
    tokens = len(run.start)
    if tokens > MOST_TOKENS or frames * tokens > MOST_NUMBERS:
        raise InvalidInputError(
            f"a page with {frames} frames of {tokens} tokens is too large; use frames={max(2, MOST_NUMBERS // tokens)}, or "
            f"run.animate(path), which makes a film"
            + ("" if tokens <= MOST_TOKENS else f" (pages show up to {MOST_TOKENS} tokens)")
        )
    if not run.end > 0:
        raise InvalidInputError("this run has only its start; a page needs a run that moves")
    log = run.end > LONG if log is None else _checks.flag(log, "log")
    times, states = _moments(run, frames, log)
    models = export_models.stretches(run, times)
    shown = Shown(
        models[-1].model,
        np.asarray(run.start),
        center_separation_of_run(run) if delta is None else _checks.number(delta, "delta", 0.0, np.pi, strict=True),
        cluster_radius_of_run(run) if radius is None else _checks.number(radius, "radius", 0.0, np.pi, strict=True),
        "auto" if len(models) == 1 else "principal",  # several models lead to several spaces
    )
    player = Player(run, shown, models, times, states)
    recording = export_frames.recording(player.begin(), player.messages())
    page = _page(player, recording, {"until": float(times[-1]), "log": bool(log)}, str(title), str(text))
    stores.write_file(target, page.encode())


def _moments(run: Run, frames: int, log: bool) -> tuple[FloatArray, FloatArray]:
    """Times from 0 to the end, and the states then: from the dense output, or as many of the saved ones as are wanted."""
    if run.dense is not None:
        grid = np.linspace(0.0, run.end, frames)
        if log:
            grid = np.concatenate([[0.0], np.geomspace(min(0.01, run.end / 100), run.end, frames - 1)])
            grid[-1] = run.end
        return grid, np.stack([run.at(float(t)) for t in grid])
    times, states = np.asarray(run.times), np.asarray(run.states)
    if times[0] > 0:
        times, states = np.concatenate([[0.0], times]), np.concatenate([run.start[None], states])
    kept = np.unique(np.linspace(0, len(times) - 1, min(frames, len(times))).round().astype(int))
    return times[kept], states[kept]


@dataclass(frozen=True)
class Player:
    """A run on its page: how it is looked at (`Shown`), its moments, and the models that hold at them."""

    run: Run
    shown: Any
    models: list[Stretch]
    times: FloatArray
    states: FloatArray

    @property
    def held(self) -> bool:
        """True where nobody knows what was between the moments: each is held until the next."""
        return self.run.dense is None

    @cached_property
    def view(self) -> measure.View:
        view = measure.view_of(self.shown, self.states)
        assert view is not None
        return view

    @cached_property
    def pieces(self) -> list[dict[str, Any]]:
        return export_models.pieces(self.models, self.view, len(self.shown.positions), self._source())

    def begin(self) -> dict[str, Any]:
        dim = self.shown.model.dim
        return {
            "times": self.times.tolist(),
            "held": self.held,
            "tokens": len(self.shown.positions),
            "dim": dim,
            "components": min(dim, 3),
            "delta": self.shown.separation,
            "radius": self.shown.cluster_radius,
        }

    def messages(self) -> Iterator[dict[str, Any] | bytes]:
        """What the explorer's server would say about the run (`job`), and of several models what is true of each."""
        shown, times, states = self.shown, self.times, self.states
        tag = {"panel": 0, "run": 0}
        renyi, strong = measure.centers(shown)
        facts = outcome.facts(shown, times, renyi, strong, self.models[-1].begin)
        yield {"type": "facts", **facts, "law": facts["law"] if len(self.models) == 1 else None}
        yield {"type": "view", "name": self.view.name, "pieces": self.pieces}
        yield from job.positions(states, self.view, tag, 0)
        leaders = measure.leaders(states, shown.cluster_radius)
        yield from job.leader_frames(leaders, tag)
        curves = outcome.curves(shown, states, leaders, renyi, strong)
        energy = curves["energy"] if len(self.models) == 1 else self._energy()
        yield {"type": "curves", **curves, "energy": energy, "merges": self._merges()}
        ending = outcome.ending(shown, self.run, states, times, leaders)
        yield {"type": "end", "frames": len(states), **ending, "seconds": None, "changed": None}

    def _source(self) -> list[str]:
        """What the page says of the saved states that are its moments; nothing where there is dense output."""
        if not self.held:
            return []
        there = len(self.run.times) + int(self.run.times[0] > 0)
        return [
            f"{len(self.times)} of {there} saved states" if len(self.times) < there else counted(there, "saved state")
        ]

    def _energy(self) -> list[float | None] | None:
        """The energy of the model that holds at each moment; None where it has none, or no model has."""
        number, found = export_models.numbers_at(self.models, self.times), []
        for index, item in enumerate(self.models):
            states = self.states[number == index]
            energy = measure.energy(replace(self.shown, model=item.model), states) if len(states) else []
            found += [None] * len(states) if energy is None else energy
        return found if any(value is not None for value in found) else None

    def _merges(self) -> list[dict[str, Any]]:
        if any(item.model.noise > 0 for item in self.models):
            return []
        return outcome.merges(self.shown, self.states, self.times)


def _page(player: Player, recording: str, clock: dict[str, Any], title: str, text: str) -> str:
    """The page with everything inside."""
    run, shown = player.run, player.shown
    setting = {"model": {"dim": shown.model.dim, "beta": shown.beta}, "start": {"tokens": len(shown.positions)}}
    state = {"panels": [setting], "clock": clock}
    words = ". ".join(part.rstrip(".") for part in (title, text) if part) + ("." if title or text else "")
    preset = {"name": NAME, "group": "", "title": title or "A run", "text": words, "state": state}
    where = f"A run of metastable {__version__}: {run.method} on {run.engine}. This page plays what was computed."
    more = {"presets": {"first": NAME, "items": [preset]}, "where": where}
    source = script([{"name": NAME, "panel": 0, "setting": setting, "clock": clock}], player=True, **more)
    files = {name: body.decode() for name, (body, _) in static_files().items()}
    classes = "player no-attention" if player.pieces[0]["model"] is None else "player"
    icon = base64.b64encode(files["favicon.svg"].encode()).decode()
    recorded = f"globalThis.METASTABLE_RECORDED = {json.dumps({NAME: [recording]})};\n"
    page = files["index.html"]
    for pattern, replacement in (
        (r"<title>.*?</title>", f"<title>{html.escape(title or 'A run of metastable')}</title>"),
        (r'href="/static/favicon\.svg"', f'href="data:image/svg+xml;base64,{icon}"'),
        (
            r'<link rel="stylesheet" href="/static/style\.css">\n<link rel="stylesheet" href="/static/story\.css">',
            f"<style>\n{files['style.css']}{files['story.css']}{files['player.css']}</style>",
        ),
        (r'<script type="module" src="/static/main\.js"></script>\n', ""),
        (r" a chosen token can be dragged\.", ""),
        (r", Alt with arrow keys moves its start, Delete removes it", ""),
        (r"<body>", f'<body class="{classes}">'),
        (r"</body>", f"<script>\n{_inline(recorded + source)}</script>\n</body>"),
    ):
        page, count = re.subn(pattern, lambda _, words=replacement: words, page, count=1)
        if count != 1:
            raise InvalidInputError(f"index.html has no place for {pattern}")
    return page


def _inline(text: str) -> str:
    """A script that may stand in a page: nothing in it ends the element early."""
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")
