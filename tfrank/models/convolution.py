"""Convolution and pooling with PyTorch's padding, for networks whose weights come from PyTorch."""

import keras
from keras import layers

from tfrank.models.normalization import batch_norm


def conv(x, filters: int, size: int, *, name: str, stride: int = 1, bias: bool = False):
    """A convolution padded by `size // 2` on every side.

    With stride 2, Keras' "same" pads less on the left and top, and so samples other pixels.

    Args:
        x: `[batch, height, width, channels]` symbolic tensor.
        filters: number of output channels.
        size: side of the kernel, odd.
        name: name of the layer.
        stride: stride in both directions.
        bias: whether to add a bias.
    """
    if stride > 1 and size > 1:
        x = layers.ZeroPadding2D(size // 2)(x)
    options = {"strides": stride, "padding": "same" if stride == 1 else "valid", "use_bias": bias}
    return layers.Conv2D(filters, size, kernel_initializer=kernel_start(), name=name, **options)(x)


def kernel_start() -> keras.initializers.Initializer:
    """Returns He's normal initialisation with fan-out, as in PyTorch's networks."""
    return keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")


def norm(x, mode: str, *, name: str, relu: bool = True):
    """Batch norm (a mode of `normalization.MODES`), followed by ReLU if `relu`."""
    x = batch_norm(mode, name=name)(x)
    return layers.ReLU()(x) if relu else x


def max_pool(x, *, pad: bool):
    """Max pooling 3x3 with stride 2, for activations after a ReLU, where zeros at the border do no harm.

    Args:
        x: `[batch, height, width, channels]` symbolic tensor, non-negative.
        pad: True pads one zero on every side (PyTorch's `padding=1`). False takes as many windows as cover
            the map, some reaching over the right and bottom border (PyTorch's `ceil_mode`, as in Caffe).
    """
    if pad:
        x = layers.ZeroPadding2D(1)(x)
    else:
        x = layers.ZeroPadding2D([[0, (side - 3) % 2] for side in x.shape[1:3]])(x)
    return layers.MaxPooling2D(3, strides=2)(x)
