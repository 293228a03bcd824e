"""The composition root of what is shown of an evaluation: from results and images to files and a page."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import tfrank
from tfrank import files
from tfrank.checks import InputError
from tfrank.data import records
from tfrank.data.index import RecordIndex
from tfrank.datasets import build_loader
from tfrank.evaluation import charts, clusters, curves, metrics, verification
from tfrank.evaluation.comparison import paired_bootstrap
from tfrank.evaluation.html_report import Comparison, Grid, GridRow, Picture, Report, render, thumbnail
from tfrank.evaluation.measure import rows_of
from tfrank.evaluation.neighbors import exact
from tfrank.evaluation.protocols import UNKNOWN, text_of
from tfrank.evaluation.results import (
    PerQuery,
    common_queries,
    load_curves,
    load_metrics,
    load_per_query,
    write_results,
)
from tfrank.measuring import Results

NEIGHBORS, QUERIES, MOST_CHANGED = 8, 8, 4
CURVE_KS = 1000
# Of an AP, that a query is shown for.
LEAST_CHANGE = 5e-4
DEFINITIONS = metrics.DEFINITIONS | clusters.DEFINITIONS | verification.DEFINITIONS


class Images:
    """What is shown of an image: the picture that the model sees, and the name of its class.

    Args:
        config: how images are loaded.
        results: what was measured.
        index: the records; None where embeddings came without images.
    """

    def __init__(self, config: ConfigDict, results: Results, index: RecordIndex | None):
        self._results, self._text = results, config.data.features.text
        self._reader = records.RecordReader(index) if index is not None else None
        self._loader = dataclasses.replace(build_loader(config), full_size=False)

    def __enter__(self) -> "Images":
        return self

    def __exit__(self, *_) -> None:
        if self._reader:
            self._reader.close()

    def __bool__(self) -> bool:
        return self._reader is not None

    def picture(self, row: int, **fields: Any) -> Picture:
        """The picture of a row of the results, as small as a page needs it."""
        image = self._loader.test(self._record(row)).numpy()
        return Picture(thumbnail(image), caption=self.name(row), **fields)

    def name(self, row: int) -> str:
        """The name of a row's class; of its image where it has no class."""
        label = int(self._results.test.labels[row])
        if label == UNKNOWN:
            return text_of(self._results.test.ids[row])
        text = records.class_text(self._record(row), self._text) if self else ""
        return text or f"class {label}"

    def class_name(self, label: int) -> str:
        """The name of a class."""
        return self.name(int(np.argmax(self._results.test.labels == label)))

    def _record(self, row):
        return self._reader.read([int(self._results.images[row])])[0]


def write_evaluation(
    folder: str,
    config: ConfigDict,
    results: Results,
    index: RecordIndex | None,
    *,
    about: Mapping[str, Any],
    title: str,
    compare_with: str = "",
) -> list[str]:
    """Writes metrics, per-query results, curves and the report; their paths.

    Args:
        folder: where to.
        config: of the run.
        results: what was measured.
        index: the test set's records; None where embeddings came without images.
        about: what was measured how, for a reader.
        title: of the report.
        compare_with: folder of another evaluation to compare with; "" for none.
    """
    if compare_with and os.path.realpath(compare_with) == os.path.realpath(folder):
        raise InputError(f"{compare_with} is this evaluation itself. Compare with another.")
    lines = {name: _curves_of(one) for name, one in results.rankings.items() if one.ranks is not None}
    per_query = {name: _per_query_of(results, name) for name in results.rankings}
    with Images(config, results, index) as images:
        comparison = _compare(compare_with, folder, results, per_query, lines, images)
        page = Report(
            title=title,
            facts=list(about.items()),
            metrics=results.metrics(),
            published={name: dict(row) for name, row in config.evaluation.published.items()},
            definitions=_definitions(results),
            notes=[*results.notes, *_note_on_pictures(config)],
            grids=_grids(config, results, images),
            charts=_charts(results, lines, images),
            worst_classes=_worst_classes(results, images),
            comparison=comparison,
        )
        html = render(page)
    write_results(
        folder,
        about=about,
        rankings={name: one.metrics for name, one in results.rankings.items()},
        extras=results.extras,
        notes=results.notes,
        per_query=per_query,
        curves=lines,
        version=tfrank.__version__,
    )
    with files.atomic_write(os.path.join(folder, "report.html"), "w") as file:
        file.write(html)
    return [os.path.join(folder, name) for name in ("metrics.json", "per_query", "report.html")]


def _definitions(results):
    """What the metrics that were measured are."""
    names = [name for row in results.metrics().values() for name in row]
    families = dict.fromkeys(map(metrics.family_of, names))
    return {family: DEFINITIONS[family] for family in families if family in DEFINITIONS}


def _note_on_pictures(config):
    options = config.evaluation
    if options.query_expansion or options.database_augmentation or options.rerank:
        return ["Pictures show the neighbours of the embeddings before query expansion and re-ranking."]
    return []


def _curves_of(found):
    pairs = {
        "precision_recall": curves.precision_recall(found.ranks),
        "recall_at_k": curves.recall_curve(found.ranks, min(CURVE_KS, max(1, found.split.ranked))),
    }
    return {name: [axis.tolist() for axis in pair] for name, pair in pairs.items()}


def _per_query_of(results, name):
    found, test = results.rankings[name], results.test
    ids = np.array([text_of(image) for image in test.ids[found.queries]])
    return PerQuery(ids, test.labels[found.queries], found.per_query)


def _first_split(results):
    """The first ranking's name and result, where it is one of a single split."""
    name, found = next(iter(results.rankings.items()))
    return (name, found) if found.split is not None else (None, None)


def _main_metric(per_query):
    """The metric that queries are compared by: AP, or hits where an approximate search knows no AP."""
    return next(name for name in ("ap", "trapezoid_ap", *per_query) if name in per_query)


def _average_precision(found):
    """Of each query, or what stands for it."""
    return found.per_query[_main_metric(found.per_query)]


def _grids(config, results, images):
    name, found = _first_split(results)
    if not images or name is None:
        return []
    precision = _average_precision(found)
    labels = found.split.labels and found.split.labels[0]
    chosen = curves.choose_queries(precision, labels, count=QUERIES, seed=config.seed)
    return [
        Grid(title.capitalize(), _rows_of(results.embeddings, found.split, name, queries, images, precision))
        for title, queries in chosen.items()
        if len(queries)
    ]


def _rows_of(embeddings, split, name, queries, images, precision):
    """A grid's rows: queries of a split, and their nearest images by these embeddings."""
    gallery = rows_of(embeddings, split.gallery)
    # Ignored images take places that others are shown in.
    ignored = [split.truths[name].ignored(query) for query in queries]
    count = min(len(gallery), NEIGHBORS + max(map(len, ignored)))
    nearest = exact(embeddings[split.queries[queries]], gallery, count)
    rows = []
    for query, junk, places, near in zip(queries, ignored, nearest.index, nearest.similarity):
        shown = ~np.isin(places, junk)
        right = np.isin(places[shown], split.truths[name].positives(query))
        neighbors = [
            images.picture(split.gallery[place], correct=bool(hit), similarity=float(similarity), rank=rank)
            for rank, (place, hit, similarity) in enumerate(zip(places[shown], right, near[shown]), start=1)
            if rank <= NEIGHBORS
        ]
        rows.append(GridRow(images.picture(split.queries[query]), neighbors, f"AP {precision[query]:.3f}"))
    return rows


def _charts(results, lines, images):
    shown = []
    if lines:
        shown += _line_charts(lines)
    name, found = _first_split(results)
    if name is None or found.split.labels is None:
        return shown
    split = found.split
    queries, gallery = (rows_of(results.embeddings, rows) for rows in (split.queries, split.gallery))
    histogram = curves.similarity_histogram(queries, gallery, *split.labels, split.self_index)
    rows, places = curves.map_2d(gallery)
    class_name = images.class_name
    return [
        *shown,
        charts.similarities(histogram),
        charts.embedding_map(places, split.labels[1][rows], class_name),
    ]


def _line_charts(lines):
    def curves_of(kind):
        return {name: tuple(map(np.array, one[kind])) for name, one in lines.items()}

    precision_recall = charts.precision_recall(curves_of("precision_recall"))
    return [precision_recall, charts.recall_at_k(curves_of("recall_at_k"))]


def _worst_classes(results, images):
    name, found = _first_split(results)
    if name is None or found.split.labels is None or "recall_at_1" not in found.per_query:
        return []
    split, (labels, gallery_labels) = found.split, found.split.labels
    scores = labels, found.per_query["recall_at_1"], _average_precision(found)
    # What they are confused with is looked up for those classes alone.
    worst = {int(one.name) for one in curves.worst_classes(*scores)}
    queries = np.flatnonzero(np.isin(labels, list(worst)))
    own = split.self_index[queries]
    gallery = rows_of(results.embeddings, split.gallery)
    nearest = exact(results.embeddings[split.queries[queries]], gallery, 1, own)
    nearest_labels = labels.copy()
    nearest_labels[queries] = gallery_labels[nearest.index[:, 0]]
    return curves.worst_classes(*scores, nearest=nearest_labels, names=images.class_name)


def _compare(before, now, results, per_query, lines, images):
    """The first ranking beside that of another evaluation, on the queries that both have."""
    if not before:
        return None
    tree = load_metrics(before)
    name = next((one for one in results.rankings if one in tree["rankings"]), None)
    if name is None:
        raise InputError(
            f"{before} has the rankings {', '.join(tree['rankings'])}, and none of"
            f" {', '.join(results.rankings)}. Evaluate both by one protocol."
        )
    other, this = load_per_query(before, name), per_query[name]
    rows, places = common_queries(this, other)
    if not len(rows):
        raise InputError(f"{before} has none of this test set's queries: they have no id in common.")
    if np.any(this.labels[rows] != other.labels[places]):
        raise InputError(f"{before} has other classes for the same ids. It is of another test set.")
    intervals, means = {}, ({}, {})
    for metric in (one for one in this.metrics if one in other.metrics):
        pair = other.metrics[metric][places], this.metrics[metric][rows]
        found = paired_bootstrap(*pair, groups=this.labels[rows] if np.all(this.labels != UNKNOWN) else None)
        name_of_mean = metrics.MEANS.get(metric, metric)
        intervals[name_of_mean] = (found.low, found.high)
        counts = np.isfinite(pair[0]) & np.isfinite(pair[1])
        for mean, values in zip(means, pair):
            mean |= {name_of_mean: float(values[counts].mean()), "queries": found.queries}
    names = (before, now)
    both = {one: them[name] for one, them in zip(names, (load_curves(before), lines)) if name in them}
    return Comparison(
        names=names,
        metrics=means,
        intervals=intervals,
        charts=_line_charts(both) if both else (),
        grids=_changed(results, name, this, other, rows, places, images),
    )


def _changed(results, name, this, other, rows, places, images):
    """The queries that changed most."""
    found, metric = results.rankings[name], _main_metric(this.metrics)
    if not images or found.split is None or metric not in other.metrics:
        return []
    change = np.full(len(this.ids), np.nan)
    change[rows] = this.metrics[metric][rows] - other.metrics[metric][places]
    grids = []
    for title, sign in (("Better now", 1), ("Worse now", -1)):
        order = np.argsort(-sign * change, kind="stable")[:MOST_CHANGED]
        queries = order[sign * change[order] > LEAST_CHANGE]
        if len(queries):
            shown = _rows_of(results.embeddings, found.split, name, queries, images, this.metrics[metric])
            grids.append(
                Grid(
                    title,
                    [
                        dataclasses.replace(row, note=f"{row.note}, {change[query]:+.3f}")
                        for row, query in zip(shown, queries)
                    ],
                )
            )
    return grids
