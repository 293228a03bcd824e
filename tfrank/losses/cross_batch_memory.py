"""Cross-batch memory (Wang et al., CVPR 2020, arXiv 1912.06798): past embeddings extend the gallery."""

import weakref
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.losses.asymmetric import AsymmetricLoss
from tfrank.losses.core.loss_around import LossAround
from tfrank.losses.core.ranking_loss import RankingLoss


@keras.saving.register_keras_serializable("tfrank")
class CrossBatchMemory(LossAround):
    """Wraps a loss so that it ranks its queries against the batch and the last `size` embeddings before it.

        gallery of step t = batch t, and the last M rows of batches ..., t - 2, t - 1

    Embeddings drift slowly, so embeddings from a few hundred steps ago are still useful: a batch of 64 sees
    as many negatives as a batch of thousands. Past embeddings are constants; the rows of the batch get their
    usual gradient.

    The memory stores a batch when the gradient is computed, not when the loss is. Evaluation therefore does
    not change the memory (its loss is, as in training, against batch and memory). A batch with embeddings
    that are not finite, as happens in float16, is not stored. The memory joins the gallery once it is full
    and `warm_up` batches have been stored. Until then the loss is that of the inner loss.

    A memory belongs to one embedding. Each output of a model, and each model, needs its own. In `fit` and
    other traced steps on one device, use with a second model raises InputError. An eager loop and a strategy
    of several replicas do not detect it. All replicas keep the same rows in the same order, those of the
    global batch. Create the loss, like the model, in the scope of the strategy.

    Args:
        loss: a `RankingLoss`, which gets the extended gallery.
        size: M, rows of the memory, at least 1. The paper takes up to the whole training set.
        warm_up: number of batches before the memory joins, while embeddings still change quickly; at least
            0. Default 1,000 (the paper's).
        name: name of the loss.

    Attributes:
        labels, embeddings: the variables of the memory, `[rows]` int64 and `[rows, dim]` float32, the oldest
            row first; no rows at first, M when full.
        batches: the variable that counts the batches stored.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another row of its class in batch and memory has no loss and no gradient, and is left out
    of the mean. The memory is part of `variables`, which the trainer's checkpoints contain. A saved Keras
    model contains the settings of its loss but not the memory, which then fills again.

    Reference: Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020, arXiv 1912.06798. Memory: a
    replica keeps M (4 dim + 8) bytes, and twice that while it stores a batch. The matrices of the inner loss
    are `[batch, batch + M]`. XLA cannot compile this loss, as its shapes change when the memory joins. On
    GPUs, where Keras uses XLA by default, compile the model with `jit_compile=False`.

    >>> from tfrank import PNPLoss
    >>> loss = CrossBatchMemory(PNPLoss("dq"), size=4, warm_up=0)
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.9626
    """

    def __init__(
        self, loss: RankingLoss, size: int, *, warm_up: int = 1000, name: str = "cross_batch_memory"
    ):
        # Of a `MatryoshkaLoss` the loss inside ranks.
        ranks = isinstance(loss, RankingLoss) and isinstance(getattr(loss, "loss", loss), RankingLoss)
        if not ranks or isinstance(loss, CrossBatchMemory | AsymmetricLoss):
            may = "parts of a WeightedSum, and the loss in an AsymmetricLoss, may have one"
            expected = f"a RankingLoss without a memory ({may})"
            raise checks.invalid("loss", expected, loss)
        self.loss = loss
        self.size = checks.integer("size", size, at_least=1)
        self.warm_up = checks.integer("warm_up", warm_up, at_least=0)
        super().__init__(loss._score, {}, reduction=loss.reduction, ignore_label=loss.ignore_label, name=name)
        self.normalize = loss.normalize
        self.labels = _per_replica(tf.zeros([0], tf.int64), [None], "memory_labels")
        self.embeddings = _per_replica(tf.zeros([0, 0]), [None, None], "memory_embeddings")
        self.batches = _per_replica(tf.constant(0, tf.int64), [], "memory_batches")
        self._dim = None  # Dimension of the embeddings, set by the first ones.
        # By id, the variables that a traced step read before the loss: those of the model.
        self._read: dict[int, Any] = {}

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables of the memory and of the inner loss."""
        return [self.labels, self.embeddings, self.batches, *self.loss.variables]

    def _score(
        self,
        query_labels: tf.Tensor,
        query_embeddings: tf.Tensor,
        gallery_labels: tf.Tensor,
        gallery_embeddings: tf.Tensor,
        self_index: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The inner loss of queries against the gallery, followed by the memory once it has joined."""
        self._check_dim(gallery_embeddings.shape[1])
        self._check_model()
        past_labels, past = self.labels.read_value(), tf.stop_gradient(self.embeddings.read_value())
        past = tf.cast(past, gallery_embeddings.dtype)
        joins = (tf.size(past_labels) == self.size) & (self.batches >= self.warm_up)
        labels, embeddings = tf.cond(
            joins,
            lambda: (tf.concat([gallery_labels, past_labels], 0), tf.concat([gallery_embeddings, past], 0)),
            lambda: (gallery_labels, gallery_embeddings),
        )
        embeddings = tf.ensure_shape(embeddings, [None, gallery_embeddings.shape[1]])
        losses, valid = self.loss._score(query_labels, query_embeddings, labels, embeddings, self_index)

        @tf.custom_gradient
        def enqueuing(losses):
            def gradient(upstream):
                self._enqueue(gallery_labels, gallery_embeddings)
                return upstream

            return tf.identity(losses), gradient

        return enqueuing(losses), valid

    def _check_dim(self, dim):
        # Under a strategy Keras also traces the loss with embeddings of unknown shape.
        if dim is None:
            return
        if self._dim not in (None, dim):
            raise checks.InputError(
                f"The memory of the loss {self.name!r} holds embeddings of {self._dim} dimensions. Received"
                f" some of {dim}. Make another loss for another model or output."
            )
        self._dim = dim

    def _check_model(self):
        """Raises InputError in a traced step of a model that shares no variable with the previous model."""
        # Under a strategy a variable has one component for each replica.
        parts = [part for variable in self.variables for part in getattr(variable, "values", [variable])]
        own = {id(part.handle) for part in parts}
        read = {key: handle for key, handle in _variables_read().items() if key not in own}
        before = {key: handle for key, handle in self._read.items() if handle() is not None}
        if read and before and not read.keys() & before.keys():
            raise checks.InputError(
                f"The memory of the loss {self.name!r} holds embeddings of another model, which do not"
                " compare with this one's. Make another CrossBatchMemory for this model."
            )
        self._read = before | read

    def _enqueue(self, labels, embeddings):
        # Store no rows if any is not finite: they would make all losses NaN until they leave the memory.
        number = tf.size(labels) * tf.cast(tf.reduce_all(tf.math.is_finite(embeddings)), tf.int32)
        labels, embeddings = labels[:number], embeddings[:number]
        # The initial shape is [0, 0].
        past = tf.reshape(self.embeddings, [-1, tf.shape(embeddings)[1]])
        embeddings = tf.cast(tf.stop_gradient(embeddings), tf.float32)
        self.embeddings.assign(self._last(past, embeddings))
        self.labels.assign(self._last(self.labels, labels))
        self.batches.assign_add(tf.cast(number > 0, tf.int64))

    def _last(self, past, rows):
        """The last `size` rows of past and new rows together, in one copy."""
        too_many = tf.maximum(tf.shape(past)[0] + tf.shape(rows)[0] - self.size, 0)
        return tf.concat([past[too_many:], rows[-self.size :]], 0)

    @tf.autograph.experimental.do_not_convert
    def __call__(self, y_true, y_pred, sample_weight=None):
        """Computes the loss, see `RankingLoss`."""
        if distributed.replica_count() > 1 and not hasattr(self.labels, "values"):
            raise checks.InputError(
                f"The memory of the loss {self.name!r} is one for all replicas. Make the loss in"
                " `with strategy.scope():`, as the model."
            )
        return super().__call__(y_true, y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "loss": keras.losses.serialize(self.loss),
            "size": self.size,
            "warm_up": self.warm_up,
            "name": self.name,
        }


def _variables_read():
    """Handles of the variables that the traced step has read so far, by id; empty in eager mode."""
    handles, graph = {}, tf.compat.v1.get_default_graph()
    while hasattr(graph, "external_captures"):
        resources = [tensor for tensor in graph.external_captures if tensor.dtype == tf.resource]
        handles |= {id(handle): weakref.ref(handle) for handle in resources}
        graph = graph.outer_graph
    return handles


def _per_replica(value, shape, name):
    """A per-replica variable; all copies stay equal because every replica gets the same updates."""
    return tf.Variable(
        value,
        trainable=False,
        shape=tf.TensorShape(shape),
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
