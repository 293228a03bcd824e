"""Loss: what every loss of tfrank has, whatever it is computed from."""

import traceback
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, ignore_labels

EXPECTED_STEP = "an integer of at least 0, such as optimizer.iterations"
REDUCTIONS = ("mean", "sum", "sum_over_batch_size", "none", None)


class Loss(keras.losses.Loss):
    """A Keras loss with state, a training step and a readable `repr`.

    Args:
        reduction: one of `REDUCTIONS`, see `RankingLoss`; "none" is the same as None.
        name: name of the loss.
        ignore_label: label of rows without a class, see `RankingLoss`.

    Attributes:
        iteration: the variable that counts training steps, for losses that change with the step. None until
            it is set. Under `fit` and `evaluate` it need not be: the step is then `optimizer.iterations` of
            the model that calls the loss. In a loop of your own, set it to that variable.

    >>> import tfrank
    >>> tfrank.PNPLoss("ds")
    PNPLoss(variant='ds', alpha=4.0, b=4.0, temperature=0.01, include_self=False, warmup_steps=0)
    >>> tfrank.WeightedSum([tfrank.FastAPLoss(), tfrank.CircleLoss()])
    WeightedSum(losses=[FastAPLoss(num_bins=10), CircleLoss(margin=0.4, gamma=80.0)], weights=[1.0, 1.0])
    """

    def __init__(
        self,
        *,
        reduction: str | None = "mean",
        name: str | None = None,
        ignore_label: int | None = None,
    ):
        checks.one_of("reduction", reduction, REDUCTIONS)
        super().__init__(reduction=None if reduction == "none" else reduction, name=name)
        self.ignore_label = ignore_labels.checked(ignore_label)
        self._iteration: tf.Variable | keras.Variable | None = None

    @property
    def iteration(self) -> tf.Variable | keras.Variable | None:
        """The variable that counts training steps, if it is set; see the class."""
        return self._iteration

    @iteration.setter
    def iteration(self, variable: tf.Variable | keras.Variable | None) -> None:
        self._iteration = checked_iteration(variable)

    @property
    def variables(self) -> list[tf.Variable]:
        """The state to store in checkpoints: none unless a loss has some."""
        return []

    def steps_taken(self) -> tf.Tensor:
        """The number of training steps taken, an int64 scalar, read inside the graph.

        Raises:
            InputError: `iteration` is not set, and no model in training or evaluation calls the loss. In a
                graph a negative value raises TensorFlow's InvalidArgumentError; XLA leaves such checks out.
        """
        step = self.known_step()
        if step is None:
            raise checks.InputError(
                f"The loss {self.name!r} changes with the training step, but does not know it. Set"
                " loss.iteration = optimizer.iterations; only Keras' fit needs nothing."
            )
        return step

    def known_step(self) -> tf.Tensor | None:
        """The number of training steps taken, as `steps_taken`; None if it is not known."""
        step = _iterations_of_caller() if self.iteration is None else self.iteration
        if step is None:
            return None
        step = tf.convert_to_tensor(step)
        if tf.executing_eagerly() and step < 0:
            raise checks.invalid("iteration", EXPECTED_STEP, int(step))
        message = [f"iteration: expected {EXPECTED_STEP}, received", step]
        with tf.control_dependencies([tf.debugging.Assert(step >= 0, message)]):
            return tf.cast(step, tf.int64)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "ignore_label": self.ignore_label}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Loss":
        """Creates the loss from its `get_config`; its class need not know of labels to ignore."""
        return cls(**{key: value for key, value in config.items() if (key, value) != ("ignore_label", None)})

    def __repr__(self) -> str:
        # `init_scope`, as a graph cannot read the value of a hyper-parameter that is a variable.
        with tf.init_scope():
            arguments = self._shown_arguments()
        return f"{type(self).__name__}({', '.join(f'{key}={text}' for key, text in arguments.items())})"

    def _shown_arguments(self) -> dict[str, str]:
        """The `repr` of each argument of the constructor, without the name and the usual values."""
        arguments = {key: repr(value) for key, value in self.get_config().items() if key != "name"}
        usual = [("reduction", "'mean'"), ("ignore_label", "None")]
        return {key: text for key, text in arguments.items() if (key, text) not in usual}


def checked_iteration(variable: tf.Variable | keras.Variable | None) -> tf.Variable | keras.Variable | None:
    """Returns the variable.

    Raises:
        InputError: it is neither None nor a variable of one integer. A number or a tensor, such as
            `optimizer.iterations` of an optimizer that accumulates gradients, would be the same at all steps.
    """
    if variable is None:
        return None
    if not isinstance(variable, tf.Variable | keras.Variable):
        raise checks.InputError(
            f"{checks.invalid('iteration', f'a variable, {EXPECTED_STEP}', variable)}. It would be the same"
            " at all steps. Leave iteration unset under Keras' fit: the loss then reads the step of the"
            " optimizer, also of one that accumulates gradients."
        )
    dtype, shape = tf.as_dtype(variable.dtype), tuple(variable.shape)
    if not dtype.is_integer or shape:
        raise checks.invalid("iteration", EXPECTED_STEP, f"{dtype.name} {shape}")
    return variable


def _iterations_of_caller():
    """The steps that the optimizer of the Keras model has taken whose step calls this; None outside of one.

    Keras gives a loss no way to the model: it is found on the stack, from which `fit` traces the loss. Read
    inside the graph, it is the current number, also of an optimizer that accumulates gradients.
    """
    for frame, _ in traceback.walk_stack(None):
        model = frame.f_locals.get("self")
        if isinstance(model, keras.Model) and getattr(model, "optimizer", None) is not None:
            # Where losses are scaled, Keras wraps the optimizer that a model may keep too.
            own = model.optimizer
            inner = getattr(own, "inner_optimizer", own)
            optimizers = (one for one in vars(model).values() if isinstance(one, keras.optimizers.Optimizer))
            if any(one is not own and one is not inner for one in optimizers):
                raise checks.InputError(
                    "The model has several optimizers, so the loss does not know which one's step counts. Set"
                    " loss.iteration = optimizer.iterations, of the one that trains it."
                )
            return own.iterations
    return None
