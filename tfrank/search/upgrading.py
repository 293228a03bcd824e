"""Gives an index another model at once, by a map of its embeddings, and then embeds the images part by part.

Every image has one embedding in the space of the new model at any moment: a mapped one, which the column
`index_folder.MAPPED` marks, or its own. Each part becomes a version of its own, first that of the images that
servers found most often. Killed at any moment, the index is as the last version left it, and the same command
goes on. An image that cannot be read stays mapped.
"""

import concurrent.futures
import functools
import itertools
import time
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.evaluation.embedding_maps import EmbeddingMap, identity_map, load_map
from tfrank.export.saved_model import saved_model_of
from tfrank.search import building, earlier, times_found
from tfrank.search.current import read_current
from tfrank.search.embedder import Embedder, copy_model
from tfrank.search.index_folder import MAPPED, PART_ROWS, IndexFolder, Version, matrix, table_of
from tfrank.search.maps import learn_from

# In place of the path of a map, of a model that shares the space of the index's.
IDENTITY = "identity"
# Large indexes are prepared for search anew with each version: at most so many of them.
MOST_VERSIONS = 10
# Seconds until the next try while somebody else writes to the index.
WAIT = 2.0

T = TypeVar("T")


def upgrade(
    folder: str,
    model: str = "",
    map_path: str = "",
    *,
    embed: bool = True,
    trusted: bool = False,
    target_recall: float | None = None,
) -> None:
    """Gives an index another model, or goes on with it; prints what it does.

    Args:
        folder: the index folder.
        model: folder of a run or of a SavedModel. "": that of the index, whose mapped images are embedded.
        map_path: the map; "": one is learnt on images of the index. `IDENTITY`: none is needed. It is not
            used where the index has the model already, as when the same command goes on.
        embed: whether to embed the images after they are mapped.
        trusted: whether the models may run any operation.
        target_recall: recall that an approximate search is built to. None: as before, at first 0.99.

    Raises:
        InputError: there is no index, the map is of other models, or no image can be read to learn one.
    """
    index = IndexFolder(folder)
    version = index.existing()
    saved_model = saved_model_of(model) if model else index.path("models", version.model)
    embedder = Embedder(saved_model, trusted=trusted)
    if embedder.fingerprint != version.model:
        if map_path == IDENTITY:
            mapping = identity_map(embedder.dim)
        elif map_path:
            mapping = load_map(map_path)
        else:
            mapping = learn_from(folder, saved_model, trusted=trusted)

        def mapped():
            # Whoever was waited for may have done it.
            if index.existing().model == embedder.fingerprint:
                return f"{folder} has this model by now."
            begun = time.perf_counter()
            version = map_rows(folder, embedder, mapping, target_recall=target_recall)
            return (
                f"Version {version.number} of {folder}: {version.rows:,} embeddings were mapped in"
                f" {time.perf_counter() - begun:.1f} seconds. The new model searches them."
            )

        print(_once_free(folder, mapped), flush=True)
    elif map_path:
        print(f"{folder} has this model already, so the map {map_path} is not used.", flush=True)
    if embed:
        embed_mapped(folder, embedder, target_recall=target_recall)


def _once_free(folder: str, write: Callable[[], T]) -> T:
    """Returns what `write` returns, once no other process writes to the index; prints that it waits."""
    for tries in itertools.count():
        try:
            return write()
        except files.Locked:
            if not tries:
                print(f"Another process writes to {folder}. This one waits for it.", flush=True)
            time.sleep(WAIT)


def map_rows(
    folder: str,
    embedder: Embedder,
    mapping: EmbeddingMap,
    *,
    marked: bool = True,
    target_recall: float | None = None,
) -> Version:
    """Makes a version of an index whose embeddings are those of the version before, mapped.

    Args:
        folder: the index folder.
        embedder: the new model.
        mapping: the map from the embeddings of the index to those of the new model.
        marked: whether to mark the images as mapped. If not, the new model gives just these embeddings.
        target_recall: recall that an approximate search is built to. None: as before, at first 0.99.

    Raises:
        InputError: there is no index, the map is of other models, or another process writes.
    """
    with files.locked(folder):
        index = IndexFolder(folder)
        index.check_folders()
        old = index.existing()
        _check_models(mapping, (old.model, embedder.fingerprint), (old.dim, embedder.dim))
        copy_model(embedder.folder, index.path("models", embedder.fingerprint))

        def mapped(name):
            table = index.read_part(name)
            table = table_of(_columns(table, old.model if marked else None), mapping(matrix(table)))
            return index.write_part(table, embedder.fingerprint)

        with concurrent.futures.ThreadPoolExecutor() as pool:
            parts = list(pool.map(mapped, old.parts))
        model = (embedder.fingerprint, embedder.dim)
        return building.publish(index, old, *model, parts, old.root, old.rows, target_recall).version


def _columns(table: pa.Table, model: str | None) -> dict[str, pa.Array]:
    """Returns the columns of rows but for their embeddings; with a model, marked by what embedded each."""
    columns = {name: table.column(name) for name in table.column_names if name != "embedding"}
    if model:
        marks = columns[MAPPED].to_pylist() if MAPPED in columns else [None] * len(table)
        columns[MAPPED] = pa.array([mark or model for mark in marks], pa.string())
    return columns


def _check_models(mapping: EmbeddingMap, models: tuple[str, str], dims: tuple[int, int]) -> None:
    """Raises InputError if a map is not from the one of two models to the other."""
    again = "Learn one with tfrank compat --old=INDEX --new=MODEL."
    takes, gives = len(mapping.mean), len(mapping.offset)
    if (takes, gives) != dims:
        raise InputError(
            f"The map takes embeddings of {takes} dimensions to {gives}. Those of the index have {dims[0]},"
            f" and those of the new model {dims[1]}. {again}"
        )
    for known, model, which in zip(mapping.models.tolist(), models, ("index", "new model")):
        if known not in ("", model):
            raise InputError(f"The map was learnt for another model than the {which}'s. {again}")


def embed_mapped(folder: str, embedder: Embedder, *, target_recall: float | None = None) -> None:
    """Embeds the images of an index whose embeddings are mapped, part by part; prints how far it is.

    Raises:
        InputError: the index has another model by now.
    """
    index, tried, reasons = IndexFolder(folder), set[str](), dict[str, str]()
    version, mapped = read_current(index, functools.partial(earlier.mapped, index))
    while left := [image for image in mapped if image.id not in tried]:
        times = times_found.counts_of(folder)
        left.sort(key=lambda image: -times[image.id])
        some = left[: max(PART_ROWS, -(-version.rows // MOST_VERSIONS))]
        options = {"root": version.root, "remove_others": False, "target_recall": target_recall}
        update = functools.partial(building.update, folder, embedder, some, still_mapped=True, **options)
        reasons |= dict(_once_free(folder, update).skipped)
        tried |= {image.id for image in some}
        version, mapped = read_current(index, functools.partial(earlier.mapped, index))
        own = version.rows - len(mapped)
        print(f"Version {version.number}: {own:,} of {version.rows:,} images are embedded.", flush=True)
    # Others may have been removed meanwhile.
    if unread := [image.id for image in mapped if image.id in reasons]:
        first = f"{unread[0]}: {reasons[unread[0]]}"
        print(f"{len(unread):,} images cannot be read and stay mapped; the first: {first}.")
