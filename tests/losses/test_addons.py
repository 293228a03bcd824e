"""TensorFlow Addons' losses, where the package is installed: formulas, batches, Keras, replicas, and ours."""

import doctest
import importlib.util
import itertools
import json
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import slow_but
from tests.losses import LABELS, embeddings, value_and_gradient
from tests.losses.addons_replicas import CASES
from tests.losses.addons_replicas import LABELS as BATCHES
from tests.losses.fresh_process import FEATURES, train_one_step
from tests.losses.fresh_process import LABELS as LABELS_OF_FEATURES
from tests.programs import printed_json
from tests.reference import unit
from tfrank import losses
from tfrank.losses import addons

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_addons") is None,
    reason="TensorFlow Addons is not installed: it is the extra `addons`, for Python 3.11",
)
every_loss = pytest.mark.parametrize("name", losses.ADDONS)
of_few = pytest.mark.parametrize("name", slow_but(list(losses.ADDONS)[:2], losses.ADDONS))


# The formulas, in plain loops.


def pairs_of(labels):
    """(positive pairs, negative pairs), ordered."""
    pairs = list(itertools.permutations(range(len(labels)), 2))
    positives = [(i, j) for i, j in pairs if labels[i] == labels[j]]
    return positives, [pair for pair in pairs if pair not in positives]


def distance(a, b, metric="L2"):
    squared = math.fsum((x - y) ** 2 for x, y in zip(a, b))
    # Between unit rows 1 - cosine is half the squared distance.
    return {"L2": math.sqrt(squared), "squared-L2": squared, "angular": squared / 2}[metric]


def triplet_semi_hard(labels, rows, margin=1.0, distance_metric="L2"):
    rows = unit(rows).tolist()
    positives, negatives = pairs_of(labels)
    terms = []
    for a, p in positives:
        d_ap = distance(rows[a], rows[p], distance_metric)
        d_an = [distance(rows[a], rows[n], distance_metric) for i, n in negatives if i == a]
        farther = [d for d in d_an if d > d_ap]
        terms.append(max(0.0, margin + d_ap - (min(farther) if farther else max(d_an))))
    return sum(terms) / len(terms)


def triplet_hard(labels, rows, margin=1.0, soft=False, distance_metric="L2"):
    rows = unit(rows).tolist()
    positives, negatives = pairs_of(labels)
    terms = []
    for a in range(len(rows)):
        hardest = max(
            (distance(rows[a], rows[p], distance_metric) for i, p in positives if i == a), default=0
        )
        gap = hardest - min(distance(rows[a], rows[n], distance_metric) for i, n in negatives if i == a)
        terms.append(math.log(1 + math.exp(gap)) if soft else max(0.0, gap + margin))
    return sum(terms) / len(terms)


def contrastive(labels, rows, margin=1.0):
    rows = unit(rows).tolist()
    positives, negatives = pairs_of(labels)
    total = sum(distance(rows[i], rows[j]) ** 2 for i, j in positives)
    total += sum(max(0.0, margin - distance(rows[i], rows[j])) ** 2 for i, j in negatives)
    return total / (len(positives) + len(negatives))


def n_pairs(labels, rows):
    """Eq. 2 of RLL."""
    of_class = {}
    for label, row in zip(labels, rows):
        of_class.setdefault(int(label), []).append(row)
    pairs = [members[:2] for members in of_class.values() if len(members) > 1]
    terms = []
    for i, (anchor, positive) in enumerate(pairs):
        others = [other for j, (_, other) in enumerate(pairs) if j != i]
        terms.append(math.log(1 + sum(math.exp(anchor @ other - anchor @ positive) for other in others)))
    return sum(terms) / len(terms)


def lifted_structure(labels, rows, margin=1.0):
    rows = np.asarray(rows, np.float64).tolist()
    positives, negatives = pairs_of(labels)
    terms = []
    for i, j in positives:
        pushed = sum(math.exp(margin - distance(rows[a], rows[n])) for a, n in negatives if a in (i, j))
        terms.append(max(0.0, distance(rows[i], rows[j]) + math.log(pushed)) ** 2)
    return sum(terms) / (2 * len(terms))


ORACLES = {
    "addons/triplet_semi_hard": triplet_semi_hard,
    "addons/triplet_hard": triplet_hard,
    "addons/contrastive": contrastive,
    "addons/n_pairs": n_pairs,
    "addons/lifted_structure": lifted_structure,
}
RECIPES = [
    *[(name, {}) for name in losses.ADDONS],
    *[(name, {"margin": 0.2}) for name in losses.ADDONS if name != "addons/n_pairs"],
    *[
        (name, {"distance_metric": metric, "margin": 0.4})
        for name in ("addons/triplet_semi_hard", "addons/triplet_hard")
        for metric in ("squared-L2", "angular")
    ],
    ("addons/triplet_hard", {"soft": True}),
]
every_recipe = pytest.mark.parametrize("name, settings", RECIPES, ids=str)
# Classes of 4, 3, 2, 1 and 1 rows; and two of each.
some_batches = pytest.mark.parametrize(
    "labels", [LABELS, [0, 1, 2, 0, 1, 2, 3, 4, 4, 3]], ids=["unequal classes", "pairs"]
)


@some_batches
@every_recipe
def test_value_is_the_formulas(name, settings, labels):
    rows = embeddings()[: len(labels)]
    value = losses.get(name, **settings)(labels, rows)
    assert value.dtype == tf.float32
    np.testing.assert_allclose(value, ORACLES[name](labels, rows, **settings), rtol=1e-5)


@some_batches
@every_recipe
def test_gradient_is_the_slope_of_the_formula(name, settings, labels):
    """Central differences of the plain loops, in float64."""
    rows, step = embeddings()[: len(labels)], 1e-6
    slopes = np.zeros_like(rows)
    for place in np.ndindex(slopes.shape):
        moved = np.zeros_like(slopes)
        moved[place] = step
        above, below = (ORACLES[name](labels, rows + move, **settings) for move in (moved, -moved))
        slopes[place] = (above - below) / (2 * step)
    _, gradient = value_and_gradient(losses.get(name, **settings), labels, rows)
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-5 * np.abs(slopes).max())


@pytest.mark.parametrize(
    "labels",
    [
        2**24 + LABELS,
        2**53 + LABELS,
        -(2**62) + LABELS,
        2**40 * LABELS,
        (LABELS - LABELS.min()).astype("uint8"),
    ],
    ids=["beyond float32", "beyond float64", "negative", "same lower bits", "uint8"],
)
@every_loss
def test_labels_are_compared_as_integers_however_large(name, labels):
    value = losses.get(name)(LABELS, embeddings())
    assert losses.get(name)(tf.constant(labels)[:, None], embeddings()) == value
    assert value > 0


NO_LOSS = {"all labels distinct": range(8), "one row": [5]}


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize(
    "name, batch",
    [
        *itertools.product(losses.ADDONS, NO_LOSS),
        *[(name, "one class") for name, addon in losses.ADDONS.items() if addon.needs_negatives],
    ],
)
def test_a_batch_without_pairs_gives_exactly_zero_and_zero_gradients(name, batch, dtype):
    labels = NO_LOSS.get(batch, [5] * 8)
    rows = tf.cast(embeddings()[: len(labels)], dtype)
    value, gradient = value_and_gradient(losses.get(name), tf.constant(labels), rows)
    assert value == 0
    assert gradient.shape == rows.shape and np.all(gradient == 0)


def test_contrastive_of_one_class_is_the_mean_of_its_squared_distances():
    value = losses.get("addons/contrastive")([5] * 4, embeddings()[:4])
    np.testing.assert_allclose(value, contrastive([5] * 4, embeddings()[:4]), rtol=1e-5)


def test_zero_rows_and_equal_rows_have_finite_gradients():
    rows = embeddings("float32").copy()
    rows[0], rows[3] = 0, rows[1]
    for name in losses.ADDONS:
        value, gradient = value_and_gradient(losses.get(name), LABELS, rows)
        assert np.isfinite(value) and np.all(np.isfinite(gradient))


@of_few
def test_ten_batches_with_other_labels_compile_once(name):
    loss, rows = losses.get(name), tf.constant(embeddings("float32"))
    compiled = tf.function(lambda *batch: value_and_gradient(loss, *batch), jit_compile=True)
    programs = set()
    for seed in range(10):
        labels = tf.constant(np.random.default_rng(seed).integers(0, 1 + seed, len(LABELS)))
        program = compiled.experimental_get_compiler_ir(labels, rows)(stage="hlo")
        # What XLA notes about where an operation comes from is no part of the program.
        programs.add(re.sub(r", metadata=\{[^}]*\}", "", program))
        for got, wanted in zip(compiled(labels, rows), value_and_gradient(loss, labels, rows)):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        # Neither labels nor rows are constants of the program.
        assert "{(s64[11]{0}, f32[11,3]{1,0})->" in program
    assert compiled.experimental_get_tracing_count() == len(programs) == 1


@every_loss
def test_one_graph_serves_batches_of_any_size_and_any_classes(name):
    loss = losses.get(name)
    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 3], tf.float32)]
    compute = tf.function(lambda *batch: value_and_gradient(loss, *batch), signature)
    for labels in ([0, 0, 1, 1], LABELS, [4], [1, 2, 3, 1, 1], [1, 2, 3], [0, 1, 0, 1, 0, 1, 0]):
        rows = embeddings("float32")[: len(labels)]
        for got, wanted in zip(compute(labels, rows), value_and_gradient(loss, labels, rows)):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_the_example_of_the_docstring_gives_what_it_says():
    (test,) = doctest.DocTestFinder(recurse=False).find(addons.AddonsLoss, globs=vars(addons).copy())
    for example in test.examples:
        example.options.pop(doctest.SKIP, None)
    assert doctest.DocTestRunner().run(test) == doctest.TestResults(failed=0, attempted=3)


# Keras.


@every_recipe
def test_revived_loss_gives_the_same_value(name, settings):
    loss = losses.AddonsLoss(name, **settings, name="mine")
    revived = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
    assert type(revived) is addons.AddonsLoss
    assert (
        revived.get_config()
        == loss.get_config()
        == losses.ADDONS[name].defaults
        | settings
        | {
            "loss": name,
            "name": "mine",
            "reduction": "mean",
            "ignore_label": None,
        }
    )
    assert revived(LABELS, embeddings()) == loss(LABELS, embeddings())


def compiled_model(loss, **compile_arguments):
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4, use_bias=False)])
    model.set_weights([np.random.default_rng(2).normal(size=(6, 4))])
    model.compile(keras.optimizers.Adam(0.05), loss, **compile_arguments)
    return model


@pytest.mark.parametrize("jit_compile", ["auto", pytest.param(True, marks=pytest.mark.slow)])
@of_few
def test_fit_logs_the_loss_computed_by_hand_and_learns(name, jit_compile):
    loss = losses.get(name)
    model = compiled_model(loss, jit_compile=jit_compile)
    by_hand = loss(LABELS_OF_FEATURES, model(FEATURES))
    np.testing.assert_allclose(train_one_step(model), by_hand, rtol=1e-5)
    for _ in range(9):
        train_one_step(model)
    assert loss(LABELS_OF_FEATURES, model(FEATURES)) < by_hand - 0.01


@of_few
def test_a_step_after_save_and_load_gives_the_same_bits(name, tmp_path):
    model = compiled_model(losses.get(name))
    train_one_step(model)
    model.save(tmp_path / "model.keras")
    revived = keras.models.load_model(tmp_path / "model.keras")
    assert train_one_step(revived) == train_one_step(model)
    np.testing.assert_array_equal(revived.get_weights(), model.get_weights())


@every_loss
def test_a_loss_takes_what_a_run_sets_and_keeps_nothing(name):
    """`experiment.build_training` sets the step and saves the variables."""
    loss = losses.get(name)
    value = loss(LABELS, embeddings())
    assert loss.iteration is None and loss.variables == []
    loss.iteration = keras.optimizers.SGD().iterations
    assert loss(LABELS, embeddings()) == value
    assert loss.name == name


@pytest.fixture(scope="module")
def results():
    """What all cases gave, by one program with the one strategy a process may hold."""
    return printed_json("-m", "tests.losses.addons_replicas")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_two_replicas_give_the_loss_and_the_update_of_one_device(results, case):
    one, two = results[", ".join(case)]["one device"], results[", ".join(case)]["two replicas"]
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-5)
    tolerance = 1e-5 * np.abs(one["update"]).max()
    np.testing.assert_allclose(two["update"], one["update"], rtol=0, atol=tolerance)
    # Nothing agrees with nothing: there has to be a loss where a class has two rows.
    labels = list(BATCHES[case[-1]])
    assert np.any(one["loss"]) == np.any(one["update"]) == (len(set(labels)) < len(labels))


# Ours give the same where the definitions agree: between unit rows, with as many rows of each class.

OURS = [
    ("addons/triplet_semi_hard", {"distance_metric": "squared-L2"}, {"margin": 0.3}),
    ("addons/triplet_hard", {"distance_metric": "squared-L2"}, {"margin": 0.3}),
    ("addons/contrastive", {}, {"margin": 0.7}),
    ("addons/lifted_structure", {}, {"margin": 0.7}),
]


@pytest.mark.parametrize("name, settings, shared", OURS, ids=[name for name, *_ in OURS])
def test_native_value_and_gradient_are_the_packages(name, settings, shared):
    labels, rows = np.arange(12) % 4, np.random.default_rng(3).normal(size=(12, 5)).astype("float32")
    theirs = value_and_gradient(losses.get(name, **settings, **shared), labels, rows)
    ours = value_and_gradient(losses.get(**losses.ADDONS[name].native, **shared), labels, rows)
    assert theirs[0] > 0
    for mine, packages in zip(ours, theirs):
        np.testing.assert_allclose(mine, packages, rtol=1e-4, atol=1e-5 * np.abs(packages).max())


def test_native_n_pairs_of_anchors_and_positives_are_the_packages():
    """Ours takes any gallery: here the second rows of the classes, for the first rows as queries."""
    labels, rows = np.arange(12) % 6, np.random.default_rng(3).normal(size=(12, 5)).astype("float32")
    native = losses.get(**losses.ADDONS["addons/n_pairs"].native)

    def ours(labels, rows, _):
        labels = tf.constant(labels)
        terms, valid = native.score(labels[:6], rows[:6], labels[6:], rows[6:], tf.fill([6], -1))
        assert np.all(valid)
        return tf.reduce_mean(terms)

    theirs = value_and_gradient(losses.get("addons/n_pairs"), labels, rows)
    for mine, packages in zip(value_and_gradient(ours, labels, rows), theirs):
        np.testing.assert_allclose(mine, packages, rtol=1e-4, atol=1e-5 * np.abs(packages).max())
