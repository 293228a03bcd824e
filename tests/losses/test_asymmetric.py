"""Queries of one model against the gallery of another: of every loss, by plain loops."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.losses import LABELS, RECIPES, SOFT_RECIPES, embeddings, slow_but_kinds, value_and_gradient
from tests.losses.proxies import CLASSES, slopes
from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.losses import AsymmetricLoss, CrossBatchMemory, MatryoshkaLoss

every_loss = pytest.mark.parametrize(
    "recipe", [pytest.param(one, id=str(one), marks=slow_but_kinds(one)) for one in RECIPES]
)
NOBODY, OWN = [-1] * len(LABELS), range(len(LABELS))


def others():
    return embeddings(seed=5)


def side_by_side(rows):
    return np.concatenate([rows, others()], axis=1)


def by_hand(recipe, rows, own=NOBODY, weights=None):
    """The paper's formula of the queries `rows` against the embeddings of the other model."""
    return reference.mean(*recipe.oracle(LABELS, rows, LABELS, others(), own), weights)


@every_loss
@pytest.mark.parametrize("include_self", [True, False])
def test_the_value_is_the_papers_of_queries_against_the_other_gallery(recipe, include_self):
    weights = np.linspace(0, 3, len(LABELS))
    loss = AsymmetricLoss(recipe.loss(), include_self=include_self)
    expected = by_hand(recipe, embeddings(), NOBODY if include_self else OWN, weights)
    np.testing.assert_allclose(loss(LABELS, side_by_side(embeddings()), weights), expected, rtol=1e-9)
    taken_apart = loss.against(LABELS, *map(tf.constant, (embeddings(), others(), weights)))
    np.testing.assert_allclose(taken_apart, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "recipe", [one for one in SOFT_RECIPES if one.name in ("smooth_ap", "n_pairs")], ids=str
)
def test_the_gradient_is_the_slope_of_the_plain_loops_and_the_gallery_has_none(recipe):
    loss = AsymmetricLoss(recipe.loss())
    _, gradient = value_and_gradient(loss, LABELS, side_by_side(embeddings()))
    expected = slopes(lambda rows: by_hand(recipe, rows), embeddings())
    np.testing.assert_allclose(gradient[:, :3], expected, rtol=1e-5, atol=1e-8)
    assert not np.any(gradient[:, 3:])


def test_an_image_without_a_class_is_learnt_from_if_the_query_itself_counts():
    labels = np.arange(len(LABELS))
    assert AsymmetricLoss(losses.get("pnp"))(labels, side_by_side(embeddings())) > 0
    with pytest.warns(UserWarning, match="No image of this batch has another of its class"):
        alone = AsymmetricLoss(losses.get("pnp"), include_self=False)(labels, side_by_side(embeddings()))
    assert float(alone) == 0


def test_a_memory_inside_keeps_the_other_models_embeddings():
    inner = CrossBatchMemory(losses.get("pnp"), size=11, warm_up=0)
    loss = AsymmetricLoss(inner)
    value_and_gradient(loss, LABELS, side_by_side(embeddings()))
    np.testing.assert_allclose(inner.embeddings, reference.unit(others()), atol=1e-6)
    gallery_labels, gallery = np.tile(LABELS, 2), np.tile(others(), [2, 1])
    scored = inner.loss.score(LABELS, embeddings(), gallery_labels, gallery, NOBODY)
    value = loss(LABELS, side_by_side(embeddings()))
    np.testing.assert_allclose(value, reference.mean(*map(np.array, scored)), rtol=1e-6)
    assert [one.name for one in loss.variables] == [one.name for one in inner.variables]


def test_fit_trains_a_student_beside_its_teacher():
    images = keras.Input([3])
    student, teacher = keras.layers.Dense(4, name="student"), keras.layers.Dense(4, trainable=False)
    model = keras.Model(images, keras.layers.Concatenate()([student(images), teacher(images)]))
    model.compile("sgd", AsymmetricLoss(losses.get("smooth_ap")))
    before = [weights.copy() for weights in (student.get_weights()[0], teacher.get_weights()[0])]
    logged = model.fit(embeddings("float32"), LABELS, 11, verbose=0).history["loss"]
    assert np.isfinite(logged[0])
    assert not np.allclose(student.get_weights()[0], before[0])
    np.testing.assert_array_equal(teacher.get_weights()[0], before[1])


def test_config_survives_a_round_trip_through_json():
    loss = AsymmetricLoss(losses.get("rll"), include_self=False, name="student")
    revived = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
    assert type(revived) is AsymmetricLoss and revived.get_config() == loss.get_config()
    assert repr(AsymmetricLoss(losses.get("fast_ap"))) == (
        "AsymmetricLoss(loss=FastAPLoss(num_bins=10), include_self=True)"
    )


@pytest.mark.parametrize(
    "loss",
    [
        losses.WeightedSum([losses.get("pnp")]),
        losses.get("arc_face", labels=CLASSES),
        MatryoshkaLoss(losses.get("arc_face", labels=CLASSES)),
        AsymmetricLoss(losses.get("pnp")),
        losses.RelationalLoss(),
    ],
    ids=lambda loss: loss.name,
)
def test_a_loss_that_ranks_no_gallery_is_refused(loss):
    with pytest.raises(InputError, match=r"argument `loss`\. Expected a RankingLoss \(of a WeightedSum"):
        AsymmetricLoss(loss)


@pytest.mark.parametrize("around", [lambda loss: CrossBatchMemory(loss, 4), MatryoshkaLoss])
def test_it_is_around_a_memory_and_lengths_and_not_in_them(around):
    with pytest.raises(InputError, match=r"`loss`\..*AsymmetricLoss"):
        around(AsymmetricLoss(losses.get("pnp")))


def test_other_dimensions_and_an_odd_number_of_columns_are_refused():
    loss = AsymmetricLoss(losses.get("pnp"))
    with pytest.raises(InputError, match=r"`others`\. Expected 3 dimensions, as those of the queries"):
        loss.against(LABELS, tf.constant(embeddings()), tf.ones([11, 4]))
    with pytest.raises(InputError, match=r"`embeddings`\. Expected an even number of columns"):
        loss(LABELS, embeddings())
    with pytest.raises(InputError, match=r"`include_self`"):
        AsymmetricLoss(losses.get("pnp"), include_self=2)
