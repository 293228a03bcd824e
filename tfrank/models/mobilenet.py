"""MobileNetV2 as in torchvision. The layers have the names of torchvision's modules."""

import re
from collections.abc import Iterator, Mapping

import numpy as np
from keras import layers

from tfrank.models.convolution import conv, norm

# Expansion, filters, blocks and first stride of each stage (Table 2 of the paper).
STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
# Files older than torchvision 0.4 number the layers of a block consecutively, activations included.
_NESTED_NAME = re.compile(r"^features\.\d+\.conv\.\d+\.\d+\.")
_OLD_NAME = re.compile(r"^features\.(\d+)\.conv\.(\d+)\.([a-z_]+)$")
_OLD_PLACES = {0: "0.0", 1: "0.1", 3: "1.0", 4: "1.1", 6: "2", 7: "3"}
_OLD_PLACES_OF_FIRST_BLOCK = {0: "0.0", 1: "0.1", 3: "1", 4: "2"}


def mobilenet_v2(images, *, batch_norm: str):
    """MobileNetV2, width 1.0 (Sandler et al., arXiv:1801.04381), with torchvision's padding.

    Args:
        images: `[batch, height, width, 3]` symbolic tensor, preprocessed by "imagenet_rgb".
        batch_norm: one of `normalization.MODES`.

    Returns:
        `[batch, height / 32, width / 32, 1280]` (rounded up), after the last ReLU6.
    """
    x = _convolved(images, 32, "features.0", batch_norm, size=3, stride=2)
    for number, (expansion, filters, stride) in enumerate(_blocks(), start=1):
        x = _inverted_residual(x, f"features.{number}.conv", expansion, filters, stride, batch_norm)
    return _convolved(x, 1280, f"features.{number + 1}", batch_norm)


def current_names(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A state dict of MobileNetV2 by today's names, from a file of any version of torchvision.

    >>> list(current_names({"features.2.conv.4.weight": np.ones(96)}))
    ['features.2.conv.1.1.weight']
    """
    if any(_NESTED_NAME.match(name) for name in state):
        return dict(state)
    return {_current_name(name): array for name, array in state.items()}


def _current_name(name):
    found = _OLD_NAME.match(name)
    if not found:
        return name
    block, place, kind = found.groups()
    places = _OLD_PLACES_OF_FIRST_BLOCK if block == "1" else _OLD_PLACES
    return f"features.{block}.conv.{places.get(int(place), place)}.{kind}"


def _blocks() -> Iterator[tuple[int, int, int]]:
    """Expansion, filters and stride of every block."""
    for expansion, filters, blocks, first_stride in STAGES:
        for block in range(blocks):
            yield expansion, filters, 1 if block else first_stride


def _inverted_residual(x, name, expansion, filters, stride, mode):
    """1x1 expansion, 3x3 depthwise, 1x1 projection without activation; a shortcut if the shapes agree."""
    shortcut, channels, place = x, x.shape[-1], 0
    if expansion != 1:
        x = _convolved(x, expansion * channels, f"{name}.0", mode)
        place = 1
    x = _depthwise(x, stride, name=f"{name}.{place}.0")
    x = layers.ReLU(6.0)(norm(x, mode, name=f"{name}.{place}.1", relu=False))
    x = conv(x, filters, 1, name=f"{name}.{place + 1}")
    x = norm(x, mode, name=f"{name}.{place + 2}", relu=False)
    return layers.Add()([shortcut, x]) if stride == 1 and channels == filters else x


def _convolved(x, filters, name, mode, *, size=1, stride=1):
    """Convolution, batch norm and ReLU6."""
    x = conv(x, filters, size, stride=stride, name=f"{name}.0")
    return layers.ReLU(6.0)(norm(x, mode, name=f"{name}.1", relu=False))


def _depthwise(x, stride, *, name):
    """A depthwise 3x3 convolution, padded by 1 on every side."""
    if stride > 1:
        x = layers.ZeroPadding2D(1)(x)
    padding = "same" if stride == 1 else "valid"
    return layers.DepthwiseConv2D(3, strides=stride, padding=padding, use_bias=False, name=name)(x)
