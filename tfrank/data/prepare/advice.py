"""What about a folder of photos misleads a model or its results, one sentence each."""

from collections.abc import Mapping

import numpy as np

from tfrank.common import files
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.index import RecordIndex

# The usual size of images that models see, in pixels.
USUAL_SIDE = 224
# A class is large if it has this share of all photos, and so many times those of the median class.
LARGE_SHARE, LARGE_TIMES = 0.1, 3


def advice(
    indexes: Mapping[str, RecordIndex], looks: Mapping[str, np.ndarray], names: Mapping[int, str]
) -> list[str]:
    """Returns sentences on what misleads, that of most photos first.

    Args:
        indexes: the index of each split, by name.
        looks: the `shards.LOOK` of each record, by split.
        names: the name of each class.
    """
    ids, labels, seen = (
        np.concatenate(parts)
        for parts in (
            [index.id for index in indexes.values()],
            [index.label for index in indexes.values()],
            [looks[split] for split in indexes],
        )
    )
    # Vectors have no thumbnails.
    if not len(labels) or not seen["thumbnail"].any():
        return []
    classes, counts = np.unique(labels[labels != UNKNOWN], return_counts=True)
    screens, small = (np.flatnonzero(one) for one in (seen["screenshot"], seen["side"] < USUAL_SIDE))
    found, total = [*_sizes_of_classes(classes, counts, names)], f"{len(labels):,} photos"
    if len(small):
        found.append(
            (
                len(small),
                f"{len(small):,} of {total} have a shorter side below {USUAL_SIDE} pixels, such"
                f" as {_name(ids[small[0]])} ({seen['side'][small[0]]}). Models enlarge them. Take larger"
                " originals if you have them.",
            )
        )
    # Where most photos have the size of a screen, they are no screenshots among photos.
    if 0 < len(screens) <= len(labels) / 2:
        found.append(
            (
                len(screens),
                f"{len(screens):,} of {total} look like screenshots, such as"
                f" {_name(ids[screens[0]])}: PNG files of a screen's size that name no camera. Remove those"
                " that are.",
            )
        )
    return [sentence for _, sentence in sorted(found, key=lambda one: -one[0])]


def _sizes_of_classes(classes, counts, names):
    """Yields number of photos and sentence on classes of one photo, and on large classes."""
    if len(single := classes[counts == 1]):
        are = "class has" if len(single) == 1 else "classes have"
        yield (
            len(single),
            f"{len(single):,} {are} one photo, such as {_of(names, single[0])}: it can neither be found nor"
            " learnt from. Add photos of it.",
        )
    usual = np.median(counts) if len(counts) else 0
    large = (counts >= LARGE_SHARE * counts.sum()) & (counts >= LARGE_TIMES * usual)
    for label, count in zip(classes[large], counts[large]):
        yield (
            int(count),
            f"Class {_of(names, label)} has {count:,} of {counts.sum():,} photos"
            f" ({count / counts.sum():.0%}) and dominates the results. Remove some of its photos.",
        )


def _of(names, label):
    return files.text_of(names.get(int(label), str(label)))


def _name(image_id):
    return files.text_of(image_id.decode(errors="surrogateescape"))
