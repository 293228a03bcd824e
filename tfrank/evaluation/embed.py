"""Embeddings of all images of a data set, in memory or in a folder. In a folder, a stopped pass resumes."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from tfrank.common import files, json_files
from tfrank.common.checks import InputError
from tfrank.common.normalize import l2_normalize
from tfrank.common.progress import Progress
from tfrank.evaluation.parallel import full_float32
from tfrank.evaluation.protocols import text_of

_LOG = logging.getLogger(__name__)
EmbedFn = Callable[[tf.Tensor], tf.Tensor]
# Batches between two updates of `pass.json`, the progress of a pass.
NOTE_EVERY = 20


def embed(
    embed_fn: EmbedFn,
    batches: Iterable[dict],
    *,
    total: int | None = None,
    ids: np.ndarray | None = None,
    unchanged: bool = False,
    normalized: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Embeds images and normalises the embeddings.

    Args:
        embed_fn: from float32 images `[batch, height, width, 3]`, 0-255, to `[batch, dim]`.
        batches: of `{"image": uint8 or float images, "label": [batch] integers}`.
        unchanged: whether `embed_fn` gets "image" as it is, whatever that is, and not as float32.
        total: number of images, for the progress line; None: no progress line.
        ids: `[images]` names of the images, for messages. None: an image is named by its number, from 0.
        normalized: whether embeddings are L2-normalised.

    Returns:
        `[images, dim]` float32, of unit norm if `normalized`, and `[images]` labels, in the order of batches.

    Raises:
        InputError: an embedding is NaN or infinite (the first such image is named), or there is no image.
    """
    embed_fn = embed_fn if unchanged else _of_floats(embed_fn)
    embeddings, labels = [], []
    for batch, rows in _embedded(embed_fn, batches, 0, total, ids):
        embeddings.append(l2_normalize(rows).numpy() if normalized else rows.numpy())
        labels.append(np.asarray(batch["label"]))
    if not embeddings:
        raise InputError("There is no image to embed.")
    return np.concatenate(embeddings), np.concatenate(labels)


def embed_into(
    folder: str,
    embed_fn: EmbedFn,
    batches_from: Callable[[int], Iterable[dict]],
    *,
    ids: np.ndarray,
    labels: np.ndarray,
    key: str,
    dtype: type[np.floating] = np.float32,
    normalized: bool = True,
) -> np.ndarray:
    """Embeds images as `embed` does and writes `embeddings.npy`, `ids.npy` and `labels.npy` to a folder.

    Embeddings that are there with the same key are not computed again.

    Args:
        folder: created if it does not exist. Its `pass.json` has the progress of the pass.
        embed_fn: see `embed`.
        batches_from: returns the batches from the image with a given number on.
        ids: `[images]` names of the images; all of them are embedded.
        labels: `[images]` integers.
        key: identifies all that the embeddings depend on: the model, the images, how they are loaded, and
            how they are written.
        dtype: the type that is written.
        normalized: whether embeddings are L2-normalised.

    Returns:
        `[images, dim]`, of unit norm if `normalized`, a memory map of the file.

    Raises:
        InputError: as in `embed`; or the disk is full.
    """
    files.make_folder(folder)
    path, note = os.path.join(folder, "embeddings.npy"), os.path.join(folder, "pass.json")
    done = _done_before(note, path, key, len(ids))
    rows = np.lib.format.open_memmap(path, "r+") if done else None
    if done:
        _LOG.info("%s of %s embeddings are there already: %s", f"{done:,}", f"{len(ids):,}", path)
    else:
        # Write the new key first; otherwise an interruption would leave embeddings of two models under the
        # old key.
        files.write_json(note, {"key": key, "done": 0, "images": len(ids)})
        for name, column in (("ids", ids), ("labels", labels)):
            with files.atomic_write(os.path.join(folder, f"{name}.npy")) as file:
                np.save(file, np.asarray(column), allow_pickle=False)
    batches = batches_from(done) if done < len(ids) else ()
    blocks = _embedded(_of_floats(embed_fn), batches, done, len(ids), ids)
    for number, (_, block) in enumerate(blocks, start=1):
        if rows is None:
            rows = _new_file(path, len(ids), block.shape[1], dtype)
        rows[done : done + len(block)] = (l2_normalize(block) if normalized else block).numpy()
        done += len(block)
        if number % NOTE_EVERY == 0 or done == len(ids):
            rows.flush()
            files.write_json(note, {"key": key, "done": done, "images": len(ids)})
    if rows is None:
        raise InputError("There is no image to embed.")
    del rows
    return np.load(path, mmap_mode="r")


def on_all_replicas(embed_fn: EmbedFn, strategy: tf.distribute.Strategy) -> EmbedFn:
    """Returns a function that embeds a batch in equal shares on all replicas; the padding is dropped."""
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return embed_fn

    # One graph for all replicas. It has no input signature: a function with one rejects per-replica values.
    @tf.function(reduce_retracing=True, autograph=False)
    def on_replica(images):
        return embed_fn(images)

    def embed_batch(images):
        count = len(images)
        share = -(-count // replicas)
        padding = [[0, share * replicas - count], *[[0, 0]] * (len(images.shape) - 1)]
        parts = tf.split(tf.pad(images, padding), replicas)
        values = strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )
        results = strategy.experimental_local_results(strategy.run(on_replica, [values]))
        return tf.concat(results, axis=0)[:count]

    return embed_batch


def _of_floats(embed_fn):
    return lambda images: embed_fn(tf.cast(images, tf.float32))


def _embedded(embed_fn, batches, done, total, ids) -> Iterator[tuple[dict, tf.Tensor]]:
    """Yields each batch with its embeddings, all finite; image numbers start at `done`."""
    progress = Progress("embedding image", total, done=done) if total is not None else None
    for batch in batches:
        with full_float32():
            raw = tf.cast(embed_fn(batch["image"]), tf.float32)
        bad = np.flatnonzero(~np.isfinite(raw).all(axis=1))
        if len(bad):
            number = done + int(bad[0])
            name = number if ids is None else text_of(ids[number])
            raise InputError(f"The embedding of image {name!r} is not finite. The model may have diverged.")
        yield batch, raw
        done += len(raw)
        if progress:
            progress.show(done)


def _done_before(note, path, key, images):
    """Returns the number of embeddings with this key left by an earlier pass."""
    check = json_files.record(
        {"key": json_files.text(), "images": json_files.whole(), "done": json_files.whole(at_most=images)}
    )
    try:
        before = json_files.read(note, check, "")
        rows = np.load(path, mmap_mode="r")
        return before["done"] if before["key"] == key and before["images"] == images == len(rows) else 0
    # A missing or damaged file is written again.
    except (OSError, ValueError, EOFError):
        return 0


def _new_file(path, images, dim, dtype):
    files.check_room(path, np.dtype(dtype).itemsize * images * dim)
    return np.lib.format.open_memmap(path, "w+", dtype, (images, dim))
