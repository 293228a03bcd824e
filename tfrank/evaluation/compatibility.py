"""Whether embeddings of a new model may search those of an old one: Recall@1 and mAP of three searches."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfrank.evaluation.evaluate_arrays import evaluate
from tfrank.evaluation.report.bootstrap import BootstrapInterval, paired_bootstrap

# By the name that a reader sees.
METRICS = {"Recall@1": "recall_at_1", "mAP": "ap"}
SEARCHES = ("old in old", "new in old", "new in new")


class Upgrade(NamedTuple):
    """A metric of an upgrade, with 95 % intervals over classes.

    Attributes:
        old, between, new: means of old queries in old embeddings, new in old, and new in new.
        difference: of `between` to `old`, over the same queries.
    """

    old: BootstrapInterval
    between: BootstrapInterval
    new: BootstrapInterval
    difference: BootstrapInterval

    @property
    def kept(self) -> float:
        """The share of the gain of embedding all images again; NaN if there is no gain."""
        gain = self.new.mean - self.old.mean
        return self.difference.mean / gain if gain > 0 else np.nan


def measure_upgrade(
    old: np.ndarray,
    gallery: np.ndarray,
    new: np.ndarray,
    labels: np.ndarray,
    *,
    ignore_label: int | None = None,
) -> dict[str, Upgrade]:
    """Measures searches of each image among all others, by `METRICS`.

    Args:
        old: `[images, old dim]` embeddings of the old model.
        gallery: `[images, new dim]` what the new model is to search: the old embeddings if both are of one
            space, or mapped ones.
        new: `[images, new dim]` embeddings of the new model.
        labels: `[images]` integers.
        ignore_label: label of images without a class, which are left out.

    Raises:
        InputError: an embedding is not finite, shapes do not match, or no two images are of one class.

    >>> old = np.float32([[1, 0], [0.9, 0.2], [0, 1], [0.2, 0.9]])
    >>> found = measure_upgrade(old, old, old, np.array([0, 0, 1, 1]))
    >>> found["mAP"].between.mean, found["mAP"].difference.mean
    (1.0, 0.0)
    """
    ids = np.arange(len(labels)).astype(str)
    of_gallery = {"gallery_labels": labels, "ids": ids, "gallery_ids": ids}
    values = [
        evaluate(
            queries, labels, gallery_embeddings=rows, **of_gallery, ks=[1], ignore_label=ignore_label
        ).per_query
        for queries, rows in ((old, old), (new, gallery), (new, new))
    ]
    return compared(*values, labels)


def compared(
    old: Mapping[str, np.ndarray],
    between: Mapping[str, np.ndarray],
    new: Mapping[str, np.ndarray],
    labels: np.ndarray,
) -> dict[str, Upgrade]:
    """Returns the upgrade by `METRICS`, from metrics of the same queries by three searches, see `Upgrade`.

    Args:
        old, between, new: `[queries]` values by the name of a metric; NaN for a query that does not count.
        labels: `[queries]` integers. Whole classes are drawn for the intervals.
    """
    found, none = {}, np.zeros(len(labels))
    for title, metric in METRICS.items():
        three = [values[metric] for values in (old, between, new)]
        means = (paired_bootstrap(none, one, groups=labels) for one in three)
        found[title] = Upgrade(*means, paired_bootstrap(*three[:2], groups=labels))
    return found


def sentences(measured: dict[str, Upgrade], *, named: str = "old embeddings") -> list[str]:
    """Says how the searches do, and whether the upgrade is compatible; `named` is what new queries search.

    >>> one = BootstrapInterval(0.5, 0.4, 0.6, 90)
    >>> two = BootstrapInterval(-0.125, -0.25, -0.0625, 90)
    >>> sentences({"mAP": Upgrade(one, one, one, two)})[1]
    'New queries find less in old embeddings than old queries do: mAP -12.5 (-25.0 to -6.2).'
    """
    lines, worse = [], []
    for title, one in measured.items():
        means = ", ".join(f"{name} {_shown(mean)}" for name, mean in zip(SEARCHES, one))
        kept = "" if np.isnan(one.kept) else f". Kept of the gain: {one.kept:.0%}"
        lines.append(f"{title}: {means}{kept}.")
        if one.difference.mean < 0:
            worse.append(f"{title} {_shown(one.difference)}")
    if worse:
        lines.append(f"New queries find less in {named} than old queries do: {', '.join(worse)}.")
    return lines


def _shown(found: BootstrapInterval) -> str:
    """Returns a mean with its interval, in percent."""
    interval = f" ({100 * found.low:.1f} to {100 * found.high:.1f})" if np.isfinite(found.low) else ""
    return f"{100 * found.mean:.1f}{interval}"
