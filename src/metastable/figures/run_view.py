"""A picture of one run, chosen by its dimension: what `Run.plot()` draws.

A run is anything with `times` (m,), `states` (m, tokens, dim), `at(t)` (dense output), `model`, `start` and `final`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks
from metastable.figures import style
from metastable.figures.circle_view import (
    angle_counts,
    draw_circle,
    draw_tokens,
    draw_world_counts,
    draw_world_lines,
)
from metastable.figures.density_view import draw_ring, draw_sphere_density, sphere_counts
from metastable.figures.gaps import angles_between, note
from metastable.figures.landmarks import (
    draw_frozen,
    draw_frozen_half,
    draw_joints,
    draw_landmark_key,
    draw_landmarks,
    landmark_handles,
    landmarks,
    mark_rows,
    row_marks,
)
from metastable.figures.moments import STRIDE, RunLike, half_way, sample, saved_states, trace, walk, wants_log_time
from metastable.figures.sphere_view import DEFAULT_VIEW, Dots, View, draw_ball, draw_paths, draw_points
from metastable.figures.titles import describe_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BACKENDS = ("matplotlib", "plotly")
FROZEN_ROWS = "frozen token (rows below the dashed line)"
"""What the key of a matrix of cosines says."""
MANY = 2000
"""Tokens from which on densities are drawn instead of lines."""
CELLS = 240
"""Arcs of the circle in which they are counted."""
FAR, FEW = 2.0 * STRIDE, 0.01
"""Columns of a density meet where no more than a `FEW` of the tokens went farther than `FAR` (four arcs) from one to the next."""


def draw_run(
    run: RunLike,
    *,
    backend: str = "matplotlib",
    log: bool | None = None,
    moments: int = 300,
    view: View | None = None,
    theme: str = "screen",
) -> Any:
    """A figure of the run. d = 2: world lines and the final circle. d = 3: paths on the sphere. d > 3: cosines
    between tokens.

    Lines are sampled by the motion: `moments` times, evenly in time or log time, and more wherever a token would move
    by more than 0.05 rad between two (see `moments.trace`). A run that kept chosen times only is drawn from those states,
    and says so: dots, and dotted lines over gaps wider than 0.05 rad, which tell who is who and not where tokens were.
    Tokens are counted from 0. From `MANY` tokens on there is no telling lines apart: d = 2 shows how many tokens are
    where against depth (a histogram of every moment), d = 3 how dense they are on both sides of the sphere at the start,
    in the middle (of time or log time) and at the end.

    Frozen tokens are hollow diamonds, and dashed lines where angles are drawn against depth; a matrix of cosines has rows for them
    below its own. Of a `Schedule` a picture of a moment shows those of its model then, and every axis of depth has a thin line at each
    joint. A key below says so.

    `backend`: `"matplotlib"` (a `Figure` known to pyplot) or `"plotly"` (interactive, d = 2 and 3). `log`: log time
    (None: for runs longer than `moments.LOG_SPAN`). `view`: camera for d = 3. `theme`: `"screen"` or `"print"`.
    """
    _checks.choice(backend, "backend", BACKENDS)
    _checks.count(moments, "moments", minimum=2)
    if backend == "plotly":
        from metastable.figures.interactive import plotly_run

        return plotly_run(run, log=log, moments=moments)
    tokens, dim = np.asarray(run.start).shape
    with style.theme(theme):
        logged = wants_log_time(run, log)
        if dim <= 3 and tokens >= MANY:
            return (
                _circle_density_page(run, moments, log)
                if dim == 2
                else _sphere_density_page(run, view or DEFAULT_VIEW, log)
            )
        times, states = (sample if dim > 3 else trace)(run, moments, log)
        if dim == 2:
            return _circle_page(run, times, states, logged)
        if dim == 3:
            return _sphere_page(run, times, states, view or DEFAULT_VIEW)
        return _gram_page(run, times, states, logged)


def _circle_page(run: RunLike, times: np.ndarray, states: np.ndarray, log: bool) -> Figure:
    tokens = states.shape[1]
    page, axes = style.figure(9.6, 3.6, 1, 2, managed=True, width_ratios=[2.1, 1])
    gaps = saved_states(run) is not None
    draw_world_lines(axes[0], times, states, log=log, highlight={0: style.RED}, width=0.7, gaps=gaps)
    style.token_key(page, axes[0], tokens)
    style.panel(axes[0], "", _and(f"{describe_run(run, 6.0)} (first token red)", _source(run, states, log)))
    draw_circle(axes[1], limit=1.8)
    draw_tokens(
        axes[1], run.final, stack=0.035, stack_width=0.05, reach=0.7, size=12, colors=style.token_colors(tokens)
    )
    # The first token is the lowest of its pile: red over all of them, as its line is.
    draw_tokens(axes[1], run.final[:1], size=16, opacity=1.0, colors=style.RED)
    _finish_circle(page, axes, run)
    return page


def _finish_circle(page: Figure, axes: Any, run: RunLike) -> None:
    """The time inside the circle; what does not move, here and against depth, and its key."""
    axes[1].text(0, 0, style.time_label(float(run.times[-1])), ha="center", va="center")
    marks = landmarks(run)
    draw_landmarks(axes[0], marks)
    if len(marks.frozen[-1]):
        draw_frozen(axes[1], marks.frozen[-1])
    draw_landmark_key(page, landmark_handles(marks, ax=axes[0]))


def _circle_density_page(run: RunLike, moments: int, log: bool | None) -> Figure:
    """Tokens per arc against depth, and around the circle at the end."""
    page, axes = style.figure(9.6, 3.6, 1, 2, managed=True, width_ratios=[2.1, 1])
    image = world_counts(axes[0], run, moments, log)
    page.colorbar(image, ax=axes[0], label=f"tokens per cell (1/{CELLS} of the circle)", pad=0.01, aspect=30)
    draw_ring(axes[1], run.final)
    _finish_circle(page, axes, run)
    return page


def world_counts(ax: Any, run: RunLike, moments: int, log: bool | None) -> Any:
    """Tokens per arc against depth; the image, for a colour bar. What is not known between saved states, because tokens went far from
    one to the next, is hatched, and said above."""
    times, counts, far, before = [], [], [], None
    saved = saved_states(run)
    for t, x in walk(run, moments, log):
        times.append(t)
        counts.append(angle_counts(x, CELLS))
        if before is not None:
            moved = angles_between(np.stack([before, x]))[0] if saved is not None else np.zeros(1)
            far.append(bool(np.mean(moved > FAR) > FEW))
        before = x
    logged = wants_log_time(run, log)
    image = draw_world_counts(ax, times, counts, log=logged, gaps=far)
    words = note(saved, False, logged)
    if any(far):
        words = f"{words} (strips); hatched: not known"
    style.panel(ax, "", _and(describe_run(run, 6.0), words))
    return image


def _sphere_density_page(run: RunLike, view: View, log: bool | None) -> Figure:
    """How dense the tokens are at three moments: what faces the viewer above, the other side below."""
    walked = list(walk(run, 3, log))
    shown = [walked[i] for i in (0, len(walked) // 2, -1)]
    tokens = len(run.start)
    bands = int(np.clip(np.sqrt(tokens / 20.0), 8, 64))  # ten uniform tokens to a cell
    top = max(float(sphere_counts(x, bands).max()) for _, x in shown)
    page, axes = style.figure(8.6, 5.6, 2, 3, managed=True)
    grid = np.asarray(axes).reshape(2, 3)
    marks = landmarks(run)
    for column, (t, x) in enumerate(shown):
        for row in range(2):
            image = draw_sphere_density(grid[row, column], x, view, bands=bands, top=top, far=row == 1)
            draw_frozen_half(grid[row, column], marks.at(t), view, far=row == 1)
        style.panel(grid[0, column], "", style.time_label(float(f"{t:.3g}")))
    for row, name in enumerate(("this side", "the other side, from behind")):
        grid[row, 0].text(-1.15, 0, name, rotation=90, ha="right", va="center", color=style.MUTED)
    page.colorbar(image, ax=list(grid.ravel()), label="density of tokens (1: uniform)", pad=0.01, aspect=40)
    page.suptitle(_and(describe_run(run, 8.6), note(saved_states(run), False)), x=0.01, ha="left", fontsize="medium")
    draw_landmark_key(page, landmark_handles(marks))
    return page


def _sphere_page(run: RunLike, times: np.ndarray, states: np.ndarray, view: View) -> Figure:
    tokens = states.shape[1]
    page, ax = style.figure(5.7, 5.0, managed=True)
    draw_ball(ax, view)
    colors = style.token_colors(tokens)
    draw_paths(ax, states, view, colors=colors, width=1.1, gaps=saved_states(run) is not None)
    draw_points(ax, states[0], view, colors=colors, size=9, dots=Dots(edge_width=0))
    draw_points(ax, run.final, view, size=34, dots=Dots(edge_width=0.8))
    marks = landmarks(run)
    # Paths are of all depths, so what tokens ran to before is here as well.
    for points, gone in ((marks.earlier(), True), (marks.frozen[-1], False)):
        if len(points):
            draw_frozen(ax, points, view, gone=gone)
    draw_landmark_key(page, landmark_handles(marks, earlier=True))
    style.token_key(page, ax, tokens)
    end = style.time_label(float(times[-1]))
    words = f"{describe_run(run, 5.0)}\nfrom start (small) to {end} (red)"
    # The ball is narrower than this sentence.
    style.panel(ax, "", _and(words, _source(run, states).replace(", which", ",\nwhich")))
    return page


def _source(run: RunLike, states: np.ndarray, log: bool = False) -> str:
    """What the picture says of the saved states that it is drawn from; "" where there is dense output."""
    return note(saved_states(run), bool((angles_between(states) > STRIDE).any()), log)


def _and(title: str, words: str) -> str:
    return f"{title}\n{words}" if words else title


def _gram_page(run: RunLike, times: np.ndarray, states: np.ndarray, log: bool) -> Figure:
    page, axes = style.figure(9.6, 3.0, 1, 4, managed=True, width_ratios=[1, 1, 1, 1.25])
    shown = (0, half_way(states), len(times) - 1)
    marks = landmarks(run)
    for ax, index in zip(axes, shown):
        image = draw_gram(ax, states[index], marks.at(float(times[index])), marks.most_frozen)
        style.panel(ax, "", style.time_label(float(f"{times[index]:.3g}")))
    page.colorbar(
        image, ax=list(axes[:3]), location="bottom", shrink=0.5, aspect=30, label=r"$\langle x_j, x_k\rangle$"
    )
    mean = mean_cosine(states)
    only = saved_states(run)
    dotted: Any = {} if only is None else {"marker": ".", "markersize": 3.0, "linestyle": (0, (1, 1.5))}
    axes[3].plot(times[log:], mean[log:], color=style.MEASURED, **dotted)
    marked = [index for index in shown if index >= int(log)]
    axes[3].plot(times[marked], mean[marked], "o", color=style.INK, markersize=3.5, clip_on=False, label="shown")
    axes[3].legend(loc="best", handletextpad=0.2)
    if log:
        style.log_time_axis(axes[3], float(times[1]), float(times[-1]))
    axes[3].set_xlabel("depth $t$")
    axes[3].set_ylabel("mean cosine")
    style.grid(axes[3])
    draw_joints(axes[3], marks.joints)
    draw_landmark_key(page, landmark_handles(marks, frozen=FROZEN_ROWS, ax=axes[3]))
    page.suptitle(describe_run(run, 9.6, note(only, False)), x=0.01, ha="left", fontsize="medium")
    return page


def draw_gram(ax: Any, points: Any, frozen: Any = None, rows: int | None = None) -> Any:
    """Cosines <x_j, x_k> between tokens (tokens, dim) as a matrix; returns the image, for a colour bar.

    `frozen` (m, dim): frozen tokens, in rows of their own below; `rows`: how many rows to keep for them (None: m).
    """
    matrix = gram(points, frozen, rows)
    image = draw_cosines(ax, matrix)
    if len(matrix) > matrix.shape[1]:
        mark_rows(row_marks(ax, matrix.shape[1]), matrix)
    return image


def draw_cosines(ax: Any, matrix: np.ndarray) -> Any:
    """What `gram` makes as an image, which it returns, without marks."""
    image = ax.imshow(matrix, cmap=style.diverging_map(), vmin=-1, vmax=1, interpolation="nearest")
    last = matrix.shape[1] - 1
    ax.set_xticks(sorted({0, last}))
    ax.set_yticks(sorted({0, last}))
    ax.set_xlabel("token (from 0)")
    return image


def gram(points: Any, frozen: Any = None, rows: int | None = None) -> np.ndarray:
    """Cosines <y_j, x_k> (tokens + rows, tokens): of tokens with tokens, and below those of frozen tokens, NaN where there are fewer of
    them than `rows` (None: as many as there are)."""
    x = np.asarray(points, dtype=float)
    still = x[:0] if frozen is None else np.asarray(frozen, dtype=float)
    matrix = np.full((len(x) + (len(still) if rows is None else rows), len(x)), np.nan)
    matrix[: len(x)] = x @ x.T
    matrix[len(x) : len(x) + len(still)] = still @ x.T
    return matrix


def mean_cosine(states: np.ndarray) -> np.ndarray:
    """Mean of <x_j, x_k> over pairs j != k, for states (m, tokens, dim): (|sum_k x_k|^2 - n)/(n (n - 1))."""
    tokens = states.shape[1]
    if tokens == 1:
        return np.ones(len(states))
    total = states.sum(axis=1)
    return (np.einsum("md,md->m", total, total) - tokens) / (tokens * (tokens - 1))
