"""A share of the proxies in each step (Partial FC)."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.losses.proxies import EMBEDDINGS, LABELS, Recipe, every_loss, slopes, training_model
from tests.reference import mean
from tfrank.common.checks import InputError
from tfrank.losses.proxies import Proxies, SampledProxyLoss

CLASSES = list(range(-5, 15))


def sampled(recipe, share, step=0, seed=0):
    """A loss with its layer of proxies, in float64, at a step of training."""
    loss = SampledProxyLoss(recipe.loss(CLASSES), share=share, seed=seed)
    loss.iteration = tf.Variable(step, dtype=tf.int64)
    layer = loss.proxies()
    layer(EMBEDDINGS)
    return loss, layer


def chosen_of(loss):
    """The classes of a step, by their places among all."""
    return loss._chosen(loss.loss.class_index(tf.constant(LABELS))[0]).numpy()


def value_and_gradients(loss, layer, embeddings=EMBEDDINGS, labels=LABELS, weights=None):
    embeddings = tf.convert_to_tensor(embeddings)
    with tf.GradientTape() as tape:
        tape.watch(embeddings)
        value = loss(labels, layer(embeddings), weights)
    return value, *tape.gradient(value, [embeddings, layer.proxies.value])


@every_loss
def test_at_share_1_value_and_gradients_are_those_of_the_full_loss(recipe):
    loss, layer = sampled(recipe, 1.0)
    full = recipe.loss(CLASSES)
    every = Proxies(full.num_proxies)
    every(EMBEDDINGS)
    every.set_weights(layer.get_weights())
    weights = np.linspace(0, 2, len(LABELS)).astype("float32")
    for one, other in zip(
        value_and_gradients(loss, layer, weights=weights),
        value_and_gradients(full, every, weights=weights),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@every_loss
def test_a_share_is_the_loss_of_the_chosen_classes_alone_in_plain_loops(recipe):
    loss, layer = sampled(recipe, 0.5)
    chosen = chosen_of(loss)
    per_class = loss.loss.proxies_per_class
    rows = np.reshape(layer.get_weights()[0], [len(CLASSES), per_class, -1])[chosen]
    classes = np.array(CLASSES)[chosen].tolist()
    assert len(chosen) == 10 and set(LABELS) <= set(classes)

    def oracle(embeddings, rows=rows):
        flat = np.reshape(rows, [-1, embeddings.shape[1]])
        return mean(recipe.oracle(LABELS, embeddings, flat, classes), [True] * len(LABELS), None)

    value, by_embeddings, by_proxies = value_and_gradients(loss, layer)
    np.testing.assert_allclose(value, oracle(EMBEDDINGS), rtol=1e-6)
    np.testing.assert_allclose(by_embeddings, slopes(oracle, EMBEDDINGS), atol=1e-5)
    wanted = np.zeros([len(CLASSES), per_class, EMBEDDINGS.shape[1]])
    wanted[chosen] = slopes(lambda moved: oracle(EMBEDDINGS, moved), rows)
    np.testing.assert_allclose(np.reshape(by_proxies, wanted.shape), wanted, atol=1e-5)


def test_each_step_draws_other_classes_evenly_and_the_seed_decides():
    recipe = Recipe("normalized_softmax", {})
    draws = [chosen_of(sampled(recipe, 0.4, step)[0]) for step in range(400)]
    own = np.searchsorted(CLASSES, np.unique(LABELS))
    assert all(set(own) <= set(draw) and len(draw) == 8 for draw in draws)
    counts = np.bincount(np.concatenate(draws), minlength=len(CLASSES))
    others = np.delete(counts, own)
    # Each of 16 others is drawn with probability 4 / 16; five standard deviations.
    assert np.all(np.abs(others - 100) < 5 * np.sqrt(400 * 0.25 * 0.75))
    np.testing.assert_array_equal(draws[7], chosen_of(sampled(recipe, 0.4, 7)[0]))
    assert not np.array_equal(draws[7], chosen_of(sampled(recipe, 0.4, 7, seed=1)[0]))


def test_fit_trains_the_proxies_and_the_model():
    loss = SampledProxyLoss(Recipe("cos_face", {}).loss(range(50)), share=0.3)
    _, training = training_model(loss)
    features = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
    labels = np.arange(60) % 50
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build(training.trainable_variables)
    loss.iteration = optimizer.iterations
    before = [np.array(weight) for weight in training.get_weights()]
    training.compile(optimizer, loss)
    history = training.fit(features, labels, batch_size=12, epochs=8, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert all(np.any(a != b) for a, b in zip(before, training.get_weights(), strict=True))


def test_its_config_makes_an_equal_loss():
    loss = SampledProxyLoss(Recipe("arc_face", {}).loss(CLASSES), share=0.25, seed=3)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert repr(again) == repr(loss) and "share=0.25" in repr(loss)


def test_bad_use_is_named():
    recipe = Recipe("cos_face", {})
    small, layer = sampled(recipe, 0.1)
    unready = SampledProxyLoss(recipe.loss(CLASSES))
    for function, message in (
        (lambda: small(LABELS, layer(EMBEDDINGS)), "at most 2, ceil"),
        (lambda: unready(LABELS, EMBEDDINGS), "has no proxies yet"),
        (lambda: SampledProxyLoss(recipe.loss(CLASSES), share=0), "share"),
        (lambda: SampledProxyLoss("cos_face"), "a loss with proxies"),
        (lambda: small([99], layer(EMBEDDINGS[:1])), "one of the 20 labels"),
    ):
        with pytest.raises(InputError, match=message):
            function()
    _, layer = loss, _ = sampled(recipe, 0.5)
    loss.iteration = None
    with pytest.raises(InputError, match="changes with the training step"):
        loss(LABELS, EMBEDDINGS)
