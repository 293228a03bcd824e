"""L2 normalisation that is safe for rows of any norm, zero included."""

from collections.abc import Sequence

import tensorflow as tf

SMALLEST_NORM = 1e-6


def l2_normalize(embeddings: tf.Tensor) -> tf.Tensor:
    """Divides each row by its Euclidean norm: x / |x|.

    A row of norm below 1e-6 gives a row of zeros, so its similarity to everything is 0, and its
    gradient is exactly zero. For all other rows value and gradient are exact, even if the squares
    of the entries would overflow or underflow: a row is first divided by its largest absolute entry.

    Args:
        embeddings: `[rows, dim]` float32 or float64.

    Returns:
        `[rows, dim]`, same dtype, every row of norm 1 or 0.

    >>> l2_normalize(tf.constant([[3e30, 4e30], [0.0, 0.0]])).numpy().round(3).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    # x / |x| does not depend on the scale of x, so the gradient may take it as a constant.
    largest = tf.stop_gradient(tf.reduce_max(tf.abs(embeddings), axis=1, keepdims=True))
    safe = tf.where(largest > 0, largest, tf.ones_like(largest))
    scaled = embeddings / safe
    squares = tf.reduce_sum(tf.square(scaled), axis=1, keepdims=True)
    small = largest * tf.sqrt(squares) < SMALLEST_NORM
    # Both branches of a `where` are differentiated, so rows that become zero need a finite gradient here.
    root = tf.sqrt(tf.where(small, tf.ones_like(squares), squares))
    return tf.where(small, tf.zeros_like(scaled), scaled / root)


def side_by_side(embeddings: tf.Tensor | Sequence[tf.Tensor]) -> tf.Tensor:
    """L2-normalises several embeddings of an image, in float32 or float64, and concatenates them.

    Args:
        embeddings: `[rows, dim]` floats; the dims may differ. A single embedding is only normalised.

    >>> side_by_side([tf.constant([[3.0, 4.0]]), tf.constant([[2.0]])]).numpy().round(3).tolist()
    [[0.6000000238418579, 0.800000011920929, 1.0]]
    """
    return tf.concat(
        [
            l2_normalize(e if e.dtype == tf.float64 else tf.cast(e, tf.float32))
            for e in tf.nest.flatten(embeddings)
        ],
        axis=1,
    )
