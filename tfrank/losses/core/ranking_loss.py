"""RankingLoss: the base class of the losses, a `keras.losses.Loss`."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from tfrank.common import checks, distributed
from tfrank.common.normalize import l2_normalize
from tfrank.losses.core import scalars
from tfrank.losses.core.ignored import scored_where_kept
from tfrank.losses.core.loss import Loss

NO_POSITIVES = (
    "No image of this batch has another of its class, so its loss is 0 and nothing is learnt from it; or, for"
    " a loss that needs other classes too, all are of one class; or all sample weights are 0. The first is"
    " usual of shuffled batches of many classes, the second of sorted ones. tfrank.data.balanced_batches"
    " gives batches in which every image has others of its class. Keras' mean over the batches counts such a"
    " batch as 0, in val_loss too; tfrank.metrics.MeanLoss(loss) leaves it out."
)


class RankingLoss(Loss):
    """A loss of integer labels and embeddings, computed over the whole global batch.

        loss = sum_q w_q L_q / sum_q w_q        over the valid queries q

    A query is valid if the batch has another image of its class (for some losses also one of another class).
    A subclass checks its hyper-parameters and supplies its core, a pure function that returns L_q and which
    queries are valid. This class does everything else. Each replica scores its own queries against the batch
    gathered from all replicas, and divides by the total weight of the valid queries of the global batch. The
    values of the replicas, and their gradients, are therefore to be summed, as Keras and `strategy.run` with
    a Keras optimizer do: N replicas then equal one device.

    Args:
        core: f(query_labels, query_embeddings, gallery_labels, gallery_embeddings, self_index,
            **hyper_parameters). Takes int64 labels and embeddings of unit norm; returns the loss per query,
            `[queries]`, and which queries are valid, `[queries]` bool.
        hyper_parameters: arguments of the core. `get_config` returns them too, besides the two below. A
            number may be a variable, see below.
        reduction: "mean" over the valid queries; "sum" of w_q L_q; "sum_over_batch_size", that sum divided by
            the number of rows of the global batch, valid or not, as in Keras; None or "none" for `[batch]`
            values w_q L_q, 0 for queries that are not valid.
        ignore_label: label of rows without a class, such as -1. Such a row is neither positive nor negative
            and no query: value and gradient are those of the batch without it. None: every label is a class.
            XLA cannot compile a loss with it, as shapes depend on labels: `compile(jit_compile=False)`.
        name: name of the loss.

    Called as `loss(labels, embeddings, sample_weight=None)`:
        labels: `[batch]` or `[batch, 1]`, any integer dtype; compared as integers.
        embeddings: `[batch, dim]`, any float dtype and norm; they are L2-normalised. A row of norm
            below 1e-6 has similarity 0 to everything and no gradient.
        sample_weight: `[batch]` or `[batch, 1]` w_q, finite, at least 0; 1 if None.

    A batch without a valid query gives 0 and zero gradients. The first such batch gives a UserWarning, except
    with reduction None and where XLA compiles the loss, as XLA programs cannot call Python. Only first
    derivatives exist: a gradient of the gradient raises InputError (except for `lifted_structure`, which
    autodiff differentiates).

    Temperatures, margins and other numbers are arguments of one compiled program, so that many values need
    only one program. Each may also be a variable of one float: `temperature=tf.Variable(0.1)`. Assign
    to it between steps, for example in a Keras callback. The next step, traced or not, uses the new value. It
    gets no gradient, is in `variables`, and is a plain number in a saved model. Bounds are checked when the
    loss is created, not when a variable changes.

    The loss pads each batch to the next of `padding.SIZES`, so that many batch sizes need few programs. Value
    and gradient are those of the batch itself. Common sizes, such as powers of two, are not padded.

    A loss of your own needs a kernel and a class; here, a smooth hinge over pairs. A kernel maps similarities
    to the loss of each query and its slope by each similarity, see `tfrank.losses.kernels`.

    >>> import tfrank
    >>> from tfrank.losses.kernels import score_rows
    >>> def kernel(block, margin):
    ...     share = tf.where(block.positive_mask, -1 / block.positives[:, None], 0)
    ...     share = tf.where(block.negative_mask, 1 / block.negatives[:, None], share)
    ...     violation = tf.sign(share) * (block.s - margin)
    ...     losses = tf.reduce_sum(tf.abs(share) * tf.math.softplus(violation), axis=1)
    ...     return losses, share * tf.sigmoid(violation)
    >>> def smooth_hinge_loss(*rows, margin):
    ...     return score_rows(kernel, *rows, margin)
    >>> class SmoothHingeLoss(tfrank.RankingLoss):
    ...     def __init__(self, margin=0.5, *, reduction="mean", name="smooth_hinge"):
    ...         super().__init__(smooth_hinge_loss, {"margin": margin}, reduction=reduction, name=name)
    >>> loss = SmoothHingeLoss(0.5)
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    1.6524

    Attributes:
        normalize: whether embeddings are L2-normalised first. True unless a loss states otherwise.
        iteration: the variable that counts training steps, for losses that change with the step. `fit` needs
            none, see `Loss`.
        warns: whether the loss gives that warning. True unless a trainer gives its own.
    """

    normalize: bool = True
    warns: bool = True

    def __init__(
        self,
        core: Callable[..., tuple[tf.Tensor, tf.Tensor]],
        hyper_parameters: dict[str, Any],
        *,
        reduction: str | None = "mean",
        ignore_label: int | None = None,
        name: str | None = None,
    ):
        super().__init__(reduction=reduction, ignore_label=ignore_label, name=name)
        self._core = core
        self.hyper_parameters = hyper_parameters

    @property
    def variables(self) -> list[tf.Variable]:
        """The state to store in checkpoints: hyper-parameters that are variables."""
        held = filter(scalars.is_variable, self.hyper_parameters.values())
        return [value.value if isinstance(value, keras.Variable) else value for value in held]

    def score(
        self,
        query_labels: tf.Tensor,
        query_embeddings: tf.Tensor,
        gallery_labels: tf.Tensor,
        gallery_embeddings: tf.Tensor,
        self_index: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """L_q of queries against any gallery, `[queries]`, and which queries are valid, `[queries]` bool.

        Labels may have any integer dtype and embeddings any norm, as in a call of the loss. If the queries
        are the gallery, pass the same embeddings object for both.

        Args:
            query_labels: `[queries]`.
            query_embeddings: `[queries, dim]`.
            gallery_labels: `[gallery]`.
            gallery_embeddings: `[gallery, dim]`.
            self_index: `[queries]` integers, the query's own gallery row, or -1.
        """
        labels, queries = self._checked_rows(query_labels, query_embeddings)
        if gallery_embeddings is query_embeddings:
            gallery_labels, gallery = checked_batch(gallery_labels, gallery_embeddings, None)[0], queries
        else:
            gallery_labels, gallery = self._checked_rows(gallery_labels, gallery_embeddings)
        if not queries.shape[1:].is_compatible_with(gallery.shape[1:]):
            expected = f"{queries.shape[1]} dimensions, as those of the queries"
            raise checks.invalid("gallery_embeddings", expected, str(gallery.shape))
        if queries.dtype != gallery.dtype:
            queries, gallery = tf.cast(queries, tf.float64), tf.cast(gallery, tf.float64)
        return self._score(labels, queries, gallery_labels, gallery, tf.cast(self_index, tf.int32))

    def _checked_rows(self, labels, embeddings):
        """int64 labels, and embeddings normalised as the core needs them."""
        labels, embeddings, _ = checked_batch(labels, embeddings, None)
        return labels, l2_normalize(embeddings) if self.normalize else embeddings

    def _score(
        self,
        query_labels: tf.Tensor,
        query_embeddings: tf.Tensor,
        gallery_labels: tf.Tensor,
        gallery_embeddings: tf.Tensor,
        self_index: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Calls the core with the hyper-parameters of this loss; subclasses override it."""
        rows = (query_labels, query_embeddings, gallery_labels, gallery_embeddings, self_index)
        return self._core(*rows, **self.hyper_parameters)

    def weigh(self, labels: tf.Tensor, valid: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """w_q of this replica's queries, `[queries]`: the sample weight, or 0 if the query is not valid."""
        return tf.where(valid, weights, tf.zeros_like(weights))

    # Overrides `__call__`, as Keras casts labels to float before `call`: 2^24 and 2^24 + 1 would be equal.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, y_true, y_pred, sample_weight=None):
        with tf.name_scope(self.name):
            losses, weights = self.rows(y_true, y_pred, sample_weight)
            return global_mean(losses, weights, self.reduction, self._warn if self.warns else None)

    def rows(
        self, labels: tf.Tensor, embeddings: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """L_q and w_q of the rows of this replica, `[batch]` each, of which the loss is the mean.

        Takes what a call of the loss takes. w_q is 0 for queries that are not valid.
        """
        self.look_at(embeddings)
        labels, embeddings, weights = checked_batch(labels, embeddings, sample_weight)
        return scored_where_kept(self._scored, labels, embeddings, weights, self.ignore_label)

    def look_at(self, embeddings: tf.Tensor) -> None:
        """Looks at the embeddings as they are given, before they lose their marks, see `loss_layers`."""

    def _scored(self, labels, embeddings, weights):
        """L_q and w_q of the rows of this replica, `[batch]` each, against those of all replicas."""
        queries = l2_normalize(embeddings) if self.normalize else embeddings
        own_row = distributed.first_row(labels) + tf.range(tf.size(labels))
        losses, valid = self._score(
            labels,
            queries,
            distributed.gather_rows(labels),
            distributed.gather_rows(queries),
            own_row,
        )
        return losses, self.weigh(labels, valid, weights)

    def _warn(self):
        if self.warns:
            self.warns = False
            warnings.warn(NO_POSITIVES, UserWarning, stacklevel=1)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor; a variable gives its current value."""
        numbers = {key: scalars.current(value) for key, value in self.hyper_parameters.items()}
        return {**super().get_config(), **numbers}


def global_mean(
    losses: tf.Tensor,
    weights: tf.Tensor,
    reduction: str | None,
    on_zero_weight: Callable[[], None] | None = None,
) -> tf.Tensor:
    """This replica's share of the mean loss of the global batch; its parts are summed over replicas.

        "mean": sum of w_q L_q over this replica's queries / sum of w_q over the global batch  (0 / 0 is 0)
        "sum": that sum
        "sum_over_batch_size": that sum / number of rows of the global batch

    Args:
        losses: `[queries]`.
        weights: `[queries]`, 0 for queries that are not valid.
        reduction: see above; None for the `[queries]` terms w_q L_q.
        on_zero_weight: function called if all weights are 0, unless XLA compiles the program.
    """
    losses = weights * losses
    if reduction is None:
        return losses
    # Divisors cover the global batch, so the sum over replicas needs no further factor 1/R.
    divisor = total = distributed.sum_over_replicas(tf.reduce_sum(weights))
    if reduction == "sum":
        divisor = tf.ones_like(total)
    if reduction == "sum_over_batch_size":
        divisor = distributed.sum_over_replicas(tf.cast(tf.size(losses), losses.dtype))
    if on_zero_weight and not GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        tf.cond(total > 0, tf.no_op, lambda: tf.numpy_function(on_zero_weight, [], []))
    return tf.math.divide_no_nan(tf.reduce_sum(losses), divisor)


def keras_builds() -> bool:
    """Whether Keras traces a loss to build a model under a strategy.

    It does so on tensors of its own; the labels are the mean of the replicas' labels, a float.
    """
    return tf.distribute.in_cross_replica_context() and not tf.executing_eagerly()


def checked_batch(labels, embeddings, sample_weight):
    """Checks a batch. Returns int64 `[batch]` labels, float32 or float64 `[batch, dim]` embeddings, and
    `[batch]` weights.
    """
    labels, embeddings = tf.convert_to_tensor(labels), tf.convert_to_tensor(embeddings)
    replicas = distributed.replica_count()
    mirrored = isinstance(tf.distribute.get_strategy(), tf.distribute.MirroredStrategy)
    if mirrored and replicas > 1 and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise checks.InputError(
            "XLA cannot compile a training step of several replicas. Compile the model with"
            " jit_compile=False."
        )
    if not labels.dtype.is_integer and not keras_builds():
        raise checks.invalid("labels", "integers", labels.dtype.name)
    if not embeddings.dtype.is_floating:
        raise checks.invalid("embeddings", "floats", embeddings.dtype.name)
    if embeddings.shape.rank != 2:
        raise checks.invalid("embeddings", "shape [batch, dim]", str(embeddings.shape))
    dtype = tf.float64 if embeddings.dtype == tf.float64 else tf.float32
    if sample_weight is None:
        weights = tf.ones_like(embeddings[:, 0], dtype)
    else:
        weights = _checked_weights(tf.stop_gradient(tf.cast(sample_weight, dtype)))
    if replicas > 1:
        # A replica without rows would make the others wait forever.
        message = (
            f"A batch has fewer rows than there are replicas, {replicas}. Make batches of a multiple of"
            f" {replicas} rows, and the last one too: batch(..., drop_remainder=True)."
        )
        with tf.control_dependencies([tf.debugging.Assert(tf.shape(embeddings)[0] > 0, [message])]):
            embeddings = tf.identity(embeddings)
    labels = _column("labels", labels, embeddings)
    return (
        tf.cast(labels, tf.int64),
        tf.cast(embeddings, dtype),
        _column("sample_weight", weights, embeddings),
    )


def _checked_weights(weights):
    """Returns the weights if all are finite and at least 0. XLA leaves out assertions, so it accepts any."""
    bad = ~(tf.math.is_finite(weights) & (weights >= 0))
    expected = "finite numbers of at least 0"
    if tf.executing_eagerly() and tf.reduce_any(bad):
        raise checks.invalid("sample_weight", expected, weights[bad][0].numpy().item())
    message = [f"sample_weight: expected {expected}, received", weights]
    with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(bad), message)]):
        return tf.identity(weights)


def _column(name, values, embeddings):
    """Reshapes `[batch]` or `[batch, 1]` to `[batch]`; the batch must be that of the embeddings."""
    expected = f"shape [batch] or [batch, 1] with the batch of embeddings {embeddings.shape}"
    shape = values.shape
    if shape.rank not in (None, 1, 2) or (shape.rank == 2 and shape[1] not in (None, 1)):
        raise checks.invalid(name, expected, shape.as_list())
    values = tf.reshape(values, [-1])
    if not values.shape.is_compatible_with(embeddings.shape[:1]):
        raise checks.invalid(name, expected, shape.as_list())
    with tf.control_dependencies(
        [tf.debugging.assert_equal(tf.size(values), tf.shape(embeddings)[0], f"{name}: {expected}")]
    ):
        return tf.identity(values)
