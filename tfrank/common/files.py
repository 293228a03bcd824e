"""Files that are written whole or not at all."""

import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import tempfile
import threading
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO

import tensorflow as tf

from tfrank.common.checks import InputError

# Of a remote store; a healthy one takes one or two.
SECONDS_TO_ANSWER = 30
# What NumPy raises of an .npz that is damaged, or none. RuntimeError: it is encrypted, or compressed in a way
# that Python does not know.
NPZ_ERRORS = (
    *(OSError, EOFError, ValueError, TypeError, KeyError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),
)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Gives the path to an error of writing there, such as a full disk's, which names none by itself."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        if _add_name(error, path):
            raise
        reason = re.sub(r"\{\{.*?\}\} ?", "", str(error).strip().splitlines()[0])
        raise InputError(f"Cannot write {path} ({reason}).") from None


def _add_name(error, path):
    """Gives the path to an error of the system that names none; whether it is one of the system."""
    known = isinstance(error, OSError) and bool(error.errno)
    if known:
        error.filename = error.filename or path
    return known


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "wb") -> Iterator[IO]:
    """A file to write to that takes its name only when the block ends without an error."""
    # Of its own, since another process may be writing the same file.
    temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        _add_name(error, path)
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def is_remote(path: str) -> bool:
    """Whether a path names a store such as gs://bucket, which only `tf.io.gfile` reads.

    >>> is_remote("gs://bucket/train.tfrecord"), is_remote("data/train.tfrecord")
    (True, False)
    """
    return "://" in path


@functools.cache
def check_reachable(path: str) -> None:
    """InputError where the store of a remote path does not answer, or not soon; nothing for local paths.

    TensorFlow itself tries again for minutes, in silence.
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
        raise InputError(f"Cannot reach {path} ({errors[0]}). Look at the network, the name and your access.")


def check_room(path: str, size: int) -> None:
    """InputError where the disk of a path has no room for so many bytes."""
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
    if free < size:
        raise InputError(f"Cannot write {path}: it takes {size:,} bytes, and the disk has {free:,} left.")


def write_json(path: str, tree: Mapping) -> None:
    """Writes a tree of plain values as readable JSON, whole or not at all."""
    with atomic_write(path, "w") as file:
        json.dump(tree, file, indent=2)
        file.write("\n")


def make_folder(path: str) -> str:
    """Makes the folder, and its parents, if need be; InputError where it cannot be written to."""
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
    """Removes a file, a folder with all in it, or a link and not what it leads to; if it is there at all."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Makes a folder if need be, and keeps others out; InputError where one is at work there."""
    make_folder(folder)
    with open(os.path.join(folder, ".lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"Another process is at work in {folder}. Wait for it or stop it.") from None
        yield
