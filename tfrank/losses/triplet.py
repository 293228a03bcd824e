"""Triplet loss with mining in the batch (Schroff et al., CVPR 2015; Hermans et al., arXiv 1703.07737)."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfrank.common import checks, distributed
from tfrank.losses.core import scalars
from tfrank.losses.core.permutation import inverse
from tfrank.losses.core.ranking_loss import RankingLoss
from tfrank.losses.core.rows import Block, Kernel, score_rows
from tfrank.losses.core.scalars import Scalar


def _nearest(s, rows):
    """`[rows, 1]`: the largest similarity among some gallery rows; the least number where there are none."""
    return tf.reduce_max(tf.where(rows, s, s.dtype.min), axis=1, keepdims=True)


def _farthest(s, rows):
    return tf.reduce_min(tf.where(rows, s, s.dtype.max), axis=1, keepdims=True)


def _shared(slope, rows):
    """`[rows, gallery]`: a slope `[rows, 1]` in equal parts over some gallery rows, which are ties."""
    ties = tf.maximum(tf.reduce_sum(tf.cast(rows, slope.dtype), axis=1, keepdims=True), 1)
    return tf.where(rows, slope / ties, tf.zeros_like(slope))


def _hinge(margin, s_positive, s_negative):
    """Eq. 1 between unit vectors, d^2 = 2 - 2s, and its derivative with respect to s_negative."""
    violation = margin + 2 * (s_negative - s_positive)
    return tf.nn.relu(violation), 2 * tf.cast(violation > 0, violation.dtype)


def _batch_hard(block: Block, margin):
    """The farthest positive and the nearest negative."""
    s_positive, s_negative = _farthest(block.s, block.fellow), _nearest(block.s, ~block.same)
    losses, slope = _hinge(margin, s_positive, s_negative)
    push = _shared(slope, ~block.same & (block.s == s_negative))
    pull = _shared(slope, block.fellow & (block.s == s_positive))
    return losses[:, 0], push - pull


def _semi_hard(block: Block, margin):
    """The nearest negative farther than a positive, or the farthest."""
    farthest = _farthest(block.s, ~block.same)

    def term(s_positive):
        farther = _nearest(block.s, ~block.same & (block.s < s_positive))
        s_negative = tf.where(farther > block.s.dtype.min, farther, farthest)
        losses, slope = _hinge(margin, s_positive, s_negative)
        return losses[:, 0], _shared(slope, ~block.same & (block.s == s_negative))

    return _mean_over_positives(block, term)


def _all_triplets(block: Block, margin):
    """Every negative."""

    def term(s_positive):
        losses, slopes = _hinge(margin, s_positive, block.s)
        losses, slopes = (tf.where(block.same, tf.zeros_like(x), x) for x in (losses, slopes))
        return tf.reduce_sum(losses, axis=1) / block.negatives, slopes / block.negatives[:, None]

    return _mean_over_positives(block, term)


def _mean_over_positives(block: Block, term: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]):
    """From a positive's similarity, `term` gives its loss and the slopes of its negatives."""
    zero = tf.zeros_like(block.s)

    def visit(i, exists, losses, slopes):
        loss, push = term(block.at(i))
        share = tf.cast(exists, loss.dtype) / block.positives
        loss = tf.where(exists, loss / block.positives, tf.zeros_like(loss))
        push = share[:, None] * push
        # d_p^2 - d_n^2 moves as much with the one as with the other.
        return losses + loss, block.add_at(slopes + push, i, -tf.reduce_sum(push, axis=1))

    return block.walk(visit, (zero[:, 0], zero))


MINING: dict[str, Kernel] = {"semi_hard": _semi_hard, "hard": _batch_hard, "all": _all_triplets}


def triplet_loss(
    query_labels: tf.Tensor,
    query_embeddings: tf.Tensor,
    gallery_labels: tf.Tensor,
    gallery_embeddings: tf.Tensor,
    self_index: tf.Tensor,
    *,
    margin: Scalar = 0.2,
    mining: str = "semi_hard",
) -> tuple[tf.Tensor, tf.Tensor]:
    """L_q of each query, `[queries]`, and which queries are valid, `[queries]` bool.

    Implements the formula of `TripletLoss`. Takes the arguments of `score_rows`; embeddings have unit norm.
    """
    rows = (query_labels, query_embeddings, gallery_labels, gallery_embeddings, self_index)
    return score_rows(MINING[mining], *rows, margin, needs_negatives=True)


def hardest_queries(losses: tf.Tensor, counts: tf.Tensor, number: int) -> tf.Tensor:
    """Which queries are among the `number` of the largest losses in the global batch, `[queries]` bool.

    Of equal losses the earlier in the global batch goes first.

    Args:
        losses: `[queries]` of this replica, at least 0.
        counts: `[queries]` bool; the others are never among them.
        number: how many.
    """
    of_all = distributed.gather_rows(tf.where(counts, losses, -tf.ones_like(losses)))
    place = inverse(tf.argsort(of_all, direction="DESCENDING", stable=True))
    own = distributed.first_row(losses) + tf.range(tf.size(losses))
    return counts & (tf.cast(tf.gather(place, own), tf.int64) < number)


@keras.saving.register_keras_serializable("tfrank")
class TripletLoss(RankingLoss):
    """Wants each negative farther than a positive by a margin, of triplets mined in the batch.

        d_j^2 = |q - x_j|^2 = 2 - 2 s_j, between unit vectors                              (0 to 4)
        L(p, n) = [d_p^2 + m - d_n^2]_+                              (eq. 1 of arXiv 1903.03238)

        mining       L_q
        "semi_hard"  mean over positives p of L(p, n), n the nearest negative with d_n > d_p, or the
                     farthest of all where no negative is beyond p
        "hard"       L(p, n) of the farthest positive and the nearest negative
        "all"        mean over all positives p and negatives n of L(p, n)

    Rows at the same distance share the gradient in equal parts.

    With `hardest` = N only the N queries of the largest L_q in the global batch count: with "hard"
    mining, N hard triplets an update, the baseline TL-N of arXiv 1906.07589 (Table 1; N is 64, 512 and
    1,024 there). There negatives are mined offline in a pool of images that is embedded every so often;
    here the batch is the pool, up to date at every step, and with multi-stage backprop of any size.
    Sample weights weigh the N, and do not decide which.

    Args:
        margin: m, of squared distances, at least 0. Default 0.2 (Schroff et al.).
        mining: "semi_hard", "hard" or "all". Default "semi_hard": of Schroff et al., with the farthest
            negative in its want as TensorFlow Addons has it. "hard" is the batch hard of Hermans et al.
        hardest: N, or 0: all queries count. Default 0.
        reduction: "mean" or None, see `RankingLoss`.
        name: name of the loss.

    Shapes: labels `[batch]` or `[batch, 1]` integers, embeddings `[batch, dim]` floats.

    A query without another image of its class, or without one of another class, has no triplet: no
    loss, no gradient, and it is left out of the mean. One whose triplets are all 0 counts.

    Reference: Schroff et al., FaceNet, CVPR 2015, arXiv 1503.03832; Hermans et al., In Defense of the
    Triplet Loss for Person Re-Identification, arXiv 1703.07737. Memory: about three matrices
    `[batch, batch]`. Time: passes over them for each positive, but for "hard" mining.

    >>> loss = TripletLoss()
    >>> round(float(loss([0, 1, 0, 1], [[1.0, 0], [0.9, 0.1], [0, 1.0], [0.1, 0.9]])), 4)
    0.2104
    """

    def __init__(
        self,
        margin: Scalar = 0.2,
        *,
        mining: str = "semi_hard",
        hardest: int = 0,
        reduction: str | None = "mean",
        name: str = "triplet",
    ):
        hyper_parameters = {
            "margin": scalars.number("margin", margin, at_least=0),
            "mining": checks.one_of("mining", mining, MINING),
        }
        super().__init__(triplet_loss, hyper_parameters, reduction=reduction, name=name)
        self.hardest = checks.integer("hardest", hardest, at_least=0)

    def _score(self, *rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The core, of which only the hardest queries of all replicas count: queries against any gallery."""
        losses, counts = super()._score(*rows)
        if not self.hardest:
            return losses, counts
        counts = hardest_queries(losses, counts, self.hardest)
        # Not `where`, which would hide a NaN.
        return losses * tf.cast(counts, losses.dtype), counts

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "hardest": self.hardest}
