"""The classes of users' own images: unifies their names, and draws the classes to test on."""

import collections
import re
import unicodedata
from collections.abc import Iterable

import numpy as np

from tfrank.common import checks


def draw_test_classes(classes: Iterable[str], *, test_share: float, seed: int) -> set[str]:
    """Returns the classes that are randomly drawn for "test"; the others are trained on.

    Args:
        classes: names.
        test_share: share of the classes that are drawn, 0 to 1; at least one is left to train on.
        seed: seed of the draw, at least 0. The same names and seed give the same classes.

    >>> sorted(draw_test_classes(["duck", "owl", "robin", "wren"], test_share=0.5, seed=0))
    ['duck', 'robin']
    """
    checks.number("test_share", test_share, at_least=0, at_most=1)
    checks.integer("seed", seed, at_least=0)
    names = sorted(set(classes))
    order = np.random.default_rng(seed).permutation(len(names))
    return {names[number] for number in order[: min(round(test_share * len(names)), len(names) - 1)]}


def merge_spellings(names: Iterable[str]) -> dict[str, str]:
    """Returns the class of each name; names that differ only in Unicode normalisation are one class.

    A Mac may write é as two characters (NFD); other systems write one (NFC). Prints a note for each class
    with several names.

    >>> merge_spellings(["caf\\u00e9", "owl"]) == {"caf\\u00e9": "caf\\u00e9", "owl": "owl"}
    True
    """
    classes = {name: unicodedata.normalize("NFC", name) for name in names}
    written = collections.defaultdict(list)
    for name in sorted(classes):
        written[classes[name]].append(name)
    for name, ways in written.items():
        if len(ways) > 1:
            print(
                f"Note: {' and '.join(map(ascii, ways))} look the same, {name}, and are one class.",
                flush=True,
            )
    return classes


def number_classes(names: Iterable[str]) -> dict[str, int]:
    """Returns the number of each name: its value if all are integers, else its position in sorted order.

    An integer has at most 64 bits and no leading zeros, so that 7 and 007 stay different.

    >>> number_classes(["12", "7"]) == {"12": 12, "7": 7}
    True
    >>> number_classes(["owl", "7"]) == {"7": 0, "owl": 1}
    True
    """
    names = sorted(set(names))
    if all(re.fullmatch("0|-?[1-9][0-9]{0,17}", name) for name in names):
        return {name: int(name) for name in names}
    return {name: number for number, name in enumerate(names)}
