"""BN-Inception (GoogLeNet V2), its feature maps at three depths, and the heads of RLL's levels."""

from keras import layers

from tfrank.common import checks
from tfrank.models.convolution import conv, max_pool, norm
from tfrank.models.pooling import InnerAveragePooling2D

# Filters of a block: 1x1; (1x1 reduction, 3x3); (1x1 reduction, each of two 3x3); 1x1 after the pooling.
# Blocks without the first and the last branch halve the map.
_BLOCKS = {
    "3a": (64, (64, 64), (64, 96), 32),
    "3b": (64, (64, 96), (64, 96), 64),
    "3c": (0, (128, 160), (64, 96), 0),
    "4a": (224, (64, 96), (96, 128), 128),
    "4b": (192, (96, 128), (96, 128), 128),
    "4c": (160, (128, 160), (128, 160), 128),
    "4d": (96, (128, 192), (160, 192), 128),
    "4e": (0, (128, 192), (192, 256), 0),
    "5a": (352, (192, 320), (160, 224), 128),
    "5b": (352, (192, 320), (192, 224), 128),
}
# RLL's levels: the name of each, and the block whose output it takes.
LEVELS = {"L": ("low", "3c"), "M": ("middle", "4e"), "H": ("high", "5b")}


def bn_inception(images, *, batch_norm: str) -> dict:
    """The maps of the levels: "L" of 576 channels at 1/16 of the size, "M" 1,056 at 1/32, "H" 1,024 at 1/32.

    Ioffe and Szegedy, "Batch normalization", arXiv:1502.03167, in the layout of the published Caffe weights
    (4c has 608 channels, 5b takes the maximum in its pooling branch). The layers have the names of the
    PyTorch state dict `bn_inception` of pretrainedmodels. The convolutions have biases.

    Args:
        images: `[batch, side, side, 3]` symbolic tensor, preprocessed by "inception_bgr".
        batch_norm: one of `normalization.MODES`.
    """

    def unit(x, name, filters, size, stride=1):
        x = conv(x, filters, size, stride=stride, bias=True, name=name)
        return norm(x, batch_norm, name=f"{name}_bn")

    check_size(images.shape[1])
    x = max_pool(unit(images, "conv1_7x7_s2", 64, 7, 2), pad=False)
    x = unit(unit(x, "conv2_3x3_reduce", 64, 1), "conv2_3x3", 192, 3)
    x = max_pool(x, pad=False)
    maps = {}
    for block in _BLOCKS:
        x = maps[block] = _block(x, block, unit)
    return {level: maps[block] for level, (_, block) in LEVELS.items()}


def _block(x, block, unit):
    """One inception block: parallel branches, concatenated."""
    single, triple, double, projection = _BLOCKS[block]
    name, stride = f"inception_{block}", 1 if single else 2
    a = [unit(x, f"{name}_1x1", single, 1)] if single else []
    b = unit(x, f"{name}_3x3_reduce", triple[0], 1)
    b = unit(b, f"{name}_3x3", triple[1], 3, stride)
    c = unit(x, f"{name}_double_3x3_reduce", double[0], 1)
    c = unit(c, f"{name}_double_3x3_1", double[1], 3)
    c = unit(c, f"{name}_double_3x3_2", double[1], 3, stride)
    d = unit(_pooled(x, block), f"{name}_pool_proj", projection, 1) if single else max_pool(x, pad=False)
    return layers.Concatenate()([*a, b, c, d])


def _pooled(x, block):
    """The pooling of a block that keeps the size: average pooling, but max pooling in the last block."""
    if block == "5b":
        return layers.MaxPooling2D(3, strides=1, padding="same")(x)
    # The average includes the zeros around the map; Keras' "same" would leave them out.
    return layers.AveragePooling2D(3, strides=1)(layers.ZeroPadding2D(1)(x))


def check_size(image_size: int) -> None:
    """Raises InputError unless the maps that 3c and 4e halve have even sides.

    At an odd side the branches would differ in size: convolutions round up and pooling rounds down.
    """
    if not _fits(image_size):
        near = [size for size in range(image_size - 32, image_size + 33) if _fits(size)]
        wanted = f"{min(near, key=lambda size: abs(size - image_size))} is the nearest; 224 and 227 are usual"
        raise checks.invalid("image_size", f"a size that bn_inception can halve ({wanted})", image_size)


def _fits(image_size):
    side = (image_size + 1) // 2
    for _ in range(2):
        side = (side - 2) // 2 + 1  # The size after a max pooling whose windows cover the map.
    return side >= 4 and side % 4 == 0


def level_head(x, level: str, *, batch_norm: str):
    """Maps the feature map of level "L" or "M" to `[batch, 1024]`.

    The layers are those of the auxiliary branches of GoogLeNet V2: average pooling 5x5 with stride 3, 1x1
    convolution to 128, ReLU, a dense layer to 1,024, ReLU. In V2 a batch norm precedes each ReLU. A frozen
    batch norm with new weights would be the identity, so biases replace it then, as in V1 (Szegedy et al.,
    arXiv:1409.4842).

    Args:
        x: `[batch, height, width, channels]` symbolic tensor.
        level: "L" or "M".
        batch_norm: one of `normalization.MODES`.
    """
    name = f"{LEVELS[level][0]}_head"
    frozen = batch_norm == "frozen"

    def activate(x, name):
        return layers.ReLU()(x) if frozen else norm(x, batch_norm, name=name)

    x = InnerAveragePooling2D(5, 3, name=f"{name}_pool")(x)
    x = activate(conv(x, 128, 1, bias=frozen, name=f"{name}_conv"), f"{name}_conv_bn")
    x = layers.Dense(1024, use_bias=frozen, name=f"{name}_fc")(layers.Flatten()(x))
    return activate(x, f"{name}_fc_bn")
