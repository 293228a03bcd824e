"""The objective of a run: the losses of each embedding, with their proxies and memories."""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfrank import losses
from tfrank.common import checks
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
    """

    model: keras.Model
    losses: list[keras.losses.Loss]
    weights: list[float]
    state: list[tf.Variable]
    class_weights: tuple[np.ndarray, np.ndarray] | None = None

    def loss(self, labels: tf.Tensor, outputs: tuple[Any, Any]) -> tf.Tensor:
        """Returns the weighted sum of the losses of all embeddings."""
        parts = zip(self.losses, self.weights, outputs[1])
        of_images = None
        if self.class_weights is not None:
            classes, of_classes = map(tf.constant, self.class_weights)
            of_images = tf.gather(of_classes, tf.searchsorted(classes, tf.cast(labels, tf.int64)))
        return tf.add_n([weight * loss(labels, output, of_images) for loss, weight, output in parts])


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
        labels: labels of the training images.
        iterations: counter of the training steps.
        categories: `[images]` int64, their categories, -1 for none; only Hierarchical AP needs them.
    """
    train = config.train
    memory = {"memory_size": train.memory_size, "memory_warm_up": train.memory_warm_up}
    parts: list[Any] = [build_loss(config.loss, labels, categories, **memory) for _ in model.outputs]
    outputs, weights = model.outputs, [1.0]
    if weight := train.class_loss_weight:
        parts += [losses.get("normalized_softmax", labels=labels) for _ in model.outputs]
        outputs, weights = outputs * 2, [1.0, weight]
    if train.proxy_sample < 1:
        sampled = functools.partial(_sampled, share=train.proxy_sample, data=config.data, seed=config.seed)
        parts = [sampled(loss) if isinstance(loss, ProxyLoss) else loss for loss in parts]
    for loss in parts:
        loss.iteration = iterations
        loss.warns = False  # The trainer warns instead.
    # Different seeds, so that the proxies of each embedding start differently.
    seeds = [(config.seed + place) % 2**32 for place in range(len(parts))]
    heads = [_head(loss, seed) for loss, seed in zip(parts, seeds)]
    asked = [head(output) if head else output for head, output in zip(heads, outputs)]
    state = [variable for loss in parts for variable in loss.variables]
    state += [variable.value for head in heads if head for variable in head.variables]
    weights = [weight for weight in weights for _ in model.outputs]
    training = keras.Model(model.inputs, (model.outputs, asked))
    return Objective(training, parts, weights, state, _class_weights(labels) if train.class_weights else None)


def _class_weights(labels):
    """Returns the classes and the weight of an image of each, on average 1."""
    classes, counts = np.unique(np.asarray(labels, np.int64), return_counts=True)
    return classes, (counts.sum() / (len(classes) * counts)).astype(np.float32)


def _head(loss, seed):
    """Returns the layer that holds what the loss learns: proxies or boundaries; None if it learns nothing."""
    if isinstance(loss, ProxyLoss | SampledProxyLoss):
        return loss.proxies(seed=seed)
    inner = loss.loss if isinstance(loss, losses.CrossBatchMemory) else loss
    if isinstance(inner, losses.MarginLoss) and inner.learn_boundary:
        return inner.boundaries()
    return None


def _sampled(loss: ProxyLoss, share: float, data: Data, seed: int) -> SampledProxyLoss:
    """Returns the loss with a share of its proxies; raises InputError if that is less than a batch needs."""
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
    memory_size: int = 0,
    memory_warm_up: int = 0,
) -> keras.losses.Loss:
    """Builds the loss of one embedding. Raises InputError for an unknown field, and lists the known ones.

    Args:
        section: the fields of `config.loss`.
        labels: labels of the training images; losses with proxies need them.
        categories: their categories, -1 for none; only Hierarchical AP needs them.
        memory_size: number of past embeddings that join the gallery; 0 for none.
        memory_warm_up: number of batches before they do.
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
        of_data = {"labels": labels, "categories": _known(categories)}
    with checks.as_fields("loss", fields):
        loss = losses.get(name, **fields, **of_data)
    return losses.CrossBatchMemory(loss, memory_size, warm_up=memory_warm_up) if memory_size else loss


def _known(categories):
    """Returns the categories if every image has one."""
    if missing := np.count_nonzero(categories == UNKNOWN):
        raise InputError(
            f"{missing:,} of {len(categories):,} training images have no category, which the loss"
            " hierarchical_ap grades relevance by. Prepare records with categories, or choose another loss."
        )
    return categories
