"""The lists of a data set, read line by line: some have millions."""

import csv
import os
from collections.abc import Iterator, Sequence

from tfrank.checks import InputError


def find(folder: str, *names: str) -> str:
    """The path of the first of these files that the folder has; InputError where it has none."""
    for name in names:
        if os.path.isfile(path := os.path.join(folder, name)):
            return path
    raise InputError(f"{folder} has no {' or '.join(names)}. Give the folder that holds it, as published.")


def lines(path: str) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, stripped, with their numbers from 1."""
    # Names in no encoding in particular are kept as the bytes they are.
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if line := line.strip():
                yield number, line


def rows(path: str, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """These columns of a CSV file with a header, in this order, with the numbers of their lines."""
    with open(path, newline="", encoding="utf-8", errors="surrogateescape") as file:
        table = csv.reader(file)
        try:
            header = [name.strip() for name in next(table, [])]
            if missing := [name for name in columns if name not in header]:
                raise InputError(f"{path} has no column {', '.join(missing)}; its first line is {header}.")
            places = [header.index(name) for name in columns]
            for row in table:
                if row:
                    yield table.line_num, [row[place].strip() for place in places]
        except (csv.Error, IndexError) as error:
            raise InputError(f"{path}, line {table.line_num}, is damaged ({error}).") from None
