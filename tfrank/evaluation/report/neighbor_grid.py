"""A picture of queries and their nearest neighbours."""

import io
from collections.abc import Callable

import numpy as np


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
    # Not pyplot: no window system, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = neighbors.shape
    figure = Figure(figsize=(1.1 * (columns + 1), 1.25 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns + 1, squeeze=False)
    for line, query, nearest in zip(axes, queries, neighbors):
        for axis, number in zip(line, [query, *nearest]):
            axis.set_xticks([])
            axis.set_yticks([])
            if number < 0:
                axis.set_axis_off()
                continue
            axis.imshow(image_of(number))
            color = "tab:green" if labels[number] == labels[query] else "tab:red"
            is_query = axis is line[0]
            axis.spines[:].set(color="black" if is_query else color, linewidth=3)
        line[0].set_title(names(query), fontsize=7)
    axes[0, 1].set_title("nearest first", fontsize=7)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()
