"""The moving average of weights, against a loop over the weights after each step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfrank import SmoothAPLoss
from tfrank.common.checks import InputError
from tfrank.training.averaging import WeightAverage, averaged_variables
from tfrank.training.step import build_step

ONE_DEVICE = tf.distribute.get_strategy()
IMAGES = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
LABELS = np.arange(8) // 2


def network():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    batch_norm = layers.BatchNormalization(momentum=0.5)
    return keras.Sequential([keras.Input([4]), layers.Dense(3), batch_norm, layers.Dropout(0.1, seed=1)])


def values_of(model):
    return {v.path: v.numpy().astype("float64") for v in model.variables if "seed" not in v.path}


class Run:
    """A model, its average, and some made-up steps."""

    def __init__(self, momentum, share=0.0):
        self.model = network()
        self.iterations = keras.Variable(0, dtype="int64", trainable=False)
        self.average = WeightAverage(
            self.model, momentum, share=share, iterations=self.iterations, strategy=ONE_DEVICE
        )

    def steps(self, first, last):
        """Moves every variable and updates; what the variables were after each step."""
        seen = []
        update = tf.function(self.average.update)
        for t in range(first, last + 1):
            for k, variable in enumerate(v for v in self.model.variables if "seed" not in v.path):
                variable.assign(np.random.default_rng([t, k]).normal(size=variable.shape))
            self.iterations.assign(t)
            update()
            seen.append(values_of(self.model))
        return seen


def by_hand(start, seen, momentum, share=0.0):
    averages = {path: value.copy() for path, value in start.items()}
    for t, values in enumerate(seen, 1):
        m = min(momentum, t / (t + 9))
        for path in averages:
            mixed = share * start[path] + (1 - share) * values[path]
            averages[path] = m * averages[path] + (1 - m) * mixed
    return averages


def assert_averages(average, model, wanted, tolerance=1e-6):
    paths = [v.path for v in model.variables if "seed" not in v.path]
    assert len(average.variables) == len(paths) == 6
    for variable, path in zip(average.variables, paths, strict=True):
        np.testing.assert_allclose(variable, wanted[path], rtol=0, atol=tolerance, err_msg=path)


@pytest.mark.parametrize("momentum", [0.35, 0.5, 0.9999])
def test_weights_and_moving_statistics_are_averaged_by_the_formula(momentum):
    """0.35 is reached at step 5, 0.5 at step 9."""
    run = Run(momentum)
    start = values_of(run.model)
    seen = run.steps(1, 12)
    assert_averages(run.average, run.model, by_hand(start, seen, momentum))
    assert any("moving_variance" in path for path in start)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_weights_before_training_keep_their_share(momentum):
    run = Run(momentum, share=0.25)
    start = values_of(run.model)
    seen = run.steps(1, 4)
    assert_averages(run.average, run.model, by_hand(start, seen, momentum, 0.25))
    if not momentum:
        last = {path: 0.25 * start[path] + 0.75 * seen[-1][path] for path in start}
        assert_averages(run.average, run.model, last)


def test_states_of_random_numbers_are_not_averaged():
    model = network()
    averaged = averaged_variables(model)
    seeds = [v for v in model.variables if "seed" in v.path]
    assert len(seeds) == 1 and len(averaged) == len(model.variables) - 1
    assert all(variable.dtype == tf.float32 for variable in averaged)


def test_before_the_first_step_the_average_is_the_model():
    run = Run(0.9)
    assert_averages(run.average, run.model, values_of(run.model), 0)


def test_the_average_goes_on_from_a_checkpoint(tmp_path):
    run = Run(0.5)
    run.steps(1, 7)
    path = tf.train.Checkpoint(average=run.average.variables).save(str(tmp_path / "average"))
    run.steps(8, 9)
    other = Run(0.5)
    tf.train.Checkpoint(average=other.average.variables).restore(path).assert_consumed()
    other.steps(8, 9)
    for one, again in zip(run.average.variables, other.average.variables, strict=True):
        np.testing.assert_array_equal(one, again)


@pytest.mark.parametrize("micro_batch_size", [0, 4])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_takes_the_weights_it_ends_with_into_the_average(micro_batch_size, scaled):
    model, optimizer = network(), keras.optimizers.SGD(0.5)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**10)
    optimizer.build(model.trainable_variables)
    average = WeightAverage(model, 0.15, iterations=optimizer.iterations, strategy=ONE_DEVICE)
    step = build_step(
        model,
        SmoothAPLoss(0.1),
        optimizer,
        strategy=ONE_DEVICE,
        micro_batch_size=micro_batch_size,
        after=average.update,
    )
    start, seen = values_of(model), []
    for _ in range(3):
        step({"image": IMAGES, "label": LABELS})
        seen.append(values_of(model))
    assert_averages(average, model, by_hand(start, seen, 0.15))
    assert all(np.abs(seen[0][path] - seen[2][path]).max() > 1e-5 for path in start if "bias" not in path)


@pytest.mark.parametrize("momentum", [1, -0.5, float("nan"), "0.9", None])
def test_a_momentum_outside_0_to_1_is_refused(momentum):
    with pytest.raises(InputError, match="Invalid value for argument `momentum`"):
        Run(momentum)
