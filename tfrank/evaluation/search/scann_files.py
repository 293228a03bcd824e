"""An index in a folder: arrays without pickles, what ScaNN wrote, and a manifest that names them all.

    index.json      the manifest: settings, and of which folder which files of which size and checksum
    <32 digits>/    rows.npy, ids.npy, row_of.npy, and scann/ with ScaNN's own files

A save writes a new folder and then replaces the manifest, so there is an old index or a new one at any time.
Who reads a folder holds a shared lock on it, and a save removes only what nobody holds.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from typing import Any

import google_crc32c
import numpy as np

from tfrank.common import files
from tfrank.common.checks import InputError

MANIFEST = "index.json"
FORMAT = 1
# ScaNN's copy of the rows. While the gallery is what ScaNN holds, there is no other.
DATASET = os.path.join("scann", "dataset.npy")
# ScaNN's own list of its files.
ASSETS = os.path.join("scann", "scann_assets.pbtxt")
# The form that it has, in which each path is in one piece.
ASSETS_FORM = re.compile(r'(assets \{\s+asset_type: \w+\s+asset_path: "[^"\\]+"\s*\}\s*)*')
# What a file system says that knows no locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP)
# Bytes that are read at a time for a checksum.
CHUNK = 2**20
# The name of a folder of one save.
SAVED = re.compile(r"[0-9a-f]{32}")


def save(
    folder: str, rows: np.ndarray, ids: np.ndarray, row_of: np.ndarray, searcher: Any, settings: dict
) -> None:
    """Writes an index; see `load` for its parts."""
    folder = os.fspath(folder)
    if files.is_remote(folder):
        raise InputError(f"Cannot save an index to {folder}: ScaNN writes to local folders. Copy it there.")
    folder = os.path.abspath(files.make_folder(folder))
    files.check_room(os.path.join(folder, MANIFEST), 2 * rows.nbytes + ids.nbytes)
    name = uuid.uuid4().hex
    place = os.path.join(folder, name)
    try:
        _write(place, rows, ids, row_of, searcher)
        manifest = {"format": FORMAT, "folder": name, "files": _synced(place), "settings": settings}
        files.write_json(os.path.join(folder, MANIFEST), manifest)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    # What an earlier save wrote, or began to. What a reader holds now goes with a later save.
    for other in os.listdir(folder):
        if SAVED.fullmatch(other) and other != name:
            with contextlib.suppress(OSError), _locked(os.path.join(folder, other), fcntl.LOCK_EX):
                shutil.rmtree(os.path.join(folder, other), ignore_errors=True)


@contextlib.contextmanager
def opened(folder: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, dict, str | None]]:
    """The parts of an index, whose files stay as long as the block runs, whoever saves meanwhile.

    Yields:
        rows, as a memory map; ids; the gallery row of each of ScaNN's rows; the settings; the folder of
        ScaNN's files, or None for brute force.
    """
    path = os.path.join(os.path.abspath(folder), MANIFEST)
    with contextlib.ExitStack() as held:
        try:
            manifest, place = _hold(path, held)
            parts = _parts(place, manifest)
        # What a damaged or hand-edited file makes parsers raise is no short list.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else error
            raise InputError(
                f"There is no whole index in {folder} ({reason}). Build and save it again."
            ) from None
        yield parts


def _hold(path: str, held: contextlib.ExitStack) -> tuple[dict, str]:
    """The manifest at a path and the folder that it names, which is locked against removal."""
    manifest, place = None, ""
    # Read again once the folder is locked: a save may have replaced both before that.
    while manifest != (seen := _manifest(path)):
        manifest, place = seen, os.path.join(os.path.dirname(path), seen["folder"])
        held.close()
        with contextlib.suppress(FileNotFoundError):
            held.enter_context(_locked(place, fcntl.LOCK_SH))
    return manifest, place


def _manifest(path: str) -> dict:
    """The manifest at a path; ValueError where it is of another format."""
    _refuse_link(path)
    with open(path) as file:
        manifest = json.load(file)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{MANIFEST} is of another format")
    if not isinstance(manifest.get("folder"), str) or not SAVED.fullmatch(manifest["folder"]):
        raise ValueError(f"{MANIFEST} names no folder of a save")
    entries = manifest.get("files")
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ValueError(f"{MANIFEST} does not list the index's files")
    return manifest


@contextlib.contextmanager
def _locked(place: str, kind: int) -> Iterator[None]:
    """Holds a lock on a folder: waits to share it; BlockingIOError where it cannot be alone."""
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, kind if kind == fcntl.LOCK_SH else kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            os.close(handle)
            raise
    try:
        yield
    finally:
        os.close(handle)


def _parts(place: str, manifest: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict, str | None]:
    """What `opened` yields; ValueError where the parts are not whole or do not fit together."""
    names = _check(place, manifest["files"])
    # Maps are never longer than their files, whatever a header promises.
    rows, ids, row_of = (
        np.load(os.path.join(place, name), mmap_mode="r", allow_pickle=False)
        for name in ("rows.npy" if "rows.npy" in names else DATASET, "ids.npy", "row_of.npy")
    )
    if rows.ndim != 2 or rows.dtype != np.float32:
        raise ValueError(f"its rows are {rows.dtype} of shape {rows.shape}")
    if ids.shape != (len(rows),) or ids.dtype.kind not in "iU":
        raise ValueError(f"ids.npy has {ids.dtype} of shape {ids.shape} for {len(rows)} rows")
    scann = os.path.join(place, "scann") if ASSETS in names else None
    trained = np.load(os.path.join(place, DATASET), mmap_mode="r", allow_pickle=False) if scann else ids[:0]
    there = row_of[row_of >= 0]
    in_order = len(there) <= len(rows) and np.array_equal(there, np.arange(len(there)))
    if row_of.dtype.kind != "i" or row_of.shape != trained.shape[:1] or not in_order:
        raise ValueError("row_of.npy does not say which rows ScaNN holds")
    return rows, np.array(ids), np.array(row_of), dict(manifest["settings"]), scann


def _write(place: str, rows: np.ndarray, ids: np.ndarray, row_of: np.ndarray, searcher: Any) -> None:
    """Writes all but the manifest."""
    scann = os.path.join(place, "scann")
    os.makedirs(scann if searcher else place)
    if searcher:
        # Relative paths, so that the folder may be moved.
        searcher.serialize(scann, relative_path=True)
    if not searcher or not np.array_equal(row_of, np.arange(len(rows))):
        np.save(os.path.join(place, "rows.npy"), rows, allow_pickle=False)
    np.save(os.path.join(place, "ids.npy"), ids, allow_pickle=False)
    np.save(os.path.join(place, "row_of.npy"), row_of, allow_pickle=False)


def _files(place: str) -> list[str]:
    """The paths of all files in a folder, from there; ValueError where one, or a folder, is a link."""
    names = []
    for parent, folders, files_here in os.walk(place):
        for name in (*folders, *files_here):
            _refuse_link(os.path.join(parent, name))
        names += [os.path.relpath(os.path.join(parent, name), place) for name in files_here]
    return sorted(names)


def _refuse_link(path: str) -> None:
    if os.path.islink(path):
        raise ValueError(
            f"{os.path.basename(path)} is a link, which may lead anywhere: copy what it links to"
        )


def _synced(place: str) -> dict[str, dict]:
    """The size and the checksum of each file of a folder, once it is on the disk."""
    described = {}
    for name in _files(place):
        with open(os.path.join(place, name), "rb+") as file:
            os.fsync(file.fileno())
            described[name] = {"bytes": os.path.getsize(file.name), "crc32c": _checksum(file.name)}
    return described


def _checksum(path: str) -> int:
    checksum = google_crc32c.Checksum()
    with open(path, "rb") as file:
        for _ in checksum.consume(file, CHUNK):
            pass
    return int.from_bytes(checksum.digest(), "big")


def _check(place: str, described: dict[str, dict]) -> list[str]:
    """The files of a folder; ValueError unless they are these, whole, and no other.

    ScaNN ends the process where a file is missing, and unpickles a file of ids where there is one.
    """
    _refuse_link(place)
    names = _files(place)
    for name in names:
        if name.endswith((".pkl", ".pickle")):
            raise ValueError(f"{name} is a pickle, which could run any program when it is loaded")
    there = {name: os.path.getsize(os.path.join(place, name)) for name in names}
    for name in sorted(there.keys() | described.keys()):
        if there.get(name) != (size := described.get(name, {}).get("bytes")):
            raise ValueError(f"{name} has {there.get(name)} bytes and should have {size}")
    for name in names:
        if described[name].get("crc32c") != _checksum(os.path.join(place, name)):
            raise ValueError(f"{name} is damaged: its checksum is not that of what was saved")
    if ASSETS in names:
        with open(os.path.join(place, ASSETS), encoding="utf-8") as file:
            text = file.read()
        listed = [os.path.join("scann", path) for path in re.findall(r'"(.*?)"', text)]
        if not ASSETS_FORM.fullmatch(text) or not set(listed) <= set(names):
            raise ValueError(f"{ASSETS} does not list files of the index: {', '.join(listed)}")
    return names
