"""Rows of a variable, with a gradient that optimizers and clipping can take."""

import tensorflow as tf


@tf.custom_gradient
def gather(tensor: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """The entries of a tensor with these numbers, along its first axis. The gradient is a whole tensor."""

    def gradient(upstream):
        return tf.scatter_nd(numbers[:, None], upstream, tf.shape(tensor)), None

    return tf.gather(tensor, numbers), gradient
