"""Embeddings of images with their mirror images, against NumPy."""

import numpy as np

from tfrank.evaluation.postprocessing.mirror import with_mirror
from tfrank.models.embedding import embedding_model


def test_it_is_the_sum_of_both_unit_embeddings_and_does_not_tell_them_apart():
    model = embedding_model(image_size=8, blocks=1, filters=4, embedding_dim=6)
    images = np.random.default_rng(0).uniform(0, 255, [3, 8, 8, 3]).astype("float32")
    one, other = (np.asarray(model(x)) for x in (images, images[:, :, ::-1]))
    sums = [a / np.linalg.norm(a) + b / np.linalg.norm(b) for a, b in zip(one, other)]
    wanted = [row / np.linalg.norm(row) for row in sums]
    both = with_mirror(model)
    np.testing.assert_allclose(both(images), wanted, atol=1e-5)
    np.testing.assert_allclose(both(images[:, :, ::-1]), wanted, atol=1e-5)
