"""Reads the lists of data sets: text files with one line per image, in columns of words, or CSV."""

import csv
import glob
import io
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tfrank.common.checks import InputError, did_you_mean

PARQUET = ".parquet"
# Converts a word to its value; raises ValueError for a word of another type.
Converter = Callable[[str], Any]


class Line(NamedTuple):
    """A line of a list, with the path of the list and the line's number."""

    path: str
    number: int
    text: str

    def error(self, expected: str, hint: str = "") -> InputError:
        """Returns an error that names the list, the line and what was expected, followed by `hint`."""
        return InputError(
            f"{self.path}, line {self.number}: expected {expected}, but the line is {self.text!r}.{hint}"
        )

    def fields(self, **columns: Converter) -> list:
        """Returns the words of the line, converted by their columns' kinds; the first word may hold blanks.

        Raises:
            InputError: there are too few words, or a word is not of its kind.

        >>> Line("test_list_800.txt", 1, "0279029 23781").fields(image_id=str, vehicle_id=integer)
        ['0279029', 23781]
        """
        return self.convert(self.text.rsplit(maxsplit=len(columns) - 1), columns)

    def convert(self, words: Sequence[str], columns: Mapping[str, Converter]) -> list:
        """Converts words of the line, each by the converter of its column: str, `integer`, `size` ..."""
        try:
            return [kind(word) for kind, word in zip(columns.values(), words, strict=True)]
        except ValueError:
            kinds = {integer: " (a whole number)", coordinate: " (a number)", size: " (a positive number)"}
            names = ", ".join(name + kinds.get(kind, "") for name, kind in columns.items())
            raise self.error(f"the column{'s' * (len(columns) > 1)} {names}") from None


def integer(word: str) -> int:
    """Returns a word of at most 18 digits, so below 2^63, as an integer; raises ValueError otherwise."""
    if not re.fullmatch("[0-9]{1,18}", word):
        raise ValueError(word)
    return int(word)


def coordinate(word: str | float) -> float:
    """Returns a word as a finite number; raises ValueError otherwise."""
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(word)
    return number


def size(word: str | float) -> float:
    """Returns a word as a finite number above 0; raises ValueError otherwise."""
    number = coordinate(word)
    if number <= 0:
        raise ValueError(word)
    return number


def locate(
    folder: str, lists: Sequence[str], expected: str, *, places: Sequence[str] = ("",)
) -> tuple[str, list[str]]:
    """Finds a data set's lists in `folder` itself or in a folder directly inside it.

    So users may give the data set's folder, or the folder that they unpacked its archive in.

    Args:
        folder: path.
        lists: names of files, all of which must exist.
        expected: the contents of the data set's folder, for the message.
        places: folders within the data set's folder where the lists may lie, all of them in the same one.

    Returns:
        The data set's folder, relative to `folder` ("" for itself), and the paths of the lists.

    Raises:
        InputError: no folder has the lists, several have them, or a list is missing.
    """
    found = find(folder, lists[0], places)
    if len(found) > 1:
        parts = ", ".join(found)
        raise InputError(f"{folder} contains {lists[0]} in several folders: {parts}. Give one of them.")
    part, place = next(iter(found.items()), ("", places[0]))
    paths = [os.path.join(folder, part, place, name) for name in lists]
    for path in paths:
        if not os.path.isfile(path):
            raise InputError(f"The list {path} does not exist. Give the folder {expected}.")
    return part, paths


def find(folder: str, name: str, places: Sequence[str]) -> dict[str, str]:
    """Returns {part: place} of a list: in `folder` itself (part ""), else in folders in it; see `locate`."""
    inside = sorted(glob.glob("*", root_dir=folder))
    return _places(folder, [""], places, name) or _places(folder, inside, places, name)


def _places(folder, parts, places, name):
    """Returns {part: place} for the parts of a folder that have the file; place is the first that has it."""
    return {
        part: place
        for part in parts
        for place in reversed(places)
        if os.path.isfile(os.path.join(folder, part, place, name))
    }


def read_table(
    path: str, needed: Sequence[str], *, delimiter: str = ","
) -> Iterator[tuple[Line, dict[str, str]]]:
    """Yields the rows of a CSV file (RFC 4180, UTF-8) with a header: the line of each row, and its cells.

    Blank lines and rows of empty cells are skipped. If a quoted cell spans several lines, the row has the
    number of its first line and the text of the whole row. The rows of a parquet file are yielded likewise,
    their values as text.

    Args:
        path: path of the file, which ends in .parquet if it is one.
        needed: required columns, in any order.
        delimiter: the character between cells of a CSV file.

    Raises:
        InputError: the file cannot be read or is not UTF-8, a column is missing or repeated, a row has more
            or fewer cells than the header, or a quote is not closed.
    """
    # Strict: otherwise an unclosed quote silently swallows the rest of the file.
    lines = _parquet_lines(path) if path.endswith(PARQUET) else decode_lines(path)
    rows, number = csv.reader(lines, delimiter=delimiter, strict=True), 1
    try:
        header = _header(path, next(rows, []), needed, delimiter)
        number = rows.line_num + 1
        for cells in rows:
            if any(cells):
                line = Line(path, number, delimiter.join(cells))
                if len(cells) != len(header):
                    raise line.error(f"{len(header)} values, one for each column")
                yield line, dict(zip(header, cells))
            number = rows.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {number}: the CSV is damaged ({error}). Close every quote, and double quotes"
            " inside quotes."
        ) from None


def header_of(path: str) -> str:
    """Returns the first line of a CSV file, or that which the columns of a parquet file make."""
    return next(_parquet_lines(path) if path.endswith(PARQUET) else decode_lines(path), "")


def _parquet_lines(path):
    """Yields the header and the rows of a parquet file as lines of CSV."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"To read {path}, install pyarrow: pip install pyarrow") from None
    line = io.StringIO()
    write = csv.writer(line, lineterminator="\n").writerow

    def text_of(cells):
        line.seek(0)
        line.truncate()
        write(cells)
        return line.getvalue()

    try:
        with parquet.ParquetFile(path) as file:
            yield text_of(file.schema_arrow.names)
            for batch in file.iter_batches():
                yield from map(text_of, zip(*(column.to_pylist() for column in batch.columns)))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"Cannot read {path} ({str(error).splitlines()[0]}).") from None


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


def read_lines(path: str, *, at_least: int = 1) -> Iterator[Line]:
    """Yields the lines of a list that are not blank, stripped.

    Raises:
        InputError: the list cannot be read, is not UTF-8, or has fewer than `at_least` lines.
    """
    count = 0
    for number, text in enumerate(decode_lines(path), start=1):
        if text := text.strip():
            count += 1
            yield Line(path, number, text)
    if count < at_least:
        raise InputError(f"{path} is truncated: it has {count} lines. Unpack or download it again.")


def decode_lines(path: str) -> Iterator[str]:
    """Yields the lines of a UTF-8 file with their ends, without byte order mark; InputError for bad ones."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except OSError as error:
        raise InputError(f"Cannot read {path} ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8 ({error.reason}). Save it as UTF-8.") from None
