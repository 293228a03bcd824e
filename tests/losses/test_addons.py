"""TensorFlow Addons' losses: formulas and steps where the package is installed, everything else always."""

import doctest
import functools
import importlib.util
import itertools
import json
import math
import re
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.losses import LABELS, embeddings, value_and_gradient
from tests.losses.addons_replicas import CASES
from tests.losses.addons_replicas import LABELS as BATCHES
from tests.losses.fresh_process import FEATURES, train_one_step
from tests.losses.fresh_process import LABELS as LABELS_OF_FEATURES
from tests.programs import printed_json
from tests.reference import unit
from tfrank import losses
from tfrank.checks import InputError
from tfrank.losses import addons

INSTALLED = importlib.util.find_spec("tensorflow_addons") is not None
with_the_package = pytest.mark.skipif(
    not INSTALLED, reason="TensorFlow Addons is not installed: it is the extra `addons`, for Python 3.11"
)
every_loss = pytest.mark.parametrize("name", losses.ADDONS)


# Without the package.


@pytest.fixture
def forgotten():
    """The package is looked for anew, in the test and after it."""
    addons._package_losses.cache_clear()
    yield
    addons._package_losses.cache_clear()


@pytest.fixture
def absent(forgotten, monkeypatch):
    """Python's own sign that a module is not to be found."""
    monkeypatch.setitem(sys.modules, "tensorflow_addons", None)


# A package whose top level cannot be imported, and whose losses ask of Keras what TensorFlow Addons' do.
STAND_IN = """
from keras.src.engine import keras_tensor
import tensorflow as tf
import tensorflow_addons

SEEN = []
assert keras_tensor.KerasTensor
metric_learning = type(tf)("metric_learning")

def triplet_hard_loss(labels, embeddings, margin, soft, distance_metric):
    SEEN.append((labels, embeddings))
    return tf.reduce_sum(embeddings) / 0.0
"""


@pytest.fixture
def stand_in(forgotten, monkeypatch, tmp_path):
    """A function that puts a package of that name, with this code for its losses, first on the path."""

    def put(code=STAND_IN):
        (tmp_path / "tensorflow_addons" / "losses").mkdir(parents=True)
        (tmp_path / "tensorflow_addons" / "__init__.py").write_text("raise ImportError('the top level')")
        (tmp_path / "tensorflow_addons" / "losses" / "__init__.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)

    return put


NATIVE = {
    "addons/triplet_semi_hard": r"get\('triplet', mining='semi_hard'\)",
    "addons/triplet_hard": r"get\('triplet', mining='hard'\)",
    "addons/contrastive": r"get\('contrastive'\)",
    "addons/n_pairs": r"get\('n_pairs', normalize=False\)",
    "addons/lifted_structure": r"get\('lifted_structure', squared=True, normalize=False\)",
}


@every_loss
def test_without_the_package_the_error_says_how_to_get_it_and_what_to_take_instead(name, absent):
    expected = rf"{name}.* pip install 'tfrank\[addons\]'.*Python 3\.11.*tfrank\.losses\.{NATIVE[name]}"
    with pytest.raises(InputError, match=expected):
        losses.get(name)


def test_a_package_that_cannot_be_imported_is_reported_with_the_reason(stand_in):
    stand_in("import no_such_module")
    before = dict(sys.modules)
    with pytest.raises(InputError, match=r"cannot be imported: No module named 'no_such_module'"):
        losses.get("addons/n_pairs")
    assert sys.modules == before


def test_the_losses_are_imported_without_the_top_level_and_leave_no_trace(stand_in):
    stand_in()
    before = dict(sys.modules)
    losses.get("addons/triplet_hard")
    assert sys.modules == before


def test_modules_that_were_there_are_there_again(stand_in, monkeypatch):
    stand_in()
    engine = type(sys)("keras.src.engine")
    monkeypatch.setitem(sys.modules, "keras.src.engine", engine)
    losses.get("addons/triplet_hard")
    assert sys.modules["keras.src.engine"] is engine


def test_importing_tfrank_does_not_import_the_package():
    program = (
        "import json; from tfrank.losses import addons as a; print(a._package_losses.cache_info().misses)"
    )
    assert printed_json("-c", program) == 0


def test_the_package_sees_int64_labels_and_unit_float32_rows(stand_in):
    stand_in()
    loss = losses.get("addons/triplet_hard")
    loss(tf.constant(2**53 + LABELS)[:, None], embeddings())
    labels, rows = addons._package_losses().SEEN[-1]
    np.testing.assert_array_equal(labels, 2**53 + LABELS)
    assert labels.dtype == tf.int64 and rows.dtype == tf.float32
    np.testing.assert_allclose(rows, unit(embeddings()), atol=1e-6)


@pytest.mark.parametrize("labels", [range(8), [3] * 8], ids=["all labels distinct", "one class"])
@pytest.mark.parametrize("jit_compile", [None, False, True], ids=["eager", "graph", "XLA"])
def test_a_formula_that_gives_nan_is_not_asked_where_there_are_no_pairs(stand_in, labels, jit_compile):
    stand_in()
    rows = embeddings("float32")[:8]
    compute = functools.partial(value_and_gradient, losses.get("addons/triplet_hard"))
    compute = compute if jit_compile is None else tf.function(compute, jit_compile=jit_compile)
    value, gradient = compute(tf.constant(labels), rows)
    assert value == 0 and gradient.shape == [8, 3] and np.all(gradient == 0)
    value, gradient = compute(tf.constant([0, 0, 1, 1, 2, 2, 3, 3]), rows)
    assert np.isnan(value) or np.isinf(value)


def test_sample_weights_are_refused(stand_in):
    stand_in()
    loss = losses.get("addons/triplet_hard")
    with pytest.raises(InputError, match=r"`sample_weight` cannot apply.*whole batch.*mining='hard'"):
        loss(LABELS, embeddings(), sample_weight=np.ones(len(LABELS)))


@pytest.mark.parametrize("reduction", [None, "none", "sum", "sum_over_batch_size"])
@every_loss
def test_other_reductions_are_refused(name, reduction):
    expected = rf"argument `reduction`. Expected 'mean'.*whole batch.*{NATIVE[name]}"
    with pytest.raises(InputError, match=expected):
        losses.get(name, reduction=reduction)


@pytest.mark.parametrize("name", ["addons/triplet_semihard", "addons/", "addons/pnp"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match=r"argument `loss`.*'addons/triplet_semi_hard'.*'addons/n_pairs'"):
        losses.get(name)


def test_an_unknown_hyper_parameter_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"addons/n_pairs' has no hyper-parameter 'margin'.* \[\]"):
        losses.get("addons/n_pairs", margin=1.0)
    with pytest.raises(InputError, match=r"'distance'.*\]\. Did you mean \"distance_metric\""):
        losses.get("addons/triplet_hard", distance="L2")


@pytest.mark.parametrize(
    "name, argument, values",
    [
        *[
            (name, "margin", [-0.1, math.nan, math.inf, "1", None])
            for name in losses.ADDONS
            if name != "addons/n_pairs"
        ],
        ("addons/triplet_hard", "soft", ["no", None, 2]),
        ("addons/triplet_hard", "distance_metric", ["l2", None, 2]),
        ("addons/triplet_semi_hard", "distance_metric", ["cosine", None, 2]),
    ],
)
def test_bad_hyper_parameter_is_refused(name, argument, values):
    for value in values:
        with pytest.raises(InputError, match=rf"argument `{argument}`\. .*{argument}="):
            losses.get(name, **{argument: value})


# The formulas, in plain loops; of rows, `[batch]` numbers of a class, and the hyper-parameters.


def pairs_of(labels):
    """(positive pairs, negative pairs), ordered."""
    pairs = list(itertools.permutations(range(len(labels)), 2))
    return [pair for pair in pairs if labels[pair[0]] == labels[pair[1]]], [
        pair for pair in pairs if labels[pair[0]] != labels[pair[1]]
    ]


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


@with_the_package
@some_batches
@every_recipe
def test_value_is_the_formulas(name, settings, labels):
    rows = embeddings(ties=False)[: len(labels)]
    value = losses.get(name, **settings)(labels, rows)
    assert value.dtype == tf.float32
    np.testing.assert_allclose(value, ORACLES[name](labels, rows, **settings), rtol=1e-5)


@with_the_package
@some_batches
@every_recipe
def test_gradient_is_the_slope_of_the_formula(name, settings, labels):
    """Central differences of the plain loops, in float64."""
    rows, step = embeddings(ties=False)[: len(labels)], 1e-6
    slopes = np.zeros_like(rows)
    for place in np.ndindex(slopes.shape):
        moved = np.zeros_like(slopes)
        moved[place] = step
        above, below = (ORACLES[name](labels, rows + move, **settings) for move in (moved, -moved))
        slopes[place] = (above - below) / (2 * step)
    _, gradient = value_and_gradient(losses.get(name, **settings), labels, rows)
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-5 * np.abs(slopes).max())


@with_the_package
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


@with_the_package
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


@with_the_package
def test_contrastive_of_one_class_is_the_mean_of_its_squared_distances():
    value = losses.get("addons/contrastive")([5] * 4, embeddings()[:4])
    np.testing.assert_allclose(value, contrastive([5] * 4, embeddings()[:4]), rtol=1e-5)


@with_the_package
def test_zero_rows_and_equal_rows_have_finite_gradients():
    rows = embeddings("float32").copy()
    rows[0], rows[3] = 0, rows[1]
    for name in losses.ADDONS:
        value, gradient = value_and_gradient(losses.get(name), LABELS, rows)
        assert np.isfinite(value) and np.all(np.isfinite(gradient))


@with_the_package
@every_loss
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


@with_the_package
@every_loss
def test_one_graph_serves_batches_of_any_size_and_any_classes(name):
    loss = losses.get(name)
    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 3], tf.float32)]
    compute = tf.function(lambda *batch: value_and_gradient(loss, *batch), signature)
    for labels in ([0, 0, 1, 1], LABELS, [4], [1, 2, 3, 1, 1], [1, 2, 3], [0, 1, 0, 1, 0, 1, 0]):
        rows = embeddings("float32")[: len(labels)]
        for got, wanted in zip(compute(labels, rows), value_and_gradient(loss, labels, rows)):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@with_the_package
def test_importing_the_package_warns_of_nothing(forgotten):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses.get("addons/triplet_hard")


@with_the_package
def test_the_example_of_the_docstring_gives_what_it_says():
    (test,) = doctest.DocTestFinder(recurse=False).find(addons.AddonsLoss, globs=vars(addons).copy())
    for example in test.examples:
        example.options.pop(doctest.SKIP, None)
    assert doctest.DocTestRunner().run(test) == doctest.TestResults(failed=0, attempted=3)


# Keras.


@with_the_package
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
        }
    )
    assert revived(LABELS, embeddings()) == loss(LABELS, embeddings())


def compiled_model(loss, **compile_arguments):
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(4, use_bias=False)])
    model.set_weights([np.random.default_rng(2).normal(size=(6, 4))])
    model.compile(keras.optimizers.Adam(0.05), loss, **compile_arguments)
    return model


@with_the_package
@pytest.mark.parametrize("jit_compile", ["auto", True])
@every_loss
def test_fit_logs_the_loss_computed_by_hand_and_learns(name, jit_compile):
    loss = losses.get(name)
    model = compiled_model(loss, jit_compile=jit_compile)
    by_hand = loss(LABELS_OF_FEATURES, model(FEATURES))
    np.testing.assert_allclose(train_one_step(model), by_hand, rtol=1e-5)
    for _ in range(9):
        train_one_step(model)
    assert loss(LABELS_OF_FEATURES, model(FEATURES)) < by_hand - 0.01


@with_the_package
@every_loss
def test_a_step_after_save_and_load_gives_the_same_bits(name, tmp_path):
    model = compiled_model(losses.get(name))
    train_one_step(model)
    model.save(tmp_path / "model.keras")
    revived = keras.models.load_model(tmp_path / "model.keras")
    assert train_one_step(revived) == train_one_step(model)
    np.testing.assert_array_equal(revived.get_weights(), model.get_weights())


@with_the_package
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


@with_the_package
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


@with_the_package
@pytest.mark.parametrize("name, settings, shared", OURS, ids=[name for name, *_ in OURS])
def test_native_value_and_gradient_are_the_packages(name, settings, shared):
    labels, rows = np.arange(12) % 4, np.random.default_rng(3).normal(size=(12, 5)).astype("float32")
    theirs = value_and_gradient(losses.get(name, **settings, **shared), labels, rows)
    ours = value_and_gradient(losses.get(**losses.ADDONS[name].native, **shared), labels, rows)
    assert theirs[0] > 0
    for mine, packages in zip(ours, theirs):
        np.testing.assert_allclose(mine, packages, rtol=1e-4, atol=1e-5 * np.abs(packages).max())


@with_the_package
def test_native_n_pairs_of_anchors_and_positives_are_the_packages():
    """Ours takes any gallery: here the second rows of the classes, for the first rows as queries."""
    labels, rows = np.arange(12) % 6, np.random.default_rng(3).normal(size=(12, 5)).astype("float32")
    native = losses.get(**losses.ADDONS["addons/n_pairs"].native)

    def ours(labels, rows, _):
        labels = tf.constant(labels)
        terms, counts = native.score(labels[:6], rows[:6], labels[6:], rows[6:], tf.fill([6], -1))
        assert np.all(counts)
        return tf.reduce_mean(terms)

    theirs = value_and_gradient(losses.get("addons/n_pairs"), labels, rows)
    for mine, packages in zip(value_and_gradient(ours, labels, rows), theirs):
        np.testing.assert_allclose(mine, packages, rtol=1e-4, atol=1e-5 * np.abs(packages).max())
