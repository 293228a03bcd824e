"""An index in a folder: arrays without pickles, ScaNN's own files, and a manifest that lists them all.

    index.json      the manifest: settings, the current folder, and the size and checksum of each file in it
    <32 digits>/    rows.npy, ids.npy, row_of.npy, and scann/ with ScaNN's own files

A save writes a new folder and then replaces the manifest, so at any time there is a whole index, old or new.
A reader of a folder holds a shared lock on it, and a save removes only folders that nobody has locked.
"""

import contextlib
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
# ScaNN's copy of the rows. While the gallery equals what ScaNN holds, it is the only copy.
DATASET = os.path.join("scann", "dataset.npy")
# ScaNN's own list of its files.
ASSETS = os.path.join("scann", "scann_assets.pbtxt")
# The expected form of that list, with each path in one piece.
ASSETS_FORM = re.compile(r'(assets \{\s+asset_type: \w+\s+asset_path: "[^"\\]+"\s*\}\s*)*')
# Bytes read at a time for a checksum.
CHUNK = 2**20
# The name of the folder written by one save.
SAVED = re.compile(r"[0-9a-f]{32}")


def save(
    folder: str, rows: np.ndarray, ids: np.ndarray, row_of: np.ndarray, searcher: Any, settings: dict
) -> None:
    """Writes an index; see `opened` for its parts."""
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
    # Remove what earlier saves wrote or began. A folder that a reader has locked is left to a later save.
    for other in os.listdir(folder):
        if SAVED.fullmatch(other) and other != name:
            with contextlib.suppress(OSError), _locked(os.path.join(folder, other), fcntl.LOCK_EX):
                shutil.rmtree(os.path.join(folder, other), ignore_errors=True)


@contextlib.contextmanager
def opened(folder: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, dict, str | None]]:
    """Opens an index; its files stay until the block ends, even if another process saves meanwhile.

    Yields:
        The rows, as a memory map; the ids; the gallery row of each of ScaNN's rows; the settings; the folder
        of ScaNN's files, or None for brute force.
    """
    path = os.path.join(os.path.abspath(folder), MANIFEST)
    with contextlib.ExitStack() as held:
        try:
            manifest, place = _hold(path, held)
            parts = _parts(place, manifest)
        # On damaged or edited files, parsers raise many kinds of errors.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else error
            raise InputError(
                f"There is no whole index in {folder} ({reason}). Build and save it again."
            ) from None
        yield parts


def _hold(path: str, held: contextlib.ExitStack) -> tuple[dict, str]:
    """The manifest at a path and the folder that it names; locks the folder against removal."""
    manifest, place = None, ""
    # Read the manifest again after locking the folder: a save may have replaced both in between.
    while manifest != (seen := _manifest(path)):
        manifest, place = seen, os.path.join(os.path.dirname(path), seen["folder"])
        held.close()
        with contextlib.suppress(FileNotFoundError):
            held.enter_context(_locked(place, fcntl.LOCK_SH))
    return manifest, place


def _manifest(path: str) -> dict:
    """Reads the manifest at a path; raises ValueError if it has another format."""
    _refuse_link(path)
    with open(path) as file:
        manifest = json.load(file)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{MANIFEST} has another format")
    if not isinstance(manifest.get("folder"), str) or not SAVED.fullmatch(manifest["folder"]):
        raise ValueError(f"{MANIFEST} names no folder of a save")
    entries = manifest.get("files")
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ValueError(f"{MANIFEST} does not list the index's files")
    return manifest


@contextlib.contextmanager
def _locked(place: str, kind: int) -> Iterator[None]:
    """Locks a folder: waits for a shared lock; raises BlockingIOError if an exclusive one is not free."""
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        files.lock(handle, kind if kind == fcntl.LOCK_SH else kind | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _parts(place: str, manifest: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict, str | None]:
    """Returns what `opened` yields; raises ValueError if a part is damaged or the parts do not match."""
    names = _check(place, manifest["files"])
    # NumPy refuses to map more than a file holds, so headers need no check of their own.
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
        raise ValueError("row_of.npy does not match the rows that ScaNN holds")
    return rows, np.array(ids), np.array(row_of), dict(manifest["settings"]), scann


def _write(place: str, rows: np.ndarray, ids: np.ndarray, row_of: np.ndarray, searcher: Any) -> None:
    """Writes everything except the manifest."""
    scann = os.path.join(place, "scann")
    os.makedirs(scann if searcher else place)
    if searcher:
        # Relative paths allow the folder to be moved.
        searcher.serialize(scann, relative_path=True)
    if not searcher or not np.array_equal(row_of, np.arange(len(rows))):
        np.save(os.path.join(place, "rows.npy"), rows, allow_pickle=False)
    np.save(os.path.join(place, "ids.npy"), ids, allow_pickle=False)
    np.save(os.path.join(place, "row_of.npy"), row_of, allow_pickle=False)


def _files(place: str) -> list[str]:
    """Returns the relative paths of all files in a folder; raises ValueError if it contains a link."""
    names = []
    for parent, folders, files_here in os.walk(place):
        for name in (*folders, *files_here):
            _refuse_link(os.path.join(parent, name))
        names += [os.path.relpath(os.path.join(parent, name), place) for name in files_here]
    return sorted(names)


def _refuse_link(path: str) -> None:
    if os.path.islink(path):
        raise ValueError(
            f"{os.path.basename(path)} is a link, which may lead out of the index. Copy its target"
        )


def _synced(place: str) -> dict[str, dict]:
    """Flushes each file of a folder to disk; returns the sizes and checksums."""
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
    """Returns the files of a folder; raises ValueError unless they are exactly those described, undamaged.

    ScaNN itself ends the process if a file is missing, and unpickles a file of ids if there is one.
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
            raise ValueError(f"{name} is damaged: its checksum differs from that in the manifest")
    if ASSETS in names:
        with open(os.path.join(place, ASSETS), encoding="utf-8") as file:
            text = file.read()
        listed = [os.path.join("scann", path) for path in re.findall(r'"(.*?)"', text)]
        if not ASSETS_FORM.fullmatch(text) or not set(listed) <= set(names):
            raise ValueError(f"{ASSETS} does not list files of the index: {', '.join(listed)}")
    return names
