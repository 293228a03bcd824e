"""The files of an index folder: numbered versions, of which readers see one, whole.

CURRENT                     number of the current version
versions/3.json             what version 3 consists of
embeddings-<digest>.parquet rows of images, by the SHA-256 of the file: a name never stands for other rows
search-3-<random>/          the search structure that was built for version 3, if it needs one
models/<fingerprint>/       the SavedModel
thumbnails/<digest>.jpg     by the SHA-256 of the image's id
originals/<digest>          of images that were sent to a server, for another model
times_found.json            how often servers found each image, of no version, see `times_found`
labels.csv                  what people said of the labels, of no version, see `labels`
labels-gone.csv             photos that have a label and are gone, of no version, see `label_moves`

A writer adds files, then the version that names them, and renames CURRENT at last. It then removes the files
that neither the new version nor the one before needs. Killed at any moment, it leaves the old version
current, and files that the next writer uses or removes.
"""

import contextlib
import dataclasses
import hashlib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tfrank.common import files, json_files, parquet_files
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest.codes import STORAGES

# Number of rows of a file of embeddings; an interrupted run embeds at most as many images again.
PART_ROWS = 1024
# Files with less than this share of `PART_ROWS` are joined once there are more of them than `MOST_SMALL`.
SMALL_SHARE, MOST_SMALL = 0.5, 16
# Older indexes have numbers, which named other rows once a file was removed.
_PART = re.compile(r"embeddings-(?:[0-9a-f]{32}|\d{6})\.parquet")
# Columns that every index has; a CSV file adds others.
COLUMNS = {
    "id": pa.string(),
    "path": pa.string(),
    "label": pa.string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "bytes": pa.int64(),
    "modified": pa.int64(),
    "file_sha256": pa.string(),
}
MODEL_KEY = b"tfrank.model"
# Where an upgrade mapped embeddings, the fingerprint of the model that computed them; null for other images.
MAPPED = "mapped_from"
# Folders whose files are written and removed.
FOLDERS = ("versions", "models", "thumbnails", "originals")


@dataclasses.dataclass(frozen=True)
class Version:
    """What a version consists of.

    Attributes:
        number: counts from 1.
        model: fingerprint of the model that made the embeddings.
        dim: dimension of the embeddings.
        parts: names of the files of embeddings; their rows, in this order, are the rows of the index.
        rows: number of images.
        root: the folder or file that the images came from.
        search: name of the folder of the search structure; "" for exact search.
        changed: number of images added or removed since the search structure was built.
        storage: what is held in memory of an embedding, one of `codes.STORAGES`.
        before: fingerprint of the model that the index had before this one, which is kept; "" if none.
        target_recall: recall that an approximate search structure is built to.
    """

    number: int
    model: str
    dim: int
    parts: tuple[str, ...]
    rows: int
    root: str
    search: str = ""
    changed: int = 0
    storage: str = "float32"
    before: str = ""
    target_recall: float = 0.99


# What a version's file may say. Fingerprints and names are no paths.
_WORD = json_files.text(r"[A-Za-z0-9_-]{1,64}")
PARTS = json_files.list_of(json_files.text(_PART.pattern), different=True)
VERSION = json_files.record(
    {
        "number": json_files.whole(1),
        "model": _WORD,
        "dim": json_files.whole(1, 2**16),
        "parts": PARTS,
        "rows": json_files.whole(),
        "root": json_files.text(),
    },
    {
        "search": json_files.text(r"(search-[A-Za-z0-9_-]{1,64})?"),
        "changed": json_files.whole(),
        # Older versions say neither this nor the recall: it was float32, and counts as 0.99.
        "storage": json_files.one_of(*STORAGES),
        "before": json_files.text(r"[A-Za-z0-9_-]{0,64}"),
        "target_recall": json_files.real(0, 1),
    },
)


class Contents(NamedTuple):
    """What a version holds.

    Attributes:
        table: the columns of the images but for the embeddings.
        rows: the embeddings, `[rows, dim]` float32 of unit norm; None if they were not asked for.
        parts: by the name of each file of embeddings, the columns in it and its rows among all.
    """

    table: pa.Table
    rows: np.ndarray | None
    parts: dict[str, tuple[pa.Table, slice]]


class IndexFolder:
    """Reads and writes the files of an index folder.

    Args:
        folder: path of the index folder.
    """

    def __init__(self, folder: str):
        self.folder = folder

    def path(self, *names: str) -> str:
        """Returns the path of a file in the folder."""
        return os.path.join(self.folder, *names)

    def current(self) -> Version | None:
        """Returns the current version; None if there is none yet.

        Raises:
            InputError: a file of the folder is damaged.
        """
        try:
            with files.open_below(self.folder, "CURRENT") as file:
                number = int(file.read(20))
            return self._version(number)
        except FileNotFoundError as error:
            if error.filename == self.path("CURRENT"):
                return None
            raise InputError(f"{self.folder} is damaged: {error.filename} is missing. {_AGAIN}") from None
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder} is damaged ({error}). {_AGAIN}") from None

    def existing(self) -> Version:
        """Returns the current version; raises InputError if there is none, or it is damaged."""
        if (version := self.current()) is None:
            raise InputError(f"{self.folder} is not an index folder. Make one with tfrank index.")
        return version

    def _version(self, number: int) -> Version:
        """Returns a version. Raises FileNotFoundError if there is none, or InputError if it is damaged."""
        name = os.path.join("versions", f"{number}.json")
        fields = json_files.read(name, VERSION, _AGAIN, below=self.folder)
        if fields["number"] != number:
            raise InputError(f"{self.path(name)} is damaged (it is of version {fields['number']}). {_AGAIN}")
        return Version(**{**fields, "parts": tuple(fields["parts"])})

    def publish(self, version: Version, keep: Collection[str] = ()) -> None:
        """Makes a version the current one, then removes the files that no reader needs any more.

        Args:
            version: the version.
            keep: names of files of embeddings to keep for another update.
        """
        before = self.current()
        files.make_folder(self.path("versions"))
        files.write_json(self.path("versions", f"{version.number}.json"), dataclasses.asdict(version))
        with files.atomic_write(self.path("CURRENT"), "w") as file:
            file.write(f"{version.number}\n")
        # A reader may be opening the version before.
        self._remove_unused([version] if before is None else [version, before], keep)

    def write_part(self, table: pa.Table, model: str) -> str:
        """Writes a table of images and embeddings to a file named by its content; returns the name."""
        content = parquet_files.encoded(table.replace_schema_metadata({MODEL_KEY: model.encode()}))
        name = f"embeddings-{hashlib.sha256(content).hexdigest()[:32]}.parquet"
        with files.atomic_write(self.path(name)) as file:
            file.write(content)
        return name

    def read_part(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads columns of a file of embeddings, or all. Raises InputError if it is missing or damaged."""
        try:
            with files.open_below(self.folder, name) as file:
                return parquet_files.read(file, self.path(name), _AGAIN, columns)
        except OSError as error:
            raise InputError(f"{self.path(name)} is damaged ({error.strerror}). {_AGAIN}") from None

    def read(
        self,
        version: Version,
        columns: Sequence[str] | None = None,
        before: "Contents | None" = None,
        *,
        embeddings: bool = True,
    ) -> "Contents":
        """Reads what a version holds.

        Args:
            version: the version.
            columns: names of the columns; None for all.
            before: what another version holds, of the same columns. Files that both have are not read again.
            embeddings: whether to read the embeddings.

        Raises:
            InputError: a file is missing or damaged.
        """
        old = before.rows if before and embeddings else None
        known = before.parts if before and (old is not None or not embeddings) else {}
        counts = [len(known[one][0]) if one in known else self.rows(one) for one in version.parts]
        if sum(counts) != version.rows:
            raise InputError(
                f"{self.folder} is damaged (its files have {sum(counts):,} rows, and version {version.number}"
                f" {version.rows:,}). {_AGAIN}"
            )
        most = parquet_files.bound(sum(os.path.getsize(self.path(one)) for one in version.parts))
        rows = np.empty([version.rows, version.dim if embeddings else 0], np.float32)
        parts, start = {}, 0
        for part in version.parts:
            if part in known:
                table, place = known[part]
                some = None if old is None else old[place]
            else:
                schema = self._about(part)[0]
                self._check_part(part, schema, version)
                names = [name for name in columns or schema.names if name != "embedding"]
                whole = self.read_part(part, [*names, "embedding"] if embeddings else names)
                table, some = whole.select(names), matrix(whole) if embeddings else None
            most -= table.nbytes + (0 if some is None else some.nbytes)
            if most < 0:
                raise InputError(f"{self.folder} is damaged (it takes too much memory). {_AGAIN}")
            place = slice(start, start + len(table))
            parts[part] = (table, place)
            if some is not None:
                rows[place] = some
            start = place.stop
        if not np.isfinite(rows).all():
            raise InputError(f"{self.folder} is damaged (an embedding is not finite). {_AGAIN}")
        tables = [table for table, _ in parts.values()]
        table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        return Contents(table, rows if embeddings else None, parts)

    def vectors(self, contents: "Contents", rows: np.ndarray) -> np.ndarray:
        """Reads the embeddings of some rows, ascending, from the files that have them.

        Raises:
            InputError: a file is missing or damaged.
        """
        found = []
        for part, (_, place) in contents.parts.items():
            if len(some := rows[slice(*np.searchsorted(rows, [place.start, place.stop]))]):
                found.append(matrix(self.read_part(part, ["embedding"]))[some - place.start])
        return np.concatenate(found)

    def _check_part(self, name: str, schema: pa.Schema, version: Version) -> None:
        """Raises InputError if a file has other columns than an index, or is by another model."""
        kinds = {**COLUMNS, "embedding": pa.list_(pa.float32(), version.dim)}
        wrong = [one for one in schema if not one.type.equals(kinds.get(one.name, one.type))]
        if wrong:
            reason = f"the column {wrong[0].name} is of type {wrong[0].type}"
        elif missing := {"id", "embedding"} - set(schema.names):
            reason = f"it has no column {min(missing)}"
        elif schema.metadata.get(MODEL_KEY) != version.model.encode():
            reason = "it is by another model"
        else:
            return
        raise InputError(f"{self.path(name)} is damaged ({reason}). {_AGAIN}")

    def rows(self, name: str) -> int:
        """Returns the number of rows of a file of embeddings."""
        return self._about(name)[1]

    def has(self, name: str, column: str) -> bool:
        """Returns whether a file of embeddings has a column."""
        return column in self._about(name)[0].names

    def _about(self, name: str) -> tuple[pa.Schema, int]:
        """Returns the columns of a file of embeddings, with its metadata, and the number of its rows."""
        try:
            with files.open_below(self.folder, name) as file:
                return parquet_files.schema(file, self.path(name), _AGAIN)
        except OSError as error:
            raise InputError(f"{self.path(name)} is damaged ({error.strerror}). {_AGAIN}") from None

    def unfinished(self, model: str) -> Iterator[str]:
        """Yields the names of the files that an interrupted update by the same model left."""
        named = self._named_before()
        for name in sorted(os.listdir(self.folder)):
            if _PART.fullmatch(name) and name not in named and self._is_by(model, name):
                yield name

    def earlier(self, model: str) -> Iterator[str]:
        """Yields the names of the files by a model that the current version or those before have."""
        yield from (name for name in sorted(self._named_before()) if self._is_by(model, name))

    def _is_by(self, model, name):
        with contextlib.suppress(InputError):
            return (self._about(name)[0].metadata or {}).get(MODEL_KEY) == model.encode()
        return False

    def _named_before(self):
        """Returns the names of the files of the current version and of those before."""
        current, named = self.current(), set()
        if current:
            for name in os.listdir(self.path("versions")):
                number = name.removesuffix(".json")
                if number.isdecimal() and int(number) <= current.number:
                    named |= set(self._version(int(number)).parts)
        return named

    def thumbnail(self, image_id: str) -> str:
        """Returns the path of an image's thumbnail."""
        return self.path("thumbnails", _thumbnail(image_id))

    def read_thumbnail(self, image_id: str) -> bytes:
        """Returns an image's thumbnail, a JPEG. Raises OSError if it is missing or no regular file."""
        with files.open_below(self.folder, "thumbnails", _thumbnail(image_id)) as file:
            return file.read()

    def check_folders(self) -> None:
        """Raises InputError if a folder of the index is a link: what is changed has to lie in the index."""
        for name in FOLDERS:
            if os.path.islink(self.path(name)):
                raise InputError(f"{self.path(name)} is a link. Put the folder itself there.")

    def check_regular(self, *names: str) -> None:
        """Raises InputError if a file or folder of the index is a link or has one, or a pipe or device."""
        try:
            files.check_regular(self.folder, *names)
        except OSError as error:
            raise InputError(f"{self.folder} is damaged ({error}). {_AGAIN}") from None

    def original(self, image_id: str) -> str:
        """Returns the path of the file of an image that was sent to a server."""
        return self.path("originals", _digest(image_id))

    def read_original(self, image_id: str) -> bytes:
        """Returns the file of an image that was sent to a server. Raises OSError if it is missing."""
        with files.open_below(self.folder, "originals", _digest(image_id)) as file:
            return file.read()

    def _remove_unused(self, versions, keep):
        parts = {name for version in versions for name in version.parts} | set(keep)
        searches = {version.search for version in versions}
        models = {name for version in versions for name in (version.model, version.before)}
        numbers = {f"{version.number}.json" for version in versions}
        for name in os.listdir(self.folder):
            unused_part = _PART.fullmatch(name) and name not in parts
            unused_search = name.startswith("search-") and name not in searches
            # Whoever changes labels may be writing them.
            left = name.endswith(".tmp") and not name.startswith("labels")
            if unused_part or unused_search or left:
                files.remove(self.path(name))
        for folder, kept in (("versions", numbers), ("models", models)):
            for name in set(os.listdir(self.path(folder))) - kept:
                files.remove(self.path(folder, name))


def _thumbnail(image_id):
    return f"{_digest(image_id)}.jpg"


def _digest(image_id):
    return hashlib.sha256(image_id.encode()).hexdigest()[:32]


_AGAIN = "Make the index again with tfrank index, in another folder."


def matrix(table: pa.Table) -> np.ndarray:
    """Returns the embeddings of a table, `[rows, dim]` float32."""
    column = table.column("embedding").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), column.type.list_size)


def table_of(columns: dict[str, pa.Array], embeddings: np.ndarray) -> pa.Table:
    """Returns a table of the columns of images and their embeddings, `[rows, dim]` float32."""
    values = pa.array(np.ascontiguousarray(embeddings, np.float32).ravel(), pa.float32())
    embedding = pa.FixedSizeListArray.from_arrays(values, embeddings.shape[1])
    return pa.table({**columns, "embedding": embedding})
