"""The learned boundaries of the margin loss; the rest of it is tested with all losses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import slow
from tests.losses import LABELS, embeddings, value_and_gradient
from tests.reference import pairs as oracle
from tfrank.common.checks import InputError
from tfrank.losses import MarginLoss, MatryoshkaLoss
from tfrank.losses.margin import margin_loss

ROWS = embeddings()
CLASSES, PLACES = np.unique(LABELS, return_inverse=True)


def learned(**options):
    return MarginLoss(learn_boundary=True, labels=LABELS, **options)


@pytest.mark.parametrize("key", [None, 7])
def test_the_slope_by_the_boundaries_is_the_change_of_the_value(key):
    key = None if key is None else tf.constant(key, tf.int64)
    rows = tf.constant(ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True))
    labels, boundaries = tf.constant(LABELS, tf.int64), tf.Variable(np.linspace(0.6, 1.4, len(LABELS)))

    def total(values):
        batch = labels, rows, labels, rows, tf.range(len(LABELS))
        settings = MarginLoss().hyper_parameters
        return tf.reduce_sum(margin_loss(*batch, **settings, key=key, boundaries=values)[0])

    with tf.GradientTape() as tape:
        value = total(tf.convert_to_tensor(boundaries))
    slope = tape.gradient(value, boundaries).numpy()
    steps = 1e-7 * np.eye(len(LABELS))
    change = [(total(boundaries + step) - total(boundaries - step)) / 2e-7 for step in steps]
    np.testing.assert_allclose(slope, change, atol=1e-6)
    assert np.count_nonzero(slope) > len(LABELS) / 2


def test_with_each_class_at_its_boundary_it_is_the_plain_loops():
    loss = learned(sampled=False, nu=0.25, reduction=None)
    layer = loss.boundaries()
    layer(ROWS)
    values = np.linspace(0.7, 1.3, len(CLASSES))
    layer.boundaries.assign(values)
    found = loss(LABELS, ROWS).numpy()
    rows, own = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True), np.arange(len(LABELS))
    for place, boundary in enumerate(values):
        wanted, valid = oracle.margin(LABELS, rows, LABELS, rows, own, boundary=boundary, sampled=False)
        here = np.flatnonzero((place == PLACES) & np.array(valid, bool))
        np.testing.assert_allclose(found[here], np.array(wanted)[here] + 0.25 * boundary, rtol=1e-5)


def test_at_the_start_it_is_the_loss_of_one_boundary():
    loss = learned(boundary=0.9)
    wanted = value_and_gradient(MarginLoss(boundary=0.9), LABELS, ROWS)
    loss.boundaries()(ROWS)
    for one, other in zip(value_and_gradient(loss, LABELS, ROWS), wanted):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("jit_compile", [False, slow(True)])
def test_fit_learns_boundaries_and_a_weight_lowers_them(jit_compile):
    ends = []
    for nu in (0.0, 2.0):
        loss = learned(nu=nu)
        model = keras.Sequential([keras.Input([ROWS.shape[1]]), keras.layers.Dense(4), loss.boundaries()])
        model.compile(keras.optimizers.SGD(0.05), loss=loss, jit_compile=jit_compile)
        model.fit(ROWS, LABELS, batch_size=len(LABELS), epochs=3, shuffle=False, verbose=0)
        ends.append(model.layers[-1].boundaries.numpy())
    assert np.ptp(ends[0]) > 1e-3, "each class has its own"
    assert np.mean(ends[1]) < np.mean(ends[0]) - 0.01


def test_it_survives_saving():
    loss = learned(nu=0.5, margin=0.3)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
    assert len(repr(MarginLoss(learn_boundary=True, labels=range(9999)))) < 300


@pytest.mark.parametrize("around", [lambda loss: loss, lambda loss: MatryoshkaLoss(loss, (4, 2))])
def test_a_loaded_or_cloned_model_goes_on_with_its_own_boundaries(around, tmp_path):
    loss = learned(sampled=False)
    model = keras.Sequential([keras.Input([ROWS.shape[1]]), keras.layers.Dense(4), loss.boundaries()])

    def step(model, loss):
        model.fit(ROWS, LABELS, batch_size=len(LABELS), shuffle=False, verbose=0)
        return model.layers[-1].boundaries.numpy()

    model.compile("sgd", around(loss))
    step(model, loss)
    model.save(tmp_path / "model.keras")
    loaded, cloned = keras.models.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    cloned.compile("sgd", around(loss))
    before = model.layers[-1].boundaries.numpy()
    after = [step(one, loss) for one in (cloned, loaded)]
    np.testing.assert_array_equal(model.layers[-1].boundaries, before)
    for one in after:
        np.testing.assert_allclose(one, step(model, loss) if one is after[0] else after[0], rtol=1e-5)
        assert not np.array_equal(one, before)


def test_what_is_missing_is_said():
    for arguments in ({"learn_boundary": True}, {"labels": [1, 2]}):
        with pytest.raises(InputError, match="Give `labels`, those of the training images"):
            MarginLoss(**arguments)
    with pytest.raises(InputError, match=r"has no boundaries yet. Add loss\.boundaries\(\)"):
        learned()(LABELS, ROWS)
    with pytest.raises(InputError, match="The boundary is fixed"):
        MarginLoss().boundaries()
    loss = MarginLoss(learn_boundary=True, labels=[0, 1])
    loss.boundaries()(np.eye(4))
    with pytest.raises(InputError, match=r"one of the 2 labels that the loss 'margin'.*labels=9"):
        loss([0, 0, 9, 9], np.eye(4))
