"""The composition root of what is shown of an evaluation: from results and images to files and a page."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import tfrank
from tfrank import files
from tfrank.comparing import compare
from tfrank.data.index import RecordIndex
from tfrank.evaluation import charts, clusters, curves, metrics, verification
from tfrank.evaluation.html_report import Grid, Report, render
from tfrank.evaluation.measure import rows_of
from tfrank.evaluation.neighbors import exact
from tfrank.evaluation.protocols import text_of
from tfrank.evaluation.results import PerQuery, write_results
from tfrank.measuring import Results
from tfrank.pictures import Images, grid_rows

QUERIES = 8
CURVE_KS = 1000
DEFINITIONS = metrics.DEFINITIONS | clusters.DEFINITIONS | verification.DEFINITIONS


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
    lines = {name: _curves_of(one) for name, one in results.rankings.items() if one.ranks is not None}
    per_query = {name: _per_query_of(results, name) for name in results.rankings}
    with Images(config, results, index) as images:
        comparisons = compare(compare_with, folder, results, per_query, lines, images) if compare_with else ()
        page = Report(
            title=title,
            facts=list(about.items()),
            metrics=results.metrics(),
            published={name: dict(row) for name, row in config.evaluation.published.items()},
            definitions=_definitions(results),
            notes=[*results.notes, *_note_on_pictures(config)],
            grids=_grids(results, images),
            charts=_charts(results, lines, images),
            worst_classes=_worst_classes(results, images),
            comparisons=comparisons,
        )
        html = render(page)
    write_results(
        folder,
        about=about,
        rankings={name: one.metrics for name, one in results.rankings.items()},
        galleries=results.galleries,
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
        return [
            "Pictures, similarities, the map and what classes are taken for are of the embeddings before"
            " query expansion, database augmentation and re-ranking."
        ]
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


def _grids(results, images):
    name, found = _first_split(results)
    if not images or name is None:
        return []
    labels = found.split.labels and found.split.labels[0]
    scores = found.per_query[metrics.main_metric(found.per_query)]
    chosen = curves.choose_queries(scores, labels, count=QUERIES)
    return [
        Grid(title.capitalize(), grid_rows(results, found, name, queries, images))
        for title, queries in chosen.items()
        if len(queries)
    ]


def _charts(results, lines, images):
    shown = []
    if lines:
        shown += charts.line_charts(lines)
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


def _worst_classes(results, images):
    name, found = _first_split(results)
    if name is None or found.split.labels is None or "recall_at_1" not in found.per_query:
        return []
    split, (labels, gallery_labels) = found.split, found.split.labels
    scores = labels, found.per_query["recall_at_1"], found.per_query.get("ap")
    # What they are confused with is looked up for those classes alone.
    worst = {int(one.name) for one in curves.worst_classes(*scores)}
    queries = np.flatnonzero(np.isin(labels, list(worst)))
    own = split.self_index[queries]
    gallery = rows_of(results.embeddings, split.gallery)
    nearest = exact(results.embeddings[split.queries[queries]], gallery, 1, own)
    nearest_labels = labels.copy()
    nearest_labels[queries] = gallery_labels[nearest.index[:, 0]]
    return curves.worst_classes(*scores, nearest=nearest_labels, names=images.class_name)
