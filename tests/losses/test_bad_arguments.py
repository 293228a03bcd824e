"""What a user can get wrong is refused where it arrives, by name."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_values import bad_values
from tests.losses import LABELS, embeddings, one_loss_of_each_kind
from tfrank import losses
from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.losses.proxies import PROXY_LOSSES

ROWS = len(LABELS)

EVERY_ARGUMENT = [
    (name, argument, check)
    for name, loss in (losses.LOSSES | PROXY_LOSSES).items()
    for argument, check in checks.checks_of(loss.__init__).items()
]


@pytest.mark.parametrize("name, argument, check", EVERY_ARGUMENT)
def test_hyper_parameter_outside_of_its_bounds_is_refused(name, argument, check):
    labels = {"labels": LABELS} if name in PROXY_LOSSES else {}
    for value in bad_values(check):
        with pytest.raises(InputError, match=rf"argument `{argument}`\. .*{argument}="):
            losses.get(name, **labels, **{argument: value})


@pytest.mark.parametrize("name", losses.LOSSES | PROXY_LOSSES)
def test_every_hyper_parameter_has_bounds(name):
    loss = (losses.LOSSES | PROXY_LOSSES)[name]
    of_the_base = {"self", "labels", "categories", "reduction", "ignore_label", "name"}
    assert inspect.signature(loss).parameters.keys() - of_the_base <= checks.checks_of(loss.__init__).keys()


@pytest.mark.parametrize(
    "name, argument, values",
    [
        # Bounds that follow from another argument, and those of some annotations.
        ("rll", "margin", [1.21]),
        ("recall_at_k", "k_temperatures", [[1] * 4, [1] * 6]),
        ("pnp", "alpha", [0.99]),
        ("pnp", "variant", ["DQ"]),
        ("smooth_ap", "temperature", [0]),
        ("map_q", "num_bins", [1]),
        ("circle", "margin", [-0.4]),
        ("margin", "cutoff", [0, 2]),
    ],
)
def test_bad_hyper_parameter_is_refused(name, argument, values):
    for value in values:
        with pytest.raises(InputError, match=rf"argument `{argument}`\. .*{argument}="):
            losses.get(name, **{argument: value})


@pytest.mark.parametrize("reduction", ["average", "", 1])
def test_other_reductions_are_refused(reduction):
    with pytest.raises(InputError, match=r"argument `reduction`. Expected one of \['mean', 'sum'"):
        losses.get("pnp", reduction=reduction)


BATCH = {"labels": LABELS, "embeddings": embeddings("float32"), "sample_weight": np.ones(ROWS)}


@pytest.mark.parametrize(
    "argument, value, expected_text",
    [
        ("labels", LABELS.astype("float32"), "integers.*float32"),
        ("labels", np.full(ROWS, np.nan), "integers.*float64"),
        ("labels", LABELS.astype(str), "integers.*string"),
        ("labels", LABELS > 0, "integers.*bool"),
        ("labels", LABELS[:-1], r"batch of embeddings.*\[10\]"),
        ("labels", np.stack([LABELS, LABELS], axis=1), r"shape \[batch\] or.*\[11, 2\]"),
        ("labels", LABELS[0], r"shape \[batch\] or.*\[\]"),
        ("embeddings", BATCH["embeddings"].astype("int32"), "floats.*int32"),
        ("embeddings", BATCH["embeddings"][0], r"shape \[batch, dim\].*[\[(]3"),
        ("embeddings", BATCH["embeddings"][None], r"shape \[batch, dim\].*1, 11, 3"),
        ("sample_weight", np.where(np.arange(ROWS) == 3, -1.0, 1.0), r"finite.*=-1.0"),
        ("sample_weight", np.where(np.arange(ROWS) == 3, np.nan, 1.0), "finite.*=nan"),
        ("sample_weight", np.full((ROWS, 1), np.inf), "finite.*=inf"),
        ("sample_weight", np.ones(ROWS + 1), r"batch of embeddings.*\[12\]"),
        ("sample_weight", np.ones((ROWS, 2)), r"shape \[batch\] or.*\[11, 2\]"),
    ],
)
def test_bad_batch_is_refused(argument, value, expected_text):
    with pytest.raises(InputError, match=rf"argument `{argument}`. Expected .*{expected_text}"):
        losses.get("pnp")(*(BATCH | {argument: value}).values())


@pytest.mark.parametrize("autograph", [False, True])
def test_bad_batch_is_refused_inside_a_tf_function_too(autograph):
    call = tf.function(losses.get("pnp"), autograph=autograph)
    with pytest.raises(InputError, match=r"argument `labels`. Expected integers. Received"):
        call(LABELS.astype("float32"), embeddings("float32"))


def test_embeddings_of_unknown_rank_are_refused():
    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec(None, tf.float32)]
    call = tf.function(losses.get("pnp"), signature, autograph=False)
    with pytest.raises(InputError, match=r"argument `embeddings`. Expected shape \[batch, dim\]"):
        call(LABELS, embeddings("float32"))


def test_lengths_that_differ_are_refused_where_only_the_run_can_tell():
    loss = losses.get("pnp")
    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 3], tf.float32)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"labels: shape .* batch of embedding"):
        tf.function(loss, signature)(LABELS[:-1], embeddings("float32"))


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_bad_sample_weights_are_refused_inside_a_tf_function_too(weight):
    weights = np.where(np.arange(ROWS) == 3, weight, 1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="sample_weight: expected finite numbers of at"):
        tf.function(losses.get("pnp"))(LABELS, embeddings("float32"), tf.constant(weights))


@one_loss_of_each_kind
def test_score_takes_rows_of_any_norm_and_labels_of_any_integers(recipe):
    loss, batch, more = recipe.loss(), embeddings("float32"), embeddings("float32", seed=1)
    own = np.full(ROWS, -1)
    wanted = loss.score(LABELS, batch, LABELS, more, own)
    scale = 3 if loss.normalize else 1
    got = loss.score(LABELS.astype("int32"), scale * batch, LABELS[:, None], more.astype("float64"), own)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got[1], wanted[1])


def test_score_refuses_what_a_call_refuses():
    loss, rows = losses.get("pnp"), embeddings("float32")
    with pytest.raises(InputError, match=r"argument `labels`. Expected integers. Received: labels='float32'"):
        loss.score(LABELS, rows, LABELS.astype("float32"), rows.copy(), np.arange(ROWS))
    with pytest.raises(InputError, match=r"argument `gallery_embeddings`. Expected 3 dimensions"):
        loss.score(LABELS, rows, LABELS, rows[:, :2], np.arange(ROWS))
