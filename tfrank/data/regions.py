"""Crops the part of an image that a protocol uses: a bounding box, or an aligned face."""

import tensorflow as tf

# ArcFace's template: left eye, right eye, nose, left and right corner of the mouth, as (x, y) in an aligned
# face of 112x112 pixels. Integer coordinates are pixel centres.
ARCFACE_POINTS = (
    (38.2946, 51.6963),
    (73.5318, 51.5014),
    (56.0252, 71.7366),
    (41.5493, 92.3655),
    (70.7299, 92.2041),
)
ARCFACE_SIZE = 112


def crop_to_box(
    image: tf.Tensor, box: tf.Tensor, *, margin: float = 0.0, min_aspect: float = 0.0
) -> tf.Tensor:
    """Crops an image to a box.

    VGGFace2's authors train and evaluate on boxes extended by 0.3 about the centre (in their released images:
    by 1.0). They first widen boxes narrower than 7/8 of their height to that. Then they multiply width and
    height by 1.3. So `margin=0.3, min_aspect=0.875` gives the crop of their `demo_proj.m`.

    Args:
        image: `[height, width, 3]`.
        box: `[4]` float32 xmin, ymin, xmax, ymax as shares of the image's width and height; NaN for no box.
        margin: share of its width and height by which the box grows, half on either side.
        min_aspect: least width / height of the box in pixels; a narrower box is widened first.

    Returns:
        `[h, w, 3]`, clipped to the image, at least one pixel; the whole image if there is no box.

    >>> crop_to_box(tf.zeros([100, 200, 3]), tf.constant([0.25, 0.5, 0.5, 0.75]), margin=0.2).shape
    TensorShape([30, 60, 3])
    """
    size = tf.shape(image)[1::-1]
    ends = tf.reshape(box, [2, 2]) * tf.cast(size, tf.float32)
    center, extent = (ends[0] + ends[1]) / 2, ends[1] - ends[0]
    extent = tf.maximum(extent, [min_aspect * extent[1], 0.0]) * (1 + margin)
    first = tf.clip_by_value(tf.cast(tf.round(center - extent / 2), tf.int32), 0, size - 1)
    last = tf.clip_by_value(tf.cast(tf.round(center + extent / 2), tf.int32), first + 1, size)
    no_box = tf.reduce_any(tf.math.is_nan(box))
    first, last = tf.where(no_box, 0, first), tf.where(no_box, size, last)
    return image[first[1] : last[1], first[0] : last[0]]


def align_face(image: tf.Tensor, landmarks: tf.Tensor, *, size: int = ARCFACE_SIZE) -> tf.Tensor:
    """Aligns a face: rotates, scales and shifts it so that its landmarks match ArcFace's template.

    Uses the least-squares similarity transform, without reflection, and bilinear interpolation. Pixels
    beyond the image are black.

    Args:
        image: `[height, width, 3]` uint8.
        landmarks: `[5, 2]` float32 (x, y) as shares of the image's width and height, in the order of
            `ARCFACE_POINTS`; NaN for none.
        size: side of the result in pixels. ArcFace uses 112; for other sizes the template is scaled.

    Returns:
        `[size, size, 3]` uint8. Without landmarks, or if all five coincide: the whole image, resized.
    """
    extent = tf.cast(tf.shape(image)[1::-1], tf.float32)
    template = tf.constant(ARCFACE_POINTS) * (size / ARCFACE_SIZE)
    inverse = _inverse_similarity(landmarks * extent, template)
    known = tf.reduce_all(tf.math.is_finite(inverse))

    def aligned():
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=tf.cast(image, tf.float32)[tf.newaxis],
            transforms=inverse[tf.newaxis],
            output_shape=[size, size],
            interpolation="BILINEAR",
            fill_mode="CONSTANT",
            fill_value=0.0,
        )[0]

    face = tf.cond(known, aligned, lambda: tf.image.resize(image, [size, size], antialias=True))
    return tf.ensure_shape(tf.cast(tf.round(face), tf.uint8), [size, size, 3])


def _inverse_similarity(points, template):
    """`[8]` parameters of the projective transform from `template` back to `points`.

    With points as complex numbers, a similarity is p -> factor * p + shift, so its least-squares fit is a
    linear regression.
    """
    means = tf.reduce_mean(points, axis=0), tf.reduce_mean(template, axis=0)
    source, target = (tf.complex(*tf.unstack(p - m, axis=1)) for p, m in zip((points, template), means))
    power = tf.cast(tf.reduce_sum(tf.abs(source) ** 2), tf.complex64)
    back = power / tf.reduce_sum(tf.math.conj(source) * target)
    shift = tf.complex(*tf.unstack(means[0])) - back * tf.complex(*tf.unstack(means[1]))
    real, imaginary = tf.math.real(back), tf.math.imag(back)
    across, down = tf.math.real(shift), tf.math.imag(shift)
    return tf.stack([real, -imaginary, across, imaginary, real, down, 0.0, 0.0])
