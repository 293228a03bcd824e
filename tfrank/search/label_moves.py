"""Labels follow photos that were moved or renamed, and leave those that are another picture by now.

A photo is known by its id, which is the path of its file, and so are the labels that people gave. A file that
moves, or is renumbered with all others, takes its label along: it is found by its SHA-256. A file whose bytes
changed under its name keeps its label if it is a new form of the picture (turned, brightened, with other
metadata), and not if it is another picture, as a camera makes that counts from one again.

A photo that is sent to a server with a label has that one: what was said before of its id, or of a photo with
this file that is gone, is taken back.

labels-gone.csv has the SHA-256 of photos that have a label and are gone, by their ids: one that comes back
elsewhere, or one that comes under the same name and is another, is known by it.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tfrank.common import files
from tfrank.common.csv_text import csv_text
from tfrank.search import labels
from tfrank.search.index_folder import IndexFolder, Version, matrix

GONE = "labels-gone.csv"
_COLUMNS = ("id", "sha256")
# A changed file shows the picture that it showed if at most this share of the index is nearer to that.
NEARER = 0.02


class Followed(NamedTuple):
    """What became of labels.

    Attributes:
        moved: number of labels that followed their photos.
        taken_back: ids of photos that are another picture than the one that had the label.
    """

    moved: int = 0
    taken_back: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Returns what a person is told; nothing if nothing happened.

        >>> Followed(2).sentences()
        ['Labels that followed their photos to another path: 2.']
        """
        told = []
        if self.moved:
            told.append(f"Labels that followed their photos to another path: {self.moved:,}.")
        if self.taken_back:
            told.append(
                f"Labels taken back, as their files have another picture now: {len(self.taken_back):,}; the"
                f" first: {self.taken_back[0]}. The page can undo it."
            )
        return told


def follow(index: IndexFolder, old: Version | None, parts: Collection[str], *, model: str) -> Followed:
    """Lets the labels of an index follow its photos, before a version is published.

    Killed at any moment, it is completed by the next update.

    Args:
        index: the index.
        old: the current version.
        parts: the files of embeddings of the next version.
        model: fingerprint of its model. With another than before, changed files keep their labels.

    Raises:
        InputError: a file of the labels is damaged or cannot be written.
    """
    spoken = labels.read(index.folder)
    if not spoken:
        return Followed()
    old_parts = old.parts if old else ()
    # The photos of files that both versions have are as they were.
    before = _digests(index, [part for part in old_parts if part not in parts])
    now = _digests(index, [part for part in parts if part not in old_parts])
    gone = _gone(index.folder)
    sent = _sent(index, [part for part in parts if part not in old_parts]) - before.keys()
    if overruled := spoken.keys() & (sent | _of_files(gone, {now[key] for key in sent})):
        labels.follow(index.folder, {}, overruled)
        spoken = {key: label for key, label in spoken.items() if key not in overruled}
    known = gone | {key: before[key] for key in spoken.keys() & before.keys()}
    changed = {key for key in spoken.keys() & known.keys() & now.keys() if _differ(known[key], now[key])}
    # Those that came back as another file, and those that have the file of another photo.
    files_before = {*before.values()}
    other = changed - before.keys() | {key for key in changed if now[key] in files_before}
    if old and old.model == model:
        other |= _other_pictures(index, old.parts, parts, sorted(changed - other))
    left = {key for key in spoken.keys() & known.keys() if key not in now or key in other}
    # Copies in other files of the index count too, after photos that are new.
    everywhere = _digests(index, parts) if left else {}
    fresh = now.keys() - before.keys()
    free = sorted(everywhere.keys() - spoken.keys() | other, key=lambda one: (one not in fresh, one))
    # That a photo belongs to no group was said of its old group, and does not follow.
    moves = _pairs({key: known[key] for key in left if spoken[key]}, {key: everywhere[key] for key in free})
    taken_back = tuple(sorted(other - moves.keys() - {*moves.values()}))
    if moves or taken_back:
        labels.follow(index.folder, moves, taken_back)
    missing = known.keys() & spoken.keys() - now.keys() - moves.keys()
    if (gone_now := {key: known[key] for key in missing if known[key]}) != gone:
        _write_gone(index.folder, gone_now)
    return Followed(len(moves), taken_back)


def _differ(one: str | None, other: str | None) -> bool:
    """Returns whether two digests are of different files; one that is not known is not different."""
    return bool(one and other) and one != other


def _pairs(left: Mapping[str, str], free: Mapping[str, str]) -> dict[str, str]:
    """Returns a free id with the digest of each id, by that id, in the order of both.

    >>> _pairs({"a": "1f", "b": "2e", "f": "1f"}, {"c": "3d", "d": "1f", "e": "1f", "g": "1f"})
    {'a': 'd', 'f': 'e'}
    """
    owners: dict[str, list[str]] = {}
    for key, digest in sorted(left.items(), reverse=True):
        owners.setdefault(digest, []).append(key)
    return {owners[digest].pop(): key for key, digest in free.items() if digest and owners.get(digest)}


def _other_pictures(
    index: IndexFolder, before: Iterable[str], parts: Collection[str], ids: list[str]
) -> set[str]:
    """Returns the ids, among these, whose embeddings are far from those that they had."""
    if not ids:
        return set()
    was, now = (_embeddings(index, some, ids) for some in (before, parts))
    tables = (index.read_part(part, ["embedding"]) for part in parts)
    return {key for key, share in zip(ids, nearer(was, now, map(matrix, tables))) if share > NEARER}


def nearer(was: np.ndarray, now: np.ndarray, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Returns, for each changed photo, the share of an index that is nearer to what it was than it is now.

    Args:
        was, now: `[photos, dim]` embeddings before and after the change.
        blocks: the embeddings of the index, `[rows, dim]` each.

    >>> was, now = np.float32([[1, 0]]), np.float32([[0, 1]])
    >>> nearer(was, now, [np.float32([[0.6, 0.8]]), now]).tolist()
    [0.5]
    """
    own = np.sum(was * now, axis=1, keepdims=True) + 1e-6
    found = [(np.sum(was @ some.T > own, axis=1), len(some)) for some in blocks]
    return sum(count for count, _ in found) / sum(rows for _, rows in found)


def _embeddings(index: IndexFolder, parts: Iterable[str], ids: list[str]) -> np.ndarray:
    """Returns the embeddings of ids, `[ids, dim]`."""
    found, wanted = {}, pa.array(ids)
    for part in parts:
        table = index.read_part(part, ["id", "embedding"])
        table = table.filter(pa.compute.is_in(table["id"], value_set=wanted))
        found |= dict(zip(table["id"].to_pylist(), matrix(table)))
    return np.stack([found[key] for key in ids])


def _digests(index: IndexFolder, parts: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of the file of each photo, by id; "" or None where it is not known."""
    found: dict[str, str] = {}
    for part in parts:
        if index.has(part, "file_sha256"):
            table = index.read_part(part, ["id", "file_sha256"])
            found |= dict(zip(*(column.to_pylist() for column in table.columns)))
        else:
            found |= dict.fromkeys(index.read_part(part, ["id"])["id"].to_pylist(), "")
    return found


def _sent(index: IndexFolder, parts: Iterable[str]) -> set[str]:
    """Returns the ids of photos that were sent to a server with a label."""
    found: set[str] = set()
    for part in parts:
        for key, path, label in zip(*index.read_part(part, ["id", "path", "label"]).to_pydict().values()):
            if label and not path:
                found.add(key)
    return found


def _of_files(known: Mapping[str, str], digests: Collection[str]) -> set[str]:
    """Returns the ids of files with one of these digests."""
    return {key for key, digest in known.items() if digest and digest in digests}


def _gone(folder: str) -> dict[str, str]:
    """Returns the digests of photos that are gone, by id."""
    return {row[0]: row[1] for _, row in labels.rows(folder, GONE, _COLUMNS)}


def _write_gone(folder: str, gone: Mapping[str, str]) -> None:
    with files.atomic_write(os.path.join(folder, GONE), "w") as file:
        file.write(csv_text([_COLUMNS, *sorted(gone.items())]))
