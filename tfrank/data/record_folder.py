"""A folder of prepared records: the names of its files, its summary, ground truth and splits."""

import collections
import csv
import hashlib
import io
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfrank.common import checks, files, json_files
from tfrank.common.checks import InputError
from tfrank.data.index import HEADER, RecordIndex, index_path, load_index
from tfrank.data.prepare.scan import scan

_LOG = logging.getLogger(__name__)

# Files in a folder of records beside shards and their index.
SUMMARY, SKIPPED, GROUND_TRUTH = "prepared.json", "skipped.csv", "ground_truth.json"
DUPLICATES, NEAR_COPIES = "duplicates.csv", "near_copies.csv"
# In place of its split, for a photo that was left out.
DROPPED = "dropped"
_REMEDY = "Delete the folder and prepare it again."
_SPLIT = json_files.record(
    {"images": json_files.whole(), "shards": json_files.list_of(json_files.file_name())}, others=True
)
_SUMMARY = json_files.record(
    {"splits": json_files.dict_of(_SPLIT, json_files.file_name())},
    {
        "source_dir": json_files.text(),
        "source_state": json_files.list_of(json_files.whole()),
        "source_sha256": json_files.text(),
        "images": json_files.dict_of(json_files.whole()),
        "advice": json_files.list_of(json_files.text()),
    },
    others=True,
)
_GROUND_TRUTH = json_files.dict_of(json_files.dict_of(json_files.list_of(json_files.text())))


class Copy(NamedTuple):
    """A photo that has near copies.

    Attributes:
        group: number of the group of near copies, from 1.
        split: its split, or "dropped" if it was left out of train.
        label: the name of its class.
        id: its id.
    """

    group: int
    split: str
    label: str
    id: str


def identity_of_source(path: str, root: str = "") -> dict[str, Any]:
    """Returns what a summary says of the place of a source and, if it is one file, of its content.

    Args:
        path: the source; "" for none.
        root: the folder in a store that the file was copied from, else any local one.
    """
    place = {"source_dir": _place(path, root)}
    if not os.path.isfile(path):
        return place
    return place | {"source_state": _state(path), "source_sha256": _sha256(path)}


def is_of_another_source(summary: Mapping[str, Any], folder: str, path: str, root: str = "") -> bool:
    """Returns whether records are of another path that still exists, or of a file that was another then.

    A source may be moved or deleted once its records are written.

    Args:
        summary: the summary of a folder of records.
        folder: that folder.
        path, root: see `identity_of_source`.
    """
    if not path or not os.path.exists(path) or not summary.get("source_dir"):
        return False
    there, here = summary["source_dir"], _place(path, root)
    if there != here:
        return os.path.exists(there) or (files.is_remote(there) and files.is_remote(here))
    if not os.path.isfile(path) or summary.get("source_state") == _state(path):
        return False
    if "source_sha256" not in summary:  # As an earlier version wrote it, which looked at embeddings alone.
        is_newer = os.path.getmtime(path) > os.path.getmtime(os.path.join(folder, SUMMARY))
        return is_newer and summary.get("source") == "embeddings"
    return summary["source_sha256"] != _sha256(path)


def _place(path, root):
    if files.is_remote(root):
        return f"{root}/{os.path.basename(path)}"
    return os.path.realpath(path) if path else ""


def _state(path):
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns // 1000]


def _sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shared(copies: Sequence[Copy], split: str, other: str) -> list[Copy]:
    """Returns the photos of a split that have a near copy in another split, or in the same one.

    >>> copies = [Copy(1, "train", "owl", "a"), Copy(1, "test", "robin", "b"), Copy(2, "test", "wren", "c")]
    >>> [copy.id for copy in shared(copies, "test", "train")]
    ['b']
    """
    others = [copy for copy in copies if copy.split.startswith(other)]
    counts = collections.Counter(copy.group for copy in others)
    own = split == other
    return [one for one in copies if one.split.startswith(split) and counts[one.group] > own]


def save_copies(folder: str, copies: Sequence[Copy]) -> None:
    """Writes `near_copies.csv`; nothing if there are none."""
    if copies:
        rows = io.StringIO(newline="")
        csv.writer(rows).writerows([Copy._fields, *copies])
        with files.atomic_write(os.path.join(folder, NEAR_COPIES)) as file:
            file.write(rows.getvalue().encode(errors="surrogateescape"))


def folder_of(index: RecordIndex | None) -> str:
    """Returns the folder of the records of an index; "" without records."""
    return os.path.dirname(index.shards[0]) if index is not None and index.shards else ""


def load_copies(folder: str) -> list[Copy]:
    """Loads the near copies of a folder of records, local or remote; none if it is "" or has no list.

    Raises:
        InputError: the list is damaged.
    """
    if not folder:
        return []
    path = os.path.join(folder, NEAR_COPIES)
    data = _read(path)
    try:
        rows = csv.reader(io.StringIO((data or b"").decode(errors="surrogateescape"), newline=""))
        return [Copy(int(group), *others) for group, *others in list(rows)[1:]]
    except (ValueError, TypeError, csv.Error):
        raise InputError(f"{path} is damaged. {_REMEDY}") from None


def load_summary(folder: str) -> dict[str, Any] | None:
    """Loads `prepared.json` of a folder of records, local or remote; None if the folder is not complete.

    Raises:
        InputError: the file is damaged.
    """
    return _load_json(os.path.join(folder, SUMMARY), _SUMMARY)


def load_ground_truth(folder: str) -> dict[str, dict[str, list[str]]] | None:
    """Loads the graded relevance of records, {query id: {grade: gallery ids}}; None if they have none.

    Raises:
        InputError: the file is damaged.
    """
    return _load_json(os.path.join(folder, GROUND_TRUTH), _GROUND_TRUTH)


def open_split(folder: str, split: str) -> RecordIndex:
    """Opens the index of a split of prepared records; rebuilds it from the shards if it is missing.

    Raises:
        InputError: there is no such split, or its records or index are damaged.
    """
    splits = (load_summary(folder) or {}).get("splits", {})
    if split not in splits:
        known = sorted(splits)
        counts = ", ".join(f"{name} ({splits[name]['images']:,} images)" for name in known)
        remedy = f"It has {counts}." if known else "Prepare it: tfrank prepare --help"
        hint = checks.did_you_mean(str(split), known)
        raise InputError(f"{folder} has no records of a split {split!r}.{hint} {remedy}")
    path = index_path(folder, split)
    if not tf.io.gfile.exists(os.path.join(path, HEADER)):
        _LOG.info(f"The record index {path} is missing. It is built again from the records.")
        paths = [os.path.join(folder, name) for name in splits[split]["shards"]]
        scan(paths, processes=os.cpu_count()).save(path)
    return load_index(path)


def _load_json(path, check):
    """Loads a JSON file, which may be remote; None if it does not exist."""
    data = _read(path)
    return None if data is None else json_files.parse(data, check, path, _REMEDY)


def _read(path):
    """The bytes of a file, which may be remote; None if it does not exist."""
    files.check_reachable(path)
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()
    except (OSError, tf.errors.OpError) as error:
        raise InputError(f"{path} cannot be read ({error}). {_REMEDY}") from None
