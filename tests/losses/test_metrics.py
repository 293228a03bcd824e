"""Every metric of `tfrank.metrics` beside a plain loop: alone, under Keras, and on two replicas."""

import itertools
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.cases import slow
from tests.losses import LABELS, embeddings
from tests.losses.fresh_process import FEATURES
from tests.losses.metric_replicas import IN_MODELS, METRICS, RECIPES, Recipe
from tests.losses.test_map_q import SIZE, largest_tensor
from tests.programs import printed_json
from tfrank import losses, metrics
from tfrank.common.checks import InputError

# Oracles: the value of each query of a batch, None where it has none.


def queries(labels, rows):
    return reference.each_query(*reference.one_batch(labels, rows))


def recall_at_1(labels, rows):
    similarity = [s for s, _, _ in queries(labels, rows)]
    rankings = reference.relevance(similarity, labels, labels, range(len(labels)))
    return [None if ranking is None else float(ranking[0]) for ranking in rankings]


def average_precision(labels, rows):
    similarity = [s for s, _, _ in queries(labels, rows)]
    values = reference.average_precision(similarity, labels, labels, range(len(labels)))
    return [None if math.isnan(value) else value for value in values]


def ap_approximation_error(labels, rows, temperature=0.01):
    smooth, _ = reference.ranking.smooth_ap(*reference.one_batch(labels, rows), temperature=temperature)
    exact = average_precision(labels, rows)
    return [None if ap is None else abs((1 - loss) - ap) for loss, ap in zip(smooth, exact)]


def operating_region(labels, rows, temperature=0.01, least_slope=0.005):
    def slope(difference):
        small = math.exp(-abs(difference) / temperature)
        return small / (1 + small) ** 2 / temperature

    shares = []
    for s, _, _ in queries(labels, rows):
        inside = sum(slope(s[j] - s[i]) > least_slope for i in range(len(s)) for j in range(len(s)))
        shares.append(inside / len(s) ** 2)
    return shares


def valid_queries(labels, rows):
    return [float(len(positives) > 0) for _, positives, _ in queries(labels, rows)]


def positive_similarity(labels, rows):
    return [np.mean([s[i] for i in found]) if found else None for s, found, _ in queries(labels, rows)]


def negative_similarity(labels, rows):
    return [np.mean([s[j] for j in found]) if found else None for s, _, found in queries(labels, rows)]


def embedding_spread(labels, rows):
    unit = reference.unit(rows)
    center = [sum(column) / len(unit) for column in unit.T]
    squares = [sum((x - c) ** 2 for x, c in zip(row, center)) for row in unit]
    return [math.sqrt(sum(squares) / len(unit))] * len(unit)


# By class: the pure function, and its oracle.
PAIRS = {
    "BatchRecallAt1": (metrics.recall_at_1, recall_at_1),
    "BatchAveragePrecision": (metrics.average_precision, average_precision),
    "APApproximationError": (metrics.ap_approximation_error, ap_approximation_error),
    "OperatingRegion": (metrics.operating_region, operating_region),
    "ValidQueries": (metrics.valid_queries, valid_queries),
    "PositiveSimilarity": (metrics.positive_similarity, positive_similarity),
    "NegativeSimilarity": (metrics.negative_similarity, negative_similarity),
    "EmbeddingSpread": (metrics.embedding_spread, embedding_spread),
}

every_metric = pytest.mark.parametrize("recipe", RECIPES, ids=str)
every_name = pytest.mark.parametrize("name", METRICS)


def expected(recipe, *batches):
    """The mean over the queries of all batches: (labels, rows) or (labels, rows, weights)."""
    values, weights = [], []
    for labels, rows, *given in batches:
        values += PAIRS[recipe.metric][1](labels, np.asarray(rows, "float64"), **recipe.settings)
        weights += list(given[0]) if given else [1.0] * len(labels)
    return reference.mean(values, [value is not None for value in values], weights)


def test_every_metric_of_the_module_has_an_oracle():
    assert list(PAIRS) == [name for name in vars(metrics) if name in METRICS]
    assert {cls.__name__ for cls in metrics.BatchMetric.__subclasses__()} == set(METRICS)


def axis_rows():
    """Rows along the axes: similarities are -1, 0 or 1, tied exactly within and across classes."""
    rows = np.eye(3)[[0, 1, 1, 2, 0, 0, 2, 1, 2, 0, 0]]
    return rows * np.array([1, 2, -1, 1, 4, 1, 1, 1, 2, -1, 1])[:, None]


def with_zeros():
    """Rows of zeros: of one class, of two, and of one that is alone in its class."""
    rows = embeddings().copy()
    rows[[0, 1, 5, 6]] = 0
    return rows


BATCHES = {
    "unequal classes and lone queries": (LABELS, embeddings()),
    "ties": (LABELS, axis_rows()),
    "zero rows": (LABELS, with_zeros()),
    "one class": (np.zeros(11, int), embeddings()),
    "lone queries only": (np.arange(11), embeddings()),
    "one row": (LABELS[:1], embeddings()[:1]),
}


@pytest.mark.parametrize("labels, rows", BATCHES.values(), ids=BATCHES)
@every_metric
def test_value_of_each_query_is_the_oracles(recipe, labels, rows):
    function, oracle = PAIRS[recipe.metric]
    by_hand = oracle(labels, rows, **recipe.settings)
    unit = tf.constant(reference.unit(rows))
    settings = getattr(metrics, recipe.metric)(**recipe.settings).hyper_parameters
    values, valid = function(tf.constant(labels, tf.int64), unit, **settings)
    assert valid.numpy().tolist() == [value is not None for value in by_hand]
    assert np.all(np.isfinite(values))
    by_hand = [value for value in by_hand if value is not None]
    np.testing.assert_allclose(values[valid], by_hand, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@every_metric
def test_result_is_the_weighted_mean_over_the_queries_of_all_batches(recipe, dtype):
    """Not over batches: they have 11, 6 and 3 rows, of any norm. The last has lone queries only."""
    batches = []
    for seed, size in enumerate([11, 6, 3]):
        rows = tf.cast(embeddings(seed=seed)[:size], dtype)
        labels = np.arange(3) if size == 3 else LABELS[:size]
        batches.append((labels, rows, np.linspace(0, 2, size)))
    metric = recipe.make()
    for _round in range(2):
        assert metric.result() == 0
        for batch in batches:
            metric.update_state(*batch)
        np.testing.assert_allclose(metric.result(), expected(recipe, *batches), rtol=1e-5, atol=1e-6)
        metric.reset_state()


@every_metric
def test_batch_without_a_valid_query_gives_zero(recipe):
    batch = np.arange(11), embeddings()
    metric = recipe.make()
    metric.update_state(*batch)
    np.testing.assert_allclose(metric.result(), expected(recipe, batch), atol=1e-6)
    if recipe.metric in ("BatchRecallAt1", "BatchAveragePrecision", "PositiveSimilarity", "ValidQueries"):
        assert metric.result() == 0


@every_metric
def test_a_nan_in_an_embedding_is_a_nan_in_the_metric(recipe):
    rows = axis_rows()
    rows[3, 1] = np.nan
    assert np.isnan(value_of(recipe, (LABELS, rows)))


# The operating region and the spread.


@pytest.mark.parametrize("temperature", [0.01, 0.5, 1.0, 100.0])
def test_slope_of_exactly_least_slope_is_outside_the_operating_region(temperature):
    """The greatest slope, of ties, is 1 / (4 temperature)."""
    batch, steepest = (LABELS, axis_rows().astype("float32")), 1 / (4 * temperature)
    at = Recipe("OperatingRegion", {"temperature": temperature, "least_slope": steepest})
    below = Recipe("OperatingRegion", {"temperature": temperature, "least_slope": steepest * (1 - 1e-5)})
    assert value_of(at, batch) == 0
    # In each row some of the 121 differences are 0: those of a row and itself at least.
    assert (
        value_of(below, batch) == pytest.approx(expected(below, batch)) and value_of(below, batch) >= 1 / 11
    )


def test_difference_at_the_edge_of_the_operating_region_is_outside():
    """The sigmoid's slope at 1, the one difference here that is neither 0 nor 2."""
    batch, e = (LABELS, axis_rows().astype("float32")), math.exp(-1)
    at, below = (
        Recipe("OperatingRegion", {"temperature": 1.0, "least_slope": e / (1 + e) ** 2 * factor})
        for factor in (1, 1 - 1e-5)
    )
    assert value_of(at, batch) < value_of(below, batch) - 0.1
    for recipe in (at, below):
        np.testing.assert_allclose(value_of(recipe, batch), expected(recipe, batch), rtol=1e-6)


@pytest.mark.parametrize("least_slope", [1e-12, 1e-16, 1e-30])
def test_operating_region_has_an_edge_however_small_the_least_slope(least_slope):
    """At temperature 0.01 it is at differences of 0.32, 0.41 and 0.74."""
    recipe = Recipe("OperatingRegion", {"least_slope": least_slope})
    batch = LABELS, embeddings()
    np.testing.assert_allclose(value_of(recipe, batch), expected(recipe, batch), rtol=1e-6)


def value_of(recipe, batch):
    metric = recipe.make()
    metric.update_state(*batch)
    return float(metric.result())


@pytest.mark.parametrize(
    "rows, spread",
    [
        ([[0.3, 0.4]] * 7, 0),
        ([[0.0, 0.0]] * 3, 0),
        ([[3.0, 0.0], [0.3, 0.0], [7.0, 0.0]], 0),
        ([[1.0, 0.0], [-2.0, 0.0]], 1),
        ([[1.0, 0.0], [0.0, 5.0]], math.sqrt(1 / 2)),
        ([[1.0, 0.0], [0.0, 0.0]], 1 / 2),
    ],
)
def test_spread_is_0_of_one_point_and_grows_to_1(rows, spread):
    assert value_of(Recipe("EmbeddingSpread", {}), (range(len(rows)), rows)) == pytest.approx(
        spread, abs=1e-6
    )


@pytest.mark.parametrize(
    "make, argument",
    [
        (lambda: metrics.APApproximationError(temperature=0), "temperature"),
        (lambda: metrics.APApproximationError(temperature=math.nan), "temperature"),
        (lambda: metrics.OperatingRegion(temperature=0.0), "temperature"),
        (lambda: metrics.OperatingRegion(least_slope=-1), "least_slope"),
        (lambda: metrics.OperatingRegion(least_slope="0.005"), "least_slope"),
        (lambda: metrics.ValidQueries().update_state([0.0, 1.0], [[1.0], [1.0]]), "labels"),
        (lambda: metrics.ValidQueries().update_state([0, 1], [[1], [1]]), "embeddings"),
        (lambda: metrics.ValidQueries().update_state([0, 1], [1.0, 1.0]), "embeddings"),
        (lambda: metrics.ValidQueries().update_state([0, 1, 2], [[1.0], [1.0]]), "labels"),
    ],
)
def test_bad_argument_is_refused_by_its_name(make, argument):
    with pytest.raises(InputError, match=f"argument `{argument}`"):
        make()


@every_name
def test_no_tensor_has_the_size_of_batch_cubed_under_xla(name):
    """With which Keras compiles by default for a GPU: at batch 2048 it would take 34 GB."""
    function, settings = PAIRS[name][0], getattr(metrics, name)().hyper_parameters
    assert largest_tensor(lambda labels, rows: function(labels, rows, **settings)) <= 4 * SIZE**2


# Under Keras.

CLASSES = np.array([0, 1, 2] * 3 + [3, 4, 1])
WEIGHTS = np.linspace(0, 2, 12)


def compiled_model(jit_compile="auto"):
    """Integer weights and inputs: embeddings are exact in every dtype. Learns nothing."""
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4, use_bias=False)])
    model.set_weights([np.random.default_rng(2).integers(-3, 4, size=(6, 4))])
    model.compile(
        keras.optimizers.SGD(0.0),
        losses.get("pnp"),
        metrics=[recipe.make() for recipe in IN_MODELS],
        weighted_metrics=[recipe.make("weighted_") for recipe in IN_MODELS],
        jit_compile=jit_compile,
    )
    return model


@pytest.fixture
def policy(request):
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy("float32")


def by_hand(labels, rows):
    """What a model is to log of these embeddings in batches of 5, 5 and 2."""
    parts = [slice(0, 5), slice(5, 10), slice(10, 12)]
    plain = [(labels[part], rows[part]) for part in parts]
    weighted = [(labels[part], rows[part], WEIGHTS[part]) for part in parts]
    return {str(recipe): expected(recipe, *plain) for recipe in IN_MODELS} | {
        f"weighted_{recipe}": expected(recipe, *weighted) for recipe in IN_MODELS
    }


@pytest.mark.parametrize(
    "policy, jit_compile",
    [
        # Quick, without XLA: `test_saved_model_is_loaded_with_its_metrics`.
        slow("float32", True),
        slow("mixed_bfloat16", False),
    ],
    indirect=["policy"],
)
def test_fit_and_evaluate_log_the_values_computed_by_hand(policy, jit_compile):
    model = compiled_model(jit_compile)
    rows = tf.cast(model(FEATURES), "float64").numpy()
    check_logs(model, CLASSES, by_hand(CLASSES, rows))


LARGE = -(2**24) - 8


# Quick: `test_saved_model_is_loaded_with_its_metrics`.
@pytest.mark.slow
def test_large_labels_reach_metrics_as_integers():
    """In float32 neighbouring classes would be one."""
    model, labels = compiled_model(), 2**62 + CLASSES
    rows = tf.cast(model(FEATURES), "float64").numpy()
    logs = by_hand(labels, rows)
    as_floats = by_hand(labels.astype("float32").astype("int64"), rows)
    of_labels = [
        str(recipe) for recipe in IN_MODELS if recipe.metric not in ("OperatingRegion", "EmbeddingSpread")
    ]
    assert all(abs(logs[name] - as_floats[name]) > 1e-3 for name in of_labels)
    check_logs(model, labels, logs)


def check_logs(model, labels, logs):
    """That fit and evaluate log these numbers."""
    history = model.fit(FEATURES, labels, 5, sample_weight=WEIGHTS, shuffle=False, verbose=0).history
    fitted = {name: value for name, [value] in history.items()}
    evaluated = model.evaluate(FEATURES, labels, 5, sample_weight=WEIGHTS, verbose=0, return_dict=True)
    for (name, value), seen in itertools.product(logs.items(), (fitted, evaluated)):
        np.testing.assert_allclose(seen[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@every_metric
def test_config_makes_an_equal_metric(recipe):
    metric = recipe.make()
    config = json.loads(json.dumps(metric.get_config()))
    assert config.items() >= {"name": str(recipe), **recipe.settings}.items()
    again = type(metric).from_config(config)
    assert again.get_config() == config
    assert keras.saving.get_registered_name(type(metric)) == f"tfrank>{recipe.metric}"


def test_saved_model_is_loaded_with_its_metrics(tmp_path):
    model, labels = compiled_model(), LARGE + CLASSES
    check_logs(model, labels, by_hand(labels, model(FEATURES)))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    check_logs(loaded, labels, by_hand(labels, model(FEATURES)))


# On two replicas.


@pytest.fixture(scope="module")
def logged():
    """What fit and evaluate logged, by one program with the one strategy a process may hold."""
    return printed_json("-m", "tests.losses.metric_replicas")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fit", "evaluate"])
@pytest.mark.parametrize("prefix", ["", "weighted_"], ids=["plain", "weighted"])
@pytest.mark.parametrize("recipe", IN_MODELS, ids=str)
def test_two_replicas_log_what_one_device_does(logged, recipe, prefix, way):
    one, two, halves = (
        logged[run][way][f"{prefix}{recipe}"] for run in ("one device", "two replicas", "half batches")
    )
    np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-7)
    # Replicas that did not ask each other would give this.
    assert abs(halves - one) > 1e-4


@pytest.mark.parametrize("kind", ["ranking", "proxies"])
def test_the_mean_loss_counts_valid_queries_only(kind):
    """In fit's validation, whose batches have eight, two and no valid queries."""
    labels = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10, *range(20, 28)])
    features = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    ranking = kind == "ranking"
    others = {"labels": range(28), "ignore_label": 26}
    loss = losses.get("smooth_ap", temperature=0.1) if ranking else losses.get("cos_face", **others)
    model = keras.Sequential([keras.Input([4])])
    model.add(keras.layers.Dense(3) if ranking else loss.proxies())
    model.compile("sgd", loss, metrics=[metrics.MeanLoss(loss)])
    evaluated = model.evaluate(features, labels, batch_size=8, verbose=0, return_dict=True)
    parts = [loss.rows(labels[k : k + 8], model(features[k : k + 8])) for k in (0, 8, 16)]
    values, weights = (np.concatenate(part) for part in zip(*parts))
    assert evaluated["mean_loss"] == pytest.approx(np.average(values, weights=weights), rel=1e-5)
    assert np.sum(weights) == (10 if ranking else 23)
    if ranking:
        assert evaluated["loss"] < 0.8 * evaluated["mean_loss"]
    again = keras.metrics.deserialize(keras.metrics.serialize(metrics.MeanLoss(loss)))
    assert repr(again.loss) == repr(loss)


def test_a_batch_without_any_class_adds_nothing_to_a_metric():
    metric = metrics.BatchRecallAt1(ignore_label=-1)
    metric.update_state([0, 0, 1, 2], np.eye(4))
    before = float(metric.result())
    metric.update_state([-1, -1], np.eye(2))
    assert float(metric.result()) == before


def test_the_mean_loss_of_a_memory_is_refused_as_it_has_the_batch_by_then():
    memory = losses.CrossBatchMemory(losses.get("pnp"), 4)
    for loss in (memory, losses.AsymmetricLoss(memory)):
        with pytest.raises(InputError, match=r"`loss`. Expected one without a memory"):
            metrics.MeanLoss(loss)


def test_the_mean_loss_of_what_has_no_rows_is_refused():
    with pytest.raises(InputError, match=r"`loss`. Expected a RankingLoss or a loss with proxies"):
        metrics.MeanLoss(keras.losses.MeanSquaredError())
