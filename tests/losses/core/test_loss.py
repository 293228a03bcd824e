"""What every loss has, whatever it is computed from."""

import tensorflow as tf

from tests.losses import RECIPES
from tfrank import losses
from tfrank.losses import CrossBatchMemory, NPairsLoss, PNPLoss, SmoothAPLoss, WeightedSum
from tfrank.losses.proxies import SoftTripleLoss


def test_repr_is_the_call_that_makes_the_loss():
    for loss in [
        *(recipe.loss() for recipe in RECIPES),
        PNPLoss("ds", reduction=None),
        SoftTripleLoss([3, 1], proxies_per_class=2),
    ]:
        again = eval(repr(loss), vars(losses) | {"SoftTripleLoss": SoftTripleLoss})
        assert type(again) is type(loss) and again.get_config() == loss.get_config()
    assert repr(PNPLoss("ds", reduction=None)).startswith("PNPLoss(reduction=None, variant='ds', alpha=4.0, ")
    assert repr(SoftTripleLoss(range(100))).count("labels=[0, 1, 2, 3, 4, 5, ...]") == 1
    memory = CrossBatchMemory(NPairsLoss(), 4)
    assert repr(memory) == "CrossBatchMemory(loss=NPairsLoss(normalize=False), size=4, warm_up=1000)"
    both = repr(WeightedSum([NPairsLoss(), PNPLoss()], [1, 0.5]))
    assert both.startswith("WeightedSum(losses=[NPairsLoss(normalize=False), PNPLoss(variant='dq', ")
    assert both.endswith("], weights=[1.0, 0.5])")


def test_repr_in_a_graph_shows_the_current_value_of_a_variable():
    loss, texts = SmoothAPLoss(tf.Variable(0.5)), []
    tf.function(lambda: texts.append(repr(loss)))()
    assert texts == ["SmoothAPLoss(temperature=0.5, include_self=False)"]
