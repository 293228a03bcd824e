"""Measures what embeddings keep if only their first dimensions are stored, beside PCA of as many."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfrank.common import checks
from tfrank.common.normalize import l2_normalize
from tfrank.configs.default import Config
from tfrank.data.index import RecordIndex, select
from tfrank.evaluation.postprocessing.whitening import Whitening, learn_whitening, whiten
from tfrank.evaluation.protocols import TestSet
from tfrank.run.evaluation_results import EvaluationResults, evaluate_embeddings


def shorter_dims(config: Config, dim: int) -> tuple[int, ...]:
    """Returns the numbers of dimensions to measure, besides all `dim` of the embeddings, the largest first.

    They are `config.evaluation.dims`, or else those of `config.train.matryoshka` below `dim`.

    Raises:
        InputError: one of `config.evaluation.dims` stands there twice, or is not below `dim`.
    """
    asked = config.evaluation.dims
    if len(set(asked)) < len(asked) or max(asked, default=0) >= dim:
        expected = f"different numbers below {dim}, the dimensions of the embeddings"
        raise checks.invalid("config.evaluation.dims", expected, asked)
    of_training = (one for one in config.train.matryoshka if one < dim)
    return tuple(sorted(asked or of_training, reverse=True))


def sample_of(config: Config, train: RecordIndex) -> RecordIndex:
    """Returns at most `whitening_images` training images, the same for every seed: runs are comparable."""
    rows = np.random.default_rng(0).permutation(len(train))[: config.evaluation.whitening_images]
    return select(train, np.sort(rows))


def measure_shorter(
    config: Config,
    embeddings: np.ndarray,
    test: TestSet,
    embed_training: Callable[[], np.ndarray] | None,
    *,
    search: str = "exact",
) -> dict[str, EvaluationResults]:
    """Measures the first dimensions of embeddings and their PCA, for each of `shorter_dims`.

    Args:
        config: which dimensions, and which metrics.
        embeddings: `[images, dim]` of a test set, unit norm.
        test: the test set.
        embed_training: returns `[images, dim]` unit-norm embeddings of training images, from which the PCA is
            learnt; None if there are none.
        search: "exact" or "scann".

    Returns:
        Results, without embeddings, by the name of a row in tables of models.
    """
    dims = () if config.evaluation.whitening else shorter_dims(config, embeddings.shape[1])
    shorter = {}
    pca = learn_whitening(embed_training(), power=0, dims=dims[0]) if dims and embed_training else None
    for dim in dims:
        shorter[f"first {dim} dimensions"] = first_dimensions(embeddings, dim)
        if pca:
            shorter[f"PCA to {dim} dimensions"] = whiten(
                embeddings, Whitening(pca.mean, pca.projection[:, :dim])
            )
    return {
        name: evaluate_embeddings(
            config.evaluation, rows, test, search=search, loss=config.loss
        ).without_embeddings()
        for name, rows in shorter.items()
    }


def first_dimensions(embeddings: np.ndarray, dim: int) -> np.ndarray:
    """Returns the first dimensions of embeddings, `[images, dim]` float32 of unit norm.

    >>> first_dimensions(np.array([[0.3, 0.4, 0.5]]), 2).round(3).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    return l2_normalize(tf.constant(embeddings[:, :dim], tf.float32)).numpy()
