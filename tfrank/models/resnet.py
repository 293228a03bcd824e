"""Residual networks as in PyTorch. The layers have the names of the PyTorch modules."""

from keras import layers

from tfrank.models.convolution import conv, max_pool, norm


def resnet(images, *, blocks: tuple[int, ...], batch_norm: str):
    """ResNet v1.5: the 3x3 convolution of a block has the stride, as in torchvision.

    He et al., "Deep residual learning for image recognition", arXiv:1512.03385. In its v1 (that of
    `keras.applications`) the first 1x1 convolution has the stride.

    Args:
        images: `[batch, height, width, 3]` symbolic tensor, preprocessed by "imagenet_rgb".
        blocks: number of blocks in each of the four stages: (3, 4, 6, 3) for ResNet-50, (3, 4, 23, 3) for
            ResNet-101.
        batch_norm: one of `normalization.MODES`.

    Returns:
        `[batch, height / 32, width / 32, 2048]` (rounded up), after the last ReLU.
    """
    x = norm(conv(images, 64, 7, stride=2, name="conv1"), batch_norm, name="bn1")
    x = max_pool(x, pad=True)
    for name, filters, stride in _blocks(blocks):
        x = _bottleneck(x, name, filters, (1, stride), batch_norm)
    return x


def se_resnet(images, *, blocks: tuple[int, ...], batch_norm: str):
    """ResNet v1 with squeeze and excitation, in the layout of the published Caffe weights.

    Hu et al., "Squeeze-and-excitation networks", arXiv:1709.01507. The first 1x1 convolution of a block has
    the stride, and the max pooling has no padding. The PyTorch files are those of `se_resnet50` in
    pretrainedmodels and `legacy_seresnet50` in timm (timm's `seresnet50` is another network).

    Arguments and result are those of `resnet`.
    """
    x = norm(conv(images, 64, 7, stride=2, name="layer0.conv1"), batch_norm, name="layer0.bn1")
    x = max_pool(x, pad=False)
    for name, filters, stride in _blocks(blocks):
        x = _bottleneck(x, name, filters, (stride, 1), batch_norm, squeeze=True)
    return x


def _blocks(numbers):
    """Name, filters and stride of every block: each stage but the first halves the map."""
    for stage, number in enumerate(numbers):
        for block in range(number):
            yield f"layer{stage + 1}.{block}", 64 * 2**stage, 2 if stage and not block else 1


def _bottleneck(x, name, filters, strides, mode, squeeze=False):
    """1x1, 3x3 and 1x1 convolution plus a shortcut; the last convolution has four times as many filters."""
    shortcut = x
    if name.endswith(".0"):
        shortcut = conv(x, 4 * filters, 1, stride=max(strides), name=f"{name}.downsample.0")
        shortcut = norm(shortcut, mode, name=f"{name}.downsample.1", relu=False)
    x = norm(conv(x, filters, 1, stride=strides[0], name=f"{name}.conv1"), mode, name=f"{name}.bn1")
    x = norm(conv(x, filters, 3, stride=strides[1], name=f"{name}.conv2"), mode, name=f"{name}.bn2")
    x = norm(conv(x, 4 * filters, 1, name=f"{name}.conv3"), mode, name=f"{name}.bn3", relu=False)
    if squeeze:
        x = _excite(x, f"{name}.se_module", filters // 4)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def _excite(x, name, filters):
    """Squeeze and excitation: weights channels by a small network of their means."""
    weights = layers.GlobalAveragePooling2D(keepdims=True)(x)
    weights = layers.ReLU()(conv(weights, filters, 1, bias=True, name=f"{name}.fc1"))
    weights = conv(weights, x.shape[-1], 1, bias=True, name=f"{name}.fc2")
    return layers.Multiply()([x, layers.Activation("sigmoid")(weights)])
