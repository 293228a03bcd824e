"""What a person gets to see of an evaluation."""

import io
from collections.abc import Callable, Mapping

import numpy as np

DEFINITION = (
    "Recall@K: share of queries with at least one image of their class among the K nearest,"
    " the query itself left out."
)


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """The metrics of several models, a line each, and what they mean."""
    keys = [key for key in next(iter(rows.values())) if key not in ("queries", "lone_queries")]
    titles = [key.replace("recall_at_", "Recall@").replace("map", "mAP") for key in keys]
    width = max(map(len, rows))
    lines = [" " * width + "".join(f"{title:>14}" for title in titles)]
    for name, row in rows.items():
        lines.append(f"{name:<{width}}" + "".join(f"{row[key]:>14.4f}" for key in keys))
    last = next(reversed(rows.values()))
    lines.append(
        f"{last['queries']} queries, {last['lone_queries']} without another image of their class left out."
    )
    return "\n".join([*lines, DEFINITION])


def neighbor_grid(
    image_of: Callable[[int], np.ndarray],
    queries: np.ndarray,
    neighbors: np.ndarray,
    labels: np.ndarray,
    names: Callable[[int], str],
) -> bytes:
    """A PNG: a row for each query, then its nearest images, green for its class, red for another.

    Args:
        image_of: gives the image of a number, `[height, width, 3]` uint8.
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
