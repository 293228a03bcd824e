"""Multi-scale embeddings: one embedding from an image at several sizes."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfrank.common import checks
from tfrank.common.normalize import l2_normalize

# Full size, then two steps down by a factor of sqrt(2) each.
SCALES = (1.0, 2**-0.5, 0.5)


def multi_scale(
    embed_fn: Callable[[tf.Tensor], tf.Tensor], scales: Sequence[float] = SCALES
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that computes the normalised sum of the unit-norm embeddings at several scales.

    For models that accept images of any size. Images are resized bilinearly, with antialiasing when they
    shrink. Each side is rounded to whole pixels, at least 1. The model determines how small an image, and so
    a scale, may be. The function is traced once for all sizes.

    Args:
        embed_fn: maps float32 images `[batch, height, width, 3]` of any size to `[batch, dim]`; a Keras model
            or anything else that TensorFlow can trace.
        scales: positive; 1 is the original size. The default is that of Radenović et al. (arXiv 1711.02512,
            section 5.2).

    Returns:
        A function like `embed_fn` that returns `[batch, dim]` float32 of unit norm.

    Raises:
        InputError: a scale is not positive, or there is none.

    >>> corner = multi_scale(lambda images: images[:, 0, 0, :2], scales=(1, 0.5))
    >>> corner(tf.constant([[[[3.0, 4.0, 0.0]] * 4] * 4])).numpy().round(3).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    scales = checks.sequence("scales", scales, checks.number, above=0)

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.float32, name="images")])
    def embed_scales(images):
        embeddings = [tf.cast(embed_fn(_resized(images, scale)), tf.float32) for scale in scales]
        return l2_normalize(tf.add_n([l2_normalize(embedding) for embedding in embeddings]))

    return embed_scales


def _resized(images: tf.Tensor, scale: float) -> tf.Tensor:
    if scale == 1:
        return images
    size = tf.round(tf.cast(tf.shape(images)[1:3], tf.float32) * scale)
    return tf.image.resize(images, tf.cast(tf.maximum(size, 1), tf.int32), antialias=True)
