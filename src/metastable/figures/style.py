"""One look for every figure: colours, type, sizes, and the few helpers that keep axes quiet.

Two themes. `"print"` is set in a Times-like serif at 8 to 9 points, sized for a column of a paper; `"screen"` is
larger, in sans serif, for slides and notebooks. Both use fonts that ship with matplotlib, so a figure looks the same
on every machine.

Colours are taken from Okabe and Ito's palette (Color Universal Design, 2008) and ordered by lightness where order
matters, so they survive colour blindness and a grey-scale printer. Drawing functions never rely on colour alone:
centers differ from tokens by shape and size as well.

    from metastable.figures import style

    with style.theme("print"):
        figure, axes = style.figure(width=style.PAGE_WIDTH, height=2.4, columns=2)
        ...
        style.save(figure, "out/my-figure", formats=("png", "pdf"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metastable import _checks, stores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

COLUMN_WIDTH = 3.35
"""Width of one column of a two-column paper, in inches."""
TEXT_WIDTH = 5.5
"""Width of the text of a one-column paper, in inches."""
PAGE_WIDTH = 6.9
"""Width of both columns together, in inches."""

INK = "#16191d"
MUTED = "#6b7380"
FAINT = "#d5dae1"
PAPER = "#ffffff"

BLUE = "#0072b2"
VERMILLION = "#d55e00"
GREEN = "#009e73"
PURPLE = "#a05195"
ORANGE = "#e69f00"
SKY = "#56b4e9"
RED = "#c8201f"

RENYI = INK
"""Colour of Renyi centers (black in the paper)."""
STRONG = RED
"""Colour of strong Renyi centers (red in the paper)."""
FINAL = RED
"""Colour of final positions (red in the paper)."""
TOKEN = "#4a7ba6"
"""Colour of a token when order does not matter."""
THEORY = VERMILLION
"""Colour of a predicted curve."""
MEASURED = BLUE
"""Colour of a measured curve."""

GREY = "#8a8f98"
CATEGORICAL = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, "#7a4a1e", GREY, "#1b3a6b", "#f0a8bd")
"""Colours for unordered groups, in the order of use."""

THEMES = ("print", "screen")

_SHARED: dict[str, Any] = {
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.03,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.direction": "out",
    "ytick.direction": "out",
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.borderaxespad": 0.2,
    "lines.solid_capstyle": "round",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "metastable",
}

_PRINT: dict[str, Any] = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.titlesize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.8,
    "ytick.major.size": 2.8,
    "xtick.minor.size": 1.6,
    "ytick.minor.size": 1.6,
    "figure.dpi": 150,
    "savefig.dpi": 220,
}

_SCREEN: dict[str, Any] = {
    **_PRINT,
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "dejavusans",
    "font.size": 10.5,
    "axes.labelsize": 10.5,
    "axes.titlesize": 10.5,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.5,
    "figure.dpi": 110,
    "savefig.dpi": 150,
}


@contextmanager
def theme(name: str = "print") -> Iterator[None]:
    """Draw inside this context to use the theme `"print"` or `"screen"`."""
    import matplotlib

    _checks.choice(name, "theme", THEMES)
    settings: Any = {**_SHARED, **(_PRINT if name == "print" else _SCREEN)}
    interactive = matplotlib.is_interactive()
    try:
        with matplotlib.rc_context(settings):
            try:
                yield
            finally:
                interactive = matplotlib.is_interactive()
    finally:
        # The first figure of all loads the backend, and that of notebooks then says that figures are shown. The end of the context
        # would take it back: a notebook whose first figure is ours would show none of the later ones.
        matplotlib.interactive(interactive)


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: gives `draw` a keyword `theme="print"` and runs it inside that theme."""

    @wraps(draw)
    def wrapper(*arguments: Any, theme: str = "print", **options: Any) -> Any:
        with globals()["theme"](theme):
            return draw(*arguments, **options)

    return wrapper


def figure(
    width: float = COLUMN_WIDTH,
    height: float | None = None,
    rows: int = 1,
    columns: int = 1,
    *,
    managed: bool = False,
    **grid: Any,
) -> tuple[Figure, Any]:
    """A figure of `width` x `height` inches and its axes (one, or an array as from `plt.subplots`).

    `managed=True` registers it with pyplot, so that `plt.show()` and notebooks display it; by default the figure
    belongs to nobody but the caller and needs no closing. `grid` goes to `Figure.subplots`.
    """
    tall = width * 0.68 if height is None else height
    if managed:
        import matplotlib.pyplot as plt

        page = plt.figure(figsize=(width, tall), layout="constrained")
    else:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        page = Figure(figsize=(width, tall), layout="constrained")
        FigureCanvasAgg(page)
    return page, page.subplots(rows, columns, **grid)


def save(page: Figure, stem: str | Path, formats: Sequence[str] = ("png",), dpi: int | None = None) -> list[Path]:
    """Write `page` as `stem.png`, `stem.pdf`, ...; returns the paths. Files carry no date, so equal figures are equal
    bytes.
    """
    written = []
    for kind in formats:
        path = Path(stem).with_name(Path(stem).name + "." + kind)
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
        options: dict[str, Any] = {} if dpi is None else {"dpi": dpi}
        with stores.new_file(path, durable=False) as partial, theme_of_files():
            page.savefig(partial, format=kind, metadata=metadata, **options)
        written.append(path)
    return written


@contextmanager
def theme_of_files() -> Iterator[None]:
    """Only the settings that concern writing a file (tight box, resolution), whatever theme the figure was drawn in."""
    import matplotlib

    keys = ("savefig.bbox", "savefig.pad_inches", "savefig.facecolor", "pdf.fonttype", "svg.fonttype", "svg.hashsalt")
    settings: Any = {**{key: _SHARED[key] for key in keys}, "savefig.dpi": _PRINT["savefig.dpi"]}
    with matplotlib.rc_context(settings):
        yield


@cache
def sequence_map() -> Colormap:
    """Colour map for ordered things (token index, time): dark blue to sand, lightness strictly increasing."""
    from matplotlib.colors import LinearSegmentedColormap

    anchors = ("#10243f", "#1c4f7c", "#2b7f99", "#58a98f", "#a9c27a", "#e8cf79")
    return LinearSegmentedColormap.from_list("metastable.sequence", anchors)


@cache
def diverging_map() -> Colormap:
    """Colour map for signed things: blue (negative), near white, vermillion (positive)."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(
        "metastable.diverging", ("#0b4f7d", "#74aed3", "#f6f5f2", "#e9a06c", "#a94500")
    )


@cache
def heat_map() -> Colormap:
    """Colour map for non-negative things (attention weights): paper white to dark blue."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("metastable.heat", ("#fdfdfb", "#c9dfe6", "#6fa9c2", "#26618f", "#10243f"))


@cache
def density_map() -> Colormap:
    """Colour map for how many: pale blue for one, dark for many."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(
        "metastable.density", ("#dbe9ef", "#8fbdd0", "#3f86ad", "#1c4f7c", "#0a1626")
    )


def token_colors(tokens: int) -> np.ndarray:
    """RGBA colours (tokens, 4) by position in the sequence: the first token darkest."""
    return sequence_map()(np.linspace(0.0, 1.0, max(tokens, 2))[:tokens])


def cluster_colors(labels: Any) -> np.ndarray:
    """RGBA colours (tokens, 4) of cluster labels 0..m-1, cycling through `CATEGORICAL`."""
    from matplotlib.colors import to_rgba_array

    palette = to_rgba_array(CATEGORICAL)
    return palette[np.asarray(labels, dtype=int) % len(palette)]


def plain(text: str) -> str:
    """Text as it is: a dollar sign in it begins no formula."""
    return text.replace("$", r"\$")


def time_label(t: float, symbol: str = "t") -> str:
    """`t = 75`, or a power of ten from 10^5 on."""
    if t != 0 and (abs(t) >= 1e5 or abs(t) < 1e-3):
        mantissa, exponent = f"{t:.1e}".split("e")
        front = "" if mantissa == "1.0" else rf"{mantissa}\times "
        return rf"${symbol} = {front}10^{{{int(exponent)}}}$"
    short = f"{t:.4g}"
    return rf"${symbol} = {f'{t:.0f}' if 'e' in short else short}$"


def token_key(page: Figure, ax: Axes, tokens: int) -> None:
    """A slim colour bar beside `ax`: which colour is which token of the sequence (see `token_colors`)."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    if tokens < 2:
        return
    bar = page.colorbar(
        ScalarMappable(Normalize(0, tokens - 1), sequence_map()), ax=ax, pad=0.01, aspect=40, shrink=0.8
    )
    bar.set_ticks([0, tokens - 1])
    bar.set_label("token, in order (from 0)", labelpad=-6)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def page_key(page: Figure, handles: Sequence[Any], title: str = "") -> None:
    """One line of a key below everything on a page, with a title over it."""
    key = page.legend(
        handles=handles,
        title=title or None,
        loc="outside lower left",
        ncols=len(handles),
        fontsize="small",
        title_fontsize="small",
        handletextpad=0.1,
        columnspacing=0.8,
        borderaxespad=0.2,
    )
    key.set_alignment("left")


def panel(ax: Axes, letter: str = "", title: str = "") -> None:
    """Title on the left with a bold panel letter: **a** title."""
    text = rf"$\mathbf{{{letter}}}$" if letter else ""
    ax.set_title("  ".join(part for part in (text, title) if part), loc="left")


def bare(ax: Axes) -> None:
    """An axis for pictures: equal aspect, no frame, no ticks."""
    ax.set_aspect("equal")
    ax.set_axis_off()


def grid(ax: Axes, axis: str = "both") -> None:
    """Hairlines behind the data."""
    ax.grid(True, axis=axis, color=FAINT, linewidth=0.5, which="major")  # pyright: ignore[reportArgumentType]


def log_time_axis(ax: Axes, low: float, high: float, label: str = "depth $t$") -> None:
    """A horizontal axis in log time from `low` to `high` with few, round decades (fifty decades are common here)."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ax.set_xscale("log")
    ax.set_xlim(low, high)
    first, last = int(np.ceil(np.log10(low) - 1e-9)), int(np.floor(np.log10(high) + 1e-9))
    span = max(last - first, 1)
    step = next((s for s in (1, 2, 5, 10, 20, 50) if span / s <= 7), 100)
    first = int(np.ceil(first / step) * step)
    ax.xaxis.set_major_locator(FixedLocator([10.0**e for e in range(first, last + 1, step)]))
    if step == 1:
        minor = [k * 10.0**e for e in range(first - 1, last + 1) for k in range(2, 10)]
        ax.xaxis.set_minor_locator(FixedLocator([m for m in minor if low <= m <= high]))
    else:
        ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(label)


def angle_axis(ax: Axes, axis: str = "y", label: str = r"angle $\theta$ (rad)") -> None:
    """An axis of angles from -pi to pi with ticks at multiples of pi/2."""
    ticks = [-np.pi, -np.pi / 2, 0.0, np.pi / 2, np.pi]
    names = [r"$-\pi$", r"$-\pi/2$", "$0$", r"$\pi/2$", r"$\pi$"]
    if axis == "y":
        ax.set_ylim(-np.pi, np.pi)
        ax.set_yticks(ticks, names)
        ax.set_ylabel(label)
    else:
        ax.set_xlim(-np.pi, np.pi)
        ax.set_xticks(ticks, names)
        ax.set_xlabel(label)
