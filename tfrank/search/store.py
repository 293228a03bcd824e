"""The files of an index folder: numbered versions, of which readers see one, whole.

CURRENT                     number of the current version
versions/3.json             what version 3 consists of
embeddings-000001.parquet   rows of images; never changed once written
search-3/                   the search structure that was built for version 3, if it needs one
models/<fingerprint>/       the SavedModel
thumbnails/<digest>.jpg     by the SHA-256 of the image's id

A writer adds files, then the version that names them, and renames CURRENT at last. It then removes the files
that neither the new version nor the one before needs. Killed at any moment, it leaves the old version
current, and files that the next writer uses or removes.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfrank.common import files
from tfrank.common.checks import InputError

# Number of rows of a file of embeddings; an interrupted run embeds at most as many images again.
PART_ROWS = 1024
# Files with less than this share of `PART_ROWS` are joined once there are more of them than `MOST_SMALL`.
SMALL_SHARE, MOST_SMALL = 0.5, 16
_PART = re.compile(r"embeddings-(\d{6})\.parquet")
# Columns that every index has; a CSV file adds others.
COLUMNS = {
    "id": pa.string(),
    "path": pa.string(),
    "label": pa.string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "bytes": pa.int64(),
    "modified": pa.int64(),
}
MODEL_KEY = b"tfrank.model"


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
    """

    number: int
    model: str
    dim: int
    parts: tuple[str, ...]
    rows: int
    root: str
    search: str = ""
    changed: int = 0


class Contents(NamedTuple):
    """What a version holds.

    Attributes:
        table: the columns of the images but for the embeddings.
        rows: the embeddings, `[rows, dim]` float32 of unit norm.
        parts: by the name of each file of embeddings, the columns in it and its rows among all.
    """

    table: pa.Table
    rows: np.ndarray
    parts: dict[str, tuple[pa.Table, slice]]


class Store:
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
            with open(self.path("CURRENT")) as file:
                number = int(file.read())
            with open(self.path("versions", f"{number}.json")) as file:
                fields = json.load(file)
            return Version(**{**fields, "parts": tuple(fields["parts"])})
        except FileNotFoundError as error:
            if error.filename == self.path("CURRENT"):
                return None
            raise InputError(f"{self.folder} is damaged: {error.filename} is missing. {_AGAIN}") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{self.folder} is damaged ({error}). {_AGAIN}") from None

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
        """Writes a table of images and embeddings to the next file; returns its name."""
        numbers = [int(match[1]) for name in os.listdir(self.folder) if (match := _PART.fullmatch(name))]
        name = f"embeddings-{max(numbers, default=0) + 1:06d}.parquet"
        table = table.replace_schema_metadata({MODEL_KEY: model.encode()})
        with files.atomic_write(self.path(name)) as file:
            pq.write_table(table, file, compression="zstd")
        return name

    def read_part(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads a file of embeddings, or some of its columns.

        Raises:
            InputError: the file is missing or damaged.
        """
        try:
            return pq.read_table(self.path(name), columns=columns and list(columns), memory_map=False)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{self.path(name)} is damaged ({reason}). {_AGAIN}") from None

    def read(
        self, version: Version, columns: Sequence[str] | None = None, before: "Contents | None" = None
    ) -> "Contents":
        """Reads what a version holds.

        Args:
            version: the version.
            columns: names of the columns; None for all.
            before: what another version holds, of the same columns. Files that both have are not read again.

        Raises:
            InputError: a file is missing or damaged.
        """
        rows, parts, start = np.empty([version.rows, version.dim], np.float32), {}, 0
        for part in version.parts:
            if before and part in before.parts:
                table, place = before.parts[part]
                embeddings = before.rows[place]
            else:
                whole = self.read_part(part, columns and [*columns, "embedding"])
                table, embeddings = whole.drop_columns("embedding"), matrix(whole)
            place = slice(start, start + len(embeddings))
            rows[place], parts[part] = embeddings, (table, place)
            start = place.stop
        tables = [table for table, _ in parts.values()]
        return Contents(pa.concat_tables(tables, promote_options="permissive").combine_chunks(), rows, parts)

    def rows(self, name: str) -> int:
        """Returns the number of rows of a file of embeddings."""
        return pq.read_metadata(self.path(name)).num_rows

    def unfinished(self, model: str) -> Iterator[str]:
        """Yields the names of the files that an interrupted update by the same model left."""
        named = self._named_before()
        for name in sorted(os.listdir(self.folder)):
            if _PART.fullmatch(name) and name not in named:
                with contextlib.suppress(OSError, pa.ArrowException):
                    if (pq.read_schema(self.path(name)).metadata or {}).get(MODEL_KEY) == model.encode():
                        yield name

    def _named_before(self):
        """Returns the names of the files of the current version and of those before."""
        current, named = self.current(), set()
        if current:
            for name in os.listdir(self.path("versions")):
                if int(name.split(".")[0]) <= current.number:
                    with open(self.path("versions", name)) as file:
                        named |= set(json.load(file)["parts"])
        return named

    def thumbnail(self, image_id: str) -> str:
        """Returns the path of an image's thumbnail."""
        return self.path("thumbnails", f"{hashlib.sha256(image_id.encode()).hexdigest()[:32]}.jpg")

    def _remove_unused(self, versions, keep):
        parts = {name for version in versions for name in version.parts} | set(keep)
        searches = {version.search for version in versions}
        models = {version.model for version in versions}
        numbers = {f"{version.number}.json" for version in versions}
        for name in os.listdir(self.folder):
            unused_part = _PART.fullmatch(name) and name not in parts
            unused_search = name.startswith("search-") and name not in searches
            if unused_part or unused_search or name.endswith(".tmp"):
                files.remove(self.path(name))
        for folder, kept in (("versions", numbers), ("models", models)):
            for name in set(os.listdir(self.path(folder))) - kept:
                files.remove(self.path(folder, name))


_AGAIN = "Make the index again with tfrank-index, in another folder."


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
