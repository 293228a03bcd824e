"""Embeddings of images together with their mirror images."""

from collections.abc import Callable

import tensorflow as tf

from tfrank.common.normalize import l2_normalize


def with_mirror(embed_fn: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that adds the unit-norm embeddings of an image and of its mirror image.

        e'(x) = u(u(e(x)) + u(e(mirror of x))),    u(v) = v / |v|

    It takes twice the time. An image and its mirror image have the same embedding.

    Args:
        embed_fn: maps float32 images `[batch, height, width, 3]` to `[batch, dim]`.

    Returns:
        A function like `embed_fn` that returns `[batch, dim]` float32 of unit norm.

    >>> corner = with_mirror(lambda images: images[:, 0, 0, :2])
    >>> corner(tf.constant([[[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]])).numpy().round(3).tolist()
    [[0.7070000171661377, 0.7070000171661377]]
    """

    def embed_both(images):
        both = [tf.cast(embed_fn(one), tf.float32) for one in (images, tf.reverse(images, axis=[2]))]
        return l2_normalize(tf.add_n([l2_normalize(embedding) for embedding in both]))

    return embed_both
