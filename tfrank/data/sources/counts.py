"""Compares the counts of a data set that was read with the official counts."""

from collections.abc import Mapping

from tfrank.data.sources.image import Count, Source


def compare_counts(source: Source, counts: Mapping[str, Count]) -> list[str]:
    """Returns a line for each part of a data set whose number of classes or images differs.

    A missing part counts as empty. The data set's remark, if any, comes last.

    Args:
        source: the data set, with its official counts.
        counts: counts that were found, with the same keys; other keys are ignored.

    >>> sop = Source(read=iter, counts={"train": Count(11_318, 59_551)})
    >>> compare_counts(sop, {"train": Count(11_318, 59_550)})
    ['train: 59,550 images of 11,318 classes; officially 59,551 of 11,318: 1 image fewer.']
    """
    lines = [
        _difference(part, counts.get(part, Count(0, 0)), official) for part, official in source.counts.items()
    ]
    remark = [source.remark] if source.remark else []
    return [line for line in lines if line] + remark


def _difference(part: str, found: Count, official: Count) -> str:
    """Returns the line of a part; "" if its counts are the official ones."""
    images, classes = _amount(found.images, "image"), ""
    officially, differences = f"{official.images:,}", [_change(found.images, official.images, "image")]
    if None not in (found.classes, official.classes):
        classes = f" of {_amount(found.classes, 'class')}"
        officially += f" of {official.classes:,}"
        differences.append(_change(found.classes, official.classes, "class"))
    change = ", ".join(filter(None, differences))
    return f"{part}: {images}{classes}; officially {officially}: {change}." if change else ""


def _change(found: int, official: int, noun: str) -> str:
    """Returns "1 image fewer", "2 classes more", or "" if nothing differs."""
    if found == official:
        return ""
    return f"{_amount(abs(found - official), noun)} {'more' if found > official else 'fewer'}"


def _amount(number: int, noun: str) -> str:
    """Returns "1 image", "2 images", "2 classes"."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"
