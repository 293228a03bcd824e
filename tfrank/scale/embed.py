"""Embeds images on many machines: numbered parquet files, which the search index and other tools read."""

import concurrent.futures
import hashlib
import io
import json
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.metrics import Metrics
from apache_beam.ml.inference.base import ModelHandler, RunInference
from apache_beam.options.pipeline_options import PipelineOptions

from tfrank.common import checks, files, json_files, parquet_files
from tfrank.common.checks import InputError
from tfrank.data.prepare.image_files import SHORTER_SIDE, BadImage, checked_image
from tfrank.scale import image_lists, pipelines, storage
from tfrank.scale.parts import AGAIN, LISTS, PATTERN
from tfrank.search.building import blocks
from tfrank.search.embedder import BATCH, Embedder
from tfrank.search.index_folder import COLUMNS, MODEL_KEY, table_of

ROWS = 10_000
# Images that a worker reads ahead of the model.
READ_AHEAD = 64
# Names of the files that are written.
_OWN = re.compile(r"embeddings-\d{6,}\.parquet")
LIST_KEY, SKIPPED_KEY = b"tfrank.list", b"tfrank.skipped"


class Embedded(NamedTuple):
    """What a run of `embed` did.

    Attributes:
        images: number of images that have an embedding now.
        skipped: id and reason of each image that has none.
        new: number of those that this run embedded.
        seconds: of the whole run.
    """

    images: int
    skipped: list[tuple[str, str]]
    new: int
    seconds: float


class File(NamedTuple):
    """A file of embeddings to write.

    Attributes:
        name: its name.
        digest: hash of the list of its images.
    """

    name: str
    digest: str


class Good(NamedTuple):
    """An image that can be used.

    Attributes:
        row: its row in the list.
        label, width, height, bytes, modified, file_sha256: see `search.index_folder.COLUMNS`.
        encoded: the file that the model gets.
    """

    row: int
    label: str
    width: int
    height: int
    bytes: int
    modified: int
    file_sha256: str
    encoded: bytes


class EmbeddingHandler(ModelHandler[File, tuple[File, bytes], Embedder]):
    """Loads a SavedModel for `RunInference`, once a process, and makes files of embeddings with it.

    An example is a file, so that embeddings are written where they are made.

    Args:
        model: folder of the SavedModel, local or remote.
        output_dir: folder of the lists of images.
        trusted: see `search.embedder.Embedder`.
        batch: most images that the model embeds at a time.
    """

    def __init__(self, model: str, output_dir: str, *, trusted: bool, batch: int):
        super().__init__()
        self._model, self._output_dir, self._trusted, self._batch = model, output_dir, trusted, batch

    def load_model(self) -> Embedder:
        """Returns the model."""
        with tempfile.TemporaryDirectory() as folder:
            return Embedder(local_model(self._model, folder), trusted=self._trusted)

    def run_inference(
        self, batch: Sequence[File], model: Embedder, inference_args: dict[str, Any] | None = None
    ) -> Iterator[tuple[File, bytes]]:
        """Yields each file and its content."""
        for file in batch:
            data = storage.read(storage.join(self._output_dir, LISTS, file.name))
            table = _embedded(pq.read_table(io.BytesIO(data)), file, model, self._batch)
            yield file, parquet_files.encoded(table)

    def batch_elements_kwargs(self) -> dict[str, int]:
        """Returns the sizes of batches of files."""
        return {"min_batch_size": 1, "max_batch_size": 1}

    def get_metrics_namespace(self) -> str:
        """Returns the name of the metrics that `RunInference` counts."""
        return "tfrank"


def local_model(folder: str, temporary: str) -> str:
    """Returns a local folder of a SavedModel; a remote one is copied to the folder `temporary`."""
    if not files.is_remote(folder):
        return folder
    storage.download_folder(folder, temporary)
    return temporary


def embed(
    model: str,
    images: str,
    output_dir: str,
    options: PipelineOptions,
    *,
    rows: int = ROWS,
    batch: int = BATCH,
    trusted: bool = False,
) -> Embedded:
    """Embeds the images of a list or of records into files `embeddings-000001.parquet` and so on.

    The files have the columns of a search index: id, path, label, width, height, bytes, modified, those of
    the list, and the embedding, of unit norm. A file appears when it is whole; a stopped run continues with
    those that are missing, or that lack images, and removes those of an earlier list. Local images that
    changed are embedded again. Images that cannot be used are listed in `skipped.csv`, however many they are.

    Args:
        model: folder of a SavedModel, local or remote.
        images: see `image_lists.pieces`.
        output_dir: where the files go, local or remote.
        options: Beam's options, see `pipelines.beam_options`.
        rows: images of a file, which one worker embeds.
        batch: most images that the model embeds at a time.
        trusted: whether the model may run any operation.

    Raises:
        InputError: the model or the list cannot be read, no image can be used, or `output_dir` has
            embeddings by another model.
    """
    begun = time.monotonic()
    _check_folder(output_dir)
    rows, batch = checks.integer("rows", rows, at_least=1), checks.integer("batch", batch, at_least=1)
    with tempfile.TemporaryDirectory() as folder:
        of_model = Embedder(local_model(model, folder), trusted=trusted).fingerprint
    # Whatever is wrong is said before the lists are there, as a folder that has them is not whole.
    there = _there(output_dir, of_model)
    wanted = _write_lists(images, output_dir, rows)
    unfinished = [file for file in wanted if not _is_finished(file, there.get(file.name))]
    handler = EmbeddingHandler(model, output_dir, trusted=trusted, batch=batch)

    def build(pipeline):
        _ = (
            pipeline
            | "Files" >> beam.Create(unfinished)
            | "Spread" >> beam.Reshuffle()
            | "Embed" >> RunInference(handler)
            | "Write" >> beam.Map(_write, output_dir)
        )

    if unfinished:
        pipelines.run(build, options, watch=pipelines.Watch("file", output_dir, PATTERN, len(wanted), rows))
    written = _metadata([storage.join(output_dir, file.name) for file in wanted])
    skipped = [tuple(row) for one, file in zip(written, wanted) for row in _skipped(one, file.name)]
    count = sum(one.rows for one in written)
    made = set(unfinished)
    new = sum(one.rows for one, file in zip(written, wanted) if file in made)
    storage.write(storage.join(output_dir, "skipped.csv"), image_lists.csv_of(skipped))
    if not count:
        raise InputError(f"No image of {images} can be used; the first, {skipped[0][0]}: {skipped[0][1]}.")
    # Of another list, or what another number of rows made.
    storage.remove_files(output_dir, PATTERN, [file.name for file in wanted])
    storage.remove(storage.join(output_dir, LISTS))
    return Embedded(count, skipped, new, time.monotonic() - begun)


def _check_folder(output_dir: str) -> None:
    """Raises InputError if a folder has embeddings of something else, which would be mixed in or removed."""
    is_index = storage.exists(storage.join(output_dir, "CURRENT"))
    others = [name for name in storage.names(output_dir, PATTERN) if not _OWN.fullmatch(name)]
    if is_index or others:
        what = "a search index" if is_index else f"embeddings of something else ({others[0]})"
        raise InputError(f"{output_dir} has {what}. Choose another --output_dir.")


def _write_lists(images: str, output_dir: str, rows: int) -> list[File]:
    """Writes the list of the images of each file; returns the files. If it fails, none is left."""
    folder, found, writing = storage.join(output_dir, LISTS), [], []
    interrupted = storage.names(folder, PATTERN)
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for number, piece in enumerate(image_lists.pieces(images, rows), start=1):
                name, data = f"embeddings-{number:06d}.parquet", parquet_files.encoded(piece)
                found.append(File(name, hashlib.sha256(data).hexdigest()))
                writing.append(pool.submit(storage.write, storage.join(folder, name), data))
        for one in writing:
            one.result()
    except BaseException:
        if not interrupted:
            storage.remove(folder)
        raise
    return found


class Metadata(NamedTuple):
    """What a file of embeddings says of itself.

    Attributes:
        about: texts by their keys; {} if the file is damaged.
        rows: number of its rows.
        whole: whether the file is not damaged.
    """

    about: dict[bytes, bytes]
    rows: int
    whole: bool


def _there(output_dir: str, model: str) -> dict[str, Metadata]:
    """Returns what the files that are there say, by name; raises InputError if one is by another model."""
    names = storage.names(output_dir, PATTERN)
    paths = [storage.join(output_dir, name) for name in names]
    found = _metadata(paths)
    for path, one in zip(paths, found):
        if one.whole and one.about.get(MODEL_KEY) != model.encode():
            raise InputError(f"{path} is by another model. Choose another folder.")
    return dict(zip(names, found))


def _is_finished(file: File, there: Metadata | None) -> bool:
    """Whether a file is there and not damaged, was written from this list, and lacks no image."""
    # Images that were skipped may be there now.
    wanted = {LIST_KEY: file.digest.encode(), SKIPPED_KEY: b"[]"}
    return there is not None and wanted.items() <= there.about.items()


def _metadata(paths: Sequence[str]) -> list[Metadata]:
    """Reads the metadata of files."""

    def read(path):
        with storage.open_file(path) as file:
            try:
                schema, rows = parquet_files.schema(file, path, AGAIN)
            except InputError:
                return Metadata({}, 0, whole=False)
        return Metadata(schema.metadata or {}, rows, whole=True)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(read, paths))


_SKIPPED = json_files.list_of(json_files.list_of(json_files.text(), at_least=2, at_most=2))


def _skipped(file: Metadata, name: str) -> list[list[str]]:
    """Returns the images that a file lacks, each with the reason."""
    return json_files.parse(file.about.get(SKIPPED_KEY, b""), _SKIPPED, name, AGAIN)


def _embedded(listed: pa.Table, file: File, model: Embedder, batch: int) -> pa.Table:
    """Returns the content of a file of embeddings, from the list of its images."""
    skipped: list[tuple[str, str]] = []
    facts, parts = [], [np.empty([0, model.dim], np.float32)]
    for some in blocks(_good_images(listed, skipped), batch):
        parts.append(model.embed([one.encoded for one in some], batch))
        facts += [one._replace(encoded=b"") for one in some]
    listed = listed.take(pa.array([one.row for one in facts], pa.int64()))
    values = {name: [getattr(one, name) for one in facts] for name in Good._fields}
    values["id"] = listed["id"].to_pylist()
    # A record is named by its place, as in the search index.
    offsets = zip(listed["path"].to_pylist(), listed["offset"].to_pylist())
    values["path"] = [path if offset is None else f"{path}:{offset}" for path, offset in offsets]
    columns = {name: pa.array(values[name], kind) for name, kind in COLUMNS.items()}
    others = [name for name in listed.column_names if name not in {*COLUMNS, *image_lists.PLACE}]
    table = table_of({**columns, **{name: listed[name] for name in others}}, np.concatenate(parts))
    about = {MODEL_KEY: model.fingerprint, LIST_KEY: file.digest, SKIPPED_KEY: json.dumps(skipped)}
    return table.replace_schema_metadata(about)


def _good_images(listed: pa.Table, skipped: list[tuple[str, str]]) -> Iterator[Good]:
    """Yields the images of a list that can be used; adds id and reason of the others to `skipped`."""
    good, bad = Metrics.counter("tfrank", "images"), Metrics.counter("tfrank", "bad_images")
    rows = listed.select(["id", "path", "label", "offset", "length", "modified"]).to_pylist()
    with concurrent.futures.ThreadPoolExecutor(READ_AHEAD) as pool:
        for some in blocks(enumerate(rows), 2 * READ_AHEAD):
            for (_, row), found in zip(some, pool.map(_checked, some)):
                if isinstance(found, Good):
                    good.inc()
                    yield found
                else:
                    bad.inc()
                    skipped.append((row["id"], str(found).rstrip(".")))


def _checked(numbered: tuple[int, dict[str, Any]]) -> Good | BadImage | storage.Missing:
    """Reads and checks an image; returns it, or why it cannot be used."""
    number, row = numbered
    try:
        image = image_lists.read_image(row)
        checked = checked_image(image.encoded, shorter_side=SHORTER_SIDE)
    except (BadImage, storage.Missing) as error:
        return error
    digest = hashlib.sha256(image.encoded).hexdigest()
    size = checked.width, checked.height
    return Good(number, image.label, *size, image.size, image.modified, digest, checked.encoded)


def _write(made: tuple[File, bytes], output_dir: str) -> None:
    """Writes a file of embeddings."""
    file, data = made
    storage.write(storage.join(output_dir, file.name), data)
