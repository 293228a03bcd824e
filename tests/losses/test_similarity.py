"""The similarity product and the permutation, each with a gradient of its own."""

import numpy as np
import pytest
import tensorflow as tf

from tfrank.losses.similarity import cosine_similarity, inverse, permute

RNG = np.random.default_rng(0)
QUERIES, GALLERY = (tf.constant(RNG.normal(size=(rows, 4))) for rows in (5, 7))
ORDER = tf.constant([3, 0, 4, 1, 2])

# Each function beside its twin, which autodiff differentiates.
FUNCTIONS = {
    "square": (
        lambda rows: cosine_similarity(rows, rows),
        lambda rows: tf.einsum("qd,gd->qg", rows, rows),
        [QUERIES],
    ),
    "rectangular": (
        cosine_similarity,
        lambda queries, gallery: tf.einsum("qd,gd->qg", queries, gallery),
        [QUERIES, GALLERY],
    ),
    "permute": (
        lambda rows: permute(rows, ORDER),
        lambda rows: tf.stack([rows[i] for i in ORDER]),
        [QUERIES],
    ),
}
every_function = pytest.mark.parametrize("function, twin, arguments", FUNCTIONS.values(), ids=FUNCTIONS)


@every_function
def test_value_and_gradient_are_those_of_the_autodiff_twin(function, twin, arguments):
    results = []
    for f in (function, twin):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            value = f(*arguments)
        # An upstream gradient that is not symmetric, or a missing transpose would not show.
        upstream = tf.constant(np.random.default_rng(1).normal(size=value.shape))
        results.append([value, *tape.gradient(value, arguments, output_gradients=upstream)])
    for got, wanted in zip(*results):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@every_function
def test_gradient_is_the_slope(function, twin, arguments):
    for got, slopes in zip(*tf.test.compute_gradient(function, arguments, delta=1e-4)):
        np.testing.assert_allclose(got, slopes, atol=1e-8)


def test_inverse_undoes_a_permutation():
    np.testing.assert_array_equal(tf.gather(inverse(ORDER), ORDER), range(5))
