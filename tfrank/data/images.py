"""Turns encoded bytes into model input: the same steps for training, evaluation and serving."""

import dataclasses

import tensorflow as tf

from tfrank.common import checks
from tfrank.data.decoding import (
    decode,
    decode_over_white,
    decode_reduced,
    exif_orientation,
    full_extent,
    upright,
)
from tfrank.data.records import BOX_FEATURES
from tfrank.data.regions import align_face, crop_to_box
from tfrank.data.transforms import Transform, evaluation_transform, training_transform

REGIONS = ("image", "box", "face")
_LANDMARKS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageLoader:
    """Turns a record into the model's input image.

    Attributes:
        transform: the transform, see `transforms.Transform`.
        region: part of the image that training uses: "image", the whole image; "box", its box, or the whole
            image if it has none; "face", the face aligned by its landmarks.
        test_region: the same for tests.
        box_margin, box_min_aspect: see `regions.crop_to_box`.
        full_size: whether tests use the region at its own size, without resizing.
        encoded: the name of the feature with the image's bytes.
    """

    transform: Transform
    region: str = "image"
    test_region: str = "image"
    box_margin: float = 0.0
    box_min_aspect: float = 0.0
    full_size: bool = False
    encoded: str = "image/encoded"

    def __post_init__(self):
        checks.one_of("region", self.region, REGIONS)
        checks.one_of("test_region", self.test_region, REGIONS)
        checks.number("box_margin", self.box_margin, at_least=0)
        checks.number("box_min_aspect", self.box_min_aspect, at_least=0)

    def train(self, serialized: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Randomly augments a serialised example to `[size, size, 3]` uint8; the seed is `[2]` int64."""
        image = self._look(serialized, self.region, self.transform.training_side())
        return training_transform(image, self.transform, seed)

    def test(self, serialized: tf.Tensor) -> tf.Tensor:
        """Returns `[size, size, 3]` uint8 of a serialised example; `[height, width, 3]` at full size."""
        image = self._look(serialized, self.test_region, self._test_side())
        return image.pixels if self.full_size else evaluation_transform(image, self.transform)

    def serve(self, encoded: tf.Tensor) -> tf.Tensor:
        """Returns the same for the bytes of an image file: the whole image, turned upright, over white."""
        image = _decoded(encoded, self._test_side(), decode_over_white)
        image = upright(image, exif_orientation(encoded))
        return image.pixels if self.full_size else evaluation_transform(image, self.transform)

    def _test_side(self):
        return None if self.full_size else self.transform.test_side()

    def _look(self, serialized, region, least_side):
        floats = tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True)
        names = {
            "image": [],
            "box": BOX_FEATURES,
            "face": [f"image/face/landmark/{axis}" for axis in "xy"],
        }[region]
        schema = {self.encoded: tf.io.FixedLenFeature([], tf.string)} | dict.fromkeys(names, floats)
        features = tf.io.parse_single_example(serialized, schema)
        if region == "image":
            return _decoded(features[self.encoded], least_side)
        image = decode(features[self.encoded])
        if region == "box":
            # Use the first of several boxes; NaN means that there is none.
            box = tf.stack([tf.concat([features[name], [float("nan")]], 0)[0] for name in names])
            message = "the record's box is not xmin < xmax, ymin < ymax in shares of the image"
            with tf.control_dependencies([tf.debugging.Assert(_is_box(box), [message])]):
                cropped = crop_to_box(image, box, margin=self.box_margin, min_aspect=self.box_min_aspect)
                return full_extent(cropped)
        landmarks = tf.stack([features[name] for name in names], axis=1)
        count, message = (
            tf.shape(landmarks)[0],
            "the record has no five landmarks of a face, which region=face needs",
        )
        with tf.control_dependencies([tf.debugging.assert_equal(count, _LANDMARKS, message)]):
            landmarks = tf.ensure_shape(landmarks, [_LANDMARKS, 2])
            return full_extent(align_face(image, landmarks, size=self.transform.size))


def _decoded(encoded, least_side, decode=decode):
    """Decodes a file for a shorter side of `least_side` pixels; None decodes all pixels."""
    return full_extent(decode(encoded)) if least_side is None else decode_reduced(encoded, least_side, decode)


def _is_box(box):
    """Returns whether a box lies in the image, up to rounding; also true for NaN, which means no box."""
    inside = tf.reduce_all((box[:2] < box[2:]) & (box[:2] > -0.001) & (box[2:] < 1.001))
    return inside | tf.reduce_any(tf.math.is_nan(box))


def shift_images(images: tf.Tensor, max_shift: int, seed: tf.Tensor) -> tf.Tensor:
    """Rolls all images of a batch by the same random shift: some pixels vertically, some horizontally.

    Args:
        images: `[batch, height, width, channels]`.
        max_shift: greatest shift in each of the four directions, in pixels; 0 does nothing.
        seed: `[2]` int64, for stateless random numbers.
    """
    shift = tf.random.stateless_uniform([2], seed, -max_shift, max_shift + 1, tf.int32)
    return tf.roll(images, shift, axis=[1, 2])
