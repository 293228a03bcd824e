"""A SavedModel is known by what it computes, not by how it was written."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.command_lines import ROOT
from tests.search import write_model
from tfrank.common.checks import InputError
from tfrank.export.fingerprint import fingerprint


class Model(tf.Module):
    """Embeds images by a branch, a function in a function, a constant, a table of words and a variable."""

    def __init__(self, *, weight=1.0, constant=2.0, stride=1, swapped=False, words=("a", "b"), written=False):
        self.weight = tf.Variable([weight, 3.0])
        names = tf.lookup.KeyValueTensorInitializer(list(words), [1.0, 2.0])
        self.table = tf.lookup.StaticHashTable(names, 0.0)
        self.held = tf.constant([constant, 1.0]) * 1.0
        inside = tf.function(lambda images: tf.nn.max_pool2d(images, 2, stride, "SAME"))

        @tf.function(input_signature=[tf.TensorSpec([None, 4, 4, 3], tf.float32, name="images")])
        def serve(images):
            pooled = tf.reduce_mean(inside(images), (1, 2))[:, :2]
            pair = (pooled, self.weight) if swapped else (self.weight, pooled)
            branch = tf.cond(tf.reduce_sum(images) > 0, lambda: pair[0] - pair[1], lambda: pooled * self.held)
            with tf.control_dependencies([self.weight.assign_add([1.0, 1.0])] if written else []):
                return {"embedding": branch + self.table.lookup(tf.constant("a"))}

        self.serve = serve


def saved(folder, **settings):
    model = Model(**settings)
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.serve})
    return str(folder)


def test_exports_of_one_model_are_one_model_in_any_process(tmp_path):
    prints = {fingerprint(str(write_model(tmp_path / name))) for name in ("first", "second")}
    code = "import pathlib, sys; from tests.search import write_model; write_model(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "third")], cwd=ROOT, check=True)
    assert prints == {fingerprint(str(tmp_path / "third"))}
    assert prints != {fingerprint(str(write_model(tmp_path / "other weights", seed=1)))}


@pytest.mark.parametrize(
    "change",
    [
        {"weight": 1.5},
        {"constant": 2.5},
        {"stride": 2},
        {"swapped": True},
        {"words": ("b", "a")},
        {"written": True},
    ],
    ids=str,
)
def test_models_that_compute_otherwise_are_others(tmp_path, change):
    same = {fingerprint(saved(tmp_path / name)) for name in ("first", "second")}
    assert len(same) == 1 and fingerprint(saved(tmp_path / "other", **change)) not in same


def test_every_changed_byte_of_the_weights_is_noticed(tmp_path):
    folder = tmp_path / "model"
    before = fingerprint(str(write_model(folder)))
    (path,) = (folder / "variables").glob("*.data-*")
    content = path.read_bytes()
    values = np.frombuffer(content, np.uint8)
    for place in np.random.default_rng(0).choice(len(values) // 2, 20, replace=False):
        changed = values.copy()
        changed[place] ^= 1
        path.write_bytes(changed.tobytes())
        with pytest.raises(InputError, match="is not a SavedModel of an embedding model"):
            fingerprint(str(folder))
    path.write_bytes(content)
    assert fingerprint(str(folder)) == before


def test_what_is_no_model_is_refused(tmp_path):
    folder = write_model(tmp_path / "model")
    shutil.rmtree(folder / "variables")
    (folder / "variables").mkdir()
    (folder / "variables" / "variables.index").write_bytes(b"no index")
    for path in (folder, tmp_path):
        with pytest.raises(InputError, match="is not a SavedModel of an embedding model"):
            fingerprint(str(path))
