"""Vectors in place of images: embeddings by another model, of images, texts or sounds."""

import dataclasses

import numpy as np
import tensorflow as tf

from tfrank.common import checks

# The format of a record whose image is a vector: its numbers, little-endian.
FORMAT = "float32"


def encode(vector: np.ndarray) -> bytes:
    """Returns the bytes of a vector in a record.

    >>> encode(np.array([1.0, 2.0])).hex()
    '0000803f00000040'
    """
    with np.errstate(over="ignore"):  # Infinity is refused where records are written.
        return np.asarray(vector).astype("<f4").tobytes()


def decode(encoded: bytes) -> np.ndarray:
    """Returns the vector, `[dim]` float32, of the bytes in a record."""
    return np.frombuffer(encoded, "<f4")


@dataclasses.dataclass(frozen=True)
class VectorLoader:
    """Turns a record into a vector, as `images.ImageLoader` turns one into an image. Nothing is augmented.

    Attributes:
        dim: dimensions of the vectors, or -1 if they are not known yet.
        encoded: the name of the feature with the vector's bytes.
        full_size: always False; only images have a size.
    """

    dim: int
    encoded: str = "image/encoded"
    full_size: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self):
        checks.integer("dim", self.dim, at_least=-1)

    def train(self, serialized: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns `[dim]` float32 of a serialised example; the seed is not used."""
        return self.test(serialized)

    def test(self, serialized: tf.Tensor) -> tf.Tensor:
        """Returns `[dim]` float32 of a serialised example."""
        schema = {self.encoded: tf.io.FixedLenFeature([], tf.string)}
        encoded = tf.io.parse_single_example(serialized, schema)[self.encoded]
        message = f"the record has no vector of {self.dim} dimensions"
        size = tf.strings.length(encoded)
        with tf.control_dependencies([tf.debugging.assert_equal(size, 4 * self.dim, message)]):
            return tf.ensure_shape(tf.io.decode_raw(encoded, tf.float32), [self.dim])
