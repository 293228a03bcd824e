"""Frozen batch norm: whatever is done to it, neither its outputs nor its variables move."""

import keras
import numpy as np
import pytest

from tfrank.common.checks import InputError
from tfrank.configs import default
from tfrank.models.normalization import (
    MODES,
    FrozenBatchNormalization,
    FrozenNormalization,
    UnitNorm,
    batch_norm,
)
from tfrank.run.experiment import build_model

X = np.random.default_rng(0).normal(2, 3, size=[8, 4]).astype("float32")


def random_variables(layer):
    random = np.random.default_rng(1)
    for variable in layer.variables:
        variable.assign(random.uniform(0.5, 2, size=variable.shape))


def frozen_model():
    inputs = keras.Input([4])
    layer = batch_norm("frozen", name="bn")
    model = keras.Model(inputs, keras.layers.Dense(2)(layer(inputs)))
    random_variables(layer)
    return model


def thaw(model, tmp_path):
    model.trainable = False
    model.trainable = True
    for layer in model.layers:
        layer.trainable = True
    return model


def reload(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras")


def clone(model, tmp_path):
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


@pytest.mark.parametrize("treatment", [lambda model, _: model, thaw, reload, clone])
def test_a_frozen_batch_norm_stays_frozen(treatment, tmp_path):
    model = frozen_model()
    gamma, beta, mean, variance = (v.numpy() for v in model.get_layer("bn").variables)
    model = treatment(model, tmp_path)
    layer = model.get_layer("bn")
    before = layer.get_weights()
    wanted = gamma * (X - mean) / np.sqrt(variance + 1e-5) + beta
    for training in (True, False, None):
        np.testing.assert_allclose(layer(X, training=training), wanted, rtol=1e-5, atol=1e-5)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    model.fit(X, np.zeros([8, 2]), verbose=0)
    for one, other in zip(before, layer.get_weights()):
        np.testing.assert_array_equal(one, other)
    assert not layer.trainable and not layer.trainable_variables
    assert [variable.path.split("/")[-1] for variable in model.trainable_variables] == ["kernel", "bias"]


@pytest.mark.parametrize("treatment", [lambda model, _: model, thaw, reload, clone])
def test_of_frozen_statistics_gamma_and_beta_are_trained_and_the_statistics_used(treatment, tmp_path):
    inputs = keras.Input([4])
    model = keras.Model(inputs, batch_norm("statistics", name="bn")(inputs))
    random_variables(model.get_layer("bn"))
    gamma, beta, mean, variance = (v.numpy() for v in model.get_layer("bn").variables)
    model = treatment(model, tmp_path)
    layer = model.get_layer("bn")
    wanted = gamma * (X - mean) / np.sqrt(variance + 1e-5) + beta
    for training in (True, False, None):
        np.testing.assert_allclose(layer(X, training=training), wanted, rtol=1e-5, atol=1e-5)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    model.fit(X, np.zeros([8, 4]), verbose=0)
    moved = [
        not np.array_equal(one, other) for one, other in zip((gamma, beta, mean, variance), layer.weights)
    ]
    assert moved == [True, True, False, False]


@pytest.mark.parametrize("weights, synchronized", [("random", True), ("imagenet", False)])
def test_random_weights_have_no_statistics_to_keep(weights, synchronized):
    config = default.get_config()
    config.model.update(weights=weights, batch_norm="statistics", blocks=1, filters=2)
    model = build_model(config)
    (norm,) = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert norm.synchronized == synchronized


def test_a_trained_batch_norm_moves_and_is_over_the_global_batch():
    layer = batch_norm("trained")
    layer(X, training=True)
    assert (
        layer.synchronized and np.all(layer.moving_mean.numpy() != 0) and len(layer.trainable_variables) == 2
    )


def test_all_have_pytorchs_momentum_and_epsilon():
    assert [(n.momentum, n.epsilon) for n in map(batch_norm, MODES)] == [(0.9, 1e-5)] * 3


def test_weights_pass_between_frozen_and_trained():
    trained, frozen = keras.layers.BatchNormalization(), FrozenBatchNormalization()
    for layer in (trained, frozen):
        layer.build([None, 4])
    random_variables(trained)
    frozen.set_weights(trained.get_weights())
    np.testing.assert_allclose(frozen(X), trained(X, training=False), rtol=1e-5, atol=1e-6)


def test_the_frozen_normalization_is_keras_two_layers(tmp_path):
    pixels = np.random.default_rng(0).uniform(size=[2, 3, 3, 3]).astype("float32")
    deviation = [0.229, 0.224, 0.225]
    keras_layer, ours = keras.layers.Normalization(), FrozenNormalization()
    for layer in (keras_layer, ours):
        layer.build([None, 3, 3, 3])
    values = [np.float32([0.485, 0.456, 0.406]), np.float32(deviation), np.float32(1)]
    for layer in (keras_layer, ours):
        for variable, value in zip(layer.weights, values, strict=True):
            variable.assign(value)
    keras_layer.finalize_state()
    wanted = keras.layers.Rescaling([1 / np.sqrt(d) for d in deviation])(keras_layer(pixels))
    np.testing.assert_allclose(ours(pixels), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        wanted, (pixels - values[0]) / np.float32(deviation), rtol=1e-5, atol=1e-6
    )  # As PyTorch.


def test_unit_norm_has_rows_of_norm_1_and_leaves_zeros():
    rows = UnitNorm()(np.array([[3.0, 4.0], [0.0, 0.0]], "float32"))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]], rtol=1e-6)


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match='Did you mean "frozen"'):
        batch_norm("froze")
