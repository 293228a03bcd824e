"""Charts as inline SVG: text stays text, and the page's style sheet sets the colours, light or dark."""

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from tfrank.evaluation.report.curves import Histogram

# Chart size in chart units, which are pixels on a phone, where a chart is as wide as the window.
WIDTH, HEIGHT = 340, 270
# Width and maximum height of a map on a screen and on a phone; and its margin.
MAP, NARROW_MAP, MARGIN = (720, 620), (340, 400), 12
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 34, 50
# Numbers of styles in the style sheet for lines and for points (five colours, round and square).
LINE_STYLES, POINT_STYLES = 4, 10
# Number of classes with a colour, and a name if there is room, on a map; and the maximum letters of a name.
NAMED, LETTERS = 30, 22
# Height of a name and approximate width of a letter; Chinese, Japanese and Korean ones are twice as wide.
NAME_HEIGHT, LETTER_WIDTH = 17, 10.2
MINUS = "\N{MINUS SIGN}"
# Number of points through which a curve over all K is drawn.
CURVE_POINTS = 200


class Chart(NamedTuple):
    """A chart of a report.

    Attributes:
        title: the title.
        svg: an `<svg>` element.
        caption: one or two sentences that describe the chart.
        legend: (key, name) of each curve; empty if there is only one.
        wide: whether it takes the space of four charts.
        narrow: an `<svg>` element for a phone, if `svg` is too wide for one.
    """

    title: str
    svg: Markup
    caption: str
    legend: tuple[tuple[Markup, str], ...] = ()
    wide: bool = False
    narrow: Markup = Markup()


def plain(value: Any) -> str:
    """A value from data as text that is valid in HTML, without control characters and surrogates.

    Bytes are decoded as UTF-8. Characters that cannot be shown become U+FFFD, tabs and line ends a blank.

    >>> plain(b"caf\\xc3\\xa9\\n\\xff\\x00")
    'café ��'
    """
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char in "\t\n\r\u2028\u2029":
        return " "
    return "\ufffd" if unicodedata.category(char) in ("Cc", "Cs", "Cn") else char


def percent(share: float, digits: int = 1) -> str:
    """A share in percent.

    >>> percent(0.91234)
    '91.2\\xa0%'
    """
    return f"{100 * share:.{digits}f}\u00a0%"


def precision_recall(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Chart:
    """Precision against recall.

    Args:
        curves: maps the name of a run to its recall and mean precision, as from `curves.precision_recall`.
    """
    ticks = [(share, f"{100 * share:.0f}") for share in np.linspace(0, 1, 6)]
    at_half = [(name, percent(np.interp(0.5, *curve))) for name, curve in curves.items()]
    return Chart(
        "Precision and recall",
        _frame(
            "Precision and recall", "recall in %", "precision in %", ticks, ticks, _lines(curves.values())
        ),
        f"At a recall of 50\u00a0% the precision is {_each(at_half)} (interpolated, mean over the queries)."
        " The higher the line, the better.",
        _line_legend(curves),
    )


def recall_at_k(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Chart:
    """Recall@K against K, on a logarithmic axis.

    Args:
        curves: maps the name of a run to its Ks and its Recall@K, as from `curves.recall_curve`.
    """
    # At least 2, so that the axis has a length.
    high = max(2, *(int(ks[-1]) for ks, _ in curves.values()))
    low = max(0.0, math.floor(10 * min(recall[0] for _, recall in curves.values()) - 0.2) / 10)
    lines = []
    for ks, recall in curves.values():
        rows = np.unique(np.geomspace(1, len(ks), CURVE_POINTS).round().astype(int)) - 1
        lines.append((np.log(ks[rows]) / math.log(high), (recall[rows] - low) / (1 - low)))
    x_ticks = [(math.log(k) / math.log(high), _short(k)) for k in _log_ticks(high)]
    y_ticks = [((tick - low) / (1 - low), f"{100 * tick:.0f}") for tick in _ticks(low, 1)]
    at_1 = [(name, percent(recall[0])) for name, (_, recall) in curves.items()]
    last = [(name, percent(recall[-1])) for name, (_, recall) in curves.items()]
    return Chart(
        "Recall@K",
        _frame("Recall@K", "K, logarithmic", "Recall@K in %", x_ticks, y_ticks, _lines(lines)),
        f"Share of queries with a positive: at rank 1 {_each(at_1)}, among the {high:,} nearest images"
        f" {_each(last)}.",
        _line_legend(curves),
    )


def line_charts(curves: Mapping[str, Mapping[str, Sequence]]) -> list[Chart]:
    """The charts of precision against recall and of Recall@K; `curves` maps names of runs to both curves."""

    def of_kind(kind):
        return {name: tuple(map(np.array, one[kind])) for name, one in curves.items()}

    return [precision_recall(of_kind("precision_recall")), recall_at_k(of_kind("recall_at_k"))]


def similarities(histogram: Histogram) -> Chart:
    """Similarities of positive pairs and of negative pairs: the less the two overlap, the better."""
    edges, densities = histogram.edges, [histogram.positive, histogram.negative]
    used = np.flatnonzero(sum(densities))
    first, last = (used[0], used[-1]) if len(used) else (0, len(edges) - 2)
    low, high, top = edges[first], edges[last + 1], max(np.max(densities), 1e-9)
    x = (np.repeat(edges[first : last + 2], 2) - low) / (high - low)
    drawn = Markup()
    for style, density in enumerate(densities):
        y = np.pad(np.repeat(density[first : last + 1], 2), 1) / top
        points = _points(x, y)
        drawn += Markup('<polygon class="area a{0}" points="{1}"/>').format(style, points)
        drawn += Markup('<polyline class="line s{0}" points="{1}"/>').format(style, points)
    overlap = np.sum(np.minimum(*densities)) * (edges[1] - edges[0])
    middle = (edges[1:] + edges[:-1]) / 2
    means = [float(middle @ density) * (edges[1] - edges[0]) for density in densities]
    x_ticks = [((tick - low) / (high - low), _short(tick)) for tick in _ticks(low, high)]
    y_ticks = [(tick / top, _short(tick)) for tick in _ticks(0, top)]
    title = "Similarities of pairs"
    return Chart(
        title,
        _frame(title, "cosine similarity", "density", x_ticks, y_ticks, drawn),
        f"Positive pairs have a mean similarity of {means[0]:.3f}, negative pairs of {means[1]:.3f};"
        f" the two areas overlap by {percent(overlap)}. The less they overlap, the better. Every pair counts"
        " the same here, so large classes count most. In dists@intra every class counts the same.",
        _line_legend(["positive pairs", "negative pairs"]),
    )


def loss_of_training(steps: np.ndarray, loss: np.ndarray) -> Chart:
    """The loss of a run against the step. In long runs, each point is the mean of several steps.

    Args:
        steps: `[n]` ascending.
        loss: `[n]` finite.
    """
    group = math.ceil(len(steps) / CURVE_POINTS)
    starts = np.arange(0, len(steps), group)
    sizes = np.diff([*starts, len(steps)])
    means = [np.add.reduceat(values, starts) / sizes for values in (steps.astype(float), loss)]
    each = f" Each point is the mean of {group} steps." if group > 1 else ""
    caption = f"From {loss[0]:.3f} at step {steps[0]:,} to {loss[-1]:.3f} at step {steps[-1]:,}.{each}"
    return _against_step("Loss of training", "loss", means, caption, share=False)


def validation_of_training(steps: np.ndarray, recall: np.ndarray) -> Chart:
    """Recall@1 of the validation classes against the step.

    Args:
        steps: `[n]` ascending.
        recall: `[n]` shares, 0 to 1.
    """
    best = int(np.argmax(recall))
    caption = f"Highest at step {steps[best]:,}: {percent(recall[best])}."
    title = "Validation during training"
    return _against_step(title, "Recall@1 in %", [steps.astype(float), recall], caption, share=True)


def _against_step(title, y_name, curve, caption, *, share) -> Chart:
    steps, values = curve
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) or max(abs(high), 1e-6) * 0.05
    low, high = low - margin, high + margin
    first, last = float(min(0, steps[0])), float(max(steps[-1], 1))
    x_ticks = [((tick - first) / (last - first), _short(tick)) for tick in _ticks(first, last)[::2]]
    y_ticks = [
        ((tick - low) / (high - low), _short(round(100 * tick, 8) if share else tick))
        for tick in _ticks(low, high)
    ]
    line = _lines([((steps - first) / (last - first), (values - low) / (high - low))])
    return Chart(title, _frame(title, "step", y_name, x_ticks, y_ticks, line), caption)


def embedding_map(places: np.ndarray, labels: np.ndarray, names: Callable[[int], str]) -> Chart:
    """The map of embeddings: largest classes in colours, with names if there is room, and the others grey.

    Args:
        places: `[n, 2]`, as from `curves.map_2d`.
        labels: `[n]` integers.
        names: gives the name of a label.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    largest = classes[np.argsort(-sizes, kind="stable")][:NAMED]
    others = classes[~np.isin(classes, largest)]
    known = {int(label): plain(names(int(label))) for label in classes}
    wide, narrow = (_map(places, labels, others, largest, known, size) for size in (MAP, NARROW_MAP))
    grey = (
        f" The {len(largest)} largest classes are in colours, {len(others):,} others grey."
        if len(others)
        else ""
    )
    return Chart(
        "Map of embeddings",
        wide,
        f"{len(labels):,} images by t-SNE: neighbours have similar embeddings. Axes and large distances have"
        " no meaning. A good model makes an island of each class. The name of a class is at the middle of its"
        f" images if there is room. Point at a dot to see its class.{grey}",
        wide=True,
        narrow=narrow,
    )


def _map(places, labels, others, largest, names, size) -> Markup:
    """A map as wide as `size` and at most as high; both axes have the same scale."""
    extent = np.maximum(np.ptp(places, axis=0), 1e-9)
    scale = ((np.array(size) - 2 * MARGIN) / extent).min()
    size = size[0], int(np.clip(scale * extent[1] + 2 * MARGIN, size[0] / 2, size[1]))
    centered = places - (places.max(axis=0) + places.min(axis=0)) / 2
    places = np.array(size) / 2 + centered * scale
    points = {int(label): places[labels == label] for label in (*others, *largest)}
    groups = [_group("rest", points[int(label)], names[int(label)]) for label in others]
    groups += [_group(f"p{n % POINT_STYLES}", points[int(c)], names[int(c)]) for n, c in enumerate(largest)]
    middles = [(shortened(names[int(c)]), *np.median(points[int(c)], axis=0)) for c in largest]
    text = Markup('<text class="halo" x="{:.1f}" y="{:.1f}" dy="5">{}</text>')
    written = [text.format(x, y, name) for name, x, y in place_names(middles, size)]
    return _svg("Map of embeddings", *size, Markup().join([*groups, *written]))


def shortened(name: str) -> str:
    """A name, shortened if it is too long for a map.

    >>> shortened("Great Crested Flycatcher of the East")
    'Great Crested Flycatc…'
    """
    return name if len(name) <= LETTERS else f"{name[: LETTERS - 1].rstrip()}…"


def place_names(
    names: Sequence[tuple[str, float, float]], size: tuple[int, int]
) -> list[tuple[str, float, float]]:
    """Positions for the names that fit, each at or beside its place; none overlaps or leaves the chart.

    Args:
        names: (name, x, y), most important first.
        size: width and height of the chart.

    >>> place_names([("cat", 50, 50), ("dog", 50, 50), ("far", 300, 50)], (400, 100))
    [('cat', 50.0, 50), ('dog', 50.0, 33), ('far', 300.0, 50)]
    """
    placed, taken = [], []
    for name, x, y in names:
        width = LETTER_WIDTH * sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in name)
        for across, down in ((0, 0), (0, -1), (0, 1), (-0.6, 0), (0.6, 0)):
            at = x + across * width, y + down * NAME_HEIGHT
            box = at[0] - width / 2, at[1] - NAME_HEIGHT / 2, at[0] + width / 2, at[1] + NAME_HEIGHT / 2
            inside = box[0] >= 0 and box[1] >= 0 and box[2] <= size[0] and box[3] <= size[1]
            if inside and not any(_overlap(box, other) for other in taken):
                placed.append((name, *at))
                taken.append(box)
                break
    return placed


def _overlap(one, other) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _group(style: str, points: np.ndarray, name: str) -> Markup:
    """The points of a class, drawn as very short lines with round or square ends.

    Their length is not 0, because lines of length 0 are not printed.
    """
    path = "".join(f"M{x:.1f} {y:.1f}h.1" for x, y in points)
    return Markup('<path class="dot {}" d="{}"><title>{}</title></path>').format(style, path, plain(name))


def _frame(title, x_name, y_name, x_ticks, y_ticks, drawn) -> Markup:
    """A chart with axes, ticks as (position from 0 to 1, text), and the drawn content."""
    parts = []
    for share, text in y_ticks:
        _, y = _place(0, share)
        parts.append(Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(LEFT, y, WIDTH - RIGHT))
        label = Markup('<text class="end" x="{}" y="{:.1f}" dy="5">{}</text>')
        parts.append(label.format(LEFT - 6, y, text))
    for share, text in x_ticks:
        x, y = _place(share, 0)
        parts.append(Markup('<path class="tick" d="M{:.1f} {:.1f}v5"/>').format(x, y))
        parts.append(Markup('<text class="mid" x="{:.1f}" y="{:.1f}">{}</text>').format(x, y + 20, text))
    axis = Markup('<path class="axis" d="M{:.1f} {:.1f}H{}"/>').format(*_place(0, 0), WIDTH - RIGHT)
    named = Markup('<text class="name" x="4" y="16">{}</text>').format(y_name)
    named += Markup('<text class="name end" x="{}" y="{}">{}</text>').format(
        WIDTH - RIGHT, HEIGHT - 8, x_name
    )
    return _svg(title, WIDTH, HEIGHT, Markup().join([*parts, axis, drawn, named]))


def _svg(title, width, height, content) -> Markup:
    opening = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(width, height, title)
    return opening + content + Markup("</svg>")


def _lines(curves) -> Markup:
    """A line for each curve (x, y), both from 0 to 1."""
    line = Markup('<polyline class="line s{}" points="{}"/>')
    return Markup().join(line.format(n % LINE_STYLES, _points(*curve)) for n, curve in enumerate(curves))


def _line_legend(names: Iterable[str]) -> tuple[tuple[Markup, str], ...]:
    names = list(names)
    keys = [_key(f"line s{number % LINE_STYLES}", "M1 7h26") for number in range(len(names))]
    return tuple(zip(keys, names)) if len(names) > 1 else ()


def _key(style: str, path: str) -> Markup:
    """The symbol of a legend entry."""
    shape = Markup('<svg class="key" viewBox="0 0 28 14" aria-hidden="true"><path class="{}" d="{}"/></svg>')
    return shape.format(style, path)


def _points(xs, ys) -> str:
    return " ".join("{:.1f},{:.1f}".format(*_place(x, y)) for x, y in zip(xs, ys))


def _place(x: float, y: float) -> tuple[float, float]:
    """Chart coordinates of a point given as shares of the axes."""
    return LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)


def _each(values: list[tuple[str, str]]) -> str:
    """The value of the only run, or the values of several with their names."""
    if len(values) == 1:
        return values[0][1]
    return ", ".join(f"{value} ({plain(name)})" for name, value in values)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(high - low))
    step = next(step * power for step in (0.2, 0.5, 1, 2) if (high - low) / (step * power) < 7)
    return [round(n * step, 10) for n in range(math.ceil(low / step - 1e-9), int(high / step + 1e-9) + 1)]


def _log_ticks(high: int) -> list[int]:
    """Powers of ten from 1 to `high`; if `high` is at most 100, also 2 and 5 times these."""
    steps = (1, 2, 5) if high <= 100 else (1,)
    return [step * 10**power for power in range(len(str(high))) for step in steps if step * 10**power <= high]


def _short(number: float) -> str:
    """A number as short text for an axis.

    >>> _short(-0.5), _short(1000), _short(20_000_000)
    ('−0.5', '1k', '20M')
    """
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}".replace("-", MINUS)
    return f"{number:g}".replace("-", MINUS)
