"""The composition root of comparisons: an evaluation beside its baselines, and an earlier one of the same
gallery."""

import dataclasses
import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

import tfrank
from tfrank.common.checks import InputError
from tfrank.evaluation.metrics import MEANS, main_metric
from tfrank.evaluation.protocols import UNKNOWN, text_of
from tfrank.evaluation.report.bootstrap import paired_bootstrap
from tfrank.evaluation.report.charts import line_charts
from tfrank.evaluation.report.files import (
    PerQuery,
    common_queries,
    load_curves,
    load_metrics,
    load_per_query,
    write_results,
)
from tfrank.evaluation.report.html import Comparison, Grid
from tfrank.evaluation.standings import Standing, standings
from tfrank.run.measuring import Question, Results
from tfrank.run.pictures import Images, grid_rows

BASELINES = "baselines"
# Metrics of queries by which models stand side by side in the first table.
FIRST = ("recall_at_1", "ap", "trapezoid_ap")
# What `measuring.about` says that is not how embeddings were made and ranked.
OTHER_FACTS = ("model", "images", "classes", "protocols", "search")
MOST_CHANGED = 4
# Of an AP, that a query is shown for.
LEAST_CHANGE = 5e-4


class Earlier(NamedTuple):
    """A ranking of the earlier evaluation.

    Attributes:
        per_query: its queries.
        rows: the queries of this evaluation that it has too.
        places: where, among its own.
    """

    per_query: PerQuery
    rows: np.ndarray
    places: np.ndarray


def per_query_of(results: Results) -> dict[str, PerQuery]:
    """The queries of each ranking that has queries: pairs of templates have none."""
    test, found = results.test, {}
    for name, one in results.rankings.items():
        if not one.per_query:
            continue
        ids = np.array([text_of(image) for image in test.ids[one.queries]])
        found[name] = PerQuery(ids, test.labels[one.queries], one.per_query)
    return found


def questions_of_results(results: Results) -> dict[str, Question]:
    """What each ranking asked."""
    queries = per_query_of(results)
    return {name: Question(one.ids, one.labels, results.galleries[name]) for name, one in queries.items()}


def write_baselines(folder: str, baselines: Mapping[str, Results], about: Mapping[str, object]) -> None:
    """Keeps the baselines of an evaluation in its folder, each as an evaluation; others there are deleted.

    Args:
        folder: of the evaluation.
        baselines: by name.
        about: of the evaluation.
    """
    if os.path.exists(place := os.path.join(folder, BASELINES)):
        shutil.rmtree(place)
    for name, results in baselines.items():
        write_results(
            os.path.join(place, name),
            about={**about, "model": name},
            rankings={ranking: one.metrics for ranking, one in results.rankings.items()},
            galleries=results.galleries,
            extras=results.extras,
            notes=results.notes,
            per_query=per_query_of(results),
            curves={},
            version=tfrank.__version__,
        )


def load_baselines(
    folder: str, about: Mapping[str, object], questions: Mapping[str, Question]
) -> tuple[dict[str, dict[str, Earlier]], list[str]]:
    """The rankings of each baseline in an evaluation's folder that was measured as the evaluation is; and
    sentences on those that were not.

    Args:
        folder: of the evaluation.
        about: of the evaluation.
        questions: of the evaluation.
    """
    place, found, notes = os.path.join(folder, BASELINES), {}, []
    for name in sorted(os.listdir(place)) if questions and os.path.isdir(place) else ():
        try:
            before = load_metrics(os.path.join(place, name))["about"]
            other = [fact for fact in {**before, **about} if before.get(fact) != about.get(fact)]
            if other := [fact for fact in other if fact not in OTHER_FACTS]:
                raise InputError(f"it was measured with other {', '.join(other)}.")
            found[name] = earlier_rankings(os.path.join(place, name), folder, questions)
        except InputError as error:
            notes.append(f"The baseline “{name}” is left out of the first table: {error}")
    return found, notes


def first_tables(
    results: Results, beside: Mapping[str, Mapping[str, Earlier]], name: str
) -> list[tuple[str, str, list[Standing]]]:
    """(ranking, metric, models) of each table that opens a report.

    Args:
        results: of the model that the report is about.
        beside: the rankings of other models by their names.
        name: of the model that the report is about; it comes last.
    """
    tables = []
    for ranking, this in per_query_of(results).items():
        labels = this.labels if np.all(this.labels != UNKNOWN) else None
        for metric in (one for one in FIRST if one in this.metrics):
            values = {}
            for other, rankings in beside.items():
                if ranking in rankings and metric in rankings[ranking].per_query.metrics:
                    earlier, rows, places = rankings[ranking]
                    values[other] = np.full(len(this.ids), np.nan)
                    values[other][rows] = earlier.metrics[metric][places]
            models = standings({**values, name: this.metrics[metric]}, labels)
            tables.append((ranking, MEANS.get(metric, metric), models))
    return tables


def earlier_rankings(before: str, now: str, questions: Mapping[str, Question]) -> dict[str, Earlier]:
    """The rankings of an earlier evaluation that ask the same; nothing need be embedded yet.

    Args:
        before: its folder.
        now: the folder of this one.
        questions: of this one.

    Raises:
        InputError: there is none, it is damaged, or of another test set, gallery or protocol.
    """
    if os.path.realpath(before) == os.path.realpath(now):
        raise InputError(f"{before} is this evaluation itself. Compare with another.")
    if not questions:
        raise InputError(
            "Evaluations are compared query by query, and pairs of templates have no queries. Leave out"
            " --compare_with."
        )
    tree, _ = load_metrics(before), load_curves(before)
    found = {
        name: _earlier(before, name, question, tree["galleries"].get(name))
        for name, question in questions.items()
        if name in tree["rankings"]
    }
    if not found:
        raise InputError(
            f"{before} has the rankings {', '.join(tree['rankings'])}, and none of {', '.join(questions)}."
            " Evaluate both by one protocol."
        )
    return found


def _earlier(before, name, question, gallery):
    other = load_per_query(before, name)
    rows, places = common_queries(question.ids, other.ids)
    if not len(rows):
        raise InputError(
            f"{before} has none of this test set's queries: they have no id in common."
            " Compare with an evaluation of the same test set."
        )
    if np.any(question.labels[rows] != other.labels[places]):
        raise InputError(f"{before} has other classes for the same ids. It is of another test set.")
    if gallery != question.gallery:
        sizes = " and ".join(f"{one['images']:,}" for one in (gallery or {"images": 0}, question.gallery))
        raise InputError(
            f"{before} searched another gallery at {name} ({sizes} images), so its numbers do not compare."
            " Evaluate it again on this one."
        )
    return Earlier(other, rows, places)


def compare(
    before: str,
    now: str,
    results: Results,
    lines: Mapping[str, Mapping],
    images: Images,
) -> list[Comparison]:
    """Each ranking that two evaluations have, side by side, on the queries of both.

    Args:
        before: folder of the earlier evaluation.
        now: folder of this one.
        results: of this one.
        lines: the curves of its rankings, as in `curves.json`.
        images: its pictures.

    Raises:
        InputError: see `earlier_rankings`.
    """
    found = earlier_rankings(before, now, questions_of_results(results))
    per_query = per_query_of(results)
    curves = load_curves(before), lines
    comparisons = []
    for name, earlier in found.items():
        this = per_query[name]
        # Curves are of all queries.
        same = len(earlier.rows) == len(this.ids) == len(earlier.per_query.ids)
        both = {folder: them[name] for folder, them in zip((before, now), curves) if same and name in them}
        intervals, means = _differences(this, earlier)
        comparisons.append(
            Comparison(
                ranking=name,
                names=(before, now),
                metrics=means,
                intervals=intervals,
                charts=line_charts(both) if len(both) == 2 else (),
                grids=_changed(results, name, this, earlier, images),
            )
        )
    return comparisons


def _differences(this, earlier):
    """The intervals of the differences of the means, and the means of both."""
    other, rows, places = earlier
    groups = this.labels[rows] if np.all(this.labels != UNKNOWN) else None
    intervals, means = {}, ({}, {})
    for metric in (one for one in this.metrics if one in other.metrics):
        pair = other.metrics[metric][places], this.metrics[metric][rows]
        found = paired_bootstrap(*pair, groups=groups)
        name_of_mean = MEANS.get(metric, metric)
        intervals[name_of_mean] = (found.low, found.high)
        counts = np.isfinite(pair[0]) & np.isfinite(pair[1])
        for mean, values in zip(means, pair):
            mean |= {name_of_mean: float(values[counts].mean()), "queries": found.queries}
    return intervals, means


def _changed(results, name, this, earlier, images):
    """The queries that changed most."""
    found, metric = results.rankings[name], main_metric(this.metrics)
    other, rows, places = earlier
    if not images or found.split is None or metric not in other.metrics:
        return []
    change = np.full(len(this.ids), np.nan)
    change[rows] = this.metrics[metric][rows] - other.metrics[metric][places]
    grids = []
    for title, sign in (("Better now", 1), ("Worse now", -1)):
        order = np.argsort(-sign * change, kind="stable")[:MOST_CHANGED]
        queries = order[sign * change[order] > LEAST_CHANGE]
        if len(queries):
            shown = zip(grid_rows(results, found, name, queries, images), queries)
            changes = [
                dataclasses.replace(row, note=f"{row.note}, {change[query]:+.3f}") for row, query in shown
            ]
            grids.append(Grid(title, changes))
    return grids
