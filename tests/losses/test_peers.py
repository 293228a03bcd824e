"""Losses against those of pytorch-metric-learning, where it is installed."""

import numpy as np
import pytest

from tests.losses import value_and_gradient
from tfrank import ContrastiveLoss, ThresholdConsistentMarginLoss, TripletLoss

LABELS = np.repeat(np.arange(12), 4)
ROWS = np.random.default_rng(0).normal(size=(48, 8))
# Ours with the options of the peer's defaults.
LIKE_THE_PEER = {
    "contrastive": (ContrastiveLoss(squared=False, average="nonzero"), "ContrastiveLoss", {}),
    "contrastive, margin": (
        ContrastiveLoss(1.3, squared=False, average="nonzero"),
        "ContrastiveLoss",
        {"neg_margin": 1.3},
    ),
    "threshold-consistent margin": (ThresholdConsistentMarginLoss(), "ThresholdConsistentMarginLoss", {}),
    "triplet": (
        TripletLoss(0.05, mining="all", squared=False, average="nonzero"),
        "TripletMarginLoss",
        {"margin": 0.05},
    ),
}


@pytest.mark.parametrize("name", LIKE_THE_PEER)
def test_the_peers_defaults_are_options_of_ours(name):
    losses = pytest.importorskip("pytorch_metric_learning.losses", reason="needs the extra bench")
    import torch

    loss, peer, options = LIKE_THE_PEER[name]
    rows = torch.tensor(ROWS, requires_grad=True)
    theirs = getattr(losses, peer)(**options)(rows, torch.tensor(LABELS))
    theirs.backward()
    value, gradient = value_and_gradient(loss, LABELS, ROWS)
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-6)
    np.testing.assert_allclose(gradient, rows.grad.numpy(), rtol=1e-5, atol=1e-9)
