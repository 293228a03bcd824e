"""The embedding model: preprocessing, backbone, pooling, and a head for each embedding."""

import keras
import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError, did_you_mean
from tfrank.models.backbones import BACKBONES, check_levels, convnet, default_preprocessing, network
from tfrank.models.blocks import StochasticDepth, freeze_first
from tfrank.models.bn_inception import LEVELS, level_head
from tfrank.models.hub_sizes import HUB, PREFIX, family_of
from tfrank.models.normalization import MODES as BATCH_NORMS
from tfrank.models.normalization import UnitNorm
from tfrank.models.pooling import MODES as POOLINGS
from tfrank.models.pooling import TOKEN_MODES, pool
from tfrank.models.preprocessing import GREY_MODES, preprocess
from tfrank.models.preprocessing import MODES as PREPROCESSINGS
from tfrank.models.whitening import SHRINKAGE, TAUGHT_STRENGTH, Rooted, fitted_to, fitted_whitening, rooted

# The head maps pooled features to an embedding: none, or a linear layer that begins at random, as a PCA, or
# as what whitens the features within classes.
HEADS = ("none", "pca", "whitened", "random")
# Those that are computed from the features of training images.
COMPUTED_HEADS = ("pca", "whitened")
HEAD_LAYER, ROOTED_LAYER = "embedding", "rooted"
# Dimensions up to which the PCA of features takes their square matrix.
_MOST_SQUARE = 4096


def embedding_model(
    *,
    image_size: int | None,
    backbone: str = "convnet",
    preprocessing: str = "auto",
    blocks: int = 4,
    filters: int = 64,
    pooling: str = "auto",
    levels: str = "",
    batch_norm: str = "auto",
    frozen_blocks: int = 0,
    drop_path: float = 0.0,
    head: str = "random",
    embedding_dim: int,
) -> keras.Model:
    """A model from `[batch, image_size, image_size, 3]` float RGB 0-255 to `[batch, embedding_dim]` float32.

    Embeddings are not normalised; losses, evaluation and export do that. Weights are random:
    `weights.load_backbone_weights` loads pretrained ones, `initialize_head_with_pca` makes the head a PCA.

    Args:
        image_size: the side of an image in pixels; None for images of any height and width, if backbone and
            pooling allow it.
        backbone: one of `backbones.BACKBONES`.
        preprocessing: one of `preprocessing.MODES`, or "auto" for what the backbone expects.
        blocks: number of blocks of the convnet.
        filters: filters of the convnet.
        pooling: one of `pooling.MODES`, or "auto": "flatten" for the convnet, "class_token" for networks that
            have one, which may also have `pooling.TOKEN_MODES`, else "average". With levels it applies to
            the high level; the others have their own heads.
        levels: "" for the last feature map. For bn_inception also letters of "LMH", as in RLL (Wang et al.,
            arXiv:1903.03238): each level has its own embedding, low after block 3c, middle after 4e, high
            after 5b. More than one letter gives a list of embeddings, in this order.
        batch_norm: one of `normalization.MODES`, or "auto": trained for the convnet, frozen for the others.
        frozen_blocks: for vision transformers: the embedding of the patches and so many blocks stay as they
            are.
        drop_path: for vision transformers: the probability with which the last block is left out in
            training; see `blocks.StochasticDepth`.
        head: "random" is a linear layer. "pca" is one without bias; see `initialize_head_with_pca`.
            "whitened" is one on the roots of the features; see `whitening` and `whiten_head`. With "none",
            the pooled features are the embedding.
        embedding_dim: dimension of each embedding; with head "none" it is the number of features instead.

    >>> embedding_model(image_size=28, embedding_dim=64).output_shape
    (None, 64)
    """
    options = resolve_options(
        backbone=backbone,
        preprocessing=preprocessing,
        pooling=pooling,
        levels=levels,
        batch_norm=batch_norm,
    )
    _check_head(head, levels)
    if frozen_blocks and backbone not in HUB:
        raise checks.invalid("frozen_blocks", "0 for backbones other than hub/...", frozen_blocks)
    if drop_path and backbone not in HUB:
        raise checks.invalid("drop_path", "0 for backbones other than hub/...", drop_path)
    one_size = options["pooling"] in ("flatten", "rmac") or backbone == "bn_inception"
    if image_size is None and one_size:
        raise InputError(
            f"Backbone {backbone!r} with pooling {options['pooling']!r} takes images of one size only. For"
            " images at their own size take another backbone and pooling='gem', 'average' or 'max'."
        )
    images = keras.Input([image_size, image_size, 3], dtype="float32", name="images")
    x = preprocess(images, options["preprocessing"])
    norm = options["batch_norm"]
    if backbone == "convnet":
        maps = convnet(x, blocks=blocks, filters=filters, batch_norm=norm)
    else:
        built = network(backbone, image_size=image_size, batch_norm=norm, levels=levels)
        if frozen_blocks:
            freeze_first(built, frozen_blocks)
        if drop_path:
            x = StochasticDepth(built, drop_path, name="stochastic_depth")(x)
        maps = built(x)
    class_token = None
    if backbone in HUB:
        maps, *tokens = maps if isinstance(maps, list) else [maps]
        class_token = tokens[0] if tokens else None
    embeddings = []
    for level, features in zip(levels or ["H"], maps if len(levels) > 1 else [maps]):
        if level == "H":
            features = pool(features, options["pooling"], class_token)
        else:
            features = level_head(features, level, batch_norm=norm)
        name = f"{HEAD_LAYER}_{LEVELS[level][0]}" if levels else HEAD_LAYER
        embeddings.append(head_layer(features, head, embedding_dim, name))
    return keras.Model(images, embeddings if len(levels) > 1 else embeddings[0], name="embedding_model")


def _check_head(head, levels):
    checks.one_of("head", head, HEADS)
    if levels and head != "random":
        raise checks.invalid("head", "'random' with levels, whose features are no embeddings", head)


def head_layer(features, head: str, embedding_dim: int, name: str = HEAD_LAYER):
    """The embedding of pooled features, by a head of `HEADS`; see `embedding_model`."""
    # Embeddings that are ranked are float32 even under mixed precision.
    if head == "none":
        return keras.layers.Activation("linear", dtype="float32", name=name)(features)
    if head in COMPUTED_HEADS and embedding_dim > features.shape[-1]:
        expected = f"at most the backbone's {features.shape[-1]} features with head {head!r}"
        raise checks.invalid("embedding_dim", expected, embedding_dim)
    if head == "whitened":
        features = Rooted(dtype="float32", name=ROOTED_LAYER)(features)
    return keras.layers.Dense(embedding_dim, use_bias=head != "pca", dtype="float32", name=name)(features)


def split_at_head(model: keras.Model) -> tuple[keras.Model, keras.Model]:
    """Splits a model with one embedding into two models that share its weights.

    The first maps images to pooled features, the second features to embeddings.
    """
    names = {layer.name for layer in model.layers}
    head = [model.get_layer(name) for name in (ROOTED_LAYER, HEAD_LAYER) if name in names]
    pooled = head[0].input
    features = embeddings = keras.Input(pooled.shape[1:], dtype=pooled.dtype, name="features")
    for layer in head:
        embeddings = layer(embeddings)
    return keras.Model(model.input, pooled, name="features_of"), keras.Model(features, embeddings)


def split_in_backbone(
    model: keras.Model, name: str, *, preprocessing: str
) -> tuple[keras.Model, keras.Model]:
    """Splits a model behind a layer of its backbone into two models that share its weights.

    The first maps images to the layer's output, the second that to embeddings.

    Args:
        model: the result of `embedding_model` with a backbone other than the convnet and one embedding.
        name: the layer. All that follows depends on its output alone.
        preprocessing: that of the model, one of `preprocessing.MODES`.

    Raises:
        InputError: there is no such layer, or what follows depends on others too.
    """
    backbone = next((layer for layer in model.layers if isinstance(layer, keras.Model)), None)
    names = [layer.name for layer in backbone.layers] if backbone else []
    if name not in names:
        raise InputError(f"The backbone has no layer {name!r}.{did_you_mean(name, names)}")
    cut = backbone.get_layer(name).output
    try:
        rest = keras.Model(cut, backbone.output, name="rest")
    except ValueError:
        raise checks.invalid("layer", "one on whose output alone all that follows depends", name) from None
    images = keras.Input(model.input.shape[1:], dtype="float32", name="images")
    first = keras.Model(backbone.input, cut)(preprocess(images, preprocessing))
    maps = embeddings = keras.Input(cut.shape[1:], dtype=cut.dtype, name="features")
    for layer in (rest, *model.layers[model.layers.index(backbone) + 1 :]):
        embeddings = layer(embeddings)
    return keras.Model(images, first), keras.Model(maps, embeddings)


def without_head(part: keras.Model) -> keras.Model:
    """Returns the second of the models that `split_in_backbone` or `split_at_head` gives, up to the head."""
    x = features = keras.Input(part.input_shape[1:], name="features")
    for layer in part.layers[1:]:
        if layer.name in (ROOTED_LAYER, HEAD_LAYER):
            break
        x = layer(x)
    return keras.Model(features, x)


def whiten_head(
    model: keras.Model,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    shrinkage: float = SHRINKAGE,
    first: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """Sets the head to what whitens features within classes; see `whitening.fitted_whitening`.

    Args:
        model: the result of `embedding_model(head="whitened", ...)`, or a part of it that has the head.
        features: `[images, features]` of training images.
        labels: `[images]` integers.
        shrinkage: see there.
        first: the mean `[features]` and projection `[features, dims]` of a whitening of the roots that comes
            first, and whose mean is kept. None: none does.
    """
    layer = model.get_layer(HEAD_LAYER)
    rows, dim = rooted(features), layer.kernel.shape[1]
    if first:
        rows = (rows - first[0]) @ first[1]
    kernel, bias = fitted_whitening(rows, labels, dim=dim, shrinkage=shrinkage)
    if first:
        kernel = first[1] @ kernel
        bias = -first[0] @ kernel
    layer.kernel.assign(kernel)
    layer.bias.assign(bias)


def teach_head(
    model: keras.Model, features: np.ndarray, teacher: np.ndarray, *, strength: float = TAUGHT_STRENGTH
) -> None:
    """Sets the head to what comes nearest to a teacher's embeddings; see `whitening.fitted_to`.

    Args:
        model: the result of `embedding_model(head="whitened" or "pca", ...)`, or a part of it that has the
            head.
        features: `[images, features]` of training images.
        teacher: `[images, dim]` the teacher's embeddings of these images, of unit norm.
        strength: see there.
    """
    layer = model.get_layer(HEAD_LAYER)
    has_roots = any(one.name == ROOTED_LAYER for one in model.layers)
    rows = rooted(features) if has_roots else features
    kernel, bias = fitted_to(rows, teacher, strength=strength, centred=layer.use_bias)
    layer.kernel.assign(kernel)
    if layer.use_bias:
        layer.bias.assign(bias)


def initialize_head_with_pca(model: keras.Model, features: np.ndarray) -> None:
    """Sets the head to the projection onto the principal directions of features.

        W = eigenvectors of sum_i x_i x_i^T with the largest eigenvalues,    embedding = W^T x

    The features are not centred. Therefore W^T x_1 . W^T x_2 is the best approximation of x_1 . x_2 of its
    rank, and cosine similarities are nearly those of the features.

    Args:
        model: the result of `embedding_model(head="pca", ...)`.
        features: `[images, features]` of training images; there may be fewer images than dimensions.
    """
    kernel = model.get_layer(HEAD_LAYER).kernel
    rows = np.asarray(features, np.float64)
    if rows.shape[1] > _MOST_SQUARE:
        directions = _directions_of_wide(rows, kernel.shape[1])
    else:
        _, directions = np.linalg.eigh(rows.T @ rows)
    # The sign of an eigenvector is arbitrary in LAPACK: make its largest entry positive.
    directions = directions[:, ::-1][:, : kernel.shape[1]]
    largest = np.take_along_axis(directions, np.argmax(np.abs(directions), axis=0)[None], axis=0)
    kernel.assign((directions * np.sign(largest)).astype(np.float32))


def _directions_of_wide(rows: np.ndarray, count: int) -> np.ndarray:
    """The principal directions of rows as eigh gives them, the last one first; `[dim, at least count]`.

    Without the square matrix of all dimensions. If there are fewer rows, others that are orthogonal follow.
    """
    directions = np.linalg.svd(rows, full_matrices=False)[2].T
    if (missing := count - directions.shape[1]) > 0:
        others = np.random.default_rng(0).normal(size=(len(directions), missing))
        others -= directions @ (directions.T @ others)
        directions = np.concatenate([directions, np.linalg.qr(others)[0]], axis=1)
    return directions[:, ::-1]


def resolve_options(
    *,
    backbone: str,
    preprocessing: str = "auto",
    pooling: str = "auto",
    levels: str = "",
    batch_norm: str = "auto",
) -> dict[str, str]:
    """Replaces "auto" in options of `embedding_model`; raises InputError for options that do not fit.

    >>> resolve_options(backbone="resnet50")
    {'preprocessing': 'imagenet_rgb', 'pooling': 'average', 'batch_norm': 'frozen'}
    """
    checks.one_of("backbone", backbone, BACKBONES)
    checks.one_of("preprocessing", preprocessing, ("auto", *PREPROCESSINGS))
    has_token = backbone in HUB and family_of(backbone.removeprefix(PREFIX)).has_class_token
    checks.one_of("pooling", pooling, ("auto", *POOLINGS, *(TOKEN_MODES if has_token else ())))
    checks.one_of("batch_norm", batch_norm, ("auto", *BATCH_NORMS))
    check_levels(levels, backbone)
    own = backbone == "convnet"
    if preprocessing in GREY_MODES and not own:
        raise checks.invalid("preprocessing", f"one with colours for backbone {backbone!r}", preprocessing)
    if levels and "H" not in levels and pooling != "auto":
        raise checks.invalid("pooling", "'auto' for levels without 'H'; they have their own heads", pooling)
    auto = {
        "preprocessing": default_preprocessing(backbone),
        "pooling": "flatten" if own else "class_token" if has_token else "average",
        "batch_norm": "trained" if own else "frozen",
    }
    given = {"preprocessing": preprocessing, "pooling": pooling, "batch_norm": batch_norm}
    return {name: auto[name] if value == "auto" else value for name, value in given.items()}


def concatenate_embeddings(model: keras.Model) -> keras.Model:
    """A model with one embedding per image, for evaluation and export.

    Returns:
        The model itself if it has one output. Otherwise a model that shares its weights and concatenates the
        L2-normalised embeddings of its outputs, `[batch, sum of their dimensions]` float32.
    """
    if len(model.outputs) == 1:
        return model
    parts = [UnitNorm(dtype="float32")(output) for output in model.outputs]
    joined = keras.layers.Concatenate(dtype="float32", name="embeddings")(parts)
    return keras.Model(model.input, joined, name="concatenated_model")
