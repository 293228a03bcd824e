"""Parquet files that are read back: their checksums are verified, and their size in memory is bounded.

Every page has a checksum, and before the footer, where parquet allows any bytes, stands that of the footer:
a damaged footer can end the process that reads it. A file without checksums, as other programs write it, is
read too. A page of a few bytes may stand for gigabytes of equal texts, so they are counted before they are
spelled out.
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfrank.common import checks
from tfrank.common.checks import InputError

# In memory, a file may take so many bytes, and so many times its own size more.
MOST_BYTES, MOST_RATIO = 2**28, 30
# Before a footer: this, and the SHA-256. After it: its length, in four bytes, and parquet's mark.
_MARK, _DIGEST_BYTES, _END_BYTES = b"tfrank.footer", 32, 8


def bound(size: int) -> int:
    """Returns how many bytes files of `size` bytes may take in memory."""
    return MOST_BYTES + MOST_RATIO * size


def encoded(table: pa.Table) -> bytes:
    """Returns a table as the bytes of a file with checksums."""
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", write_page_checksum=True)
    data = file.getvalue()
    start = len(data) - _END_BYTES - int.from_bytes(data[-_END_BYTES:-4], "little")
    digest = hashlib.sha256(data[start:-_END_BYTES]).digest()
    return b"".join([data[:start], _MARK, digest, data[start:]])


def read(source: IO[bytes], name: str, remedy: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads a file, or some of its columns.

    Args:
        source: the open file.
        name: its name, for messages.
        remedy: what to do if it is damaged, as a sentence.
        columns: names of the columns, which come in this order; None for all.

    Raises:
        InputError: it is damaged, is no parquet file, lacks a column, or is too large in memory.
    """
    with _named(name, remedy):
        file = _opened(source)
        table = file.reader.read(columns=columns and list(columns))
        table = _spelled_out(table, _chosen(file.schema, columns), file.most)
        return table.select(columns) if columns else table


def schema(source: IO[bytes], name: str, remedy: str) -> tuple[pa.Schema, int]:
    """Returns the columns of an open file with their metadata, and the number of its rows; see `read`."""
    with _named(name, remedy):
        file = _opened(source)
        return file.schema, file.rows


def batches(
    source: IO[bytes], name: str, remedy: str, rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields a file's rows, `rows` at a time; see `read`. The bound is that of a batch."""
    with _named(name, remedy):
        file = _opened(source, whole=False)
        kept = _chosen(file.schema, columns)
        found = file.reader.iter_batches(rows, columns=columns and list(columns))
    while True:
        with _named(name, remedy):
            batch = next(found, None)
            if batch is None:
                return
            table = _spelled_out(pa.Table.from_batches([batch]), kept, file.most)
        yield from table.combine_chunks().to_batches()


class _File(NamedTuple):
    """An open file: its reader, which keeps texts once each; its columns and rows; its bound in memory."""

    reader: pq.ParquetFile
    schema: pa.Schema
    rows: int
    most: int


@contextlib.contextmanager
def _named(name: str, remedy: str) -> Iterator[None]:
    """Turns the errors of reading a damaged file into an InputError that names it."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException) as error:
        raise InputError(f"{name} is damaged ({checks.reason(error)}). {remedy}") from None


def _opened(source: IO[bytes], *, whole: bool = True) -> _File:
    """Opens a file; raises ValueError if its numbers alone take too much memory, read whole or not."""
    size = source.seek(0, os.SEEK_END)
    most = bound(size)
    _check_footer(source, size)
    file = pq.ParquetFile(source)
    schema, rows = file.schema_arrow, file.metadata.num_rows
    stored = sum(file.metadata.row_group(place).total_byte_size for place in range(file.num_row_groups))
    numbers = rows * (1 + sum(_number_bytes(field.type) for field in schema)) if whole else 0
    if max(stored, numbers) > most:
        raise ValueError(f"in memory it takes over {most:,} bytes")
    columns = [file.schema.column(place) for place in range(len(file.schema))]
    texts = [one.path for one in columns if one.physical_type == "BYTE_ARRAY"]
    reader = pq.ParquetFile(source, read_dictionary=texts, page_checksum_verification=True)
    return _File(reader, schema, rows, most)


def _check_footer(source: IO[bytes], size: int) -> None:
    """Raises ValueError if the footer differs from its checksum, if there is one."""
    source.seek(max(0, size - _END_BYTES))
    length = int.from_bytes(source.read(4), "little")
    start = size - _END_BYTES - length - _DIGEST_BYTES - len(_MARK)
    if start >= 0:
        source.seek(start)
        mark, digest = source.read(len(_MARK)), source.read(_DIGEST_BYTES)
        if mark == _MARK and hashlib.sha256(source.read(length)).digest() != digest:
            raise ValueError("the checksum of its footer differs")
    source.seek(0)


def _number_bytes(of: pa.DataType) -> int:
    """Returns the bytes of a row's numbers; 0 for text and for lists of any length."""
    if pa.types.is_fixed_size_list(of):
        return of.list_size * _number_bytes(of.value_type)
    if pa.types.is_struct(of):
        return sum(_number_bytes(of.field(place).type) for place in range(of.num_fields))
    return of.bit_width // 8 if pa.types.is_primitive(of) else 0


def _chosen(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Returns the schema of some columns, in the order of the file; raises ValueError if it lacks one."""
    if missing := set(columns or ()) - set(schema.names):
        raise ValueError(f"it has no column {min(missing)}")
    return pa.schema([one for one in schema if not columns or one.name in columns], schema.metadata)


def _spelled_out(table: pa.Table, schema: pa.Schema, most: int) -> pa.Table:
    """Returns a table whose texts stand in each row; raises ValueError if they take too much memory."""
    if sum(_text_bytes(chunk) for column in table.columns for chunk in column.chunks) > most:
        raise ValueError(f"in memory it takes over {most:,} bytes")
    return table.select(schema.names).replace_schema_metadata(None).cast(schema)


def _text_bytes(array: pa.Array) -> int:
    """Returns how many bytes the texts of an array have once they are spelled out."""
    if pa.types.is_dictionary(array.type):
        lengths = pc.take(pc.binary_length(array.dictionary).cast(pa.int64()), array.indices)
        return pc.sum(lengths).as_py() or 0
    if pa.types.is_nested(array.type):
        return sum(map(_text_bytes, _inner(array)))
    return 0


def _inner(array: pa.Array) -> list[pa.Array]:
    """Returns the arrays that a nested array is made of."""
    if pa.types.is_struct(array.type):
        return array.flatten()
    if pa.types.is_map(array.type):
        return [array.keys, array.items]
    return [array.flatten()]
