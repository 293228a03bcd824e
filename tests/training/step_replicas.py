"""Prints, as JSON, what training steps give on one device and on two replicas.

    python -m tests.training.step_replicas

A program of its own: a process may hold one MirroredStrategy, see `test_step_replicas.py`.
"""

import functools
import json

import keras
import numpy as np
import tensorflow as tf

from tests.losses import KINDS_AND_STATE
from tests.programs import make_two_cpus
from tfrank import losses, metrics
from tfrank.common.checks import InputError
from tfrank.losses.core.batch_statistics import batch_statistics, loss_slope
from tfrank.training.averaging import WeightAverage
from tfrank.training.multi_stage_model import MultiStageModel
from tfrank.training.step import build_step

BATCH, MICRO_BATCH = 18, 4  # A replica has nine images, in micro-batches of four, four and one.
IMAGES = np.random.default_rng(0).integers(0, 256, (2 * BATCH, 2, 2, 3)).astype("uint8")
# Classes lie on both replicas, most queries without a positive on the second one.
LABELS = np.array([0, 1, 2, 0, 1, 3, 3, 0, 4, 2, 0, 1, 4, 7, 8, 9, 10, 4] * 2)
CLIP_NORM = 0.01
SCALE = 2.0**10


def network(dtype="float64", outputs=1, regularizer=None, batch_norm=None, dropout=0.0):
    """A small smooth network, the same weights every time. Batch norm is frozen, unless it has options."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(dtype)
    pixels = keras.Input([2, 2, 3])
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    x = keras.layers.Dense(6, kernel_regularizer=regularizer)(x)
    normalize = keras.layers.BatchNormalization(**(batch_norm or {}))
    normalize.trainable = batch_norm is not None
    x = keras.layers.Activation("tanh")(normalize(x))
    normalize.moving_mean.assign(np.linspace(-0.5, 0.5, 6))
    if dropout:
        x = keras.layers.Dropout(dropout, seed=3)(x)
    embeddings = [keras.layers.Dense(4)(x) for _ in range(outputs)]
    return keras.Model(pixels, embeddings if outputs > 1 else embeddings[0])


def smooth_ap():
    return losses.get("smooth_ap", temperature=0.1)


def batches(strategy, images=IMAGES, labels=LABELS):
    data = tf.data.Dataset.from_tensor_slices({"image": images, "label": labels}).batch(BATCH)
    return strategy.experimental_distribute_dataset(data)


def rows(strategy, values):
    """The rows of all replicas, in their order."""
    parts = (strategy.experimental_local_results(value) for value in tf.nest.flatten(values))
    return [np.concatenate([part.numpy() for part in replicas]).tolist() for replicas in parts]


def flat(variables):
    return np.concatenate([np.ravel(np.float64(v.numpy())) for v in variables])


def train(strategy, micro_batch_size=0, loss=None, steps=2, scaled=False, options=None, **network_options):
    """Losses, the first embeddings, what the model gave before, and what the steps add to the variables."""
    with strategy.scope():
        model = network(**network_options)
        optimizer = keras.optimizers.SGD(0.5)
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=SCALE)
        optimizer.build(model.trainable_variables)
    before = flat(model.trainable_variables)
    untrained = tf.nest.flatten(model(IMAGES[:BATCH].astype("float32")))
    step = build_step(
        model,
        loss or smooth_ap(),
        optimizer,
        strategy=strategy,
        micro_batch_size=micro_batch_size,
        **(options or {}),
    )
    outcomes = [step(batch) for batch in list(batches(strategy))[:steps]]
    return {
        "loss": [float(outcome.loss) for outcome in outcomes],
        "embeddings": rows(strategy, outcomes[0].embeddings),
        "untrained": [output.numpy().tolist() for output in untrained],
        "update": (flat(model.trainable_variables) - before).tolist(),
    }


def of_several(labels, outputs):
    return tf.add_n([smooth_ap()(labels, output) for output in outputs])


def train_with_dropout(strategy, micro_batch_size=0):
    """In stages on replicas; on one device by one tape, with each replica's micro-batches and masks."""
    if strategy.num_replicas_in_sync > 1:
        return train(strategy, micro_batch_size, steps=1, dropout=0.4)
    model = network(dropout=0.4)
    variables, state = model.trainable_variables, model.non_trainable_variables
    before, start = flat(variables), [v.numpy() for v in state]
    with tf.GradientTape() as tape:
        parts = []
        for half in np.split(IMAGES[:BATCH], 2):
            for variable, value in zip(state, start):
                variable.assign(value)
            parts += [model(half[k : k + MICRO_BATCH], training=True) for k in range(0, 9, MICRO_BATCH)]
        embeddings = tf.concat(parts, axis=0)
        loss = smooth_ap()(LABELS[:BATCH], embeddings)
    keras.optimizers.SGD(0.5).apply_gradients(zip(tape.gradient(loss, variables), variables))
    return {
        "loss": [float(loss)],
        "embeddings": [embeddings.numpy().tolist()],
        "update": (flat(variables) - before).tolist(),
    }


def overflow(strategy, micro_batch_size=0, half=0, clip_norm=0.0):
    """Weights and loss scales after steps, in the first of which the gradient of half the batch overflows.

    The loss is the sum of x w, and the gradient that a replica scales the sum of its x.
    """
    images = np.ones([BATCH, 1], "float32")
    images[9 * half + 2] = 1e30  # Times 2^28 it is finite.
    with strategy.scope():
        keras.config.set_dtype_policy("float32")
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="zeros")])
        optimizer = keras.optimizers.SGD(1e-30 if not clip_norm else 1.0)
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**30)
        optimizer.build(model.trainable_variables)
    step = build_step(
        model,
        lambda labels, embeddings: tf.reduce_sum(embeddings),
        optimizer,
        strategy=strategy,
        micro_batch_size=micro_batch_size,
        clip_norm=clip_norm,
    )
    [batch] = batches(strategy, images, LABELS[:BATCH])
    weights, scales = [], []
    for k in range(5):
        if clip_norm and k == 2:
            optimizer.dynamic_scale.assign(2.0**-60)  # Here the square of a gradient is finite, too.
        step(batch)
        weights.append(float(model.weights[0].numpy().item()))
        scales.append(float(optimizer.dynamic_scale.numpy()))
    return {"weights": weights, "scales": scales}


def average(strategy):
    """Each replica's averages after steps that update them."""
    with strategy.scope():
        model = network(batch_norm={"momentum": 0.5, "synchronized": True})
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables)
        average = WeightAverage(model, 0.15, iterations=optimizer.iterations, strategy=strategy)
    step = build_step(model, smooth_ap(), optimizer, strategy=strategy, after=average.update)
    for _ in range(2):
        for batch in batches(strategy):
            step(batch)
    replicas = [strategy.experimental_local_results(variable) for variable in average.variables]
    return {"averages": [flat(parts).tolist() for parts in zip(*replicas)]}


def summary(strategy):
    """What every replica computes of a batch, the labels as integers of one byte."""
    embeddings = np.random.default_rng(0).normal(size=(BATCH, 5))
    [batch] = batches(strategy, embeddings, LABELS[:BATCH].astype("int8"))

    @tf.function
    def function(batch):
        slope = loss_slope(of_several, batch["label"], [batch["image"]])
        return batch_statistics(batch["label"], batch["image"]) | {"slope": slope}

    replicas = strategy.run(function, [batch])
    parts = {name: strategy.experimental_local_results(value) for name, value in replicas.items()}
    return {name: [part.numpy().tolist() for part in values] for name, values in parts.items()}


def fit(strategy, micro_batch_size=0):
    """Two epochs of Keras' fit: in stages on replicas, of the model itself on one device."""
    with strategy.scope():
        model = inside = network(regularizer=keras.regularizers.L2(0.01))
        if micro_batch_size:
            model = MultiStageModel(inside, micro_batch_size=micro_batch_size)
        model.compile(
            keras.optimizers.SGD(0.5, momentum=0.5),
            loss=smooth_ap(),
            metrics=[metrics.BatchRecallAt1(), metrics.PositiveSimilarity()],
        )
    before = flat(inside.trainable_variables)
    weights = np.linspace(0.5, 2, 2 * BATCH)
    data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS, weights)).batch(BATCH, drop_remainder=True)
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    return {"update": (flat(inside.trainable_variables) - before).tolist(), **history}


def refusal(strategy, micro_batch_size=0, xla=False):
    """The message, if any."""
    with strategy.scope():
        model = network(batch_norm={"synchronized": True})
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables)
    try:
        build_step(
            model, smooth_ap(), optimizer, strategy=strategy, micro_batch_size=micro_batch_size, xla=xla
        )
    except InputError as error:
        return str(error)


def fit_overflow(strategy):
    """Weight and loss scale after fit in stages, in which the second half's gradient overflows at first."""
    images = np.ones([BATCH, 1], "float32")
    images[-2] = 1e30
    with strategy.scope():
        keras.config.set_dtype_policy("float32")
        inside = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="zeros")])
        model = MultiStageModel(inside, micro_batch_size=MICRO_BATCH)
        optimizer = keras.optimizers.SGD(1e-30)
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**30)
        model.compile(optimizer, loss=SumOfEmbeddings())
    model.fit(images, np.zeros(BATCH, int), batch_size=BATCH, epochs=5, shuffle=False, verbose=0)
    return {"weight": inside.get_weights()[0].item(), "scale": float(optimizer.dynamic_scale.numpy())}


class SumOfEmbeddings(keras.losses.Loss):
    """Not divided by anything."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return tf.reduce_sum(y_pred)


def fit_refusal(strategy):
    """The message, if any."""
    with strategy.scope():
        model = MultiStageModel(network(batch_norm={"synchronized": True}), micro_batch_size=MICRO_BATCH)
        model.compile("sgd", loss=smooth_ap())
    try:
        model.fit(IMAGES[:BATCH], LABELS[:BATCH], batch_size=BATCH, verbose=0)
    except InputError as error:
        return str(error)


DECAY = {"regularizer": keras.regularizers.L2(0.1), "options": {"l2": 0.3, "no_decay": ["bias"]}}
CLIPPED = {"dtype": "float64", "steps": 1, "options": {"clip_norm": CLIP_NORM, "l2": 0.01}}
# `tests.losses.replica_cases` has every loss on replicas.
RUNS = {name: functools.partial(train, loss=losses.get(name)) for name in KINDS_AND_STATE} | {
    "several embeddings": functools.partial(train, loss=of_several, outputs=3),
    "decay": functools.partial(train, **DECAY),
    "clipped": functools.partial(train, **CLIPPED),
    "clipped and scaled": functools.partial(train, **CLIPPED, scaled=True),
    "unclipped": functools.partial(train, dtype="float32"),
    "mixed_bfloat16": functools.partial(train, dtype="mixed_bfloat16"),
    "mixed_float16": functools.partial(train, dtype="mixed_float16", scaled=True),
    "dropout": train_with_dropout,
    "fit": fit,
}
PLAIN_TOO = ["several embeddings", "decay", "clipped", "clipped and scaled"]
OVERFLOWS = {
    "overflow on the first": functools.partial(overflow, half=0),
    "overflow on the second": functools.partial(overflow, half=1),
    "overflow, clipped": functools.partial(overflow, half=1, clip_norm=0.5),
}
# The norm of the gradient is nowhere near.
FAR_FROM_CLIPPED = functools.partial(train, dtype="float32", options={"clip_norm": 1e3})


def in_stages(runs):
    return {
        f"{name}, in stages": functools.partial(run, micro_batch_size=MICRO_BATCH)
        for name, run in runs.items()
    }


ON_ONE_DEVICE = {**RUNS, "average": average, "summary": summary}
ON_TWO_REPLICAS = {
    **in_stages(RUNS),
    **{name: RUNS[name] for name in PLAIN_TOO},
    "unclipped": FAR_FROM_CLIPPED,
    **OVERFLOWS,
    **in_stages(OVERFLOWS),
    "average": average,
    "summary": summary,
    "xla": functools.partial(refusal, xla=True),
    **in_stages({"shared batch norm": refusal}),
    "shared batch norm in fit": fit_refusal,
    "overflow in fit": fit_overflow,
}


def results(strategy, runs):
    """What the runs give, by their names."""
    values = {}
    for name, run in runs.items():
        try:
            values[name] = run(strategy)
        except Exception as error:  # One run's failure is not the others'.
            values[name] = {"error": repr(error)}
    return values


def main():
    make_two_cpus()
    keras.config.set_floatx("float64")
    one = results(tf.distribute.get_strategy(), ON_ONE_DEVICE)
    two = results(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), ON_TWO_REPLICAS)
    print(json.dumps({"one device": one, "two replicas": two}))


if __name__ == "__main__":
    main()
