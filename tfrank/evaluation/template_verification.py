"""Template verification of IJB-C: whether two sets of images show one person, for a given list of pairs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.evaluation.parallel import in_parallel
from tfrank.evaluation.verification import BLOCK_PAIRS, rates

# The false accept rates in IJB-C's tables.
TEMPLATE_FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


class TemplatePairs(NamedTuple):
    """The templates that images belong to, and the pairs of templates to compare.

    Attributes:
        template: `[images]` integers, the template of an image.
        media: `[images]` integers, the photo or video that an image comes from.
        pairs: `[pairs, 3]` integers, an array or a memory map: two templates, and 1 if they show one person,
            0 if they show two.
    """

    template: np.ndarray
    media: np.ndarray
    pairs: np.ndarray

    @property
    def names(self) -> np.ndarray:
        """`[templates]` the numbers of the templates, ascending."""
        return np.unique(self.template)


def template_embeddings(embeddings: np.ndarray, templates: TemplatePairs) -> np.ndarray:
    """One embedding for each template: the mean over its media of the mean over its images, normalised.

    InsightFace evaluates IJB-C this way. A video weighs as much as a photo. Means of media are not
    normalised, and all images of a media count the same: neither the face detector's score nor the norm of an
    embedding is a weight.

    Args:
        embeddings: `[images, dim]` float32, unit norm, an array or a memory map.
        templates: the templates of the images.

    Returns:
        `[templates, dim]` float32 in the order of `names`, of unit norm; zeros if the images cancel out.

    >>> rows = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    >>> pairs = TemplatePairs(np.array([5, 5, 5]), np.array([1, 1, 2]), np.empty([0, 3], int))
    >>> print(template_embeddings(rows, pairs).round(4))
    [[0.7071 0.7071]]
    """
    order = np.lexsort((templates.media, templates.template))
    template, media = templates.template[order], templates.media[order]
    new_template = np.diff(template, prepend=template[0] - 1) != 0
    of_media = np.cumsum(new_template | (np.diff(media, prepend=media[0] - 1) != 0)) - 1
    weights = 1 / np.bincount(of_media)[of_media]
    starts = np.flatnonzero(new_template)
    sums = np.empty([len(starts), embeddings.shape[1]], np.float32)
    for row, (start, end) in enumerate(zip(starts, [*starts[1:], len(order)])):
        sums[row] = weights[start:end] @ embeddings[order[start:end]].astype(np.float64)
    return l2_normalize(sums).numpy()


def check_templates(templates: TemplatePairs) -> None:
    """Raises InputError if a template of a pair has no image, or all pairs are positive or all negative."""
    missing = np.setdiff1d(templates.pairs[:, :2], templates.template)
    if len(missing):
        raise InputError(
            f"The pairs name template {missing[0]}, but the test set has no image of it ({len(missing):,}"
            f" such template{'s' * (len(missing) > 1)}). Prepare the records again, from all images."
        )
    same = int(np.count_nonzero(templates.pairs[:, 2]))
    if not 0 < same < len(templates.pairs):
        raise InputError(
            f"Verification needs pairs of one person and pairs of two. {same:,} of {len(templates.pairs):,}"
            " pairs of templates are of one person."
        )


def template_verification(
    embeddings: np.ndarray, templates: TemplatePairs, *, fars: Sequence[float] = TEMPLATE_FARS
) -> dict[str, float]:
    """ROC-AUC and true accept rates at false accept rates, over the listed pairs of templates.

    Templates are embedded by `template_embeddings` and compared by the cosine. The rates are defined in
    `verification.verification`.

    Args:
        embeddings: `[images, dim]` float32, unit norm, an array or a memory map.
        templates: the templates of the images, and the pairs.
        fars: false accept rates, above 0, below 1. Those below 1 / (negative pairs) are left out.

    Returns:
        `roc_auc` and `tar_at_far_<far>` for each FAR, 0 to 1; the numbers of `templates`, `positive_pairs`
        and `negative_pairs`.

    Raises:
        InputError: see `check_templates`.
    """
    fars = checks.sequence("fars", fars, checks.number, above=0, below=1)
    check_templates(templates)
    rows, names, pairs = template_embeddings(embeddings, templates), templates.names, templates.pairs

    def of_block(start):
        first, second = np.searchsorted(names, pairs[start : start + BLOCK_PAIRS, :2]).T
        return np.vecdot(rows[first], rows[second])

    similarities = np.concatenate(list(in_parallel(of_block, range(0, len(pairs), BLOCK_PAIRS))))
    same = np.asarray(pairs[:, 2], bool)
    found = rates(np.sort(similarities[same]), np.sort(similarities[~same]), fars)
    return {**found, "templates": len(names)}
