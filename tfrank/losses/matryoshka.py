"""Matryoshka representation learning (Kusupati et al., NeurIPS 2022, arXiv 2205.13147)."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, loss_layers
from tfrank.common.normalize import l2_normalize
from tfrank.losses.asymmetric import AsymmetricLoss
from tfrank.losses.core.loss_around import LossAround
from tfrank.losses.core.ranking_loss import RankingLoss, keras_builds
from tfrank.losses.cross_batch_memory import CrossBatchMemory
from tfrank.losses.proxies import ProxyLoss, SampledProxyLoss


@keras.saving.register_keras_serializable("tfrank")
class MatryoshkaLoss(LossAround):
    """Applies a loss to the first dimensions of the embeddings, so that a shorter embedding is one too.

        loss = sum over dims d of weight_d loss(labels, x[:, :d])                                    (eq. 1)

    Each x[:, :d] is normalised like an embedding. After training, embeddings may be cut to any of these
    numbers of dimensions, and normalised: an index of them takes d / dim of the memory. `tfrank export --dim`
    cuts those of a model, and `tfrank index --dim` makes the smaller index.

    A loss with proxies compares the first d dimensions of the embeddings with those of the proxies, as
    MRL-E in the paper does: all dims share one layer, `loss.loss.proxies()`.

    Args:
        loss: a `RankingLoss` or a loss with proxies. Of a `WeightedSum`, wrap each part; with a
            `CrossBatchMemory`, wrap the loss inside, so that there is one memory for all dims.
        dims: numbers of dimensions, each at least 1 and once, at most those of the embeddings. Name the
            whole embedding too: the dimensions after the largest of `dims` are not trained.
        weights: the weight of each of `dims`, finite numbers. Default 1 each (the paper's).
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    Which queries are valid, and their weights, are those of `loss`. A query whose first d dimensions are all
    zeros (norm below 1e-6 of the embedding's) has similarity 0 to everything there.

    Raises:
        InputError: one of `dims` exceeds the embeddings.

    Reference: Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022, arXiv 2205.13147. Memory and
    time: those of `loss` for each of `dims`, less than so many times those of the whole embedding.

    >>> from tfrank import PNPLoss
    >>> loss = MatryoshkaLoss(PNPLoss("dq"), dims=(2, 1))
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    1.8451
    """

    def __init__(
        self,
        loss: RankingLoss | ProxyLoss | SampledProxyLoss,
        dims: Sequence[int] = (256, 128, 64, 32),
        weights: Sequence[float] | None = None,
        *,
        name: str = "matryoshka",
    ):
        nested = isinstance(loss, MatryoshkaLoss | CrossBatchMemory | AsymmetricLoss)
        if nested or not isinstance(loss, RankingLoss | ProxyLoss | SampledProxyLoss):
            inside = "wrap parts of a sum, and the loss in a memory or an AsymmetricLoss"
            raise checks.invalid("loss", f"a RankingLoss or a loss with proxies ({inside})", loss)
        if getattr(loss, "hardest", 0):
            # Which queries count would differ from one number of dimensions to the next.
            raise checks.invalid("loss", "one of all queries, hardest=0", loss)
        self.loss, self.dims = loss, checks.sequence("dims", dims, checks.integer, at_least=1)
        if len(set(self.dims)) < len(self.dims):
            raise checks.invalid("dims", "different numbers", dims)
        weights = [1.0] * len(self.dims) if weights is None else weights
        self.weights = checks.sequence("weights", weights, checks.number)
        if len(self.weights) != len(self.dims):
            raise checks.invalid("weights", f"one number for each of {len(self.dims)} dims", weights)
        super().__init__(self._score, {}, reduction=loss.reduction, ignore_label=loss.ignore_label, name=name)
        self.normalize = getattr(loss, "normalize", True)

    # See `RankingLoss.__call__` and `ProxyLoss.__call__`.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, y_true, y_pred, sample_weight=None):
        if not isinstance(self.loss, RankingLoss) and keras_builds() and not loss_layers.passed(y_pred):
            return tf.zeros([])
        return super().__call__(y_true, y_pred, sample_weight)

    def rows(
        self, labels: tf.Tensor, embeddings: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """L_q, the sum over dims, and w_q of the rows of this replica, see `RankingLoss.rows`."""
        if isinstance(self.loss, RankingLoss):
            return super().rows(labels, embeddings, sample_weight)
        layers, embeddings = loss_layers.passed(embeddings), tf.convert_to_tensor(embeddings)
        self._check_dim(embeddings.shape[-1])
        firsts = (loss_layers.mark(embeddings[:, :dim], layers) for dim in self.dims)
        return self._sum([self.loss.rows(labels, first, sample_weight) for first in firsts])

    def _score(
        self,
        query_labels: tf.Tensor,
        query_embeddings: tf.Tensor,
        gallery_labels: tf.Tensor,
        gallery_embeddings: tf.Tensor,
        self_index: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The sum over dims of the inner loss of queries against the gallery."""
        self._check_dim(query_embeddings.shape[1])

        def scored(dim):
            queries = gallery = self._first(query_embeddings, dim)
            if gallery_embeddings is not query_embeddings:
                gallery = self._first(gallery_embeddings, dim)
            return self.loss._score(query_labels, queries, gallery_labels, gallery, self_index)

        return self._sum([scored(dim) for dim in self.dims])

    def _first(self, rows, dim):
        """The first dimensions of rows; the whole rows are normalised already."""
        return l2_normalize(rows[:, :dim]) if self.normalize and dim != rows.shape[1] else rows[:, :dim]

    def _sum(self, parts):
        """The weighted sum of the losses of all dims, and what belongs to the rows, the same for all dims."""
        return tf.add_n([weight * losses for weight, (losses, _) in zip(self.weights, parts)]), parts[0][1]

    def _check_dim(self, dim):
        # Under a strategy Keras also traces the loss with embeddings of unknown shape.
        if dim is not None and max(self.dims) > dim:
            raise checks.invalid("dims", f"at most the embedding's {dim} dimensions", self.dims)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "loss": keras.losses.serialize(self.loss),
            "dims": list(self.dims),
            "weights": list(self.weights),
            "name": self.name,
        }
