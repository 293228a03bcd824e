"""Learns a map between the embeddings of two models on photos, and says what it keeps."""

import os
import shlex
from collections.abc import Iterator

import numpy as np

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.evaluation.compatibility import measure_upgrade, sentences
from tfrank.evaluation.embedding_maps import FEWEST, EmbeddingMap, Learnt, learn_map
from tfrank.evaluation.nearest.exhaustive import exact, share_found
from tfrank.search.pairs import MOST, Pairs, model_folder, pairs_of

# So many nearest photos are compared.
NEAREST = 10


def learn_from(
    old: str, new: str, images: str = "", *, most: int = MOST, hidden: int = 0, trusted: bool = False
) -> EmbeddingMap:
    """Learns a map from the embeddings of an old model to those of a new one; prints what it keeps.

    Args:
        old, new, images, most, trusted: see `pairs.pairs_of`.
        hidden: units of an MLP that is added to the linear map; 0: none.

    Raises:
        InputError: there are too few photos, or as `pairs.pairs_of` says.
    """
    found = pairs_of(old, new, images, most=most, trusted=trusted)
    if len(found.old) < FEWEST:
        raise InputError(
            f"A map is learnt on at least {FEWEST} images, and there are {len(found.old)}. Embed all images"
            f" of an index by the new model instead: tfrank index --model={shlex.quote(model_folder(new))}"
            " --images=FOLDER --index_dir=INDEX"
        )
    learnt = learn_map(found.old, found.new, hidden=hidden)
    for line in described(found, learnt):
        print(line, flush=True)
    return learnt.map._replace(models=np.array(found.models))


def check_output(path: str) -> None:
    """Makes the folder that a map is to be written to; raises InputError if it cannot be written there."""
    files.make_folder(os.path.dirname(path) or ".")
    if os.path.isdir(path):
        raise InputError(f"--output={path} is a folder. Give a file in it: --output={path}/map.npz")


def described(found: Pairs, learnt: Learnt) -> Iterator[str]:
    """Yields what a map was learnt on, and what it keeps, measured on the photos held out."""
    rows, unread = learnt.held_out, f" {found.unread:,} cannot be read." if found.unread else ""
    yield (
        f"{len(found.old):,} photos: {found.embedded[0]:,} embedded now by the old model,"
        f" {found.embedded[1]:,} by the new one.{unread}"
    )
    dims = f"from {found.old.shape[1]:,} to {found.new.shape[1]:,} dimensions"
    yield (
        f"The map {dims} ({learnt.penalty}) is tested on {len(rows):,} photos that it was not learnt on; they"
        " only chose how far it is pulled."
    )
    old, new = found.old[rows], found.new[rows]
    yield (
        f"Of the {NEAREST} photos nearest to one by the new model, it finds"
        f" {_shared(new, learnt.mapped, new):.1%} among mapped embeddings; the old model finds"
        f" {_shared(old, old, new):.1%}."
    )
    names, labels = np.unique(["", *(found.labels[row] for row in rows)], return_inverse=True)
    labels = labels[1:] - 1
    if len(names) > 2 and np.bincount(labels[labels >= 0]).max() > 1:
        yield from sentences(
            measure_upgrade(old, learnt.mapped, new, labels, ignore_label=-1), named="mapped embeddings"
        )


def _shared(queries: np.ndarray, gallery: np.ndarray, new: np.ndarray) -> float:
    """The share of the photos nearest by the new model that a search finds as the nearest."""
    own, k = np.arange(len(new)), min(NEAREST, len(new) - 1)
    found, nearest = (exact(*rows, k, own) for rows in ((queries, gallery), (new, new)))
    return share_found(found, nearest, new, new, own)
