"""Rows of cells as CSV text that every reader reads back."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence


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
