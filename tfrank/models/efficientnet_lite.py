"""EfficientNet-Lite 0 to 2. The layers have the names of the public PyTorch network's modules."""

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
from keras import layers

from tfrank.models.convolution import kernel_start
from tfrank.models.normalization import batch_norm as batch_norm_layer

# Blocks, kernel side, first stride, expansion and filters of each stage, before width and depth scale them.
STAGES = (
    *((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80)),
    *((3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320)),
)
STEM_FILTERS, HEAD_FILTERS = 32, 1280
# The layers behind which the last stages begin, without the first block of the first of them. The maps of the
# last stage have a thirty-second of the sides, those of the stage before a sixteenth.
LAST_STAGES = {
    "last_stage": {
        "efficientnet_lite0": "blocks.11.bn2",
        "efficientnet_lite1": "blocks.15.bn2",
        "efficientnet_lite2": "blocks.15.bn2",
    },
    "last_two_stages": {
        "efficientnet_lite0": "blocks.5.bn2",
        "efficientnet_lite1": "blocks.7.bn2",
        "efficientnet_lite2": "blocks.7.bn2",
    },
}


def efficientnet_lite(images, *, batch_norm: str, width: float, depth: float):
    """EfficientNet-Lite: MBConv blocks with ReLU6, without squeeze-and-excitation.

    Tan and Le, arXiv 1905.11946, section 4, with the changes of Google's `efficientnet/lite`: stem, head and
    the number of blocks of the first and last stage are not scaled. Convolutions are padded as TensorFlow's
    "SAME" does, as the weights were trained.

    Args:
        images: `[batch, height, width, 3]` symbolic tensor, preprocessed by "centred_rgb".
        batch_norm: one of `normalization.MODES`.
        width: factor of the number of filters; 1.0 for Lite0 and Lite1, 1.1 for Lite2.
        depth: factor of the number of blocks; 1.0, 1.1 and 1.2.

    Returns:
        `[batch, height / 32, width / 32, 1280]` (rounded up), after the last ReLU6.
    """
    x = _convolved(images, STEM_FILTERS, "conv_stem", "bn0", batch_norm, size=3, stride=2)
    for number, (size, stride, expansion, filters) in enumerate(_blocks(width, depth)):
        x = _inverted_residual(x, f"blocks.{number}", size, stride, expansion, filters, batch_norm)
    return _convolved(x, HEAD_FILTERS, "conv_head", "bn1", batch_norm)


def layer_names(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a state dict of the public PyTorch network by the names of the layers here.

    Its modules begin with an underscore, which TensorFlow allows in no name of a layer.

    >>> list(layer_names({"_blocks.0._bn1.weight": np.ones(32)}))
    ['blocks.0.bn1.weight']
    """
    return {re.sub(r"(^|\.)_", r"\1", name): array for name, array in state.items()}


def rounded(filters: int, width: float) -> int:
    """Returns scaled filters, rounded to a multiple of 8 that is at least nine tenths of them.

    >>> [rounded(filters, 1.1) for filters in (16, 24, 112)]
    [16, 24, 120]
    """
    scaled = filters * width
    nearest = max(8, int(scaled + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * scaled else nearest + 8


def _blocks(width: float, depth: float) -> Iterator[tuple[int, int, int, int]]:
    """Yields kernel side, stride, expansion and filters of every block."""
    for stage, (blocks, size, stride, expansion, filters) in enumerate(STAGES):
        repeats = blocks if stage in (0, len(STAGES) - 1) else math.ceil(depth * blocks)
        for block in range(repeats):
            yield size, 1 if block else stride, expansion, rounded(filters, width)


def _inverted_residual(x, name, size, stride, expansion, filters, mode):
    """1x1 expansion, depthwise convolution, 1x1 projection without activation; a shortcut if shapes agree."""
    shortcut, channels = x, x.shape[-1]
    if expansion != 1:
        x = _convolved(x, expansion * channels, f"{name}.expand_conv", f"{name}.bn0", mode)
    x = layers.DepthwiseConv2D(
        size, strides=stride, padding="same", use_bias=False, name=f"{name}.depthwise_conv"
    )(x)
    x = layers.ReLU(6.0)(_norm(x, f"{name}.bn1", mode))
    x = _norm(_conv(x, filters, f"{name}.project_conv"), f"{name}.bn2", mode)
    return layers.Add()([shortcut, x]) if stride == 1 and channels == filters else x


def _convolved(x, filters, name, norm_name, mode, *, size=1, stride=1):
    """Convolution, batch norm and ReLU6."""
    return layers.ReLU(6.0)(_norm(_conv(x, filters, name, size=size, stride=stride), norm_name, mode))


def _conv(x, filters, name, *, size=1, stride=1):
    return layers.Conv2D(
        filters,
        size,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer=kernel_start(),
        name=name,
    )(x)


def _norm(x, name, mode):
    # TensorFlow's epsilon, with which the weights were trained.
    return batch_norm_layer(mode, epsilon=1e-3, name=name)(x)
