"""Omniglot (Lake et al., 2015): handwritten characters, in the official archives as they are.

`images_background_small1.zip` and its kin, or a folder they were unpacked to, hold
`<archive>/<alphabet>/character<nn>/<drawing>.png`, 20 drawings of 105x105 pixels a character.
"""

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence

from tfrank.checks import InputError, did_you_mean
from tfrank.data.records import ImageRecord


def read_omniglot(source: str, alphabets: Sequence[str]) -> Iterator[ImageRecord]:
    """The drawings of these alphabets; a class is a character of an alphabet.

    Args:
        source: path of an official zip archive, or of the folder it unpacks to.
        alphabets: their names, as the archive spells them.

    Raises:
        InputError: where the source is missing, empty, damaged, or lacks an alphabet.
    """
    names, read = _open(source)
    # Archives repacked on a Mac have a hidden file beside every drawing.
    shown = (name for name in names if not name.rsplit("/", 1)[-1].startswith("."))
    drawings = sorted(name for name in shown if name.endswith(".png") and name.count("/") >= 2)
    if not drawings:
        raise InputError(
            f"{source} has no drawings <alphabet>/<character>/<drawing>.png. Is it an Omniglot archive?"
        )
    known = sorted({name.split("/")[-3] for name in drawings})
    for alphabet in alphabets:
        if alphabet not in known:
            raise InputError(
                f"{source} has no alphabet {alphabet!r}.{did_you_mean(alphabet, known)}"
                f" It has {', '.join(known)}."
            )
    drawings = [name for name in drawings if name.split("/")[-3] in alphabets]
    characters = sorted({tuple(name.split("/")[-3:-1]) for name in drawings})
    labels = {character: label for label, character in enumerate(characters)}
    for name in drawings:
        alphabet, character, file = name.split("/")[-3:]
        yield ImageRecord(
            encoded=read(name),
            format="png",
            label=labels[alphabet, character],
            text=f"{alphabet}/{character}",
            filename=name,
            id=f"{alphabet}/{character}/{file.removesuffix('.png')}",
        )


def _open(source: str) -> tuple[list[str], Callable[[str], bytes]]:
    """The names of the files in an archive or folder, with forward slashes, and how to read one."""
    if os.path.isdir(source):
        return _folder(source)
    if not os.path.isfile(source):
        raise InputError(
            f"Omniglot is not at data.source={source!r}. Give the path of an official archive, such as"
            " images_background_small1.zip, or of the folder it unpacks to: --config.data.source=PATH"
        )
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, NotImplementedError, OSError) as error:
        raise InputError(f"{source} is not a whole zip archive ({error}). Download it again.") from None

    def read(name):
        try:
            return archive.read(name)
        except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError) as error:
            raise InputError(f"{source}: {name} is damaged ({error}). Download the archive again.") from None

    return archive.namelist(), read


def _folder(source):
    names = [
        os.path.relpath(os.path.join(folder, file), os.path.dirname(os.path.abspath(source))).replace(
            os.sep, "/"
        )
        for folder, _, files in os.walk(os.path.abspath(source))
        for file in files
    ]

    def read(name):
        with open(os.path.join(os.path.dirname(os.path.abspath(source)), name), "rb") as file:
            return file.read()

    return names, read
