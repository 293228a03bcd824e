"""What people said of the labels of an index: labels.csv, beside its versions.

    id,label
    birds/7.jpg,robin
    birds/9.jpg,

A photo has the latest label that it was given; an empty one says that it belongs to no group. Photos without
a row keep the label that they were indexed with. labels-history.csv has what the last changes replaced, so
that they can be undone.
"""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.common.csv_text import csv_rows, csv_text

LABELS, HISTORY = "labels.csv", "labels-history.csv"
_COLUMNS, _HISTORY_COLUMNS = ("id", "label"), ("version", "id", "said", "label")
# A label is a word or a few, on one line; the server bounds them alike.
MOST_LETTERS, PRINTED = 200, r"[^\x00-\x1f\x7f]*"
# So many changes can be undone.
MOST_CHANGES = 100


class Stale(InputError):
    """Raised where somebody else changed the labels in between."""


class Said(NamedTuple):
    """What people said.

    Attributes:
        labels: by the id of each photo that something was said of its label; "" for none.
        version: a digest of the labels, so that equal labels have equal versions.
    """

    labels: dict[str, str]
    version: str


class _Change(NamedTuple):
    """A change: the version that it made, and the labels that it replaced, None where there was none."""

    version: str
    before: dict[str, str | None]


def read(folder: str) -> dict[str, str]:
    """Returns the labels that people gave, by id; "" for photos that belong to no group.

    Args:
        folder: the index folder. Without a labels.csv nothing was said.

    Raises:
        InputError: labels.csv is damaged; the message names the line.
    """
    return said(folder).labels


def said(folder: str) -> Said:
    """Returns the labels that people gave, and their version. Raises InputError as `read` does."""
    labels = _latest(rows(folder, LABELS, _COLUMNS), os.path.join(folder, LABELS))
    return Said(labels, _version(labels))


def parsed(data: bytes, path: str) -> dict[str, str]:
    """Returns the labels that a labels.csv of this content has, as `read` does; errors name the path."""
    return _latest(csv_rows(data, path, _COLUMNS), path)


def _latest(rows, path):
    """Returns the last word on each photo, also of a file that was written by hand."""
    return {key: _checked(label, f"{path}, line {line}: ") for line, (key, label) in rows}


def stamp(folder: str) -> tuple[int, ...]:
    """Returns what is another after labels.csv was changed; cheaper than to read it."""
    try:
        status = os.stat(os.path.join(folder, LABELS), follow_symlinks=False)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def change(folder: str, changes: Mapping[str, str | None], expected_version: str) -> str:
    """Gives labels to photos, and returns the new version. Killed at any moment, all are changed or none.

    Args:
        folder: the index folder.
        changes: the labels by id: "" for photos that belong to no group, None to take back what was said.
        expected_version: the version that the changes are made to.

    Raises:
        Stale: the labels have another version by now. Nothing is changed.
        InputError: a label is no line of text, or a file is damaged or cannot be written.
    """
    changes = {
        key: label if label is None else _checked(normalized(label), f"{key}: ")
        for key, label in changes.items()
    }
    return _replace(folder, expected_version, lambda *before: _changed(*before, changes))


def undo(folder: str, expected_version: str) -> str:
    """Takes back the change that made a version, and returns the version that is then. Raises as `change`."""

    def undone(labels, history):
        if not history:
            raise InputError("There is no change to undo.")
        # The change stays in the history, which is left out when it is read: also if this is killed halfway.
        return _with(labels, history[-1].before), history

    return _replace(folder, expected_version, undone)


def follow(folder: str, moves: Mapping[str, str], taken_back: Iterable[str]) -> None:
    """Gives labels to other photos, also in the changes that can be undone, and takes some back.

    Args:
        folder: the index folder.
        moves: the id of the photo that takes over the label, by the id of the one that has it. A label that
            it had itself is gone.
        taken_back: ids whose labels are taken back, as a change that can be undone.

    Raises:
        InputError: a file is damaged or cannot be written.
    """
    lost = set(moves.values()) - moves.keys()

    def moved(some):
        return {moves.get(key, key): label for key, label in some.items() if key not in lost}

    def followed(labels, history):
        labels, history = _changed(labels, history, dict.fromkeys({*taken_back} - lost))
        labels, made = moved(labels), []
        now = labels
        for before in (moved(one.before) for one in reversed(history)):
            made.insert(0, _Change(_version(labels), before))
            labels = _with(labels, before)
        return now, made

    _replace(folder, None, followed)


def undoable(folder: str) -> int:
    """Returns the number of photos that an undo would change; 0 if there is no change to undo."""
    history = _history_of(folder, said(folder).version)
    return len(history[-1].before) if history else 0


def merged(labels: Mapping[str, str], spoken: Mapping[str, str]) -> dict[str, str]:
    """Returns the labels of an index as people corrected them.

    >>> merged({"a": "wren", "b": "wren", "c": ""}, {"b": "", "c": "robin", "gone": "wren"})
    {'a': 'wren', 'b': '', 'c': 'robin'}
    """
    return {key: spoken.get(key, label) for key, label in labels.items()}


def gone(ids: Iterable[str], spoken: Mapping[str, str]) -> str:
    """Returns a sentence on labels of photos that an index does not have; "" if there are none.

    >>> gone(["a"], {"a": "wren", "b": "robin"})
    'Photos that are gone have 1 of the labels in labels.csv, which is kept.'
    """
    count = len(spoken.keys() - set(ids))
    verb = "is" if count == 1 else "are"
    return (
        f"Photos that are gone have {count:,} of the labels in {LABELS}, which {verb} kept." if count else ""
    )


def _with(labels, changes):
    """Returns labels with changes, of which None takes one back."""
    return {key: label for key, label in {**labels, **changes}.items() if label is not None}


def _changed(labels, history, changes):
    """Returns changed labels, and the history with the change."""
    before = {key: labels.get(key) for key, label in changes.items() if labels.get(key) != label}
    now = _with(labels, changes)
    return now, [*history, _Change(_version(now), before)][-MOST_CHANGES:] if before else history


def _replace(folder, expected_version, now_of):
    """Writes what `now_of(labels, history)` returns of them, under a lock between processes.

    Returns the version. None expects any version.
    """
    path = os.path.join(folder, LABELS)
    try:
        # Its lock lasts until the file is replaced, so that nobody else changes the labels meanwhile.
        with files.atomic_write(path, "w") as file:
            labels, version = said(folder)
            if expected_version not in (None, version):
                raise Stale("Somebody else changed the labels meanwhile. Nothing of yours was changed.")
            now, history = now_of(labels, _history_of(folder, version))
            # First, as a last change that did not come about is left out when it is read.
            with files.atomic_write(os.path.join(folder, HISTORY), "w") as log:
                log.write(csv_text([_HISTORY_COLUMNS, *_history_rows(history)]))
            file.write(_labels_text(now))
    except OSError as error:
        raise InputError(f"Cannot write to {folder} ({error.strerror}). No label was changed.") from error
    return _version(now)


def _history_of(folder: str, version: str) -> list[_Change]:
    """Returns the changes that led to a version, the last one last; none if it was made by hand."""
    history: list[_Change] = []
    for _, (made, key, known, label) in rows(folder, HISTORY, _HISTORY_COLUMNS):
        if not history or history[-1].version != made:
            history.append(_Change(made, {}))
        history[-1].before[key] = label if known == "yes" else None
    while history and history[-1].version != version:
        history.pop()
    return history


def _history_rows(history):
    for one in history:
        for key, label in one.before.items():
            yield one.version, key, "no" if label is None else "yes", label or ""


def rows(folder: str, name: str, columns: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Returns the rows of a table of the index with the numbers of their lines; none if there is no table."""
    path = os.path.join(folder, name)
    try:
        with files.open_below(folder, name) as file:
            data = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    return csv_rows(data, path, columns)


def normalized(label: str) -> str:
    """Returns a label as it is kept: é in the name of a Mac's folder is two characters, elsewhere one."""
    return unicodedata.normalize("NFC", label.strip())


def _checked(label: str, where: str) -> str:
    unicode = label.encode(errors="ignore").decode() == label
    if len(label) > MOST_LETTERS or not re.fullmatch(PRINTED, label) or not unicode:
        raise InputError(f"{where}A label has at most {MOST_LETTERS} letters, on one line.")
    return label


def _version(labels: Mapping[str, str]) -> str:
    return hashlib.sha256(_labels_text(labels).encode()).hexdigest()[:16]


def _labels_text(labels):
    return csv_text([_COLUMNS, *sorted(labels.items())])
