"""Omniglot (Lake et al., 2015): handwritten characters, in the official layout.

`images_background_small1.zip` and the other archives hold `<archive>/<alphabet>/character<nn>/<drawing>.png`,
with 20 drawings of 105x105 pixels per character.
"""

import os
from collections.abc import Iterable, Iterator, Sequence

from tfrank.common import checks
from tfrank.common.checks import InputError, did_you_mean
from tfrank.data.sources.image import SourceImage


def read_omniglot(folder: str, *, train: Sequence[str], test: Sequence[str]) -> Iterator[SourceImage]:
    """Yields the drawings of these alphabets; a class is a character of an alphabet.

    Args:
        folder: the folder that an official archive unpacks to, or the folder above it.
        train, test: alphabets, as the archive spells them.

    Raises:
        InputError: `train` or `test` is not a list, or the folder has no drawings or lacks an alphabet.
    """
    for name, value in (("train", train), ("test", test)):
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise checks.invalid(name, "a list of alphabets", value)
    drawings = sorted(_drawings(folder))
    if not drawings:
        raise InputError(
            f"{folder} has no drawings <alphabet>/<character>/<drawing>.png. Give the folder of an Omniglot"
            " archive."
        )
    known = sorted({path.split("/")[-3] for path in drawings})
    for alphabet in (*train, *test):
        if alphabet not in known:
            raise InputError(
                f"{folder} has no alphabet {alphabet!r}.{did_you_mean(str(alphabet), known)}"
                f" It has {', '.join(known)}."
            )
    characters = sorted({tuple(path.split("/")[-3:-1]) for path in drawings})
    labels = {character: label for label, character in enumerate(characters)}
    for split, alphabets in (("train", train), ("test", test)):
        for path in drawings:
            alphabet, character, file = path.split("/")[-3:]
            if alphabet in alphabets:
                yield SourceImage(
                    split=split,
                    path=path,
                    label=labels[alphabet, character],
                    text=f"{alphabet}/{character}",
                    id=f"{alphabet}/{character}/{file.removesuffix('.png')}",
                )


def _drawings(folder: str) -> Iterator[str]:
    """Yields paths relative to the folder; they have two slashes if the folder is the alphabets' parent."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        path = os.path.relpath(place, folder).replace(os.sep, "/")
        # Skip hidden files: archives repacked on a Mac have one beside every drawing.
        if path.count("/") in (1, 2):
            yield from (f"{path}/{name}" for name in names if name.endswith(".png") and name[0] != ".")
