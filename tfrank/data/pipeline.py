"""tf.data pipelines over records: batches for training, in which batch t depends on (seed, t) only, and
one pass over everything for evaluation."""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tfrank.checks import InputError
from tfrank.data.images import decode_record, shift_images
from tfrank.data.records import RecordReader
from tfrank.data.samplers import Sampler

AUTOTUNE = tf.data.AUTOTUNE


def train_batches(
    reader: RecordReader,
    sampler: Sampler,
    *,
    image_size: int,
    max_shift: int = 0,
    start: int = 0,
    stop: int,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Batches `start` to `stop - 1` of the run, or one machine's slice of them.

    Args:
        reader, sampler: which records there are, and which of them make batch t.
        image_size: side of the images, in pixels.
        max_shift: see `shift_images`.
        start, stop: steps.
        context: of the machine that reads, where there are several devices; None reads everything.

    Returns:
        A dataset of `{"image": [batch, size, size, 3] uint8, "label": [batch] int64}`, where batch is a
        device's share; a machine's devices take their shares one after another.
    """
    context = context or tf.distribute.InputContext()
    share = sampler.batch_size // context.num_replicas_in_sync
    slice_size = sampler.batch_size // context.num_input_pipelines
    first = context.input_pipeline_id * slice_size

    def numbers_of(step):
        return sampler.batch(step)[first : first + slice_size]

    steps = tf.data.Dataset.range(start, stop)
    batches = _read_and_decode(reader, numbers_of, steps, slice_size, image_size)
    if max_shift:

        def augment(batch, step):
            seed = tf.stack([tf.cast(sampler.seed, tf.int64), step])
            return {**batch, "image": shift_images(batch["image"], max_shift, seed)}

        batches = tf.data.Dataset.zip(batches, steps).map(augment)
    if share < slice_size:
        batches = batches.rebatch(share, drop_remainder=True)
    return batches.prefetch(2)


def evaluation_batches(reader: RecordReader, *, batch_size: int, image_size: int) -> tf.data.Dataset:
    """Every record once, in order; the last batch may be smaller. Elements as `train_batches`."""
    count = len(reader.index)
    numbers = _blocks(count, batch_size)
    steps = tf.data.Dataset.range(-(-count // batch_size))
    return _read_and_decode(reader, numbers, steps, batch_size, image_size, whole=False).prefetch(2)


def check_batch(reader: RecordReader, numbers: np.ndarray, image_size: int) -> None:
    """Reads and decodes records one by one; InputError names the first that fails.

    To be called when a pipeline has failed: TensorFlow's own message does not say which image it was.
    """
    for number in numbers:
        (serialized,) = reader.read([number])
        try:
            decode_record(tf.constant(serialized), image_size)
        except tf.errors.OpError as error:
            reason = error.message.strip().splitlines()[0]
            raise InputError(
                f"{reader.index.describe(number)}: the image does not decode. {reason}"
            ) from None


def naming_bad_images(reader: RecordReader, batches: tf.data.Dataset, image_size: int) -> Iterator[dict]:
    """The elements of `evaluation_batches`; a damaged record or image raises InputError by name."""
    done = 0
    try:
        for batch in batches:
            yield batch
            done += len(batch["label"])
    except tf.errors.OpError:
        # What was prefetched past the failure is unknown, so all that is left is searched.
        check_batch(reader, np.arange(done, len(reader.index)), image_size)
        raise


def _blocks(count: int, size: int) -> Callable[[int], np.ndarray]:
    return lambda step: np.arange(step * size, min((step + 1) * size, count))


def _read_and_decode(reader, numbers_of, steps, batch_size, image_size, *, whole=True):
    def read(step):
        return np.array(reader.read(numbers_of(int(step))), object)

    def read_batch(step):
        return tf.ensure_shape(tf.numpy_function(read, [step], tf.string, stateful=False), [None])

    return (
        # Python's lock lets one batch be read at a time; a second call prepares the next.
        steps.map(read_batch, num_parallel_calls=2, deterministic=True)
        .unbatch()
        .map(
            lambda record: decode_record(record, image_size), num_parallel_calls=AUTOTUNE, deterministic=True
        )
        .batch(batch_size, drop_remainder=whole)
    )
