"""An index that is open for search."""

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.data.prepare.image_files import SHORTER_SIDE, BadImage, checked_image
from tfrank.evaluation.array_checks import unit_rows
from tfrank.evaluation.nearest.neighbors import Neighbors
from tfrank.evaluation.votes import FAR, NEAREST
from tfrank.search import duplicates, labels, proposals, structure
from tfrank.search.classes import Classes, Classified, classes_of
from tfrank.search.columns import row_of_file
from tfrank.search.current import read_current
from tfrank.search.embedder import Embedder, check_model
from tfrank.search.filters import rows_where
from tfrank.search.index_folder import MAPPED, Contents, IndexFolder, Version
from tfrank.search.learnt import trained
from tfrank.search.matches import Matches, matches_of, stated_by
from tfrank.search.originals import originals

# Images at least as similar as this are taken for duplicates: copies in another size or compression.
DUPLICATE = 0.97
# A query gets so many more neighbours than asked for, in case some are duplicates of it; then twice as many.
SPARE = 16

Query = str | bytes | np.ndarray


class Found(NamedTuple):
    """The images found for one query, the most similar first.

    Attributes:
        ids: their ids.
        similarities: `[found]` float32, the cosine.
        metadata: their columns, each a dict by name.
        matches: for each "match", "perhaps" or "no"; "" if nothing can be promised.
        version: number of the version of the index that was searched.
        promise: what a match promises in an index of this size, or why there is none.
        storage: what was searched: "float32", or the codes "float16", "int8" or "binary".
        searched: how the images were compared, and what an approximate search finds.
    """

    ids: list[str]
    similarities: np.ndarray
    metadata: list[dict[str, Any]]
    matches: list[str]
    version: int
    promise: str
    storage: str
    searched: str


class SearchIndex:
    """A version of an index, as it was when it was opened. Safe to use from several threads.

    Args:
        folder: the index folder.
        trusted: whether the model of the index may run any operation; see `Embedder`.
        before: an open index of the same folder. What both have in common is not read again.

    Attributes:
        version: the version.
        table: the columns of the images but for the embeddings, a `pyarrow.Table`. Labels are as people
            corrected them.
        said: the labels that people gave, see `tfrank.search.labels`.
        ids: `[rows]` ids of the images.
        embeddings: `[rows, dim]` float32 of unit norm; on disk if codes of them are searched.

    Raises:
        InputError: the folder is no index, or is damaged.
    """

    def __init__(self, folder: str, *, trusted: bool = False, before: "SearchIndex | None" = None):
        self.files = IndexFolder(folder)
        self.version, self._contents = _read(self.files, before)
        self.files.check_regular("models", self.version.model)
        self.table = self._contents.table
        self.said = labels.said(folder)
        self.ids = np.array(self.table.column("id").to_pylist())
        self._row_of = {key: row for row, key in enumerate(self.ids.tolist())}
        self._structure = self._opened(before)
        rows = self._contents.rows
        self.embeddings = self._structure.rows if rows is None else rows
        self._relabel()
        same = before if before is not None and before.version.model == self.version.model else None
        if same is None:
            check_model(self._model_folder(), self.version.model)
        self._trusted, self._embedder = trusted, same and same._embedder
        self._stated = stated_by(self._model_folder())
        # What was measured, and not the index that measured it, which would stay in memory.
        self._measured = same and vars(same).get("matches", same._measured)

    def __len__(self) -> int:
        return self.version.rows

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._row_of

    def _opened(self, before):
        """Returns the search structure, that of another open index if both have one version."""
        if before is not None and before.version == self.version:
            return before._structure
        rows, old = self._contents.rows, before and before._structure
        read = functools.partial(self.files.vectors, self._contents) if rows is None else rows
        return structure.opened(self.files, self.version, self.ids, read, old)

    def _relabel(self):
        """Gives the table the labels that people gave."""
        if self.said.labels:
            place = self.table.schema.get_field_index("label")
            now = labels.merged(dict(zip(self.ids.tolist(), self.labels)), self.said.labels)
            self.table = self.table.set_column(place, "label", pa.array(list(now.values()), pa.string()))

    @property
    def labels(self) -> list[str]:
        """The label of each image; "" for none."""
        return [label or "" for label in self.table.column("label").to_pylist()]

    @functools.cached_property
    def _originals(self):
        return originals(self._model_folder())

    def _copy_similarity(self, queries, index):
        """Returns `[queries, k]` cosines of queries and rows of the index, by the original embeddings."""
        found = self._originals(self.embeddings[index.ravel()]).reshape(*index.shape, -1)
        return np.einsum("qd,qkd->qk", self._originals(queries), found)

    @functools.cached_property
    def matches(self) -> Matches:
        """From which similarity on results are called a match, see `tfrank.search.matches`."""
        if self.mapped:
            return Matches(
                math.inf, math.inf, len(self), f"No result is called a match. {self._mixed()}", None
            )
        return matches_of(self._stated, self.embeddings, self.labels, self._measured, self._trained())

    @property
    def embedder(self) -> Embedder:
        """The model of the index, which is loaded when it is first used."""
        if self._embedder is None:
            self._embedder = Embedder(self._model_folder(), trusted=self._trusted)
        return self._embedder

    def _model_folder(self):
        return self.files.path("models", self.version.model)

    def metadata(self, image_id: str) -> dict[str, Any]:
        """Returns the columns of an image. Raises InputError if there is no such image."""
        return self.table.slice(self._row(image_id), 1).to_pylist()[0]

    def thumbnail(self, image_id: str) -> str:
        """Returns the path of an image's thumbnail. Raises InputError if there is no such image."""
        self._row(image_id)
        return self.files.thumbnail(image_id)

    def search(
        self,
        queries: Query | Sequence[Query],
        k: int = 10,
        *,
        min_similarity: float | None = None,
        where: Mapping[str, Any] | None = None,
        exclude_duplicates: bool = False,
        part_of: Sequence[str] = (),
    ) -> list[Found]:
        """Returns what is found for each query. An image of the index does not find itself.

        Args:
            queries: one or several: the id of an image of the index, the path of an image file, the bytes of
                one, or an embedding, `[dim]` (several: `[queries, dim]`).
            k: number of images to find, at least 1.
            min_similarity: least cosine, -1 to 1; None for any.
            where: conditions on columns, which are met exactly; see `filters.rows_where`.
            exclude_duplicates: whether to leave out near copies of the query, see `duplicates`.
            part_of: for each of several embeddings, the id of the image of the index that it shows a part of
                and that it is not to find; "" for none.

        Raises:
            InputError: a query is neither or has no direction, an image cannot be read, or a condition is
                bad.
        """
        k = min(checks.integer("k", k, at_least=1), len(self))
        if min_similarity is not None:
            checks.number("min_similarity", min_similarity, at_least=-1, at_most=1)
        vectors, own = self._vectors(queries, part_of)
        rows = np.flatnonzero(rows_where(self.table, where)) if where else None
        least = -np.inf if min_similarity is None else min_similarity
        found = []
        for index, similarity in self._nearest(vectors, k, own, rows, copies=not exclude_duplicates):
            good = similarity >= least
            found.append(self._found(index[good], similarity[good]))
        return found

    @functools.cached_property
    def classes(self) -> Classes:
        """The classes of the index, measured when they are first used, in some seconds."""
        return classes_of(self.embeddings, self.labels, self._trained())

    def _trained(self):
        """The fingerprints of the classes that the model was trained on."""
        return trained(self._model_folder(), self.ids.tolist(), self.labels)

    def classify(
        self, images: Query | Sequence[Query], *, far: float = FAR, part_of: Sequence[str] = ()
    ) -> list[Classified]:
        """Returns which class of the index each image is of, by its nearest images, or that it is of none.

        An image of the index has no vote on itself, given by its id, or by the path or bytes of a file with
        the SHA-256 of its own. See `tfrank.evaluation.votes` for share and score.

        Args:
            images: one or several, as the queries of `search`.
            far: share of the images of other classes that may be called one of a class of the index,
                above 0, below 1. It is promised for classes like these, which the model was not trained on.
            part_of: for each of several embeddings, the id of the image of the index that it shows a part of
                and that has no vote on it; "" for none.

        Raises:
            InputError: an image is none or cannot be read, or the index has no labels.
        """
        checks.number("far", far, above=0, below=1)
        labelled = self.classes.labelled
        vectors, own = self._vectors(images, part_of)
        if not isinstance(images, np.ndarray):
            images = [images] if isinstance(images, str | bytes) else images
            for place in np.flatnonzero(own < 0):
                own[place] = row_of_file(self.table, _data(images[place]))
        rows = labelled if len(labelled) < len(self) else None
        return self.classes.of(self._nearest(vectors, NEAREST, own, rows), own, far)

    def _vectors(self, queries, part_of):
        """Returns `[queries, dim]` embeddings of unit norm, and the row of each query in the index, or -1."""
        if part_of and not (isinstance(queries, np.ndarray) and queries.shape[:-1] == (len(part_of),)):
            raise checks.invalid("part_of", "as many ids as there are embeddings", list(part_of))
        if isinstance(queries, np.ndarray):
            rows = np.atleast_2d(np.asarray(queries, np.float32))
            if rows.ndim != 2 or rows.shape[1] != self.version.dim or not np.isfinite(rows).all():
                raise checks.invalid(
                    "queries", f"finite numbers, [queries, {self.version.dim}]", queries.shape
                )
            rows, zeros = unit_rows(rows)
            if zeros:
                row = np.flatnonzero(~rows.any(axis=1))[0]
                raise InputError(f"Query {row} has only zeros, which have no direction. Leave it out.")
            whole = part_of or [""] * len(rows)
            return rows, np.array([self._row_of.get(key, -1) for key in whole], np.int64)
        if isinstance(queries, str | bytes):
            queries = [queries]
        own = np.array([self._row_of.get(query, -1) if isinstance(query, str) else -1 for query in queries])
        rows = self.embeddings[own]
        if (images := np.flatnonzero(own < 0)).size:
            rows[images] = self.embed([queries[place] for place in images])
        return rows, own

    def embed(self, images: Sequence[str | bytes]) -> np.ndarray:
        """Returns `[images, dim]` embeddings of image files, given as paths or bytes."""
        return self.embedder.embed([self._file(image) for image in images])

    def _file(self, image):
        """Returns the bytes of an image file as the images of the index were embedded."""
        if isinstance(image, np.ndarray):
            raise checks.invalid(
                "queries", "one array of all embeddings, or ids, paths and bytes", "arrays in a list"
            )
        try:
            return checked_image(_data(image), shorter_side=SHORTER_SIDE).encoded
        except BadImage as error:
            name = image if isinstance(image, str) else "The image"
            raise InputError(f"{name} cannot be read: {error}.") from None

    def _nearest(self, queries, k, own, rows, *, copies=True):
        """Yields the k nearest rows of each query, of `rows` if given, and without `copies` of the query."""
        if not len(queries):
            return
        first = k + int(own.max() >= 0) + (0 if copies else SPARE)
        most_rows = len(self) if rows is None else len(rows)

        def is_good(query, row, index, similarity):
            good = (index >= 0) & (index != row)
            if copies:
                return good
            if self._originals:
                (similarity,) = self._copy_similarity(query[None], index[None])
            return good & (similarity < DUPLICATE)

        # One product for all queries; then one for each query of which too many neighbours are left out.
        for query, row, index, similarity in zip(queries, own, *self._search(queries, first, rows)):
            wanted = first
            good = is_good(query, row, index, similarity)
            while good.sum() < k and wanted < most_rows:
                wanted *= 2
                index, similarity = (part[0] for part in self._search(query[None], wanted, rows))
                good = is_good(query, row, index, similarity)
            yield index[good][:k], similarity[good][:k]

    def _search(self, query, k, rows):
        if rows is None:
            return self._structure.search(query, min(k, len(self)))
        if not len(rows):
            none = np.zeros([len(query), 0])
            return Neighbors(none.astype(np.int64), none.astype(np.float32))
        return structure.among(self._structure, self.embeddings, query, min(k, len(rows)), rows)

    def _found(self, rows, similarities):
        metadata = self.table.take(pa.array(rows, pa.int64())).to_pylist()
        matches = [self.matches.of(similarity) for similarity in similarities.tolist()]
        ids = self.ids[rows].tolist()
        about = (self.version.number, self.matches.sentence, self.version.storage, self.searched)
        return Found(ids, similarities, metadata, matches, *about)

    @property
    def searched(self) -> str:
        """How the images are compared, in sentences."""
        return f"{structure.in_a_sentence(self._structure)} {self._mixed()}".rstrip()

    @functools.cached_property
    def mapped(self) -> int:
        """The number of images whose embeddings an upgrade mapped from those of another model."""
        return len(self) - self.table.column(MAPPED).null_count if MAPPED in self.table.column_names else 0

    def _mixed(self):
        """Says that embeddings are mapped; "" if none is."""
        if not self.mapped:
            return ""
        return f"Of {self.mapped:,} of {len(self):,} images the embeddings are mapped from another model's."

    def _row(self, image_id):
        if image_id not in self._row_of:
            raise InputError(f"The index has no image {image_id!r}.")
        return self._row_of[image_id]

    def duplicates(
        self, min_similarity: float = DUPLICATE, check: Callable[[], None] | None = None
    ) -> list[list[str]]:
        """Returns groups of images that are connected by at least this similarity, the largest first.

        Similarities are those of the model before the index adapted it, see `originals`.

        Args:
            min_similarity: least cosine, -1 to 1.
            check: called every second or so; ends the search by raising an exception.
        """
        checks.number("min_similarity", min_similarity, at_least=-1, at_most=1)
        cosines = self._copy_similarity if self._originals else None
        found = duplicates.groups(self._structure, self.embeddings, min_similarity, check, cosines=cosines)
        return [self.ids[rows].tolist() for rows in found]

    def nearest(self, check: Callable[[], None] = lambda: None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows that are nearest to each row, and their cosines; see `proposals.nearest`."""
        return proposals.nearest(self._structure, self.embeddings, check)


def open_index(folder: str | os.PathLike, *, trusted: bool = False) -> SearchIndex:
    """Opens the current version of an index folder for search.

    Args:
        folder: path of a folder that `tfrank index` made.
        trusted: whether the model of the index may run any operation.

    Raises:
        InputError: the folder is no index, or is damaged.
    """
    return SearchIndex(os.fspath(folder), trusted=trusted)


def _data(image: str | bytes) -> bytes:
    """Returns the bytes of an image file. Raises InputError if it is a path that cannot be read."""
    if not isinstance(image, str):
        return image
    try:
        with files.open_regular(image) as file:
            return file.read()
    except (OSError, ValueError):
        raise InputError(f"{image!r} is neither the id of an image of the index nor an image file.") from None


def _read(folder: IndexFolder, before: SearchIndex | None) -> tuple[Version, Contents]:
    """Reads the current version and what it holds, but for what an open index has of it."""

    def read(version):
        if before is not None and before.version == version:
            return before._contents
        embeddings = version.storage == "float32"
        return folder.read(version, before=before and before._contents, embeddings=embeddings)

    return read_current(folder, read)
