"""Your own images, one folder a class.

<class>/<image>.jpg                           divided into "train" and "test" by class
{train,test}/<class>/<image>.jpg              divided by you
{train,query,gallery}/<class>/<image>.jpg     the same, with queries and gallery apart
"""

import collections
import os
from collections.abc import Iterator

import numpy as np

from tfrank import checks
from tfrank.checks import InputError
from tfrank.data.sources.image import SourceImage

JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
SUFFIXES = (*JPEG, ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
# Of each folder's images, split and role.
LAYOUTS = (
    {"train": ("train", ""), "test": ("test", "")},
    {"train": ("train", ""), "query": ("test", "query"), "gallery": ("test", "gallery")},
)
UNDIVIDED = {"": ("", "")}
# What classes are hardly called.
PARTS = {"train", "training", "test", "val", "valid", "validation", "query", "gallery"}
SHOWN = 8


def read_folder(folder: str, *, test_share: float = 0.5, seed: int = 0) -> Iterator[SourceImage]:
    """The images of the classes' folders and of all folders inside those, sorted by path.

    Where `folder` has the folders of a division, as above, the classes are inside them, and what else
    it has is left out; the same name in two of them is the same class. Classes are numbered by name.

    Where `folder` has nothing but a folder of such folders, that one is read. Hidden files and folders,
    files without the suffix of an image, and images outside of the classes' folders are left out. Links to
    folders are followed, but never in a circle. Of files without the suffix of an image, a line printed at
    the end has the number, and the suffixes.

    Args:
        folder: path.
        test_share: of the classes that go to "test", 0 to 1, where `folder` is not divided; at least
            one goes to "train".
        seed: of that division, at least 0.

    Raises:
        InputError: where there is no such folder, a folder cannot be read, or none has images.
    """
    checks.number("test_share", test_share, at_least=0, at_most=1)
    checks.integer("seed", seed, at_least=0)
    outer, folder = folder, _inner(folder)
    layout = next((layout for layout in LAYOUTS if _has_all(folder, layout)), UNDIVIDED)
    left_out = collections.Counter()
    names = {part: _class_names(folder, part, left_out) for part in layout}
    if layout is UNDIVIDED and (parts := PARTS & set(names[""])):
        raise InputError(
            f"{folder} has the folders {', '.join(sorted(parts))}. Is it divided? A division is train and"
            " test, or train, query and gallery; all of them, and named so. Else rename those classes."
        )
    labels = {name: label for label, name in enumerate(sorted(set().union(*names.values())))}
    if not labels:
        raise InputError(
            f"{folder} has no images. Expected {folder}/<class>/<image>, or the same inside its folders"
            f" train and test, or train, query and gallery, where an image ends in {', '.join(SUFFIXES)}."
            f" {_sentence(left_out)}".rstrip()
        )
    order = np.random.default_rng(seed).permutation(len(labels))
    tests = set(order[: min(round(test_share * len(labels)), len(labels) - 1)].tolist())
    for part, (split, role) in layout.items():
        for name in names[part]:
            label = labels[name]
            drawn = "test" if label in tests else "train"
            for inside in _images(folder, part, name, left_out):
                path = os.path.relpath(os.path.join(folder, inside), outer)
                yield SourceImage(
                    split=split or drawn, path=path, label=label, text=name, id=inside, role=role
                )
    if left_out:
        print(_sentence(left_out), flush=True)


def _sentence(left_out):
    """How many files were left out, by suffix; "" for none."""
    if not left_out:
        return ""
    suffixes = sorted(left_out, key=lambda suffix: (-left_out[suffix], suffix))
    shown = [f"{suffix or 'no suffix'} {left_out[suffix]:,}" for suffix in suffixes[:SHOWN]]
    what = "1 file is left out, which is no image by its name"
    if (total := left_out.total()) > 1:
        what = f"{total:,} files are left out, which are no images by their names"
    sentence = f"{what}: {', '.join(shown)}{', ...' * (len(suffixes) > SHOWN)}."
    # A name may hold bytes that are no text, and could not be printed.
    return sentence.encode(errors="backslashreplace").decode()


def _inner(folder):
    """The folder of the classes: where `folder` has but one, with folders and no images, that one."""
    entries = _entries(folder)
    only = entries[0] if len(entries) == 1 and _is_folder(entries[0]) else None
    if only and only.name not in PARTS:
        kinds = {_is_folder(entry) for entry in _entries(only.path) if _is_folder(entry) or _is_image(entry)}
        return only.path if kinds == {True} else folder
    return folder


def _has_all(folder, parts):
    return all(os.path.isdir(os.path.join(folder, part)) for part in parts)


def _class_names(folder, part, left_out):
    """The names of the folders with images, sorted; the files of those without are added to `left_out`."""
    names = []
    for entry in _entries(os.path.join(folder, part) if part else folder):
        if _is_folder(entry):
            others = collections.Counter()
            if next(_images(folder, part, entry.name, others), None):
                names.append(entry.name)
            else:
                left_out += others
    return names


def _images(folder, part, name, left_out):
    """The paths of the images of a class, relative to `folder`, sorted; counts other files by suffix."""
    above = {_identity(folder), _identity(os.path.join(folder, part))}
    yield from _walk(folder, f"{part}/{name}" if part else name, above, left_out)


def _walk(folder, inside, above, left_out):
    """The paths of the images inside a folder of `folder`, unless it is one of those `above` it again."""
    here = os.path.join(folder, inside)
    if _identity(here) in above:
        return
    for entry in _entries(here):
        path = f"{inside}/{entry.name}"
        if _is_folder(entry):
            yield from _walk(folder, path, above | {_identity(here)}, left_out)
        elif _is_image(entry):
            yield path
        else:
            left_out[os.path.splitext(entry.name)[1].lower()] += 1


def _entries(folder):
    """What is in a folder and not hidden, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(f"Cannot read the folder {folder} ({error.strerror}).") from None
    return sorted(shown, key=lambda entry: entry.name)


def _is_folder(entry):
    """Whether it is a folder, or a link to one that is there; asks the disk for links only."""
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _is_image(entry):
    return entry.name.lower().endswith(SUFFIXES)


def _identity(folder):
    status = os.stat(folder)
    return status.st_dev, status.st_ino
