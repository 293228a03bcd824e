"""A picture of queries and their nearest neighbours."""

import io
from collections.abc import Callable

import numpy as np

# Inches: the place of an image with the free edge around it, and the height of a row with its title.
SIDE, EDGE, ROW = 1.1, 0.04, 1.25


def neighbor_grid(
    image_of: Callable[[int], np.ndarray],
    queries: np.ndarray,
    neighbors: np.ndarray,
    labels: np.ndarray,
    names: Callable[[int], str],
) -> bytes:
    """A PNG with a row for each query and its nearest images: green for its class, red for another.

    Args:
        image_of: gives the image with a number, `[height, width, 3]` uint8.
        queries: `[rows]` image numbers.
        neighbors: `[rows, columns]` image numbers, nearest first; -1 for none.
        labels: `[images]`.
        names: gives the name of a number's class.
    """
    # Not pyplot: no window system, no global state. One pair of axes for all images, since one for each of
    # them takes four times as long.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rows, columns = neighbors.shape
    figure = Figure(figsize=(SIDE * (columns + 1), ROW * rows))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    for row, (query, nearest) in enumerate(zip(queries, neighbors), start=1):
        top, bottom = ROW * row - SIDE + EDGE, ROW * row - EDGE
        # From the left edge on, where a long name has room.
        title = names(query) + (", nearest first" if row == 1 else "")
        # Of a name such as "$5 bill", no formula is made.
        axes.text(EDGE, top - EDGE, title, fontsize=7, verticalalignment="bottom", parse_math=False)
        for column, number in enumerate([query, *nearest]):
            if number < 0:
                continue
            left, right = SIDE * column + EDGE, SIDE * (column + 1) - EDGE
            axes.imshow(image_of(number), extent=(left, right, bottom, top))
            color = "tab:green" if labels[number] == labels[query] else "tab:red"
            color = color if column else "black"
            frame = Rectangle((left, top), right - left, bottom - top, fill=False, color=color, linewidth=3)
            axes.add_patch(frame)
    axes.set(xlim=(0, SIDE * (columns + 1)), ylim=(ROW * rows, 0))
    axes.set_axis_off()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()
