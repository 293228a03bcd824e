"""Lists what looks wrong with the labels of photos: in words, as a table, and as a page with the pictures.

    tfrank review photos
    tfrank review --index_dir=index

`photos` is a folder with a folder of photos a class; it is indexed first, as `tfrank photos` does. A label
looks wrong if those of other photos, which a model has embedded, say that another is likelier. Near copies of
one photo that have different labels are listed too. `review.csv` and `review.html` go to the index. Nothing
else is changed.
"""

import collections
import csv
import functools
import importlib.resources
import os
from collections.abc import Sequence
from typing import NamedTuple

import jinja2
import numpy as np
from absl import flags

from tfrank.common import commands, files
from tfrank.common.checks import InputError
from tfrank.search.index import DUPLICATE, SearchIndex, open_index
from tfrank.search.label_review import doubtful_labels
from tfrank.search.updating import index_of, update_from

_INDEX = flags.DEFINE_string("index_dir", "", "Folder of the index. Default: that of `tfrank photos`.")
_TRUST = flags.DEFINE_bool(
    "trust_model", False, "Use the model even if it may read and write files or run Python."
)
# Share of the labels beyond which most that are doubted are right: of birds whose labels are right 0.07 are
# doubted, of objects 0.01.
UNSURE = 1 / 15
# Rows that are printed, and rows of the page.
_PRINTED, _SHOWN = 10, 500


class Finding(NamedTuple):
    """What looks wrong with a photo.

    Attributes:
        what: "label", which is likely wrong, or "copies", which have different labels.
        group: number of the group of copies; of a label its rank, the most doubtful first.
        id: of the photo.
        label: its label.
        suggestion: a likelier label; "" of copies.
        margin: how much likelier, 0 to 1; of copies 0.
    """

    what: str
    group: int
    id: str
    label: str
    suggestion: str
    margin: float


def main(argv: Sequence[str]) -> None:
    """Indexes the folder if one is given; then prints and writes the findings."""
    if len(argv) > 2 or not (argv[1:] or _INDEX.value):
        raise InputError("Give the folder of photos: tfrank review FOLDER, or --index_dir=index")
    folder = _INDEX.value or index_of(argv[1])
    if argv[1:]:
        update_from(folder, argv[1], trusted=_TRUST.value)
    index = open_index(folder, trusted=_TRUST.value)
    labels = np.array([label or "" for label in index.table.column("label").to_pylist()])
    if len(set(labels) - {""}) < 2:
        raise InputError(f"{folder} has fewer than two labels. Put the photos of each class in a folder.")
    found = findings(index, labels)
    table, page = index.files.path("review.csv"), index.files.path("review.html")
    with files.atomic_write(table, "w") as file:
        csv.writer(file).writerows([Finding._fields, *found])
    with files.atomic_write(page, "w") as file:
        file.write(_page(index, found))
    doubted = [one for one in found if one.what == "label"]
    for one in doubted[:_PRINTED]:
        print(f"{one.id}: {one.suggestion!r} is likelier than {one.label!r} (by {one.margin:.2f})")
    copies = len({one.group for one in found if one.what == "copies"})
    print(
        f"{len(doubted):,} of {np.sum(labels != ''):,} labels look wrong, the first ones most;"
        f" {copies:,} groups of near copies have different labels."
    )
    if len(doubted) > UNSURE * np.sum(labels != ""):
        print(
            "So many mean that the model hardly tells some of these classes apart: most of the labels may be"
            " right. Look at the first ones, and stop where they are."
        )
    print("\n".join([table, page]))


def findings(index: SearchIndex, labels: np.ndarray) -> list[Finding]:
    """Returns what looks wrong: doubtful labels, the most doubtful first, then groups of copies.

    Args:
        index: the index.
        labels: `[rows]` texts; "" for photos without a label.
    """
    names, numbers = np.unique(labels, return_inverse=True)
    doubts = doubtful_labels(index.embeddings, np.where(labels == "", -1, numbers))
    ids, texts, found = index.ids.tolist(), labels.tolist(), []
    for rank, (row, suggestion, margin) in enumerate(doubts, 1):
        found.append(Finding("label", rank, ids[row], texts[row], str(names[suggestion]), round(margin, 4)))
    label_of = dict(zip(ids, texts))
    copies = [[(one, label_of[one]) for one in group] for group in index.duplicates(DUPLICATE)]
    differing = [group for group in copies if len({label for _, label in group} - {""}) > 1]
    for number, group in enumerate(differing, 1):
        found += [Finding("copies", number, one, label, "", 0.0) for one, label in group]
    return found


def _page(index, found):
    """The findings with the thumbnails of the index, beside which the page lies."""
    source = importlib.resources.files("tfrank.search").joinpath("review.html.jinja").read_text("utf-8")
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(source)
    shown, doubted, near = found[:_SHOWN], collections.defaultdict(list), {}
    for one in shown:
        if one.what == "label":
            doubted[one.suggestion].append(one.id)
    for label, ids in doubted.items():
        near |= zip(ids, (one.ids for one in index.search(ids, k=3, where={"label": label})))

    def thumbnail(image_id):
        return os.path.relpath(index.thumbnail(image_id), index.files.folder)

    return template.render(found=shown, left=len(found) - _SHOWN, near=near, thumbnail=thumbnail)


def command() -> None:
    """The command tfrank review."""
    commands.run(main, parse=functools.partial(commands.parse_with_help, main.__module__, words=True))


if __name__ == "__main__":
    command()
