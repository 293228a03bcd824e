"""Preprocessing from RGB 0-255 to the input of a backbone. It is part of the model and of its export."""

import keras

from tfrank.common import checks

# For each channel: its index in RGB, the value to subtract, the value to divide by.
_CHANNELS = {
    # torchvision's mean 0.485, 0.456, 0.406 and deviation 0.229, 0.224, 0.225, both times 255.
    "imagenet_rgb": ((0, 123.675, 58.395), (1, 116.28, 57.12), (2, 103.53, 57.375)),
    # OpenAI's mean and deviation for CLIP, times 255.
    "clip_rgb": ((0, 122.7709383, 68.5005327), (1, 116.7460125, 66.6321579), (2, 104.09373615, 70.32316304)),
    # What EfficientNet-Lite was trained with.
    "centred_rgb": ((0, 127.0, 128.0), (1, 127.0, 128.0), (2, 127.0, 128.0)),
    "caffe_bgr": ((2, 103.939, 1.0), (1, 116.779, 1.0), (0, 123.68, 1.0)),
    "inception_bgr": ((2, 104.0, 1.0), (1, 117.0, 1.0), (0, 128.0, 1.0)),
}
GREY_MODES = ("grey", "inverted_grey")
MODES = ("rgb", *GREY_MODES, "raw", "signed_rgb", *_CHANNELS)


def preprocess(images, mode: str):
    """Scales images for a backbone.

    Args:
        images: `[batch, height, width, 3]` float RGB 0-255, a tensor or a symbolic Keras tensor.
        mode: "rgb" scales to 0-1. "grey" is the mean of that over channels. "inverted_grey" is 1 - grey:
            black is 1, so that ink is bright on a dark background. The modes of pretrained networks are
            "imagenet_rgb" (0-1, minus the mean and divided by the deviation of ImageNet, as in torchvision),
            "clip_rgb" (the same of CLIP's training images), "signed_rgb" (-1 to 1), "centred_rgb" (minus 127,
            divided by 128), "caffe_bgr" (BGR 0-255 minus the mean of ImageNet), "inception_bgr" (the same
            with the rounded mean of BN-Inception's files) and "raw" (unchanged, for networks that scale
            inside).

    Returns:
        `[batch, height, width, 3]` float; one channel for the grey modes.

    >>> import numpy as np
    >>> preprocess(np.array([[[[0.0, 127.5, 255.0]]]]), "signed_rgb").tolist()
    [[[[-1.0, 0.0, 1.0]]]]
    """
    checks.one_of("preprocessing", mode, MODES)
    if mode in _CHANNELS:
        channels = [(images[..., c : c + 1] - mean) / scale for c, mean, scale in _CHANNELS[mode]]
        return keras.ops.concatenate(channels, axis=-1)
    if mode in ("raw", "signed_rgb"):
        return images if mode == "raw" else images / 127.5 - 1.0
    images = images / 255.0
    if mode == "rgb":
        return images
    grey = keras.ops.mean(images, axis=-1, keepdims=True)
    return 1.0 - grey if mode == "inverted_grey" else grey
