"""Averages of a model's weights: over the steps, and with the weights before training."""

import itertools

import keras
import tensorflow as tf

from tfrank.common import checks


class WeightAverage:
    """Averages of the floating-point variables of a model, moving statistics included.

        average_t = m_t average_(t-1) + (1 - m_t) (share variable_0 + (1 - share) variable_t)
        m_t       = min(momentum, t / (t + 9))

    from step t = 1 on. The first steps, when weights are still poor, are soon forgotten. `share` mixes in the
    weights before training, as Wortsman et al. do (WiSE-FT, arXiv 2109.01903, section 3): a pretrained
    network fine-tuned on few classes then ranks other classes better.

    Args:
        model: created, like the average, in the scope of `strategy`.
        momentum: from 0 (no average over the steps) to below 1.
        share: share of the weights before training, from 0 to below 1.
        iterations: the optimizer's variable that counts updates.
        strategy: the strategy of the model.

    Attributes:
        variables: the averages, to save in checkpoints, in the order of `averaged_variables(model)`.
        start: the weights before training, to save in checkpoints too; empty if `share` is 0.
    """

    def __init__(
        self,
        model: keras.Model,
        momentum: float,
        *,
        share: float = 0.0,
        iterations: keras.Variable,
        strategy: tf.distribute.Strategy,
    ):
        self._momentum = checks.number("momentum", momentum, at_least=0, below=1)
        self._share = checks.number("share", share, at_least=0, below=1)
        self._iterations, self._strategy = iterations, strategy
        self._of = averaged_variables(model)
        self.variables = [tf.Variable(variable, trainable=False) for variable in self._of]
        self.start = [tf.Variable(variable, trainable=False) for variable in self._of if self._share]

    def update(self) -> None:
        """Updates the averages with the current weights; call after each step."""
        t = tf.cast(tf.convert_to_tensor(self._iterations), tf.float32)
        momentum = tf.minimum(self._momentum, t / (t + 9))

        def move(average, variable, start):
            mixed = variable if start is None else self._share * start + (1 - self._share) * variable
            average.assign_sub((1 - tf.cast(momentum, average.dtype)) * (average - mixed))

        for average, variable, start in itertools.zip_longest(self.variables, self._of, self.start):
            self._strategy.extended.update(average, move, args=(variable, start))


def averaged_variables(model: keras.Model) -> list[tf.Variable]:
    """The floating-point variables of a model: weights and moving statistics, but no random-number states."""
    return [variable.value for variable in model.variables if variable.value.dtype.is_floating]
