"""Soft ranks: how many negatives, or positives, stand before each positive of each query.

    R(i, S) = sum_{j in S, j != i} sigmoid((s_j - s_i) / temperature)          (PNP eq. 2 and 3)

Losses on ranks are means of a penalty of these counts over the positives of a query, so value and
gradient come out of one pass: while a positive's sigmoids are at hand, the penalty is differentiated
with respect to its two counts, and dL/ds of every gallery entry is that number times the sigmoid's
slope. The backward pass only scales by the upstream gradient. (First derivatives only.)

How it is laid out. The gallery is sorted so that a class is a contiguous run and runs of like size
are neighbours; queries follow. A query's p-th positive is then a place in its run, found without any
sort of a `[batch, batch]` matrix, and a block of rows loops to its own largest class only. XLA fuses
the elementwise work of a block into two passes over it. No shape depends on label values.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfrank.losses.similarity import cosine_similarity, inverse, permute

# Half a million similarities (2 MiB in float32) stay in cache while a block is worked on.
BLOCK_SIMILARITIES = 2**19

Penalty = Callable[..., tf.Tensor]


class Runs(NamedTuple):
    """Where each query's positives stand in a gallery sorted by class; all `[queries]` int32."""

    start: tf.Tensor  # first gallery row of the query's class
    size: tf.Tensor  # gallery rows of that class
    own: tf.Tensor  # the query's own gallery row if it is to be left out, else -1
    positives: tf.Tensor  # size, less the query's own row if left out


def mean_rank_penalty(
    penalty: Penalty,
    query_labels: tf.Tensor,
    query_embeddings: tf.Tensor,
    gallery_labels: tf.Tensor,
    gallery_embeddings: tf.Tensor,
    self_index: tf.Tensor,
    *,
    temperature: float,
    include_self: bool,
    among_positives: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_q = 1/|P| sum_{i in P} penalty(R(i, S_N)), or penalty(R(i, S_N), R(i, S_P)).

    Args:
        penalty: elementwise function of the counts, `[rows]` -> `[rows]`. The same object for the
            same hyper-parameters, since a kernel is compiled for each.
        query_labels: `[queries]` int64.
        query_embeddings: `[queries, dim]` float, unit norm.
        gallery_labels: `[gallery]` int64.
        gallery_embeddings: `[gallery, dim]` float, unit norm. Pass the very same tensor as for the
            queries where they are one batch: the gradient then takes one product, not two.
        self_index: `[queries]` int32, the query's own gallery row, or -1.
        temperature: of the sigmoid, positive.
        include_self: whether the query's own row is one more positive; else it is left out.
        among_positives: whether `penalty` takes R(i, S_P) too.

    Returns:
        The loss per query, `[queries]`, 0 where it does not count; and which queries count,
        `[queries]` bool: those with a positive other than themselves.

    Memory: about three matrices `[queries, gallery]`. Time: one product `[queries, gallery]` forward
    and one backward (two where queries are not the gallery), and elementwise work in proportion to
    gallery x the sum over queries of their positives.
    """
    gallery_order, starts, sizes = _sort_by_class(gallery_labels, query_labels)
    one_batch = query_embeddings is gallery_embeddings
    # One batch is sorted once, for S to stay symmetric; its order also sorts queries by class size.
    query_order = gallery_order if one_batch else tf.argsort(sizes, stable=True)
    gallery = permute(gallery_embeddings, gallery_order)
    queries = gallery if one_batch else permute(query_embeddings, query_order)

    runs, counts = _runs(starts, sizes, self_index, inverse(gallery_order), include_self)
    losses = _penalise_rows(
        cosine_similarity(queries, gallery),
        Runs(*(tf.gather(column, query_order) for column in runs)),
        tf.constant(temperature, gallery.dtype),
        penalty,
        among_positives,
    )
    return permute(losses, inverse(query_order)), counts


def _sort_by_class(gallery_labels, query_labels):
    """The gallery order, and for each query where its class starts in it and how many rows it has.

    By the size of the class, then by label: stable sorts of one-dimensional arrays.
    """
    by_label = tf.argsort(gallery_labels, stable=True)
    labels = tf.gather(gallery_labels, by_label)
    first = tf.searchsorted(labels, labels, side="left")
    size = tf.searchsorted(labels, labels, side="right") - first
    by_size = tf.argsort(size, stable=True)
    # A label that the gallery lacks may point one past its end; its size is 0, nothing is read.
    query_first = tf.searchsorted(labels, query_labels, side="left")
    query_size = tf.searchsorted(labels, query_labels, side="right") - query_first
    place = tf.gather(inverse(by_size), tf.minimum(query_first, tf.size(labels) - 1))
    return tf.gather(by_label, by_size), place, query_size


def _runs(starts, sizes, self_index, gallery_place, include_self):
    """`Runs` of the queries in their own order, and which of them count."""
    present = self_index >= 0
    own = tf.where(present, tf.gather(gallery_place, tf.maximum(self_index, 0)), -1)
    others = sizes - tf.cast(present, tf.int32)
    if include_self:
        counts = others > 0
        runs = Runs(starts, sizes, -tf.ones_like(own), tf.where(counts, sizes, 0))
        return runs, counts
    return Runs(starts, sizes, own, others), others > 0


def _penalise_rows(similarity, runs, temperature, penalty, among_positives):
    """`[queries]` losses of the rows of `similarity`, worked off in blocks of rows."""
    penalise_block = _block_kernel(penalty, among_positives)

    @tf.custom_gradient
    def penalised(similarity):
        # Under an eager tape the block would be differentiated a second time.
        similarity = tf.stop_gradient(similarity)
        queries, gallery = tf.shape(similarity)[0], tf.shape(similarity)[1]
        rows = tf.clip_by_value(BLOCK_SIMILARITIES // tf.maximum(gallery, 1), 1, queries)

        def block(number):
            # Static number of rows, as XLA asks: the last block repeats the last row.
            row = tf.minimum(number * rows + tf.range(rows), queries - 1)
            return penalise_block(
                tf.gather(similarity, row),
                Runs(*(tf.gather(column, row) for column in runs)),
                temperature,
            )

        losses, slopes = tf.map_fn(
            block,
            tf.range(-(-queries // rows)),
            fn_output_signature=(similarity.dtype, similarity.dtype),
            parallel_iterations=1 if tf.executing_eagerly() else 2,
        )
        slopes = tf.reshape(slopes, [-1, gallery])[:queries]
        return tf.reshape(losses, [-1])[:queries], lambda upstream: upstream[:, None] * slopes

    return penalised(similarity)


@functools.cache
def _block_kernel(penalty, among_positives):
    """The compiled function for a block of rows, one for each penalty."""

    def penalise_block(s, runs, temperature):
        """Losses `[rows]` of similarities s, `[rows, gallery]`, and dL/ds, `[rows, gallery]`."""
        start, size, own, positives = runs
        rows, columns = tf.range(tf.shape(s)[0]), tf.range(tf.shape(s)[1])
        same = (columns >= start[:, None]) & (columns < (start + size)[:, None])
        fellow = same & (columns != own[:, None])
        # A class is a ring: walked from behind the query's own place, its own row is never reached.
        first = tf.where(own < 0, 0, own + 1 - start)
        share = 1.0 / tf.cast(tf.maximum(positives, 1), s.dtype)
        zero = tf.zeros_like(s)
        sharpness = 1.0 / temperature

        def penalise_positive(p, losses, slopes):
            i = tf.minimum(start + (first + p) % tf.maximum(size, 1), tf.shape(s)[1] - 1)
            place = tf.stack([rows, i], axis=1)
            before = tf.sigmoid((s - tf.gather_nd(s, place)[:, None]) * sharpness)
            others = fellow & (columns != i[:, None])
            counts = [tf.reduce_sum(tf.where(same, zero, before), axis=1)]
            if among_positives:
                counts.append(tf.reduce_sum(tf.where(others, before, zero), axis=1))

            with tf.GradientTape() as tape:
                tape.watch(counts)
                loss = tf.where(p < positives, penalty(*counts) * share, tf.zeros_like(share))
            rates = [sharpness * rate[:, None] for rate in tape.gradient(loss, counts)]

            rate = tf.where(same, zero, rates[0])
            if among_positives:
                rate = tf.where(others, rates[1], rate)
            slope = rate * before * (1.0 - before)
            # Every s_j pulls on s_i with the opposite sign of its own pull.
            slopes = tf.tensor_scatter_nd_sub(slopes + slope, place, tf.reduce_sum(slope, axis=1))
            return p + 1, losses + loss, slopes

        _, losses, slopes = tf.while_loop(
            lambda p, *_: p < tf.reduce_max(positives),
            penalise_positive,
            [0, tf.zeros_like(share), zero],
        )
        return losses, slopes

    return tf.function(penalise_block, jit_compile=True, autograph=False, reduce_retracing=True)
