"""The composition root: from a config to the parts of a run, for both mains."""

import dataclasses
import json
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
from tfrank.data.sampling import ClassBalancedSampler
from tfrank.data.sources.digits import read_digits
from tfrank.data.sources.omniglot import read_omniglot
from tfrank.evaluation import neighbors, report
from tfrank.evaluation.embed import embed
from tfrank.evaluation.protocols import leave_one_out
from tfrank.export.saved_model import export_saved_model
from tfrank.models.embedding import embedding_model
from tfrank.models.preprocessing import preprocess
from tfrank.training.checkpoints import Checkpoints
from tfrank.training.optimizers import build_optimizer
from tfrank.training.step import build_step
from tfrank.training.strategy import build_strategy
from tfrank.training.trainer import Trainer

# What a resumed run may change: how long it goes on, what it prints, how many devices it has.
# And the path of the source, since the records are compared by content.
CHANGEABLE = ("data.source", "train.steps", "train.epochs", "train.log_every", "train.strategy")
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


def default_workdir(config: ConfigDict) -> str:
    """Where a run goes that was given no folder."""
    return os.path.join("runs", f"{config.name}_{config.loss.name}")


def build_data(config: ConfigDict, workdir: str) -> Data:
    """The records of the config's data set, written to `workdir/records` where they are not there yet."""
    folder = files.make_folder(os.path.join(workdir, "records"))
    train, test = (_records(config.data, folder, split) for split in ("train", "test"))
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
    checks.integer("config.data.validation_classes", count, at_least=0)
    if not count:
        return index, None
    classes = np.random.default_rng(seed).permutation(np.unique(index.label))
    if count >= len(classes):
        raise InputError(
            f"config.data.validation_classes={count} leaves none of the {len(classes)} classes to train on."
        )
    return select_classes(index, classes[count:]), select_classes(index, classes[:count])


def check_workdir(config: ConfigDict, workdir: str, data: Data) -> None:
    """Saves config and record fingerprints in a new workdir; in one that has them, they must agree."""
    path = _config_path(workdir)
    now = {
        "config": json.loads(config.to_json()),
        "records": {"train": data.train.fingerprint(), "test": data.test.fingerprint()},
    }
    if os.path.exists(path):
        with open(path) as file:
            before = json.load(file)
        if before["records"] != now["records"]:
            raise InputError(
                f"The records in {workdir} changed since this run began. Choose another --workdir."
            )
        _check_same(before["config"], now["config"], workdir, lambda key: key not in CHANGEABLE)
    with files.atomic_write(path, "w") as file:
        json.dump(now, file, indent=2)


def _config_path(workdir: str) -> str:
    return os.path.join(workdir, "config.json")


def _check_same(before: dict, now: dict, workdir: str, matters: Callable[[str], bool]) -> None:
    """InputError that names the fields that matter and differ."""
    before, now = _flat(before), _flat(now)
    changed = [
        f"{key}: {before.get(key)!r} before, {now.get(key)!r} now"
        for key in sorted(before | now)
        if before.get(key) != now.get(key) and matters(key)
    ]
    if changed:
        raise InputError(
            f"The run in {workdir} has another config ({'; '.join(changed)})."
            " Choose another --workdir, or the same config."
        )


def _flat(tree: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def total_steps(config: ConfigDict, num_images: int) -> int:
    """The steps of the run; an epoch is as many images as the training part has."""
    batch_size = config.data.classes_per_batch * config.data.examples_per_class
    steps, epochs = config.train.steps, config.train.epochs
    if (steps > 0) == (epochs > 0):
        raise InputError(
            "Give one of config.train.steps and config.train.epochs."
            f" Received: steps={steps}, epochs={epochs}"
        )
    steps = steps or max(1, round(epochs * num_images / batch_size))
    print(f"{steps:,} steps of {batch_size} images = {steps * batch_size / num_images:.1f} epochs")
    return steps


def build_model(config: ConfigDict) -> keras.Model:
    """The embedding model, its weights random by the config's seed."""
    keras.utils.set_random_seed(config.seed)
    return embedding_model(image_size=config.data.image_size, **config.model)


def build_loss(config: ConfigDict) -> losses.RankingLoss:
    """The loss; a field that it does not have, or a wrong value, is reported by its config name."""
    fields = dict(config.loss)
    loss_class = losses.LOSSES[checks.one_of("config.loss.name", fields.pop("name"), losses.LOSSES)]
    known = loss_class().hyper_parameters
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
    batch_size = config.data.classes_per_batch * config.data.examples_per_class
    strategy = build_strategy(config.train.strategy, batch_size)
    with strategy.scope():
        model = build_model(config)
        loss = build_loss(config)
        optimizer = build_optimizer(
            learning_rate=config.train.learning_rate, decoupled=config.train.decoupled
        )
        optimizer.build(model.trainable_variables)
    l2 = checks.number("config.train.l2", config.train.l2, at_least=0)
    checkpoints = Checkpoints(os.path.join(workdir, "checkpoints"), model, optimizer)
    trainer = Trainer(
        workdir,
        model=model,
        step=build_step(model, loss, optimizer, strategy=strategy, l2=l2),
        checkpoints=checkpoints,
        strategy=strategy,
        batch_size=batch_size,
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

    def validate():
        return evaluate(config, embed_fn(training.model), data.validation)["recall_at_1"]

    training.trainer.fit(
        batches,
        steps=steps,
        checkpoint_every=checks.integer(
            "config.train.checkpoint_every", config.train.checkpoint_every, at_least=1
        ),
        log_every=checks.integer("config.train.log_every", config.train.log_every, at_least=1),
        explain=lambda step: pipeline.check_batch(reader, sampler.batch(step), size),
        evaluate=validate if data.validation else None,
        evaluate_every=checks.integer("config.train.evaluate_every", config.train.evaluate_every, at_least=1),
    )
    load_best(training)


def load_trained(config: ConfigDict, workdir: str) -> keras.Model:
    """The model of a workdir's best weights, or of its latest checkpoint where none were held out for."""
    if not os.path.exists(_config_path(workdir)):
        raise InputError(
            f"There is no run in {workdir}. Train one first, or give --workdir or --saved_model."
        )
    with open(_config_path(workdir)) as file:
        before = json.load(file)["config"]
    now = json.loads(config.to_json())
    _check_same(
        before, now, workdir, lambda key: key.startswith(("data.", "model.")) and key != "data.source"
    )
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
    except (OSError, KeyError, tf.errors.OpError) as error:
        raise InputError(f"{folder} is not a SavedModel of an embedding model ({error}).") from None


def load_best(training: Training) -> None:
    """Loads the weights that did best on the validation part, where there is one."""
    path = training.trainer.best_weights
    if os.path.exists(path):
        training.model.load_weights(path)
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
