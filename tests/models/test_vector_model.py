"""The model of vectors starts as what it is given."""

import numpy as np
import pytest

from tfrank.common.checks import InputError
from tfrank.models.embedding import initialize_head_with_pca, split_at_head
from tfrank.models.vector_model import vector_model

ROWS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
UNIT = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)


@pytest.mark.parametrize("hidden", [(), (5,), (5, 7)])
def test_features_start_as_the_unit_vectors_and_a_whole_pca_keeps_their_cosines(hidden):
    model = vector_model(input_dim=6, hidden=hidden, head="pca", embedding_dim=9)
    assert model.output_shape == (None, 6), "at most the dimensions of the vectors"
    features_of, _ = split_at_head(model)
    np.testing.assert_allclose(features_of(ROWS), UNIT, atol=1e-6)
    initialize_head_with_pca(model, UNIT)
    embeddings = model(100 * ROWS).numpy()
    np.testing.assert_allclose(embeddings @ embeddings.T, UNIT @ UNIT.T, atol=1e-5)


def test_the_head_may_be_left_out_or_random():
    assert vector_model(input_dim=6, hidden=(5,), head="none", embedding_dim=3).output_shape == (None, 6)
    assert vector_model(input_dim=6, head="random", embedding_dim=9).output_shape == (None, 9)


@pytest.mark.parametrize(
    "options, message",
    [({"head": "pac"}, "one of .*'pca'"), ({"hidden": (0,)}, "hidden"), ({"input_dim": 0}, "input_dim")],
)
def test_what_does_not_fit_is_named(options, message):
    with pytest.raises(InputError, match=message):
        vector_model(**{"input_dim": 6, "embedding_dim": 3, **options})
