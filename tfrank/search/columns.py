"""The columns of an index that come from where its images are listed: path, label and whatever else."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tfrank.search.images import Listed
from tfrank.search.index_folder import COLUMNS, MAPPED


def further_columns(images: Sequence[Listed]) -> dict[str, pa.Array]:
    """Returns the further columns of images, by name."""
    names = sorted({name for image in images for name in image.others})
    return {name: pa.array([image.others.get(name) for image in images]) for name in names}


def relabelled(table: pa.Table, wanted: Mapping[str, Listed]) -> pa.Table:
    """Returns the table with the paths, labels and further columns that its images are listed with now."""
    if wanted.keys().isdisjoint(table.column("id").to_pylist()):
        return table
    rows = table.drop_columns("embedding").to_pylist()
    now = [_relisted(row, wanted[row["id"]]) if row["id"] in wanted else row for row in rows]
    columns = {name: pa.array([row.get(name) for row in now], kind) for name, kind in COLUMNS.items()}
    further = sorted({name for row in now for name in row} - set(COLUMNS))
    columns |= {name: pa.array([row.get(name) for row in now]) for name in further}
    return pa.table({**columns, "embedding": table.column("embedding")})


def row_of_file(table: pa.Table, data: bytes) -> int:
    """Returns the first row whose image has a file, by its SHA-256, or -1."""
    if "file_sha256" not in table.column_names:
        return -1
    return pc.index(table.column("file_sha256"), hashlib.sha256(data).hexdigest()).as_py()


def _relisted(row: dict[str, Any], image: Listed) -> dict[str, Any]:
    """Returns the columns of an image, those with which it is listed as they are now."""
    fixed = {name: row.get(name) for name in (*COLUMNS, *[MAPPED] * (MAPPED in row))}
    return {**fixed, "path": image.path, "label": image.label, **image.others}
