"""Checks the ranges of config fields and fills in the fields that are left open."""

import types

import numpy as np
from ml_collections import ConfigDict

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.evaluation.postprocessing.steps import OPTIONS, check_options
from tfrank.models.vector_model import VECTORS
from tfrank.run.workdir import flatten

# Smallest value of each integer field. Fields of the augmentation are missing: `Transform` checks its own.
LEAST = {
    "seed": 0,
    "data.validation_classes": 0,
    "data.merge_classes": 1,
    "data.shards": 0,
    "data.classes_per_batch": 2,
    "data.examples_per_class": 2,
    "data.max_shift": 0,
    "data.dim": 1,
    "model.blocks": 1,
    "model.filters": 1,
    "model.frozen_blocks": 0,
    "model.embedding_dim": 1,
    "train.steps": 0,
    "train.micro_batch_size": 0,
    "train.warmup_steps": 0,
    "train.memory_size": 0,
    "train.memory_warm_up": 0,
    "train.checkpoint_every": 1,
    "train.evaluate_every": 1,
    "train.feature_views": 1,
    "train.patience": 0,
    "train.log_every": 1,
    "evaluation.batch_size": 1,
}
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
# Values of a field that is left open, by its type: it then follows from the weights or from the data.
OPEN = -1
_OPEN_VALUES = (OPEN, "auto", ())
# Values of open fields for (pretrained, random) weights.
BY_WEIGHTS = types.MappingProxyType(
    {
        "data.image_size": (160, 32),
        "train.learning_rate": (3e-5, 1e-3),
        "train.start_share": (0.5, 0.0),
        "train.class_loss_weight": (0.0, 1.0),
        "train.proxy_multiplier": (100.0, 1.0),
        "train.schedule": ("constant", "cosine"),
        # On Caltech-101 from random weights, Recall@1 is 0.544 with colour jitter and 0.518 without.
        "data.color_jitter": ((0.0, 0.0, 0.0, 0.0), (0.3, 0.3, 0.3, 0.02)),
    }
)
# Fields that follow from the training images if they are left open.
BY_DATA = (
    "data.validation_classes",
    "data.classes_per_batch",
    "data.dim",
    "train.steps",
    "train.evaluate_every",
)
# Share of the steps in which PNP-Ds turns gradually into PNP-Dq, from random weights.
WARM_UP_SHARE = 0.5
# The backbone "auto" for Keras weights, for a PyTorch file and for random weights.
KERAS_BACKBONE, PYTORCH_BACKBONE, SMALL_BACKBONE = "keras/MobileNetV2", "mobilenet_v2", "convnet"
# The largest number of classes in a batch whose shape is left open.
MOST_CLASSES = 16
# Passes over the training images in a run of open length, for (pretrained, random) weights.
PASSES = (6, 40)
# The same for a head on a frozen backbone, whose steps cost next to nothing, and its learning rate.
FROZEN_PASSES, FROZEN_RATE = 24, 3e-4
FEWEST_STEPS, MOST_STEPS = 100, 5000
EVALUATIONS = 10
# Held out for validation by default: share of the classes, fewest classes; fewest to hold any out of.
HELD_OUT_SHARE, FEWEST_HELD_OUT, FEWEST_TO_HOLD_OUT = 0.2, 4, 12
# The name of data whose images are vectors.
EMBEDDINGS = "embeddings"
SAMPLERS = ("class_balanced", "all_classes", "category_pairs", "uniform")


def check_ranges(config: ConfigDict) -> None:
    """Raises InputError for the first field out of its range.

    `datasets.build_loader` checks augmentation and regions.
    """
    flat = flatten(config.to_dict())
    for field, least in LEAST.items():
        if field not in BY_DATA or flat[field] != OPEN:
            checks.integer(f"config.{field}", flat[field], at_least=least)
    for field in (
        "train.epochs",
        "train.l2",
        "train.clip_norm",
        "train.class_loss_weight",
        "train.proxy_multiplier",
    ):
        checks.number(f"config.{field}", flat[field], at_least=0)
    checks.number("config.train.layer_decay", config.train.layer_decay, above=0, at_most=1)
    for field, used in (("layer_decay", config.train.layer_decay < 1), ("recompute", config.train.recompute)):
        if used and not config.model.backbone.startswith("hub/"):
            raise InputError(
                f"config.train.{field} is for the vision transformers, config.model.backbone=hub/..."
            )
    checks.number("config.model.drop_path", config.model.drop_path, at_least=0, below=1)
    checks.number("config.train.proxy_sample", config.train.proxy_sample, above=0, at_most=1)
    checks.number("config.train.weight_average", config.train.weight_average, at_least=0, below=1)
    checks.one_of("config.train.precision", config.train.precision, PRECISIONS)
    checks.number("config.train.start_share", config.train.start_share, at_least=0, below=1)
    if config.train.patience and config.train.strategy == "multi_worker":
        raise InputError(
            "Only one of several machines evaluates, so the others do not know when to stop. Set"
            " config.train.patience=0."
        )
    _check_vectors(config)
    if config.seed >= 2**32:
        raise checks.invalid("config.seed", "an integer below 2^32", config.seed)
    _check_data(config.data, config.loss)
    _check_evaluation(config.evaluation)


def resolved(config: ConfigDict) -> ConfigDict:
    """Returns the config with the open fields filled in that depend on pretrained or random weights."""
    config = config.copy_and_resolve_references()
    random = from_random_weights(config)
    if (config.train.frozen_backbone or takes_vectors(config)) and config.train.learning_rate == OPEN:
        config.train.learning_rate = FROZEN_RATE
    for field, values in BY_WEIGHTS.items():
        group, name = field.split(".")
        if config[group].get(name) in _OPEN_VALUES:
            config[group][name] = values[random]
    if config.model.backbone == "auto":
        pretrained = PYTORCH_BACKBONE if config.model.weights.endswith((".pth", ".pt")) else KERAS_BACKBONE
        config.model.backbone = SMALL_BACKBONE if random else pretrained
    if config.data.resize == OPEN:
        config.data.resize = config.data.image_size
    return config


def held_out_classes(config: ConfigDict, labels: np.ndarray) -> int:
    """Returns how many training classes are held out for validation; if left open, prints its choice."""
    count = config.data.validation_classes
    if count != OPEN:
        return count
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


def fitted(config: ConfigDict, labels: np.ndarray) -> ConfigDict:
    """Returns the config with open batch shape and steps filled in from the training images; prints why."""
    config = config.copy_and_resolve_references()
    data, train = config.data, config.train
    classes, images = len(np.unique(labels)), len(labels)
    random = from_random_weights(config)
    if data.classes_per_batch == OPEN:
        most = min(MOST_CLASSES, classes)
        if most < 2:
            raise InputError(f"Training needs at least 2 classes. The training images have {classes}.")
        # A power of two can be divided equally among devices.
        data.classes_per_batch = 1 << (most.bit_length() - 1)
        data.examples_per_class = 4 if data.classes_per_batch == MOST_CLASSES else 8
        print(
            f"A batch has {data.classes_per_batch} classes x {data.examples_per_class} images, which fits"
            f" {classes} training classes."
        )
    if train.steps == OPEN and not train.epochs:
        only_head = train.frozen_backbone or takes_vectors(config)
        passes = FROZEN_PASSES if only_head else PASSES[random]
        steps = round(passes * images / batch_size(config))
        train.steps = min(max(FEWEST_STEPS, steps), MOST_STEPS)
        whole = train.steps == steps
        why = (
            f"{passes} passes over {images:,} images"
            if whole
            else f"between {FEWEST_STEPS} and {MOST_STEPS:,}"
        )
        begin = "random weights" if random else "pretrained weights"
        if takes_vectors(config):
            begin = "the vectors as they are"
        print(f"The run has {train.steps:,} steps: {why}, from {begin}.")
    if config.loss.get("warmup_steps") == OPEN:
        steps = _steps_of(config, images)
        config.loss.warmup_steps = round(WARM_UP_SHARE * steps) if random else 0
    return config


def evaluate_every(config: ConfigDict, steps: int) -> int:
    """Returns the steps between evaluations of the validation part."""
    every = config.train.evaluate_every
    return max(1, steps // EVALUATIONS) if every == OPEN else every


def _check_vectors(config):
    """Raises InputError unless vectors meet a model of vectors, and nothing is set that only images have."""
    vectors = takes_vectors(config)
    if vectors != (config.data.name == EMBEDDINGS):
        raise InputError(
            f"config.data.name={EMBEDDINGS} and config.model.backbone={VECTORS} go together: images have"
            f" another backbone, and embeddings have none. Received {config.data.name!r} and"
            f" {config.model.backbone!r}."
        )
    if config.model.hidden and not vectors:
        raise checks.invalid(
            "config.model.hidden", f"() for backbones other than {VECTORS}", config.model.hidden
        )
    for units in config.model.hidden:
        checks.integer("config.model.hidden", units, at_least=1)
    if vectors and config.model.head == "none" and not config.model.hidden:
        raise InputError(
            "There is nothing to train: the model has no head and no hidden layers. Set"
            " config.model.head=pca, or config.model.hidden=512."
        )
    if vectors and any_size(config):
        raise InputError("Vectors have no scales. Leave out config.evaluation.full_size and scales.")


def _check_data(data, loss):
    checks.one_of("config.data.sampler", data.sampler, SAMPLERS)
    checks.number("config.data.label_noise", data.label_noise, at_least=0, below=1)
    if data.merge_classes > 1 or data.label_noise:
        why = "Merged classes and false labels span categories, so the"
        if data.sampler == "category_pairs":
            raise InputError(
                f"{why} sampler category_pairs cannot use them. Set --config.data.sampler=class_balanced."
            )
        if loss.name == "hierarchical_ap":
            raise InputError(f"{why} loss hierarchical_ap cannot use them. Choose another loss.")
    # Splits of another data set may share names without sharing classes.
    common = sorted(set(data.train) & set(data.test)) if not data.test_records else []
    if common:
        raise InputError(
            f"config.data.train and config.data.test have {common} in common; test on unseen classes."
        )


def _check_evaluation(evaluation):
    for k in evaluation.recall_at:
        checks.integer("config.evaluation.recall_at", k, at_least=1)
    checks.number("config.evaluation.target_recall", evaluation.target_recall, above=0, at_most=1)
    checks.number("config.evaluation.match_precision", evaluation.match_precision, above=0, at_most=1)
    checks.number("config.evaluation.match_far", evaluation.match_far, at_least=0, below=1)
    with checks.as_fields("evaluation", OPTIONS):
        check_options(evaluation)


def check_memory(config: ConfigDict, steps: int) -> None:
    """Raises InputError if a run ends before its memory of past embeddings joins the gallery."""
    if not config.train.memory_size:
        return
    joins = max(config.train.memory_warm_up, -(-config.train.memory_size // batch_size(config))) + 1
    if steps < joins:
        raise InputError(
            f"The run ends after {steps:,} steps, and its memory would only join in step {joins:,}: when"
            f" config.train.memory_size={config.train.memory_size} embeddings are there, and"
            f" config.train.memory_warm_up={config.train.memory_warm_up} batches have passed. Lower them, or"
            " train for longer."
        )


def batch_size(config: ConfigDict) -> int:
    """Returns the number of images in a global batch; 0 while it is left open."""
    return max(0, config.data.classes_per_batch) * config.data.examples_per_class


def takes_vectors(config: ConfigDict) -> bool:
    """Returns whether the model takes vectors that another model has computed, not images."""
    return config.model.backbone == VECTORS


def from_random_weights(config: ConfigDict) -> bool:
    """Returns whether training starts from random weights: not those of a file, and not from vectors."""
    return config.model.weights == "random" and not takes_vectors(config)


def any_size(config: ConfigDict) -> bool:
    """Returns whether the evaluated model must take images of any size."""
    return config.evaluation.full_size or tuple(config.evaluation.scales) != (1.0,)


def total_steps(config: ConfigDict, num_images: int) -> int:
    """Returns the steps of the run and prints them. An epoch is as many images as the training part has."""
    steps, epochs = config.train.steps, config.train.epochs
    if (steps > 0) == (epochs > 0):
        raise InputError(
            "Give one of config.train.steps and config.train.epochs, and set the other to 0."
            f" Received: steps={steps}, epochs={epochs}"
        )
    steps, size = _steps_of(config, num_images), batch_size(config)
    print(f"{steps:,} steps of {size} images = {steps * size / num_images:.1f} epochs")
    return steps


def _steps_of(config, num_images):
    """Returns the configured steps, or the steps that the configured epochs take."""
    return config.train.steps or max(1, round(config.train.epochs * num_images / batch_size(config)))
