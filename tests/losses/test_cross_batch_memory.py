"""Cross-batch memory: what is in the gallery, what is remembered, and when. Replicas: `replica_cases.py`."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.losses import value_and_gradient
from tests.programs import make_two_cpus, printed_json
from tests.training.test_multi_stage import LABELS, network
from tests.training.test_multi_stage import train as train_model
from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.losses import CrossBatchMemory

DIM = 3


def batch(number, size=6):
    """Labels and `[size, DIM]` embeddings of a batch, the same for the same number."""
    random = np.random.default_rng(number)
    return random.integers(0, 3, size), random.normal(size=(size, DIM)).astype("float32")


def train(loss, numbers, **options):
    """Values and gradients of the loss on these batches, in turn."""
    return [value_and_gradient(loss, *batch(number, **options)) for number in numbers]


@pytest.mark.parametrize("name", ["pnp", "map_q", "rll", "fast_ap"])
def test_queries_are_ranked_against_the_batch_and_the_rows_before_it(name):
    loss = CrossBatchMemory(losses.get(name), size=8, warm_up=0)
    train(loss, [1, 2])
    value = loss(*batch(3))
    labels, rows = (np.concatenate(part) for part in zip(batch(3), batch(1), batch(2)))
    gallery = [0, 1, 2, 3, 4, 5, *range(10, 18)]  # The last 8 of the 12 rows before.
    by_hand = reference.LOSSES[name](labels[:6], rows[:6], labels[gallery], rows[gallery], range(6))
    np.testing.assert_allclose(value, reference.mean(*by_hand), rtol=1e-5)


def test_remembered_rows_are_constants_and_the_batch_gets_its_own_gradient():
    loss = CrossBatchMemory(losses.get("pnp"), size=12, warm_up=0)
    train(loss, [1, 2])
    labels, rows = batch(3)
    past = [reference.unit(batch(number)[1]) for number in (1, 2)]
    past_labels = np.concatenate([batch(number)[0] for number in (1, 2)])

    def by_hand(labels, rows, _):
        unit = tf.math.l2_normalize(rows, axis=1)
        gallery = tf.concat([unit, tf.constant(np.concatenate(past), tf.float32)], 0)
        gallery_labels = tf.concat([labels, past_labels], 0)
        core = (tf.constant(labels), unit, gallery_labels, gallery, tf.range(6))
        values, valid = loss.loss.score(*core)
        return tf.reduce_sum(values) / tf.reduce_sum(tf.cast(valid, tf.float32))

    for got, wanted in zip(value_and_gradient(loss, labels, rows), value_and_gradient(by_hand, labels, rows)):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 4, 6, 7, 15])
def test_memory_holds_the_last_rows_the_oldest_first(size):
    loss = CrossBatchMemory(losses.get("pnp"), size=size, warm_up=0)
    train(loss, [1, 2, 3])
    labels, rows = (np.concatenate(part)[-size:] for part in zip(*map(batch, [1, 2, 3])))
    np.testing.assert_array_equal(loss.labels, labels)
    np.testing.assert_allclose(loss.embeddings, reference.unit(rows), atol=1e-6)


def test_queries_have_the_weights_of_the_inner_loss():
    """In a batch of two classes, of 2 and of 4 rows."""
    inner = losses.get("map_q", class_weights=True)
    assert CrossBatchMemory(inner, size=8)(*batch(3)) == inner(*batch(3)) != losses.get("map_q")(*batch(3))


@pytest.mark.parametrize("warm_up, joins", [(0, 3), (3, 4), (5, 6)])
def test_until_it_is_full_and_warmed_up_the_loss_is_the_inner_one(warm_up, joins):
    """Full after two batches."""
    loss = CrossBatchMemory(losses.get("pnp"), size=12, warm_up=warm_up)
    for number in range(1, 8):
        value, _ = value_and_gradient(loss, *batch(number))
        assert (value == losses.get("pnp")(*batch(number))) == (number < joins)


def test_evaluating_leaves_no_trace():
    loss = CrossBatchMemory(losses.get("pnp"), size=8, warm_up=0)
    train(loss, [1, 2])
    before = [variable.numpy() for variable in loss.variables]
    loss(*batch(3))
    for old, new in zip(before, loss.variables):
        np.testing.assert_array_equal(old, new)


def test_a_batch_that_is_not_finite_is_not_remembered():
    loss = CrossBatchMemory(losses.get("pnp"), size=12, warm_up=0)
    train(loss, [1, 2])
    before = [variable.numpy() for variable in loss.variables]
    labels, rows = batch(3)
    rows[2, 1] = np.nan
    assert np.isnan(value_and_gradient(loss, labels, rows)[0])
    for old, new in zip(before, loss.variables):
        np.testing.assert_array_equal(old, new)
    ((value, gradient),) = train(loss, [4])
    assert np.isfinite(value) and np.all(np.isfinite(gradient))


def test_embeddings_of_another_size_are_refused():
    loss = CrossBatchMemory(losses.get("pnp"), size=100)
    train(loss, [1])
    with pytest.raises(
        InputError, match=r"holds embeddings of 3 dimensions. Received some of 2. Make another"
    ):
        loss([0, 0], np.ones([2, 2]))


def test_one_memory_in_two_models_is_refused():
    def model():
        model = keras.Sequential([keras.Input([DIM]), keras.layers.Dense(4)])
        model.compile("sgd", loss, jit_compile=False)
        return model

    loss = CrossBatchMemory(losses.get("pnp"), size=8, warm_up=0)
    labels, rows = batch(1, size=24)
    first, second = model(), model()
    first.fit(rows, labels, batch_size=6, verbose=0)
    first.evaluate(rows, labels, batch_size=8, verbose=0)
    first.compile("adam", loss, jit_compile=False)  # The same model, trained otherwise.
    first.fit(rows, labels, batch_size=12, verbose=0)
    with pytest.raises(InputError, match=r"holds embeddings of another model.* another CrossBatchMemory"):
        second.fit(rows, labels, batch_size=6, verbose=0)


def test_fit_remembers_the_batches_it_trains_on_and_none_that_it_validates_on():
    loss = CrossBatchMemory(losses.get("pnp"), size=8, warm_up=0)
    model = keras.Sequential([keras.Input([DIM]), keras.layers.Dense(4)])
    model.compile("sgd", loss)
    labels, rows = batch(1, size=24)
    held_out = batch(2, size=24)
    model.fit(rows, labels, batch_size=6, epochs=2, shuffle=False, validation_data=held_out[::-1], verbose=0)
    assert loss.batches == 8
    np.testing.assert_array_equal(loss.labels, labels[-8:])


def test_memory_of_a_restored_checkpoint_goes_on_with_the_same_bits(tmp_path):
    here, there = (CrossBatchMemory(losses.get("pnp"), size=8, warm_up=2) for _ in range(2))
    train(here, [1, 2, 3])
    path = tf.train.Checkpoint(loss_state=here.variables).write(str(tmp_path / "memory"))
    tf.train.Checkpoint(loss_state=there.variables).read(path).assert_consumed()
    for (one, gradient), (other, same) in zip(train(here, [4, 5]), train(there, [4, 5])):
        assert one == other
        np.testing.assert_array_equal(gradient, same)


def test_a_batch_in_stages_is_remembered_once():
    loss = CrossBatchMemory(losses.get("pnp"), size=20, warm_up=0)
    train_model(network(), loss, micro_batch_size=4, steps=3)
    assert loss.batches == 3
    np.testing.assert_array_equal(loss.labels, np.tile(LABELS, 2)[-20:])


def test_revived_memory_has_the_settings_and_is_empty():
    loss = CrossBatchMemory(losses.get("pnp", variant="ds"), size=8, warm_up=3, name="xbm")
    train(loss, [1, 2])
    revived = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
    assert revived.get_config() == loss.get_config()
    assert revived.loss.get_config() == loss.loss.get_config()
    assert tf.size(revived.labels) == 0


def test_step_reaches_the_inner_loss():
    loss = CrossBatchMemory(losses.get("rll", decay_steps=10, final_negative_temperature=0.0), size=8)
    loss.iteration = tf.Variable(5)
    assert loss.loss.current_negative_temperature() == 5.0


@pytest.mark.parametrize(
    "arguments, name",
    [
        ({"loss": "pnp"}, "loss"),
        ({"loss": losses.WeightedSum([losses.get("pnp")])}, "loss"),
        ({"size": 0}, "size"),
        ({"size": 2.5}, "size"),
        ({"warm_up": -1}, "warm_up"),
    ],
)
def test_bad_arguments_are_refused(arguments, name):
    with pytest.raises(InputError, match=rf"argument `{name}`. Expected"):
        CrossBatchMemory(**({"loss": losses.get("pnp"), "size": 4} | arguments))


def test_a_memory_of_a_memory_is_refused():
    with pytest.raises(InputError, match=r"argument `loss`. Expected a RankingLoss without a memory"):
        CrossBatchMemory(CrossBatchMemory(losses.get("pnp"), 4), 4)


def made_outside_the_scope():
    """Prints, as JSON, what two replicas say of a memory that belongs to none."""
    make_two_cpus()
    loss = CrossBatchMemory(losses.get("pnp"), 4)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    try:
        strategy.run(tf.function(lambda: loss(tf.constant([0, 0]), tf.ones([2, 3]))))
    except InputError as error:
        print(json.dumps(str(error)))


@pytest.mark.slow
def test_a_memory_made_outside_the_scope_of_its_replicas_is_refused():
    code = "from tests.losses import test_cross_batch_memory as t; t.made_outside_the_scope()"
    assert "Make the loss in `with strategy.scope():`" in printed_json("-c", code)
