"""What the endpoints do, without HTTP."""

import asyncio
import contextlib
import functools
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tfrank.data.prepare.image_files import BadImage, checked_image
from tfrank.evaluation.evaluate_arrays import unit_rows
from tfrank.search import building
from tfrank.search.embedder import Embedder
from tfrank.search.images import Listed
from tfrank.search.index import Found
from tfrank.search.server.batching import Batcher
from tfrank.search.server.errors import RequestError
from tfrank.search.server.metrics import Metrics
from tfrank.search.server.models import SearchRequest
from tfrank.search.server.settings import Settings
from tfrank.search.server.uploads import Box, check_pixels, ready
from tfrank.search.server.versions import Opened, Versions

# Changes that arrive within this time become one version.
CHANGES_SECONDS, CHANGES = 0.05, 256


class _Options(NamedTuple):
    """A version and the options of a search, which several requests may share."""

    opened: Opened
    by_id: bool
    k: int
    min_similarity: float | None
    where: str
    exclude_duplicates: bool


class Service:
    """An open index, the threads that work for it, and what requests ask of it.

    Args:
        folder: the index folder.
        settings: the settings.

    Attributes:
        settings, metrics, versions: the settings, the counters, and the current version.
    """

    def __init__(self, folder: str, settings: Settings):
        self.settings, self.metrics = settings, Metrics()
        self.versions = Versions(folder, trusted=settings.trusted)
        self._pool: ThreadPoolExecutor

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Starts the threads, and ends them when what they took is done."""
        wait = self.settings.wait_seconds
        with (
            ThreadPoolExecutor(os.cpu_count()) as self._pool,
            # Long work, which must not keep searches waiting.
            ThreadPoolExecutor(1) as self._slow,
            contextlib.closing(Batcher(self._embedded, wait_seconds=wait)) as self._embed,
            contextlib.closing(Batcher(_searched, wait_seconds=0)) as self._search,
            contextlib.closing(
                Batcher(self._changed, size=CHANGES, wait_seconds=CHANGES_SECONDS)
            ) as self._change,
        ):
            polling = asyncio.create_task(self._poll())
            try:
                yield
            finally:
                polling.cancel()

    async def _poll(self):
        while True:
            await self.in_thread(self.versions.refresh, slow=True)
            await asyncio.sleep(self.settings.poll_seconds)

    async def in_thread(self, function: Callable, *arguments: Any, slow: bool = False) -> Any:
        """Returns `function(*arguments)`, computed by a thread; a slow one does not keep others waiting."""
        pool = self._slow if slow else self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, functools.partial(function, *arguments))

    async def search(
        self, opened: Opened, request: SearchRequest, data: bytes | None
    ) -> tuple[Found, np.ndarray | None]:
        """Returns what is found, and the embedding of the query if an image was embedded for it.

        Raises:
            RequestError: the query is none, or an image cannot be read.
            InputError: a condition is bad.
        """
        given = sum(one is not None for one in (request.id, request.vector, data))
        if given != 1:
            raise RequestError(422, f"Send one of file, id and vector; {given or 'none'} came.")
        if request.vector is not None and request.box:
            raise RequestError(422, "A box marks a part of an image, and a vector is none. Send the image.")
        opened.check_columns(request.where)
        k = min(request.k, len(opened.index))
        query, vector = request.id, None
        if request.vector is not None:
            query = _unit(request.vector, opened.index.version.dim)
        elif request.id is not None:
            known(opened, request.id)
            if request.box:
                data = await self.in_thread(original, opened, request.id)
        if data is not None:
            query = vector = await self.embed(opened, data, request.box)
        options = _Options(
            opened,
            isinstance(query, str),
            k,
            request.min_similarity,
            json.dumps(request.where),
            request.exclude_duplicates,
        )
        return await self._search(options, query), vector

    async def embed(self, opened: Opened, data: bytes, box: Box | None) -> np.ndarray:
        """Returns the embedding of an image file, or of a part of it, `[dim]`."""
        image = await self.in_thread(ready, data, box, self.settings.max_pixels)
        return await self._embed(opened.index.embedder, image)

    def _embedded(self, embedder: Embedder, images: list[bytes]) -> np.ndarray:
        self.metrics.batches.observe(len(images))
        return embedder.embed(images)

    async def add(self, data: bytes, image_id: str, label: str) -> int:
        """Adds an image to the index; returns the version that has it."""
        await self.in_thread(_check_upload, data, self.settings.max_pixels)
        listed = Listed(image_id, "", label, {}, lambda: data, len(data), time.time_ns())
        return await self._change("add", listed)

    async def delete(self, image_id: str) -> int:
        """Deletes an image from the index; returns the version without it."""
        return await self._change("delete", image_id)

    def _changed(self, kind: str, values: list) -> list:
        """Adds or deletes images; returns for each the new version, or the error."""
        self.versions.refresh()
        index, errors, taken = self.versions.current.index, {}, {}
        for place, value in enumerate(values):
            image_id = value.id if kind == "add" else value
            if kind == "add" and (image_id in index or image_id in taken):
                errors[place] = RequestError(409, f"The index has an image {image_id!r}. Delete it first.")
            elif kind == "delete" and (image_id not in index or image_id in taken):
                errors[place] = _unknown(image_id)
            else:
                taken[image_id] = value
        if kind == "delete" and len(taken) == len(index):
            error = RequestError(409, "The index would have no image left.")
            return [errors.get(place, error) for place in range(len(values))]
        number = index.version.number
        if taken and kind == "add":
            root = index.version.root
            images = list(taken.values())
            done = building.update(
                index.store.folder, index.embedder, images, root=root, remove_others=False, quiet=True
            )
            number = done.version.number
        elif taken:
            number = building.remove(index.store.folder, taken).number
        self.versions.refresh()
        return [errors.get(place, number) for place in range(len(values))]


def _searched(options: _Options, queries: list) -> list[Found]:
    """Searches for queries of the same options: ids, or vectors."""
    return options.opened.index.search(
        queries if options.by_id else np.stack(queries),
        options.k,
        min_similarity=options.min_similarity,
        where=json.loads(options.where),
        exclude_duplicates=options.exclude_duplicates,
    )


def _unit(vector: list[float], dim: int) -> np.ndarray:
    """Returns a vector as float32 of norm 1. Raises RequestError for one that has no direction."""
    values = np.asarray(vector, np.float64)
    largest = np.abs(values).max(initial=0)
    if values.shape != (dim,) or not np.isfinite(largest) or not largest:
        raise RequestError(422, f"The vector has to have {dim} finite numbers that are not all 0.")
    rows, _ = unit_rows((values / largest)[None])
    return rows[0]


def known(opened: Opened, image_id: str) -> None:
    """Raises RequestError if the index has no such image."""
    if image_id not in opened.index:
        raise _unknown(image_id)


def _unknown(image_id):
    return RequestError(404, f"The index has no image {image_id!r}.")


def original(opened: Opened, image_id: str) -> bytes:
    """Returns the file of an image as it was indexed, or its thumbnail where there is no file any more.

    The path is that of the index, never one of a request.
    """
    with contextlib.suppress(RequestError):
        return listed_file(opened, image_id)
    return thumbnail(opened, image_id)


def listed_file(opened: Opened, image_id: str) -> bytes:
    """Returns the file that the index lists for an image. Raises RequestError if it is not there any more."""
    path = opened.index.metadata(image_id)["path"]
    with contextlib.suppress(OSError):
        if path:
            with open(path, "rb") as file:
                return file.read()
    raise RequestError(404, "The file of this image is not at its place. Its thumbnail is.")


def thumbnail(opened: Opened, image_id: str) -> bytes:
    """Returns the thumbnail of an image, a JPEG. Raises RequestError if it is missing."""
    try:
        with open(opened.index.thumbnail(image_id), "rb") as file:
            return file.read()
    except OSError:
        raise RequestError(404, "The thumbnail of this image is missing.") from None


def shown(data: bytes) -> tuple[bytes, str]:
    """Returns an image file as browsers show it, upright, and its media type."""
    try:
        image = checked_image(data)
    except BadImage as error:
        raise RequestError(404, f"The file of this image cannot be read any more: {error}.") from None
    return image.encoded, f"image/{image.format}"


def _check_upload(data: bytes, max_pixels: int) -> None:
    check_pixels(data, max_pixels)
    try:
        checked_image(data, shorter_side=building.SHORTER_SIDE)
    except BadImage as error:
        raise RequestError(415, f"The image cannot be read: {error}.") from None
