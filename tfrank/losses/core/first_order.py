"""Gradients that are not to be differentiated again."""

import tensorflow as tf

from tfrank.common.checks import InputError


def first_derivative(gradient: tf.Tensor, *sources: tf.Tensor) -> tf.Tensor:
    """The gradient as it is; whoever differentiates it gets an error, not a wrong second derivative.

    Args:
        gradient: of a loss.
        sources: what the loss is of, whether or not TensorFlow can see that the gradient depends on it.

    Raises:
        InputError: when the result is differentiated, in eager mode or while a graph is traced.
    """

    @tf.custom_gradient
    def once(gradient, *_):
        def refuse(*_):
            raise InputError(
                "The losses of tfrank have first derivatives only, and a gradient of their gradient was asked"
                " for. Take tf.stop_gradient of the gradient, or leave the second derivative out."
            )

        return tf.identity(gradient), refuse

    return once(gradient, *sources)
