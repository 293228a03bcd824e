"""The loss over the first dimensions: of every loss, by plain loops. Replicas: the `replicas` beside."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.losses import (
    LABELS,
    RECIPES,
    SOFT_RECIPES,
    Recipe,
    embeddings,
    slow_but_kinds,
    value_and_gradient,
)
from tests.losses import fresh_process as small
from tests.losses.proxies import CLASSES, EMBEDDINGS, slopes, value_and_gradients
from tests.losses.proxies import DEFAULTS as PROXIES
from tests.losses.proxies import LABELS as PROXY_LABELS
from tests.losses.test_keras import small_model
from tfrank import losses, metrics
from tfrank.common.checks import InputError
from tfrank.losses import CrossBatchMemory, MatryoshkaLoss
from tfrank.losses.proxies import SampledProxyLoss
from tfrank.training.multi_stage_model import MultiStageModel

DIMS, WEIGHTS = (3, 2), (1.0, 0.5)
# A loss of the hardest queries is refused.
ALL_QUERIES = [one for one in RECIPES if not one.settings.get("hardest")]
every_loss = pytest.mark.parametrize(
    "recipe", [pytest.param(one, id=str(one), marks=slow_but_kinds(one)) for one in ALL_QUERIES]
)


def by_hand(recipe, rows, weights=None):
    """The sum over dims of the paper's formula, of the first dimensions of rows as they are."""
    total = 0.0
    for dim, weight in zip(DIMS, WEIGHTS):
        cut = np.array([row[:dim] for row in rows])
        total += weight * reference.mean(*recipe.oracle(*reference.one_batch(LABELS, cut)), weights)
    return total


@every_loss
@pytest.mark.parametrize("weights", [None, np.linspace(0, 3, 11)], ids=["unweighted", "weighted"])
def test_the_value_is_the_weighted_sum_of_the_papers_over_the_first_dimensions(recipe, weights):
    value = MatryoshkaLoss(recipe.loss(), DIMS, WEIGHTS)(LABELS, embeddings(), weights)
    np.testing.assert_allclose(value, by_hand(recipe, embeddings(), weights), rtol=1e-9)


@pytest.mark.parametrize(
    "recipe", [one for one in SOFT_RECIPES if one.name in ("smooth_ap", "n_pairs")], ids=str
)
def test_the_gradient_is_the_slope_of_the_plain_loops(recipe):
    _, gradient = value_and_gradient(MatryoshkaLoss(recipe.loss(), DIMS, WEIGHTS), LABELS, embeddings())
    expected = slopes(lambda rows: by_hand(recipe, rows), embeddings())
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("recipe", PROXIES, ids=str)
def test_with_proxies_first_dimensions_are_compared_with_those_of_the_proxies(recipe):
    inner = recipe.loss()
    loss, layer = MatryoshkaLoss(inner, (4, 2), (1.0, 0.5)), inner.proxies()
    weights = np.linspace(0, 2, len(PROXY_LABELS))
    value, *gradients = value_and_gradients(loss, layer, PROXY_LABELS, EMBEDDINGS, weights)
    proxies = layer.proxies.numpy().astype("float64")

    def expected(rows, proxies):
        parts = [recipe.mean(PROXY_LABELS, rows[:, :dim], proxies[:, :dim], weights) for dim in (4, 2)]
        return parts[0] + 0.5 * parts[1]

    np.testing.assert_allclose(value, expected(EMBEDDINGS, proxies), rtol=1e-5)
    of_rows = slopes(lambda rows: expected(rows, proxies), EMBEDDINGS)
    of_proxies = slopes(lambda proxies: expected(EMBEDDINGS, proxies), proxies)
    for gradient, slope in zip(gradients, (of_rows, of_proxies)):
        np.testing.assert_allclose(gradient, slope, rtol=1e-3, atol=1e-5)


def test_sampled_proxies_at_share_1_are_all_proxies():
    inner = losses.get("cos_face", labels=CLASSES)
    sampled = SampledProxyLoss(inner, share=1.0)
    rows = inner.proxies()(tf.constant(EMBEDDINGS))
    values = [MatryoshkaLoss(loss, (4, 1))(PROXY_LABELS, rows) for loss in (inner, sampled)]
    np.testing.assert_allclose(*values)


def test_one_whole_embedding_is_the_loss_itself_to_the_last_bit():
    value, gradient = value_and_gradient(losses.get("pnp"), LABELS, embeddings())
    same = value_and_gradient(MatryoshkaLoss(losses.get("pnp"), dims=[3]), LABELS, embeddings())
    np.testing.assert_array_equal(same[0], value)
    np.testing.assert_array_equal(same[1], gradient)


def test_rows_to_ignore_and_queries_without_loss_are_those_of_the_inner_loss():
    loss = losses.get("pnp", ignore_label=3, reduction=None)
    kept = LABELS != 3
    values = MatryoshkaLoss(loss, DIMS)(LABELS, embeddings())
    alone = MatryoshkaLoss(losses.get("pnp", reduction=None), DIMS)(LABELS[kept], embeddings()[kept])
    np.testing.assert_allclose(values.numpy()[kept], alone)
    assert not np.any(values.numpy()[~kept])


def test_a_memory_around_it_is_one_for_all_dims():
    inner = MatryoshkaLoss(losses.get("pnp"), DIMS)
    loss = CrossBatchMemory(inner, size=11, warm_up=0)
    value_and_gradient(loss, LABELS, embeddings(seed=1))
    past = reference.unit(embeddings(seed=1))
    gallery_labels, gallery = np.tile(LABELS, 2), np.concatenate([embeddings(), past])
    scored = inner.score(LABELS, embeddings(), gallery_labels, gallery, np.arange(11))
    np.testing.assert_allclose(loss(LABELS, embeddings()), reference.mean(*map(np.array, scored)), rtol=1e-6)
    assert loss.embeddings.numpy().shape == (11, 3)


@pytest.mark.parametrize("kind", ["ranking", "proxies"])
def test_fit_in_stages_is_fit_and_logs_the_loss_by_hand(kind):
    results = []
    for stages in (False, True):
        keras.utils.set_random_seed(0)
        inner = losses.get("smooth_ap") if kind == "ranking" else losses.get("arc_face", labels=small.LABELS)
        loss = MatryoshkaLoss(inner, dims=(4, 2))
        model = small_model(loss)
        if kind == "proxies":
            model = keras.Sequential([model, inner.proxies()])
        first = loss(small.LABELS, model(small.FEATURES))
        model = MultiStageModel(model, micro_batch_size=5) if stages else model
        model.compile("sgd", loss, metrics=[metrics.MeanLoss(loss)], jit_compile=False)
        logged = model.fit(small.FEATURES, small.LABELS, 12, epochs=2, shuffle=False, verbose=0).history
        np.testing.assert_allclose(logged["loss"][0], first, rtol=1e-5)
        if kind == "ranking":  # Metrics come after the step, which moves proxies.
            np.testing.assert_allclose(logged["mean_loss"], logged["loss"], rtol=1e-5)
        results.append((logged["loss"], model.get_weights()))
    for plain, staged in zip(*results):
        for one, other in zip(plain, staged):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


def test_config_survives_a_round_trip_through_json():
    for inner in (losses.get("rll"), losses.get("arc_face", labels=CLASSES)):
        loss = MatryoshkaLoss(inner, (8, 4, 2), (1, 2, 0.5), name="doll")
        revived = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
        assert type(revived) is MatryoshkaLoss and revived.get_config() == loss.get_config()
        assert type(revived.loss) is type(inner)
    assert repr(MatryoshkaLoss(losses.get("fast_ap"), (2, 1))) == (
        "MatryoshkaLoss(loss=FastAPLoss(num_bins=10), dims=[2, 1], weights=[1.0, 1.0])"
    )


def test_the_iteration_and_the_variables_are_those_of_the_inner_loss():
    temperature = tf.Variable(0.1)
    loss, steps = MatryoshkaLoss(losses.get("smooth_ap", temperature=temperature), DIMS), tf.Variable(0)
    loss.iteration = steps
    assert loss.loss.iteration is steps and loss.variables[0] is temperature


PNP = Recipe("pnp", {}).loss()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((PNP, (2, 0)), r"`dims`\. Expected an integer of at least 1.*dims=0"),
        ((PNP, (2, -1)), r"`dims`\. Expected an integer of at least 1.*dims=-1"),
        ((PNP, (2, 1.5)), r"`dims`\. Expected an integer of at least 1.*dims=1.5"),
        ((PNP, ()), r"`dims`\. Expected a list of numbers"),
        ((PNP, (2, 1, 2)), r"`dims`\. Expected different numbers.*\(2, 1, 2\)"),
        ((PNP, (2, 1), [1.0]), r"`weights`\. Expected one number for each of 2 dims"),
        ((PNP, (2, 1), [1.0, float("nan")]), r"`weights`\. Expected a finite number"),
        ((losses.WeightedSum([PNP]),), r"`loss`\. Expected a RankingLoss or a loss with proxies"),
        ((MatryoshkaLoss(PNP),), r"`loss`\. Expected a RankingLoss"),
        ((CrossBatchMemory(PNP, 4),), r"`loss`\. Expected a RankingLoss.*the loss in a memory"),
        (
            (losses.get("triplet", mining="hard", hardest=4),),
            r"`loss`\. Expected one of all queries, hardest=0",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=f"argument {message}"):
        MatryoshkaLoss(*arguments)


def test_dims_beyond_the_embedding_and_a_memory_of_proxies_are_refused():
    message = r"`dims`\. Expected at most the embedding's 3 dimensions. Received: dims=\(4, 2\)"
    with pytest.raises(InputError, match=message):
        MatryoshkaLoss(PNP, (4, 2))(LABELS, embeddings())
    inner = losses.get("arc_face", labels=CLASSES)
    with pytest.raises(InputError, match="at most the embedding's 4 dimensions"):
        MatryoshkaLoss(inner, (8, 2))(PROXY_LABELS, inner.proxies()(tf.constant(EMBEDDINGS)))
    with pytest.raises(InputError, match="a RankingLoss without a memory"):
        CrossBatchMemory(MatryoshkaLoss(inner), 4)
