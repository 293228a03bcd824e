"""Margin loss with distance-weighted sampling (Wu et al., ICCV 2017, arXiv 1706.07567)."""

import functools
import reprlib
from collections.abc import Iterable
from typing import Annotated, Any

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks, loss_layers
from tfrank.losses.core import scalars
from tfrank.losses.core.dense_gather import gather
from tfrank.losses.core.distances import unit_distances
from tfrank.losses.core.known_labels import checked_labels, class_index
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import NonNegative, Positive, Scalar
from tfrank.losses.core.violators import Average, check_average, share_of_violator


def _kernel(form, block: Block, margin, cutoff, nonzero_cutoff, dim, key=None):
    """The kernel of one of `FORMS`; without a key, of the expectation over the draws."""
    zero, boundary = tf.zeros_like(block.s), block.value
    squared, distance, slope = unit_distances(block.s)
    # At distance 2, opposite to the query, 1 / q is infinite.
    candidates = block.negative_mask & (squared < tf.minimum(nonzero_cutoff, 2) ** 2)
    weights = _weights(squared, candidates, cutoff, dim)
    shares = _drawn(block, weights, key) if key is not None else _normalized(weights)
    far = tf.where(block.positive_mask, tf.nn.relu(distance - (boundary - margin)), zero)
    near = tf.nn.relu(boundary + margin - distance)

    positive_share = 1 / block.positives[:, None]
    pulls, pushes = tf.where(far > 0, positive_share, zero), tf.where(near > 0, shares, zero)
    terms = tf.ones_like(block.positives) if form == "mean" else block.positives
    if form == "count":
        return terms * tf.reduce_sum(pulls + pushes, axis=1), zero, zero[:, 0]
    losses = terms * tf.reduce_sum(positive_share * far + shares * near, axis=1)
    rates = terms[:, None] * (pulls - pushes)  # dL/dd
    return losses, rates * slope, -tf.reduce_sum(rates, axis=1)


# L_q as a mean over positives, their sum, and the number of terms above 0.
FORMS = ("mean", "sum", "count")
# One function for each form, with a key and without: a kernel has a fixed number of arguments.
_KERNELS = {(form, drawn): functools.partial(_kernel, form) for form in FORMS for drawn in (True, False)}


def _weights(squared, candidates, cutoff, dim):
    """1 / q(d) of each candidate, divided by the largest of its row; 0 for all others."""
    squared = tf.maximum(squared, cutoff**2)
    log_q = (dim - 2) / 2 * tf.math.log(squared) + (dim - 3) / 2 * tf.math.log1p(-squared / 4)
    log_weights = tf.where(candidates, -log_q, squared.dtype.min)
    largest = tf.reduce_max(log_weights, axis=1, keepdims=True)
    return tf.where(candidates, tf.exp(log_weights - largest), tf.zeros_like(squared))


def _normalized(weights):
    """The weights of each row, scaled to sum 1; all 0 if the row has no weight."""
    return weights * tf.math.reciprocal_no_nan(tf.reduce_sum(weights, axis=1, keepdims=True))


def _drawn(block, weights, key):
    """The share of the positives of each row that draw each negative.

    Uses inverse-CDF sampling: a positive draws the first candidate whose cumulative weight exceeds u x total,
    with u uniform. Rounding cannot leave a positive without one, as the total is a candidate's cumulative
    weight.
    """
    candidates = weights > 0
    sums = tf.where(candidates, tf.cumsum(weights, axis=1), tf.zeros_like(weights))
    total = tf.reduce_max(sums, axis=1)
    size = tf.size(block.columns)
    position = block.query_index % tf.maximum(block.gallery_size, 1)

    def visit(i, exists, p, shares):
        threshold = tf.gather(uniform_numbers(size, key, p, weights.dtype), position) * total
        beyond = tf.where(sums > threshold[:, None], block.columns, size)
        drawn = tf.minimum(tf.reduce_min(beyond, axis=1), size - 1)
        share = tf.where(exists & (total > 0), 1 / block.positives, tf.zeros_like(total))
        return p + 1, block.add_at(shares, drawn, share)

    return block.loop_over_positives(visit, (0, tf.zeros_like(weights)))[1]


def uniform_numbers(size: tf.Tensor, key: tf.Tensor, p: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """`[size]` random numbers of 24 bits in [0, 1): a pure function of key and p on every device."""
    # Eager TensorFlow and XLA turn the same random bits into different floats, so convert explicitly.
    seed = tf.stack([key, tf.cast(p, tf.int64)])
    bits = tf.random.stateless_uniform([size], seed, None, None, tf.uint32, alg="philox")
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), dtype) / 2**24


def margin_loss(
    *rows: tf.Tensor,
    margin: Scalar,
    boundary: Scalar,
    cutoff: Scalar,
    nonzero_cutoff: Scalar,
    average: Average,
    key: tf.Tensor | None = None,
    boundaries: tf.Tensor | None = None,
    nu: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_margin of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `MarginLoss`. Takes the arguments of `score_rows`; embeddings have unit norm.
    `key`, an int64 scalar, determines the draw. If it is None, L is the expectation over the draws.
    `boundaries`, `[queries]` of the embeddings' dtype, replace the one boundary, and get a gradient; `nu` is
    their weight.
    """
    query_labels, _, gallery_labels, gallery_embeddings, self_index = rows
    dtype = gallery_embeddings.dtype
    if boundaries is None:
        boundaries, nu = tf.fill([tf.size(query_labels)], scalars.tensor(boundary, dtype)), 0.0
    numbers = [margin, cutoff, nonzero_cutoff, tf.cast(tf.shape(gallery_embeddings)[1], dtype)]
    numbers += [] if key is None else [key]

    def score(form):
        return score_rows(_KERNELS[form, key is not None], *rows, *numbers, values=boundaries)

    if average == "all":
        losses, valid = score("mean")
        return losses + tf.where(valid, nu * boundaries, tf.zeros_like(losses)), valid
    share = share_of_violator(*score("count"))
    losses, valid = score("sum")
    # Each positive has a triplet, whose boundary is that of the query.
    positives = _positives(query_labels, gallery_labels, self_index)
    penalty = nu * tf.cast(positives, dtype) * boundaries
    return share * (losses + tf.where(valid, penalty, tf.zeros_like(losses))), valid


def _positives(query_labels, gallery_labels, self_index):
    """`[queries]` number of positives of each query."""
    ordered = tf.sort(gallery_labels)
    first, end = (tf.searchsorted(ordered, query_labels, side) for side in ("left", "right"))
    return end - first - tf.cast(self_index >= 0, tf.int32)


def hash_of_labels(labels: tf.Tensor) -> tf.Tensor:
    """A hash of the `[batch]` int64 labels of a batch, in their order; an int64 scalar."""
    shape = tf.shape(labels)
    factors = tf.random.stateless_uniform(shape, [0, 0], None, None, tf.int64, alg="philox")
    return tf.reduce_sum(labels * factors)


@keras.saving.register_keras_serializable("tfrank")
class Boundaries(keras.layers.Layer):
    """Holds the learned boundary of each class; returns its input as it is.

    The path of the variable, `[classes]` float32, ends in "/boundaries". A learning rate of its own:
    `multipliers={"boundaries": 10}` of `tfrank.training.optimizers.build_optimizer`. Weight decay would pull
    boundaries to 0: `no_decay=["boundaries"]`. `MarginLoss.boundaries` creates the layer with the right
    number of classes.

    Args:
        classes: number of classes, at least 1.
        initial: the boundary of every class at the start.
        options: options of a Keras layer, such as its name.

    >>> Boundaries(3, initial=1.2)(tf.ones([2, 8])).shape.as_list()
    [2, 8]
    """

    def __init__(self, classes: int, *, initial: float, **options: Any):
        super().__init__(autocast=False, **options)
        self.classes = checks.integer("classes", classes, at_least=1)
        self.initial = checks.number("initial", initial)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the boundaries."""
        initializer = keras.initializers.Constant(self.initial)
        self.boundaries = self.add_weight(
            name="boundaries", shape=(self.classes,), initializer=initializer, dtype="float32", autocast=False
        )

    def call(self, embeddings: tf.Tensor) -> tf.Tensor:
        """Returns the embeddings."""
        return loss_layers.through(self, embeddings)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "classes": self.classes, "initial": self.initial}


@keras.saving.register_keras_serializable("tfrank")
class MarginLoss(RankingLoss):
    """Pulls positives to within a boundary, and pushes negatives, sampled by distance, beyond it.

        d_j = |q - x_j|, between unit vectors                                                  (0 to 2)
        q(d) = d^(dim - 2) (1 - d^2 / 4)^((dim - 3) / 2)     distances on a sphere     (section 4.1)
        w_n = 1 / q(max(d_n, cutoff))     of negatives with d_n < nonzero_cutoff
        n(p) drawn with probability w_n / sum of w, for each positive p on its own
        L_q = mean over positives p of [alpha + d_p - beta]_+ + [alpha + beta - d_n(p)]_+      (section 4.2)

    With `average="nonzero"` the loss is, as in the authors' code, the sum of all terms of all queries and
    positives in the global batch, divided by the number of terms above 0, two for each positive at most. With
    `sampled=False` both are expectations.

    Draws are constants to the gradient. If no negative is nearer than `nonzero_cutoff`, the second term is 0.

    With `learn_boundary=True` each class has a beta of its own, which is learned, and nu times the beta of
    the query's class is added to L_q (section 4.2, without a beta for each image; with "nonzero", to the sum,
    once for each positive). The betas are a layer that
    follows the embedding model in training, `loss.boundaries()`.

    With `sampled=False` the second term is its expectation over the draws: the mean over negatives of
    [alpha + beta - d_n]_+, weighted by w_n. The weights are constants to the gradient. This needs no random
    numbers, has less noise, and gives the expected gradient of the draws. It is not in the paper.

    Draws are a pure function of the seed, the step and the positions in the global batch. N replicas thus
    draw what one device does, and a resumed run draws the same again. The step is that of `fit`, or of
    `loss.iteration` if it is set. Elsewhere a hash of the labels of the global batch replaces the step: draws
    change with the labels, and are the same for the same labels in the same order.

    Args:
        margin: alpha, on each side of the boundary, at least 0. Default 0.2.
        boundary: beta, the distance between positives and negatives, positive. Default 1.2.
        cutoff: negatives below this distance have equal weights; above 0 and below 2. Default 0.5 (the
            authors' code).
        nonzero_cutoff: only negatives nearer than this, and nearer than 2, are drawn; positive. Default 1.4
            (the authors' code): with the default boundary and margin, all negatives whose term is not 0.
        average: "all" for the mean over queries, or "nonzero", see above, which takes two passes. Default
            "all".
        sampled: whether negatives are drawn (True) or weighted by their probability. Default True.
        seed: seed of the draws, at least 0.
        learn_boundary: whether the boundary of each class is learned, from `boundary` on. Default False.
        nu: weight of the learned boundaries, at least 0: with a larger one they are lower. Default 0 (the
            authors' code).
        labels: the training labels, in any order and as often as you like; only to learn boundaries.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean.

    Reference: Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017, arXiv 1706.07567.
    Memory: about three matrices `[batch, batch]`.

    >>> loss = MarginLoss(sampled=False)
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    1.0892

    Learned boundaries, with a higher learning rate than the network's:

    >>> images, labels = tf.random.stateless_normal([64, 8], [0, 1]), tf.range(64) // 4
    >>> loss = MarginLoss(learn_boundary=True, labels=labels)
    >>> model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    >>> training = keras.Sequential([model, loss.boundaries()])
    >>> training.compile("adam", loss=loss)
    >>> history = training.fit(images, labels, verbose=0)
    >>> training.layers[-1].boundaries.shape.as_list()
    [16]
    """

    @checks.arguments
    def __init__(
        self,
        margin: NonNegative = 0.2,
        *,
        boundary: Positive = 1.2,
        cutoff: Annotated[Scalar, functools.partial(scalars.number, above=0, below=2)] = 0.5,
        nonzero_cutoff: Positive = 1.4,
        average: Average = "all",
        sampled: bool = True,
        seed: checks.NonNegativeInt = 0,
        learn_boundary: bool = False,
        nu: checks.NonNegativeFloat = 0.0,
        labels: Iterable[int] | None = None,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "margin",
    ):
        hyper_parameters = dict(
            margin=margin,
            boundary=boundary,
            cutoff=cutoff,
            nonzero_cutoff=nonzero_cutoff,
            average=check_average(average, reduction),
            nu=nu,
        )
        super().__init__(
            margin_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
        self.sampled, self.seed, self.learn_boundary = sampled, seed, learn_boundary
        if self.learn_boundary != (labels is not None):
            raise checks.InputError(
                "Give `labels`, those of the training images, with learn_boundary=True and only then."
            )
        self.labels = None if labels is None else np.unique(checked_labels(labels))
        self._layer: Boundaries | None = None

    def boundaries(self, **options: Any) -> Boundaries:
        """A new layer of learned boundaries for this loss, to follow the embedding model in training."""
        if self.labels is None:
            raise checks.InputError(
                "The boundary is fixed. Make the loss with learn_boundary=True and labels."
            )
        initial = float(scalars.current(self.hyper_parameters["boundary"]))
        self._layer = Boundaries(self.labels.size, initial=initial, **options)
        return self._layer

    def look_at(self, embeddings: tf.Tensor) -> None:
        """Takes the layer that the embeddings passed: also that of a loaded or cloned model."""
        known = 0 if self.labels is None else self.labels.size
        for layer in loss_layers.passed(embeddings):
            if isinstance(layer, Boundaries) and layer.classes == known:
                self._layer = layer

    def _score(self, *rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Calls the core with the hyper-parameters of this loss and the draws of this step."""
        query_labels, query_embeddings, gallery_labels, *_ = rows
        key = self._key(gallery_labels) if self.sampled else None
        boundaries = None
        if self.labels is not None:
            boundaries = tf.cast(self._boundaries_of(query_labels), query_embeddings.dtype)
        return margin_loss(*rows, **self.hyper_parameters, key=key, boundaries=boundaries)

    def _key(self, gallery_labels):
        """The key of this step's draws."""
        step = self.known_step()
        step = hash_of_labels(gallery_labels) if step is None else step
        seed = tf.stack([tf.constant(self.seed, tf.int64), step])
        return tf.random.stateless_uniform([], seed, None, None, tf.int64, alg="philox")

    def _boundaries_of(self, labels):
        """The boundary of each label's class, `[rows]` float32."""
        if self._layer is None:
            raise checks.InputError(
                f"The loss {self.name!r} has no boundaries yet. Add loss.boundaries() as the last layer of"
                " the training model."
            )
        numbers, _ = class_index(self.labels, labels, self.name)
        return gather(tf.convert_to_tensor(self._layer.boundaries), numbers)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        labels = None if self.labels is None else self.labels.tolist()
        learned = {"learn_boundary": self.learn_boundary, "labels": labels}
        return {**super().get_config(), "sampled": self.sampled, "seed": self.seed, **learned}

    def _shown_arguments(self):
        shown = super()._shown_arguments()
        if self.labels is None:
            return {key: text for key, text in shown.items() if key not in ("learn_boundary", "nu", "labels")}
        return {**shown, "labels": reprlib.repr(self.labels.tolist())}
