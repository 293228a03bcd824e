"""The training step, and the strategy it runs under."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import slow
from tfrank import SmoothAPLoss
from tfrank.common.checks import InputError
from tfrank.training.step import build_step
from tfrank.training.strategy import build_strategy

BATCH = {
    "image": tf.random.stateless_uniform([6, 2, 2, 3], [0, 1], 0, 255, tf.int32),
    "label": tf.constant([0, 0, 1, 1, 2, 2], tf.int64),
}


def linear_model(regularizer=None):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input([2, 2, 3]),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(3, kernel_regularizer=regularizer, bias_initializer="ones"),
        ]
    )


def one_step(model, optimizer=None, **options):
    optimizer = optimizer or keras.optimizers.SGD(0.5)
    optimizer.build(model.trainable_variables)
    step = build_step(model, SmoothAPLoss(0.1), optimizer, strategy=tf.distribute.get_strategy(), **options)
    return float(step(BATCH).loss), [w.numpy() for w in model.trainable_variables]


def plain_gradient(model, decay):
    """The loss, and dL/dw + decay w with the gradient of the plain loss."""
    with tf.GradientTape() as tape:
        loss = SmoothAPLoss(0.1)(BATCH["label"], model(tf.cast(BATCH["image"], tf.float32)))
    gradients = tape.gradient(loss, model.trainable_variables)
    decayed = zip(model.trainable_variables, gradients, decay)
    return float(loss), [g.numpy() + d * w.numpy() for w, g, d in decayed]


def assert_stepped(weights, model, gradients, rate=0.5):
    """That the weights are the model's, moved against the gradients."""
    for weight, before, gradient in zip(weights, model.trainable_variables, gradients, strict=True):
        np.testing.assert_allclose(weight, before.numpy() - rate * gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("micro_batch_size", [0, 4])
@pytest.mark.parametrize(
    "regularizer, options, decay",
    [
        (None, {}, (0.0, 0.0)),
        (None, {"l2": 0.3}, (0.3, 0.3)),
        (None, {"l2": 0.3, "no_decay": ["bias"]}, (0.3, 0.0)),
        (None, {"l2": 0.3, "no_decay": ["gamma", "dense"]}, (0.0, 0.0)),
        # Keras' regulariser is c |w|^2, of which the gradient is 2 c w.
        (keras.regularizers.L2(0.1), {}, (0.2, 0.0)),
        (keras.regularizers.L2(0.1), {"l2": 0.3, "no_decay": ["kernel"]}, (0.2, 0.3)),
    ],
)
def test_a_step_follows_the_gradient_and_decay_and_reports_the_bare_loss(
    regularizer, options, decay, micro_batch_size
):
    before = linear_model(regularizer)
    expected_loss, gradients = plain_gradient(before, decay)
    loss, weights = one_step(linear_model(regularizer), micro_batch_size=micro_batch_size, **options)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert_stepped(weights, before, gradients)


def norm_of(gradients):
    return math.sqrt(sum(float((gradient.astype("float64") ** 2).sum()) for gradient in gradients))


def scaled(optimizer):
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**12)


@pytest.mark.parametrize("micro_batch_size", [0, 4])
@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, scaled], ids=["unscaled", "scaled"])
@pytest.mark.parametrize("part", [0.999, 1.001])
def test_the_gradient_with_its_decay_is_clipped_where_it_is_above_the_norm(part, wrap, micro_batch_size):
    before = linear_model()
    _, gradients = plain_gradient(before, (0.3, 0.3))
    clipped = [gradient * min(part, 1) for gradient in gradients]
    optimizer = wrap(keras.optimizers.SGD(0.5))
    options = {"l2": 0.3, "clip_norm": part * norm_of(gradients), "micro_batch_size": micro_batch_size}
    assert_stepped(one_step(linear_model(), optimizer, **options)[1], before, clipped)


@pytest.mark.parametrize("micro_batch_size", [0, 4])
def test_embeddings_are_the_models_before_the_update(micro_batch_size):
    model = linear_model()
    model = keras.Model(model.inputs, [model.outputs[0], keras.layers.Dense(2)(model.layers[-2].output)])
    wanted = [output.numpy() for output in model(tf.cast(BATCH["image"], tf.float32))]
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(model.trainable_variables)

    def loss(labels, outputs):
        return SmoothAPLoss(0.1)(labels, outputs[0]) + SmoothAPLoss(0.1)(labels, outputs[1])

    step = build_step(
        model, loss, optimizer, strategy=tf.distribute.get_strategy(), micro_batch_size=micro_batch_size
    )
    outcome = step(BATCH)
    assert len(outcome.embeddings) == 2
    for embeddings, before, now in zip(outcome.embeddings, wanted, model(BATCH["image"])):
        np.testing.assert_allclose(embeddings, before, atol=1e-6)
        assert np.abs(now - before).max() > 1e-3


@pytest.mark.parametrize("micro_batch_size", [slow(0), 3, slow(4)])
def test_compiled_by_xla_a_step_is_the_same(micro_batch_size):
    """Random numbers aside, which XLA draws otherwise; see `test_multi_stage.py` for those."""

    def network():
        model = linear_model()
        x = keras.layers.BatchNormalization(momentum=0.5)(model.layers[-1].output)
        return keras.Model(model.inputs, keras.layers.Dense(3)(x))

    runs = []
    for xla in (False, True):
        model = network()
        for _ in range(2):
            one_step(model, xla=xla, micro_batch_size=micro_batch_size)
        runs.append([variable.numpy() for variable in model.variables])
    for plain, compiled, start in zip(*runs, network().variables):
        np.testing.assert_allclose(compiled, plain, rtol=0, atol=1e-6, err_msg=start.path)
        unmoved = "dense" in start.path and "bias" in start.path  # Before batch norm.
        assert unmoved or np.abs(plain - start.numpy()).max() > 1e-3, start.path


def test_what_comes_after_sees_the_updated_variables():
    model = linear_model()
    kernel = model.trainable_variables[0]
    seen = tf.Variable(tf.zeros(kernel.shape))
    one_step(model, after=lambda: seen.assign(kernel.value))
    np.testing.assert_array_equal(seen, kernel)


def test_an_unknown_strategy_is_refused_with_the_likely_one():
    with pytest.raises(InputError, match=r"Received: strategy='mirored'. Did you mean \"mirrored\"\?"):
        build_strategy("mirored", 8)


def test_xla_gives_out_no_loss_of_activations():
    model = keras.Sequential([*linear_model().layers, keras.layers.ActivityRegularization(0.1)])
    model.build([None, 2, 2, 3])
    with pytest.raises(InputError, match="which micro_batch_size and xla do not support"):
        one_step(model, xla=True)


def test_a_gradient_in_float64_may_be_clipped():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        model, same = linear_model(), linear_model()
    finally:
        keras.config.set_dtype_policy(before)
    _, gradients = plain_gradient(same, (0.0, 0.0))
    _, weights = one_step(model, clip_norm=norm_of(gradients) / 2)
    assert weights[0].dtype == "float64"
    assert_stepped(weights, same, [gradient / 2 for gradient in gradients])
