"""Checks the fields of a config, and fills in those that are left open."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.configs import fields
from tfrank.configs.default import Config
from tfrank.configs.fields import OPEN, OPEN_VALUES
from tfrank.configs.sections import Data, Evaluation, Model, Train
from tfrank.configs.sections.data import EMBEDDINGS, UNGROUPED
from tfrank.models.vector_model import VECTORS


class PartTrained(NamedTuple):
    """Passes over the training images in a run of open length, and the open learning rate."""

    passes: int
    rate: float


# Share of the steps in which PNP-Ds turns gradually into PNP-Dq, from random weights.
WARM_UP_SHARE = 0.5
# The backbone "auto" for Keras weights, for a PyTorch file and for random weights.
KERAS_BACKBONE, PYTORCH_BACKBONE, SMALL_BACKBONE = "keras/MobileNetV2", "mobilenet_v2", "convnet"
# The largest number of classes in a batch whose shape is left open.
MOST_CLASSES = 16
# Passes over the training images in a run of open length, for (pretrained, random) weights.
PASSES = (6, 40)
# The same for a part of the network that is trained alone, and its learning rate: a head, whose steps cost
# next to nothing, and the last layers.
HEAD, LAST_LAYERS = PartTrained(24, 3e-4), PartTrained(9, 1e-4)
FEWEST_STEPS, MOST_STEPS = 100, 5000
# Views of each training image that are stored, where their number is left open; and of all images together,
# which EfficientNet-Lite0 embeds in five minutes on two cores.
MOST_VIEWS, ALL_VIEWS = 5, 20_000
EVALUATIONS = 10
# Side of the images of tests over that of training, where it is left open.
LARGER_AT_TEST = 256 / 224
# Held out for validation by default: share of the classes, fewest classes; fewest to hold any out of.
HELD_OUT_SHARE, FEWEST_HELD_OUT, FEWEST_TO_HOLD_OUT = 0.2, 4, 12


def check_fields(config: Config) -> None:
    """Raises InputError for the first field out of its range, or that does not go with another one."""
    fields.check(config)
    if config.seed >= 2**32:
        raise checks.invalid("config.seed", "an integer below 2^32", config.seed)
    checks.sequence("config.evaluation.scales", config.evaluation.scales, checks.number)
    _check_vectors(config.data, config.model, config.evaluation)
    _check_train(config.train, config.model)
    _check_classes(config.data, config.loss.name)


def check_new(config: Config) -> None:
    """Raises InputError for a field that would do nothing, or harm, in a run that begins.

    Runs that earlier versions began with it are measured and go on.
    """
    data, model, train = config.data, config.model, config.train
    if data.short_classes == "drop" and data.sampler in UNGROUPED:
        raise InputError(
            f"config.data.sampler={data.sampler} draws from all classes, also from those that"
            " config.data.short_classes=drop is to leave out. Leave it out, or set"
            " config.data.sampler=class_balanced."
        )
    if train.class_weights and data.sampler not in UNGROUPED:
        raise InputError(
            f"config.data.sampler={data.sampler} draws all classes equally often, and"
            " config.train.class_weights would count small ones twice. Leave it out, or set"
            f" config.data.sampler={' or '.join(UNGROUPED)}."
        )
    if data.max_shift and (model.takes_vectors or train.is_partly_frozen):
        what = "Vectors" if model.takes_vectors else "Stored features of a part that is not trained"
        raise InputError(f"{what} cannot be shifted. Leave out config.data.max_shift.")


def resolved(config: Config) -> Config:
    """Returns the config with the open fields filled in that depend on pretrained or random weights."""
    config = copy.deepcopy(config)
    random = config.model.from_random_weights
    if (part := _part_trained(config.train, config.model)) and config.train.learning_rate == OPEN:
        config.train.learning_rate = part.rate
    for path, value, _, declaration in fields.fields_of(config):
        if declaration.by_weights and value in OPEN_VALUES:
            section, name = path.split(".")
            setattr(getattr(config, section), name, declaration.by_weights[random])
    if config.model.backbone == "auto":
        pretrained = PYTORCH_BACKBONE if config.model.weights.endswith((".pth", ".pt")) else KERAS_BACKBONE
        config.model.backbone = SMALL_BACKBONE if random else pretrained
    if config.data.fit == "auto" and config.data.crop != "scaled":
        config.data.fit = "centre"
    if config.data.resize == OPEN:
        config.data.resize = config.data.image_size
    if config.evaluation.image_size == OPEN:
        config.evaluation.image_size = 0 if _has_one_size(config) else _larger(config.data.image_size)
    return config


def _has_one_size(config):
    """Whether tests can have images of the size of training alone, or have no such size."""
    model = config.model
    one_size = model.pooling == "flatten" or model.backbone.startswith("hub/")
    return one_size or model.takes_vectors or config.evaluation.full_size


def _larger(side):
    """Returns the open side of the images of tests: a multiple of what networks shrink images by."""
    return max(side, 32 * round(LARGER_AT_TEST * side / 32))


def held_out_classes(data: Data, labels: np.ndarray) -> int:
    """Returns how many training classes are held out for validation; if left open, prints its choice."""
    if data.validation_classes != OPEN:
        return data.validation_classes
    classes = len(np.unique(labels))
    if classes < FEWEST_TO_HOLD_OUT:
        print(
            f"No validation: {classes} training classes are too few to hold some out; {FEWEST_TO_HOLD_OUT}"
            " are enough. The last weights are taken."
        )
        return 0
    count = max(FEWEST_HELD_OUT, round(HELD_OUT_SHARE * classes))
    print(f"{count} of {classes} training classes are held out, to choose the best weights by.")
    return count


def fitted(
    config: Config, labels: np.ndarray, *, limit: Callable[[Config], dict[str, int]] = lambda fitted: {}
) -> Config:
    """Returns the config with open batch shape, views and steps filled in; prints why.

    Args:
        config: the config of a run.
        labels: the labels of its training images.
        limit: given the config with them, returns those fields of `config.train` that there is a limit for;
            see `time_limit`.
    """
    config = copy.deepcopy(config)
    classes, images = len(np.unique(labels)), len(labels)
    if config.data.classes_per_batch == OPEN:
        _fit_batch(config.data, classes)
    if config.train.feature_views == OPEN:
        _fit_views(config.train, images)
    if config.train.steps == OPEN and not config.train.epochs:
        _fit_steps(config.train, config.model, config.data.batch_size, images)
    config.train.update(**limit(config))
    if getattr(config.loss, "warmup_steps", 0) == OPEN:
        steps = _steps_of(config.train, config.data.batch_size, images)
        config.loss.warmup_steps = round(WARM_UP_SHARE * steps) if config.model.from_random_weights else 0
    return config


def _fit_batch(data, classes):
    """Sets the shape of the batch by the number of classes."""
    most = min(MOST_CLASSES, classes)
    if most < 2:
        raise InputError(f"Training needs at least 2 classes. The training images have {classes}.")
    # A power of two splits evenly over devices.
    data.classes_per_batch = 1 << (most.bit_length() - 1)
    data.examples_per_class = 4 if data.classes_per_batch == MOST_CLASSES else 8
    print(
        f"A batch has {data.classes_per_batch} classes x {data.examples_per_class} images, which fits"
        f" {classes} training classes."
    )


def _fit_views(train, images):
    """Sets the number of views of each image by the number of images."""
    train.feature_views = min(MOST_VIEWS, max(1, ALL_VIEWS // images))
    if train.is_partly_frozen:
        print(f"{train.feature_views} views of each training image are stored, which fits {images:,} images.")


def _fit_steps(train, model, batch_size, images):
    """Sets the number of steps by the number of images."""
    random = model.from_random_weights
    part = _part_trained(train, model)
    passes = part.passes if part else PASSES[random]
    steps = round(passes * images / batch_size)
    train.steps = min(max(FEWEST_STEPS, steps), MOST_STEPS)
    why = f"{passes} passes over {images:,} images"
    if train.steps != steps:
        why += f", but at least {FEWEST_STEPS} and at most {MOST_STEPS:,}"
    begin = "random weights" if random else "pretrained weights"
    if model.takes_vectors:
        begin = "the vectors as they are"
    print(f"The run has {train.steps:,} steps: {why}, from {begin}.")


def _part_trained(train, model):
    """What an open run of a part of the network takes; None if the whole network is trained."""
    if train.frozen_until:
        return LAST_LAYERS
    return HEAD if train.frozen_backbone or model.takes_vectors else None


def evaluate_every(train: Train, steps: int) -> int:
    """Returns the steps between evaluations of the validation part."""
    return max(1, steps // EVALUATIONS) if train.evaluate_every == OPEN else train.evaluate_every


def evaluations(train: Train, steps: int) -> int:
    """Returns how often a run evaluates the validation part, if it has one: also before the first step."""
    return 1 + -(-steps // evaluate_every(train, steps))


def _check_vectors(data: Data, model: Model, evaluation: Evaluation) -> None:
    """Raises InputError unless vectors meet a model of vectors, and nothing is set that only images have."""
    vectors = model.takes_vectors
    if vectors != data.of_vectors:
        raise InputError(
            f"config.data.name={EMBEDDINGS} and config.model.backbone={VECTORS} go together: images have"
            f" another backbone, and embeddings have none. Received {data.name!r} and {model.backbone!r}."
        )
    if model.hidden and not vectors:
        raise checks.invalid("config.model.hidden", f"() for backbones other than {VECTORS}", model.hidden)
    if vectors and model.head == "none" and not model.hidden:
        raise InputError(
            "There is nothing to train: the model has no head and no hidden layers. Set"
            " config.model.head=pca, or config.model.hidden=512."
        )
    if vectors and evaluation.mirror:
        raise InputError("Vectors have no mirror image. Leave out config.evaluation.mirror.")
    if vectors and (evaluation.any_size or evaluation.image_size):
        raise InputError(
            "Vectors have neither size nor scales. Leave out config.evaluation.image_size, full_size and"
            " scales."
        )


def check_test_size(config: Config, *, pooling: str) -> None:
    """Raises InputError if tests have images of another size than training, and the network allows one."""
    side = config.evaluation.image_size
    if side in (0, config.data.image_size):
        return
    if pooling == "flatten" or config.model.backbone.startswith("hub/"):
        raise InputError(
            f"{config.model.backbone} takes images of the size it is trained on,"
            f" {config.data.image_size} pixels. Leave out config.evaluation.image_size={side}, or choose"
            " another backbone or pooling."
        )
    if config.evaluation.full_size:
        raise InputError("Images have their own size. Leave out config.evaluation.image_size or full_size.")


def _check_train(train: Train, model: Model) -> None:
    for field, used in (("layer_decay", train.layer_decay < 1), ("recompute", train.recompute)):
        if used and not model.backbone.startswith("hub/"):
            raise InputError(
                f"config.train.{field} is for the vision transformers, config.model.backbone=hub/..."
            )
    if train.matryoshka and len(model.levels) > 1:
        raise InputError(
            "Several levels are concatenated, and cannot be cut to first dimensions. Leave out"
            " config.train.matryoshka, or give one of config.model.levels."
        )
    dim = model.embedding_dim
    if train.matryoshka and model.head != "none" and max(train.matryoshka) != dim:
        raise InputError(
            f"The largest of config.train.matryoshka={','.join(map(str, train.matryoshka))} is not the whole"
            f" embedding. Let it be {dim}, or set config.model.embedding_dim={max(train.matryoshka)}."
        )
    if train.patience and train.strategy == "multi_worker":
        raise InputError(
            "Only one of several machines evaluates, so the others do not know when to stop. Set"
            " config.train.patience=0."
        )


def _check_classes(data: Data, loss: str) -> None:
    if data.merge_classes > 1 or data.label_noise:
        why = "Merged classes and false labels span categories, so the"
        if data.sampler == "category_pairs":
            raise InputError(
                f"{why} sampler category_pairs cannot use them. Set --config.data.sampler=class_balanced."
            )
        if loss == "hierarchical_ap":
            raise InputError(f"{why} loss hierarchical_ap cannot use them. Choose another loss.")
    # Splits of another data set may share names without sharing classes.
    common = sorted(set(data.train) & set(data.test)) if not data.test_records else []
    if common:
        raise InputError(
            f"config.data.train and config.data.test have {common} in common; test on unseen classes."
        )


def advice_without_pairs(data: Data) -> str:
    """Returns what to do if no image of a batch has another of its class."""
    if data.sampler in UNGROUPED:
        return "Raise config.data.classes_per_batch, or set config.data.sampler=class_balanced."
    return "Raise config.data.examples_per_class, or leave out short classes: config.data.short_classes=drop."


def check_memory(train: Train, batch_size: int, steps: int) -> None:
    """Raises InputError if a run ends before its memory of past embeddings joins the gallery."""
    if not train.memory_size:
        return
    joins = max(train.memory_warm_up, -(-train.memory_size // batch_size)) + 1
    if steps < joins:
        raise InputError(
            f"The run ends after {steps:,} steps, before its memory is used from step {joins:,} on. That"
            f" takes config.train.memory_size={train.memory_size} stored embeddings and"
            f" config.train.memory_warm_up={train.memory_warm_up} batches. Lower them, or train for longer."
        )


def total_steps(train: Train, batch_size: int, images: int) -> int:
    """Returns the steps of the run and prints them. An epoch is as many images as the training part has."""
    if (train.steps > 0) == (train.epochs > 0):
        raise InputError(
            "Give one of config.train.steps and config.train.epochs, and set the other to 0."
            f" Received: steps={train.steps}, epochs={train.epochs}"
        )
    steps = _steps_of(train, batch_size, images)
    print(
        f"{steps:,} step{'s' * (steps != 1)} of {batch_size} images ="
        f" {steps * batch_size / images:.1f} epochs"
    )
    return steps


def _steps_of(train, batch_size, images):
    """Returns the configured steps, or the steps that the configured epochs take."""
    return train.steps if train.steps > 0 else max(1, round(train.epochs * images / batch_size))
