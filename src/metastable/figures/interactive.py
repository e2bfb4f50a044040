"""Interactive figures of a run in the browser or a notebook (plotly), for d = 2 and d = 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metastable import _checks
from metastable.errors import UnsupportedError
from metastable.figures import style
from metastable.figures.circle_view import angles_of, world_line
from metastable.figures.gaps import angles_between, beside_gaps, note, stretches, with_arcs
from metastable.figures.landmarks import AT_THE_EDGE, CHANGES, FROZEN, Landmarks, landmarks
from metastable.figures.moments import STRIDE, RunLike, saved_states, trace, wants_log_time
from metastable.figures.moments import frames as frames_of
from metastable.figures.titles import describe_run, without_formulas

if TYPE_CHECKING:
    import plotly.graph_objects as go

PAGE = 7.0
"""Inches of a figure as browsers and notebooks show it."""


def _hex(rgba: np.ndarray) -> list[str]:
    from matplotlib.colors import to_hex

    return [to_hex(color) for color in rgba]


def plotly_run(run: RunLike, *, log: bool | None = None, moments: int = 300, frames: int = 80) -> go.Figure:
    """A plotly figure of a run with a time slider. d = 2: circle and world lines; d = 3: the ball, which can be turned.

    `moments`: points per path, at least (more where tokens move far); `frames`: positions of the slider, at most, which
    follow the motion.
    """
    dim = np.asarray(run.start).shape[1]
    if dim not in (2, 3):
        raise UnsupportedError(f"backend='plotly' draws dimension 2 and 3, not {dim}; use backend='matplotlib'")
    import plotly.graph_objects as go

    logged = wants_log_time(run, log)
    times, states = trace(run, moments, log)
    film = frames_of(run, _checks.count(frames, "frames", minimum=2), log)
    chosen = np.unique(film.index, return_index=True)[1]  # saved states that a film would hold are there once
    shown = Shown(times, states, film.times[chosen], film.states[chosen], logged, saved_states(run), landmarks(run))
    figure = (_circle if dim == 2 else _sphere)(go, shown)
    figure.update_layout(
        template="plotly_white",
        font={"family": "Georgia, Times New Roman, serif", "size": 14, "color": style.INK},
        margin={"l": 60, "r": 20, "t": 50, "b": 20},
        showlegend=shown.still.any_frozen or bool(dim == 2 and shown.still.joints),
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "right", "x": 1.0},
        title={"text": _title(run, shown), "x": 0.02, "font": {"size": 15}},
    )
    return figure


class Shown(NamedTuple):
    """What is drawn: lines through `states` (m, tokens, dim) at `times`, positions of the slider `stops` (f,) with their
    states `at`, whether time is `log`, from how many `saved` states all that comes (None: dense output), and what is `still`."""

    times: np.ndarray
    states: np.ndarray
    stops: np.ndarray
    at: np.ndarray
    log: bool
    saved: int | None
    still: Landmarks


def _title(run: RunLike, shown: Shown) -> str:
    words = without_formulas(describe_run(run, PAGE))
    far = bool((angles_between(shown.states) > STRIDE).any())
    red = " (first token red)" if shown.states.shape[2] == 2 else ""
    return ", ".join(part for part in (words + red, note(shown.saved, far)) if part).replace("\n", "<br>")


def _frozen(go: Any, points: np.ndarray, **look: Any) -> Any:
    """Frozen tokens (m, dim) as hollow diamonds."""
    place = dict(zip("xyz", points.T))
    marker = {"symbol": "diamond-open", "color": style.INK, "size": 6 if points.shape[1] == 3 else 10}
    kind = go.Scatter3d if points.shape[1] == 3 else go.Scatter
    return kind(**place, mode="markers", marker=marker, name=FROZEN, text=FROZEN, hoverinfo="text", **look)


def _with_frozen(go: Any, figure: Any, shown: Shown) -> None:
    """The slider moves the frozen tokens, the last trace, to those of the model at its time."""
    number = len(figure.data) - 1
    for frame, t in zip(figure.frames, shown.stops):
        frame.data = [*frame.data, _frozen(go, shown.still.at(float(t)))]
        frame.traces = [*frame.traces, number]


def _still_lines(go: Any, figure: Any, shown: Shown) -> None:
    """Frozen tokens as dashed lines of constant angle against depth, and a thin vertical line wherever the model changes."""
    low = float(shown.times[shown.times > 0][0] if shown.log else shown.times[0])
    dashed = {"color": style.INK, "width": 1.2, "dash": "dash"}
    plain: Any = {"mode": "lines", "hoverinfo": "text"}
    for point, first, last in shown.still.spans():
        angle = float(angles_of(point))
        edge = np.pi - AT_THE_EDGE
        for height in (-edge, edge) if abs(angle) > edge else (angle,):
            ends = [max(first, low), last]
            line = go.Scatter(x=ends, y=[height] * 2, line=dashed, text=FROZEN, showlegend=False, **plain)
            if ends[0] < last:
                figure.add_trace(line, 1, 2)
    thin = {"color": style.MUTED, "width": 1}
    for number, t in enumerate(t for t in shown.still.joints if t > low):
        line = go.Scatter(
            x=[t, t], y=[-np.pi, np.pi], line=thin, name=CHANGES, text=CHANGES, showlegend=number == 0, **plain
        )
        figure.add_trace(line, 1, 2)


def _joined(lines: Sequence[np.ndarray], width: int) -> np.ndarray:
    """Polylines (m, width) one behind the other, with a row of NaN between them, where plotly lifts its pen."""
    parts = [part for line in lines for part in (line, np.full((1, width), np.nan))]
    return np.concatenate(parts[:-1]) if parts else np.empty((0, width))


def _controls(times: np.ndarray) -> dict:
    """Layout entries for the slider and the play button."""
    steps = [
        {
            "args": [
                [str(i)],
                {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}},
            ],
            "label": f"{time:.3g}",
            "method": "animate",
        }
        for i, time in enumerate(times)
    ]
    play = {
        "label": "play",
        "method": "animate",
        "args": [None, {"fromcurrent": True, "frame": {"duration": 50, "redraw": True}, "transition": {"duration": 0}}],
    }
    pause = {"label": "pause", "method": "animate", "args": [[None], {"mode": "immediate", "frame": {"duration": 0}}]}
    return {
        "sliders": [{"steps": steps, "currentvalue": {"prefix": "t = "}, "active": len(steps) - 1, "pad": {"t": 30}}],
        "updatemenus": [
            {
                "type": "buttons",
                "buttons": [play, pause],
                "direction": "left",
                "x": 0,
                "y": 0,
                "pad": {"t": 40, "r": 10},
                "xanchor": "right",
                "yanchor": "top",
            }
        ],
    }


def _circle(go: Any, shown: Shown) -> go.Figure:
    from plotly.subplots import make_subplots

    tokens = shown.states.shape[1]
    colors = _hex(style.token_colors(tokens))
    figure = make_subplots(rows=1, cols=2, column_widths=[0.36, 0.64])
    turn = np.linspace(0, 2 * np.pi, 181)
    figure.add_trace(
        go.Scatter(x=np.cos(turn), y=np.sin(turn), mode="lines", line={"color": style.FAINT}, hoverinfo="skip"), 1, 1
    )
    last = shown.states[-1]
    names = [f"token {k}" for k in range(tokens)]
    dots = {"color": [style.RED, *colors[1:]], "size": 8, "line": {"color": "white", "width": 0.5}}
    figure.add_trace(
        go.Scatter(x=last[:, 0], y=last[:, 1], mode="markers", marker=dots, text=names, hoverinfo="text"), 1, 1
    )
    after = shown.times > 0 if shown.log else np.full(len(shown.times), True)
    t, angles = shown.times[after], angles_of(shown.states)[after]
    for k in reversed(range(tokens)):
        color, width = (style.RED, 2.5) if k == 0 else (colors[k], 1)
        pieces = list(world_line(t, angles[:, k], shown.log, shown.saved is not None))
        for gap in (False, True):
            path = _joined([line for line, far in pieces if far == gap], 2)
            if len(path):
                look = _look(color, width, gap)
                figure.add_trace(
                    go.Scatter(x=path[:, 0], y=path[:, 1], text=names[k], hoverinfo="text+x", **look), 1, 2
                )
    figure.frames = [
        go.Frame(name=str(i), data=[go.Scatter(x=state[:, 0], y=state[:, 1])], traces=[1])
        for i, state in enumerate(shown.at)
    ]
    figure.update_traces(showlegend=False)
    _still_lines(go, figure, shown)
    if shown.still.any_frozen:
        figure.add_trace(_frozen(go, shown.still.frozen[-1]), 1, 1)
        _with_frozen(go, figure, shown)
    figure.update_xaxes(visible=False, range=[-1.1, 1.1], row=1, col=1)
    figure.update_yaxes(visible=False, scaleanchor="x", range=[-1.1, 1.1], row=1, col=1)
    figure.update_xaxes(title="depth t", type="log" if shown.log else "linear", row=1, col=2)
    figure.update_yaxes(title="angle (rad)", range=[-np.pi, np.pi], row=1, col=2)
    figure.update_layout(height=460, **_controls(shown.stops))
    return figure


def _look(color: str, width: float, gap: bool) -> dict[str, Any]:
    """How a line looks: solid, or dotted between dots over a gap between saved states."""
    if not gap:
        return {"mode": "lines", "line": {"color": color, "width": width}}
    line = {"color": color, "width": width, "dash": "dot"}
    return {"mode": "lines+markers", "line": line, "marker": {"color": color, "size": 3}}


def _sphere(go: Any, shown: Shown) -> go.Figure:
    tokens = shown.states.shape[1]
    colors = _hex(style.token_colors(tokens))
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 61), np.linspace(0, np.pi, 31))
    ball = go.Surface(
        x=0.99 * np.cos(u) * np.sin(v),
        y=0.99 * np.sin(u) * np.sin(v),
        z=0.99 * np.cos(v),
        colorscale=[[0, "#e9edf2"], [1, "#e9edf2"]],
        showscale=False,
        opacity=0.6,
        hoverinfo="skip",
    )
    names = [f"token {k}" for k in range(tokens)]
    last = shown.states[-1]
    points = go.Scatter3d(
        x=last[:, 0],
        y=last[:, 1],
        z=last[:, 2],
        mode="markers",
        marker={"color": style.FINAL, "size": 4},
        text=names,
        hoverinfo="text",
    )
    figure = go.Figure([ball, points, *_paths(go, shown, colors, names)])
    figure.frames = [
        go.Frame(name=str(i), data=[go.Scatter3d(x=state[:, 0], y=state[:, 1], z=state[:, 2])], traces=[1])
        for i, state in enumerate(shown.at)
    ]
    figure.update_traces(showlegend=False)
    if shown.still.any_frozen:
        figure.add_trace(_frozen(go, shown.still.frozen[-1]))
        _with_frozen(go, figure, shown)
    hidden = {"visible": False}
    scene = {"xaxis": hidden, "yaxis": hidden, "zaxis": hidden, "aspectmode": "data"}
    figure.update_layout(height=620, scene=scene, **_controls(shown.stops))
    return figure


def _paths(go: Any, shown: Shown, colors: Sequence[str], names: Sequence[str]) -> list[Any]:
    """Paths on the ball: solid, over gaps between saved states dotted arcs between dots."""
    states = shown.states
    far = np.zeros((len(states) - 1, states.shape[1]), dtype=bool)
    if shown.saved is not None:
        beside = beside_gaps(angles_between(states) > STRIDE)
        marks = [states[beside[:, k], k] for k in range(states.shape[1])]
        states, far, lost = with_arcs(states)
        states = np.where(np.concatenate([lost, np.zeros_like(lost[:1])])[..., None], np.nan, states)
    else:
        marks = [np.empty((0, 3))] * states.shape[1]
    paths = []
    for k, (color, name) in enumerate(zip(colors, names)):
        pieces = [(states[first : last + 1, k], gap) for first, last, gap in stretches(far[:, k])]
        for gap in (False, True):
            path = _joined([line for line, wide in pieces if wide == gap], 3)
            line = {"color": color, "width": 3, "dash": "dot" if gap else "solid"}
            if len(path):
                x, y, z = path.T
                paths.append(go.Scatter3d(x=x, y=y, z=z, mode="lines", line=line, text=name, hoverinfo="text"))
        if len(marks[k]):
            x, y, z = marks[k].T
            dots = {"color": color, "size": 2}
            paths.append(go.Scatter3d(x=x, y=y, z=z, mode="markers", marker=dots, text=name, hoverinfo="text"))
    return paths
