"""Face verification: metrics of deciding by similarity whether two images are of one class."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.opis import ClassPairs, opis
from tfrank.evaluation.parallel import in_parallel

FARS = (1e-1, 1e-2, 1e-3, 1e-4)
MAX_PAIRS = 10_000_000
# Pairs that a thread processes at a time. Their rows, 2 x 1 MiB in float32 at dim 512, fit into the cache.
BLOCK_PAIRS = 2**9


def verification(
    embeddings: np.ndarray,
    labels: np.ndarray,
    *,
    fars: Sequence[float] = FARS,
    max_pairs: int = MAX_PAIRS,
    seed: int = 0,
) -> dict[str, float]:
    """ROC-AUC and true accept rates (TAR) at false accept rates (FAR), over pairs of different images.

    A pair is positive if its labels are equal, else negative. With P positive pairs of similarities p, and N
    negative pairs of similarities n,

        roc_auc    = 1/(P N) sum over p, n of [p > n] + [p = n] / 2
        TAR at FAR = 1/P #{p: p > t}, where t is the smallest n with #{n: n > t} <= FAR N

    TAR is the share of positives at or above the smallest threshold that accepts at most a share FAR of the
    negatives. A positive as similar as a negative that must be refused is refused. Apart from ties this is
    the measure of IJB-B and IJB-C (Whitelam et al., CVPR Workshops 2017). If there are more than `max_pairs`
    positive or negative pairs, `max_pairs` of them are drawn at random, with replacement. Ten million pairs
    at dim 512 take 4 s of processor time.

    Args:
        embeddings: `[images, dim]` float32, unit norm, an array or a memory map.
        labels: `[images]` integers.
        fars: false accept rates, above 0, below 1. Those below 1 / (negative pairs) cannot be measured and
            are left out; see `note`.
        max_pairs: maximum number of positive pairs, and of negative pairs.
        seed: seed of the drawn pairs.

    Returns:
        `roc_auc` and `tar_at_far_<far>` for each FAR, 0 to 1; `opis`, how differently one threshold suits the
        classes, 0 to 0.25, see `tfrank.evaluation.opis.opis`, if there are enough pairs; `positive_pairs` and
        `negative_pairs`, the numbers of compared pairs; `all_positive_pairs` and `all_negative_pairs`, the
        numbers of all pairs.

    Raises:
        InputError: there is no positive or no negative pair, or an argument is out of range.

    >>> rows = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1]], np.float32)
    >>> found = verification(rows, np.array([7, 7, 7, 8]), fars=[0.5])
    >>> round(found["roc_auc"], 4), round(found["tar_at_far_0.5"], 4), found["negative_pairs"]
    (0.7778, 0.6667, 3)
    """
    fars = checks.sequence("fars", fars, checks.number, above=0, below=1)
    max_pairs = checks.integer("max_pairs", max_pairs, at_least=1)
    check_pairs(labels)
    rng = np.random.default_rng(checks.integer("seed", seed, at_least=0))
    same, different = pairs_by_class(labels)
    numbers = [pairs.drawn(max_pairs, rng) for pairs in (same, different)]
    positives, negatives = (
        pair_similarities(embeddings, pairs, drawn) for pairs, drawn in zip((same, different), numbers)
    )
    consistency = opis(
        _with_classes(positives, same, numbers[0], labels),
        _with_classes(negatives, different, numbers[1], labels),
    )
    return {
        **({} if consistency is None else {"opis": consistency}),
        **rates(np.sort(positives), np.sort(negatives), fars),
        "all_positive_pairs": same.total,
        "all_negative_pairs": different.total,
    }


class Pairs(NamedTuple):
    """Numbered pairs of images, which are not stored.

    Attributes:
        order: `[images]` numbers of the images.
        ends: `[images]` the number of the first pair behind those of image `order[i]` as the first one.
        offset: `[images]` the place in `order` of a pair's second image, less the number of the pair.
    """

    order: np.ndarray
    ends: np.ndarray
    offset: np.ndarray

    @property
    def total(self) -> int:
        """The number of pairs."""
        return int(self.ends[-1])

    def drawn(self, most: int, rng: np.random.Generator) -> np.ndarray:
        """The numbers of all pairs; of more than `most`, that many at random with replacement, ascending."""
        total = self.total
        return np.arange(total) if total <= most else np.sort(rng.integers(total, size=most))

    def images(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The two images of each of the pairs with these numbers."""
        i = np.searchsorted(self.ends, numbers, side="right")
        return self.order[i], self.order[numbers + self.offset[i]]


def pairs_by_class(labels: np.ndarray) -> tuple[Pairs, Pairs]:
    """The pairs of images of one class, and those of different classes.

    >>> same, different = pairs_by_class(np.array([7, 8, 7]))
    >>> same.images(np.arange(same.total)), different.total
    ((array([0]), array([2])), 2)
    """
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    behind, end = np.arange(len(order)) + 1, np.searchsorted(ordered, ordered, side="right")

    def with_places(first, last):
        """Image `order[i]` with each of `order[first[i] : last[i]]`; the pairs of i follow those of i - 1."""
        ends = np.cumsum(last - first)
        return Pairs(order, ends, last - ends)

    return with_places(behind, end), with_places(end, len(order))


def _with_classes(similarities, pairs, numbers, labels):
    """The similarities of the pairs with these numbers, and the numbers of their images' classes."""
    place = np.unique(labels, return_inverse=True)[1]
    return ClassPairs(similarities, *(place[images] for images in pairs.images(numbers)))


def pair_similarities(embeddings: np.ndarray, pairs: Pairs, numbers: np.ndarray) -> np.ndarray:
    """The similarity of each of the pairs with these numbers."""

    def of_block(start):
        one, other = pairs.images(numbers[start : start + BLOCK_PAIRS])
        return np.vecdot(embeddings[one], embeddings[other])

    return np.concatenate(list(in_parallel(of_block, range(0, len(numbers), BLOCK_PAIRS))))


def rates(positives: np.ndarray, negatives: np.ndarray, fars: Sequence[float]) -> dict[str, float]:
    """ROC-AUC and TARs as defined in `verification`, from similarities of pairs, and the numbers of pairs.

    Args:
        positives: `[positives]` similarities of positive pairs, ascending.
        negatives: `[negatives]` similarities of negative pairs, ascending.
        fars: false accept rates; those below 1 / negatives are left out.
    """
    accepted = {far: _accepted(far, len(negatives)) for far in fars}
    return {
        "roc_auc": _roc_auc(positives, negatives),
        **{
            f"tar_at_far_{far:g}": _tar(positives, negatives, count)
            for far, count in accepted.items()
            if count
        },
        "positive_pairs": len(positives),
        "negative_pairs": len(negatives),
    }


def check_pairs(labels: np.ndarray) -> None:
    """Raises InputError unless these labels give both a positive and a negative pair."""
    _, sizes = np.unique(labels, return_counts=True)
    if len(sizes) < 2 or sizes.max() < 2:
        raise InputError("Verification needs images of two classes, and a class with two images.")


def note(found: Mapping[str, float], fars: Sequence[float] = FARS) -> str:
    """A note for the reader of results of `verification` or `rates`: pairs drawn, FARs left out; or "".

    >>> rows, labels = np.eye(20, dtype=np.float32), np.arange(20) // 2
    >>> note(verification(rows, labels))
    'FAR 0.001, 0.0001 left out: 180 negative pairs are too few for such a rate.'
    """
    left_out = ", ".join(f"{far:g}" for far in fars if f"tar_at_far_{far:g}" not in found)
    notes = [
        f"{found[f'{kind}_pairs']:,} of {found[f'all_{kind}_pairs']:,} {kind} pairs, drawn at random."
        for kind in ("positive", "negative")
        if found[f"{kind}_pairs"] < found.get(f"all_{kind}_pairs", 0)
    ]
    if left_out:
        pairs = f"{found['negative_pairs']:,} negative pairs"
        notes.append(f"FAR {left_out} left out: {pairs} are too few for such a rate.")
    return " ".join(notes)


def _roc_auc(positives: np.ndarray, negatives: np.ndarray) -> float:
    """The share of (positive, negative) in which the positive is greater; ties count half. Both ascend."""
    below = np.searchsorted(negatives, positives, side="left")
    not_above = np.searchsorted(negatives, positives, side="right")
    return float((np.mean(below) + np.mean(not_above)) / 2 / len(negatives))


def _accepted(far: float, negatives: int) -> int:
    """The largest number of negatives that is at most a share `far` of all."""
    accepted = int(far * negatives)
    # The product may be rounded to just below an integer.
    return accepted + ((accepted + 1) / negatives <= far)


def _tar(positives: np.ndarray, negatives: np.ndarray, accepted: int) -> float:
    """The share of positives above the greatest negative that is not accepted. Both ascend."""
    refused = negatives[len(negatives) - accepted - 1]
    return float(np.mean(positives > refused))
