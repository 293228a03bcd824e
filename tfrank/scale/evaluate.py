"""Exact evaluation of a gallery that no machine holds: the metrics of `tfrank.evaluation.evaluate`."""

import functools
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList, AsMultiMap, AsSingleton

from tfrank.common import checks, json_files, parquet_files
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.evaluation.class_means import REPORTED
from tfrank.evaluation.metric_names import BY_CLASS, COUNTS
from tfrank.evaluation.retrieval_metrics import main_metric, mean_name, per_query, usable_ks
from tfrank.scale import pipelines, storage
from tfrank.scale.parts import (
    Block,
    Part,
    Rows,
    blocks_of,
    check_queries,
    hashes_of,
    labels_of,
    names_of_block,
    note_on_mapped,
    parts_of,
    rows_of,
    rows_of_block,
    table_of,
)
from tfrank.scale.ranking import Counted, counted, merged, ranks, thresholds_of

# Queries of a block, whose embeddings a worker holds, and gallery rows that are compared with it in one task:
# 4.4 TFLOP at 512 dimensions. Larger blocks read the gallery less often.
BLOCK_QUERIES = 2**15
TASK_ROWS = 2**17
# Ids are compared in so many groups.
ID_GROUPS = 64


def evaluate(
    gallery: str,
    output_dir: str,
    options: PipelineOptions,
    *,
    queries: str = "",
    ks: Sequence[int] | None = None,
    neighbors: int = 0,
    block_queries: int = BLOCK_QUERIES,
    two_models: bool = False,
) -> dict[str, float]:
    """Recall@K, precision@K, mAP and the other metrics of `tfrank.evaluation.evaluate`, equal to them.

    Without `queries`, each image is the query once and all others are the gallery. With queries, a gallery
    row with the id of the query is left out of its ranking. Images without a label are negatives of all
    queries, and no queries; a note says how many there are.

    Args:
        gallery: folder of embeddings, see `parts.parts_of`.
        output_dir: gets `metrics.json`, and for each block of queries `per_query-00000.parquet` with the
            metrics of each query, and the numbers of its nearest rows in the gallery if asked for.
        options: Beam's options, see `pipelines.beam_options`.
        queries: folder of embeddings of the queries; "" for leave-one-out.
        ks: the Ks, see `tfrank.evaluation.evaluate`.
        neighbors: number of nearest images to write for each query, or all if there are fewer.
        block_queries: most queries of a block; a worker holds their embeddings.
        two_models: whether the queries may be of another model, which was trained to search embeddings of the
            gallery's, as a student or a compatible model is.

    Raises:
        InputError: a folder has no embeddings, dimensions differ, two models are said without queries, or no
            query has a positive.
    """
    if two_models and not queries:
        raise InputError("`two_models` is for `queries` of another model than the gallery's. Give them.")
    checks.integer("neighbors", neighbors, at_least=0)
    block_queries = checks.integer("block_queries", block_queries, at_least=1)
    parts = parts_of(gallery)
    blocks = blocks_of(parts_of(queries) if queries else parts, block_queries)
    if blocks[0][0].dim != parts[0].dim:
        raise InputError(
            f"Queries have {blocks[0][0].dim} dimensions, the gallery has {parts[0].dim}. Embed both with the"
            " same model."
        )
    of_queries = (queries or gallery, blocks[0][0].model)
    check_queries(*of_queries, gallery, parts[0].model, two_models=two_models)
    rows = sum(part.rows for part in parts)
    ks, note = usable_ks(ks, rows - (not queries))
    note = " ".join(filter(None, (note, note_on_mapped(parts))))
    settings = {"leave_one_out": not queries, "ks": ks, "neighbors": min(neighbors, rows)}
    settings["output_dir"] = output_dir
    means_path = storage.join(output_dir, "metrics.json")

    def build(pipeline):
        found = pipeline | "Ranking" >> _Ranking(blocks, parts, settings)
        unlabelled = (
            pipeline
            | "Gallery" >> beam.Create(parts)
            | "Spread gallery" >> beam.Reshuffle()
            | "Without label" >> beam.Map(_unlabelled)
            | "Their number" >> beam.CombineGlobally(sum)
        )
        of_classes = (
            found
            | "Sums by class" >> beam.FlatMap(_class_sums)
            | "Sums of classes" >> beam.CombinePerKey(_added)
            | "Means of classes" >> beam.MapTuple(_class_means)
        )
        _ = (
            (found | "Sums" >> beam.Map(_sums), of_classes)
            | "All sums" >> beam.Flatten()
            | "Totals" >> beam.CombineGlobally(_added)
            | "Write" >> beam.Map(_write_means, means_path, note, AsSingleton(unlabelled))
        )

    storage.remove_files(output_dir, "per_query-*.parquet")
    pipelines.run(build, options)
    of_means = json_files.record({}, {"note": json_files.text()}, others=True)
    return json_files.parse(storage.read(means_path), of_means, means_path, "Evaluate again.")


class _Ranking(beam.PTransform):
    """Yields, for each block of queries, its labels and the metrics of each query."""

    def __init__(self, blocks: Sequence[Block], parts: Sequence[Part], settings: dict[str, Any]):
        super().__init__()
        self._blocks, self._parts, self._settings = blocks, parts, settings

    def expand(self, pipeline):
        blocks, settings = self._blocks, self._settings
        leave_one_out = settings["leave_one_out"]
        sought = (
            pipeline
            | "Blocks" >> beam.Create(list(enumerate(blocks)))
            | "Spread blocks" >> beam.Reshuffle()
            | "Labels" >> beam.Map(_sought, leave_one_out)
        )
        matches = (
            pipeline
            | "Parts" >> beam.Create(self._parts)
            | "Spread parts" >> beam.Reshuffle()
            | "Match" >> beam.FlatMap(_matches, AsList(sought), leave_one_out)
        )
        # Blocks without any match have thresholds too.
        nothing = sought | "No match" >> beam.MapTuple(lambda block, *_: (block, None))
        thresholds = (
            (matches, nothing)
            | "All matches" >> beam.Flatten()
            | "By block" >> beam.GroupByKey()
            | "Thresholds" >> beam.Map(_block_thresholds, blocks, leave_one_out)
        )
        compared = (
            pipeline
            | "Numbers" >> beam.Create(range(len(blocks)))
            | "Tasks" >> beam.FlatMap(functools.partial(_tasks, parts=self._parts))
            | "Spread tasks" >> beam.Reshuffle()
            | "Compare" >> beam.Map(_compared, AsMultiMap(thresholds), blocks, settings["neighbors"])
            | "Add" >> beam.CombinePerKey(_Merged(settings["neighbors"]))
        )
        _ = (
            pipeline
            | "Files of ids" >> beam.Create(self._parts)
            | "Spread ids" >> beam.Reshuffle()
            | "Ids" >> beam.FlatMap(_id_groups)
            | "Ids together" >> beam.GroupByKey()
            | "Check ids" >> beam.Map(_check_ids)
        )
        return (
            {"thresholds": thresholds, "compared": compared}
            | "Join" >> beam.CoGroupByKey()
            | "Metrics" >> beam.Map(_block_metrics, blocks, settings)
        )


def _sought(numbered: tuple[int, Block], leave_one_out: bool):
    """Returns the number of a block, the labels of its queries, and their ids if the gallery is another."""
    number, block = numbered
    names = names_of_block(block)
    labels = np.unique(labels_of(names))
    return number, labels[labels != UNKNOWN], None if leave_one_out else hashes_of(names["id"])


def _unlabelled(part: Part) -> int:
    """Returns the number of images of a part that have no label."""
    return int(np.sum(labels_of(table_of(part, ["id", "label"])) == UNKNOWN))


def _id_groups(part: Part):
    """Yields the ids of a part in groups; equal ids are in the same one."""
    ids = table_of(part, ["id"])["id"]
    hashes = hashes_of(ids)
    for group in range(ID_GROUPS):
        places = np.flatnonzero(hashes % ID_GROUPS == group)
        if len(places):
            yield group, (hashes[places], ids.take(pa.array(places)).to_pylist())


def _check_ids(group):
    """Raises InputError if an id is repeated."""
    hashes, names = zip(*group[1])
    hashes, names = np.concatenate(hashes), list(itertools.chain(*names))
    order = np.argsort(hashes, kind="stable")
    twice = np.flatnonzero(np.diff(hashes[order]) == 0)
    if len(twice):
        raise InputError(f"The gallery has the id {names[order[twice[0]]]!r} twice. Make the ids unique.")


def _matches(part: Part, sought, leave_one_out: bool):
    """Yields (block, rows of the part that have a label or id of its queries) for each block of queries."""
    gallery = rows_of(part)
    columns = [(1, gallery.label)] if leave_one_out else [(1, gallery.label), (2, gallery.id)]
    found: dict[int, list[np.ndarray]] = {}
    for column, values in columns:
        order = np.argsort(values, kind="stable")
        for block in sought:
            first, last = (
                np.searchsorted(values[order], block[column], side=side) for side in ("left", "right")
            )
            places = [order[a:b] for a, b in zip(first, last) if a < b]
            if places:
                found.setdefault(block[0], []).extend(places)
    for block, places in found.items():
        rows = np.unique(np.concatenate(places))
        yield block, Rows(*(values[rows] for values in gallery))


def _block_thresholds(found: tuple[int, Iterable[Rows | None]], blocks, leave_one_out: bool):
    """Returns (block, thresholds)."""
    number, matches = found
    queries = rows_of_block(blocks[number])
    some = [one for one in matches if one is not None]
    none = Rows(*(column[:0] for column in queries))
    joined = Rows(*map(np.concatenate, zip(*some))) if some else none
    return number, thresholds_of(queries, joined, leave_one_out=leave_one_out)


def _tasks(number: int, parts: Sequence[Part]):
    """Yields (block, parts) with about `TASK_ROWS` gallery rows each."""
    task: list[Part] = []
    for part in parts:
        task.append(part)
        if sum(one.rows for one in task) >= TASK_ROWS:
            yield number, task
            task = []
    if task:
        yield number, task


def _compared(task: tuple[int, Sequence[Part]], thresholds, blocks, k: int):
    """Returns (block, what these parts of the gallery say of it)."""
    number, parts = task
    (of_block,) = thresholds[number]
    queries = rows_of_block(blocks[number])
    return number, merged((counted(queries, rows_of(part), of_block, k) for part in parts), k)


class _Merged(beam.CombineFn):
    """Merges what parts of the gallery say of a block."""

    def __init__(self, k: int):
        self._k = k

    def create_accumulator(self):
        return None

    def add_input(self, accumulator, one):
        return one if accumulator is None else merged([accumulator, one], self._k)

    def merge_accumulators(self, accumulators):
        some = [one for one in accumulators if one is not None]
        return merged(some, self._k) if some else None

    def extract_output(self, accumulator):
        return accumulator


def _block_metrics(joined, blocks, settings):
    """Writes the metrics of the queries of a block; returns their labels and metrics."""
    number, found = joined
    (thresholds,), (compared,) = found["thresholds"], found["compared"]
    metrics = per_query(ranks(thresholds, compared.no_less), settings["ks"])
    names = names_of_block(blocks[number])
    _write_queries(number, names, metrics, compared, settings)
    return labels_of(names), metrics


def _write_queries(number, columns, metrics, compared: Counted, settings):
    for name, values in metrics.items():
        columns = columns.append_column(name, pa.array(values))
    if settings["neighbors"]:
        index, similarity = compared.neighbors
        # The query itself is none of the neighbours, so that there may be fewer.
        columns = columns.append_column("neighbor_rows", pa.array([row[row >= 0] for row in index]))
        found = [values[row >= 0] for row, values in zip(index, similarity)]
        columns = columns.append_column("similarities", pa.array(found))
    path = storage.join(settings["output_dir"], f"per_query-{number:05d}.parquet")
    storage.write(path, parquet_files.encoded(columns))


def _sums(found):
    """Returns the sums of the metrics over the queries of a block that have a positive, and their numbers."""
    labels, metrics = found
    valid = ~np.isnan(metrics[main_metric(metrics)])
    sums = {mean_name(name): math.fsum(values[valid]) for name, values in metrics.items()}
    # Images without a label are no queries.
    left_out = int(np.sum(labels[~valid] != UNKNOWN))
    return {**sums, "queries": int(np.sum(valid)), "queries_without_positive": left_out}


def _class_sums(found):
    """Yields the sums of the reported metrics over the queries of each class of a block."""
    labels, metrics = found
    valid = ~np.isnan(metrics[main_metric(metrics)])
    classes, place, sizes = np.unique(labels[valid], return_inverse=True, return_counts=True)
    reported = {mean_name(name): name for name in REPORTED if name in metrics}
    sums = {key: np.bincount(place, metrics[name][valid]).tolist() for key, name in reported.items()}
    for number, (label, size) in enumerate(zip(classes.tolist(), sizes.tolist())):
        yield label, {key: values[number] for key, values in sums.items()} | {"queries": size}


def _class_means(label, sums):
    """Returns the means of a class, and 1 as the number of classes."""
    queries = sums["queries"]
    means = {name + BY_CLASS: float(value / queries) for name, value in sums.items() if name != "queries"}
    return {**means, "classes": 1}


def _added(sums: Iterable[Mapping[str, float | Fraction]]) -> dict[str, Fraction]:
    """Returns the sums of all, by name. They are exact, so that their order does not matter."""
    total: dict[str, Fraction] = {}
    for one in sums:
        for name, value in one.items():
            total[name] = total.get(name, Fraction(0)) + Fraction(value)
    return total


def _write_means(sums, path: str, note: str, unlabelled: int) -> None:
    """Writes the means. Raises InputError if no query has a positive."""
    queries, classes = sums.get("queries", 0), sums.get("classes", 0)
    if not queries:
        raise InputError(
            "No query has an image of its class in the gallery, so there is nothing to retrieve."
        )
    means = {
        name: int(value) if name in COUNTS else float(value / (classes if BY_CLASS in name else queries))
        for name, value in sorted(sums.items(), key=lambda one: (BY_CLASS in one[0], one[0] in COUNTS))
        if name != "classes"
    }
    if unlabelled:
        note = f"{note} {unlabelled:,} images of the gallery have no class, and are negatives.".lstrip()
    storage.write(path, (json.dumps({**means, **({"note": note} if note else {})}, indent=2) + "\n").encode())
