"""Your own images, listed in a CSV file (RFC 4180, UTF-8) with a header.

    path,label,split,role,category,x,y,w,h
    photos/1.jpg,mallard,train,,duck,60,27,325,304
    photos/2.jpg,robin,test,query,songbird,,,,

Excel's ; and tabs will do for commas. Columns come in any order. All from split on may be left out, and
others are ignored.

- Paths are relative to the manifest's folder, or absolute.
- Without the column split, classes are divided into train and test by chance.
- Splits are train and test. Others, of letters, digits and _, are written too, but looked at only where
  they are asked for, as with --config.data.train=... or --config.data.test=...
- A box is its corner x, y, width and height in pixels of the upright image, as viewers show it: turned as
  its EXIF orientation says. It may be empty.
"""

import glob
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tfrank.common.checks import InputError, did_you_mean
from tfrank.data.sources.classes import drawn_to_test, unified
from tfrank.data.sources.image import ROLES, UNKNOWN, SourceImage
from tfrank.data.sources.lists import Line, coordinate, decode_lines, read_table, size

NEEDED = ("path", "label")
# Excel writes ; where the comma is in numbers.
DELIMITERS = ",;\t"
BOX = {"x": coordinate, "y": coordinate, "w": size, "h": size}


class _Row(NamedTuple):
    path: str
    label: str
    split: str
    role: str
    category: str
    box: tuple[float, float, float, float] | None


def read_csv(manifest: str, *, test_share: float = 0.5, seed: int = 0) -> Iterator[SourceImage]:
    """The images that a manifest lists, in its order.

    Labels and categories are words or whole numbers. Where all labels are numbers, written without
    leading zeros, they are kept; else the words are numbered in sorted order. So are categories, which
    may be empty. The manifest is read twice, and checked the first time.

    Args:
        manifest: path of the CSV file, or of a folder with exactly one.
        test_share: of the classes that go to "test", 0 to 1, where there is no column split; at least one
            goes to "train".
        seed: of that division, at least 0.

    Raises:
        InputError: where there is no such file or it is not UTF-8, a column is missing, or a row has too
            few or many values, no path, label or split, the label or category -1, a split that cannot name a
            file, an unknown role, or a box that is not four numbers with positive width and height.
    """
    path = _find(manifest)
    labels, categories, divided = set(), set(), True
    for row in _rows(path):
        labels.add(row.label)
        categories.add(row.category)
        divided = bool(row.split)
    classes = unified(labels)
    label_numbers, category_numbers = _numbers(set(classes.values())), _numbers(categories - {""})
    tests = drawn_to_test(label_numbers, test_share=test_share, seed=seed)
    if not divided:
        print(
            f"{path} has no column split: {len(tests):,} of {len(label_numbers):,} classes, drawn at random,"
            " are tested on.",
            flush=True,
        )
    for row in _rows(path):
        text = classes[row.label]
        yield SourceImage(
            split=row.split or ("test" if text in tests else "train"),
            path=row.path,
            label=label_numbers[text],
            text=text,
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
    """The rows of a manifest, checked; their split is "" where there is no such column."""
    delimiter, needed = _form(path)
    for line, cells in read_table(path, needed, delimiter=delimiter):
        # All but the path, which may begin or end with a blank, are meant without the blanks around them.
        cells = {name: cell if name == "path" else cell.strip() for name, cell in cells.items()}
        for name in needed:
            if not cells[name]:
                raise line.error(f"a {name}")
        for name in ("label", "category"):
            if cells.get(name) == str(UNKNOWN):
                raise line.error(f"another {name} than {UNKNOWN}, which means that there is none")
        split = cells.get("split", "")
        if not re.fullmatch(r"\w*", split):
            raise line.error("a split of letters, digits and _ alone, since files are named after it")
        role = cells.get("role", "")
        if role not in ROLES:
            raise line.error(f"a role of {', '.join(ROLES[1:])}, or none", did_you_mean(role, ROLES))
        box = _box(line, cells, "." if delimiter == "," else ",")
        yield _Row(cells["path"], cells["label"], split, role, cells.get("category", ""), box)


def _form(path: str) -> tuple[str, tuple[str, ...]]:
    """What stands between the cells of a manifest, and the columns that it needs, by its header."""
    header = next(decode_lines(path), "")
    columns = {
        delimiter: {name.strip(' "\r\n') for name in header.split(delimiter)} for delimiter in DELIMITERS
    }
    delimiter = max(DELIMITERS, key=lambda one: len(columns[one].intersection(NEEDED)))
    # A column that is called nearly so is a slip of the pen: the classes are not divided by chance.
    meant = "split" in columns[delimiter] or did_you_mean("split", columns[delimiter])
    return delimiter, (*NEEDED, "split") if meant else NEEDED


def _box(line: Line, cells: Mapping[str, str], point: str) -> tuple[float, float, float, float] | None:
    """The box of a row, if it has one; its numbers are written with that decimal point, or with a dot."""
    sides = [cells.get(name, "").replace(point, ".") for name in BOX]
    return tuple(line.convert(sides, BOX)) if any(sides) else None
