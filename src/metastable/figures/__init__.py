"""Pictures: one style, primitives that draw on a given axis, the paper's figures, animation. Nothing here simulates.

- `style`: themes, colours, sizes, `figure`, `save`
- `draw_run(run)`, `animate(run, path)`: what `Run.plot` and `Run.animate` call
- `sphere_view`, `circle_view`, `curves`: primitives that draw on a given matplotlib axis
- `figure_1` ... `figure_6`, `statements`: the figures of arXiv:2411.04990 and of its statements, from arrays
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "animation": ("animate",),
    "run_view": ("draw_run", "sample"),
    "interactive": ("plotly_run",),
    "sphere_view": (
        "View",
        "draw_ball",
        "draw_caps",
        "draw_direction",
        "draw_great_circle",
        "draw_paths",
        "draw_points",
    ),
    "circle_view": ("draw_centers", "draw_circle", "draw_tokens", "draw_world_lines"),
    "curves": ("draw_attention", "draw_band", "draw_dendrogram", "draw_error_points", "draw_spectrum"),
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "View",
    "animate",
    "draw_attention",
    "draw_ball",
    "draw_band",
    "draw_caps",
    "draw_centers",
    "draw_circle",
    "draw_dendrogram",
    "draw_direction",
    "draw_error_points",
    "draw_great_circle",
    "draw_paths",
    "draw_points",
    "draw_run",
    "draw_spectrum",
    "draw_tokens",
    "draw_world_lines",
    "plotly_run",
    "sample",
    "style",
]


def __getattr__(name: str) -> Any:
    """Import on first use: matplotlib is not needed to import metastable."""
    if name == "style":
        value: Any = import_module("metastable.figures.style")
    elif name in _HOME:
        value = getattr(import_module(f"metastable.figures.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module 'metastable.figures' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from metastable.figures import style
    from metastable.figures.animation import animate
    from metastable.figures.circle_view import draw_centers, draw_circle, draw_tokens, draw_world_lines
    from metastable.figures.curves import draw_attention, draw_band, draw_dendrogram, draw_error_points, draw_spectrum
    from metastable.figures.interactive import plotly_run
    from metastable.figures.run_view import draw_run, sample
    from metastable.figures.sphere_view import (
        View,
        draw_ball,
        draw_caps,
        draw_direction,
        draw_great_circle,
        draw_paths,
        draw_points,
    )
