"""What a run minimises: a loss of each embedding, with proxies and a memory of its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfrank import losses
from tfrank.common.checks import InputError
from tfrank.configs import default
from tfrank.run.objective import build_objective

LABELS = [3, 3, 5, 5]


def objective_of(loss, seed=0, outputs=2, labels=LABELS, categories=None, options=(), **train):
    config = default.get_config(loss)
    config.seed = seed
    config.train.update(train)
    config.loss.update(dict(options))
    images = keras.Input([6])
    model = keras.Model(images, [keras.layers.Dense(4)(images) for _ in range(outputs)])
    optimizer = keras.optimizers.SGD()
    return build_objective(config, model, labels, optimizer.iterations, categories)


def first_proxies(objective):
    return [variable.numpy() for variable in objective.model.variables if "proxies" in variable.path]


def test_the_loss_is_the_sum_over_the_embeddings():
    objective = objective_of("pnp")
    outputs = objective.model(tf.random.stateless_normal([4, 6], [0, 1]))
    parts = [loss(LABELS, e) for loss, e in zip(objective.losses, outputs[0])]
    np.testing.assert_allclose(objective.loss(LABELS, outputs), sum(parts))
    assert len(parts) == 2 and objective.state == []


def test_each_embedding_has_proxies_of_its_own_which_follow_the_seed():
    one, again, other = (first_proxies(objective_of("proxy_nca", seed)) for seed in (1, 1, 7))
    assert [proxies.shape for proxies in one] == [(2, 4), (2, 4)]
    assert not np.allclose(one[0], one[1]) and not np.allclose(one[0], other[0])
    np.testing.assert_array_equal(one, again)
    assert len(objective_of("proxy_nca").state) == 2


def test_an_additional_class_loss_is_added_with_its_weight():
    objective = objective_of("pnp", class_loss_weight=0.5)
    outputs = objective.model(tf.random.stateless_normal([4, 6], [0, 1]))
    ranking = sum(loss(LABELS, e) for loss, e in zip(objective.losses[:2], outputs[0]))
    softmax = sum(loss(LABELS, cosines) for loss, cosines in zip(objective.losses[2:], outputs[1][2:]))
    np.testing.assert_allclose(objective.loss(LABELS, outputs), ranking + 0.5 * softmax, rtol=1e-6)
    assert len(first_proxies(objective)) == 2 and float(softmax) > 0


def test_each_embedding_has_a_memory_of_its_own():
    objective = objective_of("pnp", memory_size=8)
    memories = {id(loss.embeddings) for loss in objective.losses}
    assert len(memories) == 2 and len(objective.state) == 6


@pytest.mark.parametrize("memory", [0, 8])
def test_learned_boundaries_are_trained_and_kept_also_behind_a_memory(memory):
    options = {"learn_boundary": True}
    objective = objective_of("margin", labels=[3, 3, 5, 6], options=options, memory_size=memory)
    paths = [v.path for v in objective.model.trainable_variables if "boundaries" in v.path]
    assert len(paths) == len(set(paths)) == 2
    assert [v.shape for v in objective.state if v.shape == (3,)] == [(3,), (3,)]
    outputs = objective.model(tf.random.stateless_normal([4, 6], [0, 1]))
    assert np.isfinite(objective.loss([3, 3, 5, 6], outputs))


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_any_seed_of_a_run_gives_proxies(seed):
    assert all(np.all(np.isfinite(proxies)) for proxies in first_proxies(objective_of("arc_face", seed)))


def test_a_share_of_the_proxies_scores_embeddings_and_is_refused_if_a_batch_needs_more():
    classes = default.get_config().data.classes_per_batch
    objective = objective_of("arc_face", labels=range(4 * classes), proxy_sample=0.5)
    assert objective.losses[0].share == 0.5 and objective.model.outputs[-1].shape == (None, 4)
    assert objective_of("pnp", proxy_sample=0.5).losses[0].name == "pnp"
    with pytest.raises(InputError, match=f"a batch may have {classes} classes. Give at least 0.25"):
        objective_of("arc_face", labels=range(4 * classes), proxy_sample=0.2)


def test_hierarchical_ap_grades_by_the_categories_of_the_records():
    objective = objective_of("hierarchical_ap", labels=[3, 3, 5, 6], categories=np.array([1, 1, 0, 0]))
    for loss in objective.losses:
        assert loss.labels.tolist() == [3, 5, 6] and loss.categories.tolist() == [[1], [0], [0]]


def test_hierarchical_ap_needs_the_category_of_every_training_image():
    with pytest.raises(InputError, match=r"^1 of 4 training images have no category, which the loss"):
        objective_of("hierarchical_ap", categories=np.array([1, 1, 0, -1]))


@pytest.mark.parametrize("loss", ["pnp", "arc_face"])
def test_class_weights_let_each_class_count_the_same(loss):
    labels = [3, 3, 3, 3, 5, 5]
    objective = objective_of(loss, outputs=1, labels=labels, class_weights=True)
    outputs = objective.model(tf.random.stateless_normal([6, 6], [0, 1]))
    found = objective.loss(tf.constant(labels), outputs)
    (one,) = objective.losses
    each = [
        float(one(labels, outputs[1][0], [float(label == wanted) for label in labels])) for wanted in (3, 5)
    ]
    np.testing.assert_allclose(found, np.mean(each), rtol=1e-6)
    assert abs(each[0] - each[1]) > 1e-3


@pytest.mark.parametrize("loss", ["pnp", "arc_face", "margin"])
def test_every_loss_of_a_run_is_that_of_first_dimensions_too(loss):
    options = {"learn_boundary": True} if loss == "margin" else {}
    train = {"matryoshka": (4, 2), "class_loss_weight": 0.5}
    objective = objective_of(loss, outputs=1, labels=[3, 3, 5, 6], options=options, **train)
    assert [one.dims for one in objective.losses] == [(4, 2), (4, 2)]
    outputs = objective.model(tf.random.stateless_normal([4, 6], [0, 1]))
    parts = [one([3, 3, 5, 6], output) for one, output in zip(objective.losses, outputs[1])]
    np.testing.assert_allclose(objective.loss([3, 3, 5, 6], outputs), parts[0] + 0.5 * parts[1], rtol=1e-6)
    assert len(objective.state) == {"pnp": 1, "arc_face": 2, "margin": 2}[loss]


def test_a_teacher_adds_its_three_losses_with_their_weights():
    weights = {"teacher_weight": 2.0, "regression_weight": 3.0, "relational_weight": 4.0, "loss_weight": 0.5}
    objective = objective_of("pnp", outputs=1, teacher="t", memory_size=8, **weights)
    outputs = objective.model(tf.random.stateless_normal([4, 6], [0, 1]))
    (rows,), others = outputs[0], tf.random.stateless_normal([4, 4], [0, 2])
    both = tf.concat([rows, others], axis=1)
    parts = [losses.AsymmetricLoss(losses.get("pnp"))(LABELS, both)]
    parts += [losses.RegressionLoss()(others, rows), losses.RelationalLoss()(others, rows)]
    expected = 0.5 * losses.get("pnp")(LABELS, rows) + np.dot([2, 3, 4], parts)
    np.testing.assert_allclose(objective.loss(LABELS, outputs, teacher=others), expected, rtol=1e-6)
    assert len(objective.state) == 6  # The memory of the embeddings, and that of the teacher's.
    with pytest.raises(InputError, match="Expected 4 dimensions, as those of the queries"):
        objective.loss(LABELS, outputs, teacher=others[:, :3])


@pytest.mark.parametrize("loss", ["contrastive", "arc_face"])
def test_images_without_a_class_learn_from_the_teacher_alone(loss):
    labels, weights = [3, 3, 5, 5, -2, -3], {"teacher_weight": 0, "regression_weight": 1.0}
    options = {"outputs": 1, "class_weights": True, "class_loss_weight": 0.5}
    objective = objective_of(loss, labels=labels, teacher="t", **weights, **options)
    alone = objective_of(loss, labels=labels[:4], **options)
    images, others = (tf.random.stateless_normal([6, size], [0, size]) for size in (6, 4))
    with tf.GradientTape() as tape:
        tape.watch(images)
        outputs = objective.model(images)
        found = objective.loss(labels, outputs, teacher=others)
        regression = losses.RegressionLoss()(others, outputs[0][0])
        own = found - regression
    assert [one.shape for one in first_proxies(objective)] == [one.shape for one in first_proxies(alone)]
    np.testing.assert_array_equal(tape.gradient(own, images)[4:], np.zeros([2, 6]))
    alone.model.set_weights(objective.model.get_weights())
    np.testing.assert_allclose(own, alone.loss(labels[:4], alone.model(images[:4])), rtol=1e-5)


def test_categories_are_those_of_classes_alone():
    labels, categories = [3, 3, 5, 5, -2, -3], np.array([0, 0, 1, 1, 0, 1])
    objective_of("hierarchical_ap", labels=labels, categories=categories, teacher="t")


def test_where_no_image_has_a_class_only_proxies_are_refused():
    options = {"outputs": 1, "labels": [-2, -3, -4], "teacher": "t", "regression_weight": 1.0}
    objective = objective_of("pnp", class_weights=True, **options)
    outputs = objective.model(tf.ones([3, 6]))
    assert np.isfinite(objective.loss([-2, -3, -4], outputs, teacher=tf.ones([3, 4])))
    for loss, more in (("arc_face", {}), ("pnp", {"class_loss_weight": 1.0})):
        with pytest.raises(InputError, match=r"^No training image has a class.*class_loss_weight=0, and"):
            objective_of(loss, **more, **options)


def test_queries_are_ranked_in_the_gallery_of_an_older_model_too():
    objective = objective_of("pnp", outputs=1, compatible_with="old", compatible_weight=0.5)
    outputs = objective.model(tf.random.stateless_normal([4, 6], [0, 1]))
    (rows,), old = outputs[0], tf.random.stateless_normal([4, 4], [0, 2])
    against = losses.AsymmetricLoss(losses.get("pnp"))(LABELS, tf.concat([rows, old], axis=1))
    expected = losses.get("pnp")(LABELS, rows) + 0.5 * against
    np.testing.assert_allclose(objective.loss(LABELS, outputs, compatible_with=old), expected, rtol=1e-6)


def test_first_dimensions_are_compared_with_a_share_of_the_proxies_or_with_a_memory():
    classes = default.get_config().data.classes_per_batch
    sampled = objective_of("arc_face", labels=range(4 * classes), proxy_sample=0.5, matryoshka=(4, 2))
    assert (sampled.losses[0].dims, sampled.losses[0].loss.share) == ((4, 2), 0.5)
    memory = objective_of("pnp", memory_size=8, matryoshka=(4, 2))
    assert (memory.losses[0].size, memory.losses[0].loss.dims) == (8, (4, 2))
    with pytest.raises(InputError, match=r"takes whole embeddings alone\. Leave out config.train.matryoshka"):
        objective_of("addons/triplet_hard", matryoshka=(4, 2))
