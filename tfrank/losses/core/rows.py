"""The basis of every loss on pairs: scores rows of similarities in blocks, together with their gradient.

Each loss supplies a kernel. It maps a block of rows, `[rows, gallery]` similarities, to the loss of each row
and its derivative with respect to each similarity. One pass computes both value and gradient, and the
backward pass only multiplies by the upstream gradient. (First derivatives only.)

Layout. The gallery is sorted so that each class is a contiguous run and runs of similar size are neighbours;
queries have the same order. The p-th positive of a query is then a position in its run, found without
sorting a `[batch, batch]` matrix. A block of rows loops over as many positives as its own largest class has.
XLA fuses the elementwise work of a block, which stays in cache. No shape depends on label values. Queries
and gallery are padded to a few sizes, see `padding`, so that many batch sizes need few programs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from tfrank.common.devices import gpu
from tfrank.common.tensorflow_log import without_tracing_warning
from tfrank.losses.core import padding
from tfrank.losses.core.first_order import first_derivative
from tfrank.losses.core.permutation import inverse, permute
from tfrank.losses.core.scalars import tensor

# Similarities of a block. On a CPU, 2 MiB in float32 stay in cache while a block is processed. A GPU wants
# larger blocks, but every row of a block waits for its largest class. PNP of 4,096 on an H100: with 2^22, a
# class of a quarter takes 67 ms and 294 MB, classes of 4 take 4.6 ms; with 2^24, 182 ms, 616 MB and 3.9 ms.
# See docs/gpu.md.
BLOCK_SIMILARITIES, GPU_SIMILARITIES = 2**19, 2**22
# More than the losses, their variants and some sizes together. TensorFlow never frees compiled programs.
MOST_KERNELS = 512

# Maps a block and the tensors of the hyper-parameters to losses `[rows]` and dL/ds `[rows, gallery]`; where
# the queries have values, also to dL/dvalue `[rows]`.
Kernel = Callable[..., tuple[tf.Tensor, ...]]


class Runs(NamedTuple):
    """The position of each query's positives in a gallery sorted by class; `[queries]` int32 but for two."""

    start: tf.Tensor  # first gallery row of the query's class
    size: tf.Tensor  # gallery rows of that class
    own: tf.Tensor  # the query's own gallery row if it is left out, else -1
    positives: tf.Tensor  # size, minus 1 if the query's own row is left out
    query_index: tf.Tensor  # the query's index in the call
    gallery_size: tf.Tensor  # gallery rows of all classes, without padding; the same for all queries
    finer: tf.Tensor  # [queries, levels] int32, labels of finer classes; no levels for most losses
    value: tf.Tensor  # [queries, 1] float, a value of each query; [queries, 0] for most losses


class Block:
    """A block of rows of similarities, the input of a kernel.

    Attributes:
        s: `[rows, gallery]` similarities.
        candidate_mask: `[rows, gallery]` bool, all columns but padding and, if left out, the query's own row.
        own_mask: `[rows, gallery]` bool, the query's own row if it is left out.
        positive_mask: `[rows, gallery]` bool, the candidates of the query's class.
        negative_mask: `[rows, gallery]` bool, the candidates of other classes.
        positives, negatives: `[rows]` of the dtype of s, their number; at least 1, so that one can divide.
        most_positives: int32 scalar, the largest number of positives of a row.
        query_index: `[rows]` int32, the query's own gallery row if left out, else its row in the global
            batch, if `self_index` says it, or in the call. It does not depend on the blocks.
        gallery_size: `[rows]` int32, the number of columns without padding.
        finer: `[rows, levels]` int32, the queries' finer labels, if `score_rows` was given some.
        value: `[rows, 1]` the queries' values, if `score_rows` was given some.
    """

    def __init__(self, s: tf.Tensor, runs: Runs):
        self.s, self._runs = s, runs
        columns = self.columns = tf.range(tf.shape(s)[1])
        self.gallery_size, self.finer, self.value = runs.gallery_size, runs.finer, runs.value
        exists = columns < runs.gallery_size[:, None]
        same_class = (columns >= runs.start[:, None]) & (columns < (runs.start + runs.size)[:, None])
        self.own_mask = columns == runs.own[:, None]
        self.candidate_mask = ~self.own_mask & exists
        self.positive_mask = same_class & self.candidate_mask
        self.negative_mask = ~same_class & exists
        self.positives = tf.cast(tf.maximum(runs.positives, 1), s.dtype)
        self.negatives = tf.cast(tf.maximum(runs.gallery_size - runs.size, 1), s.dtype)
        self.most_positives = tf.reduce_max(runs.positives)
        self.query_index = tf.where(runs.own < 0, runs.query_index, runs.own)

    def loop_over_positives(self, body: Callable[..., tuple], state: tuple) -> tuple:
        """`state` after `body(i, exists, *state)` for the 1st, 2nd, ... positive of every row.

        i is the gallery row of that positive, `[rows]`. exists is True for rows that have it, `[rows]` bool.
        """

        def step(p, *state):
            i, exists = self._positive(p)
            return p + 1, *body(i, exists, *state)

        return tf.while_loop(lambda p, *_: p < self.most_positives, step, [0, *state])[1:]

    def positive_columns(self, width: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The gallery rows of the first `width` positives of each row, and which of these exist.

        Both are `[rows, width]`. A positive that does not exist has any gallery row.
        """
        columns, exists = self._positive(tf.range(width)[:, None])
        return tf.transpose(columns), tf.transpose(exists)

    def _positive(self, p):
        """The gallery row of the p-th positive of every row, and whether it exists."""
        start, size, own, positives = self._runs[:4]
        # Goes round the class, starting after the query's own row, so that row is never reached.
        first = tf.where(own < 0, 0, own + 1 - start)
        i = tf.minimum(start + (first + p) % tf.maximum(size, 1), tf.size(self.columns) - 1)
        return i, p < positives

    def at(self, i: tf.Tensor, matrix: tf.Tensor | None = None) -> tf.Tensor:
        """`[rows, 1]`: each row's entry in column i of `matrix`, or of the similarities if None."""
        return tf.gather(self.s if matrix is None else matrix, i, axis=1, batch_dims=1)[:, None]

    def add_at(self, matrix: tf.Tensor, i: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """`matrix` with `values`, `[rows]`, added to each row's entry in column i.

        Or with `values`, `[rows, width]`, added in the columns i, `[rows, width]`.
        """
        rows = tf.range(tf.shape(i)[0])
        rows = rows if i.shape.rank == 1 else rows[:, None] + tf.zeros_like(i)
        return tf.tensor_scatter_nd_add(matrix, tf.stack([rows, i], axis=-1), values)


def score_rows(
    kernel: Kernel,
    query_labels: tf.Tensor,
    query_embeddings: tf.Tensor,
    gallery_labels: tf.Tensor,
    gallery_embeddings: tf.Tensor,
    self_index: tf.Tensor,
    *scalars: Any,
    include_self: bool = False,
    needs_positives: bool = True,
    needs_negatives: bool = False,
    constant_gallery: bool = False,
    present: tf.Tensor | None = None,
    finer: tuple[tf.Tensor, tf.Tensor] | None = None,
    values: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the loss of each query by a kernel, with the kernel's gradient.

    Args:
        kernel: see `Kernel`. Pass the same object in each call: every new one is compiled, and its program is
            kept.
        query_labels: `[queries]` int64.
        query_embeddings: `[queries, dim]` float, unit norm.
        gallery_labels: `[gallery]` int64.
        gallery_embeddings: `[gallery, dim]` float, unit norm. If the queries are the gallery, pass the same
            tensor object for both: the gradient then takes one product, not two.
        self_index: `[queries]` int32, the query's own gallery row, or -1. A query that is row r > 0 of the
            global batch and has no own row in the gallery may say so by -1 - r.
        *scalars: the hyper-parameters of the kernel: floats, tuples of floats, variables or tensors. The
            compiled program takes them as tensors of the embeddings' dtype; integer tensors keep theirs.
        include_self: whether the query's own row counts as a positive; if not, it is left out.
        needs_positives: whether a valid query must have a positive; if not, a negative is enough.
        needs_negatives: whether a valid query must also have a negative.
        constant_gallery: whether only the query gets a gradient.
        present: `[gallery]` bool, mask of gallery rows to keep; the similarity of the others is -inf. Masked
            rows must share no query's class; only kernels that merely compare similarities support masks.
            None keeps all.
        finer: `[queries, levels]` and `[gallery, levels]` int32 labels of finer classes. The kernel gets
            those of a block's rows as `block.finer`, and those of its columns, `[levels, gallery]`, as its
            first argument after the block.
        values: `[queries]` float, a value of each query, which gets a gradient too. The kernel gets those of
            a block's rows as `block.value`, `[rows, 1]`, and returns dL/dvalue, `[rows]`, as its third
            output.

    Returns:
        The loss per query, `[queries]`, 0 for queries that are not valid, NaN if an embedding is NaN; and
        which queries are valid, `[queries]` bool: those with a positive other than themselves.

    In a graph, all of it is one TensorFlow function for each kernel and set of options: one operation of that
    graph. TensorFlow, which keeps every graph that has a custom gradient, keeps only the graphs of these
    functions. Not in a graph that XLA compiles: it would take labels in a function for constants.

    Memory: about three matrices `[queries, gallery]`. Time: one product `[queries, gallery]` forward and one
    backward (two if queries are not the gallery), and the time of the kernel. Both are for the padded sizes
    of queries and gallery.
    """
    if 0 in (query_embeddings.shape[0], gallery_embeddings.shape[0]):
        zero = 0 * tf.reduce_sum(query_embeddings, axis=1)
        return zero, tf.zeros_like(zero, tf.bool)
    one_batch = query_embeddings is gallery_embeddings
    options = Options(include_self, needs_positives, needs_negatives, constant_gallery, one_batch)
    block_similarities = GPU_SIMILARITIES if gpu() else BLOCK_SIMILARITIES
    run = functools.partial(_score_all, kernel, options, block_similarities)
    direct = tf.executing_eagerly() or GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    score = run if direct else _scoring(kernel, options, block_similarities)
    return score(
        query_labels,
        query_embeddings,
        gallery_labels,
        None if one_batch else gallery_embeddings,
        self_index,
        tuple(tensor(scalar, gallery_embeddings.dtype) for scalar in scalars),
        present,
        finer,
        values,
    )


class Options(NamedTuple):
    """See `score_rows`; `one_batch`: whether the queries are the gallery."""

    include_self: bool
    needs_positives: bool
    needs_negatives: bool
    constant_gallery: bool
    one_batch: bool


@functools.lru_cache(MOST_KERNELS)
def _scoring(kernel, options: Options, block_similarities):
    """`_score_all` as a TensorFlow function, the same object in each call."""

    def score(*arguments):
        return _score_all(kernel, options, block_similarities, *arguments)

    return without_tracing_warning(tf.function(score, autograph=False, reduce_retracing=True))


def _score_all(
    kernel,
    options: Options,
    block_similarities,
    query_labels,
    query_embeddings,
    gallery_labels,
    gallery_embeddings,
    self_index,
    scalars,
    present,
    finer,
    values,
):
    """See `score_rows`; `gallery_embeddings` is None if the queries are the gallery."""
    one_batch = options.one_batch
    gallery_embeddings = query_embeddings if one_batch else gallery_embeddings
    gallery_order, starts, sizes = _sort_by_class(gallery_labels, query_labels)
    # One batch is sorted once, so that S stays symmetric; this order also sorts queries by class size.
    query_order = gallery_order if one_batch else tf.argsort(sizes, stable=True)
    gallery = permute(gallery_embeddings, gallery_order)
    queries = gallery if one_batch else permute(query_embeddings, query_order)

    finer_queries = tf.zeros([tf.size(query_labels), 0], tf.int32) if finer is None else finer[0]
    value = tf.zeros([tf.size(query_labels), 0], queries.dtype) if values is None else values[:, None]
    runs, valid = _runs(
        starts, sizes, self_index, inverse(gallery_order), options.include_self, finer_queries, value
    )
    others = sizes < tf.size(gallery_labels)
    if not options.needs_positives:
        valid |= others
    if options.needs_negatives:
        valid &= others
        runs = runs._replace(positives=tf.where(valid, runs.positives, 0))
    number = tf.size(query_labels)
    more_queries, more_gallery = padding.missing(number), padding.missing(tf.size(gallery_labels))
    gallery = padding.pad(gallery, more_gallery)
    queries = gallery if one_batch else padding.pad(queries, more_queries)
    runs = Runs(*(padding.pad(tf.gather(column, query_order), more_queries) for column in runs))
    if finer is not None:
        finer_gallery = padding.pad(tf.gather(finer[1], gallery_order), more_gallery)
        scalars = (tf.transpose(finer_gallery), *scalars)
    absent = None if present is None else padding.pad(~tf.gather(present, gallery_order), more_gallery)
    score_in_blocks = _compiled(kernel, block_similarities, gallery.shape[0], options.needs_positives)
    losses = _score(
        lambda similarity, runs: score_in_blocks(similarity, runs, *scalars),
        *(queries, gallery, runs, options.constant_gallery, absent),
    )
    return permute(losses[:number], inverse(query_order)), valid


def _score(score_in_blocks, queries, gallery, runs, constant_gallery, absent):
    """`[queries]` losses, for queries and a gallery in the order of `runs`."""
    one_batch = queries is gallery

    @tf.custom_gradient
    def scored(value, *embeddings):
        # Without stop_gradient an eager tape would differentiate the blocks a second time, and a persistent
        # tape would differentiate what a function keeps for its gradient.
        queries, gallery = (tf.stop_gradient(embeddings[side]) for side in (0, -1))
        similarity = tf.matmul(queries, gallery, transpose_b=True)
        if absent is not None:
            similarity = tf.where(absent, tf.constant(-float("inf"), similarity.dtype), similarity)
        losses, *slopes = score_in_blocks(similarity, runs._replace(value=tf.stop_gradient(value)))
        slopes, rates = map(tf.stop_gradient, slopes)
        # Add 0 x embeddings, as comparisons and bins would hide a NaN.
        losses += 0 * (tf.reduce_sum(queries) + tf.reduce_sum(gallery))

        def gradient(upstream):
            slope = first_derivative(upstream[:, None] * slopes, value, *embeddings)
            to_value = first_derivative(upstream[:, None] * rates, value, *embeddings)
            if one_batch and not constant_gallery:
                # S = E E^T, so the gradient is one product with D + D^T; autodiff takes two.
                return to_value, tf.matmul(slope + tf.transpose(slope), gallery)
            to_queries = tf.matmul(slope, gallery)
            if one_batch:
                return to_value, to_queries
            to_gallery = None if constant_gallery else tf.matmul(slope, queries, transpose_a=True)
            return to_value, to_queries, to_gallery

        return losses, gradient

    return scored(runs.value, queries) if one_batch else scored(runs.value, queries, gallery)


def _sort_by_class(gallery_labels, query_labels):
    """The gallery order, and for each query the start of its class in that order and the size of its class.

    Sorts by the size of the class, then by label, with stable sorts of one-dimensional arrays.
    """
    by_label = tf.argsort(gallery_labels, stable=True)
    labels = tf.gather(gallery_labels, by_label)
    first = tf.searchsorted(labels, labels, side="left")
    size = tf.searchsorted(labels, labels, side="right") - first
    by_size = tf.argsort(size, stable=True)
    # A label that is not in the gallery may point one past its end. Its size is 0, so nothing is read.
    query_first = tf.searchsorted(labels, query_labels, side="left")
    query_size = tf.searchsorted(labels, query_labels, side="right") - query_first
    start = tf.gather(inverse(by_size), tf.minimum(query_first, tf.size(labels) - 1))
    return tf.gather(by_label, by_size), start, query_size


def _runs(starts, sizes, self_index, gallery_position, include_self, finer, value):
    """`Runs` of the queries in their own order, and which of them are valid."""
    present = self_index >= 0
    own = tf.where(present, tf.gather(gallery_position, tf.maximum(self_index, 0)), -1)
    others = sizes - tf.cast(present, tf.int32)
    query_index = tf.where(self_index < -1, -1 - self_index, tf.range(tf.size(starts)))
    gallery_size = tf.fill(tf.shape(starts), tf.size(gallery_position))
    runs, valid = Runs(starts, sizes, own, others, query_index, gallery_size, finer, value), others > 0
    if include_self:
        runs = runs._replace(own=-tf.ones_like(own), positives=tf.where(valid, sizes, 0))
    return runs, valid


@functools.lru_cache(MOST_KERNELS)
def _compiled(kernel, block_similarities, gallery_size, needs_positives):
    """The compiled function of a kernel, from all similarities to losses, and slopes by them and by values.

    One for each size of the gallery that is known, None if it is not: it decides which branches are compiled.
    """

    def score_block(s, runs, scalars):
        losses, slopes, *rates = kernel(Block(s, runs), *scalars)
        valid = runs.positives > 0
        if not needs_positives:
            valid |= runs.size < runs.gallery_size
        rates = tf.stack(rates, axis=1) if rates else tf.zeros_like(runs.value)
        # Rows that are not valid may still have negatives, for which the kernel gives a loss.
        return (
            tf.where(valid, losses, tf.zeros_like(losses)),
            tf.where(valid[:, None], slopes, tf.zeros_like(slopes)),
            tf.where(valid[:, None], rates, tf.zeros_like(rates)),
        )

    def score_in_blocks(similarity, runs, *scalars):
        similarity.set_shape([None, gallery_size])
        queries, gallery = tf.shape(similarity)[0], tf.shape(similarity)[1]
        rows = tf.clip_by_value(block_similarities // tf.maximum(gallery, 1), 1, queries)
        # XLA requires blocks of one size. Padding rows in the last block have no positives.
        ragged = -queries % rows

        def in_blocks(rows_of):
            shape = tf.concat([[(queries + ragged) // rows, rows], tf.shape(rows_of)[1:]], 0)
            blocks = tf.reshape(padding.pad(rows_of, ragged), shape)
            blocks.set_shape([None, None, *rows_of.shape[1:]])
            return blocks

        losses, slopes, rates = tf.map_fn(
            lambda block: score_block(block[0], Runs(*block[1:]), scalars),
            (in_blocks(similarity), *(in_blocks(column) for column in runs)),
            fn_output_signature=(similarity.dtype,) * 3,
        )
        slopes, rates = tf.reshape(slopes, [-1, gallery]), tf.reshape(rates, [-1, runs.value.shape[1]])
        return tf.reshape(losses, [-1])[:queries], slopes[:queries], rates[:queries]

    return without_tracing_warning(
        tf.function(score_in_blocks, jit_compile=True, autograph=False, reduce_retracing=True)
    )
