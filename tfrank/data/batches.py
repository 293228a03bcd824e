"""Class-balanced batches for `fit`, from arrays or image files; drawn as in tfrank's own training."""

import itertools
import os
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks, files, ignore_labels
from tfrank.common.checks import InputError
from tfrank.data.images import decode
from tfrank.data.prepare.image_files import BadImage, checked_image
from tfrank.data.samplers import ClassBalancedSampler
from tfrank.data.transforms import Transform, evaluation_transform

IMAGES = "an array [n, ...] of numbers, n at least 1, or a list of n paths of image files"
LABELS = "n integers or n texts, one for each of {} images"


def balanced_batches(
    images: np.ndarray | Sequence[str | os.PathLike],
    labels: np.ndarray | Sequence[int] | Sequence[str],
    *,
    classes_per_batch: int,
    examples_per_class: int,
    short_classes: str = "repeat",
    seed: int = 0,
    steps_per_epoch: int | None = None,
    start_step: int | tf.Variable | keras.Variable = 0,
    image_size: int | None = None,
    ignore_label: int | None = None,
) -> tf.data.Dataset:
    """Returns batches of exactly `classes_per_batch` classes with exactly `examples_per_class` images each.

        batches = balanced_batches(images, labels, classes_per_batch=32, examples_per_class=4)
        model.compile("adam", loss=tfrank.PNPLoss("dq"))
        model.fit(batches, epochs=10, shuffle=False)

    An image occurs twice in a batch only if its class has fewer than `examples_per_class` images. Visit
    counts of two classes never differ by more than one; nor do those of two images of a class.

    An epoch of `fit` is `steps_per_epoch` batches. Each iteration over the dataset starts where the previous
    one ended: iteration e has batches e * steps_per_epoch to (e + 1) * steps_per_epoch - 1. Batch t
    depends on `seed` and t only. If you pass `steps_per_epoch` to `fit` itself, pass it `batches.repeat()`.

    A run that is resumed goes on with the batch after its last one, if each iteration begins at the step of
    the optimizer, which `keras.callbacks.BackupAndRestore` restores:

        batches = balanced_batches(images, labels, ..., start_step=model.optimizer.iterations)
        model.fit(batches, epochs=10, shuffle=False, callbacks=[keras.callbacks.BackupAndRestore("backup")])

    Only the images of a batch are copied, so a memory-mapped array stays on disk. Files are read in
    parallel, checked and turned upright as in `tfrank.data.prepare`, and warped to a square as in
    evaluation. Augment with `.map`. The batch is the global one: with a distribution strategy, its size must
    be a multiple of the number of replicas. Images of a class are adjacent in it.

    Args:
        images: an array `[n, ...]` of any numeric dtype, or a list of n paths of image files.
        labels: `[n]` or `[n, 1]` integers, or n texts, which are numbered from 0 in sorted order.
        classes_per_batch: at least 1, at most the number of classes.
        examples_per_class: at least 1. A ranking loss needs 2, so that an image has a positive.
        short_classes: what to do with classes that have fewer images: "repeat" their images within
            a batch, or "drop" the classes.
        seed: seed of all random draws, at least 0.
        steps_per_epoch: batches per iteration, at least 1. None: n // batch size, at least 1.
        start_step: number of the first batch of the first iteration, at least 0; or a variable of one
            integer, at whose current value each iteration begins (then without `repeat`).
        image_size: side of the square that image files are resized to, in pixels; for paths only.
        ignore_label: label of images without a class, such as -1, which are in no batch; None: there are
            none. For integer labels only.

    Returns:
        A dataset of (images, labels). Images are `[batch, ...]` of the array's dtype, or
        `[batch, image_size, image_size, 3]` uint8 RGB. Labels are `[batch]` int64.

    Raises:
        InputError: for a bad argument or a missing file. If a file cannot be decoded, TensorFlow's error
            names it when its batch is read.

    >>> images, labels = np.arange(12.0), np.arange(12) // 3
    >>> batches = balanced_batches(images, labels, classes_per_batch=2, examples_per_class=2)
    >>> [batch_labels.numpy().tolist() for _, batch_labels in batches]
    [[0, 0, 1, 1], [3, 3, 2, 2], [3, 3, 1, 1]]
    """
    paths = _as_paths(images)
    if paths is None and image_size is not None:
        raise checks.invalid("image_size", "None, since images are an array: resize the array", image_size)
    rows = _as_array(images) if paths is None else paths
    numbers_of_classes = _as_integers(labels, len(rows))
    kept = np.flatnonzero(ignore_labels.kept(numbers_of_classes, _ignored(ignore_label, labels)))
    sampler = ClassBalancedSampler(
        numbers_of_classes[kept],
        classes_per_batch=classes_per_batch,
        examples_per_class=examples_per_class,
        short_classes=short_classes,
        seed=seed,
    )
    if steps_per_epoch is None:
        steps_per_epoch = max(1, len(kept) // sampler.batch_size)
    steps = _steps(checks.integer("steps_per_epoch", steps_per_epoch, at_least=1), _first_step(start_step))

    def chosen(step):
        return kept[sampler.batch(int(step))]

    if paths is None:
        batches = _gathered(steps, chosen, sampler.batch_size, rows, numbers_of_classes)
    else:
        transform = Transform(size=checks.integer("image_size", image_size, at_least=1))
        _check_files(paths)
        batches = _decoded(steps, chosen, sampler.batch_size, paths, numbers_of_classes, transform)
    return batches.prefetch(tf.data.AUTOTUNE)


def _ignored(ignore_label, labels):
    """The checked label to ignore."""
    if ignore_label is not None and np.asarray(labels).dtype.kind not in "iu":
        raise checks.invalid("ignore_label", "None, since labels are texts", ignore_label)
    return ignore_labels.checked(ignore_label)


def _first_step(start_step):
    """A function from the number of an iteration and its length to the number of its first step."""
    if isinstance(start_step, tf.Variable | keras.Variable):
        dtype = tf.as_dtype(start_step.dtype)
        if not dtype.is_integer or tuple(start_step.shape):
            raise checks.invalid(
                "start_step", "a variable of one integer", f"{dtype.name} {start_step.shape}"
            )
        return lambda iteration, count: int(start_step.numpy())
    if isinstance(start_step, tf.Tensor):
        expected = "an integer or a variable; this tensor would be the same in each epoch"
        raise checks.invalid("start_step", expected, start_step.numpy().tolist())
    first = checks.integer("start_step", start_step, at_least=0)
    return lambda iteration, count: first + iteration * count


def _steps(count, first_step):
    """A dataset of `count` step numbers in each iteration, from `first_step(iteration, count)` on."""
    iterations = itertools.count()

    def numbers():
        return first_step(next(iterations), count) + np.arange(count)

    # Draw the numbers of an iteration as one element: unbatching that gives a dataset of known length.
    draw = tf.data.Dataset.from_tensors(0).map(lambda _: tf.numpy_function(numbers, [], tf.int64))
    return draw.map(lambda drawn: tf.ensure_shape(drawn, [count])).unbatch()


def _gathered(steps, chosen, size, images, labels):
    """Batches of rows of an array. The array is not copied into the graph."""

    def read(step):
        numbers = chosen(step)
        return images[numbers], labels[numbers]

    @tf.autograph.experimental.do_not_convert
    def batch_of(step):
        rows, classes = tf.numpy_function(read, [step], [images.dtype, tf.int64], stateful=False)
        return tf.ensure_shape(rows, [size, *images.shape[1:]]), tf.ensure_shape(classes, [size])

    # The GIL lets only one batch be copied at a time; a second call prepares the next.
    return steps.map(batch_of, num_parallel_calls=2, deterministic=True)


def _decoded(steps, chosen, size, paths, labels, transform):
    """Batches of decoded files."""

    def choose(step):
        numbers = chosen(step)
        return np.array([os.fsencode(paths[number]) for number in numbers], object), labels[numbers]

    @tf.autograph.experimental.do_not_convert
    def files_of(step):
        parts = tf.numpy_function(choose, [step], [tf.string, tf.int64], stateful=False)
        return tuple(tf.ensure_shape(part, [size]) for part in parts)

    @tf.autograph.experimental.do_not_convert
    def load(path, label):
        encoded = tf.numpy_function(_checked, [path, tf.io.read_file(path)], tf.string, stateful=False)
        return evaluation_transform(decode(tf.ensure_shape(encoded, [])), transform), label

    images = steps.map(files_of).unbatch()
    images = images.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return images.batch(size, drop_remainder=True)


def _checked(path, data):
    """The image's bytes in a form that TensorFlow decodes to what an image viewer shows."""
    try:
        return checked_image(data).encoded
    except BadImage as error:
        raise InputError(f"{os.fsdecode(path)}: {error}") from None


def _as_paths(images):
    """The paths as a list; None if `images` are pixels."""
    items = images if isinstance(images, list | tuple) else np.asarray(images)
    if isinstance(items, np.ndarray):
        items = items.tolist() if items.ndim == 1 and items.dtype.kind in "UO" else []
    are_paths = len(items) > 0 and all(isinstance(item, str | os.PathLike) for item in items)
    return [os.fspath(item) for item in items] if are_paths else None


def _as_array(images):
    try:
        array = np.asarray(images)
    except ValueError:  # Rows of different shapes.
        array = np.array(None)
    if not array.shape or not len(array) or array.dtype.kind not in "biuf":
        received = f"{type(images).__name__} of shape {array.shape} and dtype {array.dtype}"
        raise checks.invalid("images", IMAGES, received)
    return array


def _as_integers(labels, count):
    """`[n]` int64 labels; texts become their position in sorted order."""
    array = np.asarray(labels)
    if array.shape == (count, 1):
        array = array[:, 0]
    if array.shape == (count,):
        if array.dtype.kind in "iu" and array.max() < 2**63:
            return array.astype(np.int64)
        if array.dtype.kind in "UO" and all(isinstance(label, str) for label in array):
            return np.unique(array, return_inverse=True)[1].astype(np.int64)
    received = f"{array.dtype} of shape {list(array.shape)}"
    raise checks.invalid("labels", LABELS.format(count), received)


def _check_files(paths):
    missing = [path for path in paths if not files.is_remote(path) and not os.path.isfile(path)]
    if missing:
        raise InputError(
            f"{len(missing):,} of {len(paths):,} image files do not exist. The first is {missing[0]}. Correct"
            f" the paths; relative ones begin in {os.getcwd()}."
        )
