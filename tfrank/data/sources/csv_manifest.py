"""Your own images, listed in a CSV file (RFC 4180, UTF-8) with a header.

    path,label,split,role,category,x,y,w,h
    photos/1.jpg,mallard,train,,duck,60,27,325,304
    photos/2.jpg,robin,test,query,songbird,,,,

Columns come in any order. All from role on may be left out, and others are ignored.
"""

import csv
import glob
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tfrank.checks import InputError, did_you_mean
from tfrank.data.sources.image import ROLES, SourceImage
from tfrank.data.sources.lists import coordinate, decode_lines, size

NEEDED = ("path", "label", "split")
BOX = ("x", "y", "w", "h")
COLUMNS = (*NEEDED, "role", "category", *BOX)


class _Row(NamedTuple):
    path: str
    label: str
    split: str
    role: str
    category: str
    box: tuple[float, float, float, float] | None


def read_csv(manifest: str) -> Iterator[SourceImage]:
    """The images that a manifest lists, in its order.

    Labels and categories are words or whole numbers. Where all labels are numbers, written without
    leading zeros, they are kept; else the words are numbered in sorted order. So are categories, which
    may be empty. A box is its corner x, y, width and height in pixels, or empty. The manifest is read
    twice, and checked the first time.

    Args:
        manifest: path of the CSV file, or of a folder with exactly one. Paths in it are relative to the
            manifest's folder, or absolute.

    Raises:
        InputError: where there is no such file or it is not UTF-8, a column is missing, or a row has too
            few or many values, no path, label or split, an unknown role, or a box that is not four
            numbers with positive width and height.
    """
    path = _find(manifest)
    labels, categories = set(), set()
    for row in _rows(path):
        labels.add(row.label)
        categories.add(row.category)
    label_numbers, category_numbers = _numbers(labels), _numbers(categories - {""})
    for row in _rows(path):
        yield SourceImage(
            split=row.split,
            path=row.path,
            label=label_numbers[row.label],
            text=row.label,
            id=row.path,
            category=category_numbers.get(row.category),
            box=row.box,
            role=row.role,
        )


def _find(manifest: str) -> str:
    """The path of the manifest, or of the only one in a folder."""
    if not os.path.isdir(manifest):
        return manifest
    names = sorted(name for name in glob.glob("*", root_dir=manifest) if name.lower().endswith(".csv"))
    if len(names) != 1:
        raise InputError(
            f"{manifest} should hold one .csv file, and holds {', '.join(names) or 'none'}. Give the path of"
            " the manifest itself."
        )
    return os.path.join(manifest, names[0])


def _numbers(words: set[str]) -> dict[str, int]:
    """What stands for each word."""
    if all(map(_is_number, words)):
        return {word: int(word) for word in words}
    return {word: number for number, word in enumerate(sorted(words))}


def _is_number(word: str) -> bool:
    """Whether a word is an integer of 64 bits as it is usually written, so that 7 and 007 stay apart."""
    return bool(re.fullmatch("0|-?[1-9][0-9]{0,17}", word))


def _rows(path: str) -> Iterator[_Row]:
    """The rows of a manifest, checked."""
    # Strict, because else a quote that is never closed swallows the rest of the file in silence.
    reader = csv.reader(decode_lines(path), strict=True)
    try:
        header = _check_header([name.strip() for name in next(reader, [])])
        for values in reader:
            if values:
                yield _row(header, values)
    except InputError:  # Of a line that cannot be read: it has been named.
        raise
    except (csv.Error, ValueError) as error:
        raise InputError(f"{path}, line {max(reader.line_num, 1)}: {error}") from None


def _check_header(header: list[str]) -> list[str]:
    """The header, if it has what is needed; ValueError otherwise."""
    for name in BOX if set(BOX) & set(header) else ():
        if name not in header:
            raise ValueError(f'there is no column "{name}", and a box takes {", ".join(BOX)}.')
    for name in NEEDED:
        if name not in header:
            near = "".join(did_you_mean(other, [name]) for other in header if other not in COLUMNS)
            raise ValueError(f'there is no column "{name}" in the header {",".join(header)}.{near}')
    for name in COLUMNS:
        if header.count(name) > 1:
            raise ValueError(f'there are {header.count(name)} columns "{name}".')
    return header


def _row(header: list[str], values: list[str]) -> _Row:
    """A row of the manifest; ValueError where something is wrong with it."""
    if len(values) != len(header):
        raise ValueError(f"expected {len(header)} values, one for each column, but there are {len(values)}.")
    # All but the path, which may begin or end with a blank, are meant without the blanks around them.
    cells = {name: value if name == "path" else value.strip() for name, value in zip(header, values)}
    for name in NEEDED:
        if not cells[name]:
            raise ValueError(f"the {name} is empty.")
    role = cells.get("role", "")
    if role not in ROLES:
        raise ValueError(
            f"unknown role {role!r}, known are {', '.join(ROLES[1:])}.{did_you_mean(role, ROLES)}"
        )
    return _Row(*(cells[name] for name in NEEDED), role, cells.get("category", ""), _box(cells))


def _box(cells: Mapping[str, str]) -> tuple[float, float, float, float] | None:
    """The box of a row, if it has one; ValueError where it is none."""
    words = [cells.get(name, "") for name in BOX]
    if not any(words):
        return None
    x, y, width, height = words
    try:
        return coordinate(x), coordinate(y), size(width), size(height)
    except ValueError:
        raise ValueError(
            f"x,y,w,h is {','.join(words)}. Expected four numbers with positive width and height."
        ) from None
