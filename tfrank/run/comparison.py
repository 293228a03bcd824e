"""Comparison of an evaluation with its baselines, and with an earlier evaluation on the same gallery."""

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

import tfrank
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.evaluation.model_summaries import summarize_models
from tfrank.evaluation.protocols import text_of
from tfrank.evaluation.report.bootstrap import paired_bootstrap
from tfrank.evaluation.report.charts import line_charts
from tfrank.evaluation.report.html_page import Grid, ModelTable, RunComparison
from tfrank.evaluation.report.result_files import (
    PerQuery,
    common_queries,
    load_curves,
    load_metrics,
    load_per_query,
    write_results,
)
from tfrank.evaluation.retrieval_metrics import main_metric, mean_name
from tfrank.run.evaluation_results import EvaluationResults, RankingSetup
from tfrank.run.pictures import Images, grid_rows

BASELINES = "baselines"
# Per-query metrics by which models are compared at the top of the report.
COMPARED = ("recall_at_1", "ap", "trapezoid_ap")
# Facts of `evaluation_results.about` that do not say how embeddings were made and ranked.
OTHER_FACTS = ("model", "images", "classes", "protocols", "search", "weights", "matches")
MOST_CHANGED = 4
# Smallest change in AP for which a query is shown.
LEAST_CHANGE = 5e-4


class EarlierRanking(NamedTuple):
    """A ranking of the earlier evaluation.

    Attributes:
        per_query: its per-query results.
        rows: the queries of this evaluation that it also has.
        places: the positions of these queries in `per_query`.
    """

    per_query: PerQuery
    rows: np.ndarray
    places: np.ndarray


def per_query_of(results: EvaluationResults) -> dict[str, PerQuery]:
    """Returns the per-query results of each ranking with queries; pairs of templates have none."""
    test, found = results.test, {}
    for name, one in results.rankings.items():
        if not one.per_query:
            continue
        ids = np.array([text_of(image) for image in test.ids[one.queries]])
        found[name] = PerQuery(ids, test.labels[one.queries], one.per_query)
    return found


def setups_of_results(results: EvaluationResults) -> dict[str, RankingSetup]:
    """Returns the queries and the gallery of each ranking."""
    queries = per_query_of(results)
    return {name: RankingSetup(one.ids, one.labels, results.galleries[name]) for name, one in queries.items()}


def write_baselines(
    folder: str, baselines: Mapping[str, EvaluationResults], about: Mapping[str, object]
) -> None:
    """Writes the baselines of an evaluation to its folder, each as an evaluation. Deletes earlier ones.

    Args:
        folder: folder of the evaluation.
        baselines: results by name.
        about: facts on the evaluation, see `evaluation_results.about`.
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
    folder: str, about: Mapping[str, object], setups: Mapping[str, RankingSetup]
) -> tuple[dict[str, dict[str, EarlierRanking]], list[str]]:
    """Loads the baselines in an evaluation's folder that were measured in the same way as the evaluation.

    Args:
        folder: folder of the evaluation.
        about: facts on the evaluation, see `evaluation_results.about`.
        setups: queries and gallery of each ranking of the evaluation.

    Returns:
        The rankings of each baseline by name, and a note on each baseline that was left out.
    """
    place, found, notes = os.path.join(folder, BASELINES), {}, []
    for name in sorted(os.listdir(place)) if setups and os.path.isdir(place) else ():
        try:
            before = load_metrics(os.path.join(place, name))["about"]
            other = [fact for fact in {**before, **about} if before.get(fact) != about.get(fact)]
            if other := [fact for fact in other if fact not in OTHER_FACTS]:
                raise InputError(f"it was measured with other {', '.join(other)}.")
            found[name] = earlier_rankings(os.path.join(place, name), folder, setups)
        except InputError as error:
            notes.append(f"The baseline “{name}” is left out of the tables of models: {error}")
    return found, notes


def rankings_of(results: EvaluationResults) -> dict[str, EarlierRanking]:
    """Returns the rankings of another model on this very test set."""
    found = per_query_of(results).items()
    return {name: EarlierRanking(one, *(np.arange(len(one.ids)),) * 2) for name, one in found}


def model_tables(
    results: EvaluationResults, beside: Mapping[str, Mapping[str, EarlierRanking]], name: str
) -> list[ModelTable]:
    """Returns the tables at the top of a report, which compare models by ranking and metric.

    Args:
        results: results of the model that the report is about.
        beside: rankings of other models, by model name.
        name: name of the model that the report is about; it comes last.
    """
    tables = []
    for ranking, this in per_query_of(results).items():
        labels = this.labels if np.all(this.labels != UNKNOWN) else None
        for metric in (one for one in COMPARED if one in this.metrics):
            values = {}
            for other, rankings in beside.items():
                if ranking in rankings and metric in rankings[ranking].per_query.metrics:
                    earlier, rows, places = rankings[ranking]
                    values[other] = np.full(len(this.ids), np.nan)
                    values[other][rows] = earlier.metrics[metric][places]
            models = summarize_models({**values, name: this.metrics[metric]}, labels)
            title = ranking if len(results.rankings) > 1 else ""
            tables.append(ModelTable(mean_name(metric), models, title))
    return tables


def means_and_intervals(tables: Sequence[ModelTable], main_ranking: str) -> dict[str, dict[str, dict]]:
    """Returns [mean, low, high] by ranking, metric and model; None for the ends where there is no interval.

    Args:
        tables: as from `model_tables`.
        main_ranking: name of the ranking of tables without a name.
    """
    found: dict[str, dict[str, dict]] = {}
    for table in tables:
        of_metric = found.setdefault(table.ranking or main_ranking, {}).setdefault(table.metric, {})
        for name, (mean, *ends, _), *_ in table.models:
            of_metric[name] = [mean, *(end if np.isfinite(end) else None for end in ends)]
    return found


def earlier_rankings(before: str, now: str, setups: Mapping[str, RankingSetup]) -> dict[str, EarlierRanking]:
    """Loads the rankings of an earlier evaluation with the same queries and gallery. Needs no embeddings.

    Args:
        before: folder of the earlier evaluation.
        now: folder of this evaluation.
        setups: queries and gallery of each ranking of this evaluation.

    Raises:
        InputError: the earlier evaluation is missing or damaged, or it has another test set, gallery or
            protocol.
    """
    if os.path.realpath(before) == os.path.realpath(now):
        raise InputError(f"{before} is the folder of this evaluation itself. Give the folder of another one.")
    if not setups:
        raise InputError(
            "Evaluations are compared query by query, and pairs of templates have no queries. Leave out"
            " --compare_with and config.evaluation.beside."
        )
    tree, _ = load_metrics(before), load_curves(before)
    found = {
        name: _earlier(before, name, setup, tree["galleries"].get(name))
        for name, setup in setups.items()
        if name in tree["rankings"]
    }
    if not found:
        raise InputError(
            f"{before} has the rankings {', '.join(tree['rankings'])}, but none of {', '.join(setups)}."
            " Evaluate both with the same protocol."
        )
    return found


def _earlier(before, name, setup, gallery):
    other = load_per_query(before, name)
    rows, places = common_queries(setup.ids, other.ids)
    if not len(rows):
        raise InputError(
            f"{before} has none of the queries of this test set: no id is in both."
            " Compare with an evaluation of the same test set."
        )
    if np.any(setup.labels[rows] != other.labels[places]):
        raise InputError(f"{before} has other classes for the same ids, so its test set is another one.")
    if gallery != setup.gallery:
        sizes = " and ".join(f"{one['images']:,}" for one in (gallery or {"images": 0}, setup.gallery))
        raise InputError(
            f"{before} searched another gallery at {name} ({sizes} images), so its metrics cannot be"
            " compared with these. Evaluate it again on this one."
        )
    return EarlierRanking(other, rows, places)


def rankings_beside(
    folders: Sequence[str], now: str, setups: Mapping[str, RankingSetup]
) -> dict[str, dict[str, EarlierRanking]]:
    """Loads the rankings of other evaluations by their folders, see `earlier_rankings`."""
    # A folder "start" is not the model "start" of a table.
    names = [folder if os.path.dirname(folder) else os.path.join(os.curdir, folder) for folder in folders]
    return {name: earlier_rankings(folder, now, setups) for name, folder in zip(names, folders)}


def compare_runs(
    before: str,
    now: str,
    results: EvaluationResults,
    lines: Mapping[str, Mapping],
    images: Images,
) -> list[RunComparison]:
    """Compares each ranking that two evaluations share, on their common queries.

    Args:
        before: folder of the earlier evaluation.
        now: folder of this evaluation.
        results: results of this evaluation.
        lines: curves of its rankings, as in `curves.json`.
        images: its pictures.

    Raises:
        InputError: see `earlier_rankings`.
    """
    found = earlier_rankings(before, now, setups_of_results(results))
    per_query = per_query_of(results)
    curves = load_curves(before), lines
    comparisons = []
    for name, earlier in found.items():
        this = per_query[name]
        # Curves cover all queries, so they compare only if both evaluations have the same ones.
        same = len(earlier.rows) == len(this.ids) == len(earlier.per_query.ids)
        both = {folder: them[name] for folder, them in zip((before, now), curves) if same and name in them}
        intervals, means = _differences(this, earlier)
        comparisons.append(
            RunComparison(
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
    """Returns confidence intervals of the differences of the means, and the means of both evaluations."""
    other, rows, places = earlier
    groups = this.labels[rows] if np.all(this.labels != UNKNOWN) else None
    intervals, means = {}, ({}, {})
    for metric in (one for one in this.metrics if one in other.metrics):
        pair = other.metrics[metric][places], this.metrics[metric][rows]
        found = paired_bootstrap(*pair, groups=groups)
        name_of_mean = mean_name(metric)
        intervals[name_of_mean] = (found.low, found.high)
        valid = np.isfinite(pair[0]) & np.isfinite(pair[1])
        for mean, values in zip(means, pair):
            mean |= {name_of_mean: float(values[valid].mean()), "queries": found.queries}
    return intervals, means


def _changed(results, name, this, earlier, images):
    """Returns picture grids of the queries that changed most."""
    found, metric = results.rankings[name], main_metric(this.metrics)
    other, rows, places = earlier
    if not images or found.task is None or metric not in other.metrics:
        return []
    change = np.full(len(this.ids), np.nan)
    change[rows] = this.metrics[metric][rows] - other.metrics[metric][places]
    grids = []
    for title, sign in (("Better now", 1), ("Worse now", -1)):
        order = np.argsort(-sign * change, kind="stable")[:MOST_CHANGED]
        queries = order[sign * change[order] > LEAST_CHANGE]
        if len(queries):
            shown = zip(grid_rows(results, name, queries, images), queries)
            changes = [
                dataclasses.replace(row, note=f"{row.note}, {change[query]:+.3f}") for row, query in shown
            ]
            grids.append(Grid(title, changes))
    return grids
