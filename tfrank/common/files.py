"""File access: atomic writes, remote paths, free space, locks, and errors that name the path."""

import contextlib
import errno
import fcntl
import functools
import json
import math
import os
import re
import shutil
import stat
import tempfile
import threading
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO

import numpy as np
import tensorflow as tf

from tfrank.common import checks
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


class NotRegular(OSError):
    """Raised for a link, pipe or device where only a regular file is read."""

    def __init__(self, path: str):
        super().__init__(errno.EINVAL, "It is a link, pipe or device, and only regular files are read", path)


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
        reason = re.sub(r"\{\{.*?\}\} ?", "", checks.reason(error))
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


@contextlib.contextmanager
def atomic_folder(path: str) -> Iterator[str]:
    """Yields an empty temporary folder, which takes the place of `path` if the block ends without an error.

    Several who write the same folder wait for one another. What a killed process left is written over. A link
    is replaced, and its target stays.
    """
    path = path.rstrip("/")
    # Another may write the next folder as soon as this one has its name, so what was there gets a unique one.
    temporary, old = f"{path}.tmp", f"{path}.{uuid.uuid4().hex}.tmp"
    handle = _open_empty(temporary)
    try:
        with naming(path):
            yield temporary
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, old)
            os.rename(temporary, path)
            remove(old)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _open_empty(path):
    """Opens an empty folder under a lock, which lasts until it is closed; returns its descriptor."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.makedirs(path)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        lock(handle, fcntl.LOCK_EX)
        # Whoever had the lock before may have renamed or removed the folder.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                for name in os.listdir(path):
                    remove(os.path.join(path, name))
                return handle
        os.close(handle)


def _open_locked(path, flags):
    """Opens an empty file under a lock, which lasts until the file is closed; returns its descriptor."""
    while True:
        # Empty it only once it is locked: another process may be writing it.
        handle = _locking(path, flags & ~os.O_TRUNC)
        lock(handle, fcntl.LOCK_EX)
        # Whoever had the lock before may have renamed or removed the file.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                os.ftruncate(handle, 0)
                return handle
        os.close(handle)


def _locking(path, flags):
    """Opens or makes a regular file to lock it; returns its descriptor. It keeps what it holds."""
    try:
        handle = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise NotRegular(path) if error.errno in (errno.ELOOP, errno.ENXIO) else error from None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise NotRegular(path)


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


def text_of(path: str) -> str:
    r"""Returns a path as text that can be printed and stored: bytes that are no UTF-8 become \xe9.

    >>> text_of(os.fsdecode(b"caf\xe9.jpg")), text_of("café.jpg")
    ('caf\\xe9.jpg', 'café.jpg')
    """
    # A name that holds such characters itself stays another one.
    escaped = re.sub(rb"\\(?=x[0-9a-f]{2})", rb"\\x5c", os.fsencode(path))
    return escaped.decode(errors="backslashreplace")


def path_of(text: str) -> str:
    """Returns the path that `text_of` gave as text."""
    parts = re.split(rb"\\x([0-9a-f]{2})", os.fsencode(text))
    parts[1::2] = [bytes.fromhex(digits.decode()) for digits in parts[1::2]]
    return os.fsdecode(b"".join(parts))


@contextlib.contextmanager
def without_wildcards(path: str) -> Iterator[str]:
    """Yields a path of the same folder without [, * and ?, which TensorFlow takes for a pattern."""
    if is_remote(path) or not re.search(r"[][*?\\]", os.path.abspath(path)):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        link = os.path.join(folder, "link")
        os.symlink(os.path.abspath(path), link)
        yield link


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
            errors.append(checks.reason(error))

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


def open_regular(path: str) -> IO[bytes]:
    """Opens a regular file for reading; follows links. A pipe would keep the reader waiting, and is refused.

    Raises:
        NotRegular: there is something else at the path.
        OSError: there is nothing, or it cannot be opened.
    """
    return _opened(path, path)


def open_below(folder: str, *names: str) -> IO[bytes]:
    """Opens a regular file below a folder for reading, and follows no link there. The folder may be a link.

    For a folder that somebody else may have made: what is read lies in it.

    Args:
        folder: the folder.
        names: of the folders below it and of the file; each may have several, divided by "/".

    Raises:
        NotRegular: the way is a link or leaves the folder, or there is something else at its end.
        OSError: there is nothing, or it cannot be opened.
    """
    path = os.path.join(folder, *names)
    *folders, name = "/".join(names).split("/")
    if {"", ".", ".."} & {*folders, name}:
        raise NotRegular(path)
    with contextlib.ExitStack() as opened:
        here, follow = None, 0
        for one in (folder, *folders):
            here = _handle(one, path, os.O_DIRECTORY | follow, here)
            opened.callback(os.close, here)
            follow = os.O_NOFOLLOW
        return _opened(name, path, follow, here)


def _opened(name, path, flags=0, folder=None):
    """Opens a regular file; `path` is what it is called in errors."""
    handle = _handle(name, path, flags, folder)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return open(handle, "rb")
    os.close(handle)
    raise NotRegular(path)


def _handle(name, path, flags, folder):
    try:
        # Without O_NONBLOCK a pipe is opened once somebody writes to it.
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        # A link that is not followed, one instead of a folder, and a socket.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise NotRegular(path) from None
        error.filename = path
        raise


def check_regular(folder: str, *names: str, links: bool = False) -> None:
    """Raises NotRegular if anything at a path below a folder is neither a regular file nor a folder.

    For what a library reads by its path: it would follow links and wait for pipes. What does not exist
    passes.

    Args:
        folder: the folder, which may be a link.
        names: lead from the folder to the file or the folder that is read; each may have several, divided by
            "/".
        links: whether there may be links to regular files and folders, as in a folder of one's own.
    """
    path, look = folder, os.stat if links else os.lstat
    for one in "/".join(names).split("/") if names else ():
        path = os.path.join(path, one)
        if one in ("", ".", ".."):
            raise NotRegular(path)
        _check_regular(path, look)
    for here, folders, others in os.walk(path):
        for one in (*folders, *others):
            _check_regular(os.path.join(here, one), look)


def _check_regular(path, look):
    with contextlib.suppress(FileNotFoundError):
        mode = look(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise NotRegular(path)


def load_array(file: IO[bytes]) -> np.ndarray:
    """Reads an .npy file, whose header has to agree with its size before anything of that size is allocated.

    Raises:
        ValueError: it is damaged, or holds objects of Python.
    """
    read_header = {1: np.lib.format.read_array_header_1_0}.get(
        np.lib.format.read_magic(file)[0], np.lib.format.read_array_header_2_0
    )
    shape, by_columns, dtype = read_header(file)
    size = os.fstat(file.fileno()).st_size - file.tell()
    if dtype.hasobject or not dtype.itemsize or math.prod(shape) * dtype.itemsize != size:
        raise ValueError("an array does not hold what its header says")
    return np.ndarray(shape, dtype, bytearray(file.read(size)), order="F" if by_columns else "C")


def replace_file(path: str, data: bytes) -> None:
    """Writes a file anew, in place of what is there. It is never half written, and not waited for.

    Only for one who holds the lock of the folder; others write atomically.
    """
    temporary = f"{path}.tmp"
    remove(temporary)
    with open(temporary, "xb") as file:
        file.write(data)
    os.replace(temporary, path)


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
    with open(_locking(os.path.join(folder, ".lock"), os.O_WRONLY), "wb") as file:
        try:
            lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(f"Another process is at work in {folder}. Wait for it or stop it.") from None
        yield
