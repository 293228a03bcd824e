"""The networks of `keras.applications`, each with the preprocessing it expects."""

import functools
import inspect
from collections.abc import Callable

import keras
import numpy as np
from keras import layers

from tfrank.common.checks import InputError
from tfrank.models import normalization
from tfrank.models.preprocessing import preprocess

_MODES = ("raw", "signed_rgb", "imagenet_rgb", "caffe_bgr")
# Widths of MobileNetV2 below 1 that Keras has ImageNet weights for.
WIDTHS = (0.35, 0.5, 0.75)


def _narrow(width: float) -> Callable[..., keras.Model]:
    @functools.wraps(keras.applications.MobileNetV2)
    def make(**options):
        return keras.applications.MobileNetV2(alpha=width, **options)

    return make


# Every function of keras.applications that creates a network, by name, such as `ResNet50`, and narrower ones.
APPLICATIONS = {
    name: make
    for name, make in vars(keras.applications).items()
    if inspect.isfunction(make) and hasattr(inspect.getmodule(make), "preprocess_input")
} | {f"MobileNetV2-{width}": _narrow(width) for width in WIDTHS}


def application(name: str, *, image_size: int | None, batch_norm: str) -> keras.Model:
    """A network without its classifier: `[batch, side, side, 3]` to its last feature map. Weights are random.

    Args:
        name: a key of `APPLICATIONS`.
        image_size: the side of an image in pixels; None for any height and width.
        batch_norm: one of `normalization.MODES`.
    """
    try:
        made = APPLICATIONS[name](include_top=False, weights=None, input_shape=(image_size, image_size, 3))
    except ValueError as error:
        raise InputError(f"keras/{name} cannot be built for images of side {image_size}: {error}") from None

    def copy(layer):
        kind, config = type(layer), layer.get_config()
        if kind is layers.BatchNormalization:
            norm = normalization.batch_norm(batch_norm)
            kind, config = type(norm), {**config, "synchronized": norm.synchronized}
        # A layer whose mean is given as an argument has nothing to load, and stays as it is.
        if kind is layers.Normalization and layer.input_mean is None:
            kind = normalization.FrozenNormalization
        return kind.from_config(config)

    network = keras.Model(made.inputs, made.output, name=name)
    with keras.name_scope(name):
        return keras.models.clone_model(network, clone_function=copy)


def preprocessing_of(name: str) -> str:
    """The mode of `preprocess` that equals the network's own `preprocess_input`.

    >>> preprocessing_of("ResNet50"), preprocessing_of("EfficientNetB0")
    ('caffe_bgr', 'raw')
    """
    theirs = inspect.getmodule(APPLICATIONS[name]).preprocess_input
    pixels = np.array([[[[0, 0, 0], [10, 100, 250], [255, 255, 255]]]], "float32")
    wanted = theirs(pixels.copy(), data_format="channels_last")
    return next(mode for mode in _MODES if np.allclose(preprocess(pixels, mode), wanted, atol=1e-4))
