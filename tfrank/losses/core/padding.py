"""Sizes that programs are compiled for: rows and columns of nothing bring other sizes to the next of them.

XLA compiles a program for each shape, and TensorFlow keeps every program as long as the process lives.
"""

import numpy as np
import tensorflow as tf

# Multiples of 16 to 256, and from there on sixteen an octave: what is added is a sixteenth at most. Usual
# batch sizes, such as powers of two, are among them.
SIZES = np.array(
    [*range(0, 256, 16), *(part << octave for octave in range(4, 26) for part in range(16, 32))], np.int32
)


def missing(number: tf.Tensor) -> tf.Tensor:
    """How many rows `number` rows lack to the next of the sizes, an int32 scalar.

    >>> [int(missing(number)) for number in (0, 3, 112, 130, 1024, 1025)]
    [0, 13, 0, 14, 0, 63]
    """
    # No search, which XLA would not take for a constant.
    return tf.reduce_min(tf.where(number <= SIZES, SIZES, SIZES[-1])) - number


def pad(tensor: tf.Tensor, *missing: tf.Tensor | int, value: int = 0) -> tf.Tensor:
    """The tensor with so many more entries of that value behind those of its first axis, of its second, ...

    >>> pad(tf.constant([[1, 2]]), 1, 2).numpy().tolist()
    [[1, 2, 0, 0], [0, 0, 0, 0]]
    """
    behind = [*missing, *[0] * (tensor.shape.rank - len(missing))]
    return tf.pad(tensor, [[0, number] for number in behind], constant_values=value)
