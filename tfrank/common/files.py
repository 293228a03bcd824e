"""File access: atomic writes, remote paths, free space, locks, and errors that name the path."""

import contextlib
import errno
import fcntl
import functools
import json
import os
import re
import shutil
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO

import tensorflow as tf

from tfrank.common.checks import InputError

# Time limit for a remote store; a healthy one takes one or two seconds.
SECONDS_TO_ANSWER = 30
# Errors that NumPy raises for a file that is damaged or no .npz. RuntimeError: it is encrypted, or compressed
# in a way that Python does not know.
NPZ_ERRORS = (
    *(OSError, EOFError, ValueError, TypeError, KeyError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),
)
# Errors of file systems without locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


class Locked(InputError):
    """Raised where another process holds the lock of a folder."""


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Adds the path to a write error that names none, such as that of a full disk."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        if _add_name(error, path):
            raise
        reason = re.sub(r"\{\{.*?\}\} ?", "", str(error).strip().splitlines()[0])
        raise InputError(f"Cannot write {path} ({reason}).") from None


def _add_name(error, path):
    """Adds the path to a system error that names none; returns whether it is a system error."""
    known = isinstance(error, OSError) and bool(error.errno)
    if known:
        error.filename = error.filename or path
    return known


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "wb") -> Iterator[IO]:
    """Opens a temporary file for writing; renames it to `path` if the block ends without an error.

    Several who write the same file wait for one another. What a killed process left is written over.
    """
    temporary = f"{path}.tmp"
    try:
        encoding = None if "b" in mode else "utf-8"
        with open(temporary, mode, encoding=encoding, opener=_open_locked) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(temporary)
                raise
    except BaseException as error:
        _add_name(error, path)
        raise


def _open_locked(path, flags):
    """Opens an empty file under a lock, which lasts until the file is closed; returns its descriptor."""
    while True:
        # Empty it only once it is locked: another process may be writing it.
        handle = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        lock(handle, fcntl.LOCK_EX)
        # Whoever had the lock before may have renamed or removed the file.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                os.ftruncate(handle, 0)
                return handle
        os.close(handle)


def lock(handle: int, kind: int) -> None:
    """Locks an open file or folder as `fcntl.flock` does; does nothing on a file system without locks."""
    try:
        fcntl.flock(handle, kind)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def is_remote(path: str) -> bool:
    """Returns whether a path names a store such as gs://bucket, which only `tf.io.gfile` reads.

    >>> is_remote("gs://bucket/train.tfrecord"), is_remote("data/train.tfrecord")
    (True, False)
    """
    return "://" in path


@functools.cache
def check_reachable(path: str) -> None:
    """Raises InputError if the store of a remote path does not answer in time. Does nothing for local paths.

    TensorFlow itself retries silently for minutes.
    """
    if not is_remote(path):
        return
    errors = []

    def ask():
        try:
            tf.io.gfile.exists(path)
        except (OSError, tf.errors.OpError) as error:
            errors.append(str(error).strip().splitlines()[0])

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS_TO_ANSWER)
    if asking.is_alive():
        errors.append(f"no answer within {SECONDS_TO_ANSWER} s")
    if errors:
        raise InputError(f"Cannot reach {path} ({errors[0]}). Check the network, the name and your access.")


def check_room(path: str, size: int) -> None:
    """Raises InputError if the disk of a path has no room for `size` bytes."""
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
    if free < size:
        raise InputError(f"Cannot write {path}: it takes {size:,} bytes, and the disk has {free:,} left.")


def write_json(path: str, tree: Mapping) -> None:
    """Writes a tree of plain values as indented JSON, atomically."""
    with atomic_write(path, "w") as file:
        json.dump(tree, file, indent=2)
        file.write("\n")


def make_folder(path: str) -> str:
    """Makes a folder and its parents if needed; returns it. Raises InputError if it is not writable."""
    if is_remote(path):
        raise InputError(f"Cannot write to {path}: it is no local folder. Choose one, and copy it there.")
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"Cannot write to {path} ({error.strerror}). Choose another folder.") from None
    return path


def remove(path: str) -> None:
    """Removes a file, a folder with its content, or a link but not its target, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Makes a folder if needed and locks it. Raises Locked if another process holds the lock."""
    make_folder(folder)
    with open(os.path.join(folder, ".lock"), "w") as file:
        try:
            lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(f"Another process is at work in {folder}. Wait for it or stop it.") from None
        yield
