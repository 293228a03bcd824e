"""Reads the lists of data sets: text files with one line per image, in columns of words."""

import functools
import glob
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from tfrank.common.checks import InputError

# Opens a file for reading.
Opened = Callable[[str], IO[bytes]]
open_local: Opened = functools.partial(open, mode="rb")
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


def decode_lines(path: str, opened: Opened = open_local) -> Iterator[str]:
    """Yields the lines of a UTF-8 file with their ends, without byte order mark; InputError for bad ones.

    Lines end in a line feed, a carriage return as of old Macs, or both. `opened` opens the file for reading.
    """
    number = 0
    try:
        with opened(path) as file:
            for number, line in enumerate(_lines(file), start=1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except OSError as error:
        raise InputError(f"Cannot read {path} ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, line {number}: not UTF-8 ({error.reason}). Save it as UTF-8, which Excel calls CSV"
            " UTF-8; or convert it: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW"
        ) from None


def _lines(file):
    for line in file:
        if b"\r" in line:
            yield from line.splitlines(keepends=True)
        else:
            yield line
