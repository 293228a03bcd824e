"""Metrics against those of pytorch-metric-learning and OpenMetricLearning, where they are installed."""

import numpy as np
import pytest

from benchmarks import evaluation_peers


@pytest.fixture(scope="module")
def images():
    """Overlapping classes of 1 to 12 images, some of them alone in theirs."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(
        np.concatenate([np.repeat(np.arange(40), rng.integers(2, 13, 40)), range(100, 105)])
    )
    rows = rng.normal(size=[105, 16])[labels] + 1.5 * rng.normal(size=[len(labels), 16])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels


def assert_agree(pairs):
    for name, (ours, theirs) in pairs.items():
        assert 0.1 < ours < 0.99, name
        assert ours == pytest.approx(theirs, abs=1e-6), name


def test_metrics_are_those_of_pytorch_metric_learning(images):
    pytest.importorskip("pytorch_metric_learning", reason="needs the extra bench")
    pytest.importorskip("faiss", reason="needs the extra bench")
    assert_agree(evaluation_peers.pairs_of_pml(*images))


def test_metrics_are_those_of_open_metric_learning(images):
    pytest.importorskip("oml.functional.metrics", reason="needs OML; benchmarks.evaluation_peers says how")
    assert_agree(evaluation_peers.pairs_of_oml(*images))
