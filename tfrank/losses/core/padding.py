"""Padding to a few sizes that programs are compiled for.

XLA compiles a program for each shape, and TensorFlow keeps every program for the lifetime of the process.
"""

import numpy as np
import tensorflow as tf

# Multiples of 16 up to 256, then sixteen sizes per octave, so that padding adds at most a sixteenth. Usual
# batch sizes, such as powers of two, are among them. 0 is not: XLA compiles no program for it.
SIZES = np.array(
    [*range(16, 256, 16), *(part << octave for octave in range(4, 26) for part in range(16, 32))], np.int32
)


def missing(number: tf.Tensor) -> tf.Tensor:
    """The number of rows to add to `number` rows to reach the next size in `SIZES`, an int32 scalar.

    >>> [int(missing(number)) for number in (0, 3, 112, 130, 1024, 1025)]
    [16, 13, 0, 14, 0, 63]
    """
    known = tf.get_static_value(number)
    if known is not None:  # So that the shapes after padding are known too.
        return tf.constant(SIZES[min(np.searchsorted(SIZES, known), SIZES.size - 1)] - known, tf.int32)
    # Not a search: XLA would not treat its result as a constant.
    return tf.reduce_min(tf.where(number <= SIZES, SIZES, SIZES[-1])) - number


def pad(tensor: tf.Tensor, *missing: tf.Tensor | int, value: int = 0) -> tf.Tensor:
    """Appends `missing[k]` entries of the given value along axis k, for each given axis.

    >>> pad(tf.constant([[1, 2]]), 1, 2).numpy().tolist()
    [[1, 2, 0, 0], [0, 0, 0, 0]]
    """
    behind = [*missing, *[0] * (tensor.shape.rank - len(missing))]
    return tf.pad(tensor, [[0, number] for number in behind], constant_values=value)
