"""Embedding a data set, in memory or in a folder, where a pass that was stopped goes on."""

import json
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.command_lines import CommandLine
from tests.evaluation import embed_run
from tests.evaluation.embed_replicas import BATCH_SIZES
from tests.programs import printed_json
from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.evaluation import embed as module
from tfrank.evaluation.embed import embed, embed_into
from tfrank.evaluation.protocols import text_of

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


def test_no_image_is_said(tmp_path):
    with pytest.raises(InputError, match="There is no image to embed"):
        embed(flatten, [])
    with pytest.raises(InputError, match="There is no image to embed"):
        embed_into(str(tmp_path), flatten, lambda start: [], ids=IDS[:0], labels=LABELS[:0], key="")


def batches_of_two(start, stop):
    for first in range(start, stop, 2):
        chosen = slice(first, min(first + 2, stop))
        yield {"image": tf.constant(IMAGES[chosen]), "label": LABELS[chosen]}


class Embedding:
    """An embedding function that notes how many images it got, and may fail at a batch."""

    def __init__(self, fails_at=None, scale=1.0):
        self.seen, self._fails_at, self._scale = [], fails_at, scale

    def __call__(self, images):
        if len(self.seen) == self._fails_at:
            raise KeyboardInterrupt
        self.seen.append(len(images))
        # Of another scale for each image number, so that another key gives other embeddings.
        return flatten(images) + self._scale


def run(folder, function=None, *, key="key", ids=IDS):
    """An embedding pass in a folder; how many images were embedded, and the embeddings."""
    function = function or Embedding()
    count = len(ids)
    rows = embed_into(
        *(str(folder), function, lambda start: batches_of_two(start, count)),
        ids=ids,
        labels=LABELS[:count],
        key=key,
    )
    return sum(function.seen), np.array(rows)


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A folder where a pass was stopped in its third batch, and the folder of a whole one.

    A note is taken every two batches: four images are known to be done.
    """
    monkeypatch.setattr(module, "NOTE_EVERY", 2)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", Embedding(fails_at=3))
    run(tmp_path / "whole")
    return tmp_path / "stopped", tmp_path / "whole"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_pass_leaves_embeddings_ids_and_labels_in_the_folder(tmp_path):
    _, rows = run(tmp_path / "new" / "folder")
    wanted, _ = embed(Embedding(), batches(2))
    saved = {name: np.load(tmp_path / "new" / "folder" / f"{name}.npy") for name in ("ids", "labels")}
    np.testing.assert_array_equal(rows, wanted)
    np.testing.assert_array_equal(saved["ids"], IDS)
    np.testing.assert_array_equal(saved["labels"], LABELS)


def test_a_pass_that_was_stopped_goes_on_at_the_image_it_knows_of(stopped, caplog):
    caplog.set_level("INFO")
    folder, whole = stopped
    embedded, rows = run(folder)
    assert embedded == 3 and "4 of 7 embeddings are there already" in caplog.text
    np.testing.assert_array_equal(rows, np.load(whole / "embeddings.npy"))
    assert contents(folder) == contents(whole)


def test_a_finished_pass_embeds_nothing(tmp_path):
    _, before = run(tmp_path)
    embedded, rows = run(tmp_path)
    assert embedded == 0
    np.testing.assert_array_equal(rows, before)


def test_another_key_or_other_images_start_anew(stopped):
    folder, _ = stopped
    assert run(folder, key="other")[0] == 7
    assert run(folder, key="other")[0] == 0
    embedded, rows = run(folder, key="other", ids=IDS[:6])
    assert embedded == len(rows) == 6


@pytest.mark.parametrize("key", ["old", "new"])
def test_a_pass_of_another_key_that_was_stopped_early_leaves_nothing_to_go_on_from(tmp_path, key):
    """Its first batches overwrote what the note of the old key spoke of."""
    run(tmp_path / "whole")
    run(tmp_path / "stopped", Embedding(scale=9.0), key="old")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", Embedding(fails_at=1, scale=99.0), key="new")
    embedded, rows = run(tmp_path / "stopped", key=key)
    assert embedded == 7
    np.testing.assert_array_equal(rows, np.load(tmp_path / "whole" / "embeddings.npy"))


@pytest.mark.parametrize("name", ["pass.json", "embeddings.npy"])
@pytest.mark.parametrize("content", [None, b"", b"{bad", b"[]", b"{}", b"\x93NUMPY\x01\x00"])
def test_what_is_damaged_is_made_anew(stopped, name, content):
    folder, whole = stopped
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert run(folder)[0] == 7
    assert contents(folder) == contents(whole)


@pytest.mark.parametrize("ids", [IDS, IDS.astype(str), np.arange(7) + 1000])
def test_an_embedding_that_is_not_finite_is_named_after_a_resume_too(stopped, ids):
    def broken(images):
        fifth = tf.reduce_all(images == IMAGES[5].astype(np.float32), axis=[1, 2, 3])
        return tf.where(fifth[:, None], np.nan, flatten(images))

    with pytest.raises(InputError, match=f"The embedding of image '{text_of(ids[5])}' is not finite"):
        run(stopped[0], broken, ids=ids)


def test_a_disk_without_room_is_said_before_anything_is_embedded_for_long(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage)
    function = Embedding()
    with pytest.raises(InputError, match=r"embeddings.npy: it takes 336 bytes, and the disk has 100 left"):
        run(tmp_path, function)
    assert function.seen == [2]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"Cannot write to .*file.*Choose another folder"):
        run(tmp_path / "file")


@pytest.mark.slow
def test_a_process_that_was_killed_goes_on_to_the_same_bytes(tmp_path, monkeypatch, capsys):
    """It notes how far it is after eight images each; killed after the second time."""

    killed = CommandLine("-m", "tests.evaluation.embed_run", tmp_path / "killed", "0.2")

    def done():
        note = tmp_path / "killed" / "pass.json"
        return json.loads(note.read_text())["done"] if note.exists() else 0

    deadline = time.monotonic() + 100
    while done() < 16:
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    known = done()
    assert 16 <= known < 97
    monkeypatch.setattr(module, "NOTE_EVERY", 2)
    embed_run.main(str(tmp_path / "killed"), 0)
    assert f"{known} of 97 embeddings are there already" in capsys.readouterr().out
    embed_run.main(str(tmp_path / "whole"), 0)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_two_replicas_embed_batches_of_any_size_as_one_device():
    """In equal shares, of which the last may be filled up; what is filled up is dropped."""
    found = printed_json("-m", "tests.evaluation.embed_replicas")
    assert found.pop("same")
    shares = {"1": [1] * 14, "2": [1] * 8, "3": [1] * 2 + [2] * 4, "7": [4] * 2}
    assert list(found) == [str(size) for size in BATCH_SIZES]
    for size, one in found.items():
        assert one["shares"] == shares[size] and one["shape"] == [7, 5]
        assert one["difference"] < 1e-6
