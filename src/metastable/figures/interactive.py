"""Interactive figures of a run in the browser or a notebook (plotly), for d = 2 and d = 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metastable.errors import UnsupportedError
from metastable.figures import style
from metastable.figures.circle_view import angles_of, break_wraps
from metastable.figures.moments import RunLike, sample, wants_log_time

if TYPE_CHECKING:
    import plotly.graph_objects as go


def _hex(rgba: np.ndarray) -> list[str]:
    from matplotlib.colors import to_hex

    return [to_hex(color) for color in rgba]


def plotly_run(run: RunLike, *, log: bool | None = None, moments: int = 300, frames: int = 80) -> go.Figure:
    """A plotly figure of a run with a time slider. d = 2: circle and world lines; d = 3: the ball, which can be turned.

    `moments`: points per path; `frames`: positions of the slider.
    """
    dim = np.asarray(run.start).shape[1]
    if dim not in (2, 3):
        raise UnsupportedError(f"backend='plotly' draws dimension 2 and 3, not {dim}; use backend='matplotlib'")
    import plotly.graph_objects as go

    times, states = sample(run, moments, log)
    chosen = np.unique(np.linspace(0, len(times) - 1, min(frames, len(times))).astype(int))
    build = _circle if dim == 2 else _sphere
    figure = build(go, times, states, chosen, wants_log_time(run, log))
    figure.update_layout(
        template="plotly_white",
        font={"family": "Georgia, Times New Roman, serif", "size": 14, "color": style.INK},
        margin={"l": 60, "r": 20, "t": 50, "b": 20},
        showlegend=False,
        title={"text": _title(run, states.shape[1]), "x": 0.02, "font": {"size": 15}},
    )
    return figure


def _title(run: RunLike, tokens: int) -> str:
    beta = f"beta = {run.model.beta:g}" if run.model.beta is not None else f"{len(run.model.all_heads)} heads"
    return f"{tokens} tokens, d = {run.model.dim}, {beta}, {type(run.model.mask).__name__.lower()} mask"


def _controls(times: np.ndarray, chosen: np.ndarray) -> dict:
    """Layout entries for the slider and the play button."""
    steps = [
        {
            "args": [
                [str(i)],
                {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}},
            ],
            "label": f"{times[i]:.3g}",
            "method": "animate",
        }
        for i in chosen
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


def _circle(go: Any, times: np.ndarray, states: np.ndarray, chosen: np.ndarray, log: bool) -> go.Figure:
    from plotly.subplots import make_subplots

    colors = _hex(style.token_colors(states.shape[1]))
    figure = make_subplots(rows=1, cols=2, column_widths=[0.36, 0.64])
    turn = np.linspace(0, 2 * np.pi, 181)
    figure.add_trace(
        go.Scatter(x=np.cos(turn), y=np.sin(turn), mode="lines", line={"color": style.FAINT}, hoverinfo="skip"), 1, 1
    )
    last = states[-1]
    names = [f"token {k + 1}" for k in range(states.shape[1])]
    dots = {"color": colors, "size": 8, "line": {"color": "white", "width": 0.5}}
    figure.add_trace(
        go.Scatter(x=last[:, 0], y=last[:, 1], mode="markers", marker=dots, text=names, hoverinfo="text"), 1, 1
    )
    angles = angles_of(states)
    for k in reversed(range(states.shape[1])):
        t, path = break_wraps(times, angles[:, k])
        line = {"color": style.RED if k == 0 else colors[k], "width": 2.5 if k == 0 else 1}
        figure.add_trace(go.Scatter(x=t, y=path, mode="lines", line=line, text=names[k], hoverinfo="text+x"), 1, 2)
    figure.frames = [
        go.Frame(name=str(i), data=[go.Scatter(x=states[i, :, 0], y=states[i, :, 1])], traces=[1]) for i in chosen
    ]
    figure.update_xaxes(visible=False, range=[-1.1, 1.1], row=1, col=1)
    figure.update_yaxes(visible=False, scaleanchor="x", range=[-1.1, 1.1], row=1, col=1)
    figure.update_xaxes(title="depth t", type="log" if log else "linear", row=1, col=2)
    figure.update_yaxes(title="angle (rad)", range=[-np.pi, np.pi], row=1, col=2)
    figure.update_layout(height=460, **_controls(times, chosen))
    return figure


def _sphere(go: Any, times: np.ndarray, states: np.ndarray, chosen: np.ndarray, log: bool) -> go.Figure:
    colors = _hex(style.token_colors(states.shape[1]))
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
    names = [f"token {k + 1}" for k in range(states.shape[1])]
    paths = [
        go.Scatter3d(
            x=states[:, k, 0],
            y=states[:, k, 1],
            z=states[:, k, 2],
            mode="lines",
            line={"color": colors[k], "width": 3},
            text=names[k],
            hoverinfo="text",
        )
        for k in range(states.shape[1])
    ]
    dots = {"color": style.FINAL, "size": 4}
    last = states[-1]
    points = go.Scatter3d(
        x=last[:, 0], y=last[:, 1], z=last[:, 2], mode="markers", marker=dots, text=names, hoverinfo="text"
    )
    figure = go.Figure([ball, points, *paths])
    figure.frames = [
        go.Frame(name=str(i), data=[go.Scatter3d(x=states[i, :, 0], y=states[i, :, 1], z=states[i, :, 2])], traces=[1])
        for i in chosen
    ]
    hidden = {"visible": False}
    scene = {"xaxis": hidden, "yaxis": hidden, "zaxis": hidden, "aspectmode": "data"}
    figure.update_layout(height=620, scene=scene, **_controls(times, chosen))
    return figure
