"""PCA whitening against singular values in float64, by hand, and its file against damage."""

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.evaluation import ROWS
from tfrank.common.checks import InputError
from tfrank.evaluation.postprocessing import whitening
from tfrank.evaluation.postprocessing.whitening import (
    Whitening,
    learn_whitening,
    load_whitening,
    save_whitening,
    whiten,
    whitening_layer,
)

RNG = np.random.default_rng(0)
# Variances that differ, about a mean that is not zero.
TRAINING = reference.unit(0.2 + RNG.normal(size=[50, 8]) * np.linspace(0.1, 1, 8)).astype(np.float32)
OTHERS = ROWS["distinct"][:, :8]
# Rows of 8 that vary in four directions only, one of them their norm before it became 1.
FLAT = reference.unit(1 + RNG.normal(size=[50, 3]) @ RNG.normal(size=[3, 8])).astype(np.float32)
CROSS = np.array([[5.0, 5], [1, 5], [3, 6], [3, 4]])

every_power = pytest.mark.parametrize("power", [0, 0.25, 0.5])


@every_power
@pytest.mark.parametrize("dims", [None, 8, 3, 1])
@pytest.mark.parametrize("block_rows", [whitening.BLOCK_ROWS, 7])
def test_whitening_is_that_of_the_singular_values_in_any_blocks(monkeypatch, power, dims, block_rows):
    monkeypatch.setattr(whitening, "BLOCK_ROWS", block_rows)
    learnt = learn_whitening(TRAINING, power=power, dims=dims)
    got = whiten(OTHERS, learnt)
    np.testing.assert_allclose(got, reference.whitened(TRAINING, OTHERS, power, dims or 8), atol=2e-6)
    assert got.dtype == learnt.mean.dtype == learnt.projection.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)


def test_whitening_by_hand():
    """The variances are 2 and 1/2, so their roots' roots are in the ratio of the square root of 2."""
    learnt = learn_whitening(CROSS)
    np.testing.assert_array_equal(learnt.mean, [3, 5])
    np.testing.assert_allclose(learnt.projection, np.diag([2**-0.25, 2**0.25]), rtol=1e-6)
    point = np.array([[3 + 2**0.5, 5 + 1]])
    np.testing.assert_allclose(whiten(point, learnt), [[0.5**0.5, 0.5**0.5]], rtol=1e-6)


def test_full_whitening_gives_every_direction_variance_1_and_none_keeps_distances():
    full, none = (learn_whitening(TRAINING, power=power) for power in (0.5, 0))
    projected = (TRAINING - full.mean) @ full.projection
    np.testing.assert_allclose(np.cov(projected.T, bias=True), np.eye(8), atol=1e-4)
    np.testing.assert_allclose(none.projection @ none.projection.T, np.eye(8), atol=1e-6)


def test_the_largest_entry_of_each_direction_is_positive():
    """Whatever sign the eigenvectors come with."""
    for rows in (TRAINING, -TRAINING, OTHERS):
        projection = learn_whitening(rows).projection
        assert np.all(projection.max(axis=0) == np.abs(projection).max(axis=0))


@every_power
def test_embeddings_that_vary_in_few_directions_are_whitened_stably(power):
    """Rounding of the embeddings, here by 1e-7, hardly moves the result."""
    learnt = learn_whitening(FLAT, power=power)
    got = whiten(FLAT, learnt)
    assert np.isfinite(learnt.projection).all()
    np.testing.assert_allclose(got, reference.whitened(FLAT, FLAT, power, 8), atol=1e-3)
    moved = (FLAT + 1e-7 * RNG.choice([-1, 1], FLAT.shape)).astype(np.float32)
    similarity, similarity_of_moved = got @ got.T, whiten(moved, learn_whitening(moved, power=power))
    np.testing.assert_allclose(similarity_of_moved @ similarity_of_moved.T, similarity, atol=1e-3)
    # Directions without variance count as of a millionth of the largest.
    scales = np.linalg.norm(learnt.projection, axis=0)
    np.testing.assert_allclose(scales[4:], scales[0] * 1e6**power, rtol=1e-4)


def test_a_memory_map_is_learnt_from_and_whitened_in_blocks(monkeypatch, tmp_path):
    monkeypatch.setattr(whitening, "BLOCK_ROWS", 16)
    np.save(tmp_path / "rows.npy", TRAINING.astype(np.float16))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    half = TRAINING.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(
        whiten(mapped, learn_whitening(mapped)), whiten(half, learn_whitening(half))
    )


def test_the_layer_whitens_inside_a_graph_of_any_batch():
    learnt = learn_whitening(TRAINING, dims=3)
    layer = tf.function(whitening_layer(learnt), input_signature=[tf.TensorSpec([None, 8])])
    for rows in (OTHERS, OTHERS[:1]):
        np.testing.assert_allclose(layer(tf.constant(rows)), whiten(rows, learnt), atol=1e-6)


def test_the_mean_itself_becomes_zeros():
    learnt = Whitening(np.float32([1, 0]), np.eye(2, dtype=np.float32))
    np.testing.assert_array_equal(whiten(np.float32([[1, 0], [1, 3]]), learnt), [[0, 0], [0, 1]])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"power": 0.6}, "argument `power`. Expected a finite number of at least 0 and of at most 0.5"),
        ({"power": -0.1}, "argument `power`"),
        ({"dims": 0}, "argument `dims`. Expected an integer of at least 1"),
        ({"dims": 9}, "argument `dims`. Expected at most 8, the dim of the embeddings. Received: dims=9"),
        ({"embeddings": TRAINING[0]}, r"argument `embeddings`. .*\[rows, dim\].* Received: float32 of shape"),
        ({"embeddings": TRAINING[:0]}, "with at least one row"),
        ({"embeddings": np.ones([3, 4], int)}, r"Expected `\[rows, dim\]` floats"),
        ({"embeddings": np.where(TRAINING > 0.7, np.nan, TRAINING)}, "whitening from are not finite"),
        ({"embeddings": np.repeat(TRAINING[:1], 30, axis=0)}, "The 30 embeddings .* are equal"),
        ({"embeddings": TRAINING[:1]}, "are equal"),
    ],
)
def test_what_nothing_can_be_learnt_from_is_refused(arguments, message):
    arguments = {"embeddings": TRAINING, **arguments}
    with pytest.raises(InputError, match=message):
        learn_whitening(arguments.pop("embeddings"), **arguments)


@pytest.mark.parametrize("whiten", [whiten, lambda rows, learnt: whitening_layer(learnt)(tf.constant(rows))])
def test_a_whitening_for_another_dim_is_refused(whiten):
    with pytest.raises(InputError, match="for embeddings of 8 dimensions; these have 12"):
        whiten(ROWS["distinct"], learn_whitening(TRAINING))


def test_a_whitening_is_read_as_it_was_written_under_any_name(tmp_path):
    path = str(tmp_path / "whitening of mine")
    written = learn_whitening(TRAINING, dims=3)
    save_whitening(path, written)
    for got, wanted in zip(load_whitening(path), written):
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype == wanted.dtype
    assert [file.name for file in tmp_path.iterdir()] == ["whitening of mine"]


def test_a_damaged_file_is_never_read_as_another_whitening(tmp_path):
    """Every byte changed in turn, and the file cut after every seventh."""
    path = tmp_path / "whitening.npz"
    written = learn_whitening(TRAINING[:, :3], dims=2)
    save_whitening(str(path), written)
    whole = path.read_bytes()
    damaged = [whole[:n] + bytes([whole[n] ^ 0xFF]) + whole[n + 1 :] for n in range(len(whole))]
    refused = 0
    for content in damaged + [whole[:n] for n in range(0, len(whole), 7)]:
        path.write_bytes(content)
        try:
            got = load_whitening(str(path))
            np.testing.assert_array_equal(got.mean, written.mean)
            np.testing.assert_array_equal(got.projection, written.projection)
        except InputError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > len(whole) / 2


def test_a_write_that_fails_leaves_the_file_before(monkeypatch, tmp_path):
    def half_a_write(file, **arrays):
        file.write(b"PK")
        raise OSError("disk full")

    path = str(tmp_path / "whitening.npz")
    written = learn_whitening(TRAINING)
    save_whitening(path, written)
    monkeypatch.setattr(np, "savez", half_a_write)
    with pytest.raises(OSError, match="disk full"):
        save_whitening(path, learn_whitening(FLAT))
    np.testing.assert_array_equal(load_whitening(path).mean, written.mean)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda file: np.savez(file, other=np.zeros(3)),
        lambda file: np.savez(file, mean=np.zeros(3), projection=np.zeros([3, 2])),
        lambda file: np.savez(file, mean=np.zeros(3, "f4"), projection=np.zeros([4, 2], "f4")),
        lambda file: np.savez(file, mean=np.zeros(3, "f4"), projection=np.zeros([3, 4], "f4")),
        lambda file: np.savez(file, mean=np.zeros(3, "f4"), projection=np.full([3, 2], np.nan, "f4")),
        lambda file: np.savez(file, mean=np.array([print]), projection=np.zeros([1, 1], "f4")),
        lambda file: np.save(file, np.zeros(3)),
        lambda file: file.write(b"a text"),
        lambda file: None,
    ],
    ids=["others", "float64", "rows", "columns", "nan", "pickle", "npy", "text", "empty"],
)
def test_a_foreign_file_is_refused_by_name(tmp_path, write):
    path = tmp_path / "whitening.npz"
    with open(path, "wb") as file:
        write(file)
    with pytest.raises(InputError, match=rf"{path} is not a whitening, or is damaged"):
        load_whitening(str(path))


def test_a_missing_file_or_a_folder_is_named(tmp_path):
    with pytest.raises(InputError, match=f"There is no whitening {tmp_path}/none"):
        load_whitening(f"{tmp_path}/none")
    with pytest.raises(InputError, match=f"{tmp_path} is not a whitening"):
        load_whitening(str(tmp_path))
