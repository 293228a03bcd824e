"""Reading the lists of published data sets: text files of one line an image, in columns of words."""

import csv
import glob
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tfrank.checks import InputError


class Line(NamedTuple):
    """A line of a list, and where it stands."""

    path: str
    number: int
    text: str

    def error(self, expected: str) -> InputError:
        """The error that names the list, the line, and what it should be."""
        return InputError(
            f"{self.path}, line {self.number}: expected {expected}, but the line is {self.text!r}."
        )

    def fields(self, **columns: Callable[[str], Any]) -> list:
        """The words of the line, each as its column's kind: str, `whole`, `coordinate` or `size`.

        Raises:
            InputError: where there are more or fewer words, or one is not of its kind.

        >>> Line("test_list_800.txt", 1, "0279029 23781").fields(image_id=str, vehicle_id=whole)
        ['0279029', 23781]
        """
        try:
            return [kind(word) for kind, word in zip(columns.values(), self.text.split(), strict=True)]
        except ValueError:
            kinds = {whole: " (a whole number)", coordinate: " (a number)", size: " (a positive number)"}
            names = ", ".join(name + kinds.get(kind, "") for name, kind in columns.items())
            raise self.error(f"the column{'s' * (len(columns) > 1)} {names}") from None


def whole(word: str) -> int:
    """A word of digits as an integer of 64 bits; ValueError otherwise."""
    if not re.fullmatch("[0-9]{1,18}", word):
        raise ValueError(word)
    return int(word)


def coordinate(word: str | float) -> float:
    """A finite number; ValueError otherwise."""
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(word)
    return number


def size(word: str | float) -> float:
    """A finite number above 0; ValueError otherwise."""
    number = coordinate(word)
    if number <= 0:
        raise ValueError(word)
    return number


def locate(folder: str, lists: Sequence[str], expected: str) -> str:
    """Where in `folder` a data set's lists are: "" for the folder itself, or the one folder in it.

    So the folder that an archive was unpacked in is as good as the one that it unpacked to.

    Args:
        folder: path.
        lists: names of files, relative to the data set's folder, all of which have to be there.
        expected: what the folder should be, for the message.

    Raises:
        InputError: where there is no such folder, several, or a list is missing.
    """
    part = find_part(folder, lists[0]) or ""
    for name in lists:
        path = os.path.join(folder, part, name)
        if not os.path.isfile(path):
            raise InputError(f"There is no list {path}. The folder should be {expected}.")
    return part


def find_part(folder: str, name: str) -> str | None:
    """The part of `folder` that holds a file: "", a folder in it, or None; InputError where several do."""
    if os.path.isfile(os.path.join(folder, name)):
        return ""
    inside = sorted(glob.glob("*", root_dir=folder))
    parts = [part for part in inside if os.path.isfile(os.path.join(folder, part, name))]
    if len(parts) > 1:
        raise InputError(f"{folder} holds {name} in several folders: {', '.join(parts)}. Give one of them.")
    return parts[0] if parts else None


def find(folder: str, *names: str) -> str:
    """The path of the first of these files that the folder has; InputError where it has none."""
    for name in names:
        if os.path.isfile(path := os.path.join(folder, name)):
            return path
    raise InputError(f"{folder} has no {' or '.join(names)}. Give the folder that holds it, as published.")


def read_columns(path: str, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """These columns of a CSV file with a header, in this order, with the numbers of their lines."""
    table = csv.reader(decode_lines(path))
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


def read_lines(path: str, *, at_least: int = 1) -> Iterator[Line]:
    """The lines of a list that are not blank, without the blanks around them.

    Raises:
        InputError: where the list cannot be read, is not UTF-8, or ends before `at_least` lines.
    """
    count = 0
    for number, text in enumerate(decode_lines(path), start=1):
        if text := text.strip():
            count += 1
            yield Line(path, number, text)
    if count < at_least:
        raise InputError(f"{path} is cut off: it has {count} lines. Unpack or download it again.")


def decode_lines(path: str) -> Iterator[str]:
    """The lines of a UTF-8 file with their ends, without its byte order mark; InputError names bad ones."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except OSError as error:
        raise InputError(f"Cannot read {path} ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8 ({error.reason}). Save it as UTF-8.") from None
