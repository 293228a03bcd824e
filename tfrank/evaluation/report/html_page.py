"""An evaluation as one HTML file. This module knows neither model nor config: it turns data into text.

Everything that comes from data is escaped, and the file loads nothing from outside.
"""

import base64
import hashlib
import importlib.resources
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
from markupsafe import Markup, escape

from tfrank.evaluation.metric_names import COUNTS, definitions_of, metric_of, metric_title
from tfrank.evaluation.model_summaries import ModelSummary
from tfrank.evaluation.report.bootstrap import FEWEST_GROUPS
from tfrank.evaluation.report.charts import MINUS, Chart, percent, plain
from tfrank.evaluation.report.curves import ClassScore
from tfrank.evaluation.report.shown_image import NARROWEST, WIDEST, ShownImage

PLACES_PER_ONE = 50
NONE = "\N{EN DASH}"


@dataclass(frozen=True)
class GridRow:
    """A query, its nearest images, nearest first, and a short note such as its AP."""

    query: ShownImage
    neighbors: Sequence[ShownImage]
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """A group of queries with a title such as "Worst", and a sentence on how they were chosen."""

    title: str
    rows: Sequence[GridRow]
    words: str = ""


@dataclass(frozen=True)
class ModelTable:
    """Comparison of models by one metric.

    Attributes:
        metric: the name of the metric.
        models: as from `model_summaries.summarize_models`; the last one is the model that the page is about.
        ranking: the name of the ranking; "" if there is only one.
    """

    metric: str
    models: Sequence[ModelSummary]
    ranking: str = ""


@dataclass(frozen=True)
class RunComparison:
    """Comparison of two runs on the queries of one ranking.

    Attributes:
        ranking: the ranking, which both have.
        names: the names of the two runs.
        metrics: the metrics of the two runs, as in `Report.metrics`.
        intervals: maps a metric to the bounds of its difference, second minus first; infinite if there is no
            interval.
        confidence: the confidence of the intervals, 0 to 1.
        charts: charts with the curves of both.
        grids: queries that one of the runs answers better.
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
    """The content of a page. Empty fields have no section.

    Attributes:
        title: the title of the page.
        facts: (name, value), such as the data set, the model, the protocol and the search.
        warnings: sentences shown before anything else.
        model_tables: the tables that open the page.
        metrics: maps the name of a protocol to its metrics by name; shares from 0 to 1.
        published: maps the name of a published result to its metrics; shares from 0 to 1.
        advice, notes: sentences below these tables; `advice` says what about the data would help most.
        grids: queries and their nearest images.
        charts: charts from `charts`.
        worst_classes: as from `curves.worst_classes`.
        categories: the same of the categories of classes.
        comparisons: comparisons of two runs, one for each ranking.
        made: (name, value) on how the page was made, such as its date.
        config: the config as text.
    """

    title: str
    facts: Sequence[tuple[str, Any]] = ()
    warnings: Sequence[str] = ()
    model_tables: Sequence[ModelTable] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    advice: Sequence[str] = ()
    notes: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()
    worst_classes: Sequence[ClassScore] = ()
    categories: Sequence[ClassScore] = ()
    comparisons: Sequence[RunComparison] = ()
    made: Sequence[tuple[str, Any]] = ()
    config: str = ""


def render(report: Report) -> str:
    """The HTML text of the page; the same report always gives the same text.

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
        summary_cells=_summary_cells,
        breakable=_breakable,
        place=_place,
    )
    names = _names(report.metrics.values())
    template = environment.get_template("report.html.jinja")
    script = importlib.resources.files("tfrank.evaluation.report").joinpath("report.js").read_text()
    return template.render(
        report=report,
        script=Markup(script),
        # The page allows only this script to run.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        interval_words=_interval_words(report.model_tables),
        places=[n / PLACES_PER_ONE for n in _places()],
        names=names,
        definitions=[_term_and_rest(sentence) for sentence in definitions_of(names)],
        published=_published(report),
        results=[
            *((title, row, "") for title, row in report.metrics.items()),
            *((title, row, "published") for title, row in report.published.items()),
        ],
    )


def metric_text(value: Any, name: str) -> str:
    """A metric's value as text: a count, a distance, a rank, or a share in percent; "–" for None and NaN.

    >>> metric_text(0.91234, "map"), metric_text(60502, "queries"), metric_text(float("nan"), "map")
    ('91.23\\xa0%', '60,502', '–')
    """
    if not _is_finite(value):
        return NONE
    formats = {"count": "{:,}", "distance": "{:.3f}", "variance": "{:.5f}", "rank": "{:,.1f}"}
    unit = metric_of(name).unit
    return formats[unit].format(value) if unit in formats else percent(value, 2)


def _is_finite(value) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _text(value: Any) -> str:
    """The text that the template shows for any value."""
    if isinstance(value, Markup):
        return value
    return NONE if value is None or value != value else plain(value)


def _data_uri(jpeg: bytes) -> Markup:
    """The address of a picture, whose characters all are valid in HTML."""
    return Markup("data:image/jpeg;base64," + base64.b64encode(jpeg).decode())


def _alt(image: ShownImage) -> str:
    """The alternative text of a image."""
    place = "Query" if image.rank is None else f"Rank {image.rank}"
    verdict = {True: ", right", False: ", wrong", None: ""}[image.correct]
    near = f", similarity {image.similarity:.3f}" if _is_finite(image.similarity) else ""
    return f"{place}{verdict}: {plain(image.caption)}{near}"


def _detail(image: ShownImage) -> str:
    """The text below a picture's caption."""
    if image.rank is None:
        return "query"
    if image.similarity is None:
        return f"#{image.rank}"
    return f"{image.similarity:.3f}" if _is_finite(image.similarity) else NONE


def _places() -> range:
    return range(round(NARROWEST * PLACES_PER_ONE), round(WIDEST * PLACES_PER_ONE) + 1)


def _place(image: ShownImage) -> int:
    """The number of the style for a picture's aspect ratio."""
    places = _places()
    return min(max(round(image.aspect * PLACES_PER_ONE), places[0]), places[-1]) - places[0]


def _breakable(text: Any) -> Markup:
    """A name in which lines may break after underscores."""
    return escape(_text(text)).replace("_", Markup("_<wbr>"))


def _term_and_rest(sentence: str) -> tuple[str, str]:
    """The defined term of a sentence, up to its first colon, and the rest of the sentence."""
    head, colon, rest = plain(sentence).partition(":")
    return (head, colon + rest) if colon else ("", head)


def _interval_words(tables: Sequence[ModelTable]) -> str:
    """A sentence on the intervals of the tables of models, or on why there are none."""
    if any(math.isinf(model.over_queries.low) for table in tables for model in table.models):
        return (
            "No intervals: the bootstrap draws whole classes, since queries of a class are found or missed"
            f" together, and it needs at least {FEWEST_GROUPS} classes. Differences are in percentage points."
        )
    by_class = any(model.over_classes is not None for table in tables for model in table.models)
    drawn = "whole classes" if by_class else "queries"
    words = f"Each mean has its 95\u00a0% interval below it, from the bootstrap of {drawn}."
    if any(len(table.models) > 1 for table in tables):
        words += (
            " Differences are in percentage points, on the same queries. A difference is clear if its"
            " interval excludes zero."
        )
    return words


def _summary_cells(one: ModelSummary) -> dict:
    """The cells of a row of a table of models."""
    low, high = one.over_queries.low, one.over_queries.high
    found = one.difference
    return {
        "name": one.name,
        "mean": percent(one.over_queries.mean, 2),
        "interval": "" if math.isinf(low) else f"{100 * low:.2f} to {100 * high:.2f}",
        "over_classes": None if one.over_classes is None else percent(one.over_classes, 2),
        "difference": _signed(found.mean, "") if found else "",
        "difference_interval": _interval(found.low, found.high, "", "") if found else "",
        "verdict": _verdict(found.low, found.high, 1) if found else "",
    }


def _names(rows) -> list[str]:
    """The names of all metrics in any of the rows, counts last."""
    names = dict.fromkeys(name for row in rows for name in row if name not in COUNTS)
    counts = [name for name in COUNTS if any(name in row for row in rows)]
    return [*names, *counts]


def _published(report: Report) -> list[str]:
    """The names of the metrics that are both measured and published."""
    printed = {name for row in report.published.values() for name in row}
    return [name for name in _names(report.metrics.values()) if name in printed]


def _differences(comparison: RunComparison) -> list[dict]:
    """The rows of the table that compares two runs."""
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
                "verdict": _verdict(low, high, metric_of(name).better),
            }
        )
    return lines


def _interval(low: float, high: float, name: str, none: str) -> str:
    """The bounds of a difference as text; `none` if they are infinite, "" if they were not computed."""
    if math.isinf(low):
        return none
    return f"{_signed(low, name)} to {_signed(high, name)}" if low <= high else ""


def _verdict(low: float, high: float, better: int) -> str:
    """The verdict from the interval of a difference; "" without an interval or a better direction.

    `better` is 1 if higher is better, -1 if lower is better, 0 if neither.
    """
    if not low <= high or math.isinf(low) or not better:
        return ""
    if low <= 0 <= high:
        return "unclear"
    return "better" if (low > 0) == (better > 0) else "worse"


def _signed(value: float, name: str) -> str:
    """A difference with its sign; differences of shares are in percentage points."""
    text = f"{100 * value:+.2f}" if metric_of(name).unit == "share" else f"{value:+.3f}"
    return text.replace("-", MINUS)
