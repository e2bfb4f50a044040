"""Films of a run: .mp4 (ffmpeg from the `imageio-ffmpeg` package) or .gif (pillow), in linear or log time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks, stores
from metastable._progress import progress_bar
from metastable.analysis import cluster_labels, cluster_radius
from metastable.errors import InvalidInputError
from metastable.figures import style
from metastable.figures.circle_view import angles_of, draw_circle, draw_world_lines, pile_gap, pile_places
from metastable.figures.film_key import center_marks, draw_center_key, draw_key
from metastable.figures.gaps import angles_between, note
from metastable.figures.landmarks import (
    diamonds,
    draw_landmarks,
    landmark_handles,
    landmarks,
    mark_rows,
    row_marks,
)
from metastable.figures.moments import STRIDE, Frames, RunLike, frames, saved_states, trace, wants_log_time
from metastable.figures.run_view import FROZEN_ROWS, MANY, draw_cosines, gram, world_counts
from metastable.figures.sphere_view import DEFAULT_VIEW, View, draw_ball
from metastable.figures.titles import describe_run, last_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".mp4", ".gif")
FASTEST_GIF = 50
"""Pictures a second of a .gif: browsers slow down whatever is faster."""
HOLD = 1.0
"""Seconds of a film (at most half of it) for which the last picture is held."""
MOMENTS = 300
"""Moments of the density beside a film of many tokens."""
BIN, STACK, REACH = 0.05, 0.035, 0.7
"""Piles of dots on the circle: radians within which dots are one pile, the step from dot to dot, and how far out the highest pile of
the film goes at the most (steps are smaller then)."""
BALL = "#f3f4f5"
"""The ball in the middle of its shades: the colour of what is wholly behind it."""


@dataclass(frozen=True)
class Scene:
    """A page, the artists that move on it (in drawing order), and what puts them where they are in a frame."""

    page: Figure
    moving: Sequence[Any]
    update: Callable[[int], None]
    others: Sequence[Any] = ()
    """Entries of the key for what does not move."""


def animate(
    run: RunLike,
    path: str | Path,
    *,
    seconds: float = 8.0,
    frames_per_second: int = 30,
    log: bool | None = None,
    trail: float = 0.12,
    delta: float | None = None,
    radius: float | None = None,
    view: View | None = None,
    progress: bool | None = None,
) -> Path:
    """Write a film of `run` to `path` (.mp4 or .gif), `seconds` long at `frames_per_second`, and return the path.

    The last picture is held for the last second of them (half of a film that is shorter than two). A .gif has at most 50
    pictures a second.

    Tokens keep the colour of the cluster that they end in (`radius` None: half of beta^(-1/2) of the last model); a key says so.
    d = 2: circle and world lines with a moving clock; d = 3:
    the sphere with trails (`trail`: fraction of the film they remember); d > 3: the matrix of cosines. `delta`: mark the Renyi
    centers of the start with this separation, black, and the strong ones, red, over the others (d > 3: beside
    their rows). `log`: log time (None: for long runs). Frozen tokens, those of the model at that moment, are hollow diamonds (d > 3:
    rows below the matrix), and dashed lines among world lines, which have a thin vertical line wherever the model changes.
    The clock follows the motion: it runs slowly where tokens move and fast where all stand (`moments.frames`). A run that
    kept chosen times only is shown at those, each as long as the clock says; nothing is made up between them, and the
    film says how many there are.
    `progress`: show a bar (None: on a terminal). The film is written beside the target and moved there when complete.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InvalidInputError(
            f"a film must end in {' or '.join(SUFFIXES)}, not {target.name!r}; for example run{SUFFIXES[0]}"
        )
    _checks.number(seconds, "seconds", 0.0, strict=True)
    _checks.count(frames_per_second, "frames_per_second")
    _checks.number(trail, "trail", 0.0, 1.0)
    _checks.progress(progress)
    stores.check_folder(target)
    hold = min(HOLD, 0.5 * seconds)
    if target.suffix.lower() == ".gif":
        frames_per_second = min(frames_per_second, FASTEST_GIF)
    count = max(2, round((seconds - hold) * frames_per_second) + 1)
    with style.theme("screen"):
        film = frames(run, count, log)
        scene = _scene(run, film, wants_log_time(run, log), trail, delta, radius, view or DEFAULT_VIEW)
        _write(_pictures(scene, len(film.times), target.name, progress), target, frames_per_second, hold)
    return target


def _scene(
    run: RunLike,
    film: Frames,
    log: bool,
    trail: float,
    delta: float | None,
    radius: float | None,
    view: View,
) -> Scene:
    times, states = film.times, film.states
    dim = states.shape[2]
    if dim > 3:
        return _gram_scene(run, times, states, center_marks(states[0], delta))
    labels = cluster_labels(states[-1], radius=cluster_radius(last_model(run)) if radius is None else radius)
    colors = style.cluster_colors(labels)
    marks = center_marks(states[0], delta)
    if dim == 2:
        scene = _circle_scene(run, times, states, log, colors, marks)
    else:
        scene = _sphere_scene(run, film, max(1, round(trail * len(times))), colors, marks, view)
    draw_key(scene.page, labels, marks[1], scene.others)
    return scene


def _circle_scene(
    run: RunLike,
    times: np.ndarray,
    states: np.ndarray,
    log: bool,
    colors: np.ndarray,
    marks: tuple[np.ndarray, list[str]],
) -> Scene:
    page, axes = style.figure(9.6, 4.4, 1, 2, width_ratios=[1, 1.45])
    tokens = states.shape[1]
    angles = angles_of(states)
    # One step for the whole film, so that piles of equal height are as many tokens in all frames.
    places = np.array([pile_places(row, BIN) for row in angles])
    radii = 1.0 + pile_gap(places.max(), STACK, REACH) * places
    draw_circle(axes[0], limit=1.05 + REACH)
    dots = axes[0].scatter(np.zeros(tokens), np.zeros(tokens), s=13, c=colors, linewidths=0, alpha=0.85, zorder=2)
    centers, tints = marks
    rings = axes[0].scatter(
        np.zeros(len(centers)),
        np.zeros(len(centers)),
        s=42,
        c=tints or None,
        edgecolors=style.PAPER,
        linewidths=0.8,
        zorder=4,
    )
    clock = axes[0].text(0, 0, "", ha="center", va="center", fontsize="large")
    highlight = {int(k): tint for k, tint in zip(centers, tints)}
    if tokens >= MANY:  # no telling lines apart
        world_counts(axes[1], run, MOMENTS, log)
    else:
        gaps = saved_states(run) is not None
        draw_world_lines(
            axes[1], *trace(run, log=log), log=log, colors=colors, width=0.7, highlight=highlight, gaps=gaps
        )
        style.panel(axes[1], "", _title(run, 5.4))
    still, anchors = landmarks(run), diamonds(axes[0])
    draw_landmarks(axes[1], still)
    left, right = axes[1].get_xlim()
    now = axes[1].axvline(left, color=style.INK, linewidth=1.0, zorder=6)
    veil = axes[1].axvspan(left, right, color=style.PAPER, alpha=0.78, linewidth=0, zorder=5)

    def update(frame: int) -> None:
        dots.set_offsets(radii[frame, :, None] * np.column_stack([np.cos(angles[frame]), np.sin(angles[frame])]))
        if len(centers):
            rings.set_offsets(states[frame, centers])
        anchors.set_offsets(still.at(float(times[frame])))
        moment = float(np.clip(times[frame], left, right))
        now.set_xdata([moment, moment])
        veil.set_x(moment)
        veil.set_width(right - moment)
        clock.set_text(style.time_label(float(f"{times[frame]:.3g}")))

    return Scene(page, (veil, now, dots, rings, anchors, clock), update, landmark_handles(still, ax=axes[1]))


def _sphere_scene(
    run: RunLike,
    film: Frames,
    memory: int,
    colors: np.ndarray,
    marks: tuple[np.ndarray, list[str]],
    view: View,
) -> Scene:
    from matplotlib.collections import LineCollection

    page, ax = style.figure(5.4, 5.6)
    draw_ball(ax, view)
    times, projected, path = film.times, view.project(film.states), view.project(film.path)
    tokens = projected.shape[1]
    layers = {}
    # What moves is drawn over the finished ball, so what is behind it is made as pale as the ball would veil it: by its colour, not by
    # its opacity, for dots of a cluster lie upon each other and would be as dark as in front.
    for name, order, opacity in (("back", 1.0, 0.35), ("front", 3.0, 1.0)):
        lines = LineCollection([], linewidths=1.2, zorder=order, capstyle="round")
        ax.add_collection(lines)
        dots = ax.scatter(
            np.zeros(tokens),
            np.zeros(tokens),
            s=30,
            linewidths=0.6,
            edgecolors=_veiled(style.PAPER, opacity),
            zorder=order + 0.3,
        )
        rings = ax.scatter([], [], s=90, facecolors="none", linewidths=1.4, zorder=order + 0.5)
        anchors = diamonds(ax, _veiled(style.INK, opacity), order + 0.6)
        layers[name] = (lines, dots, rings, anchors, opacity)
    centers, tints, still = marks[0], np.array(marks[1], dtype=object), landmarks(run)
    clock = ax.text(0.02, 0.02, "", transform=ax.transAxes)
    style.panel(ax, "", _title(run, 5.4))
    # Between saved states without dense output nobody knows the way: a trail has dots there.
    far = np.zeros((len(path) - 1, tokens), dtype=bool)
    if saved_states(run) is not None:
        far = angles_between(film.path) > STRIDE

    def update(frame: int) -> None:
        first, last = film.index[max(0, frame - memory)], film.index[frame]
        past, gap = path[first : last + 1], far[first:last]
        frozen = view.project(still.at(float(times[frame])))
        for name, (lines, dots, rings, anchors, opacity) in layers.items():
            sign = 1.0 if name == "front" else -1.0
            _set_trails(lines, past, gap, _veiled(colors, opacity), sign)
            shown = (projected[frame, :, 2] >= 0) == (name == "front")
            dots.set_offsets(projected[frame, shown, :2])
            dots.set_facecolor(_veiled(colors[shown], opacity))  # pyright: ignore
            there = shown[centers]
            rings.set_offsets(projected[frame, centers[there], :2])
            rings.set_edgecolor(_veiled(tints[there], opacity))  # pyright: ignore
            anchors.set_offsets(frozen[(frozen[:, 2] >= 0) == (name == "front"), :2])
        clock.set_text(style.time_label(float(f"{times[frame]:.3g}")))

    kept = 4 if still.any_frozen else 3
    return Scene(page, (*layers["back"][:kept], *layers["front"][:kept], clock), update, landmark_handles(still))


def _title(run: RunLike, inches: float) -> str:
    """The model, and how many saved states there are where they are all."""
    return describe_run(run, inches, note(saved_states(run), False).replace("drawn from ", ""))


def _veiled(colors: Any, opacity: float) -> np.ndarray:
    """Colours (m, 4) as they look through the ball, which lets `opacity` of them through."""
    from matplotlib.colors import to_rgb, to_rgba_array

    found = to_rgba_array(colors)
    found[:, :3] = opacity * found[:, :3] + (1.0 - opacity) * np.array(to_rgb(BALL))
    return found


def _set_trails(lines: Any, past: np.ndarray, gap: np.ndarray, colors: np.ndarray, sign: float) -> None:
    """Segments of the last moments `past` (m, tokens, 3) on one side of the ball, older ones paler.

    Where there is a `gap` (m - 1, tokens), a dot at the state before it.
    """
    if len(past) < 2:
        lines.set_segments([])
        return
    segments = np.stack([past[:-1], np.where(gap[..., None], past[:-1], past[1:])], axis=2)
    shown = sign * segments[..., 2].mean(axis=2) >= 0
    tint = np.broadcast_to(colors, (*shown.shape, 4)).copy()
    tint[..., 3] = np.linspace(0.1, 0.9, len(shown))[:, None]
    lines.set_segments(segments[shown][:, :, :2])
    lines.set_color(tint[shown])


def _gram_scene(run: RunLike, times: np.ndarray, states: np.ndarray, marks: tuple[np.ndarray, list[str]]) -> Scene:
    page, ax = style.figure(5.4, 5.4)
    still = landmarks(run)

    def matrix(frame: int) -> np.ndarray:
        return gram(states[frame], still.at(float(times[frame])), still.most_frozen)

    image = draw_cosines(ax, matrix(0))
    rows = row_marks(ax, states.shape[1]) if still.any_frozen else None
    ax.set_ylabel("token (from 0)")
    room: Any = {} if rows is None else {"pad": 0.1}  # for diamonds beside rows
    page.colorbar(image, ax=ax, shrink=0.8, label=r"$\langle x_j, x_k\rangle$", **room)
    centers, tints = marks
    if len(centers):
        beside: Any = {"transform": ax.get_yaxis_transform(), "clip_on": False, "zorder": 4}
        ax.scatter(np.full(len(centers), 1.018), centers, s=14, c=tints, marker="<", linewidths=0, **beside)
    others = landmark_handles(still, frozen=FROZEN_ROWS)
    if others or len(centers):
        draw_center_key(page, tints, "<", others)
    name = _title(run, 4.2)
    title = ax.set_title(f"{name}\n ", loc="left")  # room for two lines

    def update(frame: int) -> None:
        image.set_data(matrix(frame))
        if rows is not None:
            mark_rows(rows, matrix(frame))
        title.set_text(f"{name}\n{style.time_label(float(f'{times[frame]:.3g}'))}")

    return Scene(page, (image, *(rows or ()), title), update)


def _pictures(scene: Scene, frames: int, name: str, progress: bool | None, dpi: int = 120) -> Iterator[np.ndarray]:
    """RGB pictures (height, width, 3) with even sides. What stands still is drawn once, only what moves is drawn again."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(scene.page)
    scene.page.set_dpi(dpi)
    scene.update(0)
    for artist in scene.moving:
        artist.set_animated(True)
    canvas.draw()
    scene.page.set_layout_engine("none")
    still = canvas.copy_from_bbox(scene.page.bbox)  # pyright: ignore[reportAttributeAccessIssue]
    with progress_bar(f"writing {name}", frames, progress) as report:
        for frame in range(frames):
            canvas.restore_region(still)  # pyright: ignore[reportAttributeAccessIssue]
            scene.update(frame)
            for artist in scene.moving:
                artist.axes.draw_artist(artist)
            picture = np.asarray(canvas.buffer_rgba())[:, :, :3]
            yield picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2].copy()
            report(frame + 1)


def _write(pictures: Iterable[np.ndarray], target: Path, frames_per_second: int, hold: float) -> None:
    """Encode `pictures`; the film appears when it is complete."""
    with stores.new_file(target) as partial:
        encode = _write_gif if target.suffix.lower() == ".gif" else _write_mp4
        encode(pictures, partial, frames_per_second, hold)


def _palette(first: Any) -> Any:
    """Colours of a whole film: those of its first picture, and the colours of tokens at three strengths.

    The median cut of a picture gives nearly all of its colours to the greys of the shaded ball, and small dots lose their hue.
    """
    from matplotlib.colors import to_rgb
    from PIL import Image

    tints = np.array([to_rgb(color) for color in (*style.CATEGORICAL, style.RED, style.INK)])
    blends = np.concatenate([1.0 - strength * (1.0 - tints) for strength in (1.0, 0.55, 0.25)])
    kept = 256 - len(blends)
    base = first.quantize(kept).getpalette()[: 3 * kept]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*base, *[0] * (3 * kept - len(base)), *np.round(255 * blends).astype(int).ravel().tolist()])
    return palette


def _write_gif(pictures: Iterable[np.ndarray], path: Path, frames_per_second: int, hold: float) -> None:
    from PIL import Image

    images: list[Any] = []
    palette: Any = None
    for picture in pictures:
        image = Image.fromarray(picture)
        palette = _palette(image) if palette is None else palette
        images.append(image.quantize(palette=palette, dither=Image.Dither.NONE))
    # A picture of a .gif stands for whole hundredths of a second: each lasts until the next is due, so that nothing adds up.
    due = np.append(np.arange(len(images)) / frames_per_second, (len(images) - 1) / frames_per_second + hold)
    durations = (10 * np.diff(np.round(100 * due))).astype(int).tolist()
    images[0].save(path, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)


def _write_mp4(pictures: Iterable[np.ndarray], path: Path, frames_per_second: int, hold: float) -> None:
    import imageio_ffmpeg

    encoder = None
    try:
        for picture in pictures:
            if encoder is None:
                height, width, _ = picture.shape
                # yuv420p and an index at the front: what browsers and phones play at once.
                encoder = imageio_ffmpeg.write_frames(
                    str(path),
                    (width, height),
                    fps=frames_per_second,
                    codec="libx264",
                    pix_fmt_out="yuv420p",
                    macro_block_size=2,
                    quality=None,  # pyright: ignore[reportArgumentType]
                    output_params=["-crf", "20", "-movflags", "+faststart", "-f", "mp4"],
                )
                encoder.send(None)
            encoder.send(picture.tobytes())
        for _ in range(max(0, round(hold * frames_per_second) - 1)):
            assert encoder is not None
            encoder.send(picture.tobytes())
    finally:
        if encoder is not None:
            encoder.close()
