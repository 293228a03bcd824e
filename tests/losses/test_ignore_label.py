"""Rows without a class: every loss and metric gives what it gives for the batch without them."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.losses import KINDS, LABELS, value_and_gradient
from tests.losses.fresh_process import FEATURES
from tests.programs import make_two_cpus, printed_json
from tfrank import losses, metrics
from tfrank.common.checks import InputError
from tfrank.losses.proxies import SampledProxyLoss

NONE = -1
# Rows without a class between the others, as many as make a class.
WHERE = np.array([1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0], bool)
ALL_LABELS = np.full(len(WHERE), NONE)
ALL_LABELS[~WHERE] = np.resize(LABELS, (~WHERE).sum())[: (~WHERE).sum()]
ROWS = np.random.default_rng(4).normal(size=(len(WHERE), 3))
WEIGHTS = np.linspace(0.5, 2, len(WHERE))

one_of_each_kind = pytest.mark.parametrize("name", KINDS)
two_proxy_losses = pytest.mark.parametrize("name", ["proxy_anchor", "arc_face"])


def made(name, **options):
    loss = losses.get(name, **options)
    loss.iteration = tf.Variable(0, dtype=tf.int64)
    return loss


def assert_batch_without(loss, other, weights=None):
    """That value and gradient are those of another loss for the batch without the rows."""
    kept = ~WHERE
    some = None if weights is None else weights[kept]
    wanted, slopes = value_and_gradient(other, ALL_LABELS[kept], ROWS[kept], some)
    for call in (loss, tf.function(loss)):
        value, gradient = value_and_gradient(call, tf.constant(ALL_LABELS), ROWS, weights)
        np.testing.assert_allclose(value, wanted, rtol=1e-9)
        np.testing.assert_allclose(gradient.numpy()[kept], slopes, rtol=1e-6, atol=1e-9)
        assert np.all(gradient.numpy()[WHERE] == 0)


@one_of_each_kind
def test_a_row_without_a_class_is_neither_positive_nor_negative_and_no_query(name):
    assert_batch_without(made(name, ignore_label=NONE), made(name))
    assert_batch_without(made(name, ignore_label=NONE), made(name), WEIGHTS)
    # By default it is a class as any other.
    assert float(made(name)(ALL_LABELS, ROWS)) != float(made(name, ignore_label=NONE)(ALL_LABELS, ROWS))


def test_other_reductions_have_rows_of_loss_0_and_count_them_as_rows():
    by_row = made("smooth_ap", ignore_label=NONE, reduction=None)(ALL_LABELS, ROWS)
    wanted = made("smooth_ap", reduction=None)(ALL_LABELS[~WHERE], ROWS[~WHERE])
    np.testing.assert_allclose(by_row.numpy()[~WHERE], wanted, rtol=1e-12)
    assert np.all(by_row.numpy()[WHERE] == 0)
    mean = made("smooth_ap", ignore_label=NONE, reduction="sum_over_batch_size")(ALL_LABELS, ROWS)
    np.testing.assert_allclose(mean, np.sum(by_row) / len(WHERE), rtol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_a_batch_of_only_such_rows_has_loss_0_and_no_gradient(name):
    loss = made(name, ignore_label=NONE)
    loss.warns = False
    for call in (loss, tf.function(loss), tf.function(loss, reduce_retracing=True)):
        value, gradient = value_and_gradient(call, tf.fill([4], NONE), ROWS[:4])
        assert value == 0 and np.all(gradient == 0)


@two_proxy_losses
def test_so_do_losses_with_proxies_also_compiled_and_sampled(name):
    classes = np.unique(ALL_LABELS)
    loss, other = (
        losses.get(name, labels=classes, ignore_label=NONE),
        losses.get(name, labels=classes[classes != NONE]),
    )
    np.testing.assert_array_equal(loss.labels, other.labels)
    layer = loss.proxies()
    assert_batch_without(
        lambda labels, rows, weights=None: loss(labels, layer(rows), weights),
        lambda labels, rows, weights=None: other(labels, layer(rows), weights),
        WEIGHTS,
    )
    wanted = loss(ALL_LABELS, layer(ROWS))
    compiled = tf.function(lambda rows: loss(tf.constant(ALL_LABELS), layer(rows)), jit_compile=True)
    np.testing.assert_allclose(compiled(ROWS), wanted, rtol=1e-9)
    sampled = SampledProxyLoss(loss, share=1.0)
    np.testing.assert_allclose(sampled(ALL_LABELS, layer(ROWS)), wanted, rtol=1e-9)


def test_sums_and_memories_follow_their_parts():
    part = made("smooth_ap", ignore_label=NONE)
    assert_batch_without(
        tfrank.WeightedSum([part, part], [1.0, 0.5]), tfrank.WeightedSum([made("smooth_ap")], [1.5])
    )
    memory = tfrank.CrossBatchMemory(part, size=30, warm_up=0)
    value_and_gradient(memory, ALL_LABELS, ROWS.astype("float32"))
    np.testing.assert_array_equal(memory.labels, ALL_LABELS[~WHERE])


@pytest.mark.parametrize(
    "metric",
    [metrics.BatchRecallAt1, metrics.BatchAveragePrecision, metrics.ValidQueries, metrics.NegativeSimilarity],
)
def test_metrics_are_those_of_the_batch_without_them(metric):
    with_them, without = metric(ignore_label=NONE), metric()
    with_them.update_state(ALL_LABELS, ROWS, WEIGHTS)
    without.update_state(ALL_LABELS[~WHERE], ROWS[~WHERE], WEIGHTS[~WHERE])
    assert float(with_them.result()) == pytest.approx(float(without.result()), rel=1e-6)
    assert type(with_them).from_config(with_them.get_config()).ignore_label == NONE


def fitted(loss, labels, metric=None):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=[metric] if metric else None)
    return model, model.fit(FEATURES, labels, 12, epochs=2, shuffle=False, verbose=0).history


def test_fit_learns_from_the_others_and_the_label_survives_saving(tmp_path):
    labels = np.array([0, 1, 0, 1, NONE, 2, NONE, 2, 2, NONE, 0, 1])
    model, history = fitted(made("pnp", ignore_label=NONE), labels, metrics.ValidQueries(ignore_label=NONE))
    assert history["valid_queries"] == [1.0, 1.0]
    kept = labels != NONE
    by_hand = made("pnp")(labels[kept], fitted(made("pnp"), labels)[0](FEATURES[kept]))
    assert np.isfinite(by_hand)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.loss.ignore_label == NONE and "ignore_label=-1" in repr(loaded.loss)
    assert "ignore_label" not in repr(made("pnp"))


@keras.saving.register_keras_serializable("test_ignore_label")
class OwnLoss(tfrank.RankingLoss):
    """A loss that was written before there were labels to ignore."""

    def __init__(self, *, reduction="mean", name="own"):
        super().__init__(made("n_pairs")._core, {}, reduction=reduction, name=name)


def test_a_loss_of_the_users_own_that_has_no_such_argument_is_saved_and_loaded():
    again = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(OwnLoss()))))
    assert type(again) is OwnLoss and again.ignore_label is None


def test_bad_use_is_named():
    for wrong in ("-1", 1.0, True, [-1]):
        with pytest.raises(InputError, match=r"`ignore_label`. Expected an integer, such as -1, or None"):
            tfrank.PNPLoss(ignore_label=wrong)
    with pytest.raises(InputError, match=r"XLA cannot compile .* ignore_label.*jit_compile=False"):
        tf.function(made("pnp", ignore_label=NONE), jit_compile=True)(tf.constant(ALL_LABELS), ROWS)
    with pytest.raises(InputError, match="another label than ignore_label"):
        tfrank.ArcFaceLoss([NONE], ignore_label=NONE)
    with pytest.raises(InputError, match="one of the 2 labels"):
        tfrank.ArcFaceLoss([3, 5], ignore_label=NONE)([3, NONE, 4], tf.zeros([3, 2]))


def replicas(count):
    """Prints the loss of a batch of two replicas, of which one has no row with a class."""
    strategy = tf.distribute.get_strategy()
    if count == 2:
        make_two_cpus()
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    labels = np.array([NONE] * 4 + [3, NONE, 3, 5])
    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(3)])
        model.set_weights([np.eye(3), np.zeros(3)])
        model.compile(keras.optimizers.SGD(0.5), made("smooth_ap", ignore_label=NONE))
    batches = tf.data.Dataset.from_tensor_slices((ROWS[:8].astype("float32"), labels)).batch(8)
    history = model.fit(batches, epochs=2, verbose=0).history["loss"]
    print(json.dumps([history, [weight.tolist() for weight in model.get_weights()]]))


@pytest.mark.slow
def test_two_replicas_give_the_update_of_one_device():
    one, two = (
        printed_json("-c", f"from tests.losses.test_ignore_label import replicas; replicas({count})")
        for count in (1, 2)
    )
    np.testing.assert_allclose(two[0], one[0], rtol=1e-5)
    for first, second in zip(one[1], two[1], strict=True):
        np.testing.assert_allclose(second, first, atol=1e-5)
