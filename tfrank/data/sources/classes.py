"""The classes of users' own images: unifies their names, and draws the classes to test on."""

import collections
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfrank.common import checks, files
from tfrank.common.checks import did_you_mean
from tfrank.common.ignore_labels import UNKNOWN

SPLITS = ("train", "test")


class Classes(NamedTuple):
    """The classes of rows that name a label, a split and a category in words; see `divide`.

    Attributes:
        names: the class of each label.
        numbers: the number of each class.
        categories: the number of each category.
        tests: the classes that are tested on where a row names no split.
    """

    names: dict[str, str]
    numbers: dict[str, int]
    categories: dict[str, int]
    tests: set[str]

    def fields(self, label: str, split: str, category: str) -> dict[str, Any]:
        """Returns the fields of a row's `SourceImage` that its label, split and category determine.

        A row of the label -1 has no class. Without a split it is one to train on.
        """
        text = self.names[label]
        return {
            "split": split or ("test" if text in self.tests else "train"),
            "label": self.numbers[text],
            "text": text,
            "category": self.categories.get(category),
            "category_text": category,
        }


def divide(path: str, rows: Iterable[tuple[str, str, str]], *, test_share: float, seed: int) -> Classes:
    """Numbers the classes and categories of rows, and draws those to test on where a row has no split.

    Prints a note on splits of other names, and on the draw.

    Args:
        path: what the notes call the rows.
        rows: label, split and category of each, the last two may be "". The label -1 is no class.
        test_share, seed: see `draw_test_classes`.
    """
    labels, categories, splits = set(), set(), collections.Counter()
    for label, split, category in rows:
        labels.add(label)
        categories.add(category)
        splits[split] += 1
    _report_other_splits(path, splits)
    names = merge_spellings(labels - {str(UNKNOWN)})
    numbers = number_classes(names.values())
    tests = draw_test_classes(numbers, test_share=test_share, seed=seed)
    if "" in splits:
        print(
            f"{path} has no column split: {len(tests):,} of {len(numbers):,} classes, drawn at random,"
            " are tested on.",
            flush=True,
        )
    names, numbers = names | {str(UNKNOWN): ""}, numbers | {"": UNKNOWN}
    return Classes(names, numbers, number_classes(categories - {""}), tests)


def _report_other_splits(path: str, splits: Mapping[str, int]) -> None:
    """Prints all splits with their number of images if one is neither train nor test; it may be a typo."""
    others = [split for split in splits if split not in ("", *SPLITS)]
    if others:
        counts = ", ".join(f"{split} ({count:,})" for split, count in sorted(splits.items()))
        hints = (did_you_mean(split, SPLITS) for split in others if not split.startswith(SPLITS))
        print(
            f"Note: {path} has the splits {counts}, each with its number of images. Only train and test are"
            f" used unless a run names others.{''.join(hints)}",
            flush=True,
        )


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
                f"Note: {' and '.join(map(ascii, ways))} look the same, {files.text_of(name)}, and are one"
                " class.",
                flush=True,
            )
    _report_near_names(written)
    return classes


def _report_near_names(names: Iterable[str]) -> None:
    """Prints the first names that differ only in case and blanks; they may be one class, and they may not."""
    near = collections.defaultdict(list)
    for name in sorted(names):
        near[" ".join(name.casefold().split())].append(name)
    if alike := [some for some in near.values() if len(some) > 1]:
        first = " and ".join(map(ascii, alike[0]))
        print(
            f"Note: names of classes differ only in case or blanks, such as {first}. They are different"
            " classes. If they are one class, give them one name.",
            flush=True,
        )


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
