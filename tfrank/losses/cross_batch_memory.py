"""Cross-batch memory (Wang et al., CVPR 2020, arXiv 1912.06798): past embeddings as more gallery."""

import weakref
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.losses.core.ranking_loss import RankingLoss


@keras.saving.register_keras_serializable("tfrank")
class CrossBatchMemory(RankingLoss):
    """Any loss, whose queries are ranked against the batch and the last `size` embeddings before it.

        gallery of step t = batch t, and the M rows that came last in batches ..., t - 2, t - 1

    Embeddings drift slowly, so those of a few hundred steps ago still tell who is near whom: a batch of
    64 sees as many negatives as one of thousands. They are constants; the batch's own rows get their
    gradient as ever.

    A batch is remembered when its gradient is taken, not when its loss is: evaluating leaves no trace (its
    value is then, as in training, against batch and memory). One whose embeddings are not all finite, as
    happens in float16, is not remembered. The memory joins the gallery when it is full, and `warm_up`
    batches have been remembered; until then the loss is the inner one's.

    A memory is of one embedding: a model of several outputs, or another model, needs others. A second
    model is refused in `fit` and other traced steps on one device; an eager loop, or a strategy of several
    replicas, does not notice it. Under several replicas each keeps the same rows in the same order, those of
    the global batch; make the loss in the strategy's scope, as the model.

    Args:
        loss: a `RankingLoss`; what it does with its gallery, it does with the longer one.
        size: M, rows of the memory, at least 1. The paper takes up to the whole training set.
        warm_up: batches before the memory joins, at least 0, while embeddings still change quickly.
            Default 1,000 (the paper's).
        name: name of the loss.

    Attributes:
        labels, embeddings: the memory's variables, `[rows]` int64 and `[rows, dim]` float32, the oldest
            first; no rows at first, M in the end.
        batches: the variable that counts batches remembered.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another row of its class in batch and memory has no loss, no gradient, and is left out
    of the mean. The memory is in `variables`, which the trainer's checkpoints hold; a saved Keras model holds
    the settings of its loss, not the memory, which then fills again.

    Reference: Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020, arXiv 1912.06798. Memory: a
    replica keeps M (4 dim + 8) bytes, twice that while a batch is remembered; the inner loss's matrices
    are `[batch, batch + M]`. XLA cannot compile it, as its shapes change when the memory joins: on GPUs,
    where Keras would, compile the model with `jit_compile=False`.

    >>> from tfrank import PNPLoss
    >>> loss = CrossBatchMemory(PNPLoss("dq"), size=4, warm_up=0)
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.9626
    """

    def __init__(
        self, loss: RankingLoss, size: int, *, warm_up: int = 1000, name: str = "cross_batch_memory"
    ):
        if not isinstance(loss, RankingLoss) or isinstance(loss, CrossBatchMemory):
            expected = "a RankingLoss without a memory (of a WeightedSum, each part may have one)"
            raise checks.invalid("loss", expected, loss)
        self.loss = loss
        self.size = checks.integer("size", size, at_least=1)
        self.warm_up = checks.integer("warm_up", warm_up, at_least=0)
        super().__init__(loss._score, {}, reduction=loss.reduction, name=name)
        self.normalize = loss.normalize
        self.labels = _per_replica(tf.zeros([0], tf.int64), [None], "memory_labels")
        self.embeddings = _per_replica(tf.zeros([0, 0]), [None, None], "memory_embeddings")
        self.batches = _per_replica(tf.constant(0, tf.int64), [], "memory_batches")
        self._dim = None  # Of the embeddings, known from the first on.
        self._read = {}  # By id, variables that were read before the loss in a traced step: the model's.

    @property
    def variables(self) -> list[tf.Variable]:
        """The memory, and what the inner loss keeps."""
        return [self.labels, self.embeddings, self.batches, *self.loss.variables]

    @property
    def iteration(self) -> tf.Variable | keras.Variable | None:
        """The variable that counts training steps, see `RankingLoss`: the inner loss's."""
        return self.loss.iteration

    @iteration.setter
    def iteration(self, variable: tf.Variable | keras.Variable | None) -> None:
        self.loss.iteration = variable

    def weigh(self, labels: tf.Tensor, counts: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """w_q of this replica's queries, by the inner loss."""
        return self.loss.weigh(labels, counts, weights)

    def _score(
        self,
        query_labels: tf.Tensor,
        query_embeddings: tf.Tensor,
        gallery_labels: tf.Tensor,
        gallery_embeddings: tf.Tensor,
        self_index: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The inner loss of queries against the gallery and, once it takes part, the memory behind it."""
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
        losses, counts = self.loss._score(query_labels, query_embeddings, labels, embeddings, self_index)

        @tf.custom_gradient
        def remembering(losses):
            def gradient(upstream):
                self._remember(gallery_labels, gallery_embeddings)
                return upstream

            return tf.identity(losses), gradient

        return remembering(losses), counts

    def _check_dim(self, dim):
        # Under a strategy Keras also traces the loss on embeddings of unknown shape.
        if dim is None:
            return
        if self._dim not in (None, dim):
            raise checks.InputError(
                f"The memory of the loss {self.name!r} is of embeddings of {self._dim} numbers. Received"
                f" some of {dim}. Make another loss for another model or output."
            )
        self._dim = dim

    def _check_model(self):
        """Refuses a traced step of a model that shares no variable with the one before."""
        # Under a strategy a variable has one for each replica.
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

    def _remember(self, labels, embeddings):
        # A batch that is not finite would make all losses NaN until it is forgotten.
        number = tf.size(labels) * tf.cast(tf.reduce_all(tf.math.is_finite(embeddings)), tf.int32)
        labels, embeddings = labels[:number], embeddings[:number]
        # [0, 0] at first.
        past = tf.reshape(self.embeddings, [-1, tf.shape(embeddings)[1]])
        embeddings = tf.cast(tf.stop_gradient(embeddings), tf.float32)
        self.embeddings.assign(self._last(past, embeddings))
        self.labels.assign(self._last(self.labels, labels))
        self.batches.assign_add(tf.cast(number > 0, tf.int64))

    def _last(self, past, rows):
        """The last `size` of past rows and of new ones, in one copy."""
        too_many = tf.maximum(tf.shape(past)[0] + tf.shape(rows)[0] - self.size, 0)
        return tf.concat([past[too_many:], rows[-self.size :]], 0)

    def __call__(self, y_true, y_pred, sample_weight=None):
        """See `RankingLoss`."""
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

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "CrossBatchMemory":
        """The loss with that `get_config`."""
        return cls(**(config | {"loss": keras.losses.deserialize(config["loss"])}))


def _variables_read():
    """The handles of variables that the step being traced has read so far, by id; none in eager mode."""
    handles, graph = {}, tf.compat.v1.get_default_graph()
    while hasattr(graph, "external_captures"):
        resources = [tensor for tensor in graph.external_captures if tensor.dtype == tf.resource]
        handles |= {id(handle): weakref.ref(handle) for handle in resources}
        graph = graph.outer_graph
    return handles


def _per_replica(value, shape, name):
    """A variable of which each replica has its own; they are the same, being told the same."""
    return tf.Variable(
        value,
        trainable=False,
        shape=tf.TensorShape(shape),
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
