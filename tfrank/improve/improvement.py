"""Improves an index: learns a model from its groups, and switches to it where it is better."""

import math
import os
import shlex
from collections.abc import Mapping

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.evaluation.report.bootstrap import BootstrapInterval
from tfrank.export import joined
from tfrank.improve.groups import read_groups
from tfrank.improve.training import METRICS, Compared, compare, learner
from tfrank.search import building
from tfrank.search.embedder import Embedder
from tfrank.search.index import open_index
from tfrank.search.index_folder import IndexFolder
from tfrank.search.learnt import groups_of
from tfrank.search.originals import originals

# The folder in the index where a model is learnt.
WORK = "improve"


def improve(folder: str) -> None:
    """Learns a model from the groups of an index, and switches to it if it is better; prints what it does.

    Raises:
        InputError: there are fewer than four groups, or another process is at work.
    """
    # Before a folder is made in what may be no index.
    index = open_index(folder)
    work = index.files.path(WORK)
    with files.locked(work):
        groups = read_groups(index, os.path.join(work, "photos.tfrecord"))
        unread = (
            f" {groups.unread:,} labelled photo{'s' * (groups.unread != 1)} cannot be read as indexed."
            if groups.unread
            else ""
        )
        print(f"{len(groups.ids):,} photos of {len(groups.names):,} groups.{unread}", flush=True)
        learning = learner(groups, work, index.files.path("models", index.version.model))
        before, after = learning.before(), learning.parts(groups.records.label)
        compared = compare(before, after, groups.records.label)
        print(sentence(compared, len(groups.names)), flush=True)
        if is_better(compared):
            model = os.path.join(work, "saved_model")
            learning.export(model, after)
            _switch(folder, Embedder(model))
            print(f"To go back: tfrank improve --index_dir={shlex.quote(folder)} --back")
    files.remove(work)


def back(folder: str, *, trusted: bool = False) -> None:
    """Switches an index to the model that it had before, which it prints; then this one is the one before.

    Raises:
        InputError: it is no index, or it had no other model, or another process is at work.
    """
    index = IndexFolder(folder)
    now = index.current()
    if now is None or not now.before:
        raise InputError(f"{folder} had no other model before, so there is no way back.")
    before, after = (index.path("models", name) for name in (now.model, now.before))
    embedder, named = Embedder(after, trusted=trusted), _named(after, before)
    _switch(folder, embedder)
    print(f"It is back at {named}.")


def _named(model: str, other: str) -> str:
    """Returns what a model of an index is to people, of which the other one may be made."""
    if learnt := len({*groups_of(model).values()}):
        return f"the model that learnt from {learnt} groups"
    if originals(model):
        return "the model that was adapted to the photos"
    if joined.origin_of(other) == os.path.basename(model):
        return "the model as it is, not adapted"
    return f"the model {os.path.basename(model)}"


def _switch(folder: str, embedder: Embedder) -> None:
    done = building.update(folder, embedder, None)
    version = done.version
    print(
        f"Version {version.number} of {folder} has {version.rows:,} photos, {done.embedded:,} embedded now."
    )
    if done.unread:
        print(f"{done.unread:,} of them cannot be read now, and their thumbnails were embedded.")


def is_better(compared: Mapping[str, Compared]) -> bool:
    """Returns whether a model is better: its mAP is higher by more than chance, and Recall@1 is not lower.

    Of four groups, no interval can be given; then mAP may be lower for none, and higher for at least one.
    """
    ap, recall = compared["ap"], compared["recall_at_1"].difference
    higher = ap.difference.low > 0 if math.isfinite(ap.difference.low) else ap.everywhere
    return higher and recall.high >= 0


def sentence(compared: Mapping[str, Compared], groups: int) -> str:
    """Says how well both models find photos of groups that they have not learnt, and which one is used."""
    metrics = "; ".join(
        f"{METRICS[name]} {_shown(one.after)} after and {_shown(one.before)} before"
        for name, one in compared.items()
    )
    used = (
        "the new model is better and is used"
        if is_better(compared)
        else "the new model is not better, so the old one stays"
    )
    return f"Measured on {groups} groups, each held out once: {metrics}; {used}."


def _shown(found: BootstrapInterval) -> str:
    """Returns a mean with its interval, in percent.

    >>> _shown(BootstrapInterval(0.7, 0.612, 0.75, 40))
    '70.0 % (61.2 to 75.0)'
    """
    interval = f" ({100 * found.low:.1f} to {100 * found.high:.1f})" if math.isfinite(found.low) else ""
    return f"{100 * found.mean:.1f} %{interval}"
