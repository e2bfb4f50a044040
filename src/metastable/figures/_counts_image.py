"""Numbers in cells as an image in which no cell is lost where pixels are larger than cells.

Only ever imported inside functions: matplotlib takes half a second to load.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.image import AxesImage
from matplotlib.transforms import IdentityTransform


class CountsImage(AxesImage):
    """`numbers` (rows, columns) in cells between `edges`, those of the columns (columns + 1,) and of the rows, on axes of any scale.

    A pixel shows the cell in its middle and all cells whose middles are in it: the largest of their numbers. So cells that are larger
    than pixels are drawn as they are, and of many in one pixel the fullest is seen. What is not positive stays blank.
    """

    def __init__(self, ax: Any, edges: tuple[np.ndarray, np.ndarray], numbers: np.ndarray, **options: Any) -> None:
        extent = (edges[0][0], edges[0][-1], edges[1][0], edges[1][-1])
        super().__init__(ax, extent=extent, origin="lower", interpolation="nearest", **options)
        self.edges = edges
        self.set_data(np.ma.masked_less_equal(numbers, 0.0))
        self.set_clip_path(ax.patch)

    def make_image(self, renderer: Any, magnification: float = 1.0, unsampled: bool = False) -> Any:
        """The pixels (height, width, 4) of the axes, where they begin, and how they are turned: not at all."""
        box = self.axes.bbox
        left, bottom, right, top = np.rint(np.asarray(box.extents) * magnification).astype(int)
        numbers: Any = self.get_array()
        seen = np.ma.filled(numbers, 0.0)
        to_data = self.axes.transData.inverted()
        for axis, pixels in ((0, right - left), (1, top - bottom)):
            # Limits and middles of pixels, in turns; the first and the last limit are those of the axes, on which cells may end.
            places = np.tile(box.min, (2 * pixels + 1, 1))
            places[:, axis] = np.linspace(box.min[axis], box.max[axis], len(places))
            seen = _largest(seen, self.edges[axis], to_data.transform(places)[:, axis], 1 - axis)
        picture: Any = self.to_rgba(np.ma.masked_less_equal(seen, 0.0), bytes=True)
        return picture, left / magnification, bottom / magnification, IdentityTransform()

    def get_cursor_data(self, event: Any) -> Any:
        """The number under the mouse."""
        column, row = (int(np.searchsorted(edges, at)) - 1 for edges, at in zip(self.edges, (event.xdata, event.ydata)))
        numbers: Any = self.get_array()
        rows, columns = numbers.shape
        return numbers[row, column] if 0 <= row < rows and 0 <= column < columns else None


def _largest(numbers: np.ndarray, edges: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    """The largest of `numbers` (cells along `axis` end at `edges`) for each pixel; `places`: limits and middles of pixels, in turns."""
    limits, middles = places[::2], places[1::2]
    cells = len(edges) - 1
    ends = np.searchsorted(0.5 * (edges[1:] + edges[:-1]), limits)
    inside = np.sort([ends[:-1], ends[1:]], axis=0)  # axes may be turned round
    there = np.searchsorted(edges, middles, side="right") - 1
    # Behind the cells is an empty one, which pixels beside them show.
    there = np.where((there < 0) | (there >= cells), np.where(inside[0] < inside[1], inside[0], cells), there)
    first, last = np.minimum(inside[0], there), np.maximum(inside[1], there + 1)
    first = np.where(there == cells, cells, first)
    padding = [(0, 0), (0, 0)]
    padding[axis] = (0, 2)
    bounds = np.column_stack([first, last]).ravel()
    pooled = np.maximum.reduceat(np.pad(numbers, padding), bounds, axis=axis)
    return pooled[::2] if axis == 0 else pooled[:, ::2]
