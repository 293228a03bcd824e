"""Losses against those of pytorch-metric-learning, where it is installed."""

import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.losses import value_and_gradient
from tfrank import (
    CircleLoss,
    ContrastiveLoss,
    FastAPLoss,
    LiftedStructureLoss,
    MultiSimilarityLoss,
    PNPLoss,
    SupConLoss,
    ThresholdConsistentMarginLoss,
    TripletLoss,
)

LABELS = np.repeat(np.arange(12), 4)
ROWS = np.random.default_rng(0).normal(size=(48, 8))
# Ours with the options of the peer's defaults: what docs/migrate/pytorch_metric_learning.md calls equal.
LIKE_THE_PEER = {
    "contrastive": (ContrastiveLoss(squared=False, average="nonzero"), "ContrastiveLoss", {}),
    "contrastive, margin": (
        ContrastiveLoss(1.3, squared=False, average="nonzero"),
        "ContrastiveLoss",
        {"neg_margin": 1.3},
    ),
    "circle": (CircleLoss(), "CircleLoss", {}),
    "fast_ap": (FastAPLoss(), "FastAPLoss", {}),
    "lifted structure": (LiftedStructureLoss(normalize=True, squared=True), "LiftedStructureLoss", {}),
    "multi-similarity": (MultiSimilarityLoss(), "MultiSimilarityLoss", {}, "MultiSimilarityMiner"),
    "pnp": (PNPLoss("dq", include_self=True), "PNPLoss", {"variant": "Dq", "alpha": 4}),
    "sup_con": (SupConLoss(), "SupConLoss", {}),
    "threshold-consistent margin": (ThresholdConsistentMarginLoss(), "ThresholdConsistentMarginLoss", {}),
    "triplet": (
        TripletLoss(0.05, mining="all", squared=False, average="nonzero"),
        "TripletMarginLoss",
        {"margin": 0.05},
    ),
    "triplet, hard": (
        TripletLoss(0.05, mining="hard", squared=False, average="nonzero"),
        "TripletMarginLoss",
        {"margin": 0.05},
        "BatchHardMiner",
    ),
}


# The same of losses with proxies, and how many of them a class has.
PROXIES = {
    "ArcFaceLoss": (tfrank.ArcFaceLoss(range(12), margin=np.radians(28.6)), {}, 1),
    "CosFaceLoss": (tfrank.CosFaceLoss(range(12)), {}, 1),
    "NormalizedSoftmaxLoss": (tfrank.NormalizedSoftmaxLoss(range(12)), {}, 1),
    "ProxyAnchorLoss": (tfrank.ProxyAnchorLoss(range(12)), {}, 1),
    "ProxyNCALoss": (tfrank.ProxyNCAPlusPlusLoss(range(12)), {"softmax_scale": 9}, 1),
    "SoftTripleLoss": (tfrank.SoftTripleLoss(range(12)), {}, 10),
    "SubCenterArcFaceLoss": (
        tfrank.ArcFaceLoss(range(12), proxies_per_class=3, margin=np.radians(28.6)),
        {},
        3,
    ),
}


def of_pairs(labels, rows, _):
    """N-pairs of the first rows of two, with the second ones as the gallery."""
    queries, gallery = (labels[::2], rows[::2]), (labels[1::2], rows[1::2])
    nobody = tf.fill([len(queries[0])], -1)
    return tf.reduce_mean(tfrank.NPairsLoss(normalize=True).score(*queries, *gallery, nobody)[0])


def with_slopes_of_weights(labels, rows, _):
    """The ranked list loss, with 1e-5 added to each weight, and autodiff's gradient."""
    rows = tf.math.l2_normalize(rows, axis=1)
    same, alone = labels[:, None] == labels, np.eye(len(labels), dtype=bool)
    # The root has no slope at 0, the distance of a row to itself.
    d = tf.sqrt(tf.where(alone, tf.ones([], rows.dtype), 2 - 2 * tf.matmul(rows, rows, transpose_b=True)))
    far, near = same & ~alone & (d > 0.8), ~same & (d < 1.2)
    weights = tf.exp(10 * (1.2 - d))
    parts = ((far, tf.ones_like(d), d - 0.8), (near, weights, 1.2 - d))
    means = [
        tf.reduce_sum(tf.where(mask, weight * term, 0), axis=1)
        / tf.reduce_sum(tf.where(mask, weight, 0) + 1e-5, axis=1)
        for mask, weight, term in parts
    ]
    return tf.reduce_mean(tf.add_n(means) / 2)


# What the page says of other batches: rows of each class, ours, and the peer.
ELSEWHERE = {
    "histogram": (4, tfrank.HistogramLoss(201), "HistogramLoss", {"n_bins": 200}),
    "n-pairs": (2, of_pairs, "NPairsLoss", {}),
    "nt_xent": (2, tfrank.SupConLoss(0.07), "NTXentLoss", {"temperature": 0.07}),
    "ranked list": (4, with_slopes_of_weights, "RankedListLoss", {"margin": 0.4, "Tn": 10}),
    "smooth_ap": (6, tfrank.SmoothAPLoss(include_self=True), "SmoothAPLoss", {}),
}


def peer(name, *arguments, **options):
    """The peer's loss; skips the test without it."""
    losses = pytest.importorskip("pytorch_metric_learning.losses", reason="needs the extra bench")
    return getattr(losses, name)(*arguments, **options)


def assert_equal(ours, labels, rows, theirs, *mined):
    import torch

    given = torch.tensor(rows, requires_grad=True)
    found = theirs(given, torch.tensor(labels), *mined)
    found.backward()
    value, gradient = value_and_gradient(ours, labels, rows)
    np.testing.assert_allclose(value, found.item(), rtol=1e-6)
    np.testing.assert_allclose(gradient, given.grad.numpy(), atol=1e-5 * np.abs(gradient).max())


@pytest.mark.parametrize("name", LIKE_THE_PEER)
def test_the_peers_defaults_are_options_of_ours(name):
    loss, theirs, options, *miner = LIKE_THE_PEER[name]
    theirs = peer(theirs, **options)
    import torch
    from pytorch_metric_learning import miners

    mined = [getattr(miners, one)()(torch.tensor(ROWS), torch.tensor(LABELS)) for one in miner]
    assert_equal(loss, LABELS, ROWS, theirs, *mined)


@pytest.mark.parametrize("name", PROXIES)
def test_the_peers_losses_with_the_same_proxies_are_ours(name):
    loss, options, of_class = PROXIES[name]
    theirs = peer(name, num_classes=12, embedding_size=8, **options)
    import torch

    proxies = np.random.default_rng(1).normal(size=(12 * of_class, 8))
    (parameter,) = theirs.parameters()
    parameter.data = torch.tensor(proxies if len(parameter) == len(proxies) else proxies.T)

    def ours(labels, rows, _):
        unit = (tf.math.l2_normalize(x, axis=1) for x in (rows, tf.constant(proxies)))
        return loss(labels, tf.matmul(*unit, transpose_b=True))

    assert_equal(ours, LABELS, ROWS, theirs)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_losses_of_the_peer_are_what_the_page_says(name):
    of_class, loss, theirs, options = ELSEWHERE[name]
    labels = np.repeat(np.arange(6), of_class)
    assert_equal(loss, labels, ROWS[: len(labels)], peer(theirs, **options))


def test_a_memory_of_the_peer_holds_the_batch_as_constants():
    inner = tfrank.SupConLoss()
    past = np.random.default_rng(2).normal(size=ROWS.shape)
    theirs = peer("CrossBatchMemory", peer("SupConLoss"), 8, memory_size=96)
    import torch

    theirs(torch.tensor(past), torch.tensor(LABELS))

    def ours(labels, rows, _):
        gallery = np.append(labels, labels), tf.concat([tf.stop_gradient(rows), past], axis=0)
        return tf.reduce_mean(inner.score(labels, rows, *gallery, np.arange(len(labels)))[0])

    assert_equal(ours, LABELS, ROWS, theirs)
