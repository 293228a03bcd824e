"""The layer of proxies by itself."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfrank import Proxies
from tfrank.common.checks import InputError
from tfrank.losses.proxies.soft_triple import CentersRegularizer


@pytest.fixture(params=["float32", "float64", "float16", "bfloat16", "mixed_bfloat16", "mixed_float16"])
def policy(request):
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


def unit(rows):
    rows = np.float64(rows)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_cosines_and_proxies_are_float32_or_more_under_every_dtype_policy(policy, dtype):
    embeddings = tf.cast(np.random.default_rng(0).normal(size=(5, 8)), dtype)
    layer = Proxies(3)
    np.testing.assert_array_equal(layer(embeddings), embeddings)
    cosines = layer.cosines(embeddings)
    assert layer.proxies.dtype == "float32"
    assert cosines.dtype == ("float64" if dtype == "float64" else "float32")
    expected = unit(tf.cast(embeddings, tf.float64)) @ unit(layer.proxies).T
    np.testing.assert_allclose(cosines, expected, atol=1e-6)


def test_first_proxies_are_unit_vectors_in_all_directions_by_the_seed():
    def first(seed):
        layer = Proxies(500, seed=seed)
        layer.build([None, 16])
        return layer.proxies.numpy()

    np.testing.assert_allclose(np.linalg.norm(first(0), axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.cov(first(0).T), np.eye(16) / 16, atol=0.02)
    np.testing.assert_array_equal(first(0), first(0))
    assert not np.any(np.isclose(first(0), first(1)).all(axis=1))


def test_proxies_are_found_by_their_path():
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4), Proxies(3), keras.layers.Dense(1)])
    assert [v.path for v in model.variables if "proxies" in v.path] == [model.layers[1].proxies.path]


def test_config_makes_the_layer_again():
    layer = Proxies(20, regularizer=CentersRegularizer(0.3, proxies_per_class=5), seed=4, name="centers")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.get_config() == layer.get_config()
    embeddings = tf.ones([2, 8])
    again(embeddings), layer(embeddings)
    np.testing.assert_array_equal(again.cosines(embeddings), layer.cosines(embeddings))
    np.testing.assert_array_equal(again.losses, layer.losses)
    assert layer.losses[0] > 0


@pytest.mark.parametrize(
    "argument, values", [("num_proxies", [0, -1, 2.0, "3", None]), ("seed", [-1, 0.5, None, True])]
)
def test_bad_arguments_are_refused(argument, values):
    for value in values:
        with pytest.raises(InputError, match=f"argument `{argument}`. Expected an integer of at least"):
            Proxies(**{"num_proxies": 3, argument: value})


@pytest.mark.parametrize("shape", [[8], [2, 8, 1], [2, 8, 8, 3]])
def test_embeddings_of_another_rank_are_refused(shape):
    with pytest.raises(InputError, match=r"argument `embeddings`. Expected shape \[batch, dim\]"):
        Proxies(3)(tf.ones(shape))
