"""Is an image of one of an index's classes, and which: scores, promises, and a class of five photos.

    tfrank index --images=cub50 --index_dir=runs/cub50
    python -m benchmarks.classify --indexes=runs/cub50[,runs/caltech101,...] [--splits=5]

The indexes are of labelled photos. Prints three tables, of means over random splits:

- scores: half of the classes are unknown, and half of the images of each other class are the gallery, as in
  `tfrank.evaluation.open_sets`. All other images are classified by the gallery, and have a score by which
  images of known classes are to be told from unknown ones.
- promises: what comes of a wanted false accept rate, which the gallery learns its threshold at.
- a class of five: the gallery has half of the images of each class, and of one class five. Each class is the
  one of five in turn.
"""

import numpy as np
from absl import app, flags

from tfrank.evaluation.open_sets import classified, divided, open_set
from tfrank.evaluation.verification import rates
from tfrank.evaluation.votes import of_similarities
from tfrank.search import open as open_index

_INDEXES = flags.DEFINE_list("indexes", None, "Index folders.", required=True)
_SPLITS = flags.DEFINE_integer("splits", 5, "Number of random splits.", lower_bound=1)

FARS = (0.01, 0.05, 0.1, 0.2)
# Photos of the class that is added.
FEW = 5


def by_votes(queries, gallery, labels):
    """The label and the score of `tfrank.evaluation.votes`."""
    found = classified(queries, gallery, labels)
    return found.label, found.score


def by_class(depth: int, *, margin: bool = False):
    """The class whose `depth` nearest images have the greatest mean similarity; that, or its lead."""

    def answer(queries, gallery, labels):
        similarity, classes = queries @ gallery.T, np.unique(labels)
        means = np.stack([_greatest(similarity[:, labels == one], depth) for one in classes], axis=1)
        second, first = np.partition(means, -2, axis=1)[:, -2:].T
        return classes[means.argmax(axis=1)], first - second if margin else first

    return answer


def _greatest(values, depth):
    depth = min(depth, values.shape[1])
    return np.partition(values, -depth, axis=1)[:, -depth:].mean(axis=1)


SCORES = {
    "nearest": by_class(1),
    "mean of 3": by_class(3),
    "margin": by_class(1, margin=True),
    "margin of 3": by_class(3, margin=True),
    "votes": by_votes,
}


def of_scores(rows, labels, seed) -> np.ndarray:
    """`[scores, 3]`: accuracy, AUROC and OSCR of each."""
    parts, measured = divided(labels, seed=seed), []
    for answer in SCORES.values():
        known, unknown = (
            answer(rows[some], rows[parts.gallery], labels[parts.gallery])
            for some in (parts.known, parts.unknown)
        )
        right, below = known[0] == labels[parts.known], np.sort(unknown[1])
        auroc, of_right = (
            rates(np.sort(scores), below, ())["roc_auc"] for scores in (known[1], known[1][right])
        )
        measured.append((right.mean(), auroc, of_right * right.mean()))
    return np.array(measured)


def of_promises(rows, labels, seed) -> np.ndarray:
    """`[fars, 2]`: share of the known that get their label, and of the unknown that are taken for known."""
    found = [open_set(rows, labels, far=far, seed=seed) for far in FARS]
    return np.array([(one.get("open_set_known", 0), 1 - one.get("open_set_unknown", 1)) for one in found])


def of_five(rows, labels, seed) -> np.ndarray:
    """`[classes, 4]`: accuracy of a class by half its images, by five; of the others without it, with it."""
    rng = np.random.default_rng(seed)
    place = np.empty(len(labels), int)
    for one in np.unique(labels):
        members = np.flatnonzero(labels == one)
        place[members] = rng.permutation(len(members))
    gallery = place < (np.bincount(labels) // 2)[labels]
    names, asked = labels[gallery], labels[~gallery]
    similarity, measured = rows[~gallery] @ rows[gallery].T, []

    def right(columns):
        return of_similarities(similarity[:, columns], names[columns]).label == asked

    half = right(np.ones(len(names), bool))
    for one in np.flatnonzero(np.bincount(names) > FEW):
        few, own = right((names != one) | (place[gallery] < FEW)), asked == one
        others = right(names != one)[~own]
        measured.append((half[own].mean(), few[own].mean(), others.mean(), few[~own].mean()))
    return np.array(measured)


def main(_):
    found = {}
    for folder in _INDEXES.value:
        index = open_index(folder)
        rows, labels = (
            index.embeddings,
            np.unique(index.table.column("label").to_pylist(), return_inverse=True)[1],
        )
        found[folder.rstrip("/").rsplit("/")[-1]] = [
            np.array([measure(rows, labels, seed) for seed in range(_SPLITS.value)])
            for measure in (of_scores, of_promises, of_five)
        ]
    print(f"{'':12}{'score':14}{'accuracy':>10}{'AUROC':>10}{'OSCR':>10}")
    for name, (scores, _, _) in found.items():
        _print(name, SCORES, 100 * scores.mean(axis=0))
    _print("mean", SCORES, 100 * np.mean([scores.mean(axis=0) for scores, _, _ in found.values()], axis=0))
    print(f"\n{'':12}{'wanted FAR':14}{'known':>10}{'FAR':>10}{'worst':>10}")
    for name, (_, promises, _) in found.items():
        worst = promises[:, :, 1].max(axis=0)[:, None]
        _print(name, [f"{100 * far:g} %" for far in FARS], 100 * np.hstack([promises.mean(axis=0), worst]))
    print(f"\n{'':26}{'half':>10}{'five':>10}{'without':>10}{'with':>10}")
    for name, (_, _, five) in found.items():
        _print(name, ["a class"], 100 * five.reshape(-1, 4).mean(axis=0)[None])


def _print(name, titles, table):
    for title, row in zip(titles, table):
        print(f"{name:12}{title:14}" + "".join(f"{value:>10.1f}" for value in row), flush=True)


if __name__ == "__main__":
    app.run(main)
