"""Hyper-parameters that are numbers: checked once, and given to compiled programs as tensors.

A number that is built into a program needs another program for each value, and TensorFlow keeps every program
that XLA compiled as long as the process lives.
"""

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks

# A number, or a variable that holds one and may change from step to step.
Scalar = float | tf.Variable | keras.Variable


def number(name: str, value: Scalar, **bounds: float) -> Scalar:
    """`checks.number`; of a variable the value that it has now is checked, and the variable returned.

    >>> number("temperature", tf.Variable(0.5), above=0).numpy()
    np.float32(0.5)
    """
    if not is_variable(value):
        return checks.number(name, value, **bounds)
    if len(value.shape) or not tf.as_dtype(value.dtype).is_floating:
        dtype = tf.as_dtype(value.dtype).name
        raise checks.invalid(name, "a variable of one float", f"{dtype} {tuple(value.shape)}")
    checks.number(name, current(value), **bounds)
    return value


def is_variable(value: object) -> bool:
    """Whether that is a variable of TensorFlow or Keras."""
    return isinstance(value, tf.Variable | keras.Variable)


def current(value: Scalar) -> float:
    """The number as it is now, for comparisons and configs; a variable is read."""
    return float(value.numpy()) if is_variable(value) else value


def tensor(value: Scalar | tf.Tensor | tuple[float, ...], dtype: tf.DType) -> tf.Tensor:
    """The value in that dtype, of a variable what it holds when the program runs; a constant to the gradient.

    Integer tensors stay integers.

    >>> tensor(0.1, tf.float64).numpy()
    np.float64(0.1)
    """
    if isinstance(value, float | int | tuple | np.number):
        # Not `tf.cast`, which would make a float32 of it first.
        return tf.constant(value, dtype)
    value = tf.stop_gradient(tf.convert_to_tensor(value))
    return value if value.dtype.is_integer else tf.cast(value, dtype)
