"""What users write with tfrank; `tests/test_public.py` checks its types and runs it."""

import keras
import numpy as np

import tfrank


def train(images: np.ndarray, labels: np.ndarray) -> tfrank.evaluation.Evaluation:
    """Trains a small model by Keras' `fit` and evaluates it."""
    batches = tfrank.data.balanced_batches(images, labels, classes_per_batch=4, examples_per_class=2, seed=0)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(8)])
    model.compile("adam", loss=tfrank.PNPLoss("dq"), metrics=[tfrank.metrics.BatchRecallAt1()])
    model.fit(batches.take(2), verbose=0)
    return tfrank.evaluation.evaluate(model.predict(images, verbose=0), labels)


def recall_at_1(found: tfrank.evaluation.Evaluation) -> float:
    """Recall@1 of an evaluation."""
    return found.metrics["recall_at_1"]


if __name__ == "__main__":
    draw = np.random.default_rng(0)
    print(recall_at_1(train(draw.random((40, 4, 4, 3), np.float32), np.repeat(np.arange(8), 5))))
