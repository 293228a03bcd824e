"""The head that whitens features within classes, against plain loops."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.models.embedding import (
    embedding_model,
    split_at_head,
    split_in_backbone,
    teach_head,
    whiten_head,
    without_head,
)
from tfrank.models.whitening import Rooted, fitted_to, fitted_whitening, rooted

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.permutation(np.repeat(np.arange(12), 6))
ROWS = RANDOM.normal(size=(12, 5))[LABELS] + RANDOM.normal(size=(72, 5)) * np.linspace(0.2, 3, 5)


def within_covariance(rows):
    """The mean of the outer products of what is left of a row without the mean of its class."""
    total = np.zeros([rows.shape[1]] * 2)
    for row, label in zip(rows, LABELS):
        members = [other for other, its in zip(rows, LABELS) if its == label]
        rest = row - sum(members) / len(members)
        total += np.outer(rest, rest)
    return total / len(rows)


def test_rooted_features_are_signed_roots_of_their_share():
    found = np.asarray(Rooted()(np.array([[9.0, -16.0, 0.0]], "float32")))
    np.testing.assert_allclose(found, [[math.sqrt(9 / 25), -math.sqrt(16 / 25), 0.0]], atol=1e-5)
    np.testing.assert_allclose(Rooted()(ROWS.astype("float32")), rooted(ROWS), atol=1e-6)


def test_the_gradient_of_a_feature_of_zero_is_finite():
    rows = tf.constant([[0.0, 2.0], [0.0, 0.0]])
    with tf.GradientTape() as tape:
        tape.watch(rows)
        value = tf.reduce_sum(Rooted()(rows)[:, 1])
    assert np.isfinite(tape.gradient(value, rows)).all()


def test_whitened_rows_spread_alike_in_all_directions_within_classes():
    kernel, bias = fitted_whitening(ROWS, LABELS, dim=5, shrinkage=0.0)
    covariance = within_covariance(ROWS @ kernel + bias)
    np.testing.assert_allclose(covariance / covariance[0, 0], np.eye(5), atol=1e-5)
    np.testing.assert_allclose((ROWS @ kernel + bias).mean(axis=0), 0, atol=1e-6)


@pytest.mark.parametrize("features", [5, 100])
@pytest.mark.parametrize("copies", [1, 2])
def test_where_nothing_differs_within_classes_rows_are_only_centred_and_turned(copies, features):
    """It ended in a LinAlgError; rounding errors of copies would be whitened."""
    rows = np.repeat(RANDOM.normal(size=(30, features)) + 3, copies, axis=0)
    kernel, bias = fitted_whitening(rows, np.arange(30).repeat(copies), dim=features)
    found, centred = rows @ kernel + bias, rows - rows.mean(axis=0)
    np.testing.assert_allclose(found @ found.T, centred @ centred.T, atol=1e-4)


@pytest.mark.parametrize("shrinkage", [0.3, 1.0])
def test_shrunk_whitening_has_the_metric_of_the_shrunk_covariance(shrinkage):
    kernel = fitted_whitening(ROWS, LABELS, dim=5, shrinkage=shrinkage)[0].astype(np.float64)
    covariance = within_covariance(ROWS)
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / 5 * np.eye(5)
    metric = kernel @ kernel.T
    wanted = np.linalg.inv(shrunk)
    np.testing.assert_allclose(metric / metric[0, 0], wanted / wanted[0, 0], atol=1e-5)
    assert np.linalg.norm(kernel, 2) == pytest.approx(1)


def test_fewer_dimensions_are_a_prefix_of_more():
    whole, part = (fitted_whitening(ROWS, LABELS, dim=dim)[0] for dim in (5, 2))
    np.testing.assert_allclose(
        part / np.linalg.norm(part), whole[:, :2] / np.linalg.norm(whole[:, :2]), atol=1e-5
    )


def test_the_head_of_a_model_is_set_and_survives_saving(tmp_path):
    model = embedding_model(image_size=8, blocks=1, filters=4, head="whitened", embedding_dim=6)
    features_of, head = split_at_head(model)
    images = RANDOM.uniform(0, 255, [72, 8, 8, 3]).astype("float32")
    features = np.asarray(features_of(images))
    whiten_head(model, features, LABELS)
    kernel, bias = fitted_whitening(rooted(features), LABELS, dim=6)
    np.testing.assert_allclose(model(images), rooted(features) @ kernel + bias, atol=1e-5)
    np.testing.assert_allclose(head(features), model(images), atol=1e-6)
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(
        keras.models.load_model(tmp_path / "model.keras")(images), model(images), atol=1e-6
    )


@pytest.mark.parametrize("count", [40, 4])
@pytest.mark.parametrize("centred", [True, False])
def test_no_other_map_is_nearer_to_the_teacher_for_its_penalty(count, centred):
    rows, targets = RANDOM.normal(1, 1, [count, 6]), RANDOM.normal(2, 1, [count, 3])

    def cost(kernel, bias):
        far = sum(np.sum((row @ kernel + bias - target) ** 2) for row, target in zip(rows, targets))
        return far / count + 0.3 * np.mean(rows.var(axis=0)) * np.sum(kernel**2)

    kernel, bias = fitted_to(rows, targets, strength=0.3, centred=centred)
    assert centred or not bias.any()
    for _ in range(20):
        step, shift = 0.01 * RANDOM.normal(size=kernel.shape), 0.01 * RANDOM.normal(size=3) * centred
        assert cost(kernel, bias) < cost(kernel + step, bias + shift)


@pytest.mark.parametrize("head", ["whitened", "pca"])
def test_a_taught_head_gives_what_a_teacher_gave_that_it_can_follow(head):
    model = embedding_model(image_size=8, blocks=1, filters=4, head=head, embedding_dim=3)
    features = np.abs(RANDOM.normal(size=[200, model.get_layer("embedding").kernel.shape[0]]))
    known = rooted(features) if head == "whitened" else features
    teacher = known @ RANDOM.normal(size=[features.shape[1], 3]) + (head == "whitened")
    teach_head(model, features, teacher, strength=1e-6)
    np.testing.assert_allclose(split_at_head(model)[1](features), teacher, atol=1e-2)


@pytest.fixture(scope="module")
def lite():
    return embedding_model(image_size=64, backbone="efficientnet_lite0", head="whitened", embedding_dim=8)


def test_a_model_split_in_its_backbone_computes_the_same_in_two_steps(lite):
    images = RANDOM.uniform(0, 255, [2, 64, 64, 3]).astype("float32")
    first, second = split_in_backbone(lite, "blocks.11.bn2", preprocessing="centred_rgb")
    assert first.output_shape == (None, 2, 2, 192)
    np.testing.assert_allclose(second(first(images)), lite(images), atol=1e-5)
    np.testing.assert_allclose(without_head(second)(first(images)), split_at_head(lite)[0](images), atol=1e-5)
    shared = {id(variable) for variable in lite.trainable_variables}
    assert {id(variable) for variable in second.trainable_variables} < shared


@pytest.mark.parametrize(
    "layer, message",
    [
        ("blocks.11.bn9", r'no layer .blocks\.11\.bn9.\. Did you mean "blocks\.11\.bn'),
        ("blocks.12.bn1", "one on whose output alone all that follows depends"),
    ],
)
def test_a_layer_at_which_no_model_can_be_split_is_refused(lite, layer, message):
    with pytest.raises(InputError, match=message):
        split_in_backbone(lite, layer, preprocessing="centred_rgb")
