"""Preprocessing by hand, and what the embedding model promises."""

import keras
import numpy as np
import pytest

from tfrank.checks import InputError
from tfrank.models.embedding import embedding_model
from tfrank.models.preprocessing import MODES, preprocess

IMAGES = np.random.default_rng(0).uniform(0, 255, [3, 10, 10, 3]).astype("float32")


def small_model(**options):
    keras.utils.set_random_seed(0)
    settings = {"image_size": 10, "preprocessing": "rgb", "blocks": 2, "filters": 4, "embedding_dim": 5}
    return embedding_model(**{**settings, **options})


@pytest.fixture
def mixed_precision():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(
    "mode, wanted",
    [
        ("rgb", [[0, 0, 0], [1, 1, 1], [0.2, 0.4, 0.6], [1, 0, 0]]),
        ("grey", [[0], [1], [0.4], [1 / 3]]),
        ("inverted_grey", [[1], [0], [0.6], [2 / 3]]),
    ],
)
def test_preprocessing_scales_black_white_and_colors(mode, wanted):
    pixels = np.array([[[[0, 0, 0], [255, 255, 255], [51, 102, 153], [255, 0, 0]]]], "float32")
    np.testing.assert_allclose(preprocess(pixels, mode), [[wanted]], atol=1e-6)


def test_an_unknown_preprocessing_is_refused():
    with pytest.raises(InputError, match=r'argument `preprocessing`\. .*Did you mean "grey"\?'):
        small_model(preprocessing="gray")


@pytest.mark.parametrize("preprocessing", MODES)
def test_embeddings_are_float32_of_the_dimension_asked(preprocessing):
    model = small_model(preprocessing=preprocessing)
    embeddings = model(IMAGES)
    assert embeddings.shape == (3, 5) and embeddings.dtype == "float32"
    assert model.output_shape == (None, 5) and model.input_shape == (None, 10, 10, 3)


def test_embeddings_are_float32_under_mixed_precision_too(mixed_precision):
    model = small_model()
    embeddings = model(IMAGES)
    assert embeddings.dtype == "float32"
    convolution = next(layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D))
    assert convolution.compute_dtype == "bfloat16"
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}


def test_batch_norm_is_pytorchs_and_over_the_global_batch():
    norms = [layer for layer in small_model().layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert [(n.momentum, n.epsilon, n.synchronized) for n in norms] == [(0.9, 1e-5, True)] * 2


def test_borders_count_where_a_size_does_not_halve():
    """10 pixels halve to 5, and then to 3: the last row and column are seen."""
    changed = IMAGES.copy()
    changed[:, -1, -1] = 255 - changed[:, -1, -1]
    model = small_model()
    assert np.all(np.abs(model(IMAGES) - model(changed)).max(axis=1) > 1e-6)
    assert model.get_layer("embedding").kernel.shape == (3 * 3 * 4, 5)


def test_same_seed_gives_the_same_weights():
    for one, other in zip(small_model().get_weights(), small_model().get_weights()):
        np.testing.assert_array_equal(one, other)


def test_a_saved_model_gives_the_same_embeddings(tmp_path):
    model = small_model(preprocessing="inverted_grey")
    model(IMAGES, training=True)  # Moves the statistics of batch norm away from where they begin.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IMAGES), model(IMAGES))
