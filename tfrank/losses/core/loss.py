"""Loss: what every loss of tfrank has, whatever it is computed from."""

import keras
import tensorflow as tf

from tfrank.common import checks

REDUCTIONS = ("mean", "sum", "sum_over_batch_size", "none", None)


class Loss(keras.losses.Loss):
    """A Keras loss with state, a training step and a readable `repr`.

    Args:
        reduction: one of `REDUCTIONS`, see `RankingLoss`; "none" is the same as None.
        name: name of the loss.

    Attributes:
        iteration: the variable that counts training steps, such as `optimizer.iterations`, for losses that
            change with the step. None until it is set.

    >>> import tfrank
    >>> tfrank.PNPLoss("ds")
    PNPLoss(variant='ds', alpha=4.0, b=4.0, temperature=0.01, include_self=False, warmup_steps=0)
    >>> tfrank.WeightedSum([tfrank.FastAPLoss(), tfrank.CircleLoss()])
    WeightedSum(losses=[FastAPLoss(num_bins=10), CircleLoss(margin=0.4, gamma=80.0)], weights=[1.0, 1.0])
    """

    iteration: tf.Variable | keras.Variable | None = None

    def __init__(self, *, reduction: str | None = "mean", name: str | None = None):
        checks.one_of("reduction", reduction, REDUCTIONS)
        super().__init__(reduction=None if reduction == "none" else reduction, name=name)

    @property
    def variables(self) -> list[tf.Variable]:
        """The state to store in checkpoints: none unless a loss has some."""
        return []

    def steps_taken(self) -> tf.Tensor:
        """The number of training steps taken, an int64 scalar, read from `iteration` inside the graph.

        Raises:
            InputError: `iteration` is not set, or not an integer of at least 0. In a graph a negative value
                raises TensorFlow's InvalidArgumentError instead; XLA leaves such checks out.
        """
        if self.iteration is None:
            raise checks.InputError(
                f"The loss {self.name!r} changes with the training step, but does not know it. Set"
                " loss.iteration = optimizer.iterations, and compile the model again if it has been used."
            )
        step = tf.convert_to_tensor(self.iteration)
        expected = "an integer of at least 0, such as optimizer.iterations"
        if not step.dtype.is_integer or step.shape.rank != 0:
            raise checks.invalid("iteration", expected, f"{step.dtype.name} {tuple(step.shape)}")
        known = tf.get_static_value(step)
        if known is not None and known < 0:
            raise checks.invalid("iteration", expected, int(known))
        message = [f"iteration: expected {expected}, received", step]
        with tf.control_dependencies([tf.debugging.Assert(step >= 0, message)]):
            return tf.cast(step, tf.int64)

    def __repr__(self) -> str:
        # `init_scope`, as a graph cannot read the value of a hyper-parameter that is a variable.
        with tf.init_scope():
            arguments = self._shown_arguments()
        return f"{type(self).__name__}({', '.join(f'{key}={text}' for key, text in arguments.items())})"

    def _shown_arguments(self) -> dict[str, str]:
        """The `repr` of each argument of the constructor, without the name and the usual reduction."""
        arguments = {key: repr(value) for key, value in self.get_config().items() if key != "name"}
        return {key: text for key, text in arguments.items() if (key, text) != ("reduction", "'mean'")}
