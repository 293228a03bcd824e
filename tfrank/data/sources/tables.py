"""Tables of images, CSV or parquet: one set of rules for records, the search index and embedding at scale.

A CSV file is UTF-8, with a header (RFC 4180). Its delimiter is a comma, ;, a tab or |, whichever gives the
columns that are needed. Blanks around the names of columns do not count. Quoted values may hold line ends.
"""

import collections
import contextlib
import csv
import io
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from tfrank.common import checks
from tfrank.common.checks import InputError, did_you_mean
from tfrank.common.csv_text import csv_lines
from tfrank.data.sources.lists import Line, Opened, decode_lines, open_local

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET = ".parquet"
# Rows of a parquet file read at a time, and what to do if it is damaged.
_ROWS, _AGAIN = 2**16, "Write it again."
# Endings of the names of tables.
TABLES = (".csv", ".tsv", PARQUET)
# Excel writes ; in locales with a decimal comma.
DELIMITERS = ",;\t|"
# Columns that stay the text that they are, such as 007.
TEXTS = ("path", "id", "label")
# Digits that a number would lose some of: leading zeros, and more than 18.
_CODE = r"^[+-]?(0[0-9]+|[0-9]{19,})$"
# Rows whose types are found, or which are yielded, at a time.
ROWS = 10_000


def is_table(path: str) -> bool:
    """Returns whether a path is that of a table, by its end.

    >>> is_table("photos.CSV"), is_table("photos.txt")
    (True, False)
    """
    return path.lower().endswith(TABLES)


def header_of(path: str, needed: Sequence[str], opened: Opened = open_local) -> tuple[str, list[str]]:
    """Returns the delimiter of a table and the names of its columns, without blanks around them.

    The delimiter is the one that gives most of the columns `needed`, or else most columns.
    """
    header = next(_lines(path, opened), "")
    names = {delimiter: _names(header, delimiter) for delimiter in DELIMITERS}
    delimiter = max(DELIMITERS, key=lambda one: (len(set(names[one]) & set(needed)), len(names[one])))
    return delimiter, names[delimiter]


def read_table(
    path: str, needed: Sequence[str], opened: Opened = open_local
) -> Iterator[tuple[Line, dict[str, str]]]:
    """Yields the rows of a table as text: the line of each row, and its cells by the names of the columns.

    Blank lines and rows of empty cells are skipped. If a quoted cell spans several lines, the row has the
    number of its first line and the text of the whole row. Columns without a name are left out.

    Args:
        path: path of the file, which ends in .parquet if it is one.
        needed: required columns, in any order.
        opened: opens the file for reading.

    Raises:
        InputError: the file cannot be read or is not UTF-8, a column is missing or repeated, a row has more
            or fewer cells than the header, or a quote is not closed.
    """
    delimiter, _ = header_of(path, needed, opened)
    header: list[str] = []
    for number, cells in _cells(path, needed, delimiter, opened):
        if header:
            named = {name: cell for name, cell in zip(header, cells) if name}
            yield Line(path, number, delimiter.join(cells)), named
        header = header or cells


def _cells(
    path: str, needed: Sequence[str], delimiter: str, opened: Opened
) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the cells of the header, without blanks around them, and of each row."""
    # Strict: otherwise an unclosed quote silently swallows the rest of the file.
    rows, number = csv.reader(_lines(path, opened), delimiter=delimiter, strict=True), 1
    try:
        header = _header(path, next(rows, []), needed, delimiter)
        yield number, header
        number = rows.line_num + 1
        for cells in rows:
            if any(cells):
                if len(cells) != len(header):
                    expected = f"{len(header)} values, one for each column"
                    raise Line(path, number, delimiter.join(cells)).error(expected)
                yield number, cells
            number = rows.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {number}: the CSV is damaged ({error}). Close every quote, and double quotes"
            " inside quotes."
        ) from None


def read_images(
    path: str, reserved: Collection[str], *, rows: int = ROWS, opened: Opened = open_local
) -> Iterator["pa.Table"]:
    """Yields the rows of a table of images, at most `rows` at a time, each column with its type.

    The columns path, id and label are text, and label is "" where it is unknown. The types of the others in a
    CSV file follow from all its values: numbers, truth values, dates or text. Digits that a number would lose
    stay text, such as 007.

    Args:
        path: path of the file.
        reserved: names that no column may have.
        rows: most rows of a table that is yielded.
        opened: opens the file for reading.

    Raises:
        InputError: see `read_table`; or a column has a reserved name, or a row has no path or no id.
    """
    _, names = header_of(path, TEXTS[:1], opened)
    if "path" not in names:
        hint = "".join(did_you_mean(name, TEXTS[:1]) for name in names)
        raise InputError(f"{path} has no column `path`. Its columns are: {', '.join(names)}.{hint}")
    if own := set(names) & set(reserved):
        raise InputError(
            f"{path} has the column `{min(own)}`, which the index fills in itself. Rename it or leave it out."
        )
    if repeated := {name for name in names if name and names.count(name) > 1}:
        raise InputError(f"{path} has the column `{min(repeated)}` twice. Rename one of them.")
    read = _parquet_tables if path.lower().endswith(PARQUET) else _csv_tables
    yield from read(path, rows, opened)


def _csv_tables(path, rows, opened):
    import pyarrow as pa
    from pyarrow import compute

    kinds: dict[str, pa.DataType] = {}
    filled: dict[str, bool] = collections.defaultdict(bool)
    for texts in _text_tables(path, ROWS, opened):
        for field in _typed(texts, {}).schema:
            code = compute.any(compute.match_substring_regex(texts[field.name], _CODE)).as_py()
            kind = pa.string() if code else field.type
            kinds[field.name] = _common(kinds.get(field.name, pa.null()), kind)
            filled[field.name] |= compute.any(compute.equal(texts[field.name], "NA")).as_py()
    # Where all that there is reads "NA", it is the word: North America has no other continent beside it.
    kinds |= {name: pa.string() for name, kind in kinds.items() if pa.types.is_null(kind) and filled[name]}
    for texts in _text_tables(path, rows, opened):
        yield _typed(texts, kinds)


def _text_tables(path, rows, opened):
    """Yields the columns of a CSV file as text, some rows at a time."""
    import pyarrow as pa
    from pyarrow import compute

    delimiter, _ = header_of(path, TEXTS[:1], opened)
    found = _cells(path, TEXTS[:1], delimiter, opened)
    _, header = next(found)
    while some := list(itertools.islice(found, rows)):
        numbers, cells = zip(*some)
        columns = {name: pa.array(values, pa.string()) for name, values in zip(header, zip(*cells)) if name}
        # Strip all cells but the path: a file name may begin or end with a blank.
        stripped = {name: compute.utf8_trim_whitespace(values) for name, values in columns.items()}
        if blank := _blank(stripped):
            name, place = blank
            line = Line(path, numbers[place], delimiter.join(cells[place]))
            raise line.error(f"a{'n' * (name == 'id')} {name}")
        yield pa.table({**stripped, "path": columns["path"]})


def _blank(columns):
    """Returns the column, path or id, and the first row that is blank there, if there is one."""
    from pyarrow import compute

    for name in {"path", "id"} & columns.keys():
        text = compute.fill_null(compute.utf8_trim_whitespace(columns[name]), "")
        if (place := compute.index(compute.equal(text, ""), True).as_py()) >= 0:
            return name, place
    return None


def _typed(texts, kinds):
    """Returns a table of text with types: those of `kinds`, or those that follow from the values."""
    import pyarrow as pa
    import pyarrow.csv

    buffer = io.BytesIO()
    pyarrow.csv.write_csv(texts, buffer)
    return pyarrow.csv.read_csv(
        pa.BufferReader(buffer.getbuffer()),
        pyarrow.csv.ReadOptions(block_size=max(1, len(buffer.getbuffer()))),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=kinds | dict.fromkeys(TEXTS, pa.string())),
    )


def _common(one, other):
    """The type that holds the values of both types; text if there is no other."""
    import pyarrow as pa

    if pa.types.is_null(one) or one == other:
        return other
    if pa.types.is_null(other):
        return one
    numbers = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (one, other))
    return pa.float64() if numbers else pa.string()


def _parquet_tables(path, rows, opened):
    import pyarrow as pa
    from pyarrow import compute

    from tfrank.common import parquet_files

    try:
        with opened(path) as file:
            start = 0
            for batch in parquet_files.batches(file, path, _AGAIN, rows):
                table = pa.Table.from_batches([batch])
                table = table.rename_columns([name.strip() for name in table.column_names])
                columns = {name: table[name] for name in table.column_names if name}
                columns |= {name: _as_text(table[name]) for name in TEXTS if name in columns}
                if blank := _blank(columns):
                    name, place = blank
                    raise InputError(f"{path}: row {start + place + 1:,} has no {name}. Rows count from 1.")
                if "label" in columns:
                    columns["label"] = compute.fill_null(columns["label"], "")
                yield pa.table(columns)
                start += len(table)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"Cannot read {path} ({checks.reason(error)}).") from None


def _as_text(column):
    """A column of text, or of whole numbers as text."""
    import pyarrow as pa

    if pa.types.is_floating(column.type):  # Pandas makes floats of whole numbers and missing values.
        column = _without_nan(column)
        with contextlib.suppress(pa.ArrowInvalid):
            column = column.cast(pa.int64())
    return column.cast(pa.string())


def _without_nan(column):
    """A column in which NaN, which NumPy and Polars write where there is no value, is null."""
    import pyarrow as pa
    from pyarrow import compute

    if not pa.types.is_floating(column.type):
        return column
    return compute.if_else(compute.is_nan(column), pa.scalar(None, column.type), column)


def _lines(path, opened):
    return _parquet_lines(path, opened) if path.lower().endswith(PARQUET) else decode_lines(path, opened)


def _parquet_lines(path, opened):
    """Yields the header and the rows of a parquet file as lines of CSV."""
    try:
        import pyarrow as pa

        from tfrank.common import parquet_files
    except ImportError:
        raise InputError(f"To read {path}, install pyarrow: pip install pyarrow") from None
    try:
        with opened(path) as file:
            yield from csv_lines([parquet_files.schema(file, path, _AGAIN)[0].names])
            for batch in parquet_files.batches(file, path, _AGAIN, _ROWS):
                yield from csv_lines(zip(*(_without_nan(column).to_pylist() for column in batch.columns)))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"Cannot read {path} ({checks.reason(error)}).") from None


def _names(header, delimiter):
    """Names of the columns in a line, without blanks around them."""
    try:
        return [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _header(path, cells, needed, delimiter):
    """Returns the names of the columns; raises InputError if a needed one is missing or one is repeated."""
    line, names = Line(path, 1, delimiter.join(cells)), [name.strip() for name in cells]
    for name in needed:
        if name not in names:
            hints = (did_you_mean(other, [name]) for other in names if other not in needed)
            raise line.error(f"a header with the column {name}", "".join(hints))
    for name in filter(None, names):
        if names.count(name) > 1:
            raise line.error(f"each column once, and {name} occurs {names.count(name)} times")
    return names
