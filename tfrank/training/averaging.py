"""Exponential moving average of a model's weights."""

import keras
import tensorflow as tf

from tfrank import checks


class WeightAverage:
    """Averages of the floating-point variables of a model, moving statistics included.

        average_t = m_t average_(t-1) + (1 - m_t) variable_t,        m_t = min(momentum, t / (t + 9))

    from step t = 1 on, so that the first steps, when weights are still far from good, are soon forgotten.

    Args:
        model: to be made, like the average, in the scope of `strategy`.
        momentum: in (0, 1).
        iterations: the optimizer's variable that counts updates.
        strategy: the one of the model.

    Attributes:
        variables: the averages, to be saved in checkpoints; in the order of `averaged_variables(model)`.
    """

    def __init__(
        self,
        model: keras.Model,
        momentum: float,
        *,
        iterations: keras.Variable,
        strategy: tf.distribute.Strategy,
    ):
        self._momentum = checks.number("momentum", momentum, above=0, below=1)
        self._iterations, self._strategy = iterations, strategy
        self._of = averaged_variables(model)
        self.variables = [tf.Variable(variable, trainable=False) for variable in self._of]

    def update(self) -> None:
        """Takes the present weights into the averages; to be called after each step."""
        t = tf.cast(tf.convert_to_tensor(self._iterations), tf.float32)
        momentum = tf.minimum(self._momentum, t / (t + 9))

        def move(average, variable):
            average.assign_sub((1 - tf.cast(momentum, average.dtype)) * (average - variable))

        for average, variable in zip(self.variables, self._of):
            self._strategy.extended.update(average, move, args=(variable,))


def averaged_variables(model: keras.Model) -> list[tf.Variable]:
    """The floating-point variables of a model: weights and moving statistics, no states of random numbers."""
    return [variable.value for variable in model.variables if variable.value.dtype.is_floating]
