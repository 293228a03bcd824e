"""What the endpoints do, without HTTP."""

import asyncio
import collections
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import numpy as np

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.data.prepare.image_files import MAX_PIXELS, SHORTER_SIDE, BadImage, checked_image
from tfrank.evaluation.array_checks import unit_rows
from tfrank.search import building, labels, times_found
from tfrank.search.classes import Classified
from tfrank.search.columns import row_of_file
from tfrank.search.embedder import Embedder
from tfrank.search.images import Listed
from tfrank.search.index import Found, SearchIndex
from tfrank.search.server import pictures
from tfrank.search.server.batching import Batcher
from tfrank.search.server.errors import RequestError, shortened
from tfrank.search.server.improvement import Improvement
from tfrank.search.server.metrics import Metrics
from tfrank.search.server.query_model import QueryModel
from tfrank.search.server.schemas import MOST_RESULTS, ClassifyRequest, QueryRequest, SearchRequest
from tfrank.search.server.settings import Settings
from tfrank.search.server.threads import Threads
from tfrank.search.server.uploads import Box, check_pixels, ready
from tfrank.search.server.versions import Opened, Versions

# Changes that arrive within this time become one version.
CHANGES_SECONDS, CHANGES = 0.05, 256
# Seconds between looks for a new version while looks fail.
LONGEST_WAIT = 30
# After so long without a look at the index that succeeded, the server says that it is behind.
LATE_SECONDS = 30
# So many results of a search are counted, at most once in so many seconds.
COUNTED, COUNT_SECONDS = 10, 60
OTHER_MODEL = (
    "The index has another model than the one that looked at this picture. Choose the picture again."
)
NO_PROMISE = (
    "No result is called a match: the image was embedded by another model than those of the index, and what a"
    " match promises was measured with one model."
)
_LOG = logging.getLogger("tfrank.search.server")


class _Options(NamedTuple):
    """A version and the options of a search, which several requests may share."""

    opened: Opened
    by_id: bool
    k: int
    min_similarity: float | None
    where: str
    exclude_duplicates: bool


class _Far(NamedTuple):
    """A version and the options of a classification, which several requests may share."""

    opened: Opened
    by_id: bool
    far: float


class _Query(NamedTuple):
    """What is searched by: an image of the index, or a vector.

    Attributes:
        id: of the image; of a vector, that of the image that it is a part of, or "".
        vector: the embedding, `[dim]`; None for an image of the index.
        model: the fingerprint of the model that the embedding is of.
        embedded: whether an image was embedded for it.
    """

    id: str
    vector: np.ndarray | None
    model: str
    embedded: bool = False


class Service:
    """An open index, the threads that work for it, and what requests ask of it.

    Args:
        folder: the index folder.
        settings: the settings.

    Attributes:
        settings, metrics, versions: the settings, the counters, and the current version.
        queries: the model that embeds the images to search by, if it is a given one; None: that of the index.
        improvement: the command that lets the index learn, if it runs.
        threads: do all that takes longer than a look-up.
    """

    def __init__(self, folder: str, settings: Settings):
        self.settings, self.metrics, self.threads = settings, Metrics(), Threads()
        self.versions = Versions(folder, trusted=settings.trusted)
        self.improvement = Improvement(folder, trusted=settings.trusted)
        self._found, self._saved, self._counts = collections.Counter[str](), time.monotonic(), True
        model, opened = settings.query_model, self.versions.current
        self.queries = QueryModel(model, opened, trusted=settings.trusted) if model else None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Starts the threads, and ends them when what they took is done."""
        wait = self.settings.wait_seconds
        with (
            self.threads,
            contextlib.closing(self.improvement),
            contextlib.closing(Batcher(self._embedded, wait_seconds=wait)) as self._embed,
            contextlib.closing(Batcher(_searched, wait_seconds=0)) as self._search,
            contextlib.closing(Batcher(_classified, wait_seconds=0)) as self._classify,
            contextlib.closing(
                Batcher(self._changed, size=CHANGES, wait_seconds=CHANGES_SECONDS)
            ) as self._change,
        ):
            polling = asyncio.create_task(self._poll())
            try:
                yield
            finally:
                polling.cancel()
                await self._count_found()

    async def _poll(self) -> None:
        """Looks for new versions until it is cancelled; less often while that fails."""
        wait = self.settings.poll_seconds
        while True:
            try:
                await self.threads.run(self.threads.looks, self.look)
                if time.monotonic() > self._saved + COUNT_SECONDS:
                    await self._count_found()
            # Whatever it is, the next look has to come.
            except Exception:
                _LOG.exception("The look for a new version failed")
            wait = min(2 * wait, LONGEST_WAIT) if self.versions.problem else self.settings.poll_seconds
            await asyncio.sleep(wait)

    def look(self) -> None:
        """Looks for a new version, and whether it has a model that the query model fits."""
        self.versions.refresh()
        if self.queries:
            self.queries.look(self.versions.current)

    @property
    def behind(self) -> bool:
        """Whether what is served is not the current version, or the query model does not fit it."""
        fits = self.queries is None or self.queries.fits(self.versions.current)
        return bool(self.versions.problem) or self.versions.age() > LATE_SECONDS or not fits

    async def _count_found(self) -> None:
        """Adds what was found since the last time to the counts of the index, unless it failed before."""
        counts, self._found, self._saved = self._found, collections.Counter(), time.monotonic()
        try:
            if counts and self._counts:
                await self.threads.run(self.threads.looks, times_found.add, self.versions.folder, counts)
        except (OSError, InputError) as error:
            self._counts = False
            _LOG.warning("This server does not count how often images are found: %s", error)

    async def search(
        self, opened: Opened, request: SearchRequest, data: bytes | None
    ) -> tuple[Found, np.ndarray | None]:
        """Returns what is found, and the embedding of the query if an image was embedded for it.

        Raises:
            RequestError: the query is none, or an image cannot be read.
            InputError: a condition is bad.
        """
        _check_query(request, data)
        opened.check_columns(request.where)
        k = min(request.k, len(opened.index))
        if k > MOST_RESULTS:
            raise RequestError(422, f"k: An answer has at most {MOST_RESULTS:,} images. Ask for fewer.")
        query = await self._query(opened, request, data, self.queries)
        where = await self.threads.run(self.threads.answers, opened.conditions, request.where)
        options = _Options(
            opened,
            query.vector is None,
            k,
            request.min_similarity,
            json.dumps(where),
            request.exclude_duplicates,
        )
        found = await self._search(options, query)
        self._found.update(found.ids[:COUNTED])
        if query.model != opened.model:
            found = found._replace(matches=[""] * len(found.ids), promise=NO_PROMISE)
        return found, query.vector if query.embedded else None

    async def classify(self, opened: Opened, request: ClassifyRequest, data: bytes | None) -> Classified:
        """Returns which class of the index an image is of, or that it is of none.

        Raises:
            RequestError: the query is none, or an image cannot be read.
            InputError: the index has no labels.
        """
        _check_query(request, data)
        query = await self._query(opened, request, data, None)
        if data is not None:
            # An image of the index has no vote on itself.
            row = await self.threads.run(self.threads.images, row_of_file, opened.index.table, data)
            query = query._replace(id=str(opened.index.ids[row]) if row >= 0 else "")
        return await self._classify(_Far(opened, query.vector is None, request.far), query)

    async def _query(
        self, opened: Opened, request: QueryRequest, data: bytes | None, queries: QueryModel | None
    ) -> _Query:
        """Returns the query of a request. Images, and vectors of no stated model, are those of `queries`."""
        if request.vector is not None:
            model = opened.model
            if queries and request.model != model:
                model = queries.embedder.fingerprint
            if request.model not in (None, model):
                raise RequestError(409, OTHER_MODEL)
            if queries and model != opened.model:
                queries.check(opened)
            return _Query("", _unit(request.vector, opened.index.version.dim), model)
        most = self.settings.max_pixels
        if data is None:
            image_id = request.id or ""
            known(opened, image_id)
            if not request.box:
                return _Query(image_id, None, opened.model)
            data = await self.threads.run(self.threads.files, pictures.original, opened, image_id)
            # Nobody has sent it; it was small enough for the index.
            most = MAX_PIXELS
        embedder = self.embedder(opened, queries)
        vector = await self.embed(embedder, data, request.box, most)
        return _Query(request.id or "", vector, embedder.fingerprint, embedded=True)

    def embedder(self, opened: Opened, queries: QueryModel | None) -> Embedder:
        """Returns the query model if one is given, which has to fit the index, else the index's own."""
        if queries is None:
            return opened.index.embedder
        queries.check(opened)
        return queries.embedder

    def model(self, opened: Opened) -> str:
        """Returns the fingerprint of the model that embeds the images to search by."""
        return self.queries.embedder.fingerprint if self.queries else opened.model

    async def embed(self, embedder: Embedder, data: bytes, box: Box | None, most: int) -> np.ndarray:
        """Returns the embedding of an image file of at most so many pixels, or of a part of it, `[dim]`."""
        image = await self.threads.run(self.threads.images, ready, data, box, most)
        return await self._embed(embedder, image)

    def _embedded(self, embedder: Embedder, images: list[bytes]) -> np.ndarray:
        self.metrics.batches.observe(len(images))
        return embedder.embed(images)

    async def add(self, data: bytes, image_id: str, label: str) -> int:
        """Adds an image to the index; returns the version that has it."""
        await self.threads.run(self.threads.images, _check_upload, data, self.settings.max_pixels)
        label = labels.normalized(label)
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
        number = self._change_index(index, kind, taken) if taken else index.version.number
        self.versions.refresh()
        return [errors.get(place, number) for place in range(len(values))]

    def _change_index(self, index: SearchIndex, kind: str, taken: dict) -> int:
        """Adds or deletes images; returns the number of the new version."""
        try:
            if kind == "delete":
                return building.remove(index.files.folder, taken).number
            images, options = list(taken.values()), {"remove_others": False, "quiet": True}
            root = index.version.root
            return building.update(
                index.files.folder, index.embedder, images, root=root, **options
            ).version.number
        except files.Locked:
            raise
        # The request is good: it is the index that is damaged, or may not be written.
        except InputError as error:
            _LOG.error("The index cannot be changed: %s", error)
            raise RequestError(500, "The index cannot be changed. The server's log says why.") from None


def _searched(options: _Options, queries: list[_Query]) -> list[Found]:
    """Searches for queries of the same options: ids, or vectors."""
    return options.opened.index.search(
        _values(queries),
        options.k,
        part_of=[] if options.by_id else [query.id for query in queries],
        min_similarity=options.min_similarity,
        where=json.loads(options.where),
        exclude_duplicates=options.exclude_duplicates,
    )


def _classified(options: _Far, queries: list[_Query]) -> list[Classified]:
    """Classifies queries of the same options: ids, or vectors."""
    part_of = [] if options.by_id else [query.id for query in queries]
    return options.opened.index.classify(_values(queries), far=options.far, part_of=part_of)


def _values(queries: list[_Query]) -> list[str] | np.ndarray:
    """Returns the ids of queries, or their vectors, `[queries, dim]`."""
    vectors = [query.vector for query in queries if query.vector is not None]
    return np.stack(vectors) if vectors else [query.id for query in queries]


def _check_query(request: QueryRequest, data: bytes | None) -> None:
    """Raises RequestError unless a request brings one query."""
    given = sum(one is not None for one in (request.id, request.vector, data))
    if given != 1:
        raise RequestError(422, f"Send one of file, id and vector; {given or 'none'} came.")
    if request.vector is not None and request.box:
        raise RequestError(422, "A box marks a part of an image, but a vector was sent. Send the image.")


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
    return RequestError(404, f"The index has no image {shortened(image_id)!r}.")


def _check_upload(data: bytes, max_pixels: int) -> None:
    check_pixels(data, max_pixels)
    try:
        checked_image(data, shorter_side=SHORTER_SIDE)
    except BadImage as error:
        raise RequestError(415, f"The image cannot be read: {error}.") from None
