"""An index in shards, by ScaNN where it can run: built on many machines, searched in parallel, and merged."""

import concurrent.futures
import functools
import itertools
import json
import os
import secrets
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions

from tfrank.common import checks, files, json_files, parquet_files
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import searchers
from tfrank.evaluation.nearest.exhaustive import merge_neighbors
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.nearest.scann_index import ScannIndex
from tfrank.scale import pipelines, storage
from tfrank.scale.parts import Part, check_queries, parts_of, rows_of, table_of

MANIFEST = "shards.json"
AGAIN = "Build the index again."
_RECALL = json_files.real(0, 1)
_SHARD = json_files.record(
    {
        "name": json_files.file_name(),
        "first": json_files.whole(),
        "rows": json_files.whole(1),
        "recall": _RECALL,
    }
)
_MANIFEST = json_files.record(
    {"shards": json_files.list_of(_SHARD, at_least=1)},
    {"dim": json_files.whole(1, 2**16), "model": json_files.text()},
)


class Shard(NamedTuple):
    """A shard of an index.

    Attributes:
        name: name of its folder.
        first: number of its first row among all rows.
        rows: number of its rows.
        recall: share of the nearest that it finds, measured on a sample.
    """

    name: str
    first: int
    rows: int
    recall: float


class ShardedIndex:
    """Opens an index in shards, or some of its shards, as one of several machines does.

    Args:
        folder: the folder of the index; a remote one is copied to a temporary folder.
        shards: numbers of the shards to open; None: all.

    Attributes:
        shards: the open shards.

    Raises:
        InputError: the index is missing or damaged, no number is given or one twice, or there is no shard of
            a number.

    Search of the machines' shards is merged by `tfrank.evaluation.nearest.exhaustive.merge_neighbors`.
    """

    def __init__(self, folder: str, shards: Sequence[int] | None = None):
        known = shards_of(folder)
        numbers = range(len(known)) if shards is None else shards
        if not len(numbers) or len({*numbers}) < len(numbers) or not {*numbers} <= {*range(len(known))}:
            raise checks.invalid(
                "shards", f"one or several numbers from 0 to {len(known) - 1}, each once", shards
            )
        self.shards = [known[number] for number in numbers]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            paths = [storage.join(folder, shard.name) for shard in self.shards]
            self._indexes = list(pool.map(_loaded, paths))
        for path, shard, index in zip(paths, self.shards, self._indexes):
            if len(index) != shard.rows:
                reason = f"it has {len(index):,} rows, and {MANIFEST} names {shard.rows:,}"
                raise InputError(f"{path} is damaged ({reason}). {AGAIN}")

    def search(self, queries: np.ndarray, k: int) -> Neighbors:
        """The k nearest rows of the open shards, by their numbers among the rows of all shards.

        Args:
            queries: `[queries, dim]` of unit norm.
            k: number of neighbours.
        """
        with concurrent.futures.ThreadPoolExecutor(len(self._indexes)) as pool:
            parts = list(pool.map(lambda index: index.search(queries, k), self._indexes))
        return merge_neighbors(parts, [shard.first for shard in self.shards], k)

    def ids(self, rows: np.ndarray) -> np.ndarray:
        """The ids of rows of the open shards; "" for -1."""
        found = np.full(rows.shape, "", object)
        for shard, index in zip(self.shards, self._indexes):
            inside = (rows >= shard.first) & (rows < shard.first + shard.rows)
            found[inside] = index.ids[rows[inside] - shard.first]
        return found


def shards_of(folder: str) -> list[Shard]:
    """Returns the shards of an index.

    Raises:
        InputError: the index is missing or damaged.
    """
    return [Shard(**fields) for fields in _manifest(folder)["shards"]]


def _manifest(folder: str) -> dict[str, Any]:
    """Returns what an index says of itself; raises InputError if it is missing or damaged."""
    path = storage.join(folder, MANIFEST)
    if not storage.exists(path):
        raise InputError(
            f"{folder} is no index in shards: it has no {MANIFEST}. Make one: tfrank scale index"
        )
    manifest = json_files.parse(storage.read(path), _MANIFEST, path, AGAIN)
    first = 0
    for shard in manifest["shards"]:
        if shard["first"] != first:
            raise InputError(f"{path} is damaged (no shard has the row {first:,}). {AGAIN}")
        first += shard["rows"]
    return manifest


def _loaded(path):
    if not files.is_remote(path):
        return ScannIndex.load(path)
    with tempfile.TemporaryDirectory() as folder:
        storage.download_folder(path, folder)
        index = ScannIndex.load(folder)
        index.rows = np.array(index.rows)  # Not a map of a file that goes.
        return index


def build(
    embeddings: str,
    output_dir: str,
    options: PipelineOptions,
    *,
    shards: int = 0,
    target_recall: float = 0.99,
) -> list[Shard]:
    """Builds an index in shards; returns the shards.

    Args:
        embeddings: folder of embeddings, see `parts.parts_of`. A shard holds whole files of it.
        output_dir: folder of the index, local or remote.
        options: Beam's options, see `pipelines.beam_options`.
        shards: number of shards, at most the number of files; 0: one a file, at most 8.
        target_recall: share of the nearest that each shard finds.

    Raises:
        InputError: the folder has no embeddings, or fewer files than shards; or `output_dir` has an index.
    """
    parts = parts_of(embeddings)
    shards = checks.integer("shards", shards, at_least=0) or min(8, len(parts))
    if storage.exists(storage.join(output_dir, MANIFEST)):
        raise InputError(f"{output_dir} has an index already. Choose another folder.")
    if shards > len(parts):
        raise InputError(f"{embeddings} has {len(parts)} files, so at most that many shards. Give --shards.")
    groups = groups_of(parts, shards)

    def steps(pipeline):
        _ = (
            pipeline
            | "Groups" >> beam.Create(list(enumerate(groups)))
            | "Spread" >> beam.Reshuffle()
            | "Build" >> beam.Map(_build, output_dir, target_recall)
        )

    pipelines.run(steps, options)
    built = [
        Shard(_name(number), group[0].first, sum(part.rows for part in group), _recall(output_dir, number))
        for number, group in enumerate(groups)
    ]
    manifest = {"dim": parts[0].dim, "model": parts[0].model, "shards": [shard._asdict() for shard in built]}
    storage.write(storage.join(output_dir, MANIFEST), (json.dumps(manifest, indent=2) + "\n").encode())
    return built


def groups_of(parts: Sequence[Part], count: int) -> list[Sequence[Part]]:
    """Divides parts, in their order, into so many groups of about as many rows; none is empty.

    >>> parts = [Part("", 0, rows, 0, 8) for rows in (100, 100, 1)]
    >>> [len(group) for group in groups_of(parts, 3)], [len(group) for group in groups_of(parts, 2)]
    ([1, 1, 1], [1, 2])
    """
    sizes, number = np.array([part.rows for part in parts]), np.arange(count)
    middles = np.cumsum(sizes) - sizes / 2
    # A group begins with the first file whose middle lies in its share of all rows,
    starts = np.searchsorted(middles, number * sizes.sum() / count)
    # or with a later or earlier one, so that each group before it and behind it has a file.
    starts = np.maximum.accumulate(starts - number) + number
    starts = np.minimum(starts, len(parts) - count + number)
    return [parts[first:last] for first, last in itertools.pairwise([*starts, len(parts)])]


def _name(number):
    return f"shard-{number:05d}"


def _recall(folder, number):
    path = storage.join(folder, f"{_name(number)}.json")
    return json_files.parse(storage.read(path), json_files.record({"recall": _RECALL}), path, AGAIN)["recall"]


def _build(numbered: tuple[int, Sequence[Part]], output_dir: str, target_recall: float) -> None:
    """Builds and writes a shard, and then the note of its recall."""
    number, parts = numbered
    rows = np.concatenate([rows_of(part).embeddings for part in parts])
    ids = np.concatenate([np.array(table_of(part, ["id"])["id"].to_pylist()) for part in parts])
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, _name(number))
        kind = searchers.SEARCHERS[searchers.for_rows(len(rows), "scann")]
        index = kind.build(rows, ids=ids, target_recall=target_recall)
        index.save(local)
        # What an interrupted run left.
        storage.remove(storage.join(output_dir, _name(number)))
        storage.upload(local, storage.join(output_dir, _name(number)))
    note = {"recall": index.settings.recall}
    storage.write(storage.join(output_dir, f"{_name(number)}.json"), json.dumps(note).encode())


def search(
    index: str,
    queries: str,
    output_dir: str,
    options: PipelineOptions,
    *,
    k: int = 10,
    two_models: bool = False,
) -> int:
    """Finds the nearest images of each query by all shards in parallel; returns the number of queries.

    Args:
        index: folder of an index in shards.
        queries: folder of embeddings, see `parts.parts_of`.
        output_dir: gets a file `nearest-00000.parquet` for each file of queries, with the columns id, nearest
            (ids) and similarity.
        options: Beam's options, see `pipelines.beam_options`.
        k: number of images to find.
        two_models: whether the queries may be of another model than the index, see `evaluate.evaluate`.

    Raises:
        InputError: a folder is missing or damaged, or the models differ.
    """
    k = checks.integer("k", k, at_least=1)
    blocks, manifest = parts_of(queries), _manifest(index)
    shards, dim = manifest["shards"], manifest.get("dim", blocks[0].dim)
    if blocks[0].dim != dim:
        raise InputError(
            f"{queries} has embeddings of {blocks[0].dim} dimensions, and {index} of {dim}. Embed both with"
            " the same model."
        )
    check_queries(queries, blocks[0].model, index, manifest.get("model", ""), two_models=two_models)
    tasks = [(number, shard) for shard in range(len(shards)) for number in range(len(blocks))]
    # The index of a folder may be another one in the next search.
    this = secrets.token_hex(8)

    def steps(pipeline):
        _ = (
            pipeline
            | "Tasks" >> beam.Create(tasks)
            | "Spread" >> beam.Reshuffle()
            | "Search" >> beam.Map(_searched, index, this, blocks, k)
            | "By block" >> beam.GroupByKey()
            | "Write" >> beam.Map(_write_nearest, blocks, output_dir, k)
        )

    storage.remove_files(output_dir, "nearest-*.parquet")
    pipelines.run(steps, options)
    return sum(block.rows for block in blocks)


@functools.lru_cache(maxsize=1)
def _open(folder: str, number: int, of_search: str) -> ShardedIndex:
    """Returns a shard, which a worker keeps for a search until it opens another."""
    return ShardedIndex(folder, [number])


def _searched(task: tuple[int, int], folder: str, of_search: str, blocks: Sequence[Part], k: int):
    """Returns (block, rows, similarities and ids of what a shard finds for the queries of a block)."""
    number, shard = task
    index = _open(folder, shard, of_search)
    found = index.search(rows_of(blocks[number]).embeddings, k)
    return number, (found, index.ids(found.index))


def _write_nearest(found, blocks: Sequence[Part], output_dir: str, k: int) -> None:
    number, of_shards = found
    parts, ids = zip(*of_shards)
    nearest = merge_neighbors(parts, [0] * len(parts), k)
    id_of = {row: name for part, names in zip(parts, ids) for row, name in zip(part.index.flat, names.flat)}
    columns = {
        "id": table_of(blocks[number], ["id"])["id"],
        "nearest": pa.array([[id_of[row] for row in rows if row >= 0] for rows in nearest.index]),
        "similarity": pa.array([row[row > -np.inf] for row in nearest.similarity]),
    }
    path = storage.join(output_dir, f"nearest-{number:05d}.parquet")
    storage.write(path, parquet_files.encoded(pa.table(columns)))
