"""Gradients that must not be differentiated again."""

import tensorflow as tf

from tfrank.common.checks import InputError


def first_derivative(gradient: tf.Tensor, *sources: tf.Tensor) -> tf.Tensor:
    """Returns the gradient unchanged; differentiating it raises an error, instead of giving a wrong result.

    Args:
        gradient: the gradient of a loss.
        sources: the tensors that the loss depends on, even where TensorFlow cannot see that the gradient
            depends on them too.

    Raises:
        InputError: the result is differentiated, in eager mode or while a graph is traced.
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
