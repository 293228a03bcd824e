"""From encoded bytes to an image: the same few steps for training, evaluation and serving."""

import tensorflow as tf

SCHEMA = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


def decode_image(encoded: tf.Tensor, size: int) -> tf.Tensor:
    """The image in JPEG, PNG, GIF or BMP bytes, resized (bilinear, antialiased) to a square.

    Args:
        encoded: scalar string.
        size: side of the result in pixels.

    Returns:
        `[size, size, 3]` uint8 RGB.
    """
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image = tf.image.resize(image, [size, size], antialias=True)
    return tf.ensure_shape(tf.cast(tf.round(tf.clip_by_value(image, 0, 255)), tf.uint8), [size, size, 3])


def decode_record(serialized: tf.Tensor, size: int) -> dict[str, tf.Tensor]:
    """`image` and `label` of a serialised `tf.train.Example`."""
    features = tf.io.parse_single_example(serialized, SCHEMA)
    return {
        "image": decode_image(features["image/encoded"], size),
        "label": features["image/class/label"],
    }


def shift_images(images: tf.Tensor, max_shift: int, seed: tf.Tensor) -> tf.Tensor:
    """All images of a batch rolled by one random number of pixels down and one to the right.

    Args:
        images: `[batch, height, width, channels]`.
        max_shift: most pixels in each of the four directions; 0 leaves the images alone.
        seed: `[2]` int64 for stateless random numbers.
    """
    shift = tf.random.stateless_uniform([2], seed, -max_shift, max_shift + 1, tf.int32)
    return tf.roll(images, shift, axis=[1, 2])
