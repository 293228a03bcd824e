"""Hierarchical AP: relevance graded by a tree of categories (Ramzi et al., ECCV 2022, arXiv 2207.04873)."""

import functools
import reprlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfrank.common import checks
from tfrank.common.categories import categories_of_classes, checked_categories, levels_of
from tfrank.losses.core.bound_ranks import BoundRanks, bound_where_it_pays
from tfrank.losses.core.known_labels import checked_labels, class_index
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.ranks import hard_step
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import NonNegative, Positive, Scalar
from tfrank.losses.sup_ap import upper_bound_step


def _kernel(levels, block: Block, finer, temperature, rho, delta, alpha):
    level = tf.cast(block.positive_mask, block.s.dtype)
    for place in range(levels - 1):
        same = (block.finer[:, place, None] == finer[place]) & block.positive_mask
        level += tf.cast(same, block.s.dtype)
    relevances = _relevances(level, levels, alpha)

    lower = [(level < place) & block.candidate_mask for place in range(1, levels + 1)]

    def at_once(grids, columns, exists):
        counted = zip(grids, lower)
        return _at_once(block, counted, temperature, rho, delta, level, relevances, columns, exists)

    def by_walks():
        return _by_walks(block, temperature, rho, delta, level, relevances)

    return bound_where_it_pays(block, temperature, delta, lower, at_once, by_walks)


def _at_once(block: Block, counted, temperature, rho, delta, level, relevances, columns, exists):
    """Ranks of all positives of a level at once, by `BoundRanks`, one level after the other."""
    total, losses, slopes = _total(level, relevances), tf.zeros_like(block.s[:, 0]), tf.zeros_like(block.s)
    masks = [(level == place) & block.candidate_mask for place in range(len(relevances))]
    rates = []
    for place, (grid, lower) in enumerate(counted, start=1):
        here = exists & (tf.gather(level, columns, axis=1, batch_dims=1) == place)
        ranks = BoundRanks(block, grid, temperature, rho, delta, lower, columns, here)
        above, of_i = [ranks.number_above(mask) for mask in masks], relevances[place]
        lesser = [tf.minimum(of_i, of_level) for of_level in relevances]
        gain = of_i + sum(number * of_both for number, of_both in zip(above, lesser))
        rank = 1 + ranks.counts + sum(above[place:])
        # rel_i - gain / rank, as a sum of terms of at least 0: the difference would cancel near 0.
        missed = of_i * (ranks.counts - sum(above[:place]))
        missed += sum(number * (of_i - of_both) for number, of_both in zip(above, lesser))
        none = tf.zeros_like(rank)
        losses += tf.reduce_sum(tf.where(here, missed / (rank * total), none), axis=1)
        more, of_grid = ranks.slopes(tf.where(here, gain / (rank**2 * total), none))
        slopes += more
        rates.append(of_grid)
    return losses, slopes, rates


def _by_walks(block: Block, temperature, rho, delta, level, relevances):
    """Ranks one positive after the other."""
    step = upper_bound_step(temperature, rho, delta)
    zero, total = tf.zeros_like(block.s), _total(level, relevances)[:, 0]
    relevance = sum(tf.where(level == place, of_level, zero) for place, of_level in enumerate(relevances))

    def visit(i, exists, losses, slopes):
        of_i, level_i = block.at(i, relevance), block.at(i, level)
        x = block.s - block.at(i)
        lower = (level < level_i) & block.candidate_mask
        value, slope = step(x)
        before, _ = hard_step(x)
        # Entries of level 0 have relevance 0, and the positive itself is not before itself.
        lesser = tf.minimum(relevance, of_i) * before
        gain = of_i[:, 0] + tf.reduce_sum(lesser, axis=1)
        counted = tf.where(lower, value, tf.where(level >= level_i, before, zero))
        rank = 1 + tf.reduce_sum(counted, axis=1)
        share = tf.where(exists, gain / (rank * total), tf.zeros_like(rank))
        # rel_i - gain / rank, as a sum of terms of at least 0: the difference would cancel near 0.
        missed = tf.reduce_sum(of_i * counted - lesser, axis=1)
        loss = tf.where(exists, missed / (rank * total), tf.zeros_like(rank))
        slope = tf.where(lower, (share / rank)[:, None] * slope, zero)
        slopes = block.add_at(slopes + slope, i, -tf.reduce_sum(slope, axis=1))
        return losses + loss, slopes

    return tuple(block.loop_over_positives(visit, (tf.zeros_like(total), zero)))


@functools.cache
def _kernel_of(levels):
    """The kernel for a number of levels, the same object in each call."""
    return functools.partial(_kernel, levels)


def _relevances(level, levels, alpha):
    """rel of the images of each level from 0 on, each `[rows, 1]`."""
    return [tf.zeros_like(level[:, :1])] + [
        (place / levels) ** alpha / tf.maximum(_number(level, place), 1) for place in range(1, levels + 1)
    ]


def _total(level, relevances):
    """The sum of rel over each row, `[rows, 1]`; 1 if that is 0."""
    total = sum(of_level * _number(level, place) for place, of_level in enumerate(relevances))
    return tf.where(total > 0, total, tf.ones_like(total))


def _number(level, place):
    return tf.reduce_sum(tf.cast(level == place, level.dtype), axis=1, keepdims=True)


def hierarchical_ap_loss(
    *rows: tf.Tensor,
    temperature: Scalar,
    rho: Scalar,
    delta: Scalar,
    alpha: Scalar,
    finer: tuple[tf.Tensor, tf.Tensor] | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_Sup-H-AP of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `HierarchicalAPLoss`. Takes the arguments of `score_rows`, with labels of the
    coarsest level; embeddings have unit norm. `finer` are labels of the finer levels, `[queries, levels]` and
    `[gallery, levels]` int32; rows that share one also share all coarser ones. None: one level.
    """
    if finer is None:
        finer = tuple(tf.zeros([tf.size(labels), 0], tf.int32) for labels in (rows[0], rows[2]))
    kernel = _kernel_of(finer[1].shape[1] + 1)
    return score_rows(kernel, *rows, temperature, rho, delta, alpha, finer=finer)


@keras.saving.register_keras_serializable("tfrank")
class HierarchicalAPLoss(RankingLoss):
    """An upper bound of one minus Hierarchical AP: images of a near category are better than those of a far.

        l_j = number of levels that j shares with the query, 0 to L; L: of the same class
        rel_j = (l_j / L)^alpha / number of images of level l_j
        H-rank_i = rel_i + sum over j != i of min(rel_i, rel_j) [s_j > s_i]; no gradient
        rank_i = 1 + sum over j of a lower level than i of H(s_j - s_i)
                   + number of others of i's level or a higher one with s_j > s_i; no gradient
        L_q = 1 - sum over i with l_i > 0 of H-rank_i / rank_i / sum of rel

    with H(x) of `SupAPLoss`. Without categories there is one level, and L_q is that of
    `SupAPLoss(calibration_weight=0)`.

    The paper adds a softmax over proxies of the classes:
    `WeightedSum([HierarchicalAPLoss(...), NormalizedSoftmaxLoss(labels)], [0.9, 0.1])`, or
    `train.class_loss_weight`.

    Args:
        temperature, rho, delta: of H, see `SupAPLoss`. Defaults 0.01, 100, 0.05.
        alpha: how much less images of a coarse level count, at least 0. Default 1.
        labels: `[n]` integers, the training labels, in any order and as often as you like.
        categories: `[n]` integers, the category of each of them; or `[n, levels]`, its coarser and coarser
            classes. A class has one category. None: one level.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats. Batches should hold
    several classes of a category, as the sampler "category_pairs" draws them.

    A query without another image of its coarsest category has no loss and no gradient, and is left out of the
    mean. A label that is not one of `labels` raises an error that names it: InputError, or TensorFlow's
    InvalidArgumentError inside a graph. XLA (`jit_compile`) leaves such checks out; such rows then share
    nothing with the others.

    Reference: Ramzi et al., Hierarchical Average Precision Training for Pertinent Image Retrieval, ECCV 2022,
    arXiv 2207.04873; constants of the authors' code, which counts the query too, as the most relevant image.
    Memory: about five matrices `[batch, batch]`. Time grows with the size of the categories in the batch.

    >>> loss = HierarchicalAPLoss(labels=[0, 1, 2], categories=[7, 7, 8])
    >>> round(float(loss([0, 1, 0, 2], [[1.0, 0], [0.9, 0.1], [0.7, 0.3], [0.1, 0.9]])), 4)
    0.2428
    """

    @checks.arguments
    def __init__(
        self,
        temperature: Positive = 0.01,
        *,
        rho: NonNegative = 100.0,
        delta: NonNegative = 0.05,
        alpha: NonNegative = 1.0,
        labels: Iterable[int] | None = None,
        categories: Iterable[int] | np.ndarray | None = None,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "hierarchical_ap",
    ):
        hyper_parameters = dict(temperature=temperature, rho=rho, delta=delta, alpha=alpha)
        super().__init__(
            hierarchical_ap_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
        if (labels is None) != (categories is None):
            raise checks.InputError("Give both labels and categories, or neither.")
        self.labels, self.categories = None, None
        if labels is not None:
            known = checked_labels(labels)
            rows = checked_categories("categories", categories, known)
            self.labels, self.categories = categories_of_classes(known, rows)

    def _score(self, *rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Calls the core with the categories of the labels."""
        if self.labels is None:
            return super()._score(*rows)
        query_labels, query_embeddings, gallery_labels, gallery_embeddings, self_index = rows
        (queries, *finer_queries), (gallery, *finer_gallery) = (
            self._levels(labels) for labels in (query_labels, gallery_labels)
        )
        finer = tf.stack(finer_queries, axis=1), tf.stack(finer_gallery, axis=1)
        queries, gallery = tf.cast(queries, tf.int64), tf.cast(gallery, tf.int64)
        batch = (queries, query_embeddings, gallery, gallery_embeddings, self_index)
        return hierarchical_ap_loss(*batch, finer=finer, **self.hyper_parameters)

    def _levels(self, labels):
        """`[rows]` numbers of the classes at each level, from the coarsest to the labels' own."""
        index, known = class_index(self.labels, labels, self.name)
        for level in [*levels_of(self.categories), np.arange(len(self.labels))]:
            numbers = tf.gather(tf.constant(level, tf.int32), index)
            # XLA leaves the check of `known` out.
            yield tf.where(known, numbers, -1 - index)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        table = {
            "labels": None if self.labels is None else self.labels.tolist(),
            "categories": None if self.categories is None else self.categories.tolist(),
        }
        return {**super().get_config(), **table}

    def _shown_arguments(self):
        config = self.get_config()
        table = {name: reprlib.repr(config[name]) for name in ("labels", "categories")}
        return super()._shown_arguments() | table
