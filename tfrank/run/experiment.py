"""Builds the parts of a run from its config, for training and evaluation; see also `inference`."""

import atexit
import dataclasses
import functools
import os
import shutil
import tempfile
import types

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.common.normalize import side_by_side
from tfrank.data.index import RecordIndex, select
from tfrank.data.samplers import SHORT_CLASSES
from tfrank.data.sources import SOURCES
from tfrank.evaluation.protocols import PROTOCOLS
from tfrank.evaluation.ranking_results import leave_one_out
from tfrank.evaluation.retrieval_metrics import DEFAULT_KS
from tfrank.losses.core.batch_statistics import batch_statistics, loss_slope
from tfrank.losses.proxies import PROXY_LOSSES
from tfrank.models.blocks import layer_multipliers, recompute_blocks
from tfrank.models.embedding import (
    concatenate_embeddings,
    embedding_model,
    initialize_head_with_pca,
    resolve_options,
    split_at_head,
)
from tfrank.models.hub_sizes import PREFIX
from tfrank.models.vector_model import vector_model
from tfrank.models.weights import check_exists, load_backbone_weights
from tfrank.run import frozen_backbone, inference, settings
from tfrank.run.datasets import FOREIGN, Data, build_batches, build_loader
from tfrank.run.objective import build_loss, build_objective
from tfrank.run.verdict import read_losses
from tfrank.run.workdir import check_model_of, check_path
from tfrank.training import strategy as strategies
from tfrank.training.averaging import WeightAverage, averaged_variables
from tfrank.training.checkpoints import Checkpoints, restore_model, saved_checkpoints
from tfrank.training.cluster import is_chief
from tfrank.training.log import BatchStatistics
from tfrank.training.optimizers import build_optimizer, check_names
from tfrank.training.schedules import build_schedule
from tfrank.training.step import build_step
from tfrank.training.trainer import Trainer, ValidationResult, best_weights_of

# Config fields of those arguments of the schedule and the optimizer that have another name.
OPTIMIZER_FIELDS = types.MappingProxyType(
    {"boundaries": "schedule_steps", "factor": "schedule_factor", "multipliers": "learning_rate_multipliers"}
)
# Largest number of training images for the head's initial PCA.
PCA_IMAGES = 5000


@dataclasses.dataclass(frozen=True)
class Training:
    """The parts of training.

    Attributes:
        model: the trained model, on all devices.
        copy: a copy on one device, which is evaluated and exported; see `update_copy`.
        optimizer, average, checkpoints, trainer, strategy: `average` is None without weight averaging.
        workdir: folder of the run.
    """

    model: keras.Model
    copy: keras.Model
    optimizer: keras.optimizers.Optimizer
    average: WeightAverage | None
    checkpoints: Checkpoints
    trainer: Trainer
    strategy: tf.distribute.Strategy
    workdir: str

    @functools.cached_property
    def serving(self) -> keras.Model:
        """The copy with one embedding per image: several levels are concatenated."""
        return concatenate_embeddings(self.copy)

    def update_copy(self) -> None:
        """Copies the current weights into the copy, or their average if one is kept."""
        averages = iter(self.average.variables if self.average else [])
        for to, source in zip(self.copy.variables, self.model.variables):
            averaged = self.average and to.value.dtype.is_floating
            to.assign(next(averages) if averaged else source.value)


def check_config(config: ConfigDict) -> None:
    """Raises InputError for the first field out of its range, before anything is written."""
    settings.check_ranges(config)
    data = config.data
    checks.one_of("config.data.name", data.name, (*SOURCES, FOREIGN))
    checks.one_of("config.data.short_classes", data.short_classes, SHORT_CLASSES)
    for protocol in config.evaluation.protocols:
        checks.one_of("config.evaluation.protocols", protocol, PROTOCOLS)
    with checks.as_fields("data", data, size="image_size"):
        build_loader(config)
    options = ("backbone", "preprocessing", "pooling", "levels", "batch_norm")
    if not settings.takes_vectors(config):
        with checks.as_fields("model", options):
            resolve_options(**{name: config.model[name] for name in options})
    build_loss(config, labels=[0])
    frozen_backbone.check_frozen(config)
    _build_optimizer(config, max(1, config.train.steps, config.train.warmup_steps))


def check_start(config: ConfigDict, workdir: str) -> None:
    """Raises InputError if the workdir is unusable or the pretrained weights to load do not exist.

    Called before any data is read.
    """
    check_path(workdir)
    if not saved_checkpoints(os.path.join(workdir, "checkpoints")) or config.evaluation.baselines:
        with checks.as_fields("model", ["weights", "backbone"]):
            check_exists(config.model.weights, config.model.backbone)


def build_model(config: ConfigDict, *, any_size: bool = False) -> keras.Model:
    """Builds the embedding model, with random weights by the seed, for the config's image size or for any."""
    keras.utils.set_random_seed(config.seed)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(config.train.precision)
    try:
        if settings.takes_vectors(config):
            options = {name: config.model[name] for name in ("hidden", "head", "embedding_dim")}
            with checks.as_fields("model", options):
                return vector_model(input_dim=config.data.dim, **options)
        fields = dict(config.model)
        del fields["hidden"]
        if fields.pop("weights") == "random" and fields["batch_norm"] == "auto":
            # Random weights have no useful batch-norm statistics, so they must be trained.
            fields["batch_norm"] = "trained"
        with checks.as_fields("model", fields), checks.as_fields("data", ["image_size"]):
            return embedding_model(image_size=None if any_size else config.data.image_size, **fields)
    finally:
        keras.config.set_dtype_policy(before)


def build_strategy(config: ConfigDict) -> tf.distribute.Strategy:
    """Builds the strategy of the training devices and sets determinism and TF32.

    Call it before anything else makes TensorFlow use a device.
    """
    settings.check_ranges(config)
    if config.train.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(config.train.tf32)
    with checks.as_fields("train", ["strategy"]):
        return strategies.build_strategy(config.train.strategy, settings.batch_size(config))


def build_evaluation_strategy(config: ConfigDict) -> tf.distribute.Strategy:
    """Builds the strategy of the devices that embed: the training devices of this machine."""
    name = "mirrored" if config.train.strategy == "multi_worker" else config.train.strategy
    return strategies.build_strategy(name, batch_size=0)


def _build_optimizer(config, steps, model=None):
    train = config.train
    with checks.as_fields("train", train, **OPTIMIZER_FIELDS):
        schedule = build_schedule(
            train.schedule,
            train.learning_rate,
            total_steps=steps,
            warmup_steps=train.warmup_steps,
            boundaries=train.schedule_steps,
            factor=train.schedule_factor,
        )
        optimizer = build_optimizer(
            train.optimizer,
            learning_rate=schedule,
            momentum=train.momentum,
            beta_1=train.beta_1,
            beta_2=train.beta_2,
            epsilon=train.epsilon,
            decoupled=train.decoupled,
            no_decay=train.no_decay,
            multipliers=_multipliers(config, model),
        )
    return keras.optimizers.LossScaleOptimizer(optimizer) if train.precision == "mixed_float16" else optimizer


def _multipliers(config, model):
    """Returns the learning-rate multipliers of parts of paths; without a model, those that need none."""
    decay, by_layer = config.train.layer_decay, {}
    if decay < 1 and model:
        by_layer = layer_multipliers(_backbone_of(config, model), decay)
    has_proxies = config.loss.name in PROXY_LOSSES or config.train.class_loss_weight
    own = {"proxies": config.train.proxy_multiplier} if has_proxies else {}
    return by_layer | own | dict(config.train.learning_rate_multipliers)


def _build_trained_model(config):
    model = build_model(config)
    if config.train.recompute:
        recompute_blocks(_backbone_of(config, model))
    return model


def _backbone_of(config, model):
    """Returns the vision transformer in a model."""
    return model.get_layer(config.model.backbone.removeprefix(PREFIX))


def build_training(
    config: ConfigDict,
    workdir: str,
    strategy: tf.distribute.Strategy,
    steps: int,
    images: RecordIndex,
) -> Training:
    """Builds model, loss, optimizer, checkpoints and trainer of a run of `steps` steps on `images`."""
    settings.check_memory(config, steps)
    train, batch_size = config.train, settings.batch_size(config)
    strategies.check_divides(batch_size, strategy)
    folder = os.path.join(workdir, "checkpoints")
    copy = build_model(config, any_size=settings.any_size(config))
    # A resumed run needs the initial weights too if they are measured as a baseline.
    if not saved_checkpoints(folder) or config.evaluation.baselines:
        _load_start(config, copy, images)
    with strategy.scope():
        model = _build_trained_model(config)
        optimizer = _build_optimizer(config, steps, model)
        for to, source in zip(model.variables, copy.variables):
            to.assign(source.numpy())
        part = split_at_head(model)[1] if train.frozen_backbone else model
        objective = build_objective(config, part, images.label, optimizer.iterations, images.category)
        with checks.as_fields("train", ["no_decay"], **OPTIMIZER_FIELDS):
            check_names(objective.model.variables, train.no_decay, "no_decay")
            optimizer.build(objective.model.trainable_variables)
        average = _build_average(train, model, optimizer, strategy)
    step = build_step(
        objective.model,
        objective.loss,
        optimizer,
        strategy=strategy,
        l2=train.l2,
        no_decay=train.no_decay,
        clip_norm=train.clip_norm,
        micro_batch_size=train.micro_batch_size,
        xla=train.xla,
        after=average.update if average else lambda: None,
    )
    chief = is_chief(strategy)
    checkpoints = Checkpoints(
        folder,
        model,
        optimizer,
        [*objective.state, *(average.start if average else [])],
        average.variables if average else [],
        writes=chief,
    )
    trainer = Trainer(
        workdir if chief else _temporary_folder(),
        model=objective.model,
        step=step,
        summary=lambda labels, outputs: BatchStatistics(**batch_statistics(labels, side_by_side(outputs[0]))),
        slope=_build_slope(config, objective),
        checkpoints=checkpoints,
        strategy=strategy,
        batch_size=batch_size,
        micro_batch_size=train.micro_batch_size,
    )
    training = Training(model, copy, optimizer, average, checkpoints, trainer, strategy, workdir)
    training.update_copy()
    return training


def _temporary_folder():
    """A folder for the log of a machine that keeps none; removed when the process ends."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _build_slope(config, objective):
    """Returns a function from labels and outputs to the slope of the loss, or None if there is none."""
    # A memory would add the batch a second time. The outputs of proxies are not embeddings.
    if config.train.memory_size or config.loss.name in PROXY_LOSSES:
        return None
    return lambda labels, outputs: loss_slope(
        lambda labels, asked: objective.loss(labels, (None, asked)), labels, outputs[1]
    )


def _build_average(train, model, optimizer, strategy):
    """Builds the average of the weights for evaluation and export; None if it is the weights themselves."""
    if not (train.weight_average or train.start_share):
        return None
    return WeightAverage(
        model,
        train.weight_average,
        share=train.start_share,
        iterations=optimizer.iterations,
        strategy=strategy,
    )


def _load_start(config, model, images):
    """Loads the initial weights of training into a model."""
    with checks.as_fields("model", ["weights", "backbone"]):
        load_backbone_weights(model, config.model.weights)
    if config.model.head != "pca":
        return
    rows = np.sort(np.random.default_rng(config.seed).permutation(len(images))[:PCA_IMAGES])
    print(f"The head begins as the PCA of the features of {len(rows):,} training images.", flush=True)
    function = inference.embed_fn(split_at_head(model)[0])
    initialize_head_with_pca(model, inference.embed_all(config, function, select(images, rows))[0])


def losses_to_judge(config: ConfigDict, workdir: str) -> list[float]:
    """The losses of a run's steps, by which it is judged whether the model learnt; none for some losses.

    A mean over pairs or triplets that violate a margin need not fall: those that still do stay as bad.
    """
    over_violators = config.loss.name == "tcm" or config.loss.get("average") == "nonzero"
    return [] if over_violators else read_losses(workdir)


def train(config: ConfigDict, training: Training, data: Data, steps: int) -> None:
    """Trains to the end, from the latest checkpoint if any; `training.serving` is then the result."""
    start = training.checkpoints.restore()
    if start:
        print(f"Going on from step {start:,}")
    batches, explain, embed_validation = _inputs(config, training, data, steps)

    def validate():
        training.update_copy()
        embeddings, labels = embed_validation()
        metrics = leave_one_out(embeddings, labels, sorted({1, *(config.evaluation.recall_at or DEFAULT_KS)}))
        picture = inference.draw_neighbors(config, embeddings, labels, data.validation)
        return ValidationResult(metrics, picture)

    training.trainer.fit(
        batches,
        steps=steps,
        checkpoint_every=config.train.checkpoint_every,
        log_every=config.train.log_every,
        explain=explain,
        evaluate=validate if is_chief(training.strategy) else None,
        evaluate_every=settings.evaluate_every(config, steps) if data.validation else 0,
        patience=config.train.patience,
        save_best=training.copy.save_weights,
        config=str(config),
    )
    print(training.trainer.report())
    training.update_copy()
    if data.validation:
        inference.load_best(training.copy, training.trainer.best_weights)


def _inputs(config, training, data, steps):
    """Returns `batches`, `explain` and a function that embeds the validation part.

    They read images, or stored features if the backbone is frozen.
    """
    if not config.train.frozen_backbone:
        batches, explain = build_batches(config, data.train, steps)
        function = inference.embed_fn(training.serving)
        return batches, explain, lambda: inference.embed_all(config, function, data.validation)
    # Copies the frozen weights exactly: in a resumed run their averages could differ in the last bit.
    for to, source in zip(training.copy.variables, training.model.variables):
        to.assign(source.value)
    features_of, head = split_at_head(training.copy)
    function, weights = inference.embed_fn(features_of), inference.fingerprint_of_weights(features_of)

    def store(index, part, views):
        folder = os.path.join(training.workdir, "features", part)
        return frozen_backbone.store_features(config, function, index, folder, views=views, weights=weights)

    train = store(data.train, "train", config.train.feature_views)
    validation = store(data.validation, "validation", 1) if data.validation else None
    batches = frozen_backbone.feature_batches(config, train, data.train, steps)
    return (
        batches,
        lambda step: None,
        lambda: frozen_backbone.embed_features(config, head, validation, data.validation),
    )


def load_trained(config: ConfigDict, workdir: str) -> keras.Model:
    """Loads the best weights of a run, or its latest checkpoint if it had no validation set."""
    check_model_of(workdir, config)
    model = build_model(config, any_size=settings.any_size(config))
    averaged = config.train.weight_average or config.train.start_share
    averages = averaged_variables(model) if averaged else []
    step = restore_model(os.path.join(workdir, "checkpoints"), model, averages)
    if not step:
        raise InputError(f"There is no checkpoint in {workdir} yet. Train it first, by train_main.py.")
    print(f"Checkpoint of step {step:,}")
    inference.load_best(model, best_weights_of(workdir))
    return concatenate_embeddings(model)
