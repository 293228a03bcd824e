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
from tfrank.data.sources.classes import draw_test_classes, merge_spellings
from tfrank.data.sources.image import SourceImage

JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
HEIC = (".heic", ".heif")
SUFFIXES = (*JPEG, ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
# Split and role of the images of each folder.
LAYOUTS = (
    {"train": ("train", ""), "test": ("test", "")},
    {"train": ("train", ""), "query": ("test", "query"), "gallery": ("test", "gallery")},
)
UNDIVIDED = {"": ("", "")}
# Names that are unlikely to be classes.
PARTS = {"train", "training", "test", "val", "valid", "validation", "query", "gallery"}
SHOWN = 8


def read_folder(folder: str, *, test_share: float = 0.5, seed: int = 0) -> Iterator[SourceImage]:
    """Yields the images in the class folders and in all folders inside them, sorted by path.

    If `folder` has the split folders of a layout above, the classes are inside those, and everything else is
    left out. The same name in two split folders is the same class. Classes are numbered by name. Names that
    differ only in Unicode normalisation are one class, and a note is printed.

    If `folder` contains nothing but one folder of such folders, that one is read. Hidden files and folders,
    files without an image suffix, and images outside class folders are left out. Links to folders are
    followed, but never in a cycle. At the end it prints how many images were outside class folders, and how
    many files of each other suffix were left out.

    Args:
        folder: path.
        test_share: share of the classes that go to "test", 0 to 1, if `folder` has no split folders; at least
            one class goes to "train".
        seed: seed of that random split, at least 0.

    Raises:
        InputError: the folder does not exist, a folder cannot be read, or no class folder has images.
    """
    outer, folder = folder, _inner(folder)
    layout = next((layout for layout in LAYOUTS if _has_all(folder, layout)), UNDIVIDED)
    left_out = collections.Counter()
    names = {part: _class_names(folder, part, left_out) for part in layout}
    loose = [path for part in sorted({"", *layout}) for path in _loose(folder, part, left_out)]
    if layout is UNDIVIDED and (parts := PARTS & set(names[""])):
        raise InputError(
            f"{folder} has the folders {', '.join(sorted(parts))}. If they are splits, name them train and"
            " test, or train, query and gallery. If they are classes, rename them."
        )
    classes = merge_spellings(itertools.chain(*names.values()))
    labels = {name: label for label, name in enumerate(sorted(set(classes.values())))}
    if not labels:
        raise InputError(_nothing(folder, loose, left_out))
    tests = draw_test_classes(labels, test_share=test_share, seed=seed)
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
    """The message for a folder without classes."""
    has = "no images"
    if loose:
        count = f"{len(loose):,} image{'s' * (len(loose) > 1)}"
        has = f"{count} but no folder with images. Each class needs a folder"
    expected = (
        f"{folder} has {has}. Expected {folder}/<class>/<image>, or the same inside its folders train and"
        f" test, or train, query and gallery, where an image ends in {', '.join(SUFFIXES)}."
    )
    return " ".join([expected, *_sentences([], left_out)])


def _sentences(loose, left_out):
    """Messages on files that were left out: images outside class folders, other files by suffix, and HEIC."""
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
    # A file name may hold bytes that are not valid text and cannot be printed.
    return [sentence.encode(errors="backslashreplace").decode() for sentence in sentences]


def _inner(folder):
    """The folder of the classes: `folder`, or the only folder in it if that has folders and no images."""
    entries = _entries(folder)
    only = entries[0] if len(entries) == 1 and _is_folder(entries[0]) else None
    if only and only.name not in PARTS:
        kinds = {_is_folder(entry) for entry in _entries(only.path) if _is_folder(entry) or _is_image(entry)}
        return only.path if kinds == {True} else folder
    return folder


def _has_all(folder, parts):
    return all(os.path.isdir(os.path.join(folder, part)) for part in parts)


def _class_names(folder, part, left_out):
    """Names of the folders with images, sorted; files in folders without images are added to `left_out`."""
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
    """Images directly in a folder of classes, in no class, sorted; HEIC files are added to `left_out`."""
    for entry in _entries(os.path.join(folder, part)):
        suffix = os.path.splitext(entry.name)[1].lower()
        if not _is_folder(entry) and _is_image(entry):
            yield os.path.join(part, entry.name)
        elif not _is_folder(entry) and suffix in HEIC:
            left_out[suffix] += 1


def _images(folder, part, name, left_out):
    """Paths of the images of a class, relative to `folder`, sorted; counts other files by suffix."""
    above = {_identity(folder), _identity(os.path.join(folder, part))}
    yield from _walk(folder, f"{part}/{name}" if part else name, above, left_out)


def _walk(folder, inside, above, left_out):
    """Paths of the images inside a folder; none if a link made it one of the folders `above` it."""
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
    """Entries of a folder that are not hidden, sorted by name."""
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
    """Whether an entry is a folder or a link to an existing one; only links cost a disk access."""
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _is_image(entry):
    return entry.name.lower().endswith(SUFFIXES)


def _identity(folder):
    status = os.stat(folder)
    return status.st_dev, status.st_ino
