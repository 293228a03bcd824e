"""Rows without a class: a batch is scored without them."""

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from tfrank.common.checks import InputError
from tfrank.losses.core.dense_gather import gather

# Maps labels, embeddings and weights of rows to the loss and the weight of each.
Scored = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def scored_where_kept(
    scored: Scored, labels: tf.Tensor, embeddings: tf.Tensor, weights: tf.Tensor, ignore_label: int | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss and the weight of each row, `[batch]`, by a function that sees only rows with a class.

    Both are 0 for rows with the label to ignore.

    Args:
        scored: see `Scored`.
        labels: `[batch]` int64.
        embeddings: `[batch, dim]` float.
        weights: `[batch]` float.
        ignore_label: None keeps all rows.

    Raises:
        InputError: XLA compiles the program.
    """
    if ignore_label is None:
        return scored(labels, embeddings, weights)
    rows = _kept(labels, ignore_label)
    values = scored(tf.gather(labels, rows), gather(embeddings, rows), tf.gather(weights, rows))
    losses, kept = (tf.scatter_nd(rows[:, None], one, tf.shape(labels)) for one in values)
    return losses, kept


def kept_rows(
    labels: tf.Tensor, embeddings: tf.Tensor, *columns: tf.Tensor, ignore_label: int | None
) -> tuple[tf.Tensor, ...]:
    """Returns the arguments without the rows that have the label to ignore; None keeps all rows."""
    if ignore_label is None:
        return labels, embeddings, *columns
    rows = _kept(labels, ignore_label)
    return tf.gather(labels, rows), gather(embeddings, rows), *(tf.gather(column, rows) for column in columns)


def _kept(labels, ignore_label):
    """The numbers of the rows with a class."""
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise InputError(
            "XLA cannot compile a program with ignore_label, as shapes depend on labels. Compile the model"
            " with jit_compile=False."
        )
    return tf.cast(tf.where(labels != ignore_label)[:, 0], tf.int32)
