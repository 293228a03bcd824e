"""Hierarchical AP: what its categories change. Its values and gradients are tested with all losses'."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.losses import DEEP_TREE, LABELS, TREE, embeddings, value_and_gradient
from tfrank.common.checks import InputError
from tfrank.losses import HierarchicalAPLoss, SupAPLoss


def test_without_categories_it_is_sup_ap_without_calibration():
    one = value_and_gradient(HierarchicalAPLoss(0.1), LABELS, embeddings())
    other = value_and_gradient(SupAPLoss(0.1, calibration_weight=0.0), LABELS, embeddings())
    for found, wanted in zip(one, other):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_a_near_miss_costs_less_than_a_far_one():
    """The query 0, then a wrong image, then the right one."""
    rows = [[1.0, 0.0], [0.8, 0.6], [0.9, 0.44], [-1.0, 0.0]]
    loss = HierarchicalAPLoss(labels=[0, 1, 2], categories=[7, 7, 8], reduction=None)
    near, far = (float(loss([0, 0, other, 3 - other], rows)[0]) for other in (1, 2))
    assert near < far - 0.1


@pytest.mark.parametrize("tree", [TREE, DEEP_TREE], ids=["one level", "two levels"])
def test_the_tree_survives_saving_and_compiling(tree):
    loss = HierarchicalAPLoss(0.1, **tree)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
    value, gradient = value_and_gradient(loss, LABELS, embeddings())
    compiled = tf.function(lambda rows: value_and_gradient(again, LABELS, rows), jit_compile=True)
    for found, wanted in zip(compiled(tf.constant(embeddings())), (value, gradient)):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_a_label_without_a_category_is_named():
    with pytest.raises(InputError, match=r"one of the 2 labels that the loss 'hierarchical_ap'.*labels=9"):
        HierarchicalAPLoss(labels=[0, 1], categories=[0, 0])([0, 0, 9, 9], np.eye(4))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"labels": [1, 2]}, "Give both labels and categories, or neither"),
        ({"categories": [1, 2]}, "Give both labels and categories, or neither"),
        ({"labels": [1, 2], "categories": [1]}, "Expected 2 integers, or 2 rows of integers"),
        ({"labels": [1, 2], "categories": [1.0, 2.0]}, "Expected 2 integers, or 2 rows of integers"),
        ({"labels": [1, 2, 1], "categories": [5, 5, 6]}, "Class 1 has the categories 5 and 6"),
    ],
)
def test_a_tree_that_is_none_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        HierarchicalAPLoss(**arguments)


def test_a_large_tree_is_printed_short():
    assert len(repr(HierarchicalAPLoss(labels=range(9999), categories=[0] * 9999))) < 300
