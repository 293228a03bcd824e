"""Layers that hold what a loss learns, such as proxies: an output says which of them it has passed.

Such a layer returns its input, so that the output of the model is the embedding for everything that asks for
one: metrics, callbacks, `predict`, export. The loss finds the layer by a mark on the tensor, as Keras finds
masks. A mark does not pass the border of a `tf.function` or of a loop, so what joins outputs there
marks them again.
"""

from typing import Any

import keras
import tensorflow as tf

_MARK = "_tfrank_loss_layers"


def passed(output: tf.Tensor) -> tuple[keras.layers.Layer, ...]:
    """Returns the layers that an output is marked with, the first one first."""
    return getattr(output, _MARK, ())


def mark(output: tf.Tensor, layers: tuple[keras.layers.Layer, ...]) -> tf.Tensor:
    """Returns the output, a new tensor of the caller, marked with the layers."""
    if layers:
        setattr(output, _MARK, layers)
    return output


def through(layer: keras.layers.Layer, embeddings: tf.Tensor) -> tf.Tensor:
    """Returns the embeddings as they are, marked with the layers that they passed before, and with this one.

    >>> layer = keras.layers.Identity()
    >>> passed(through(layer, tf.ones([2, 3]))) == (layer,)
    True
    """
    return mark(tf.identity(embeddings), (*passed(embeddings), layer))


def marks_of(outputs: Any) -> list[tuple[keras.layers.Layer, ...]]:
    """Returns the layers that each tensor of a structure is marked with."""
    return [passed(output) for output in tf.nest.flatten(outputs)]


def with_marks(outputs: Any, marks: list[tuple[keras.layers.Layer, ...]]) -> Any:
    """Returns a structure of new tensors of the caller, marked as `marks_of` said of another."""
    for output, layers in zip(tf.nest.flatten(outputs), marks):
        mark(output, layers)
    return outputs
