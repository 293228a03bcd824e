"""The labels of the training classes, of which a loss knows more than that they are equal or not."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from tfrank.common import checks


def checked_labels(labels: Iterable[int]) -> np.ndarray:
    """The labels as an int64 array, in the given order.

    Raises:
        InputError: not integers below 2^63, or none at all.
    """
    expected = "the labels of training, at least one, all integers below 2^63"
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise checks.invalid("labels", expected, labels)
    try:
        array = labels if isinstance(labels, np.ndarray) else np.asarray(list(labels))
    except ValueError:  # Rows of unequal length.
        raise checks.invalid("labels", expected, "lists") from None
    if array.dtype.kind not in "iu" or not array.size or array.max() >= 2**63:
        raise checks.invalid("labels", expected, f"{array.size} of dtype {array.dtype}")
    return array.astype(np.int64)


def class_index(classes: np.ndarray, labels: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
    """The place of each label among the known ones, `[batch]` int32, and whether it is known, `[batch]` bool.

    Args:
        classes: `[classes]` int64, sorted and unique.
        labels: `[batch]` int64.
        name: the name of the loss, for messages.

    Raises:
        InputError: a label is unknown; InvalidArgumentError inside a graph. XLA leaves such checks out.
    """
    known_labels = tf.constant(classes)
    index = tf.minimum(tf.searchsorted(known_labels, labels), classes.size - 1)
    known = tf.gather(known_labels, index) == labels
    unknown = tf.reduce_max(tf.where(known, labels.dtype.min, labels))
    expected = f"one of the {classes.size} labels that the loss {name!r} was made with"
    with tf.control_dependencies(required(tf.reduce_all(known), "labels", expected, unknown)):
        return tf.identity(index), known


def required(condition: tf.Tensor, name: str, expected: str, received: tf.Tensor) -> list[tf.Operation]:
    """Raises InputError in eager mode if the condition fails; in a graph returns assertions to depend on."""
    if tf.executing_eagerly() and not condition:
        raise checks.invalid(name, expected, received.numpy().item())
    return [tf.debugging.Assert(condition, [f"{name}: expected {expected}, received", received])]
