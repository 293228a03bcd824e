"""Embedding a data set, and what a person gets to see of it."""

import io
import json

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tfrank import files
from tfrank.checks import InputError
from tfrank.evaluation import report
from tfrank.evaluation.embed import embed

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, [7, 2, 2, 3], np.uint8)
LABELS = np.array([3, 2**40, 3, -1, 5, 5, 3])
IDS = np.array([f"image-{n}" for n in range(7)], np.bytes_)


def batches(size=3):
    for start in range(0, len(IMAGES), size):
        yield {
            "image": tf.constant(IMAGES[start : start + size]),
            "label": tf.constant(LABELS[start : start + size]),
        }


def flatten(images):
    return tf.reshape(images, [len(images), -1])


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_embeddings_are_unit_rows_in_the_order_of_the_images(size, dtype):
    def embed_fn(images):
        assert images.dtype == tf.float32
        return tf.cast(flatten(images), dtype)

    embeddings, labels = embed(embed_fn, batches(size), total=7, ids=IDS)
    flat = IMAGES.reshape(7, -1).astype(np.float64)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)
    wanted = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings, wanted, atol=1e-6 if dtype == "float32" else 1e-2)
    np.testing.assert_array_equal(labels, LABELS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_embedding_that_is_not_finite_is_named_by_its_image(value):
    def embed_fn(images):
        broken = tf.reduce_all(images == IMAGES[4].astype(np.float32), axis=[1, 2, 3])
        return tf.where(broken[:, None], value, flatten(images))

    with pytest.raises(InputError, match=r"The embedding of image 'image-4' is not finite"):
        embed(embed_fn, batches(), total=7, ids=IDS)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_tf32_is_off_while_embedding_and_afterwards_as_before(before, fails):
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    seen = []

    def embed_fn(images):
        seen.append(enabled())
        return flatten(images) * (np.nan if fails else 1)

    initially = enabled()
    tf.config.experimental.enable_tensor_float_32_execution(before)
    try:
        embed(embed_fn, batches(), total=7, ids=IDS)
    except InputError:
        assert fails
    finally:
        after = enabled()
        tf.config.experimental.enable_tensor_float_32_execution(initially)
    assert not any(seen) and seen
    assert after == before


ROW = {"recall_at_1": 0.91234, "recall_at_10": 1.0, "map": 0.5, "queries": 58, "lone_queries": 2}


def test_table_has_a_line_for_each_model_and_defines_recall_at_k():
    text = report.table({"raw pixels": {**ROW, "recall_at_1": 0.25}, "trained": ROW})
    title, raw, trained, counts, definition = text.splitlines()
    assert title.split() == ["Recall@1", "Recall@10", "mAP"]
    assert raw.split() == ["raw", "pixels", "0.2500", "1.0000", "0.5000"]
    assert trained.split() == ["trained", "0.9123", "1.0000", "0.5000"]
    assert len(title) == len(raw) == len(trained)
    assert counts == "58 queries, 2 without another image of their class left out."
    assert definition == (
        "Recall@K: share of queries with at least one image of their class among the K nearest,"
        " the query itself left out."
    )


def test_table_shows_what_scann_missed():
    row = {"recall_at_1": 0.5, "queries": 58, "lone_queries": 2, "scann_recall": 0.875}
    title, line, *_ = report.table({"model": row}).splitlines()
    assert title.split() == ["Recall@1", "scann_recall"]
    assert line.split() == ["model", "0.5000", "0.8750"]


def test_metrics_are_saved_whole_or_not_at_all(tmp_path):
    path = tmp_path / "metrics.json"
    files.write_json(str(path), ROW)
    with pytest.raises(TypeError):
        files.write_json(str(path), {**ROW, "map": object()})
    assert json.loads(path.read_text()) == ROW
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.json"]


GREEN, RED = (44, 160, 44), (214, 39, 40)


@pytest.mark.parametrize(
    "neighbors, colors",
    [
        ([[2, 6, 3, 1]], {GREEN, RED}),
        ([[2, 6]], {GREEN}),
        ([[1], [0]], {RED}),
        ([[2, -1], [-1, -1]], {GREEN}),
        ([[-1, -1]], set()),
    ],
    ids=["right and wrong", "right", "wrong", "too few", "none"],
)
def test_neighbors_are_drawn_with_right_ones_in_green_and_wrong_ones_in_red(neighbors, colors):
    queries = np.array([0, 3])[: len(neighbors)]
    drawn = []

    def image_of(number):
        drawn.append(int(number))
        return np.full([8, 8, 3], 200, np.uint8)

    png = report.neighbor_grid(image_of, queries, np.array(neighbors), LABELS, lambda n: f"class {n}")
    picture = (matplotlib.image.imread(io.BytesIO(png))[..., :3] * 255).round().astype(int)
    found = {tuple(pixel) for pixel in picture.reshape(-1, 3).tolist()} & {GREEN, RED}
    assert found == colors
    rows = zip(queries.tolist(), neighbors)
    assert drawn == [number for query, nearest in rows for number in [query, *nearest] if number >= 0]
