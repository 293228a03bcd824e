"""An evaluation as one HTML file that a person looks at. It knows no model and no config: data in, text out.

Everything that comes from data is escaped, and the file loads nothing from outside.
"""

import base64
import io
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from PIL import Image

from tfrank import checks
from tfrank.evaluation.charts import MINUS, Chart, percent, plain
from tfrank.evaluation.curves import ClassScore
from tfrank.evaluation.metrics import COUNTS, metric_title

# The big numbers on top are the first of these that there are.
HEADLINES = (
    *("recall_at_1", "map", "trapezoid_map", "capped_precision_at_10", "map_at_r", "r_precision"),
    *("recall_at_10", "mrr", "ndcg", "roc_auc"),
)
HEADLINE_COUNT = 4
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
    """

    jpeg: bytes
    caption: str | bytes = ""
    correct: bool | None = None
    similarity: float | None = None
    rank: int | None = None


@dataclass(frozen=True)
class GridRow:
    """A query, its nearest images, nearest first, and a word on it such as its AP."""

    query: Picture
    neighbors: Sequence[Picture]
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """Queries to look at, under a title such as "Worst"."""

    title: str
    rows: Sequence[GridRow]


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
        metrics: from the name of a protocol to its metrics by name; shares from 0 to 1. The big numbers are
            those of the first protocol.
        published: from the name of a published result to its metrics, shares from 0 to 1.
        definitions: what a metric, or a family such as `recall_at_<k>`, is, in a sentence.
        notes: sentences on top.
        grids: queries and their nearest images.
        charts: as of `charts`.
        worst_classes: as of `curves.worst_classes`.
        comparisons: of two runs, a ranking each.
    """

    title: str
    facts: Sequence[tuple[str, Any]] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()
    worst_classes: Sequence[ClassScore] = ()
    comparisons: Sequence[Comparison] = ()


def render(report: Report) -> str:
    """The page, of which the same report always makes the same text.

    >>> page = render(Report("Cars & <bikes>", metrics={"leave one out": {"recall_at_1": 0.5}}))
    >>> "Cars &amp; &lt;bikes&gt;" in page, "50.00\\xa0%" in page
    (True, True)
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfrank.evaluation", ""),
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
        percent=percent,
        differences=_differences,
    )
    template = environment.get_template("report.html.jinja")
    first = next(iter(report.metrics.values()), {})
    return template.render(
        report=report,
        headlines=[name for name in HEADLINES if name in first][:HEADLINE_COUNT],
        first=first,
        names=_names(report.metrics.values()),
        published=_published(report),
        results=[
            *((title, row, "") for title, row in report.metrics.items()),
            *((title, row, "published") for title, row in report.published.items()),
        ],
    )


def thumbnail(image: np.ndarray, size: int = 128) -> bytes:
    """An image as a small JPEG: its longer side has `size` pixels, its aspect stays.

    Args:
        image: `[height, width, 3]` uint8.
        size: in pixels.

    Raises:
        InputError: the image has another shape or type.

    >>> Image.open(io.BytesIO(thumbnail(np.zeros([30, 60, 3], np.uint8)))).size
    (128, 64)
    """
    size = checks.integer("size", size, at_least=1)
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        received = f"{image.dtype} of shape {image.shape}"
        raise checks.invalid("image", "uint8 pixels [height, width, 3]", received)
    height, width, _ = image.shape
    scale = size / max(height, width)
    small = (max(1, round(width * scale)), max(1, round(height * scale)))
    # Whole pixels where an image is enlarged: its few pixels are what the model saw.
    resample = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
    file = io.BytesIO()
    Image.fromarray(image).resize(small, resample).save(file, "JPEG", quality=80, optimize=True)
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
    near = f", similarity {picture.similarity:.2f}" if _is_finite(picture.similarity) else ""
    return f"{place}{verdict}: {plain(picture.caption)}{near}"


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
                "interval": _interval(low, high, name),
                "verdict": "" if name in DISTANCES else _verdict(low, high),
            }
        )
    return lines


def _interval(low: float, high: float, name: str) -> str:
    """The bounds of a difference; why there are none, or nothing if nobody asked for them."""
    if math.isinf(low):
        return "too few classes"
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
