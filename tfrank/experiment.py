"""The composition root: from a config to the parts of a run, for both mains."""

import dataclasses
import os
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from tfrank import checks, files, losses
from tfrank.checks import InputError, did_you_mean
from tfrank.data import images, pipeline, records
from tfrank.data.index import RecordIndex, select_classes
from tfrank.data.sampling import SHORT_CLASSES, ClassBalancedSampler
from tfrank.data.sources.digits import read_digits
from tfrank.data.sources.omniglot import read_omniglot
from tfrank.evaluation import neighbors, report
from tfrank.evaluation.embed import embed
from tfrank.evaluation.protocols import leave_one_out
from tfrank.export.saved_model import export_saved_model
from tfrank.models.embedding import embedding_model
from tfrank.models.preprocessing import MODES as PREPROCESSINGS
from tfrank.models.preprocessing import preprocess
from tfrank.training.checkpoints import Checkpoints
from tfrank.training.optimizers import build_optimizer
from tfrank.training.step import build_step
from tfrank.training.strategy import build_strategy
from tfrank.training.trainer import Trainer
from tfrank.workdir import check_model_of, check_records_of, flatten

# The least value of every field that is a whole number.
LEAST = {
    "seed": 0,
    "data.validation_classes": 0,
    "data.shards": 1,
    "data.image_size": 1,
    "data.classes_per_batch": 2,
    "data.examples_per_class": 2,
    "data.max_shift": 0,
    "model.blocks": 1,
    "model.filters": 1,
    "model.embedding_dim": 1,
    "train.steps": 0,
    "train.micro_batch_size": 0,
    "train.checkpoint_every": 1,
    "train.evaluate_every": 1,
    "train.log_every": 1,
    "evaluation.batch_size": 1,
}
GRID_QUERIES, GRID_NEIGHBORS = 8, 8


@dataclasses.dataclass(frozen=True)
class Data:
    """The records of a run; `validation` is None where no classes are held out."""

    train: RecordIndex
    validation: RecordIndex | None
    test: RecordIndex


@dataclasses.dataclass(frozen=True)
class Training:
    """What takes part in training."""

    model: keras.Model
    checkpoints: Checkpoints
    trainer: Trainer


def check_config(config: ConfigDict) -> None:
    """InputError for the first field out of its range, before anything is written."""
    flat = flatten(config.to_dict())
    for field, least in LEAST.items():
        checks.integer(f"config.{field}", flat[field], at_least=least)
    for field in ("train.epochs", "train.l2", "train.decoupled"):
        checks.number(f"config.{field}", flat[field], at_least=0)
    if config.seed >= 2**32:
        raise checks.invalid("config.seed", "an integer below 2^32", config.seed)
    common = sorted(set(config.data.train) & set(config.data.test))
    if common:
        raise InputError(
            f"config.data.train and config.data.test have {common} in common; test on unseen classes."
        )
    checks.number("config.train.learning_rate", config.train.learning_rate, above=0)
    checks.one_of("config.data.short_classes", config.data.short_classes, SHORT_CLASSES)
    checks.one_of("config.model.preprocessing", config.model.preprocessing, PREPROCESSINGS)
    if not config.evaluation.recall_at:
        raise checks.invalid("config.evaluation.recall_at", "at least one K", config.evaluation.recall_at)
    for k in config.evaluation.recall_at:
        checks.integer("config.evaluation.recall_at", k, at_least=1)
    build_loss(config)


def build_data(config: ConfigDict, workdir: str) -> Data:
    """The records of the config's data set, written to `workdir/records` where they are not there yet."""
    folder = files.make_folder(os.path.join(workdir, "records"))
    train, test = (_records(config.data, folder, split) for split in ("train", "test"))
    check_records_of(workdir, {"train": train.fingerprint(), "test": test.fingerprint()})
    train, validation = _hold_out(train, config.data.validation_classes, config.seed)
    for name, index in (("train", train), ("validation", validation), ("test", test)):
        if index:
            print(f"{name}: {len(index):,} images of {index.num_classes:,} classes")
    return Data(train, validation, test)


def _records(data: ConfigDict, folder: str, split: str) -> RecordIndex:
    index = records.open_index(folder, split)
    if index:
        return index
    classes = data[split]
    if data.name == "digits":
        # Five classes are few to learn a metric from: turned and mirrored they are forty.
        source = read_digits(classes, turned=split == "train")
    elif data.name == "omniglot":
        source = read_omniglot(data.source, classes)
    else:
        raise checks.invalid("config.data.name", "'digits' or 'omniglot'", data.name)
    return records.write_records(source, folder, split, num_shards=data.shards)


def _hold_out(index: RecordIndex, count: int, seed: int) -> tuple[RecordIndex, RecordIndex | None]:
    """The training part and a class-disjoint validation part of `count` random classes."""
    if not count:
        return index, None
    classes = np.random.default_rng(seed).permutation(np.unique(index.label))
    if count >= len(classes):
        raise InputError(
            f"config.data.validation_classes={count} leaves none of the {len(classes)} classes to train on."
        )
    return select_classes(index, classes[count:]), select_classes(index, classes[:count])


def total_steps(config: ConfigDict, num_images: int) -> int:
    """The steps of the run; an epoch is as many images as the training part has."""
    batch_size = _batch_size(config)
    steps, epochs = config.train.steps, config.train.epochs
    if (steps > 0) == (epochs > 0):
        raise InputError(
            "Give one of config.train.steps and config.train.epochs."
            f" Received: steps={steps}, epochs={epochs}"
        )
    steps = steps or max(1, round(epochs * num_images / batch_size))
    print(f"{steps:,} steps of {batch_size} images = {steps * batch_size / num_images:.1f} epochs")
    return steps


def _batch_size(config):
    return config.data.classes_per_batch * config.data.examples_per_class


def build_model(config: ConfigDict) -> keras.Model:
    """The embedding model, its weights random by the config's seed."""
    keras.utils.set_random_seed(config.seed)
    return embedding_model(image_size=config.data.image_size, **config.model)


def build_loss(config: ConfigDict) -> losses.RankingLoss:
    """The loss; a field that it does not have is reported with those that it has."""
    fields = dict(config.loss)
    loss_class = losses.LOSSES[checks.one_of("config.loss.name", fields.pop("name"), losses.LOSSES)]
    known = [field for field in loss_class().get_config() if field not in ("name", "reduction")]
    for field in fields:
        if field not in known:
            raise InputError(
                f"Loss {config.loss.name!r} has no field {field!r}.{did_you_mean(field, known)}"
                f" Its fields are {', '.join(known)}."
                f" Choose a loss with its fields by --config=FILE.py:{config.loss.name}"
            )
    return loss_class(**fields)


def build_training(config: ConfigDict, workdir: str) -> Training:
    """Model, optimizer, checkpoints and trainer, in the scope of the config's strategy."""
    batch_size, micro_batch_size = _batch_size(config), config.train.micro_batch_size
    strategy = build_strategy(config.train.strategy, batch_size)
    share = batch_size // strategy.num_replicas_in_sync
    if micro_batch_size and share % micro_batch_size:
        raise checks.invalid(
            "config.train.micro_batch_size", f"a divisor of a device's {share} images", micro_batch_size
        )
    with strategy.scope():
        model = build_model(config)
        loss = build_loss(config)
        optimizer = build_optimizer(
            learning_rate=config.train.learning_rate, decoupled=config.train.decoupled
        )
        optimizer.build(model.trainable_variables)
        loss.iteration = optimizer.iterations
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), model, optimizer, loss.variables)
    trainer = Trainer(
        workdir,
        model=model,
        step=build_step(
            model,
            loss,
            optimizer,
            strategy=strategy,
            l2=config.train.l2,
            micro_batch_size=micro_batch_size,
        ),
        checkpoints=checkpoints,
        strategy=strategy,
        batch_size=batch_size,
        images_on_host=micro_batch_size > 0,
    )
    return Training(model, checkpoints, trainer)


def train(config: ConfigDict, training: Training, data: Data) -> None:
    """Trains to the end, from wherever the checkpoint is; the model is then the one to be used."""
    steps = total_steps(config, len(data.train))
    start = training.checkpoints.restore()
    if start:
        print(f"Going on from step {start:,}")
    reader = records.RecordReader(data.train)
    sampler = ClassBalancedSampler(
        data.train.label,
        classes_per_batch=config.data.classes_per_batch,
        examples_per_class=config.data.examples_per_class,
        short_classes=config.data.short_classes,
        seed=config.seed,
    )
    size = config.data.image_size

    def batches(start):
        return pipeline.train_batches(
            reader, sampler, image_size=size, max_shift=config.data.max_shift, start=start, stop=steps
        )

    model = embed_fn(training.model)

    def validate():
        embeddings, labels = embed_all(config, model, data.validation)
        return leave_one_out(embeddings, labels, [1])["recall_at_1"]

    training.trainer.fit(
        batches,
        steps=steps,
        checkpoint_every=config.train.checkpoint_every,
        log_every=config.train.log_every,
        explain=lambda step: pipeline.check_batch(reader, sampler.batch(step), size),
        evaluate=validate if data.validation else None,
        evaluate_every=config.train.evaluate_every,
    )
    load_best(training)


def load_trained(config: ConfigDict, workdir: str) -> keras.Model:
    """The model of a workdir's best weights, or of its latest checkpoint where none were held out for."""
    check_model_of(workdir, config)
    training = build_training(config, workdir)
    step = training.checkpoints.restore()
    if not step:
        raise InputError(f"There is no checkpoint in {workdir} yet.")
    print(f"Checkpoint of step {step:,}")
    load_best(training)
    return training.model


def load_saved_model(folder: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """The `serving_default` signature of a SavedModel as an embedding function."""
    try:
        signature = tf.saved_model.load(folder).signatures["serving_default"]
        return lambda batch: signature(images=batch)["embedding"]
    except (OSError, KeyError, IndexError, ValueError, tf.errors.OpError) as error:
        raise InputError(f"{folder} is not a SavedModel of an embedding model ({error}).") from None


def load_best(training: Training) -> None:
    """Loads the weights that did best on the validation part, where there is one."""
    path = training.trainer.best_weights
    if os.path.exists(path):
        try:
            training.model.load_weights(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is damaged ({error}). Delete it to use the last weights.") from None
        best = float(training.checkpoints.best)
        print(f"Best weights on the validation classes: {path} (Recall@1 {best:.4f})")


def embed_fn(model: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """From images to embeddings, compiled, in inference mode."""
    return tf.function(lambda batch: model(batch, training=False), reduce_retracing=True)


def raw_pixels(config: ConfigDict) -> Callable[[tf.Tensor], tf.Tensor]:
    """The embedding to be better than: the preprocessed image itself."""
    return lambda batch: tf.reshape(preprocess(batch, config.model.preprocessing), [len(batch), -1])


def embed_all(
    config: ConfigDict, function: Callable[[tf.Tensor], tf.Tensor], index: RecordIndex
) -> tuple[np.ndarray, np.ndarray]:
    """Unit-norm embeddings and labels of all records of an index."""
    return embed(function, _all_images(config, index), total=len(index), ids=index.id)


def _all_images(config, index):
    reader, size = records.RecordReader(index), config.data.image_size
    batches = pipeline.evaluation_batches(reader, batch_size=config.evaluation.batch_size, image_size=size)
    return pipeline.naming_bad_images(reader, batches, size)


def evaluate(
    config: ConfigDict, function: Callable[[tf.Tensor], tf.Tensor], index: RecordIndex, search: str = "exact"
) -> dict[str, float]:
    """The metrics of an embedding function on the records of an index."""
    return measure(config, *embed_all(config, function, index), search)


def measure(
    config: ConfigDict, embeddings: np.ndarray, labels: np.ndarray, search: str = "exact"
) -> dict[str, float]:
    """The metrics of embeddings, each image in turn being the query."""
    return leave_one_out(embeddings, labels, config.evaluation.recall_at, neighbors=search)


def draw_neighbors(
    config: ConfigDict, embeddings: np.ndarray, labels: np.ndarray, index: RecordIndex, path: str
) -> None:
    """A picture of some images of an index and their nearest neighbours, by their embeddings."""
    queries = np.random.default_rng(config.seed).permutation(len(labels))[:GRID_QUERIES]
    nearest = neighbors.exact(embeddings[queries], embeddings, GRID_NEIGHBORS, queries).index
    reader = records.RecordReader(index)

    def image_of(number):
        return images.decode_record(reader.read([number])[0], config.data.image_size)["image"].numpy()

    def class_of(number):
        return records.class_text(reader.read([number])[0]) or f"class {labels[number]}"

    report.neighbor_grid(path, image_of, queries, nearest, labels, class_of)


def export(config: ConfigDict, model: keras.Model, folder: str) -> None:
    """The SavedModel; its `encoded` signature decodes as training did."""
    export_saved_model(model, folder, lambda encoded: images.decode_image(encoded, config.data.image_size))
