"""Backbones by name: networks from preprocessed images to feature maps."""

import functools

import keras
from keras import layers

from tfrank.common import checks
from tfrank.models import normalization
from tfrank.models.applications import APPLICATIONS, application, preprocessing_of
from tfrank.models.bn_inception import LEVELS, bn_inception
from tfrank.models.efficientnet_lite import efficientnet_lite
from tfrank.models.hub import hub_network
from tfrank.models.hub_sizes import HUB, PREFIX, family_of
from tfrank.models.mobilenet import mobilenet_v2
from tfrank.models.resnet import resnet, se_resnet

# Networks whose layers have the names of PyTorch's modules: the function that builds it, the preprocessing.
NETWORKS = {
    "resnet50": (functools.partial(resnet, blocks=(3, 4, 6, 3)), "imagenet_rgb"),
    "resnet101": (functools.partial(resnet, blocks=(3, 4, 23, 3)), "imagenet_rgb"),
    "se_resnet50": (functools.partial(se_resnet, blocks=(3, 4, 6, 3)), "imagenet_rgb"),
    "bn_inception": (bn_inception, "inception_bgr"),
    "mobilenet_v2": (mobilenet_v2, "imagenet_rgb"),
    "efficientnet_lite0": (functools.partial(efficientnet_lite, width=1.0, depth=1.0), "centred_rgb"),
    "efficientnet_lite1": (functools.partial(efficientnet_lite, width=1.0, depth=1.1), "centred_rgb"),
    "efficientnet_lite2": (functools.partial(efficientnet_lite, width=1.1, depth=1.2), "centred_rgb"),
}
BACKBONES = ("convnet", *NETWORKS, *(f"keras/{name}" for name in APPLICATIONS), *HUB)
SMALLEST_IMAGE = 32


def convnet(images, *, blocks: int, filters: int, batch_norm: str = "trained"):
    """The small network of few-shot learning: blocks of 3x3 convolution, batch norm, ReLU, 2x2 max pooling.

    Args:
        images: `[batch, height, width, channels]` symbolic tensor.
        blocks: number of blocks. Each halves height and width, rounding up, so that no border is lost.
        filters: channels of each block.
        batch_norm: one of `normalization.MODES`.

    Returns:
        The last feature map, `[batch, height, width, filters]`.
    """
    x = images
    for _ in range(blocks):
        # No bias: batch norm removes it, and Adam would amplify the rounding noise of its gradient.
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = normalization.batch_norm(batch_norm)(x)
        x = layers.ReLU()(x)
        x = layers.MaxPooling2D(2, padding="same")(x)
    return x


def network(backbone: str, *, image_size: int | None, batch_norm: str, levels: str = "") -> keras.Model:
    """A backbone other than the convnet as a model: preprocessed images to the last feature map.

    Vision transformers (`hub_sizes`) give the map of the patches and the class token, if they have one. The
    model has the name of the backbone (without "keras/" and "hub/"), with which the paths of its variables
    begin: `resnet50/layer1.0.conv1/kernel`.

    Args:
        backbone: one of `BACKBONES`, except the convnet.
        image_size: the side of an image in pixels, at least 32; None for any height and width.
        batch_norm: one of `normalization.MODES`.
        levels: letters of "LMH" for the maps of these levels of bn_inception, in this order. Layers that
            only deeper levels need are left out.
    """
    checks.one_of("backbone", backbone, BACKBONES[1:])
    if image_size is not None:
        checks.integer("image_size", image_size, at_least=SMALLEST_IMAGE)
    if backbone in HUB:
        return hub_network(backbone.removeprefix(PREFIX), image_size=image_size)
    if backbone.startswith("keras/"):
        return application(backbone.removeprefix("keras/"), image_size=image_size, batch_norm=batch_norm)
    images = keras.Input([image_size, image_size, 3], name="preprocessed")
    with keras.name_scope(backbone):
        maps = NETWORKS[backbone][0](images, batch_norm=batch_norm)
    if backbone == "bn_inception":
        chosen = [maps[level] for level in levels or "H"]
        maps = chosen if len(chosen) > 1 else chosen[0]
    return keras.Model(images, maps, name=backbone)


def default_preprocessing(backbone: str) -> str:
    """The mode of `preprocess` that a backbone expects.

    >>> [default_preprocessing(name) for name in ("convnet", "resnet50", "bn_inception", "keras/MobileNetV2")]
    ['rgb', 'imagenet_rgb', 'inception_bgr', 'signed_rgb']
    """
    checks.one_of("backbone", backbone, BACKBONES)
    if backbone in HUB:
        return family_of(backbone.removeprefix(PREFIX)).preprocessing
    if backbone.startswith("keras/"):
        return preprocessing_of(backbone.removeprefix("keras/"))
    return "rgb" if backbone == "convnet" else NETWORKS[backbone][1]


def check_levels(levels: str, backbone: str) -> None:
    """Raises InputError unless `levels` is empty, or distinct letters of "LMH" with backbone bn_inception."""
    if levels and backbone != "bn_inception":
        raise checks.invalid("levels", f"'' with backbone {backbone!r}; only bn_inception has levels", levels)
    if not isinstance(levels, str) or set(levels) - set(LEVELS) or len(set(levels)) < len(levels):
        raise checks.invalid("levels", "'' or different letters of 'LMH', such as 'LMH' or 'H'", levels)
