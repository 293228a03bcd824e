"""The objective of a run: the losses of each embedding, with their proxies and memories."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfrank import losses
from tfrank.common import checks, ignore_labels
from tfrank.common.checks import InputError, did_you_mean
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.configs.default import Config
from tfrank.configs.fields import OPEN
from tfrank.configs.sections import Data
from tfrank.losses.proxies import PROXY_LOSSES, ProxyLoss, SampledProxyLoss


@dataclasses.dataclass(frozen=True)
class Objective:
    """A model and its losses.

    Attributes:
        model: maps images to (embeddings, inputs of the losses). It is the embedding model, followed by
            layers of proxies or boundaries if the losses learn them.
        losses: the loss of each embedding, then its additional class loss if there is one.
        weights: the weight of each of them.
        state: variables other than the embedding model's, for checkpoints: proxies and memories.
        class_weights: the training labels, `[classes]` int64 ascending, and the weight of an image of each,
            `[classes]` float32; None if all images weigh the same.
        against: losses of the embedding and that of another model, with their weights, by the name under
            which a batch has the latter; see `other_models`.
        unlabelled: whether there are images without a class, whose labels are below `UNKNOWN`, as
            `datasets.build_data` gives them. They count in the losses against other models alone.
    """

    model: keras.Model
    losses: list[keras.losses.Loss]
    weights: list[float]
    state: list[tf.Variable]
    class_weights: tuple[np.ndarray, np.ndarray] | None = None
    against: Mapping[str, list[tuple[float, Any]]] = dataclasses.field(default_factory=dict)
    unlabelled: bool = False

    def loss(self, labels: tf.Tensor, outputs: tuple[Any, Any], **others: tf.Tensor) -> tf.Tensor:
        """Returns the weighted sum of the losses of all embeddings, also against those of other models."""
        of_images = self._weights_of(labels)
        of_classes = tf.maximum(labels, UNKNOWN) if self.unlabelled else labels
        asked = zip(self.weights, self.losses, outputs[1])
        parts = [weight * loss(of_classes, output, of_images) for weight, loss, output in asked]
        for name, rows in others.items():
            for weight, loss in self.against[name]:
                parts.append(weight * loss.against(labels, outputs[0][0], rows, of_images))
        return tf.add_n(parts)

    def _weights_of(self, labels):
        """Returns the weight of each image, 1 for one without a class; None if all weigh the same."""
        if self.class_weights is None:
            return None
        classes, of_classes = map(tf.constant, self.class_weights)
        labels = tf.cast(labels, tf.int64)
        place = tf.minimum(tf.searchsorted(classes, labels), tf.size(classes) - 1)
        return tf.where(tf.gather(classes, place) == labels, tf.gather(of_classes, place), 1.0)


def build_objective(
    config: Config,
    model: keras.Model,
    labels: Iterable[int],
    iterations: keras.Variable,
    categories: np.ndarray | None = None,
) -> Objective:
    """Builds the objective of an embedding model. Call it in the scope of the strategy.

    Args:
        config: config of the run.
        model: embedding model with one or several embeddings.
        labels: labels of the training images. With a teacher, those below `UNKNOWN` are no classes.
        iterations: counter of the training steps.
        categories: `[images]` int64, their categories, -1 for none; only Hierarchical AP needs them.
    """
    train = config.train
    dims = train.matryoshka
    every = np.asarray(labels, np.int64)
    unlabelled = bool(train.teacher) and every.min() < UNKNOWN
    of_classes = np.maximum(every, UNKNOWN) if unlabelled else every
    if (of_classes == UNKNOWN).all() and (train.class_loss_weight or config.loss.name in PROXY_LOSSES):
        raise InputError(
            "No training image has a class, so there is none to learn a proxy of. Set"
            " config.train.class_loss_weight=0, and take a loss without proxies, such as"
            " --config=FILE.py:pnp"
        )
    ignored = {"ignore_label": UNKNOWN} if unlabelled else {}
    around: dict[str, Any] = {
        "dims": dims,
        **ignored,
        "memory_size": train.memory_size,
        "memory_warm_up": train.memory_warm_up,
    }
    parts: list[Any] = [build_loss(config.loss, of_classes, categories, **around) for _ in model.outputs]
    outputs, weights = model.outputs, [train.loss_weight]
    if weight := train.class_loss_weight:
        parts += [
            _of_dims(losses.get("normalized_softmax", labels=of_classes, **ignored), dims)
            for _ in model.outputs
        ]
        outputs, weights = outputs * 2, [*weights, weight]
    if train.proxy_sample < 1:
        sampled = functools.partial(_sampled, share=train.proxy_sample, data=config.data, seed=config.seed)
        parts = [sampled(loss) for loss in parts]
    against = _against_others(config, every, categories)
    of_others = [loss for pairs in against.values() for _, loss in pairs]
    for loss in (*parts, *of_others):
        loss.iteration = iterations
        loss.warns = False  # The trainer warns instead.
    # Different seeds, so that the proxies of each embedding start differently.
    seeds = [(config.seed + place) % 2**32 for place in range(len(parts))]
    heads = [_head(loss, seed) for loss, seed in zip(parts, seeds)]
    asked = [head(output) if head else output for head, output in zip(heads, outputs)]
    state = [variable for loss in (*parts, *of_others) for variable in loss.variables]
    state += [variable.value for head in heads if head for variable in head.variables]
    weights = [weight for weight in weights for _ in model.outputs]
    training = keras.Model(model.inputs, (model.outputs, asked))
    known = every[every == of_classes]
    balanced = _class_weights(known) if train.class_weights and known.size else None
    return Objective(training, parts, weights, state, balanced, against, unlabelled)


def check_others(config: Config) -> None:
    """Raises InputError if the model cannot learn from other models as the config says."""
    train, loss = config.train, config.loss
    ranks = loss.name in losses.LOSSES and not getattr(loss, "learn_boundary", False)
    for field, other in (("compatible_with", "an older model"), ("teacher", "a teacher")):
        if getattr(train, field) and len(config.model.levels) > 1:
            raise InputError(
                f"Several levels have an embedding each, and {other} has one. Leave out config.train.{field},"
                " or give one of config.model.levels."
            )
    if train.compatible_with and not ranks:
        raise InputError(
            f"Loss {loss.name!r} cannot rank the gallery of an older model. Leave out"
            f" config.train.compatible_with, or take one of {', '.join(losses.LOSSES)}."
        )
    if not train.teacher:
        if not train.loss_weight:
            raise InputError(
                "config.train.loss_weight=0 learns from a teacher alone. Name one, config.train.teacher=PATH."
            )
        if train.regression_weight or train.relational_weight:
            raise InputError(
                "config.train.regression_weight and relational_weight are of a teacher. Name one,"
                " config.train.teacher=PATH, or set both to 0."
            )
        return
    if not (train.teacher_weight or train.regression_weight or train.relational_weight):
        raise InputError(
            "There is nothing to learn from config.train.teacher: its three weights are 0. Set"
            " config.train.regression_weight=1, or leave out the teacher."
        )
    if train.teacher_weight and not ranks:
        raise InputError(
            f"Loss {loss.name!r} cannot rank the gallery of a teacher. Set config.train.teacher_weight=0 and"
            f" config.train.regression_weight=1, or take one of {', '.join(losses.LOSSES)}."
        )


def _against_others(config, labels, categories):
    """Returns the losses against other models, see `Objective`."""
    train = config.train
    memory = {"memory_size": train.memory_size, "memory_warm_up": train.memory_warm_up}

    def ranked():
        return losses.AsymmetricLoss(build_loss(config.loss, labels, categories, **memory))

    against: dict[str, list[tuple[float, Any]]] = {}
    if train.compatible_with:
        against["compatible_with"] = [(train.compatible_weight, ranked())]
    if train.teacher:
        weights = (train.teacher_weight, train.regression_weight, train.relational_weight)
        made = (ranked, losses.RegressionLoss, losses.RelationalLoss)
        against["teacher"] = [(weight, make()) for weight, make in zip(weights, made) if weight]
    return against


def _class_weights(labels):
    """Returns the classes and the weight of an image of each, on average 1."""
    classes, counts = np.unique(labels, return_counts=True)
    return classes, (counts.sum() / (len(classes) * counts)).astype(np.float32)


def _head(loss, seed):
    """Returns the layer that holds what the loss learns: proxies or boundaries; None if it learns nothing."""
    if isinstance(loss, ProxyLoss | SampledProxyLoss):
        return loss.proxies(seed=seed)
    if isinstance(loss, losses.CrossBatchMemory | losses.MatryoshkaLoss):
        return _head(loss.loss, seed)
    if isinstance(loss, losses.MarginLoss) and loss.learn_boundary:
        return loss.boundaries()
    return None


def _of_dims(loss, dims):
    """Returns the loss over the first dimensions of embeddings, see `MatryoshkaLoss`; itself for no dims."""
    with checks.as_fields("train", (), dims="matryoshka"):
        return losses.MatryoshkaLoss(loss, dims) if dims else loss


def _sampled(loss: Any, share: float, data: Data, seed: int) -> Any:
    """Returns a loss with a share of its proxies, if it has some.

    Raises InputError if the share is less than a batch needs.
    """
    if isinstance(loss, losses.MatryoshkaLoss):
        return _of_dims(_sampled(loss.loss, share, data, seed), loss.dims)
    if not isinstance(loss, ProxyLoss):
        return loss
    classes = loss.labels.size
    balanced = data.sampler in ("class_balanced", "category_pairs")
    needed = min(classes, data.classes_per_batch if balanced else data.batch_size)
    if math.ceil(share * classes) < needed:
        raise InputError(
            f"config.train.proxy_sample={share:g} of {classes:,} classes are {math.ceil(share * classes):,}"
            f" proxies, and a batch may have {needed:,} classes. Give at least {needed / classes:.2g}."
        )
    return SampledProxyLoss(loss, share=share, seed=seed)


def build_loss(
    section: Any,
    labels: Iterable[int],
    categories: np.ndarray | None = None,
    *,
    dims: tuple[int, ...] = (),
    memory_size: int = 0,
    memory_warm_up: int = 0,
    ignore_label: int | None = None,
) -> keras.losses.Loss:
    """Builds the loss of one embedding. Raises InputError for an unknown field, and lists the known ones.

    Args:
        section: the fields of `config.loss`.
        labels: labels of the training images; losses with proxies need them.
        categories: their categories, -1 for none; only Hierarchical AP needs them.
        dims: numbers of first dimensions that it is applied to, see `MatryoshkaLoss`; (): to all alone.
        memory_size: number of past embeddings that join the gallery; 0 for none.
        memory_warm_up: number of batches before they do.
        ignore_label: label of images without a class; None: there are none.
    """
    fields = section.as_dict()
    if fields.get("warmup_steps") == OPEN:
        fields["warmup_steps"] = 0  # The steps of the run are not known yet.
    name = checks.one_of("config.loss.name", fields.pop("name"), losses.NAMES)
    known = losses.hyper_parameters(name)
    for field in sorted(fields.keys() - known.keys()):
        raise InputError(
            f"Loss {name!r} has no field {field!r}.{did_you_mean(field, known)}"
            f" Its fields are {', '.join(known)}. Choose a loss with its fields by --config=FILE.py:{name}"
        )
    if memory_size and name not in losses.LOSSES:
        raise InputError(
            f"Loss {name!r} ranks no gallery, so it cannot use a memory. Set config.train.memory_size=0, or"
            f" take one of {', '.join(losses.LOSSES)}."
        )
    of_data = {}
    if name in PROXY_LOSSES or fields.get("learn_boundary"):
        of_data = {"labels": labels}
    if name == "hierarchical_ap" and categories is not None:
        kept = ignore_labels.kept(np.asarray(labels), ignore_label)
        of_data = {"labels": np.asarray(labels)[kept], "categories": _known(categories[kept])}
    with checks.as_fields("loss", fields):
        loss = losses.get(name, **fields, **of_data, ignore_label=ignore_label)
    if dims and name in losses.ADDONS:
        raise InputError(f"Loss {name!r} takes whole embeddings alone. Leave out config.train.matryoshka.")
    loss = _of_dims(loss, dims)
    return losses.CrossBatchMemory(loss, memory_size, warm_up=memory_warm_up) if memory_size else loss


def _known(categories):
    """Returns the categories if every image has one."""
    if missing := np.count_nonzero(categories == UNKNOWN):
        raise InputError(
            f"{missing:,} of {len(categories):,} training images have no category, which the loss"
            " hierarchical_ap grades relevance by. Prepare records with categories, or choose another loss."
        )
    return categories
