"""Numeric hyper-parameters: checked once, and passed to compiled programs as tensors.

A number that is a constant of the program would need another program for each value, and TensorFlow keeps
every program that XLA compiled for the lifetime of the process.
"""

from functools import partial
from typing import Annotated, Any, TypeAlias, TypeGuard

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks

# A number, or a variable that holds one and may change from step to step.
Scalar: TypeAlias = float | tf.Variable | keras.Variable


def number(name: str, value: Scalar, **bounds: float) -> Scalar:
    """Checks a number as `checks.number` does, or the current value of a variable; returns what was given.

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


Number = Annotated[Scalar, number]
Positive = Annotated[Scalar, partial(number, above=0)]
NonNegative = Annotated[Scalar, partial(number, at_least=0)]
Share = Annotated[Scalar, partial(number, at_least=0, at_most=1)]
# Its product with a similarity is finite.
Sharpness = Annotated[Scalar, partial(number, above=0, at_most=1e30)]


def is_variable(value: object) -> TypeGuard[Any]:
    """Whether the value is a variable of TensorFlow or Keras."""
    return isinstance(value, tf.Variable | keras.Variable)


def current(value: Scalar) -> float:
    """The current value as a number, for comparisons and configs; reads a variable."""
    return float(value.numpy()) if is_variable(value) else value


def tensor(value: Scalar | tf.Tensor | tuple[float, ...], dtype: tf.DType) -> tf.Tensor:
    """The value as a tensor of the given dtype, a constant to the gradient.

    A variable is read when the program runs. Integer tensors keep their dtype.

    >>> tensor(0.1, tf.float64).numpy()
    np.float64(0.1)
    """
    if isinstance(value, float | int | tuple | np.number):
        # `tf.cast` would convert a Python float to float32 first.
        return tf.constant(value, dtype)
    value = tf.stop_gradient(tf.convert_to_tensor(value))
    return value if value.dtype.is_integer else tf.cast(value, dtype)
