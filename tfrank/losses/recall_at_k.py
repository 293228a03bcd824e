"""The Recall@k surrogate, with similarity mixup (Patel et al., CVPR 2022, arXiv 2108.11179)."""

import functools
from collections.abc import Sequence
from typing import Annotated, Any

import keras
import tensorflow as tf

from tfrank.common import checks
from tfrank.losses.core.grid_ranks import GridRanks, where_it_pays
from tfrank.losses.core.permutation import inverse
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.ranks import sigmoid_step
from tfrank.losses.core.rows import Block, score_rows
from tfrank.losses.core.scalars import Positive, Scalar

Ks = Annotated[Sequence[int], functools.partial(checks.sequence, check=checks.integer, at_least=1)]
PositiveFloats = Annotated[Sequence[float], functools.partial(checks.sequence, check=checks.number, above=0)]


@functools.cache
def _kernel(ks, count_query):
    """The kernel for these k, with ranks that count the query's own row or not."""

    def kernel(block: Block, temperature, k_temperatures):
        mask = block.candidate_mask | block.own_mask if count_query else block.candidate_mask
        recalls = _Recalls(ks, k_temperatures, block.positives)
        return where_it_pays(
            block,
            temperature,
            lambda: _on_grid(block, temperature, mask, recalls),
            lambda: _by_walks(block, temperature, mask, recalls),
        )

    return kernel


class _Recalls:
    """The loss as a function of the ranks of the positives.

    Args:
        ks, k_temperatures: k and T_k.
        positives: `[rows]` |P|.
    """

    def __init__(self, ks, k_temperatures, positives):
        self._k, self._k_temperatures = tf.constant(ks, positives.dtype), k_temperatures
        self._few = positives[:, None] <= self._k
        self._share = 1 / (len(ks) * tf.minimum(self._k, positives[:, None]))

    def found(self, ranks):
        """sigmoid((k - rank) / T_k), `[..., ks]`: how much a positive is in the top k; and what is missing
        to 1.
        """
        distance = (self._k - ranks[..., None]) / self._k_temperatures
        return tf.sigmoid(distance), tf.sigmoid(-distance)

    def losses(self, found, missing):
        """The loss of each row, and its slope by `found`, `[rows, ks]`, from sums over its positives."""
        # With at most k positives, min(k, |P|) - found is what is missing, and would cancel near 0.
        lacking = tf.where(self._few, missing, tf.nn.relu(self._k - found))
        rates = tf.where(self._few | (found < self._k), -self._share, tf.zeros_like(found))
        return tf.reduce_sum(lacking * self._share, axis=1), rates

    def rates(self, ranks, of_found):
        """The slope of the loss by each rank; `of_found` has the dimensions of the ranks, and one for k."""
        found, missing = self.found(ranks)
        return -tf.reduce_sum(of_found * found * missing / self._k_temperatures, axis=-1)


def _on_grid(block: Block, temperature, mask, recalls):
    grid = GridRanks(block, temperature, [mask], [True])
    ranks, exists = 1 + grid.counts[0], block.positive_mask
    found = [tf.where(exists[..., None], part, tf.zeros_like(part)) for part in recalls.found(ranks)]
    losses, of_found = recalls.losses(*(tf.reduce_sum(part, axis=1) for part in found))
    rates = recalls.rates(ranks, of_found[:, None])
    return losses, grid.slopes([tf.where(exists, rates, tf.zeros_like(rates))])


def _by_walks(block: Block, temperature, mask, recalls):
    """Ranks one positive after the other.

    A query's loss is not a mean over its positives, so ranks are computed twice: for the value, and for the
    gradient.
    """
    step = sigmoid_step(temperature)
    zero = tf.zeros_like(block.s)

    def ranked(i):
        before, slope = step(block.s - block.at(i))
        others = mask & (block.columns != i[:, None])
        return 1 + tf.reduce_sum(tf.where(others, before, zero), axis=1), tf.where(others, slope, zero)

    def count(i, exists, found, missing):
        more = (tf.where(exists[:, None], part, 0 * part) for part in recalls.found(ranked(i)[0]))
        return tuple(total + part for total, part in zip((found, missing), more))

    nothing = tf.zeros_like(recalls.found(block.positives)[0])
    losses, of_found = recalls.losses(*block.loop_over_positives(count, (nothing, nothing)))

    def pull(i, exists, slopes):
        rank, slope = ranked(i)
        rate = tf.where(exists, recalls.rates(rank, of_found), tf.zeros_like(rank))
        slope = rate[:, None] * slope
        return (block.add_at(slopes + slope, i, -tf.reduce_sum(slope, axis=1)),)

    (slopes,) = block.loop_over_positives(pull, (zero,))
    return losses, slopes


def recall_at_k_loss(
    *rows: tf.Tensor,
    ks: tuple[int, ...],
    temperature: Scalar,
    k_temperatures: tuple[float, ...],
    count_query: bool,
    present: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """1 - smooth Recall@k of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `RecallAtKLoss`. Takes the arguments of `score_rows`; embeddings have unit norm.
    """
    return score_rows(_kernel(ks, count_query), *rows, temperature, k_temperatures, present=present)


def virtual_rows(labels: tf.Tensor, embeddings: tf.Tensor, shares: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """SiMix: for each row x_i the mixture a x_i + (1 - a) x_j, where x_j is the next row of its class.

    Mixtures are not renormalised, so that similarities are mixed in the same proportions.

    Args:
        labels: `[rows]` int64.
        embeddings: `[rows, dim]` float.
        shares: `[rows]` a, 0 to 1.

    Returns:
        The virtual rows, `[rows, dim]`, and which of them mix two different rows, `[rows]` bool; that of a
        class of one row does not.
    """
    order = tf.argsort(labels, stable=True)
    place = inverse(order)
    labels_in_order = tf.gather(labels, order)
    first, end = (tf.searchsorted(labels_in_order, labels, side) for side in ("left", "right"))
    partner = tf.gather(order, tf.where(place + 1 < end, place + 1, first))
    shares = shares[:, None]
    return shares * embeddings + (1 - shares) * tf.gather(embeddings, partner), end - first > 1


def _class_indices(query_labels, gallery_labels):
    """Labels renumbered from 0, int64; -1 for a query's label that is not in the gallery."""
    in_order = tf.sort(gallery_labels)
    query, gallery = (tf.searchsorted(in_order, labels) for labels in (query_labels, gallery_labels))
    found = tf.gather(in_order, tf.minimum(query, tf.size(in_order) - 1)) == query_labels
    return tf.cast(tf.where(found, query, -1), tf.int64), tf.cast(gallery, tf.int64)


@keras.saving.register_keras_serializable("tfrank")
class RecallAtKLoss(RankingLoss):
    """One minus Recall@k, averaged over some k, with both of its step functions relaxed to sigmoids.

        r_i = 1 + sum over all j != i of sigmoid((s_j - s_i) / temperature)
        R_k = min(k, sum over positives i of sigmoid((k - r_i) / T_k)) / min(k, |P|)
        L_q = 1 - mean of R_k over k

    The paper's sum over j leaves out the query. In the authors' code it counts too, so that the best rank is
    nearly 2, and T_k is 1 in their latest version: `k_temperatures=[1] * 5, count_query=True`. Their code
    replaces a k above the batch size by that size; here it stays.

    `simix` adds a virtual row for every row that is not the only one of its class: the mixture
    a x_i + (1 - a) x_j with the next row of its class, with a uniform in 0 to 1. Virtual rows are queries and
    gallery rows like the others. L_q is then the mean of the loss of the row and that of its virtual row. The
    values of a are a function of `seed` and the training step. `fit` tells the step; elsewhere set
    `loss.iteration = optimizer.iterations`.

    Args:
        ks: the values of k, each at least 1. Default 1, 2, 4, 8, 16.
        temperature: temperature of the sigmoid of the ranks, positive. Default 0.01.
        k_temperatures: T_k, positive, one for each k. Default 1, 2, 4, 8, 16 (the authors' first code).
        count_query: whether the ranks count the query's own row, if it is in the gallery. Default False.
        simix: whether to extend batches by virtual rows, which takes four times the memory.
        seed: seed of the virtual rows, at least 0. Used only with `simix`.
        reduction: "mean", "sum", "sum_over_batch_size" or None, see `RankingLoss`.
        ignore_label: label of rows without a class, see `RankingLoss`. Default None: there are none.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class has no loss and no gradient, and is left out of the mean.

    Reference: Patel et al., Recall@k Surrogate Loss with Large Batches and Similarity Mixup, CVPR 2022,
    arXiv 2108.11179. Memory: about three matrices `[batch, batch]`, or with `simix` of twice the batch.

    >>> loss = RecallAtKLoss([1, 2], k_temperatures=[1, 2])
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.6836
    """

    @checks.arguments
    def __init__(
        self,
        ks: Ks = (1, 2, 4, 8, 16),
        *,
        temperature: Positive = 0.01,
        k_temperatures: PositiveFloats = (1.0, 2.0, 4.0, 8.0, 16.0),
        count_query: bool = False,
        simix: bool = False,
        seed: checks.NonNegativeInt = 0,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str = "recall_at_k",
    ):
        hyper_parameters = dict(
            ks=ks, temperature=temperature, k_temperatures=k_temperatures, count_query=count_query
        )
        if len(k_temperatures) != len(ks):
            raise checks.invalid(
                "k_temperatures", f"one number for each of ks={list(ks)}", list(k_temperatures)
            )
        super().__init__(
            recall_at_k_loss, hyper_parameters, reduction=reduction, ignore_label=ignore_label, name=name
        )
        self.simix, self.seed = simix, seed

    def _score(self, *rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Calls the core with the hyper-parameters of this loss.

        With `simix`, virtual rows extend the gallery, and also the queries if they are gallery rows.
        """
        if not self.simix:
            return super()._score(*rows)
        query_labels, query_embeddings, gallery_labels, gallery_embeddings, self_index = rows
        size = tf.size(gallery_labels)
        seed = [tf.constant(self.seed, tf.int64), self.steps_taken()]
        shares = tf.random.stateless_uniform([size], seed, dtype=gallery_embeddings.dtype)
        mixed, of_two = virtual_rows(gallery_labels, gallery_embeddings, shares)
        own = tf.maximum(self_index, 0)
        virtual = tf.gather(of_two, own) & (self_index >= 0)
        if query_embeddings is gallery_embeddings:
            queries = gallery = tf.concat([gallery_embeddings, mixed], 0)
        else:
            queries = tf.concat([query_embeddings, tf.gather(mixed, own)], 0)
            gallery = tf.concat([gallery_embeddings, mixed], 0)

        # Relabel classes from 0 so that negative labels can mark unused virtual rows.
        query_class, gallery_class = _class_indices(query_labels, gallery_labels)
        losses, valid = recall_at_k_loss(
            tf.concat([query_class, tf.where(virtual, query_class, -2)], 0),
            queries,
            tf.concat([gallery_class, tf.where(of_two, gallery_class, -3)], 0),
            gallery,
            tf.concat([self_index, tf.where(virtual, size + self_index, -1)], 0),
            **self.hyper_parameters,
            present=tf.concat([tf.ones_like(of_two), of_two], 0),
        )
        real, virtual = tf.unstack(tf.reshape(losses, [2, -1]))
        number = tf.reduce_sum(tf.cast(tf.reshape(valid, [2, -1]), losses.dtype), axis=0)
        return (real + virtual) / tf.maximum(number, 1), tf.reshape(valid, [2, -1])[0]

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "simix": self.simix, "seed": self.seed}
