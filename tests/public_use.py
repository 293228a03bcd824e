"""What users write with tfrank; `tests/test_public.py` checks its types and runs it."""

import keras
import numpy as np
import tensorflow as tf

import tfrank
from tfrank.losses.kernels import Block, score_rows


def pull(block: Block, margin: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The kernel of a loss of positives alone: the mean of margin - s."""
    share = tf.cast(block.positive_mask, block.s.dtype) / block.positives[:, None]
    return tf.reduce_sum(share * (margin - block.s), axis=1), -share


def pull_loss(*rows: tf.Tensor, margin: float) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss of each query, and which queries are valid."""
    return score_rows(pull, *rows, margin)


class PullLoss(tfrank.RankingLoss):
    """Pulls positives together."""

    def __init__(self, margin: float = 1.0, *, name: str = "pull"):
        super().__init__(pull_loss, {"margin": margin}, name=name)


def train(images: np.ndarray, labels: np.ndarray) -> tfrank.evaluation.Evaluation:
    """Trains a small model by Keras' `fit` and evaluates it."""
    batches = tfrank.data.balanced_batches(images, labels, classes_per_batch=4, examples_per_class=2, seed=0)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(8)])
    model.compile(
        "adam",
        loss=tfrank.WeightedSum([tfrank.PNPLoss("dq"), PullLoss()]),
        metrics=[tfrank.metrics.BatchRecallAt1()],
    )
    model.fit(batches.take(2), verbose=0)
    return tfrank.evaluation.evaluate(model.predict(images, verbose=0), labels)


def recall_at_1(found: tfrank.evaluation.Evaluation) -> float:
    """Recall@1 of an evaluation."""
    return found.metrics["recall_at_1"]


if __name__ == "__main__":
    draw = np.random.default_rng(0)
    print(recall_at_1(train(draw.random((40, 4, 4, 3), np.float32), np.repeat(np.arange(8), 5))))
