"""Builds the parts of a run from its config, for training and evaluation."""

import atexit
import functools
import json
import os
import shutil
import tempfile
import types
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.common.normalize import side_by_side
from tfrank.configs.default import Config
from tfrank.configs.fields import tree
from tfrank.configs.sections import Model, Train
from tfrank.data.index import RecordIndex
from tfrank.evaluation.ranking_results import leave_one_out
from tfrank.evaluation.retrieval_metrics import DEFAULT_KS
from tfrank.losses.core.batch_statistics import batch_statistics, loss_slope
from tfrank.losses.proxies import PROXY_LOSSES
from tfrank.models.blocks import layer_multipliers, recompute_blocks
from tfrank.models.embedding import (
    concatenate_embeddings,
    embedding_model,
    resolve_options,
)
from tfrank.models.hub_sizes import PREFIX
from tfrank.models.vector_model import vector_model
from tfrank.models.weights import check_exists
from tfrank.run import frozen_backbone, settings
from tfrank.run.datasets import Data, build_batches, build_loader, test_size
from tfrank.run.embedding import embed_all, embed_fn
from tfrank.run.objective import build_loss, build_objective, check_others
from tfrank.run.parts import Training, assign
from tfrank.run.pictures import draw_neighbors
from tfrank.run.start import load_start, sentence_on_head, turn_head
from tfrank.run.tracking import trackers_of
from tfrank.run.workdir import check_model_of, check_path
from tfrank.training import strategy as strategies
from tfrank.training.averaging import WeightAverage, averaged_variables
from tfrank.training.checkpoints import Checkpoints, replace_weights, restore_model, saved_checkpoints
from tfrank.training.cluster import is_chief
from tfrank.training.log import BatchStatistics
from tfrank.training.optimizers import build_optimizer, check_names
from tfrank.training.schedules import build_schedule
from tfrank.training.step import build_step
from tfrank.training.trackers import Tracker, check_installed
from tfrank.training.trainer import Trainer, ValidationResult, best_weights_of

# Config fields of those arguments of the schedule and the optimizer that have another name.
OPTIMIZER_FIELDS = types.MappingProxyType(
    {"boundaries": "schedule_steps", "factor": "schedule_factor", "multipliers": "learning_rate_multipliers"}
)


def check_config(config: Config) -> None:
    """Raises InputError for the first field out of its range, before anything is written."""
    settings.check_fields(config)
    data, model, train = config.data, config.model, config.train
    with checks.as_fields("data", data.as_dict(), size="image_size"):
        build_loader(data)
    options = ("backbone", "preprocessing", "pooling", "levels", "batch_norm")
    if not model.takes_vectors:
        with checks.as_fields("model", options):
            chosen = resolve_options(**{name: getattr(model, name) for name in options})
        settings.check_test_size(config, pooling=chosen["pooling"])
    build_loss(config.loss, labels=[0], dims=train.matryoshka, memory_size=train.memory_size)
    check_others(config)
    frozen_backbone.check_frozen(train, model, dry_run=config.dry_run)
    with checks.as_fields("train", ["trackers"]):
        check_installed(train.trackers)
    multipliers = _own_multipliers(train, config.loss.name)
    _build_optimizer(train, max(1, train.steps, train.warmup_steps), multipliers)


def check_start(model: Model, workdir: str, *, baselines: bool) -> None:
    """Raises InputError if the workdir is unusable or the pretrained weights to load do not exist.

    Called before any data is read.
    """
    check_path(workdir)
    if not saved_checkpoints(os.path.join(workdir, "checkpoints")) or baselines:
        with checks.as_fields("model", ["weights", "backbone"]):
            check_exists(model.weights, model.backbone)


def build_model(config: Config, *, for_tests: bool = False) -> keras.Model:
    """Builds the embedding model, with random weights by the seed, for the images of training or of tests."""
    keras.utils.set_random_seed(config.seed)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(config.train.precision)
    try:
        fields = config.model.as_dict()
        if config.model.takes_vectors:
            options = {name: fields[name] for name in ("hidden", "head", "embedding_dim")}
            with checks.as_fields("model", options):
                return vector_model(input_dim=config.data.dim, **options)
        del fields["hidden"]
        if fields.pop("weights") == "random" and fields["batch_norm"] in ("auto", "statistics"):
            # Random weights have no useful batch-norm statistics, so they must be trained.
            fields["batch_norm"] = "trained"
        with checks.as_fields("model", fields), checks.as_fields("data", ["image_size"]):
            size = _test_side(config) if for_tests else config.data.image_size
            return embedding_model(image_size=size, **fields)
    finally:
        keras.config.set_dtype_policy(before)


def _test_side(config):
    """The side of the images of tests, in pixels; None if they are of any size."""
    return None if config.evaluation.any_size else test_size(config.data, config.evaluation)


def build_strategy(train: Train, batch_size: int) -> tf.distribute.Strategy:
    """Builds the strategy of the training devices and sets determinism and TF32.

    Call it before anything else makes TensorFlow use a device.
    """
    if train.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(train.tf32)
    with checks.as_fields("train", ["strategy"]):
        return strategies.build_strategy(train.strategy, batch_size)


def build_evaluation_strategy(train: Train) -> tf.distribute.Strategy:
    """Builds the strategy of the devices that embed: the training devices of this machine."""
    name = "mirrored" if train.strategy == "multi_worker" else train.strategy
    return strategies.build_strategy(name, batch_size=0)


def _build_optimizer(train: Train, steps: int, multipliers: dict[str, float]) -> keras.optimizers.Optimizer:
    with checks.as_fields("train", train.as_dict(), **OPTIMIZER_FIELDS):
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
            multipliers=multipliers,
        )
    return keras.optimizers.LossScaleOptimizer(optimizer) if train.precision == "mixed_float16" else optimizer


def _own_multipliers(train: Train, loss: str) -> dict[str, float]:
    """Returns learning-rate multipliers by names of variables, without those of blocks."""
    has_proxies = loss in PROXY_LOSSES or train.class_loss_weight
    of_proxies = {"proxies": train.proxy_multiplier} if has_proxies else {}
    return of_proxies | train.learning_rate_multipliers.to_dict()


def _multipliers(config: Config, model: keras.Model) -> dict[str, float]:
    """Returns learning-rate multipliers by names of variables, also those of blocks."""
    own, decay = _own_multipliers(config.train, config.loss.name), config.train.layer_decay
    return (layer_multipliers(_backbone_of(model, config.model.backbone), decay) if decay < 1 else {}) | own


def _backbone_of(model: keras.Model, backbone: str) -> keras.Layer:
    """Returns the vision transformer in a model."""
    return model.get_layer(backbone.removeprefix(PREFIX))


def build_training(
    config: Config,
    workdir: str,
    strategy: tf.distribute.Strategy,
    steps: int,
    images: RecordIndex,
    stored: Mapping[str, np.ndarray] = types.MappingProxyType({}),
    trackers: Sequence[Tracker] | None = None,
) -> Training:
    """Builds model, loss, optimizer, checkpoints and trainer of a run of `steps` steps on `images`.

    `stored` has embeddings of the images by other models, see `other_models`. Trackers are the config's if
    none are given.
    """
    train, batch_size = config.train, config.data.batch_size
    settings.check_memory(train, batch_size, steps)
    strategies.check_divides(batch_size, strategy)
    folder = os.path.join(workdir, "checkpoints")
    copy = build_model(config)
    # A resumed run needs the initial weights too if they are measured as a baseline.
    if not saved_checkpoints(folder) or config.evaluation.baselines:
        load_start(config, copy, images, workdir, stored)
    with strategy.scope():
        model = _trained_model(config, copy)
        optimizer = _build_optimizer(train, steps, _multipliers(config, model))
        part = frozen_backbone.split(config, model)[1] if train.is_partly_frozen else model
        objective = build_objective(config, part, images.label, optimizer.iterations, images.category)
        with checks.as_fields("train", ["no_decay"], **OPTIMIZER_FIELDS):
            check_names(objective.model.variables, train.no_decay, "no_decay")
            optimizer.build(objective.model.trainable_variables)
        average = _build_average(train, model, optimizer, strategy)
    step = build_step(
        *(objective.model, objective.loss, optimizer),
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
        *(folder, model, optimizer),
        [*objective.state, *(average.start if average else [])],
        average.variables if average else [],
        writes=chief,
    )
    trainer = Trainer(
        workdir if chief else _temporary_folder(),
        model=objective.model,
        step=step,
        summary=lambda labels, outputs: BatchStatistics(**batch_statistics(labels, side_by_side(outputs[0]))),
        slope=_build_slope(objective) if _has_slope(train, config.loss.name) else None,
        checkpoints=checkpoints,
        strategy=strategy,
        batch_size=batch_size,
        micro_batch_size=train.micro_batch_size,
        trackers=trackers_of(config, workdir, chief=chief) if trackers is None else trackers,
        advice=settings.advice_without_pairs(config.data),
    )
    models = (model, copy, _tested_model(config, copy))
    training = Training(*models, optimizer, average, checkpoints, trainer, strategy, workdir)
    training.update_copy()
    return training


def _trained_model(config: Config, start: keras.Model) -> keras.Model:
    """Returns a model for training, with the weights of another one."""
    model = build_model(config)
    if config.train.recompute:
        recompute_blocks(_backbone_of(model, config.model.backbone))
    assign(model, start)
    return model


def _tested_model(config: Config, copy: keras.Model) -> keras.Model:
    """Returns a model for the images of tests: the copy of the trained one if they are of the same size."""
    if config.data.of_vectors or _test_side(config) == config.data.image_size:
        return copy
    return build_model(config, for_tests=True)


def _temporary_folder():
    """A folder for the log of a machine that keeps none; removed when the process ends."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _has_slope(train: Train, loss: str) -> bool:
    """Whether the slope of the loss can be measured."""
    # A memory would add the batch a second time. The outputs of proxies are not embeddings.
    return bool(train.loss_weight) and not train.memory_size and loss not in PROXY_LOSSES


def _build_slope(objective):
    """Returns a function from labels and outputs to the slope of the loss."""
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


def train(config: Config, training: Training, data: Data, steps: int) -> None:
    """Trains to the end, from the latest checkpoint if any; `training.serving` is then the result."""
    start = training.checkpoints.restore()
    if start:
        print(f"Going on from step {start:,}")
    batches, explain, embed_validation = _inputs(config, training, data, steps)

    def validate():
        training.update_copy()
        embeddings, labels = embed_validation()
        metrics = leave_one_out(embeddings, labels, sorted({1, *(config.evaluation.recall_at or DEFAULT_KS)}))
        picture = draw_neighbors(config.data, embeddings, labels, data.validation, seed=config.seed)
        return ValidationResult(metrics, picture)

    with checks.as_fields("train", ["trackers"]):
        training.trainer.fit(
            batches,
            steps=steps,
            checkpoint_every=config.train.checkpoint_every,
            log_every=config.train.log_every,
            explain=explain,
            evaluate=validate if is_chief(training.strategy) else None,
            evaluate_every=settings.evaluate_every(config.train, steps) if data.validation else 0,
            patience=config.train.patience,
            save_best=training.copy.save_weights,
            config=json.dumps(tree(config), indent=2),
        )
    print(training.trainer.report())
    training.update_copy()
    if data.validation:
        load_best(training.copy, training.trainer.best_weights)
    if config.train.frozen_until and config.model.head == "whitened":
        # Not of those held out: from them it is learnt what a match is.
        teacher = data.stored["teacher"] if config.train.learns_teachers_space else None
        print(sentence_on_head(teacher, len(data.train), "trained features"))
        frozen_backbone.fit_head(config, training.copy, training.workdir, data.train, teacher)
        if config.train.compatible_with:
            turn_head(config, training.copy, data.train, data.stored["compatible_with"])
        best, copy = best_weights_of(training.workdir), training.copy
        replace_weights(best, copy.save_weights, copy.variables)
    training.update_tested()


def _inputs(config: Config, training: Training, data: Data, steps: int):
    """Returns `batches`, `explain` and a function that embeds the validation part, None without one.

    They read images, or stored features if the backbone is frozen.
    """
    if not config.train.is_partly_frozen:
        batches, explain = build_batches(config.data, data.train, steps, seed=config.seed, stored=data.stored)
        if data.validation is None:
            return batches, explain, None
        function = embed_fn(training.serving)
        embed = functools.partial(embed_all, config.data, config.evaluation, function, data.validation)
        return batches, explain, embed
    # Copies the frozen weights exactly: in a resumed run their averages could differ in the last bit.
    for to, source in zip(training.copy.variables, training.model.variables):
        to.assign(source.value)
    return frozen_backbone.build_inputs(config, training.copy, training.workdir, data, steps)


def load_best(model: keras.Model, path: str) -> None:
    """Loads the best weights on the validation part, if the file exists."""
    if os.path.exists(path):
        try:
            model.load_weights(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is damaged ({error}). Delete it to use the last weights.") from None
        print(f"Best weights on the validation classes: {path}")


def load_trained(config: Config, workdir: str) -> keras.Model:
    """Loads the best weights of a run, or its latest checkpoint if it had no validation set."""
    train = config.train
    check_model_of(workdir, config.model)
    model = build_model(config, for_tests=True)
    averaged = train.weight_average or train.start_share
    averages = averaged_variables(model) if averaged else []
    step = restore_model(os.path.join(workdir, "checkpoints"), model, averages)
    if not step:
        raise InputError(f"There is no checkpoint in {workdir} yet. Train it first, by train_main.py.")
    print(f"Checkpoint of step {step:,}")
    load_best(model, best_weights_of(workdir))
    return concatenate_embeddings(model)
