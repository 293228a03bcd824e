"""Your own images, listed in a CSV file (RFC 4180, UTF-8) with a header, or in a parquet file.

    path,label,split,role,category,x,y,w,h
    photos/1.jpg,mallard,train,,duck,60,27,325,304
    photos/2.jpg,robin,test,query,songbird,,,,

A parquet file has the same columns. The delimiter of a CSV file may also be a tab, |, or ; as Excel writes.
The label -1 is that of a photo to train on that has no class: only a teacher's losses learn from it.
Columns may be in any order. All columns after label are optional. Other columns are not used, and a note
names them. The columns of OpenMetricLearning are read too, see `sources.oml`.

- Paths are relative to the manifest's folder, or absolute.
- Without the column split, classes are divided into train and test at random.
- Splits are train and test. Other names, of letters, digits and _, are written too, but used only where a run
  names them.
- A box is its top left corner x, y, its width and its height, in pixels of the image turned upright by its
  EXIF orientation, as viewers show it. It may be empty.
"""

import glob
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tfrank.common.checks import InputError, did_you_mean
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.sources import oml
from tfrank.data.sources.classes import divide
from tfrank.data.sources.image import ROLES, SourceImage
from tfrank.data.sources.lists import Line, coordinate, size
from tfrank.data.sources.tables import header_of, read_table

NEEDED = ("path", "label")
BOX = {"x": coordinate, "y": coordinate, "w": size, "h": size}
USED = (*NEEDED, "split", "role", "category", *BOX, *oml.COLUMNS)


class _Row(NamedTuple):
    path: str
    label: str
    split: str
    role: str
    category: str
    box: tuple[float, float, float, float] | None


def read_csv(manifest: str, *, test_share: float = 0.5, seed: int = 0) -> Iterator[SourceImage]:
    """Yields the images of a manifest, in its order.

    Labels and categories are words or integers; the label -1 is none. If all labels are integers without
    leading zeros, they are kept; otherwise the words are numbered in sorted order. Categories are treated in
    the same way; they may be empty. The manifest is read twice, and checked the first time.

    Args:
        manifest: path of the CSV or parquet file, or of a folder with exactly one CSV file.
        test_share: share of the classes that go to "test", 0 to 1, if there is no column split; at least one
            class goes to "train".
        seed: seed of that random split, at least 0.

    Raises:
        InputError: the file does not exist or is not UTF-8, or a column is missing, or a row is wrong: too
            few or too many values, no path, label or split, the category -1, the label -1 of an image to test
            on, a split that cannot be part of a file name, an unknown role, or a box that is not four numbers
            with positive width and height.
    """
    path = _find(manifest)
    _, columns = header_of(path, NEEDED)
    if unused := [name for name in columns if name and name not in USED]:
        print(f"Note: {path} has columns that are not used: {', '.join(unused)}.", flush=True)
    rows = ((row.label, row.split, row.category) for row in _rows(path))
    classes = divide(path, rows, test_share=test_share, seed=seed)
    for row in _rows(path):
        yield SourceImage(
            path=row.path,
            id=row.path,
            box=row.box,
            role=row.role,
            **classes.fields(row.label, row.split, row.category),
        )


def _find(manifest: str) -> str:
    """Returns the path of the manifest; given a folder, that of the only .csv file in it."""
    if not os.path.isdir(manifest):
        return manifest
    names = sorted(name for name in glob.glob("*", root_dir=manifest) if name.lower().endswith(".csv"))
    if len(names) != 1:
        raise InputError(
            f"{manifest} should contain one .csv file, but contains {', '.join(names) or 'none'}. Give the"
            " path of the manifest itself."
        )
    return os.path.join(manifest, names[0])


def _rows(path: str) -> Iterator[_Row]:
    """Yields the checked rows of a manifest; their split is "" if there is no such column."""
    delimiter, needed = _form(path)
    point, roles = "." if delimiter == "," else ",", set()
    for line, cells in read_table(path, needed):
        # Strip all cells but the path: a file name may begin or end with a blank.
        cells = {name: cell if name == "path" else cell.strip() for name, cell in cells.items()}
        cells = oml.translated(line, cells, point)
        for name in needed:
            if not cells[name]:
                raise line.error(f"a {name}")
        split = cells.get("split", "")
        if cells.get("category") == str(UNKNOWN):
            raise line.error(f"another category than {UNKNOWN}, which means that there is none")
        if cells["label"] == str(UNKNOWN) and split == "test":
            raise line.error(f"another label than {UNKNOWN}, which means that there is none, to test on")
        if not re.fullmatch(r"\w*", split):
            raise line.error("a split of letters, digits and _ alone, since files are named after it")
        role = cells.get("role", "")
        roles |= {role} if split == "test" else set()
        if oml.BOTH in roles and len(roles) > 1:
            raise line.error("all images to test on to be query and gallery, or each to be one of both")
        role = role.replace(oml.BOTH, "")
        if role not in ROLES:
            raise line.error(f"a role of {', '.join(ROLES[1:])}, or none", did_you_mean(role, ROLES))
        if role and not split:
            raise line.error("a column split beside the role, which holds of test images alone")
        box = _box(line, cells, point)
        yield _Row(cells["path"], cells["label"], split, role, cells.get("category", ""), box)


def _form(path: str) -> tuple[str, tuple[str, ...]]:
    """Returns the delimiter of a manifest and the columns that it needs, from its header."""
    delimiter, columns = header_of(path, NEEDED)
    # A name close to "split" is a typo: report it as missing instead of dividing classes at random.
    meant = "split" in columns or did_you_mean("split", columns)
    return delimiter, (*NEEDED, "split") if meant else NEEDED


def _box(line: Line, cells: Mapping[str, str], point: str) -> tuple[float, float, float, float] | None:
    """Returns the box of a row, if it has one; `point` or a dot is the decimal point."""
    sides = [cells.get(name, "").replace(point, ".") for name in BOX]
    return tuple(line.convert(sides, BOX)) if any(sides) else None
