"""Files of every store that Beam reads: local folders, gs://, s3://, hdfs:// and others."""

import contextlib
import fnmatch
import os
from collections.abc import Collection, Iterator
from typing import IO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from tfrank.common import files
from tfrank.common.checks import InputError


class Missing(InputError):
    """There is no file at a path. Other errors of a store may pass."""


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Turns an error of a store into an InputError that names the path and the reason."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise Missing(f"There is no file {path}.") from None
    except (BeamIOError, OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"Cannot reach {path} ({reason}). Check the name and your access.") from None


def join(folder: str, *names: str) -> str:
    """Returns the path of a file in a folder; a path that is absolute or remote itself stays as it is."""
    *_, last = names
    return last if files.is_remote(last) else os.path.join(folder, *names)


def exists(path: str) -> bool:
    """Returns whether there is a file, or a local folder, at a path."""
    with _naming(path):
        return FileSystems.exists(path)


def open_file(path: str) -> IO:
    """Opens a file for reading, in any order."""
    with _naming(path):
        return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def read(path: str) -> bytes:
    """Returns the content of a file."""
    with _naming(path), open_file(path) as file:
        return file.read()


def write(path: str, data: bytes) -> None:
    """Writes a file, whole or not at all. Makes the folder of a local one."""
    if not files.is_remote(path):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with files.atomic_write(path) as file:
            file.write(data)
        return
    # A store shows a file when it is complete.
    with _naming(path), FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        file.write(data)


def upload(local: str, path: str) -> None:
    """Copies a local file, or all files of a local folder, to a store."""
    if not os.path.isdir(local):
        with open(local, "rb") as file:
            write(path, file.read())
        return
    for name in sorted(os.listdir(local)):
        upload(os.path.join(local, name), join(path, name))


def download(path: str, local: str) -> None:
    """Copies a file to a local one."""
    with files.atomic_write(local) as file:
        file.write(read(path))


def download_folder(folder: str, local: str) -> None:
    """Copies all files of a folder, and of folders inside it, to a local one."""
    with _naming(folder):
        (found,) = FileSystems.match([join(folder, "**")])
    for one in found.metadata_list:
        name = one.path[len(folder.rstrip("/")) + 1 :]
        if {"", ".", ".."} & set(name.split("/")):
            raise InputError(f"{one.path} leads out of the folder {folder}. Remove it.")
        path = os.path.join(local, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        download(one.path, path)


def names(folder: str, pattern: str) -> list[str]:
    """Returns the sorted names of the files directly in a folder that match a pattern such as "*.parquet"."""
    if not files.is_remote(folder):
        found = os.listdir(folder) if os.path.isdir(folder) else []
    else:
        with _naming(folder):
            (result,) = FileSystems.match([join(folder, "*")])
        found = [one.path.rsplit("/", 1)[-1] for one in result.metadata_list]
    return sorted(fnmatch.filter(found, pattern))


def remove_files(folder: str, pattern: str, keep: Collection[str] = ()) -> None:
    """Removes the files directly in a folder that match a pattern, but for those to keep."""
    for name in set(names(folder, pattern)) - set(keep):
        remove(join(folder, name))


def rename(path: str, target: str) -> None:
    """Moves a file within its store."""
    with _naming(path):
        if exists(target):
            FileSystems.delete([target])
        FileSystems.rename([path], [target])


def remove(path: str) -> None:
    """Removes a file, or a folder with its content, if it exists."""
    if not files.is_remote(path):
        files.remove(path)
        return
    with _naming(path):
        # A store has no folders, only files whose names begin with that of the folder.
        found = FileSystems.match([path, join(path, "**")])
        FileSystems.delete([one.path for result in found for one in result.metadata_list])
