"""An index in a folder: arrays without pickles, what ScaNN wrote, and a manifest that names them all.

    index.json      the manifest: settings, and of which folder which files of which size and checksum
    <32 digits>/    rows.npy, ids.npy, row_of.npy, and scann/ with ScaNN's own files

A save writes a new folder and then replaces the manifest, so there is an old index or a new one at any time.
"""

import json
import os
import re
import shutil
import uuid
from typing import Any

import google_crc32c
import numpy as np

from tfrank import files
from tfrank.checks import InputError

MANIFEST = "index.json"
FORMAT = 1
# ScaNN's copy of the rows. While the gallery is what ScaNN holds, there is no other.
DATASET = os.path.join("scann", "dataset.npy")
# Files whose checksums are not looked at: they are memory maps, which nothing reads as a whole.
UNREAD = ("rows.npy", DATASET)
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
    # What an earlier save wrote, or began to.
    for other in os.listdir(folder):
        if SAVED.fullmatch(other) and other != name:
            shutil.rmtree(os.path.join(folder, other), ignore_errors=True)


def load(folder: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict, str | None]:
    """The parts of an index.

    Returns:
        rows, as a memory map; ids; the gallery row of each of ScaNN's rows; the settings; the folder of
        ScaNN's files, or None for brute force.
    """
    path = os.path.join(os.path.abspath(folder), MANIFEST)
    try:
        with open(path) as file:
            manifest = json.load(file)
        if manifest["format"] != FORMAT or not SAVED.fullmatch(manifest["folder"]):
            raise ValueError("another format")
        place = os.path.join(os.path.dirname(path), manifest["folder"])
        _check(place, manifest["files"])
        rows_file = "rows.npy" if "rows.npy" in manifest["files"] else DATASET
        rows = np.load(os.path.join(place, rows_file), mmap_mode="r", allow_pickle=False)
        ids, row_of = (
            np.load(os.path.join(place, name), allow_pickle=False) for name in ("ids.npy", "row_of.npy")
        )
        settings = dict(manifest["settings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise InputError(f"There is no whole index in {folder} ({error}). Build and save it again.") from None
    scann = os.path.join(place, "scann")
    return rows, ids, row_of, settings, scann if os.path.isdir(scann) else None


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
    """The paths of all files in a folder, from there."""
    return sorted(
        os.path.relpath(os.path.join(parent, name), place)
        for parent, _, names in os.walk(place)
        for name in names
    )


def _synced(place: str) -> dict[str, dict]:
    """The size and the checksum of each file of a folder, once it is on the disk."""
    described = {}
    for name in _files(place):
        with open(os.path.join(place, name), "rb+") as file:
            os.fsync(file.fileno())
            described[name] = {"bytes": os.path.getsize(file.name)}
        if name not in UNREAD:
            described[name]["crc32c"] = _checksum(os.path.join(place, name))
    return described


def _checksum(path: str) -> int:
    checksum = google_crc32c.Checksum()
    with open(path, "rb") as file:
        for _ in checksum.consume(file, CHUNK):
            pass
    return int.from_bytes(checksum.digest(), "big")


def _check(place: str, described: dict[str, dict]) -> None:
    """ValueError unless a folder has these files, whole, and no other.

    ScaNN ends the process where a file is missing, and unpickles a file of ids where there is one.
    """
    for name in _files(place):
        if name.endswith((".pkl", ".pickle")):
            raise ValueError(f"{name} is a pickle, which could run any program when it is loaded")
    there = {name: os.path.getsize(os.path.join(place, name)) for name in _files(place)}
    for name in sorted(there.keys() | described.keys()):
        if there.get(name) != (size := described.get(name, {}).get("bytes")):
            raise ValueError(f"{name} has {there.get(name)} bytes and should have {size}")
        if name not in UNREAD and described[name]["crc32c"] != _checksum(os.path.join(place, name)):
            raise ValueError(f"{name} is damaged: its checksum is not that of what was saved")
