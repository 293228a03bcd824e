"""How TensorFlow Addons is found, and what is said without it. All but one need no package."""

import functools
import importlib.util
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_values import bad_values
from tests.losses import LABELS, embeddings, value_and_gradient
from tests.reference import unit
from tfrank import losses
from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.losses import addons

every_loss = pytest.mark.parametrize("name", losses.ADDONS)


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
    "addons/n_pairs": r"get\('n_pairs'\)",
    "addons/lifted_structure": r"get\('lifted_structure', squared=True\)",
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


@pytest.mark.parametrize("name", [name for name in losses.ADDONS if losses.ADDONS[name].defaults])
def test_bad_hyper_parameter_is_refused(name):
    for argument, check in checks.checks_of(losses.ADDONS[name].formula).items():
        for value in bad_values(check):
            with pytest.raises(InputError, match=rf"argument `{argument}`\. .*{argument}="):
                losses.get(name, **{argument: value})


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_addons") is None,
    reason="TensorFlow Addons is not installed: it is the extra `addons`, for Python 3.11",
)
def test_importing_the_package_warns_of_nothing(forgotten):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses.get("addons/triplet_hard")
