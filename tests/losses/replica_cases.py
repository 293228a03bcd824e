"""Prints, as JSON, training steps of losses of each kind on one device and on two replicas.

    python -m tests.losses.replica_cases quick
    python -m tests.losses.replica_cases others

A program of its own: a process may hold one MirroredStrategy, see `test_replicas.py`.
"""

import functools
import itertools
import json
import sys
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tests.losses import KINDS_AND_STATE
from tests.programs import make_two_cpus
from tfrank import losses

# Labels and sample weights; the first four rows go to the one replica, the others to the other.
BATCHES = {
    "ordinary": ([0, 1, 0, 2, 1, 0, 2, 2], [1] * 8),
    "lone queries on one replica": ([0, 0, 1, 1, 0, 7, 8, 1], [1] * 8),
    "a replica without valid queries": ([0, 0, 1, 1, 5, 6, 7, 8], [1] * 8),
    "no valid query": (range(8), [1] * 8),
    "unequal sample weights": ([0, 1, 0, 2, 1, 0, 2, 2], [0, 0.5, 3, 1, 0.1, 2, 0, 1]),
    "uneven replicas": ([0, 1, 0, 2, 1, 0, 2], [1] * 7),  # Four rows and three.
}


class OfLabels:
    """A loss of targets that is called with labels: the target of a row says its label and its weight."""

    def __new__(cls, kind, **reduction):
        def called(self, labels, rows, sample_weight=None):
            targets = tf.one_hot(labels, 4) + tf.cast(labels, tf.float32)[:, None] / 3
            return kind.__call__(self, targets, rows, sample_weight)

        return type(kind.__name__, (kind,), {"__call__": called})(**reduction)


# Settings under which a loss asks the other replicas more than at its defaults, or reads the step.
SETTINGS = {
    "map_q, class weights": lambda **reduction: losses.get("map_q", class_weights=True, **reduction),
    "rll, gallery moves": lambda **reduction: losses.get("rll", constant_gallery=False, **reduction),
    "rll, dynamic": lambda **reduction: losses.get(
        "rll", final_negative_temperature=1.0, decay_steps=2, **reduction
    ),
    "recall_at_k, simix": lambda **reduction: losses.get("recall_at_k", simix=True, **reduction),
    "memory": lambda **reduction: losses.CrossBatchMemory(losses.get("pnp", **reduction), 6, warm_up=1),
    "matryoshka": lambda **reduction: losses.MatryoshkaLoss(losses.get("pnp", **reduction), (4, 2)),
    "asymmetric": lambda **reduction: losses.AsymmetricLoss(losses.get("pnp", **reduction)),
    "asymmetric, others only": lambda **reduction: losses.AsymmetricLoss(
        losses.get("smooth_ap", temperature=0.1, **reduction), include_self=False
    ),
    "asymmetric, margin": lambda **reduction: losses.AsymmetricLoss(losses.get("margin", **reduction)),
    "asymmetric, blackbox": lambda **reduction: losses.AsymmetricLoss(losses.get("blackbox_ap", **reduction)),
    "relational": lambda **reduction: OfLabels(losses.RelationalLoss, **reduction),
    "regression": lambda **reduction: OfLabels(losses.RegressionLoss, **reduction),
    "triplet, hardest": lambda **reduction: losses.get("triplet", mining="hard", hardest=3, **reduction),
    "lifted_structure, unit": lambda **reduction: losses.get("lifted_structure", normalize=True, **reduction),
    "margin, sampled": lambda **reduction: losses.get("margin", sampled=True, seed=1, **reduction),
    "histogram, few bins": lambda **reduction: losses.get("histogram", num_bins=9, **reduction),
    "weighted sum": lambda **reduction: losses.WeightedSum(
        [losses.get("pnp", **reduction), SETTINGS["rll, dynamic"](**reduction)], [1.0, 0.5]
    ),
}
MAKERS = {name: functools.partial(losses.get, name) for name in ("pnp", *KINDS_AND_STATE)} | SETTINGS
# With the training step.
CHANGING = ["rll, dynamic", "recall_at_k, simix", "memory", "weighted sum", "margin", "margin, sampled"]
CHANGING += ["asymmetric, margin"]
WITHOUT_QUERIES = "a replica without valid queries"
WHOLE_MATRICES = ["histogram, few bins", "lifted_structure, unit"]
ROWS = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
KERNEL = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")


class Case(NamedTuple):
    loss: str
    way: str  # "step" for strategy.run, "step without reduction", "fit" for compile and fit
    policy: str
    batch: str

    def __str__(self):
        return ", ".join(self)


def _cases():
    """PNP in every way on every batch; of the rest, what they do not share with it.

    Losses that score rows share how they gather the batch, so that one batch is enough for each, and
    another for a setting. `fit` is another way for losses that read the step, and for those of whole
    matrices. How many rows a replica has matters to those that keep rows or score whole matrices.
    """
    in_fit = SETTINGS.keys() & {*CHANGING, *WHOLE_MATRICES}
    uneven = {"memory", *WHOLE_MATRICES}
    for loss, batch in itertools.product(MAKERS, BATCHES):
        in_full, is_even = loss == "pnp", batch != "uneven replicas"
        of_setting = loss in SETTINGS and batch == WITHOUT_QUERIES
        weighted = batch == "unequal sample weights"
        if in_full or of_setting or weighted or (not is_even and loss in uneven):
            yield Case(loss, "step", "float32", batch)
        if in_full or (loss == "map_q, class weights" and weighted):
            yield Case(loss, "step without reduction", "float32", batch)
        # Keras' fit itself cannot begin with uneven replicas.
        if is_even and (in_full or (of_setting and loss in in_fit)):
            yield Case(loss, "fit", "float32", batch)
        if in_full and batch == "ordinary":
            yield Case(loss, "step", "mixed_bfloat16", batch)
            yield Case(loss, "fit", "mixed_bfloat16", batch)


CASES = list(_cases())
# Those of the README's test command; CI tests all.
QUICK = [
    case
    for case in CASES
    if case.loss == "pnp"
    and case.way in ("step", "fit")
    and case.policy == "float32"
    and case.batch == "ordinary"
]


# Large, so that updates are not lost in the rounding of the kernel they are added to.
LEARNING_RATE = 100.0


def fit_step(model):
    """A function of a batch that takes one step by `fit` and returns the logged loss."""

    def step(rows, labels, weights=None):
        history = model.fit(rows, labels, len(rows), shuffle=False, sample_weight=weights, verbose=0)
        return history.history["loss"]

    return step


def run_step(model, loss, strategy):
    """A function of a batch that takes one step by `strategy.run` and returns the loss, or losses."""

    @tf.function
    def replica_step(rows, labels, weights=None):
        with tf.GradientTape() as tape:
            value = loss(labels, model(rows), sample_weight=weights)
        gradients = tape.gradient(value, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return tf.reshape(value, [-1])

    def share(column):
        """The rows of each replica, the last one's being fewer where they do not come out even."""
        size = -(-len(column) // strategy.num_replicas_in_sync)
        shares = [tf.constant(column[start : start + size]) for start in range(0, len(column), size)]
        return strategy.experimental_distribute_values_from_function(
            lambda context: shares[context.replica_id_in_sync_group]
        )

    def step(*batch):
        values = strategy.run(replica_step, [share(column) for column in batch])
        values = np.concatenate(strategy.experimental_local_results(values))
        return values.tolist() if loss.reduction is None else [float(values.sum())]

    return step


def stepper(strategy, name, way, policy):
    """A function of labels and weights that takes two SGD steps, each from KERNEL: losses and updates."""
    with strategy.scope():
        loss = MAKERS[name](reduction=None if way == "step without reduction" else "mean")
        model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4, use_bias=False, dtype=policy)])
        model.compile(keras.optimizers.SGD(LEARNING_RATE), loss)
        model.optimizer.build(model.trainable_variables)
    loss.iteration = model.optimizer.iterations
    step = fit_step(model) if way == "fit" else run_step(model, loss, strategy)
    state = [variable.numpy() for variable in loss.variables]

    def steps_from_kernel(labels, weights):
        model.optimizer.iterations.assign(0)
        for variable, value in zip(loss.variables, state):
            variable.assign(value)
        values, updates = [], []
        for _ in range(2):
            model.set_weights([KERNEL])
            values.append(step(ROWS[: len(labels)], np.array(labels, "int64"), np.array(weights, "float32")))
            updates.append((model.get_weights()[0] - KERNEL).tolist())
        return {"loss": values, "update": updates}

    return steps_from_kernel


def main(which):
    make_two_cpus()
    chosen = [case for case in CASES if (case in QUICK) == (which == "quick")]
    strategies = {
        "one device": tf.distribute.get_strategy(),
        "two replicas": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    }
    results = {}
    for setting, cases in itertools.groupby(sorted(chosen), key=lambda case: case[:3]):
        steppers = {name: stepper(strategy, *setting) for name, strategy in strategies.items()}
        for case in cases:
            try:
                results[str(case)] = {name: step(*BATCHES[case.batch]) for name, step in steppers.items()}
            except Exception as error:  # One case's failure is not the others'.
                results[str(case)] = {"error": repr(error)}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
