"""Lists what looks wrong with the labels of photos: in words, as a table, and as a page with the pictures.

    tfrank review photos
    tfrank review runs/own_images_fast_photos_pnp
    tfrank review --index_dir=index

`photos` is a folder with a folder of photos a class; it is indexed first, as `tfrank photos` does. Given a
run, its model embeds its records. A label looks wrong if those of other photos say that another is likelier.
Near copies of one photo that have different labels are listed too, pairs of classes that look like one, and
classes that look like two. `review.csv` and `review.html` go to the index. Nothing else is changed.
"""

import collections
import csv
import functools
import importlib.resources
import itertools
import os
from collections.abc import Sequence
from typing import NamedTuple

import jinja2
import numpy as np
from absl import flags

from tfrank.common import commands, files
from tfrank.common.checks import InputError
from tfrank.configs import of_run
from tfrank.data.near_copies import near_copies, thumbnail
from tfrank.search.class_review import double_classes, mixed_classes
from tfrank.search.index import DUPLICATE, SearchIndex, open_index
from tfrank.search.label_review import doubtful_labels
from tfrank.search.updating import index_for, update_from

_INDEX = flags.DEFINE_string("index_dir", "", "Folder of the index. Default: that of `tfrank photos`.")
_TRUST = flags.DEFINE_bool(
    "trust_model", False, "Use the model even if it may read and write files or run Python."
)
# Share of the labels beyond which most that are doubted are right: of birds whose labels are right 0.07 are
# doubted, of objects 0.01.
UNSURE = 1 / 15
# Share of the classes that look like two beyond which that says little: of birds .08 do, of objects .01, of
# cars by what a network knows that never saw these models, .7.
MANY = 0.15
# Photos up to so many times as far apart as near copies are near copies if their pixels say so too.
APART = 5
# Rows that are printed, groups of rows of the page, and photos of a class in a group.
_PRINTED, _SHOWN, _EXAMPLES = 10, 500, 4


class Finding(NamedTuple):
    """What looks wrong with a photo.

    Attributes:
        what: "label", which is likely wrong; "copies", which have different labels; "one class", a photo of
            two classes that look like one; or "two classes", a photo of a class that looks like two.
        group: number of the group of photos that belong together; of a label its rank, the most doubtful
            first.
        id: of the photo.
        label: its label.
        suggestion: a likelier label; of "one class" the other class; of "two classes" the part; "" of copies.
        margin: how much likelier, 0 to 1; of others 0.
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
        raise InputError("Give the folder of photos or of a run: tfrank review FOLDER, or --index_dir=index")
    folder = _INDEX.value or index_for(argv[1])
    if argv[1:]:
        photos, model = _photos_and_model(argv[1])
        update_from(folder, photos, model=model, trusted=_TRUST.value)
    index = open_index(folder, trusted=_TRUST.value)
    if (root := index.version.root) and not os.path.exists(files.path_of(root)):
        print(f"{root} is gone. What is reviewed is the index of it, with its thumbnails.", flush=True)
    labels = np.array(index.labels)
    if len(set(labels) - {""}) < 2:
        raise InputError(f"{folder} has fewer than two labels. Put the photos of each class in a folder.")
    found, labels = findings(index, labels), labels[labels != ""]
    table, page = index.files.path("review.csv"), index.files.path("review.html")
    with files.atomic_write(table, "w") as file:
        csv.writer(file).writerows([Finding._fields, *found])
    with files.atomic_write(page, "w") as file:
        file.write(_page(index, found, summary(found, labels)))
    print("\n".join([*_first(found), *summary(found, labels), table, page]))


def _photos_and_model(path):
    """Returns the photos that a path stands for, and the model that embeds them: of a run, its own."""
    config = os.path.join(path, "config.json")
    if not os.path.isfile(config):
        return path, ""
    records = of_run.get_config(config).data.records or os.path.join(path, "records")
    if not os.path.isdir(records):
        raise InputError(f"The records of {path} are not at {records}. Start where it was trained.")
    return records, path


def _first(found):
    """Yields a sentence about each of the first findings of a kind."""
    for one in [one for one in found if one.what == "label"][:_PRINTED]:
        yield f"{one.id}: {one.suggestion!r} is likelier than {one.label!r} (by {one.margin:.2f})"
    for one, *_ in _groups(found, "one class")[:_PRINTED]:
        yield f"{one.label!r} and {one.suggestion!r} look like one class: their photos mix."
    for group in _groups(found, "two classes")[:_PRINTED]:
        yield (
            f"{group[0].label!r} looks like two classes: photos such as {group[0].id} are far from those such"
            f" as {group[-1].id}."
        )


def summary(found: Sequence[Finding], labels: np.ndarray) -> list[str]:
    """Returns the sentences about all findings: how many there are, and whether to believe them.

    Args:
        found: see `findings`.
        labels: `[photos]` texts, those of photos that have one.
    """
    doubted, copies, mixed, double = (
        len(_groups(found, what)) for what in ("label", "copies", "one class", "two classes")
    )
    said = [
        f"{doubted:,} of {len(labels):,} labels look wrong, the first ones most;"
        f" {copies:,} groups of near copies have different labels; {mixed:,} pairs of classes look like one,"
        f" {double:,} classes like two."
    ]
    if doubted > UNSURE * len(labels):
        said.append(
            "So many doubted labels mean that the model hardly tells some of these classes apart: most of the"
            " labels may be right. Look at the first ones, and stop where they are."
        )
    if double > MANY * len(set(labels.tolist())):
        said.append(
            "So many classes look like two that the model likely tells their photos apart by something else,"
            " such as the side from which they show it."
        )
    return said


def _groups(found, what):
    """Returns the findings of a kind, group by group."""
    of_kind = [one for one in found if one.what == what]
    return [list(group) for _, group in itertools.groupby(of_kind, key=lambda one: one.group)]


def findings(index: SearchIndex, labels: np.ndarray) -> list[Finding]:
    """Returns what looks wrong: doubtful labels, the most doubtful first, then copies, then classes.

    Args:
        index: the index.
        labels: `[rows]` texts; "" for photos without a label.
    """
    names, numbers = np.unique(labels, return_inverse=True)
    embeddings = np.asarray(index.embeddings)
    numbers = np.where(labels == "", -1, numbers)
    ids, texts, found = index.ids.tolist(), labels.tolist(), []
    for rank, (row, suggestion, margin) in enumerate(doubtful_labels(embeddings, numbers), 1):
        found.append(Finding("label", rank, ids[row], texts[row], str(names[suggestion]), round(margin, 4)))
    label_of = dict(zip(ids, texts))
    for number, group in enumerate(_differing_copies(index, label_of), 1):
        found += [Finding("copies", number, one, label_of[one], "", 0.0) for one in group]
    for number, pair in enumerate(mixed_classes(embeddings, numbers), 1):
        for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
            rows = np.flatnonzero(numbers == one)
            nearest = np.argsort(-embeddings[rows] @ embeddings[numbers == other].mean(axis=0))
            found += [
                Finding("one class", number, ids[row], texts[row], str(names[other]), 0.0)
                for row in rows[nearest[:_EXAMPLES]]
            ]
    for number, double in enumerate(double_classes(embeddings, numbers), 1):
        for part, rows in enumerate(double.parts, 1):
            found += [
                Finding("two classes", number, ids[row], texts[row], f"part {part}", 0.0) for row in rows
            ]
    return found


def _differing_copies(index, label_of):
    """Returns groups of ids of near copies with different labels, by embeddings and by pixels."""
    copies = []
    for group in index.duplicates(1 - APART * (1 - DUPLICATE)):
        if len({label_of[one] for one in group} - {""}) < 2:
            continue
        group = [one for one in group if os.path.exists(index.thumbnail(one))]
        seen = np.array([_thumbnail(index.thumbnail(one)) for one in group])
        copies += [[group[row] for row in rows] for rows in near_copies(seen)]
    return [group for group in copies if len({label_of[one] for one in group} - {""}) > 1]


def _thumbnail(path):
    with open(path, "rb") as file:
        return thumbnail(file.read())


def _page(index, found, said):
    """The findings with the thumbnails of the index, beside which the page lies."""
    source = importlib.resources.files("tfrank.search").joinpath("review.html.jinja").read_text("utf-8")
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(source)
    labels, doubted, near = _groups(found, "label"), collections.defaultdict(list), {}
    for (one,) in labels[:_SHOWN]:
        doubted[one.suggestion].append(one.id)
    for label, ids in doubted.items():
        near |= zip(ids, (one.ids for one in index.search(ids, k=3, where={"label": label})))

    def thumbnail_of(image_id):
        return os.path.relpath(index.thumbnail(image_id), index.files.folder)

    # Of each class or part a few examples.
    classes = [
        [
            list(itertools.islice(some, _EXAMPLES))
            for _, some in itertools.groupby(group, key=lambda one: (one.label, one.suggestion))
        ]
        for what in ("one class", "two classes")
        for group in _groups(found, what)
    ]
    return template.render(
        said=said,
        labels=labels[:_SHOWN],
        copies=_groups(found, "copies")[:_SHOWN],
        classes=classes[:_SHOWN],
        left=len(labels) - _SHOWN,
        near=near,
        thumbnail=thumbnail_of,
    )


def command() -> None:
    """The command tfrank review."""
    commands.run(main, parse=functools.partial(commands.parse_with_help, main.__module__, words=True))


if __name__ == "__main__":
    command()
