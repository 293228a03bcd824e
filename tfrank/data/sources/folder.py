"""Your own images, one folder a class.

<class>/<image>.jpg                           divided into "train" and "test" by class
{train,test}/<class>/<image>.jpg              divided by you
{train,query,gallery}/<class>/<image>.jpg     the same, with queries and gallery apart
"""

import collections
import itertools
import os
from collections.abc import Iterator

from tfrank.common.checks import InputError
from tfrank.data.sources.classes import drawn_to_test, unified
from tfrank.data.sources.image import SourceImage

JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
HEIC = (".heic", ".heif")
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
    it has is left out; the same name in two of them is the same class. Classes are numbered by name. Names
    that differ only in how Unicode writes a letter are one class, and a line says so.

    Where `folder` has nothing but a folder of such folders, that one is read. Hidden files and folders,
    files without the suffix of an image, and images outside of the classes' folders are left out. Links to
    folders are followed, but never in a circle. Lines printed at the end count the images outside of
    classes' folders, and the files without the suffix of an image by suffix.

    Args:
        folder: path.
        test_share: of the classes that go to "test", 0 to 1, where `folder` is not divided; at least
            one goes to "train".
        seed: of that division, at least 0.

    Raises:
        InputError: where there is no such folder, a folder cannot be read, or none has images.
    """
    outer, folder = folder, _inner(folder)
    layout = next((layout for layout in LAYOUTS if _has_all(folder, layout)), UNDIVIDED)
    left_out = collections.Counter()
    names = {part: _class_names(folder, part, left_out) for part in layout}
    loose = [path for part in sorted({"", *layout}) for path in _loose(folder, part, left_out)]
    if layout is UNDIVIDED and (parts := PARTS & set(names[""])):
        raise InputError(
            f"{folder} has the folders {', '.join(sorted(parts))}. Is it divided? A division is train and"
            " test, or train, query and gallery; all of them, and named so. Else rename those classes."
        )
    classes = unified(itertools.chain(*names.values()))
    labels = {name: label for label, name in enumerate(sorted(set(classes.values())))}
    if not labels:
        raise InputError(_nothing(folder, loose, left_out))
    tests = drawn_to_test(labels, test_share=test_share, seed=seed)
    for part, (split, role) in layout.items():
        for name in names[part]:
            text = classes[name]
            drawn = "test" if text in tests else "train"
            for inside in _images(folder, part, name, left_out):
                path = os.path.relpath(os.path.join(folder, inside), outer)
                yield SourceImage(
                    split=split or drawn, path=path, label=labels[text], text=text, id=inside, role=role
                )
    for line in _sentences(loose, left_out):
        print(line, flush=True)


def _nothing(folder, loose, left_out):
    """What is said of a folder without classes."""
    has = "no images"
    if loose:
        has = f"{len(loose):,} image{'s' * (len(loose) > 1)} and no folder with images. It takes one a class"
    expected = (
        f"{folder} has {has}. Expected {folder}/<class>/<image>, or the same inside its folders train and"
        f" test, or train, query and gallery, where an image ends in {', '.join(SUFFIXES)}."
    )
    return " ".join([expected, *_sentences([], left_out)])


def _sentences(loose, left_out):
    """Which files were left out, and what to do: images outside of classes, and other files by suffix."""
    sentences = []
    if len(loose) == 1:
        sentences = [f"1 image is in no class's folder and left out: {loose[0]}. Move it into one."]
    elif loose:
        sentences = [
            f"{len(loose):,} images are in no class's folder and left out, such as {loose[0]}. Move each into"
            " the folder of its class."
        ]
    suffixes = sorted(left_out, key=lambda suffix: (-left_out[suffix], suffix))
    shown = [f"{suffix or 'no suffix'} {left_out[suffix]:,}" for suffix in suffixes[:SHOWN]]
    if left_out:
        what = "1 file is left out, which is no image by its name"
        if (total := left_out.total()) > 1:
            what = f"{total:,} files are left out, which are no images by their names"
        sentences.append(f"{what}: {', '.join(shown)}{', ...' * (len(suffixes) > SHOWN)}.")
    if any(left_out[suffix] for suffix in HEIC):
        sentences.append(
            "HEIC, a format of phones, cannot be read. Convert it to JPEG, such as with ImageMagick in the"
            " folder of photos: find . -iname '*.hei[cf]' -exec mogrify -format jpg {} +"
        )
    # A name may hold bytes that are no text, and could not be printed.
    return [sentence.encode(errors="backslashreplace").decode() for sentence in sentences]


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


def _loose(folder, part, left_out):
    """The images that lie in a folder of classes itself, sorted; HEIC files are added to `left_out`."""
    for entry in _entries(os.path.join(folder, part)):
        suffix = os.path.splitext(entry.name)[1].lower()
        if not _is_folder(entry) and _is_image(entry):
            yield os.path.join(part, entry.name)
        elif not _is_folder(entry) and suffix in HEIC:
            left_out[suffix] += 1


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
        raise InputError(
            f"Cannot read the folder {folder} ({error.strerror}). Give a folder, or an archive (.zip, .tar,"
            " .tar.gz)."
        ) from None
    return sorted(shown, key=lambda entry: entry.name)


def _is_folder(entry):
    """Whether it is a folder, or a link to one that is there; asks the disk for links only."""
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _is_image(entry):
    return entry.name.lower().endswith(SUFFIXES)


def _identity(folder):
    status = os.stat(folder)
    return status.st_dev, status.st_ino
