"""The image files of a folder: one set of rules for records and for the search index."""

import collections
import contextlib
import fnmatch
import functools
import os
import re
import stat
from collections.abc import Callable, Iterator, Set
from typing import NamedTuple

from tfrank.common import files
from tfrank.common.checks import InputError

JPEG = (".jpg", ".jpeg", ".jpe", ".jif", ".jfif", ".jfi", ".pjpeg", ".pjp", ".mpo")
SUFFIXES = (
    *JPEG,
    *(".png", ".apng", ".webp", ".avif", ".avifs", ".gif", ".bmp", ".dib", ".tif", ".tiff"),
    *(".ppm", ".pnm", ".pbm", ".pgm"),
)
HEIC = (".heic", ".heif", ".hif")
# A command that writes a JPEG beside each of them that has none.
TO_JPEG = (
    r"find . \( -iname '*.hei[cf]' -o -iname '*.hif' \) -exec sh -c"
    """ 'for f; do [ -e "${f%.*}.jpg" ] || convert "$f" "${f%.*}.jpg"; done' sh {} +"""
)
# Pictures in other formats that are not read, most of them the raw files of cameras.
_OTHERS = (
    *(".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dng", ".erf", ".iiq", ".mef", ".mos", ".mrw", ".nef", ".nrw"),
    *(".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f"),
    *(".exr", ".hdr", ".ico", ".j2k", ".jp2", ".jpf", ".jpx", ".jxl", ".psb", ".psd", ".svg", ".tga", ".xcf"),
)
UNREAD = (*HEIC, *_OTHERS)
# First bytes of image files, by which those without a suffix are known.
_STARTS = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|II\*\0|MM\0\*|RIFF....WEBP|....ftypavi[fs]", re.DOTALL
)
# Folders in which programs keep previews, deleted files and copies, in small letters: those of Synology,
# QNAP, Windows, Linux, macOS, Android, Lightroom, Capture One, ACDSee and cameras.
PROGRAMS = (
    *("@eadir", "@tmp", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@__thumb", "@sharebin"),
    *("$recycle.bin", "recycler", "recycled", "system volume information", "found.[0-9][0-9][0-9]"),
    *("lost+found", "lost.dir", "dfsrprivate", "~snapshot", "_gsdata_", "ipod photo cache"),
    *(
        "__macosx",
        "network trash folder",
        "temporary items",
        "*.photoslibrary/[!om]*",
        "*.photolibrary/[!m]*",
        "*.migratedphotolibrary/[!m]*",
        "*.aplibrary/[!m]*",
    ),
    *("*.lrdata", "*.lrcat-data", "*.cocatalogdb", "captureone", "thmbnl", "picasaoriginals"),
    "[[]originals]",
)
# Files of Picasa: where it changed images, it keeps them as they were in a folder `Originals`.
PICASA = (".picasa.ini", "picasa.ini", "Picasa.ini")
# Entries of the folders that this library makes: an index, one that was interrupted, and a run.
OURS = (("CURRENT", "versions"), (".lock", "models", "thumbnails"), ("config.json", "training.csv"))
# The names of so many kinds are printed.
SHOWN = 8


class _Entries(NamedTuple):
    """What is directly in a folder, sorted: names of folders, of images, and of other files."""

    folders: list[str]
    images: list[str]
    others: list[str]


class Walk:
    """Finds the image files of a folder by their names, and keeps count of what it leaves out.

    Links to folders are followed, but each folder is entered once in all, at its own place if it is inside
    `within` without a link, else at the first link. So links between folders multiply no image. Hidden
    files and folders, and folders that programs make, are left out. Files without a suffix are images if they
    begin like one. Paths are relative to the folder, with forward slashes; bytes of names that are no UTF-8
    are kept as `os.fsdecode` gives them.

    Args:
        folder: path.
        unreadable: called with the path and the reason of each folder that cannot be read, and of each link
            that leads nowhere and is no image by its name.
        within: the folder inside `folder` that is walked; "" for all of it.
        real: returns the identities of the folders in it that are entered without a link, if that is known.

    Attributes:
        others: numbers of files that are no images by their names, by suffix.
        hidden: numbers of images in hidden folders and in folders that programs make, by the folder's name.
        again: number of links to folders that are entered elsewhere.
    """

    def __init__(
        self,
        folder: str,
        unreadable: Callable[[str, OSError], None],
        within: str = "",
        real: Callable[[], Set[tuple[int, int]]] | None = None,
    ):
        self.folder, self._unreadable, self._within = folder, unreadable, within
        # They are looked up at the first link, and once for all walks that look into the folder.
        self._real = real or functools.cache(functools.partial(_real_folders, os.path.join(folder, within)))
        self.others: collections.Counter[str] = collections.Counter()
        self.hidden: collections.Counter[str] = collections.Counter()
        self.again, self._behind_links = 0, set[tuple[int, int]]()

    def look(self) -> "Walk":
        """Returns the same walk, which has left out and entered nothing."""
        return Walk(self.folder, self._unreadable, self._within, self._real)

    def part(self, within: str) -> "Walk":
        """Returns a walk of a folder inside this one, which may enter what others enter too."""
        return Walk(self.folder, self._unreadable, within)

    def images(self, inside: str = "") -> Iterator[str]:
        """Yields the paths of the images in a folder and in all folders in it, each sorted by name."""
        parts = inside.split("/") if inside else []
        above = [os.path.join(self.folder, *parts[:count]) for count in range(len(parts))]
        below = above[1 + len(self._within.split("/")) if self._within else 1 :]
        yield from self._images(inside, set(map(_identity, above)), any(map(os.path.islink, below)))

    def _images(self, inside, above, linked):
        here = os.path.join(self.folder, inside)
        try:
            identity = _identity(here)
        except OSError as error:
            return self._unreadable(inside, error)
        linked = linked or bool(inside and os.path.islink(here))
        # Some links of Windows are known only by leading back.
        if identity in above or (linked and (identity in self._behind_links or identity in self._real())):
            self.again += 1
            return
        if linked:
            self._behind_links.add(identity)
        found = self.entries(inside)
        for name in found.others:
            self.others[os.path.splitext(name)[1].lower()] += 1
        folders, path = set(found.folders), f"{inside}/" if inside else ""
        for name in sorted([*found.folders, *found.images]):
            if name in folders:
                yield from self._images(path + name, above | {identity}, linked)
            else:
                yield path + name

    def entries(self, inside: str = "") -> _Entries:
        """Returns what is directly in a folder and not left out."""
        found = _Entries([], [], [])
        try:
            with os.scandir(os.path.join(self.folder, inside)) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._unreadable(inside, error)
            return found
        for entry in listed:
            kind, path = _kind(entry), f"{inside}/{entry.name}" if inside else entry.name
            if kind == "folder" and _is_left_out(entry):
                self.hidden[entry.name] += _number_of_images(entry.path)
            elif kind == "folder":
                found.folders.append(entry.name)
            elif entry.name.startswith("."):
                self.hidden["hidden files"] += entry.name.lower().endswith(
                    SUFFIXES
                ) and not entry.name.startswith("._")
            elif kind == "lost":
                self._unreadable(path, _reason(entry.path))
                found.others.append(entry.name)
            else:
                (found.images if kind == "image" else found.others).append(entry.name)
        return found

    def add(self, other: "Walk") -> None:
        """Adds the counts of another walk."""
        self.others += other.others
        self.hidden += other.hidden
        self.again += other.again

    def left_out(self) -> list[str]:
        """Returns sentences on what was left out."""
        sentences = []
        if total := self.others.total():
            what = "1 file is left out, which is no image by its name"
            if total > 1:
                what = f"{total:,} files are left out, which are no images by their names"
            sentences.append(f"{what}: {_numbers(self.others)}.")
        if any(self.others[suffix] for suffix in HEIC):
            sentences.append(
                "HEIC, a format of phones, cannot be read. Convert it to JPEG, such as with ImageMagick in"
                f" the folder of photos, which replaces no file: {TO_JPEG}"
            )
        if pictures := {suffix: self.others[suffix] for suffix in _OTHERS if self.others[suffix]}:
            sentences.append(f"These pictures cannot be read: {_numbers(pictures)}. Convert them to JPEG.")
        if total := self.hidden.total():
            what = "1 image is" if total == 1 else f"{total:,} images are"
            sentences.append(
                f"{what} left out, as hidden or in folders that programs make: {_numbers(self.hidden)}."
            )
        if self.again:
            what = "1 link is left out, as the folder that it leads to is"
            if self.again > 1:
                what = f"{self.again:,} links are left out, as the folders that they lead to are"
            sentences.append(f"{what} read at another place.")
        return [files.text_of(sentence) for sentence in sentences]


def strict_walk(folder: str) -> Walk:
    """Returns a walk that raises InputError for a folder that cannot be read: its images would be missing."""

    def unreadable(inside, error):
        path = os.path.join(folder, inside) if inside else folder
        if not os.path.islink(path):
            raise InputError(
                f"Cannot read the folder {files.text_of(path)} ({error.strerror}). Give a folder, or an"
                " archive (.zip, .tar, .tar.gz)."
            ) from None

    return Walk(folder, unreadable)


def is_ours(folder: str) -> bool:
    """Returns whether a folder is one of this library's own: an index or a run."""
    return any(all(os.path.lexists(os.path.join(folder, name)) for name in own) for own in OURS)


def _is_left_out(entry):
    """Whether a folder is hidden, or made by a program: by its name, or by what is in it."""
    name, (above, _) = entry.name.lower(), os.path.split(entry.path.lower())
    names = (name, f"{os.path.basename(above)}/{name}")
    by_name = any(fnmatch.fnmatchcase(names["/" in made], made) for made in PROGRAMS)
    kept = name == "originals" and any(
        os.path.exists(os.path.join(os.path.dirname(entry.path), file)) for file in PICASA
    )
    return name.startswith(".") or by_name or kept or is_ours(entry.path)


def _number_of_images(path):
    """Number of files with the suffix of an image in a folder and in all folders in it; follows no links."""
    return sum(name.lower().endswith(SUFFIXES) for _, _, names in os.walk(path) for name in names)


def _kind(entry):
    """Returns "folder", "image", "other", or "lost" for what cannot be looked at: a link to nowhere."""
    by_name = entry.name.lower().endswith(SUFFIXES)
    try:
        if _is_folder(entry):
            return "folder"
        if by_name:
            # Who reads a link that leads nowhere is told so. Reading a pipe or a device might never end.
            return "image" if entry.is_symlink() or entry.is_file() else "other"
        named = bool(os.path.splitext(entry.name)[1])
        if named and not entry.is_symlink():
            return "other"
        regular = stat.S_ISREG(os.stat(entry.path).st_mode)
    except OSError:
        return "image" if by_name else "lost"
    return "image" if regular and not named and _begins_like_an_image(entry.path) else "other"


def _is_folder(entry):
    """Whether an entry is a folder or a link to an existing one; only links cost a disk access."""
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _begins_like_an_image(path):
    try:
        with open(path, "rb") as file:
            return bool(_STARTS.match(file.read(16)))
    except OSError:
        return True  # It may be one. Who reads it is told the reason.


def _reason(path):
    """The error of looking at a path."""
    try:
        os.stat(path)
    except OSError as error:
        return error
    return OSError(0, "it was gone for a moment")


def _identity(folder):
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _real_folders(folder):
    """The identities of a folder and of those in it that are entered without a link."""
    found, left = set(), [folder]
    while left:
        here = left.pop()
        # Who enters one that cannot be read is told the reason.
        with contextlib.suppress(OSError):
            if (identity := _identity(here)) not in found:
                found.add(identity)
                with os.scandir(here) as entries:
                    inside = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
                left += [entry.path for entry in inside if not _is_left_out(entry)]
    return found


def _numbers(counts):
    """Lists numbers by name, the greatest first, such as ".txt 3, .md 1"."""
    names = sorted((name for name in counts if counts[name]), key=lambda name: (-counts[name], name))
    shown = [f"{name or 'no suffix'} {counts[name]:,}" for name in names[:SHOWN]]
    return ", ".join(shown) + ", ..." * (len(names) > SHOWN)
