"""An evaluation as one HTML file that a person looks at. It knows no model and no config: data in, text out.

Everything that comes from data is escaped, and the file loads nothing from outside.
"""

import base64
import hashlib
import importlib.resources
import io
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup, escape
from PIL import Image

from tfrank.common import checks
from tfrank.evaluation.metrics import COUNTS, metric_title
from tfrank.evaluation.report.bootstrap import FEWEST_GROUPS
from tfrank.evaluation.report.charts import MINUS, Chart, percent, plain
from tfrank.evaluation.report.curves import ClassScore
from tfrank.evaluation.standings import Standing

# Thumbnails have twice the pixels that they are shown with, and some more, to be enlarged; images as small as
# `SMALL` are shown pixel by pixel.
THUMBNAIL, QUALITY, SMALL = 256, 78, 64
# Proportions that rows are laid out by: narrower and wider images have a margin.
NARROWEST_PLACE, WIDEST_PLACE = 0.5, 2.5
PLACES_PER_ONE = 50
# Neither good nor bad when they grow, and no shares.
DISTANCES = ("dists_intra", "dists_inter")
NONE = "\N{EN DASH}"


@dataclass(frozen=True)
class Picture:
    """An image of a row.

    Attributes:
        jpeg: the encoded image, as of `thumbnail`.
        caption: such as the name of its class; text or UTF-8 bytes.
        correct: whether it is of the query's class; None where that is not known, and for a query.
        similarity: to the query.
        rank: from 1.
        file: its name, such as that of a file.
        aspect: width / height.
        small: whether it has so few pixels that each is to be seen.
    """

    jpeg: bytes
    caption: str | bytes = ""
    correct: bool | None = None
    similarity: float | None = None
    rank: int | None = None
    file: str | bytes = ""
    aspect: float = 1.0
    small: bool = False


@dataclass(frozen=True)
class GridRow:
    """A query, its nearest images, nearest first, and a word on it such as its AP."""

    query: Picture
    neighbors: Sequence[Picture]
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """Queries to look at, under a title such as "Worst", and a sentence on how they were chosen."""

    title: str
    rows: Sequence[GridRow]
    words: str = ""


@dataclass(frozen=True)
class FirstTable:
    """Models side by side by one metric.

    Attributes:
        metric: its name.
        models: as of `standings.standings`; the last one is the model that the page is about.
        ranking: what was ranked; "" where there is one ranking only.
    """

    metric: str
    models: Sequence[Standing]
    ranking: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        ranking: that both have.
        names: of the two runs.
        metrics: of the two runs, as in `Report.metrics`.
        intervals: from a metric to the bounds of its difference, second minus first; infinite where none can
            be given.
        confidence: of the intervals, a share.
        charts: with the curves of both.
        grids: queries that one of them answers better.
    """

    ranking: str
    names: tuple[str, str]
    metrics: tuple[Mapping[str, float], Mapping[str, float]]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    confidence: float = 0.95
    charts: Sequence[Chart] = ()
    grids: Sequence[Grid] = ()


@dataclass(frozen=True)
class Report:
    """What a page shows. What is empty has no section.

    Attributes:
        title: of the page.
        facts: (name, value), such as the data set, the model, the protocol and the search.
        warnings: what a reader has to know before anything else.
        first: the tables that open the page.
        metrics: from the name of a protocol to its metrics by name; shares from 0 to 1.
        published: from the name of a published result to its metrics, shares from 0 to 1.
        definitions: what a metric, or a family such as `recall_at_<k>`, is, in a sentence.
        notes: sentences below the first tables.
        grids: queries and their nearest images.
        charts: as of `charts`.
        worst_classes: as of `curves.worst_classes`.
        comparisons: of two runs, a ranking each.
        made: (name, value) of how the page was made, such as its date.
        config: as text.
    """

    title: str
    facts: Sequence[tuple[str, Any]] = ()
    warnings: Sequence[str] = ()
    first: Sequence[FirstTable] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()
    worst_classes: Sequence[ClassScore] = ()
    comparisons: Sequence[Comparison] = ()
    made: Sequence[tuple[str, Any]] = ()
    config: str = ""


def render(report: Report) -> str:
    """The page, of which the same report always makes the same text.

    >>> page = render(Report("Cars & <bikes>", metrics={"leave one out": {"recall_at_1": 0.5}}))
    >>> "Cars &amp; &lt;bikes&gt;" in page, "50.00\\xa0%" in page
    (True, True)
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfrank.evaluation.report", ""),
        autoescape=True,
        finalize=_text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        title_of=metric_title,
        value_of=metric_text,
        data_uri=_data_uri,
        alt=_alt,
        detail=_detail,
        percent=percent,
        differences=_differences,
        standing=_standing,
        breakable=_breakable,
        definition=_definition,
        place=_place,
    )
    template = environment.get_template("report.html.jinja")
    script = importlib.resources.files("tfrank.evaluation.report").joinpath("report.js").read_text()
    return template.render(
        report=report,
        script=Markup(script),
        # The page runs this script and no other.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        interval_words=_interval_words(report.first),
        places=[n / PLACES_PER_ONE for n in _places()],
        names=_names(report.metrics.values()),
        published=_published(report),
        results=[
            *((title, row, "") for title, row in report.metrics.items()),
            *((title, row, "published") for title, row in report.published.items()),
        ],
    )


def picture_of(image: np.ndarray, **fields: Any) -> Picture:
    """The picture of an image, `[height, width, 3]` uint8, with these other fields."""
    encoded = thumbnail(image)
    height, width = np.shape(image)[:2]
    return Picture(encoded, aspect=width / height, small=max(height, width) <= SMALL, **fields)


def thumbnail(image: np.ndarray, height: int = THUMBNAIL) -> bytes:
    """An image as a small JPEG in its own proportions.

    It has at most `height` rows of pixels and 2.5 times as many columns; an image as small as `SMALL` at
    least `height` rows or columns, each of its pixels being a square of them.

    Args:
        image: `[height, width, 3]` uint8.
        height: in pixels.

    Raises:
        InputError: the image has another shape or type.

    >>> Image.open(io.BytesIO(thumbnail(np.zeros([512, 1024, 3], np.uint8)))).size
    (512, 256)
    >>> Image.open(io.BytesIO(thumbnail(np.zeros([8, 8, 3], np.uint8), 100))).size
    (104, 104)
    """
    most = checks.integer("height", height, at_least=1)
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        received = f"{image.dtype} of shape {image.shape}"
        raise checks.invalid("image", "uint8 pixels [height, width, 3]", received)
    height, width, _ = image.shape
    if max(height, width) <= SMALL:
        times = math.ceil(most / max(height, width))
        small = Image.fromarray(image).resize((width * times, height * times), Image.Resampling.NEAREST)
    else:
        small = Image.fromarray(image)
        small.thumbnail((round(most * WIDEST_PLACE), most), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY, optimize=True)
    return file.getvalue()


def metric_text(value: Any, name: str) -> str:
    """A metric's value: a count, a distance, or a share in percent; "–" for None and NaN.

    >>> metric_text(0.91234, "map"), metric_text(60502, "queries"), metric_text(float("nan"), "map")
    ('91.23\\xa0%', '60,502', '–')
    """
    if not _is_finite(value):
        return NONE
    if name in COUNTS:
        return f"{value:,}"
    return f"{value:.3f}" if name in DISTANCES else percent(value, 2)


def _is_finite(value) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _text(value: Any) -> str:
    """What the template shows of any value."""
    if isinstance(value, Markup):
        return value
    return NONE if value is None or value != value else plain(value)


def _data_uri(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()


def _alt(picture: Picture) -> str:
    """What a picture shows, in words."""
    place = "Query" if picture.rank is None else f"Rank {picture.rank}"
    verdict = {True: ", right", False: ", wrong", None: ""}[picture.correct]
    near = f", similarity {picture.similarity:.3f}" if _is_finite(picture.similarity) else ""
    return f"{place}{verdict}: {plain(picture.caption)}{near}"


def _detail(picture: Picture) -> str:
    """What stands below a picture's caption."""
    if picture.rank is None:
        return "query"
    if picture.similarity is None:
        return f"#{picture.rank}"
    return f"{picture.similarity:.3f}" if _is_finite(picture.similarity) else NONE


def _places() -> range:
    return range(round(NARROWEST_PLACE * PLACES_PER_ONE), round(WIDEST_PLACE * PLACES_PER_ONE) + 1)


def _place(picture: Picture) -> int:
    """The number of the style of a picture's proportions."""
    places = _places()
    return min(max(round(picture.aspect * PLACES_PER_ONE), places[0]), places[-1]) - places[0]


def _breakable(text: Any) -> Markup:
    """A name whose lines may end after an underscore."""
    return escape(_text(text)).replace("_", Markup("_<wbr>"))


def _definition(sentence: Any) -> tuple[str, str]:
    """What a sentence defines, which is what stands before its first colon, and the rest of it."""
    head, colon, rest = plain(sentence).partition(":")
    return (head, colon + rest) if colon else ("", head)


def _interval_words(tables: Sequence[FirstTable]) -> str:
    """What the intervals of the first tables are, or why there are none."""
    if any(math.isinf(model.mean.low) for table in tables for model in table.models):
        return (
            f"No intervals: they are drawn from whole classes, since queries of a class are found or missed"
            f" together, and it takes {FEWEST_GROUPS} classes at least. Differences in percentage points."
        )
    by_class = any(model.by_class is not None for table in tables for model in table.models)
    drawn = "whole classes" if by_class else "queries"
    words = f"Below each number its 95\u00a0% interval, by bootstrap of {drawn}."
    if any(len(table.models) > 1 for table in tables):
        words += (
            " Differences are in percentage points, on the same queries; one is clear where its interval"
            " leaves out zero."
        )
    return words


def _standing(one: Standing) -> dict:
    """The cells of a line of a first table."""
    low, high = one.mean.low, one.mean.high
    found = one.difference
    return {
        "name": one.name,
        "mean": percent(one.mean.difference, 2),
        "interval": "" if math.isinf(low) else f"{100 * low:.2f} to {100 * high:.2f}",
        "by_class": None if one.by_class is None else percent(one.by_class, 2),
        "difference": _signed(found.difference, "") if found else "",
        "difference_interval": _interval(found.low, found.high, "", "") if found else "",
        "verdict": _verdict(found.low, found.high) if found else "",
    }


def _names(rows) -> list[str]:
    """Every metric that one of the rows has, the counts last."""
    names = dict.fromkeys(name for row in rows for name in row if name not in COUNTS)
    counts = [name for name in COUNTS if any(name in row for row in rows)]
    return [*names, *counts]


def _published(report: Report) -> list[str]:
    """The metrics that were measured and published."""
    printed = {name for row in report.published.values() for name in row}
    return [name for name in _names(report.metrics.values()) if name in printed]


def _differences(comparison: Comparison) -> list[dict]:
    """The lines of the table of two runs."""
    lines = []
    for name in _names(comparison.metrics):
        first, second = (metrics.get(name) for metrics in comparison.metrics)
        low, high = comparison.intervals.get(name, (math.nan, math.nan))
        known = _is_finite(first) and _is_finite(second)
        lines.append(
            {
                "name": name,
                "first": first,
                "second": second,
                "difference": _signed(second - first, name) if known and name not in COUNTS else NONE,
                "interval": _interval(low, high, name, "too few classes"),
                "verdict": "" if name in DISTANCES else _verdict(low, high),
            }
        )
    return lines


def _interval(low: float, high: float, name: str, none: str) -> str:
    """The bounds of a difference; `none` where none can be given, nothing if nobody asked for them."""
    if math.isinf(low):
        return none
    return f"{_signed(low, name)} to {_signed(high, name)}" if low <= high else ""


def _verdict(low: float, high: float) -> str:
    """What the interval of a difference says; nothing if it is not known."""
    if not low <= high or math.isinf(low):
        return ""
    return "better" if low > 0 else "worse" if high < 0 else "unclear"


def _signed(value: float, name: str) -> str:
    """A difference, of shares in percentage points."""
    text = f"{value:+.3f}" if name in DISTANCES else f"{100 * value:+.2f}"
    return text.replace("-", MINUS)
