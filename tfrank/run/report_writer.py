"""Writes the files and the report page of an evaluation."""

import csv
import datetime
import json
import math
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tfrank
from tfrank.common import files
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.configs.default import Config
from tfrank.configs.fields import tree
from tfrank.data.index import RecordIndex
from tfrank.data.record_folder import folder_of, load_copies, load_summary
from tfrank.evaluation.class_means import dominant_classes
from tfrank.evaluation.metric_names import BY_CLASS
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.postprocessing.steps import ranking_steps
from tfrank.evaluation.ranking_results import rows_of
from tfrank.evaluation.report import charts, curves
from tfrank.evaluation.report.html_page import Report, render
from tfrank.evaluation.report.result_files import write_results
from tfrank.run.comparison import (
    compare_runs,
    earlier_rankings,
    load_baselines,
    means_and_intervals,
    model_tables,
    per_query_of,
    rankings_beside,
    rankings_of,
    setups_of_results,
    write_baselines,
)
from tfrank.run.evaluation_results import EvaluationResults
from tfrank.run.near_copies import grids_of_copies, notes_on_copies
from tfrank.run.pictures import Images, query_grids

# How many of the classes with most queries a note names.
NAMED = 5
MOST_ADVICE = 3
CURVE_KS = 1000
MOST_CATEGORIES = 100


def write_evaluation(
    folder: str,
    config: Config,
    results: EvaluationResults,
    index: RecordIndex | None,
    *,
    about: Mapping[str, Any],
    title: str,
    compare_with: str = "",
    baselines: Mapping[str, EvaluationResults] = types.MappingProxyType({}),
    shorter: Mapping[str, EvaluationResults] = types.MappingProxyType({}),
    warnings: Sequence[str] = (),
    training: str = "",
) -> list[str]:
    """Writes metrics, per-query results, curves and the report; returns their paths.

    Args:
        folder: output folder.
        config: config of the run.
        results: results of the evaluation.
        index: records of the test set; None if embeddings came without images.
        about: facts on the evaluation, see `evaluation_results.about`.
        title: title of the report.
        compare_with: folder of another evaluation to compare with; "" for none.
        baselines: results of baselines on the same test set, such as raw pixels, by name. They are kept in
            the folder. If none are given, the first table shows the kept ones, unless the config disables
            baselines or they were measured in another way.
        shorter: results of shorter embeddings on the same test set, by name, see `measure_shorter`.
        warnings: warnings at the top of the page.
        training: folder of the run whose training curves are drawn; "" for none.
    """
    setups, per_query = setups_of_results(results), per_query_of(results)
    lines = {name: _curves_of(one) for name, one in results.rankings.items() if one.first is not None}
    with Images(config.data, results, index) as images:
        comparisons = compare_runs(compare_with, folder, results, lines, images) if compare_with else ()
        if baselines or not config.evaluation.baselines:
            write_baselines(folder, baselines, about)
        beside, left_out = load_baselines(folder, about, setups)
        beside |= {name: rankings_of(one) for name, one in shorter.items()}
        beside |= _other_runs(config.evaluation.beside, compare_with, folder, setups)
        tables = model_tables(results, beside, "embeddings" if index is None else "trained")
        notes = [*results.notes, *_note_on_classes(results, images), *left_out]
        copies = load_copies(folder_of(index))
        notes += notes_on_copies(results, index, copies)
        page = Report(
            title=title,
            warnings=warnings,
            facts=_facts(about, title),
            model_tables=tables,
            metrics=results.metrics(),
            published=config.evaluation.published.to_dict(),
            advice=_advice(index),
            notes=[*notes, *_note_on_pictures(config.evaluation.as_dict())],
            grids=[*_grids(results, images), *grids_of_copies(index, images, copies)],
            charts=[*_charts(results, lines, images), *_charts_of_training(training)],
            worst_classes=_worst_classes(results, images),
            categories=_categories(results, images),
            comparisons=comparisons,
            made=[("date", _now()), ("tfrank", tfrank.__version__)],
            config=json.dumps(tree(config), indent=2),
        )
        html = render(page)
    write_results(
        folder,
        about=about,
        rankings={name: one.metrics for name, one in results.rankings.items()},
        galleries=results.galleries,
        extras=results.extras,
        notes=notes,
        per_query=per_query,
        curves=lines,
        version=tfrank.__version__,
        models=means_and_intervals(tables, results.main_ranking),
    )
    with files.atomic_write(os.path.join(folder, "report.html"), "w") as file:
        file.write(html)
    return [os.path.join(folder, name) for name in ("metrics.json", "per_query", "report.html")]


def _other_runs(others, compare_with, folder, setups):
    """Returns the rankings of other evaluations, and of the one that is compared with, by name."""
    earlier = {"earlier run": earlier_rankings(compare_with, folder, setups)} if compare_with else {}
    return rankings_beside(others, folder, setups) | earlier


def _now():
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _facts(about, title):
    """Formats the facts, except the one that is the title."""
    facts = {name: f"{fact:,}" if isinstance(fact, int) else fact for name, fact in about.items()}
    return [(name, fact) for name, fact in facts.items() if fact != title]


def _advice(index):
    """Returns what the preparation of the records says would help most."""
    folder = folder_of(index)
    return ((folder and load_summary(folder)) or {}).get("advice", [])[:MOST_ADVICE]


def _note_on_classes(results, images):
    """Returns a note if few classes make up many of the main ranking's queries."""
    found = results.main
    scores, labels = found.per_query.get("recall_at_1"), results.test.labels[found.queries]
    if scores is None or np.any(labels == UNKNOWN):
        return []
    labels = labels[np.isfinite(scores)]
    largest, sizes = dominant_classes(labels)
    if not len(largest):
        return []
    names = [f"{images.class_name(label)} ({size:,})" for label, size in zip(largest[:NAMED], sizes)]
    names += [f"{len(largest) - NAMED:,} more"] if len(largest) > NAMED else []
    are = f"{len(np.unique(labels)):,} classes {'is' if len(largest) == 1 else 'are'}"
    means = (found.metrics[name] for name in ("recall_at_1", "recall_at_1" + BY_CLASS))
    shares = map(charts.percent, (sizes.sum() / len(labels), *means))
    return [
        "{} of {} {} of the queries: {}. They dominate a mean over queries: Recall@1 is {} over queries,"
        " {} over classes.".format(len(largest), are, next(shares), ", ".join(names), *shares)
    ]


def _charts_of_training(folder):
    """Draws the loss of a run and its Recall@1 on validation classes, as far as they were logged."""
    path = os.path.join(folder, "training.csv")
    if not folder or not os.path.exists(path):
        return []
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    drawn = []
    for column, draw in (
        ("loss", charts.loss_of_training),
        ("validation_recall_at_1", charts.validation_of_training),
    ):
        points = [(int(row["step"]), float(row[column])) for row in rows if row.get(column)]
        points = [point for point in points if math.isfinite(point[1])]
        if len(points) > 1:
            drawn.append(draw(*map(np.array, zip(*points))))
    return drawn


def _note_on_pictures(options):
    moved = [step.name for step in ranking_steps(options)]
    if moved:
        return [
            "Pictures, similarities, the map and the confused classes show the embeddings before"
            f" {' and '.join(moved)}."
        ]
    return []


def _curves_of(found):
    pairs = {
        "precision_recall": (np.linspace(0, 1, len(found.precision)), found.precision),
        "recall_at_k": curves.recall_curve(found.first, min(CURVE_KS, max(1, found.task.ranked))),
    }
    return {name: [axis.tolist() for axis in pair] for name, pair in pairs.items()}


def _grids(results, images):
    return query_grids(results, images) if images and results.main.task is not None else []


def _charts(results, lines, images):
    shown, task = charts.line_charts(lines) if lines else [], results.main.task
    if task is None or task.labels is None:
        return shown
    queries, gallery = (rows_of(results.embeddings, rows) for rows in (task.queries, task.gallery))
    histogram = curves.similarity_histogram(queries, gallery, *task.labels, task.self_index)
    rows, places = curves.map_2d(gallery)
    return [
        *shown,
        charts.similarities(histogram),
        charts.embedding_map(places, task.labels[1][rows], images.class_name),
    ]


def _worst_classes(results, images):
    found, task = results.main, results.main.task
    if task is None or task.labels is None or "recall_at_1" not in found.per_query:
        return []
    labels, gallery_labels = task.labels
    scores = labels, found.per_query["recall_at_1"], found.per_query.get("ap")
    # Search for confused classes only for queries of the worst classes.
    worst = {int(one.name) for one in curves.worst_classes(*scores)}
    queries = np.flatnonzero(np.isin(labels, list(worst)))
    gallery = rows_of(results.embeddings, task.gallery)
    nearest = exact(results.embeddings[task.queries[queries]], gallery, 1, task.self_index[queries])
    nearest_labels = labels.copy()
    nearest_labels[queries] = gallery_labels[nearest.index[:, 0]]
    return curves.worst_classes(*scores, nearest=nearest_labels, names=images.class_name)


def _categories(results, images):
    """Returns the scores of each category, the lowest Recall@1 first; none if there is only one."""
    found, task, category = results.main, results.main.task, results.test.category
    if category is None or task is None or "recall_at_1" not in found.per_query:
        return []
    of_queries = category[task.queries]
    if np.any(of_queries == UNKNOWN) or np.all(of_queries == of_queries[0]):
        return []
    scores = found.per_query["recall_at_1"], found.per_query.get("ap")
    return curves.worst_classes(of_queries, *scores, MOST_CATEGORIES, names=images.category_name)
