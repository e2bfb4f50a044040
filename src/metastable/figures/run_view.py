"""A picture of one run, chosen by its dimension: what `Run.plot()` draws.

A run is anything with `times` (m,), `states` (m, tokens, dim), `at(t)` (dense output), `model`, `start` and `final`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from metastable import _checks
from metastable.errors import InvalidInputError, TimeError, UnsupportedError
from metastable.figures import style
from metastable.figures.circle_view import draw_circle, draw_tokens, draw_world_lines
from metastable.figures.sphere_view import DEFAULT_VIEW, View, draw_ball, draw_paths, draw_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BACKENDS = ("matplotlib", "plotly")

LOG_SPAN = 1e3
"""A run longer than this many units of depth is shown in log time unless told otherwise."""


class RunLike(Protocol):
    """What the figures need to know about a run."""

    @property
    def times(self) -> np.ndarray: ...

    @property
    def states(self) -> np.ndarray: ...

    @property
    def model(self) -> Any: ...

    @property
    def start(self) -> np.ndarray: ...

    @property
    def final(self) -> np.ndarray: ...

    def at(self, t: float) -> np.ndarray: ...


def wants_log_time(run: RunLike, log: bool | None) -> bool:
    """`log` if it was decided, else True for runs longer than `LOG_SPAN`."""
    return float(run.times[-1]) > LOG_SPAN if log is None else log


def sample(run: RunLike, count: int = 300, log: bool | None = None) -> tuple[np.ndarray, np.ndarray]:
    """`count` moments of a run, evenly spaced in time or in log time: `times` (count,), `states` (count, tokens, dim).

    Uses the dense output where the run has one. A run that kept only its saved states (it was loaded without dense output, or
    has noise) is shown at those states.
    """
    if not all(hasattr(run, name) for name in ("times", "states", "start", "at")):
        raise InvalidInputError(f"run must be what metastable.simulate or metastable.load returns, not {run!r}")
    count = _checks.count(count, "count", minimum=2)
    _checks.room((count, *np.shape(run.start)), "the moments")
    if log is not None:
        _checks.flag(log, "log")
    last = float(run.times[-1])
    if last <= 0:
        raise TimeError("the run has only its start; simulate to a positive time before drawing it")
    if wants_log_time(run, log):
        moments = np.concatenate([[0.0], np.geomspace(min(0.1, last / 10), last, count - 1)])
        moments[-1] = last
    else:
        moments = np.linspace(0.0, last, count)
    try:
        states = np.stack([np.asarray(run.at(float(t))) for t in moments])
    except (TimeError, UnsupportedError):  # no dense output between the saved times
        times, states = np.asarray(run.times, dtype=float), np.asarray(run.states, dtype=float)
        if times[0] > 0:
            return np.concatenate([[0.0], times]), np.concatenate([np.asarray(run.start)[None], states])
        return times, states
    return moments, states


def describe(model: Any, tokens: int) -> str:
    """One line for a title: tokens, dimension, inverse temperature, mask and what else is not the default."""
    parts = [f"$n = {tokens}$", f"$d = {model.dim}$"]
    if model.beta is not None:
        parts.append(rf"$\beta = {model.beta:g}$")
    else:
        parts.append(f"{len(model.all_heads)} heads")
    parts.append(type(model.mask).__name__.lower())
    if model.weights != "softmax":
        parts.append(model.weights)
    if type(model.norm).__name__ != "PostLN":
        parts.append(type(model.norm).__name__)
    if model.noise:
        parts.append(rf"$\sigma = {model.noise:g}$")
    return ", ".join(parts)


def draw_run(
    run: RunLike,
    *,
    backend: str = "matplotlib",
    log: bool | None = None,
    moments: int = 300,
    view: View | None = None,
    theme: str = "screen",
) -> Any:
    """A figure of the run. d = 2: world lines and the final circle. d = 3: paths on the sphere. d > 3: cosines between tokens.

    `backend`: `"matplotlib"` (a `Figure` known to pyplot) or `"plotly"` (interactive, d = 2 and 3). `log`: log time (None: for
    runs longer than `LOG_SPAN`). `moments`: how many times are sampled. `view`: camera for d = 3. `theme`: `"screen"` or
    `"print"`.
    """
    _checks.choice(backend, "backend", BACKENDS)
    _checks.count(moments, "moments", minimum=2)
    if backend == "plotly":
        from metastable.figures.interactive import plotly_run

        return plotly_run(run, log=log, moments=moments)
    dim = np.asarray(run.start).shape[1]
    with style.theme(theme):
        times, states = sample(run, moments, log)
        logged = wants_log_time(run, log)
        if dim == 2:
            return _circle_page(run, times, states, logged)
        if dim == 3:
            return _sphere_page(run, times, states, view or DEFAULT_VIEW)
        return _gram_page(run, times, states, logged)


def _circle_page(run: RunLike, times: np.ndarray, states: np.ndarray, log: bool) -> Figure:
    page, axes = style.figure(9.0, 3.6, 1, 2, managed=True, width_ratios=[2.1, 1])
    draw_world_lines(axes[0], times, states, log=log, highlight={0: style.RED}, width=0.7)
    style.panel(axes[0], "", describe(run.model, states.shape[1]) + " (first token red)")
    tokens = states.shape[1]
    draw_circle(axes[1], limit=1.8)
    draw_tokens(
        axes[1], run.final, stack=0.035, stack_width=0.05, reach=0.7, size=12, colors=style.token_colors(tokens)
    )
    axes[1].text(0, 0, style.time_label(float(run.times[-1])), ha="center", va="center")
    return page


def _sphere_page(run: RunLike, times: np.ndarray, states: np.ndarray, view: View) -> Figure:
    page, ax = style.figure(5.2, 5.0, managed=True)
    draw_ball(ax, view)
    draw_paths(ax, states, view, width=1.1)
    draw_points(ax, states[0], view, colors=style.token_colors(states.shape[1]), size=9, edge_width=0)
    draw_points(ax, run.final, view, size=34, edge_width=0.8)
    style.panel(ax, "", describe(run.model, states.shape[1]) + f", to {style.time_label(float(times[-1]))}")
    return page


def _gram_page(run: RunLike, times: np.ndarray, states: np.ndarray, log: bool) -> Figure:
    page, axes = style.figure(9.6, 3.0, 1, 4, managed=True, width_ratios=[1, 1, 1, 1.25])
    middle = len(times) // 2
    for ax, index in zip(axes, (0, middle, len(times) - 1)):
        image = draw_gram(ax, states[index])
        style.panel(ax, "", style.time_label(float(times[index])))
    page.colorbar(
        image, ax=list(axes[:3]), location="bottom", shrink=0.5, aspect=30, label=r"$\langle x_j, x_k\rangle$"
    )
    mean = mean_cosine(states)
    axes[3].plot(times[log:], mean[log:], color=style.MEASURED)
    if log:
        style.log_time_axis(axes[3], float(times[1]), float(times[-1]))
    axes[3].set_xlabel("depth $t$")
    axes[3].set_ylabel("mean cosine")
    style.grid(axes[3])
    page.suptitle(describe(run.model, states.shape[1]), x=0.01, ha="left", fontsize="medium")
    return page


def draw_gram(ax: Any, points: Any) -> Any:
    """Cosines <x_j, x_k> between tokens (tokens, dim) as a matrix; returns the image, for a colour bar."""
    x = np.asarray(points, dtype=float)
    image = ax.imshow(x @ x.T, cmap=style.diverging_map(), vmin=-1, vmax=1, interpolation="nearest")
    last = len(x) - 1
    ax.set_xticks([0, last], ["1", str(last + 1)])
    ax.set_yticks([0, last], ["1", str(last + 1)])
    ax.set_xlabel("token")
    return image


def mean_cosine(states: np.ndarray) -> np.ndarray:
    """Mean of <x_j, x_k> over pairs j != k, for states (m, tokens, dim): (|sum_k x_k|^2 - n)/(n (n - 1))."""
    tokens = states.shape[1]
    if tokens == 1:
        return np.ones(len(states))
    total = states.sum(axis=1)
    return (np.einsum("md,md->m", total, total) - tokens) / (tokens * (tokens - 1))
