"""What a user can get wrong is refused where it arrives, by name."""

import numpy as np
import pytest
import tensorflow as tf

from tests.losses import LABELS, embeddings, one_loss_of_each_kind
from tfrank import losses
from tfrank.common.checks import InputError

ROWS = len(LABELS)

NO_NUMBER = [float("nan"), float("inf"), "4", True, None, [1.0]]
NO_INTEGER = [*NO_NUMBER, 2.0]
NO_BOOLEAN = ["no", None, 2]


@pytest.mark.parametrize(
    "name, argument, values",
    [
        ("pnp", "temperature", [0, -1, "cold", *NO_NUMBER]),
        ("pnp", "alpha", [0.99, *NO_NUMBER]),
        ("pnp", "b", [0, -4.0, *NO_NUMBER]),
        ("pnp", "variant", ["dz", "DQ", None, 4]),
        ("pnp", "include_self", NO_BOOLEAN),
        ("smooth_ap", "temperature", [0, -1, *NO_NUMBER]),
        ("smooth_ap", "include_self", NO_BOOLEAN),
        ("map_q", "num_bins", [1, 0, -20, *NO_INTEGER]),
        ("map_q", "minimum", [1, -1.1, *NO_NUMBER]),
        *[("map_q", switch, NO_BOOLEAN) for switch in ("tie_aware", "class_weights", "include_self")],
        ("fast_ap", "num_bins", [0, -10, *NO_INTEGER]),
        # At most alpha, 1.2.
        ("rll", "margin", [-0.4, 1.21, *NO_NUMBER]),
        ("rll", "alpha", [0, -1.2, *NO_NUMBER]),
        ("rll", "negative_temperature", [-0.1, *NO_NUMBER]),
        ("rll", "positive_temperature", NO_NUMBER),
        ("rll", "negative_weight", [-0.1, 1.1, *NO_NUMBER]),
        ("rll", "constant_gallery", NO_BOOLEAN),
        ("rll", "final_negative_temperature", [-0.1, *NO_NUMBER]),
        ("rll", "decay_steps", [-1, *NO_INTEGER]),
        ("blackbox_ap", "interpolation", [0, -4, *NO_NUMBER]),
        ("blackbox_ap", "margin", [-0.02, *NO_NUMBER]),
        (
            "recall_at_k",
            "ks",
            [[], 5, "12345", None, [0, 1, 2, 3, 4], *[[1, 2, 3, 4, x] for x in NO_INTEGER]],
        ),
        ("recall_at_k", "temperature", [0, -1, *NO_NUMBER]),
        ("recall_at_k", "k_temperatures", [[], 5, "12345", None, [0] * 5, [1] * 4, [1] * 6]),
        ("recall_at_k", "k_temperatures", [[1, 2, 4, 8, x] for x in NO_NUMBER]),
        *[("recall_at_k", switch, NO_BOOLEAN) for switch in ("count_query", "simix")],
        ("recall_at_k", "seed", [-1, 2**63, *NO_INTEGER]),
        ("sup_ap", "temperature", [0, -1, *NO_NUMBER]),
        *[("sup_ap", argument, [-0.1, *NO_NUMBER]) for argument in ("rho", "delta")],
        ("sup_ap", "calibration_weight", [-0.1, 1.1, *NO_NUMBER]),
        *[("sup_ap", f"{sign}_margin", NO_NUMBER) for sign in ("positive", "negative")],
        ("sup_ap", "include_self", NO_BOOLEAN),
        ("triplet", "margin", [-0.1, *NO_NUMBER]),
        ("triplet", "mining", ["easy", "Hard", None, 4]),
        *[("triplet", switch, NO_BOOLEAN) for switch in ("squared", "soft")],
        ("triplet", "hardest", [-1, *NO_INTEGER]),
        ("contrastive", "margin", [-0.1, *NO_NUMBER]),
        ("n_pairs", "normalize", NO_BOOLEAN),
        ("lifted_structure", "margin", [-0.1, *NO_NUMBER]),
        *[("lifted_structure", switch, NO_BOOLEAN) for switch in ("squared", "normalize")],
        *[("multi_similarity", argument, [0, -2, *NO_NUMBER]) for argument in ("alpha", "beta")],
        ("multi_similarity", "threshold", NO_NUMBER),
        ("multi_similarity", "epsilon", [-0.1, *NO_NUMBER]),
        ("circle", "margin", [-0.4, *NO_NUMBER]),
        ("hierarchical_ap", "temperature", [0, -1, *NO_NUMBER]),
        *[("hierarchical_ap", argument, [-0.1, *NO_NUMBER]) for argument in ("rho", "delta", "alpha")],
        ("sup_con", "temperature", [0, -1, *NO_NUMBER]),
        *(("tcm", f"{side}_margin", NO_NUMBER) for side in ("positive", "negative")),
        *(("tcm", f"{side}_weight", [-1, *NO_NUMBER]) for side in ("positive", "negative")),
        ("circle", "gamma", [0, -80, *NO_NUMBER]),
        ("margin", "margin", [-0.2, *NO_NUMBER]),
        ("margin", "boundary", [0, -1.2, *NO_NUMBER]),
        ("margin", "cutoff", [0, 2, *NO_NUMBER]),
        ("margin", "nonzero_cutoff", [0, -1.4, *NO_NUMBER]),
        ("margin", "sampled", NO_BOOLEAN),
        ("margin", "seed", [-1, 2**63, *NO_INTEGER]),
        ("margin", "learn_boundary", NO_BOOLEAN),
        ("margin", "nu", [-0.1, *NO_NUMBER]),
        ("histogram", "num_bins", [1, -201, *NO_INTEGER]),
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
