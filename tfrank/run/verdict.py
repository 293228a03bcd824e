"""Warnings of a run that did not improve its model, with advice on what to try."""

import csv
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfrank.training.trainer import NOTHING, Best

# The mean loss is compared between the first and the last SHARE of the steps, at least FEWEST steps each.
SHARE, FEWEST = 0.1, 10
# The loss has fallen if it ends below this share of its initial value.
FALLEN = 0.98
COMPARED = {"recall_at_1": "Recall@1", "map": "mAP"}
# Models that the trained one is compared with, and what it means to be worse than each: in all metrics, or
# in some.
BEFORE = {
    "start": (
        "Training made the model worse on the test set",
        "Training improved some metrics on the test set and worsened others",
    ),
    "vectors": (
        "The vectors themselves rank the test set better than the trained model",
        "Some metrics on the test set are better by the trained model, others by the vectors themselves",
    ),
}
TRY = (
    "Try a lower learning rate (--config.train.learning_rate), more training classes,{images} or another loss"
    " (--config=FILE.py:smooth_ap)."
)
LARGER = " larger images (--config.data.image_size),"


def best_sentence(best: Best | None, steps: int) -> str:
    """A sentence on which weights are evaluated and exported; `best` is None without validation.

    >>> best_sentence(Best(150, 0.63, 0.59), 1000)
    'Best: step 150 of 1,000. Its mAP on the validation classes is 0.6300, and that of the start 0.5900.'
    """
    if best is None:
        return f"The weights of the last step, {steps:,}."
    if not best.step:
        value = f"{best.start:.4f}"
        return f"Best: the start. Its mAP on the validation classes is {value}, and no later step has more."
    return (
        f"Best: step {best.step:,} of {steps:,}. Its mAP on the validation classes is {best.value:.4f}, and"
        f" that of the start {best.start:.4f}."
    )


def warnings_of(
    rows: Mapping[str, Mapping[str, float]], best: Best | None, losses: Sequence[float]
) -> list[str]:
    """The warnings for a run that did not improve its model; empty if it did.

    Args:
        rows: metrics on the test set by the name of a model; "trained" is compared with those of `BEFORE`.
        best: the best weights by validation; None without validation.
        losses: the losses of all steps.
    """
    advice = TRY.format(images="" if "vectors" in rows else LARGER)
    # The first is enough: the start of a head is as good as the vectors.
    compared = (
        _on_ranking(rows[name], rows["trained"], *words) for name, words in BEFORE.items() if name in rows
    )
    found = [f"{sentence} {advice}" for sentence in filter(None, compared)][:1]
    if best and not best.step:
        found.append(
            "No step was better than the start on the validation classes, so the start is what was measured"
            f" and exported. {advice}"
        )
    if sentence := _on_losses(losses):
        found.append(sentence)
    return found


def _on_ranking(before, after, worse, mixed):
    """A sentence if a metric fell, else ""; `worse` and `mixed` are its beginnings."""
    changes = {
        title: (before[metric], after[metric]) for metric, title in COMPARED.items() if metric in before
    }
    fell = [title for title, (old, new) in changes.items() if new < old]
    if not fell:
        return ""
    rose = any(new > old for old, new in changes.values())
    numbers = (f"{title} {old:.4f} before, {new:.4f} now" for title, (old, new) in changes.items())
    return f"{mixed if rose else worse}: {'; '.join(numbers)}."


def losses_to_judge(loss: Any, workdir: str) -> list[float]:
    """The losses of a run's steps, to judge whether the model learnt; [] for losses that need not fall.

    A mean over the pairs or triplets that violate a margin need not fall: fewer violate it, but as strongly.
    """
    over_violators = loss.name == "tcm" or getattr(loss, "average", "") == "nonzero"
    return [] if over_violators else read_losses(workdir)


def read_losses(folder: str) -> list[float]:
    """The losses of a run's steps, from its `training.csv`."""
    path = os.path.join(folder, "training.csv")
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]


def _on_losses(losses):
    """A sentence if the loss did not fall, else ""."""
    count = max(FEWEST, int(SHARE * len(losses)))
    if len(losses) < 2 * count:
        return ""
    first, last = np.mean(losses[:count]), np.mean(losses[-count:])
    if last < FALLEN * first:
        return ""
    if max(first, last) < NOTHING:
        return (
            f"There was nothing to learn: the loss is {first:.4f} from the first steps on, so the start"
            " already ranks the training images rightly. More training classes that look alike would teach"
            " the model more."
        )
    return (
        f"The loss did not fall: {first:.4f} in the first {count} steps, {last:.4f} in the last. The model"
        " has learnt next to nothing. Try a higher learning rate (--config.train.learning_rate), or a loss"
        " whose gradient reaches far positives (--config=FILE.py:multi_similarity)."
    )
