"""Makes and changes an index: embeds what is new, drops what is gone, then publishes a version."""

import collections
import csv
import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.common.progress import Progress
from tfrank.search import earlier, label_moves, structure
from tfrank.search.checking import Checked, by_thumbnail, checked_ahead
from tfrank.search.columns import further_columns, relabelled
from tfrank.search.embedder import BATCH, Embedder, copy_model
from tfrank.search.images import Listed
from tfrank.search.index_folder import (
    COLUMNS,
    MAPPED,
    MOST_SMALL,
    PART_ROWS,
    SMALL_SHARE,
    IndexFolder,
    Version,
    table_of,
)
from tfrank.search.moved import LeavingFiles

T = TypeVar("T")


class Update(NamedTuple):
    """What an update did.

    Attributes:
        version: the version that is current now.
        embedded, kept, removed: numbers of images.
        skipped: id and reason of each image, and of each folder, that could not be read.
        uploads: number of images among the embedded that were once sent to a server.
        unread: number of images of the version before that cannot be read now, and stay all the same.
        moved: number of new images whose file an image that left had; they are not embedded again.
        followed: what became of labels that people gave to photos that were moved or replaced.
    """

    version: Version
    embedded: int
    kept: int
    removed: int
    skipped: list[tuple[str, str]]
    uploads: int = 0
    unread: int = 0
    moved: int = 0
    followed: label_moves.Followed = label_moves.Followed()


class Published(NamedTuple):
    """The version that is current now, and what became of labels that people gave."""

    version: Version
    followed: label_moves.Followed = label_moves.Followed()


class _Row(NamedTuple):
    """The file and the row in it where an image stands, and what its file was when it was embedded.

    `digest` is the SHA-256 of the file; None in indexes of before it was kept. `mapped_from` is the model
    that embedded it, if the index's own did not, see `upgrading`.
    """

    part: str
    number: int
    size: int
    modified: int
    path: str
    digest: str | None
    mapped_from: str | None


def update(
    folder: str,
    embedder: Embedder,
    images: Sequence[Listed] | None,
    *,
    root: str = "",
    remove_others: bool = True,
    still_mapped: bool = False,
    target_recall: float | None = None,
    storage: str = "",
    quiet: bool = False,
) -> Update:
    """Brings an index folder up to date with images.

    An image whose id, size and time of change are those of a row of the same model is not embedded again,
    also if an interrupted update wrote that row. Where images have size and time in common, the SHA-256
    counts too. Nor is one whose file it had before, or an image that leaves. What an interrupted update wrote
    of images that are not given does not count. Images that cannot be read are skipped and listed in
    `skipped.csv`. None leaves the index because it, or its folder, cannot be read: its row stays. Another
    model embeds its thumbnail, until it can be read again.

    Args:
        folder: the index folder; made if it does not exist.
        embedder: the model. If it is another than before, all images are embedded again.
        images: the images, of unique ids. None: those that the index has, as they were indexed.
        root: the folder or file that the images came from, for readers.
        remove_others: whether images that are not given leave the index, but for those without a path, which
            were sent to a server; another model embeds their originals. If not, `skipped.csv` and what an
            interrupted update wrote stay as they are.
        still_mapped: whether images are left out that are gone from the index, or embedded, by now.
        target_recall: recall that an approximate search is built to. None: as before, at first 0.99.
        storage: what is held in memory of an embedding, of `codes.STORAGES`. "": as before, else float32.
        quiet: whether to show no progress.

    Raises:
        InputError: another process writes to the folder, or no image can be read.
    """
    with files.locked(folder):
        index = IndexFolder(folder)
        index.check_folders()
        old = index.current()
        same_model = old is not None and old.model == embedder.fingerprint
        if old and images is None:
            images, remove_others, root = list(earlier.as_indexed(index, old)), False, old.root
        elif old and not same_model and not remove_others:
            raise InputError(f"{folder} has another model by now, so images are not added with this one.")
        before = _rows_of(index, old.parts if old else ())
        wanted, refused = _wanted(images or (), before, still_mapped)
        uploads = {key for key, row in before.items() if not (same_model or row.path or key in wanted)}
        wanted |= {image.id: image for image in earlier.uploads(index, old, uploads)}
        unfinished = list(index.unfinished(embedder.fingerprint))
        rows = before if same_model else _of(wanted, _rows_of(index, index.earlier(embedder.fingerprint)))
        stays = _staying(rows | _of(wanted, _rows_of(index, unfinished)), wanted, remove_others)
        copy_model(embedder.folder, index.path("models", embedder.fingerprint))
        new, skipped = [image for image in wanted.values() if image.id not in stays], []
        leaving = LeavingFiles(index, _leaving(before, stays) if same_model and new else (), wanted)
        checked = checked_ahead(new, skipped, leaving)
        written = list(_embedded(index, embedder, checked, len(new), skipped, quiet))
        bad = {image_id for image_id, _ in skipped}
        now = {image.id: image.path for image in new if image.id not in bad}
        added, sent, moved, same = len(now), len(now.keys() & uploads), leaving.moved, len(leaving.same)
        unread = earlier.unread(before, wanted, bad) - stays.keys()
        if same_model:
            stays |= {key: before[key] for key in unread}
        elif old:
            seen = list(filter(None, map(by_thumbnail, earlier.thumbnails(index, old, unread, wanted))))
            written += _embedded(index, embedder, seen, 0, [], quiet=True)
            now |= {one.image.id: one.image.path for one in seen}
        if remove_others:
            _write_skipped(index.path("skipped.csv"), skipped := [*skipped, *refused])
        _check_any([*stays, *written], root, skipped)
        parts = [*_rewritten(index, embedder.fingerprint, stays, wanted), *written]
        now |= {key: row.path for key, row in stays.items()}
        unread, removed = unread & now.keys(), before.keys() - now.keys()
        keep = () if remove_others else unfinished
        about = (embedder.dim, parts, root, added + len(removed), target_recall, keep, storage)
        fresh = [key for key in now if key not in stays or stays[key] != before.get(key)]
        version, followed = publish(index, old, embedder.fingerprint, *about, fresh=fresh)
        if remove_others:
            earlier.remove_other_pictures(index, now)
        else:
            earlier.remove_pictures(index, removed)
        gone = len(removed - {*moved.values()})
        counts = added - len(moved) - same, len(stays.keys() - unread) + same, gone
        return Update(version, *counts, skipped, sent, len(unread), len(moved), followed)


def _check_any(images: Collection[str], root: str, skipped: Sequence[tuple[str, str]]) -> None:
    """Raises InputError if there is no image, with the reason why the first one was skipped."""
    if not images:
        reason = f"; the first, {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise InputError(f"No image of {root or 'the list'} can be read{reason}.")


def remove(folder: str, ids: Iterable[str], *, target_recall: float | None = None) -> Version:
    """Removes images from an index; returns the version without them.

    Raises:
        InputError: there is no index, or it does not have an id, or no image would be left.
    """
    with files.locked(folder):
        index = IndexFolder(folder)
        index.check_folders()
        old = index.existing()
        rows, ids = _rows_of(index, old.parts), set(ids)
        if unknown := sorted(ids - set(rows)):
            raise InputError(f"The index has no image {unknown[0]!r}.")
        stays = {key: row for key, row in rows.items() if key not in ids}
        if not stays:
            raise InputError("The index would have no image left. Remove its folder instead.")
        keep = list(index.unfinished(old.model))
        parts = _rewritten(index, old.model, stays, {})
        about = (old.dim, parts, old.root, len(ids), target_recall, keep)
        version = publish(index, old, old.model, *about).version
        earlier.remove_pictures(index, ids)
        return version


def _rows_of(index: IndexFolder, parts: Iterable[str]) -> dict[str, _Row]:
    """Returns the rows of files of embeddings, by id."""
    rows = {}
    for part in parts:
        optional = [name for name in ("file_sha256", MAPPED) if index.has(part, name)]
        table = index.read_part(part, ["id", "bytes", "modified", "path", *optional])
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        nothing = itertools.repeat(None)
        always = (columns[name] for name in ("id", "bytes", "modified", "path"))
        others = (columns.get(name, nothing) for name in ("file_sha256", MAPPED))
        for number, (key, *known) in enumerate(zip(*always, *others)):
            rows[key] = _Row(part, number, *known)
    return rows


def _of(wanted: Collection[str], rows: Mapping[str, _Row]) -> dict[str, _Row]:
    """Returns the rows of these ids."""
    return {key: row for key, row in rows.items() if key in wanted}


def _wanted(
    images: Iterable[Listed], before: Mapping[str, _Row], still_mapped: bool
) -> tuple[dict[str, Listed], list[tuple[str, str]]]:
    """Returns the images by id, and those whose id is that of an image sent to a server, with the reason.

    With `still_mapped`, images that are not mapped before are in neither.
    """
    wanted, refused = {}, []
    for image in images:
        if still_mapped and not (image.id in before and before[image.id].mapped_from):
            continue
        if image.path and image.id in before and not before[image.id].path:
            refused.append((image.id, "an image that was sent to the server has this id"))
        else:
            wanted[image.id] = image
    return wanted, refused


def _leaving(rows: Mapping[str, _Row], stays: Collection[str]) -> Iterator[tuple[str, str, int]]:
    """Yields id, file and number of the rows that do not stay as they are and that the model embedded."""
    for key, row in rows.items():
        if key not in stays and not row.mapped_from:
            yield key, row.part, row.number


def _staying(rows: Mapping[str, _Row], wanted: Mapping[str, Listed], remove_others: bool) -> dict[str, _Row]:
    """Returns the rows of images that are embedded as they are, or that are not given and need not be.

    A file has changed if its size or time has. Where several have the same, they may have changed places:
    each is read, and has changed if its SHA-256 has.
    """
    times = collections.Counter((row.size, row.modified) for row in rows.values())

    def stays(row: _Row, image: Listed | None) -> bool:
        if image is None:
            return not remove_others or not row.path
        if row.mapped_from or (row.size, row.modified) != (image.size, image.modified):
            return False
        return times[row.size, row.modified] == 1 or row.digest in (None, _digest(image))

    return {key: row for key, row in rows.items() if stays(row, wanted.get(key))}


def _digest(image: Listed) -> str:
    """Returns the SHA-256 of the file of an image; "" if it cannot be read."""
    try:
        return hashlib.sha256(image.read()).hexdigest()
    except OSError:
        return ""


def _embedded(
    index: IndexFolder,
    embedder: Embedder,
    images: Iterable[Checked],
    count: int,
    skipped: Sequence[tuple[str, str]],
    quiet: bool,
) -> Iterator[str]:
    """Embeds images and yields the name of each file that is written; `count` and `skipped` give progress."""
    progress, done = Progress("embedding image", count), 0
    files.make_folder(index.path("thumbnails"))
    for some in blocks(images, PART_ROWS):
        embeddings = []
        for batch in blocks(some, BATCH):
            rows = iter(embedder.embed([one.encoded for one in batch if one.embedding is None]))
            embeddings += [next(rows) if one.embedding is None else one.embedding for one in batch]
            done += len(batch)
            if not quiet:
                seen = done + len(skipped)
                progress.show(seen, always=seen == count)
        for one in some:
            files.replace_file(index.thumbnail(one.image.id), one.thumbnail)
            if one.original:
                files.make_folder(index.path("originals"))
                files.replace_file(index.original(one.image.id), one.original)
        yield index.write_part(table_of(_columns(some), np.stack(embeddings)), embedder.fingerprint)


def blocks(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields lists of `size` values; the last may be shorter."""
    values = iter(values)
    while block := list(itertools.islice(values, size)):
        yield block


def _columns(some: Sequence[Checked]) -> dict[str, pa.Array]:
    """Returns the columns of images that were embedded."""
    fixed = [
        (image.id, image.path, image.label, one.width, one.height, image.size, image.modified, one.digest)
        for image, one in zip((one.image for one in some), some)
    ]
    columns = {name: pa.array(values, kind) for (name, kind), values in zip(COLUMNS.items(), zip(*fixed))}
    return columns | further_columns([one.image for one in some])


def _rewritten(
    index: IndexFolder, model: str, stays: Mapping[str, _Row], wanted: Mapping[str, Listed]
) -> list[str]:
    """Returns files that hold just the rows that stay, with their present labels and columns.

    Files that need no change keep their names. Many small files are joined.
    """
    numbers: dict[str, list[int]] = {}
    listed = {stays[key].part for key in wanted.keys() & stays.keys()}
    for row in stays.values():
        numbers.setdefault(row.part, []).append(row.number)
    parts, small = [], []
    for part, rows in numbers.items():
        few = len(rows) < SMALL_SHARE * PART_ROWS
        if not few and part not in listed and len(rows) == index.rows(part):
            parts.append(part)
            continue
        table = index.read_part(part)
        now = relabelled(table.take(pa.array(sorted(rows))), wanted)
        if few:
            small.append((part, table, now))
        else:
            parts.append(part if now.equals(table) else index.write_part(now, model))
    if len(small) > MOST_SMALL:
        joined = pa.concat_tables([now for _, _, now in small], promote_options="permissive")
        return [*parts, index.write_part(joined, model)]
    return [
        *parts,
        *(part if now.equals(table) else index.write_part(now, model) for part, table, now in small),
    ]


def publish(
    index: IndexFolder,
    old: Version | None,
    model: str,
    dim: int,
    parts: Sequence[str],
    root: str,
    changed: int,
    target_recall: float | None,
    keep: Collection[str] = (),
    storage: str = "",
    *,
    fresh: Collection[str] = (),
) -> Published:
    """Publishes a version of these files, with a search structure if it needs one, see `structure.added`.

    A structure of another storage, or for another recall, is built anew. At the last moment, as that takes
    time in which people give labels, these follow their photos.
    """
    storage = storage or (old.storage if old else "float32")
    if target_recall is None:
        target_recall = old.target_recall if old else Version.target_recall
    checks.number("target_recall", target_recall, above=0, at_most=1)
    number = (old.number if old else 0) + 1
    rows = sum(index.rows(part) for part in parts)
    same = old if old and old.model == model else None
    former = "" if old is None else old.before if same else old.model
    searched = {"storage": storage, "target_recall": target_recall}
    version = Version(number, model, dim, tuple(parts), rows, root, before=former, **searched)
    same_rows = old and (old.model, old.parts, old.root) == (model, version.parts, root)
    if same_rows and structure.is_as(old, version) and structure.readable(index, old):
        return Published(old)
    version = structure.added(index, version, same, changed, fresh)
    followed = label_moves.follow(index, old, parts, model=model)
    index.publish(version, keep)
    return Published(version, followed)


def _write_skipped(path: str, skipped: Sequence[tuple[str, str]]) -> None:
    """Writes the images that were skipped, with the reasons; removes the file if there are none."""
    if not skipped:
        files.remove(path)
        return
    with files.atomic_write(path, "w") as file:
        csv.writer(file).writerows([("id", "reason"), *skipped])
