"""Writes records on many machines: byte for byte those of `tfrank prepare`."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from tfrank.common import files, json_files
from tfrank.common.checks import InputError
from tfrank.data.index import COLUMNS, HEADER, index_path
from tfrank.data.prepare import builder, shards
from tfrank.data.prepare.image_files import BadImage
from tfrank.data.prepare.listing import image_of, lines_at
from tfrank.data.prepare.shards import ShardTask, Written
from tfrank.data.record_folder import SUMMARY
from tfrank.data.sources.tables import is_table
from tfrank.scale import pipelines, storage

# Image files that a worker reads ahead.
READ_AHEAD = 64


def prepare(
    images: str,
    output_dir: str,
    options: PipelineOptions,
    *,
    source_options: Mapping[str, Any] = {},
    num_shards: int = 0,
    max_skipped: float = 0.01,
    allow_common_classes: bool = False,
) -> dict[str, Any]:
    """Writes the records of a list of images, as `tfrank.data.prepare.builder.prepare` does on one machine.

    The machine that calls this lists the images and joins the index; workers read, check and write them. A
    shard appears when it is whole. A stopped run continues with the shards that are missing.

    Args:
        images: a CSV or parquet file as for the source "csv", local or remote. Its paths are relative to its
            folder, or local or remote themselves.
        output_dir: the folder of the records, local or remote.
        options: Beam's options, see `pipelines.beam_options`.
        source_options, num_shards, max_skipped, allow_common_classes: see `builder.prepare`; the first are
            its `options`.

    Returns:
        The content of `prepared.json`.

    Raises:
        InputError: see `builder.prepare`.
    """
    if not is_table(images):
        raise InputError(f"--images={images}: expected a list of images that ends in .csv, .tsv or .parquet.")
    with _local(output_dir) as folder, tempfile.TemporaryDirectory() as temporary:
        manifest, root = images, ""
        if files.is_remote(images):
            root, name = images.rsplit("/", 1)
            manifest = os.path.join(temporary, name)
            storage.download(images, manifest)
        summary = builder.prepare(
            "csv",
            manifest,
            folder,
            options=source_options,
            num_shards=num_shards,
            max_skipped=max_skipped,
            allow_common_classes=allow_common_classes,
            root=root,
            writer=_BeamWriter(folder, output_dir, options),
        )
        if files.is_remote(output_dir):
            _upload(folder, output_dir)
            storage.remove(storage.join(output_dir, builder.UNFINISHED))
    return summary


@contextlib.contextmanager
def _local(folder: str) -> Iterator[str]:
    """Yields the folder itself if it is local; else a temporary one for what the calling machine writes."""
    if not files.is_remote(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        summary = storage.join(folder, SUMMARY)
        if storage.exists(summary):
            storage.download(summary, os.path.join(temporary, SUMMARY))
        yield temporary


def _upload(folder: str, output_dir: str) -> None:
    """Copies what the calling machine wrote to the store; the summary last, as it says that all is there."""
    names = [name for name in os.listdir(folder) if not name.startswith(".") and name != SUMMARY]
    for name in [*sorted(names), SUMMARY]:
        storage.upload(os.path.join(folder, name), storage.join(output_dir, name))


class _BeamWriter:
    """Writes shards by a pipeline.

    Args:
        folder: the local folder of the records.
        output_dir: the folder of the records that workers can reach.
        options: Beam's options.
    """

    def __init__(self, folder: str, output_dir: str, options: PipelineOptions):
        self._folder, self._output_dir, self._options = folder, output_dir, options
        self._work = storage.join(output_dir, builder.UNFINISHED)

    def write(self, tasks: Sequence[ShardTask]) -> Iterable[Written]:
        """Writes the shards that are missing; returns the result for each."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            elements = list(pool.map(self._element, tasks))

        def build(pipeline):
            _ = (
                pipeline
                | "Shards" >> beam.Create(elements)
                | "Spread" >> beam.Reshuffle()
                | "Write" >> beam.Map(_write, self._work)
            )

        images = -(-sum(len(task.starts) for task in tasks) // len(tasks))
        watch = pipelines.Watch("shard", self._work, "*.done.json", len(tasks), images)
        pipelines.run(build, self._options, watch=watch)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            return list(pool.map(self._result, tasks))

    def move(self, path: str, target: str) -> None:
        """Moves a written shard to its final place."""
        name = os.path.basename(path)
        storage.rename(
            storage.join(self._work, name), storage.join(self._output_dir, os.path.basename(target))
        )

    def check(self, folder: str, split: str) -> None:
        """Checks that there is an index of a split that was written before."""
        header = storage.join(index_path(self._output_dir, split), HEADER)
        if not storage.exists(header):
            raise InputError(f"There is no {header}. Delete {self._output_dir} and prepare it again.")

    def _element(self, task: ShardTask) -> ShardTask:
        """Writes the list of a shard's images where workers can read it; returns the task with its path."""
        name = os.path.basename(task.path)
        listing = storage.join(self._work, f"{name}.images")
        storage.write(listing, b"".join(lines_at(task.listing, task.starts)))
        return dataclasses.replace(task, path=name, listing=listing, starts=task.starts[:0])

    def _result(self, task: ShardTask) -> Written:
        """Copies what describes a written shard to the calling machine; returns the result."""
        if files.is_remote(self._work):
            for path in _beside(task):
                local = os.path.join(os.path.dirname(task.path), path)
                os.makedirs(os.path.dirname(local), exist_ok=True)
                storage.download(storage.join(self._work, path), local)
        return shards.written(task)


def _beside(task: ShardTask) -> list[str]:
    """Returns the files that describe a shard, relative to its folder, in the order of writing."""
    folder = os.path.dirname(task.path)
    columns = [os.path.join(shards.shard_index_path(task), f"{name}.npy") for name in COLUMNS]
    header = os.path.join(shards.shard_index_path(task), HEADER)
    paths = [*columns, header, shards.looks_path(task), shards.done_path(task)]
    return [os.path.relpath(path, folder) for path in paths]


def _write(task: ShardTask, work: str) -> None:
    """Writes a shard to the folder `work`, unless it is there."""
    with tempfile.TemporaryDirectory() as folder:
        listing = os.path.join(folder, "images")
        storage.download(task.listing, listing)
        with open(listing, "rb") as file:
            lengths = [len(line) for line in file]
        name, starts = task.path, np.cumsum([0, *lengths])[:-1]
        task = dataclasses.replace(task, path=os.path.join(folder, name), listing=listing, starts=starts)
        if _is_done(task, name, work):
            return
        paths = [task.path_of(image_of(line)) for line in lines_at(listing, starts)]
        with _ReadAhead(paths) as read:
            shards.write(dataclasses.replace(task, read=read), _BeamCounts())
        for path in [name, *_beside(task)]:
            storage.upload(os.path.join(folder, path), storage.join(work, path))


def _is_done(task: ShardTask, name: str, work: str) -> bool:
    """Returns whether the folder `work` has the shard of this task."""
    note = storage.join(work, os.path.basename(shards.done_path(task)))
    if not (storage.exists(note) and storage.exists(storage.join(work, name))):
        return False
    try:
        return json_files.parse(storage.read(note), shards.DONE, note, "")["digest"] == task.digest()
    except InputError:
        return False  # It is damaged, and the shard is written again.


class _BeamCounts:
    """Counts images by Beam's metrics; in place of `workers.Counts`."""

    stopped = False

    def __init__(self):
        self._good, self._bad = Metrics.counter("tfrank", "images"), Metrics.counter("tfrank", "bad_images")

    def add(self, done: int = 1, bad: int = 0) -> None:
        """Adds to the counts."""
        self._good.inc(done)
        self._bad.inc(bad)


class _ReadAhead(contextlib.AbstractContextManager):
    """Reads files in a given order by several threads, ahead of the caller.

    Args:
        paths: the paths, in the order in which they will be asked for; some may be left out.
    """

    def __init__(self, paths: Sequence[str]):
        self._pool = concurrent.futures.ThreadPoolExecutor(READ_AHEAD)
        self._paths, self._reading = iter(paths), collections.deque()

    def __exit__(self, *exception):
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, path: str) -> bytes:
        """Returns the content of a file; raises BadImage if it cannot be read."""
        while True:
            for one in itertools.islice(self._paths, 2 * READ_AHEAD - len(self._reading)):
                self._reading.append((one, self._pool.submit(_read_file, one)))
            name, reading = self._reading.popleft()
            if name == path:
                return reading.result()


def _read_file(path: str) -> bytes:
    """Reads a local or remote file; raises BadImage if it cannot be read."""
    if not files.is_remote(path):
        return shards.read_file(path)
    try:
        return storage.read(path)
    except storage.Missing:
        raise BadImage("cannot be read (No such file or directory)") from None
