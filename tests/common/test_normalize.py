"""L2 normalisation of rows of any norm."""

import numpy as np
import pytest
import tensorflow as tf

from tfrank.common.normalize import SMALLEST_NORM, l2_normalize, side_by_side

DIRECTIONS = np.random.default_rng(0).normal(size=(7, 5))
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)

every_dtype = pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float64", 1e-14)])
compiled_or_not = pytest.mark.parametrize("jit", [False, True])


def normalized(rows, jit=False):
    """The unit rows, and their gradient for an upstream gradient of ones."""

    def function(rows):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            unit = l2_normalize(rows)
        return unit, tape.gradient(unit, rows)

    function = tf.function(function, jit_compile=True) if jit else function
    return [result.numpy() for result in function(tf.constant(rows))]


def rows_of_norms(norms, dtype):
    return (DIRECTIONS * np.array(norms)[:, None]).astype(dtype)


@compiled_or_not
@every_dtype
def test_rows_of_any_norm_become_unit_rows_with_the_true_gradient(dtype, tolerance, jit):
    """float32 squares overflow from 1e19 on, and underflow below 1e-19."""
    norms = [2e-6, 1e-3, 1.0, 1e15, 1e20, 1e30, 1e34]
    unit, gradient = normalized(rows_of_norms(norms, dtype), jit)
    np.testing.assert_allclose(unit, DIRECTIONS, rtol=0, atol=tolerance)
    # d(sum of u)/dx = (1 - u sum(u)) / |x|
    slopes = 1 - DIRECTIONS * DIRECTIONS.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(gradient * np.array(norms)[:, None], slopes, atol=10 * tolerance)


@compiled_or_not
@every_dtype
def test_rows_below_the_smallest_norm_become_zero_with_zero_gradient(dtype, tolerance, jit):
    norms = [0.0, 1e-45, 1e-40, 1e-38, 1e-30, 1e-10, 0.99 * SMALLEST_NORM]
    unit, gradient = normalized(rows_of_norms(norms, dtype), jit)
    assert np.all(unit == 0) and np.all(gradient == 0)


@every_dtype
def test_a_small_row_does_not_touch_the_others(dtype, tolerance):
    rows = rows_of_norms([1, 0, 2, 1e-30, 3, 4, 5], dtype)
    unit, gradient = normalized(rows)
    ordinary = [0, 2, 4, 5, 6]
    unit_alone, gradient_alone = normalized(rows[ordinary])
    np.testing.assert_allclose(unit[ordinary], unit_alone, atol=tolerance)
    np.testing.assert_allclose(gradient[ordinary], gradient_alone, atol=tolerance)


def test_gradient_is_the_slope():
    rows = tf.constant(rows_of_norms([1, 2, 0.5, 1, 1, 3, 1], "float64"))
    [gradient], [slopes] = tf.test.compute_gradient(l2_normalize, [rows], delta=1e-5)
    np.testing.assert_allclose(gradient, slopes, atol=1e-8)


def test_a_row_may_have_one_entry_or_equal_largest_entries():
    """The largest entry divides the row, and must not show in the gradient."""
    np.testing.assert_array_equal(normalized(np.array([[-3.0], [4.0]]))[0], [[-1], [1]])
    unit, gradient = normalized(np.array([[2.0, -2.0], [2.0, 2.0]]))
    np.testing.assert_allclose(unit, np.sqrt([[0.5, 0.5], [0.5, 0.5]]) * [[1, -1], [1, 1]])
    np.testing.assert_allclose(gradient, [np.sqrt([0.125, 0.125]), [0, 0]], atol=1e-15)


def test_embeddings_side_by_side_are_each_of_unit_norm():
    first, second = rows_of_norms([1, 2, 3, 4, 5, 6, 0], "float32"), DIRECTIONS[:, :2] * 7
    joined = side_by_side([tf.constant(first), tf.constant(second.astype("float32"))])
    wanted = DIRECTIONS.copy()
    wanted[6] = 0
    np.testing.assert_allclose(joined[:, :5], wanted, atol=1e-6)
    np.testing.assert_allclose(
        joined[:, 5:], second / np.linalg.norm(second, axis=1, keepdims=True), atol=1e-6
    )
    assert joined.shape == (7, 7) and joined.dtype == tf.float32


def test_one_embedding_alone_is_only_normalised():
    rows = tf.constant(rows_of_norms([1, 2, 3, 4, 5, 6, 7], "float64"))
    np.testing.assert_array_equal(side_by_side(rows), l2_normalize(rows))
    np.testing.assert_array_equal(side_by_side([rows]), side_by_side(rows))


@pytest.mark.parametrize(
    "dtype, result",
    [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")],
)
def test_embeddings_of_low_precision_are_normalised_in_float32(dtype, result):
    """Of norm 1e-3, the squares of which float16 rounds to two digits."""
    rows = tf.cast(DIRECTIONS * 1e-3, dtype)
    joined = side_by_side([rows, rows])
    assert joined.dtype == result
    exact = tf.cast(rows, tf.float64).numpy()
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    np.testing.assert_allclose(joined, np.hstack([exact, exact]), atol=1e-6)
