"""The permutation, which has a gradient of its own."""

import numpy as np
import tensorflow as tf

from tfrank.losses.core.permutation import inverse, permute

ROWS = tf.constant(np.random.default_rng(0).normal(size=(5, 4)))
ORDER = tf.constant([3, 0, 4, 1, 2])


def test_value_and_gradient_are_those_of_the_autodiff_twin():
    results = []
    for function in (lambda rows: permute(rows, ORDER), lambda rows: tf.stack([rows[i] for i in ORDER])):
        with tf.GradientTape() as tape:
            tape.watch(ROWS)
            value = function(ROWS)
        upstream = tf.constant(np.random.default_rng(1).normal(size=value.shape))
        results.append([value, tape.gradient(value, ROWS, output_gradients=upstream)])
    for got, wanted in zip(*results):
        np.testing.assert_array_equal(got, wanted)


def test_inverse_undoes_a_permutation():
    np.testing.assert_array_equal(tf.gather(inverse(ORDER), ORDER), range(5))
