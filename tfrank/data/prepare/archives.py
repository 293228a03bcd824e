"""Unpacks archives of data sets, whole or not at all, and never outside the given folder."""

import contextlib
import errno
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from typing import IO

from tfrank.common.checks import InputError
from tfrank.common.files import check_room, make_folder, naming
from tfrank.data.prepare.web_page import reason_of_damage
from tfrank.data.prepare.zip_names import member_names

ZIPS = (".zip",)
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
# Exceptions from reading a damaged archive. An OSError counts only if it has no errno, or EINVAL from seeking
# to an impossible position.
DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    ValueError,
    ArithmeticError,
    MemoryError,
    LookupError,
    OSError,
)


def is_archive(path: str) -> bool:
    """Returns whether a path is an existing file with a suffix that `unpack` supports.

    >>> is_archive("images.zip")  # There is no such file.
    False
    """
    return path.lower().endswith(ZIPS + TARS) and os.path.isfile(path)


def unpack(archive: str, folder: str) -> str:
    """Unpacks a .zip, .tar, .tar.gz, .tgz, .tar.bz2 or .tar.xz to a folder, and returns the folder.

    A folder that is not empty counts as unpacked and is left as it is. This is safe: files are unpacked to
    `<folder>.unpacking`, which is renamed when it is complete. An interrupted run starts again. Owners, modes
    and times are not kept; hidden files that a Mac adds are left out.

    Raises:
        InputError: the archive is damaged, cut off, encrypted or larger than the free disk space, or it has
            a member that would lie outside the folder, occurs twice, or is neither file nor folder. A hard
            link to an earlier file of the archive counts as a file. Symbolic links are refused, wherever
            they point.
    """
    if not is_archive(archive):
        raise InputError(f"{archive} is not an archive. Its name must end with {', '.join(ZIPS + TARS)}.")
    folder = os.path.abspath(folder)
    if os.path.isdir(folder) and os.listdir(folder):
        return folder
    unfinished = f"{folder}.unpacking"
    shutil.rmtree(unfinished, ignore_errors=True)
    make_folder(unfinished)
    try:
        with naming(unfinished):
            (_unzip if archive.lower().endswith(ZIPS) else _untar)(archive, unfinished)
            os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _unzip(archive: str, folder: str) -> None:
    with _reading(archive), zipfile.ZipFile(archive) as file:
        names, encoding = member_names(file.infolist())
        if encoding:
            print(
                f"Names in {archive} are not marked as UTF-8, and are read as {encoding}. If they look wrong,"
                " unpack it yourself and give the folder.",
                flush=True,
            )
        members = [pair for pair in zip(names, file.infolist()) if not _is_of_a_mac(pair[0])]
        for name, member in members:
            _check_member(archive, name, member)
        # The declared sizes can be trusted: a member is never read beyond its own.
        check_room(folder, sum(member.file_size for _, member in members))
        for name, member in members:
            with _placing(archive, name, folder) as path:
                if name.endswith("/"):
                    os.makedirs(path, exist_ok=True)
                else:
                    with file.open(member) as source:
                        _copy(source, path)


def _check_member(archive: str, name: str, member: zipfile.ZipInfo) -> None:
    """Raises InputError for a member of a zip that is not unpacked."""
    _check_name(archive, name)
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refused(archive, name, "is a link or device")
    if member.flag_bits & 1:
        raise _refused(archive, name, "is encrypted")
    if member.compress_type not in COMPRESSIONS:
        # Windows writes Deflate64 for large files.
        kind = zipfile.compressor_names.get(member.compress_type, f"method {member.compress_type}")
        raise InputError(
            f"{archive}: {name} is compressed by {kind}, which is not read here. Nothing was unpacked."
            " Unpack it with unzip or 7-Zip, and give the folder."
        )


def _untar(archive: str, folder: str) -> None:
    name = "its start"
    with _reading(archive), tarfile.open(archive) as file:
        while member := _next(archive, file, name):
            name = member.name
            if _is_of_a_mac(name):
                continue
            _check_name(archive, name)
            check_room(folder, member.size)
            with _placing(archive, name, folder) as path:
                if member.isdir():
                    os.makedirs(path, exist_ok=True)
                elif member.isreg():
                    _copy(file.extractfile(member), path)
                elif member.islnk():
                    _check_name(archive, member.linkname)
                    if not os.path.isfile(target := os.path.join(folder, member.linkname)):
                        raise _refused(
                            archive, name, f"is a link to {member.linkname}, which is no file before it"
                        )
                    os.link(target, path)
                else:
                    raise _refused(archive, name, "is a symbolic link, device or pipe")
        # `tarfile` takes a damaged or truncated header for the end. The true end is a block of zeros.
        file.fileobj.seek(file.offset)
        if file.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise _damaged(archive, f"after {name}", "the end is missing")
        while file.fileobj.read(2**16):
            pass  # Read to the end: the checksum of compressed data is there.


def _next(archive: str, file: tarfile.TarFile, last: str) -> tarfile.TarInfo | None:
    with _reading(archive, f"after {last}"):
        member = file.next()
        # An extended header can declare a negative size, which would lead back to an earlier position.
        if member and member.size < 0:
            raise ValueError(f"{member.name} has {member.size} bytes")
    file.members.clear()  # Otherwise it grows to millions of entries.
    return member


def _copy(source: IO[bytes], path: str) -> None:
    with open(path, "xb") as copy:
        shutil.copyfileobj(source, copy)


@contextlib.contextmanager
def _reading(archive, member=""):
    """Turns the exceptions of a damaged archive into an InputError that names the archive and the member."""
    try:
        yield
    except InputError:
        raise
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # An error of the system, such as a full disk.
        raise _damaged(archive, member, error) from None


@contextlib.contextmanager
def _placing(archive, name, folder):
    """Yields the path for a member, and creates its folder if needed; errors name the member."""
    path = os.path.join(folder, name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with _reading(archive, name):
            yield path
    except (FileExistsError, NotADirectoryError):
        raise _refused(archive, name, "occurs twice") from None


def _is_of_a_mac(name):
    return "__MACOSX" in name.split("/") or os.path.basename(name).startswith("._")


def _check_name(archive, name):
    """Raises InputError if a name leads out of the folder, also by the rules of Windows."""
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or parts[0].endswith(":") or ".." in parts:
        raise _refused(archive, name, "would be written outside the folder")


def _refused(archive, name, why):
    return InputError(f"{archive}: {name} {why}. Nothing was unpacked. Check that this is the right archive.")


def _damaged(archive, member, reason):
    what = f"{archive}: {member}" if member else archive
    why = str(reason_of_damage(archive, reason)).partition("\n")[0].rstrip(":") or type(reason).__name__
    return InputError(f"{what} is damaged or truncated ({why}). Download the archive again.")
