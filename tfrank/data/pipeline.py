"""tf.data pipelines over records.

Training batches depend on (seed, t) only. Evaluation is one pass over all records.
"""

import re
import types
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.data.images import ImageLoader, shift_images
from tfrank.data.records import RecordReader
from tfrank.data.samplers import Sampler
from tfrank.data.vectors import VectorLoader

AUTOTUNE = tf.data.AUTOTUNE
# Largest batch in which each place has its own random numbers at each step.
_PLACES = 2**20
# Records that are checked for the bad one after a failure.
_SEARCHED = 20_000
_NO_COLUMNS: Mapping[str, np.ndarray] = types.MappingProxyType({})


def train_batches(
    reader: RecordReader,
    sampler: Sampler,
    loader: ImageLoader | VectorLoader,
    *,
    max_shift: int = 0,
    start: int = 0,
    stop: int,
    context: tf.distribute.InputContext | None = None,
    columns: Mapping[str, np.ndarray] = _NO_COLUMNS,
) -> tf.data.Dataset:
    """Returns batches `start` to `stop - 1` of the run, or one machine's slice of them.

    Args:
        reader: reads the records, with their labels.
        sampler: chooses the records of batch t.
        loader: turns a record into an image.
        max_shift: see `shift_images`.
        start, stop: the first step, and the one after the last.
        context: the input context of this machine if there are several devices; None reads everything.
        columns: `[records, dim]` float32 arrays by name, such as embeddings by another model, whose rows are
            delivered with their images. They may be memory-mapped.

    Returns:
        A dataset of `{"image": [batch, size, size, 3] uint8, "label": [batch] int64}` and, by their names,
        `[batch, dim]` rows of the columns. Batch is a device's share. Consecutive elements are the shares of
        a machine's devices.
    """
    context = context or tf.distribute.InputContext()
    share = sampler.batch_size // context.num_replicas_in_sync
    slice_size = sampler.batch_size // context.num_input_pipelines
    first = context.input_pipeline_id * slice_size

    def numbers_of(step):
        return sampler.batch(step)[first : first + slice_size]

    def load(serialized, step, place):
        # The key is (seed, step, position in the global batch).
        return loader.train(serialized, tf.stack([sampler.seed, step * _PLACES + first + place]))

    steps = tf.data.Dataset.range(start, stop)
    images = _batches(reader, numbers_of, steps, load, columns)
    batches = images.batch(slice_size, drop_remainder=True)
    if max_shift:

        @tf.autograph.experimental.do_not_convert
        def shift(batch, step):
            seed = tf.stack([tf.cast(sampler.seed, tf.int64), step])
            return {**batch, "image": shift_images(batch["image"], max_shift, seed)}

        batches = tf.data.Dataset.zip(batches, steps).map(shift)
    if share < slice_size:
        batches = batches.rebatch(share, drop_remainder=True)
    return batches.prefetch(2)


def evaluation_batches(
    reader: RecordReader, loader: ImageLoader | VectorLoader, *, batch_size: int
) -> tf.data.Dataset:
    """Returns every record once, in order; the last batch may be smaller. Elements are as in `train_batches`.

    At full size each image is a batch of its own.
    """
    count = len(reader.index)
    steps = tf.data.Dataset.range(-(-count // batch_size))

    def numbers_of(step):
        return np.arange(step * batch_size, min((step + 1) * batch_size, count))

    images = _batches(reader, numbers_of, steps, lambda serialized, step, place: loader.test(serialized))
    return images.batch(1 if loader.full_size else batch_size).prefetch(2)


def augmented_passes(
    reader: RecordReader,
    loader: ImageLoader | VectorLoader,
    *,
    passes: int,
    seed: int,
    batch_size: int,
    start: int = 0,
) -> tf.data.Dataset:
    """Returns `passes` passes over all records, in order, from image number `start` of the whole sequence on.

    The first pass uses the test transform. Each other pass uses random training augmentation, which depends
    on (seed, pass, record). Elements are as in `train_batches`; the last batch may be smaller.
    """
    count = len(reader.index)
    total = count * passes
    steps = tf.data.Dataset.range(-(-(total - start) // batch_size))

    def places_of(step):
        first = start + step * batch_size
        return np.arange(first, min(first + batch_size, total))

    def load(serialized, step, place):
        place += start + step * batch_size
        return tf.cond(
            place < count,
            lambda: loader.test(serialized),
            lambda: loader.train(serialized, tf.stack([tf.cast(seed, tf.int64), place])),
        )

    images = _batches(reader, lambda step: places_of(step) % count, steps, load)
    return images.batch(batch_size).prefetch(2)


def check_batch(reader: RecordReader, numbers: np.ndarray, loader: ImageLoader | VectorLoader) -> None:
    """Reads and decodes records one by one; raises InputError that names the first one that fails.

    Call it when a pipeline has failed: TensorFlow's own message does not name the image.
    """
    for number in numbers:
        (serialized,) = reader.read([number])
        try:
            loader.train(tf.constant(serialized), tf.constant([0, 0]))
            loader.test(tf.constant(serialized))
        except (tf.errors.OpError, ValueError) as error:
            reason = checks.reason(getattr(error, "message", error))
            reason = re.sub(r"\{\{.*?\}\} ?| ?\[Op:.*", "", reason)
            raise InputError(
                f"{reader.index.describe(number)}: the image cannot be loaded. {reason}"
            ) from None


def naming_bad_images(
    reader: RecordReader, batches: tf.data.Dataset, loader: ImageLoader | VectorLoader
) -> Iterator[dict]:
    """Yields the batches of `evaluation_batches`; raises InputError that names a damaged record or image."""
    done = 0
    try:
        for batch in batches:
            yield batch
            done += len(batch["label"])
    except tf.errors.OpError:
        # The pipeline reads ahead by an unknown number of records, but never by this many.
        check_batch(reader, np.arange(done, min(done + _SEARCHED, len(reader.index))), loader)
        raise


def _batches(
    reader: RecordReader,
    numbers_of: Callable[[int], np.ndarray],
    steps: tf.data.Dataset,
    load: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
    columns: Mapping[str, np.ndarray] = _NO_COLUMNS,
) -> tf.data.Dataset:
    """Returns one element per image, in the order of steps and of places within a step."""

    def read(step):
        numbers = numbers_of(int(step))
        labels = np.asarray(reader.index.label[numbers], np.int64)
        return (
            np.array(reader.read(numbers), object),
            labels,
            np.full(len(numbers), step),
            np.arange(len(numbers)),
            *(np.asarray(column[numbers], np.float32) for column in columns.values()),
        )

    @tf.autograph.experimental.do_not_convert
    def read_step(step):
        kinds = [tf.string, tf.int64, tf.int64, tf.int64, *[tf.float32] * len(columns)]
        parts = tf.numpy_function(read, [step], kinds, stateful=False)
        shapes = [[]] * 4 + [column.shape[1:] for column in columns.values()]
        return tuple(tf.ensure_shape(part, [None, *shape]) for part, shape in zip(parts, shapes))

    @tf.autograph.experimental.do_not_convert
    def load_one(serialized, label, step, place, *rows):
        return {"image": load(serialized, step, place), "label": label, **dict(zip(columns, rows))}

    # The GIL lets only one batch be read at a time; a second call prepares the next.
    elements = steps.map(read_step, num_parallel_calls=2, deterministic=True).unbatch()
    return elements.map(load_one, num_parallel_calls=AUTOTUNE, deterministic=True)
