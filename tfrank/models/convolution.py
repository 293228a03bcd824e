"""Convolution and pooling as PyTorch pads them, for networks whose weights come from there."""

import keras
from keras import layers

from tfrank.models.normalization import batch_norm


def conv(x, filters: int, size: int, *, name: str, stride: int = 1, bias: bool = False):
    """A convolution padded by `size // 2` on every side.

    Keras' "same" pads less on the left and top where the stride is 2, and so looks at other pixels.

    Args:
        x: `[batch, height, width, channels]` symbolic tensor.
        filters: output channels.
        size: odd, the side of the kernel.
        name: of the layer.
        stride: of both directions.
        bias: whether there is one.
    """
    if stride > 1 and size > 1:
        x = layers.ZeroPadding2D(size // 2)(x)
    padding = "same" if stride == 1 else "valid"
    # PyTorch's networks begin so too: He's normal distribution by the outputs.
    start = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    return layers.Conv2D(
        filters, size, strides=stride, padding=padding, use_bias=bias, kernel_initializer=start, name=name
    )(x)


def norm(x, mode: str, *, name: str, relu: bool = True):
    """Batch norm ("frozen" or "trained"), and ReLU unless it is left out."""
    x = batch_norm(mode, name=name)(x)
    return layers.ReLU()(x) if relu else x


def max_pool(x, *, pad: bool):
    """The maximum of 3x3 at stride 2; of activations after a ReLU, where zeros at the border do no harm.

    Args:
        x: `[batch, height, width, channels]` symbolic tensor, non-negative.
        pad: one zero on every side (PyTorch's `padding=1`), or else as many windows as cover the map,
            reaching over the right and bottom border (its `ceil_mode`, Caffe's habit).
    """
    if pad:
        x = layers.ZeroPadding2D(1)(x)
    else:
        x = layers.ZeroPadding2D([[0, (side - 3) % 2] for side in x.shape[1:3]])(x)
    return layers.MaxPooling2D(3, strides=2)(x)
