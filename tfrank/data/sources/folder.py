"""Your own images, one folder a class.

<class>/<image>.jpg                           divided into "train" and "test" by class
{train,test}/<class>/<image>.jpg              divided by you
{train,query,gallery}/<class>/<image>.jpg     the same, with queries and gallery apart
"""

import itertools
import os
from collections.abc import Iterator

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.data.sources.classes import draw_test_classes, merge_spellings
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.walk import SUFFIXES, UNREAD, strict_walk

# Split and role of the images of each folder.
LAYOUTS = (
    {"train": ("train", ""), "test": ("test", "")},
    {"train": ("train", ""), "query": ("test", "query"), "gallery": ("test", "gallery")},
)
UNDIVIDED = {"": ("", "")}
# Names that are unlikely to be classes.
PARTS = {"train", "training", "test", "val", "valid", "validation", "query", "gallery"}


def read_folder(folder: str, *, test_share: float = 0.5, seed: int = 0) -> Iterator[SourceImage]:
    """Yields the images in the class folders and in all folders inside them, sorted by path.

    If `folder` has the split folders of a layout above, the classes are inside those, and everything else is
    left out. The same name in two split folders is the same class. Classes are numbered by name. Names that
    differ only in Unicode normalisation are one class, and a note is printed.

    If `folder` contains nothing but one folder of such folders, that one is read. What is an image, and what
    is left out, is said at `walk.Walk`; images outside class folders are left out too. At the end it prints
    what was left out.

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
    walk = strict_walk(folder)
    found = {part: walk.entries(part) for part in sorted({"", *layout})}
    # The same photos may be in several splits, by links.
    walks = {part: walk.part(part) for part in layout}
    names = {part: _class_names(walks[part], part, found[part].folders) for part in layout}
    loose = [path for part, entries in found.items() for path in _loose(walk, part, entries)]
    if layout is UNDIVIDED and (parts := PARTS & set(names[""])):
        raise InputError(
            f"{folder} has the folders {', '.join(sorted(parts))}. If they are splits, name them train and"
            " test, or train, query and gallery. If they are classes, rename them."
        )
    classes = merge_spellings(itertools.chain(*names.values()))
    labels = {name: label for label, name in enumerate(sorted(set(classes.values())))}
    if not labels:
        raise InputError(_nothing(folder, loose, _left_out(walk, walks)))
    tests = draw_test_classes(labels, test_share=test_share, seed=seed)
    for part, (split, role) in layout.items():
        for name in names[part]:
            text = classes[name]
            drawn = "test" if text in tests else "train"
            for inside in walks[part].images(_join(part, name)):
                path = os.path.relpath(os.path.join(folder, inside), outer)
                yield SourceImage(
                    split=split or drawn, path=path, label=labels[text], text=text, id=inside, role=role
                )
    for line in [*_outside(loose), *_left_out(walk, walks)]:
        print(line, flush=True)


def _left_out(walk, walks):
    """Sentences on what a walk and those of its parts have left out."""
    for one in walks.values():
        walk.add(one)
    return walk.left_out()


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
    return " ".join([expected, *left_out])


def _outside(loose):
    """A sentence on the images outside class folders, if there are any."""
    if len(loose) == 1:
        yield f"1 image is in no class's folder and left out: {files.text_of(loose[0])}. Move it into one."
    elif loose:
        yield (
            f"{len(loose):,} images are in no class's folder and left out, such as {files.text_of(loose[0])}."
            " Move each into the folder of its class."
        )


def _inner(folder):
    """The folder of the classes: `folder`, or the only folder in it if that has folders and no images."""
    found = strict_walk(folder).entries()
    if len(found.folders) == 1 and not found.images and not found.others and found.folders[0] not in PARTS:
        only = os.path.join(folder, found.folders[0])
        inside = strict_walk(only).entries()
        return only if inside.folders and not inside.images else folder
    return folder


def _has_all(folder, parts):
    return all(os.path.isdir(os.path.join(folder, part)) for part in parts)


def _class_names(walk, part, folders):
    """Names of the folders with images, sorted; what is in folders without images is counted as left out."""
    names = []
    for name in folders:
        look = walk.look()
        if next(look.images(_join(part, name)), None):
            names.append(name)
        else:
            walk.add(look)
    return names


def _loose(walk, part, found):
    """Images directly in a folder of classes, in no class, sorted; counts pictures that cannot be read."""
    for name in found.others:
        suffix = os.path.splitext(name)[1].lower()
        walk.others[suffix] += suffix in UNREAD
    return [_join(part, name) for name in found.images]


def _join(part, name):
    return f"{part}/{name}" if part else name
