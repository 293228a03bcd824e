"""Prints, as JSON, training steps of losses with proxies on one device and on two replicas.

    python -m tests.losses.proxies.replicas

A program of its own: a process may hold one MirroredStrategy, see `test_training.py`.
"""

import json

import keras
import numpy as np
import tensorflow as tf

from tests.losses.proxies import training_model
from tests.programs import make_two_cpus
from tfrank import losses
from tfrank.losses import proxies
from tfrank.training.step import build_step

FEATURES = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
LABELS = np.array([0, 1, 0, 2, 1, 0, 2, 2])
WEIGHTS = np.array([0, 0.5, 3, 1, 0.1, 2, 0, 1], "float32")
CLASSES = [0, 1, 2, 5]
WAYS = ["fit", "fit with weights", "step", "step in stages"]
# In every way the one whose proxies have a regulariser; of the rest, what is their own.
CASES = [f"soft_triple, {way}" for way in WAYS]
CASES += [f"{name}, fit with weights" for name in ("proxy_nca", "proxy_anchor")]
CASES += [
    f"{name}, {way}" for name in ("sampled", "matryoshka") for way in ("fit with weights", "step in stages")
]


def two_steps(strategy, case):
    """The losses of two steps, and what they add to each weight."""
    name, way = case.split(", ")
    if name == "sampled":
        loss = proxies.SampledProxyLoss(losses.get("cos_face", labels=range(12)), share=0.5)
    elif name == "matryoshka":
        loss = losses.MatryoshkaLoss(losses.get("proxy_anchor", labels=CLASSES), (4, 2))
    else:
        loss = losses.get(name, labels=CLASSES)
    with strategy.scope():
        _, model = training_model(loss.loss if name == "matryoshka" else loss)
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables)
        loss.iteration = optimizer.iterations
        model.compile(optimizer, loss)
    before = model.get_weights()
    if way.startswith("fit"):
        weights = {"sample_weight": WEIGHTS} if way == "fit with weights" else {}
        options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        values = model.fit(FEATURES, LABELS, **options, **weights).history["loss"]
    else:
        size = 3 if way == "step in stages" else 0
        step = build_step(model, loss, model.optimizer, strategy=strategy, micro_batch_size=size)
        batches = tf.data.Dataset.from_tensors({"image": FEATURES, "label": LABELS}).unbatch().batch(8)
        batches = strategy.experimental_distribute_dataset(batches.repeat(2))
        values = [float(step(batch).loss) for batch in batches]
    updates = [(after - weight).tolist() for after, weight in zip(model.get_weights(), before)]
    return {"loss": values, "update": updates}


def main():
    make_two_cpus()
    strategies = [tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])]
    print(json.dumps({case: [two_steps(strategy, case) for strategy in strategies] for case in CASES}))


if __name__ == "__main__":
    main()
