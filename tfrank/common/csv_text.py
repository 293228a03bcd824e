"""Rows of cells as CSV text that every reader reads back, and read strictly."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from tfrank.common.checks import InputError


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    r"""Returns rows as CSV, with \n at the ends of lines.

    A cell with \r is quoted, which Python's writer omits where lines end in \n, and then cannot read back.

    >>> csv_text([("id", "label"), ("1.jpg", "owl\r")])
    'id,label\n1.jpg,"owl\r"\n'
    """
    return "".join(csv_lines(rows))


def csv_lines(rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yields what `csv_text` returns, row by row."""
    text = io.StringIO()
    # It quotes what the ends of its lines have, so these are cut off after each row.
    writer = csv.writer(text, lineterminator="\r\n")
    for row in rows:
        text.seek(0)
        text.truncate()
        writer.writerow(row)
        yield f"{text.getvalue()[:-2]}\n"


def csv_rows(data: bytes, path: str, columns: Sequence[str]) -> list[tuple[int, list[str]]]:
    r"""Returns the rows of a small CSV file, but for its header, with the numbers of their lines.

    Args:
        data: the content of the file.
        path: its name in the message.
        columns: the columns that it has to have, in their order.

    Raises:
        InputError: it is damaged; the message names the line.

    >>> csv_rows(b"id,label\n1.jpg,owl\n", "labels.csv", ("id", "label"))
    [(2, ['1.jpg', 'owl'])]
    """
    rows, line = [], 1
    try:
        # As spreadsheets write it, it may begin with a mark.
        lines = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        for row in lines:
            if row or not rows:
                _check_row(row, columns, header=not rows)
                rows.append((line, row))
            line = lines.line_num + 1
        if not rows:
            _check_row([], columns, header=True)
    except UnicodeDecodeError as error:
        line, reason = data.count(b"\n", 0, error.start) + 1, "it is no UTF-8"
    except csv.Error as error:
        reason = str(error)
    else:
        return rows[1:]
    raise InputError(f"{path} is damaged (line {line}: {reason}). Mend the line, or remove the file.")


def _check_row(row, columns, *, header):
    if len(row) != len(columns) or (header and row != [*columns]):
        raise csv.Error(f"expected {','.join(columns)}")
