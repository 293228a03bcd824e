"""Embeddings of every image of a data set."""

from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from tfrank.checks import InputError
from tfrank.evaluation.parallel import full_float32
from tfrank.normalize import l2_normalize
from tfrank.progress import Progress


def embed(
    embed_fn: Callable[[tf.Tensor], tf.Tensor],
    batches: Iterable[dict],
    *,
    total: int | None = None,
    ids: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Embeds images and normalises the embeddings.

    Args:
        embed_fn: from float32 images `[batch, height, width, 3]`, 0-255, to `[batch, dim]`.
        batches: of `{"image": uint8 or float images, "label": [batch] integers}`.
        total: number of images, for progress; None shows none.
        ids: `[images]` names of the images, for messages; None names an image by its number, from 0.

    Returns:
        `[images, dim]` float32 of unit norm, and `[images]` labels, in the order of the batches.

    Raises:
        InputError: an embedding is NaN or infinite; the first such image is named. Or there is no image.
    """
    progress = Progress("embedding image", total) if total is not None else None
    embeddings, labels, done = [], [], 0
    for batch in batches:
        with full_float32():
            raw = tf.cast(embed_fn(tf.cast(batch["image"], tf.float32)), tf.float32)
        bad = np.flatnonzero(~np.isfinite(raw).all(axis=1))
        if len(bad):
            number = done + int(bad[0])
            name = number if ids is None else ids[number].decode(errors="replace")
            raise InputError(f"The embedding of image {name!r} is not finite. Is the model diverged?")
        embeddings.append(l2_normalize(raw).numpy())
        labels.append(np.asarray(batch["label"]))
        done += len(raw)
        if progress:
            progress.show(done)
    if not done:
        raise InputError("There is no image to embed.")
    return np.concatenate(embeddings), np.concatenate(labels)
