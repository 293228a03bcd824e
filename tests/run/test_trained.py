"""Trained models opened from a run or a SavedModel, and embeddings from a file."""

import dataclasses
import io
import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.data import image_records, write_records
from tfrank.common.checks import InputError
from tfrank.configs import digits, letters, of_run
from tfrank.data.index import select
from tfrank.data.records import RecordReader
from tfrank.evaluation.postprocessing import whitening
from tfrank.run import experiment, trained
from tfrank.run.datasets import build_test_loader
from tfrank.run.export import export_model
from tfrank.run.trained import config_of_run, load_embeddings, load_saved_model, open_model, run_of
from tfrank.run.workdir import check_config_of
from tfrank.search.embedder import Embedder

ANY_SIZE = (None, None, 3)

RNG = np.random.default_rng(0)
TRAIN_IMAGES = types.SimpleNamespace(label=np.array([0, 1]), category=np.array([-1, -1]))
ROWS = RNG.normal(size=[6, 4]) * 100
ARRAYS = {"embeddings": ROWS, "labels": np.array([5, 5, 2**40, -1, 0, 0])}


def npz(path, **arrays):
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


def test_embeddings_of_a_file_are_normalised_and_unnamed_images_numbered(tmp_path):
    rows, test = load_embeddings(npz(tmp_path / "e.npz", **ARRAYS))
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, reference.unit(ROWS), atol=1e-7)
    assert test.labels.tolist() == ARRAYS["labels"].tolist()
    assert test.ids.tolist() == list("012345")
    assert test.role.tolist() == [""] * 6 and test.group.tolist() == [-1] * 6 and test.grades is None


@pytest.mark.parametrize("kind", [np.str_, np.bytes_])
def test_ids_roles_and_groups_of_a_file_are_used(tmp_path, kind):
    roles = np.array(["query", "gallery", "", "distractor", "query", "gallery"])
    groups = np.array([3, 3, -1, -1, 4, 4], np.int16)
    path = npz(
        tmp_path / "e.npz",
        embeddings=ROWS.astype(np.float16),
        labels=ARRAYS["labels"][:, None],
        ids=np.array(list("uvwxyz"), kind),
        role=roles.astype(kind),
        group=groups,
    )
    rows, test = load_embeddings(path)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert test.labels.tolist() == ARRAYS["labels"].tolist()
    assert test.ids.astype(str).tolist() == list("uvwxyz")
    assert test.role.tolist() == roles.tolist()
    assert test.group.tolist() == groups.tolist()


def test_names_of_arrays_may_be_plural_and_those_that_are_not_used_are_named(tmp_path, capsys):
    roles = np.array(["query", "gallery", "", "distractor", "query", "gallery"])
    extra = {"roles": roles, "id": list("uvwxyz"), "split": ["test"] * 6, "categories": np.arange(6)}
    _, test = load_embeddings(npz(tmp_path / "e.npz", **ARRAYS, **extra))
    assert test.role.tolist() == roles.tolist() and test.ids.tolist() == list("uvwxyz")
    assert "e.npz that are not used: categories, split.\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": None}, "it has no embeddings"),
        ({"labels": None}, "it has no labels"),
        ({"label": np.arange(6)}, "two of a kind among embeddings, label, labels"),
        ({"embeddings": ROWS[0]}, "should be an .npz"),
        ({"embeddings": np.float64(1)}, "should be an .npz"),
        ({"embeddings": ROWS.astype(int)}, "embeddings are .* of shape .*, and labels"),
        ({"embeddings": ROWS[:0], "labels": np.arange(0)}, "embeddings are .* of shape .*, and labels"),
        ({"labels": np.arange(5)}, "embeddings are .* of shape .*, and labels"),
        ({"labels": np.eye(6, dtype=int)}, "embeddings are .* of shape .*, and labels"),
        ({"labels": np.arange(6) / 2}, "Cannot cast"),
        ({"labels": np.arange(6, dtype=np.uint64)}, "Cannot cast"),
        ({"labels": np.array(list("aabbcc"))}, "Cannot cast"),
        ({"labels": np.array([1, 1, None, 2, 2, 2])}, "allow_pickle=False"),
        ({"ids": np.array([print] * 6)}, "allow_pickle=False"),
        ({"ids": np.array(list("abc"))}, "embeddings are .* of shape .*, and labels"),
        ({"ids": np.array([list("ab")] * 6)}, "embeddings are .* of shape .*, and labels"),
        ({"role": np.array(["query"] * 5)}, "embeddings are .* of shape .*, and labels"),
        ({"role": np.array(["test"] * 6)}, "a role is none of"),
        ({"group": np.arange(6) / 2}, "Cannot cast"),
        ({"group": np.arange(6)[:, None]}, "embeddings are .* of shape .*, and labels"),
        ({"ids": np.array(list("abcdea"))}, "`ids` has 'a' more than once"),
        ({"embeddings": np.where(np.eye(6)[:, :4] > 0, np.nan, ROWS)}, "embedding of '0' is not finite"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, changes, message):
    path = npz(tmp_path / "e.npz", **{**ARRAYS, **changes})
    with pytest.raises(InputError, match=message):
        load_embeddings(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"text", b"\x93NUMPY", "npy", "folder", None])
def test_a_file_that_is_no_npz_is_refused(tmp_path, content):
    path = tmp_path / "e.npz"
    if content == "npy":
        with open(path, "wb") as file:
            np.save(file, ROWS)
    elif content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="There is no file" if content is None else r"should be an \.npz"):
        load_embeddings(str(path))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_file_is_refused_or_what_it_was(tmp_path, save):
    """A byte of another value, each tenth in turn; or an end that is missing."""
    file = io.BytesIO()
    save(file, **ARRAYS)
    whole, path, refused = file.getvalue(), tmp_path / "e.npz", 0
    damaged = [whole[:place] for place in range(0, len(whole), 40)]
    for place in range(0, len(whole), 10):
        damaged.append(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        try:
            rows, test = load_embeddings(str(path))
        except InputError:
            refused += 1
            continue
        np.testing.assert_allclose(rows, reference.unit(ROWS), atol=1e-7)
        assert test.labels.tolist() == ARRAYS["labels"].tolist()
    assert refused > len(damaged) / 2


@pytest.mark.parametrize(
    ("workdir", "saved_model", "folder"),
    [
        (None, None, None),
        ("RUN", None, "RUN"),
        (None, "RUN/saved_model", "RUN"),
        (None, "RUN/saved_model/", "RUN"),
        (None, "RUN/evaluation/test/saved_model", "RUN"),
        ("RUN", "EMPTY/saved_model", "RUN"),
        ("RUN", "OTHER/saved_model", "RUN"),
        ("EMPTY", None, None),
        ("", None, None),
    ],
)
def test_the_config_is_that_of_the_run_that_the_flags_name(
    tmp_path, monkeypatch, workdir, saved_model, folder
):
    monkeypatch.chdir(tmp_path)
    for name in ("RUN", "OTHER", "EMPTY"):
        (tmp_path / name).mkdir()
    for name in ("RUN", "OTHER"):
        (tmp_path / name / "config.json").touch()
    wanted = f"{of_run.__file__}:{folder}/config.json" if folder else letters.__file__
    assert config_of_run(workdir, saved_model) == wanted


@pytest.mark.parametrize("place", ["EMPTY/saved_model", "EMPTY/evaluation/test/saved_model"])
def test_a_saved_model_of_no_run_is_not_measured_by_any_config(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(InputError, match=f"{place} is not in the folder of a run, so its config is unknown"):
        config_of_run(None, place)


def test_a_saved_model_lies_in_its_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").touch()
    assert run_of(str(tmp_path / "saved_model")) == run_of("saved_model/") == "."
    assert run_of("elsewhere/saved_model") is None and run_of(None) is None


def small_config():
    config = digits.get_config()
    config.data.image_size = 8
    config.model.filters = 4
    config.model.embedding_dim = 5
    config.evaluation.batch_size = 4
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one saved step, its SavedModel, and what saves other weights as a further step."""
    folder, config = tmp_path_factory.mktemp("run"), small_config()
    check_config_of(str(folder), config)
    training = experiment.build_training(config, str(folder), tf.distribute.get_strategy(), 1, TRAIN_IMAGES)
    training.checkpoints.save(1)
    model = open_model(config, str(folder), None)
    model.export(str(folder / "saved_model"), None)

    def change(step):
        training.model.trainable_variables[-1].assign_add([1.0, 2.0, 3.0, 4.0, 5.0])
        training.checkpoints.save(step)

    return folder, config, change


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Eleven records."""
    return write_records(image_records(), str(tmp_path_factory.mktemp("records")), "test")


def test_a_run_and_its_saved_model_embed_alike_and_know_where_evaluations_go(run, index, tmp_path):
    folder, config, _ = run
    of_run, saved_model = open_model(config, str(folder), None), f"{folder}/saved_model/"
    of_saved_model = open_model(config, str(folder), saved_model)
    rows = of_run.embed(index, str(tmp_path / "run"))
    assert rows.shape == (11, 5)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert len(np.unique(rows.round(3), axis=0)) == 11
    np.testing.assert_allclose(of_saved_model.embed(index, str(tmp_path / "saved")), rows, atol=1e-5)
    assert np.load(tmp_path / "run" / "ids.npy").tolist() == index.id.tolist()
    assert of_run.evaluations == f"{folder}/evaluation"
    assert of_saved_model.evaluations == f"{folder}/saved_model_evaluation"
    with pytest.raises(InputError, match="A SavedModel cannot be exported again"):
        of_saved_model.export(str(tmp_path / "again"), None)


def test_a_model_is_told_by_its_weights(run, tmp_path):
    folder, config, change = run
    before = open_model(config, str(folder), None)
    assert open_model(config, str(folder), None).fingerprint == before.fingerprint
    for name in ("before", "again"):
        before.export(str(tmp_path / name), None)
    # It does not change embeddings.
    (tmp_path / "again" / "tfrank.json").write_text('{"thresholds": {}}')
    change(2)
    after = open_model(config, str(folder), None)
    assert after.fingerprint != before.fingerprint
    after.export(str(tmp_path / "after"), None)
    paths = [str(tmp_path / name) for name in ("before", "again", "after")]
    prints = [open_model(config, "", path).fingerprint for path in paths]
    assert prints[0] == prints[1] != prints[2]
    # An index tells models in the same way.
    assert [Embedder(path).fingerprint for path in paths] == prints


def test_embeddings_are_made_anew_where_what_they_depend_on_changed(run, index, tmp_path):
    folder, config, _ = run
    model, counts = open_model(config, str(folder), None), []

    def images_embedded(model, index):
        def counting(images):
            counts.append(len(images))
            return model.function(images)

        counts.clear()
        dataclasses.replace(model, function=counting).embed(index, str(tmp_path))
        return sum(counts)

    def with_field(group, name, value):
        other = small_config()
        setattr(getattr(other, group), name, value)
        return dataclasses.replace(model, config=other)

    assert images_embedded(model, index) == 11 and counts == [4, 4, 3]
    assert images_embedded(with_field("evaluation", "batch_size", 3), index) == 0
    for changed, images in [
        (dataclasses.replace(model, fingerprint="other"), index),
        (with_field("data", "resize", 9), index),
        (with_field("evaluation", "scales", (1.0, 0.5)), index),
        (with_field("evaluation", "mirror", True), index),
        (model, select(index, np.arange(11)[::-1])),
    ]:
        images_embedded(model, index)
        assert images_embedded(model, index) == 0
        assert images_embedded(changed, images) == 11


def test_whitening_is_learnt_on_the_training_images_alone(run, tmp_path, capsys):
    folder, config, _ = run
    train = write_records(image_records([0, 1] * 10, first=100), str(tmp_path), "train")
    config = small_config()
    config.evaluation.whitening, config.evaluation.whitening_dim = 0.5, 3
    model = open_model(config, str(folder), None)
    found = model.learn_whitening(train, str(tmp_path / "all"))
    wanted = whitening.learn_whitening(model.embed(train, str(tmp_path / "again")), power=0.5, dims=3)
    np.testing.assert_allclose(found.projection, wanted.projection, atol=1e-5)
    assert found.projection.shape == (5, 3)
    assert "Whitening is learnt on 20 of 20 training images" in capsys.readouterr().out
    config.evaluation.whitening_images = 8
    model.learn_whitening(train, str(tmp_path / "some"))
    ids = np.load(tmp_path / "some" / "ids.npy")
    assert len(ids) == 8 == len(set(ids.tolist()) & set(train.id.tolist()))
    # Drawn, not the first ones.
    assert ids.tolist() != train.id[:8].tolist()


def any_size_config(*scales, image_size=0):
    """Of a model whose head fits images of any size."""
    config = small_config()
    config.evaluation.scales, config.evaluation.image_size = scales, image_size
    config.model.pooling = "average"
    return config


@pytest.fixture(scope="module")
def any_size_run(tmp_path_factory):
    """The folder of a run of one saved step."""
    folder, config = str(tmp_path_factory.mktemp("any_size")), any_size_config(1.0)
    check_config_of(folder, config)
    training = experiment.build_training(config, folder, tf.distribute.get_strategy(), 1, TRAIN_IMAGES)
    training.checkpoints.save(1)
    return folder


def test_several_scales_are_summed(any_size_run, index, tmp_path):
    several = open_model(any_size_config(1.0, 2.0), any_size_run, None).embed(index, str(tmp_path / "two"))
    single = open_model(any_size_config(1.0), any_size_run, None).embed(index, str(tmp_path / "one"))
    assert np.abs(several - single).max() > 1e-3


def test_images_of_tests_may_be_larger_than_those_of_training(any_size_run, index, tmp_path):
    usual = open_model(any_size_config(1.0), any_size_run, None).embed(index, str(tmp_path / "usual"))
    larger = open_model(any_size_config(1.0, image_size=16), any_size_run, None)
    assert larger.model.input_shape == (None, 16, 16, 3)
    assert np.abs(larger.embed(index, str(tmp_path / "larger")) - usual).max() > 1e-3


def test_the_model_of_larger_images_has_the_weights_that_are_trained(tmp_path):
    config = any_size_config(1.0, image_size=16)
    training = experiment.build_training(config, str(tmp_path), tf.distribute.get_strategy(), 1, TRAIN_IMAGES)
    assert training.copy.input_shape[1] == 8 and training.serving.input_shape[1] == 16
    for variable in training.model.variables:
        variable.assign(variable + 1)
    training.update_copy()
    for of_training, served in zip(training.model.variables, training.serving.variables):
        np.testing.assert_array_equal(of_training, served)


# Run in a folder with a SavedModel, model, the bytes of images, encoded.npy, and what is seen of them,
# images.npy.
USER = """
import sys
sys.modules["tfrank"] = None
import numpy as np
import tensorflow as tf

signatures = tf.saved_model.load("model").signatures
np.save("of_images.npy", signatures["serving_default"](images=np.load("images.npy"))["embedding"])
np.save("of_bytes.npy", signatures["encoded"](bytes=np.load("encoded.npy"))["embedding"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scales", "image_size", "whitened"), [((1.0, 0.5), 0, True), ((0.5,), 0, False), ((1.0,), 16, False)]
)
def test_what_is_exported_is_what_is_measured(any_size_run, index, tmp_path, scales, image_size, whitened):
    """Alone, in a process without tfrank; and measured again, at one scale."""
    model = open_model(any_size_config(*scales, image_size=image_size), any_size_run, None)
    measured, learnt = model.embed(index, str(tmp_path / "run")), None
    if whitened:
        # Learnt on these few images it would blow up their rounding.
        learnt = whitening.learn_whitening(reference.unit(RNG.normal(1, 1, [30, 5])), power=0.5, dims=3)
        measured = whitening.whiten(measured, learnt)
    exported = model.export(str(tmp_path / "model"), learnt)
    with RecordReader(index) as reader:
        records = reader.read(np.arange(len(index)))
    features = [tf.train.Example.FromString(record).features.feature for record in records]
    encoded = [one["image/encoded"].bytes_list.value[0] for one in features]
    np.save(tmp_path / "encoded.npy", encoded)
    loader = build_test_loader(model.config.data, model.config.evaluation)
    np.save(tmp_path / "images.npy", np.float32([loader.serve(one) for one in encoded]))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", USER], cwd=tmp_path, env=environment, check=True)
    for name in ("of_images", "of_bytes"):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), measured, atol=1e-5)
    # Its encoded signature has the dim of its embeddings, as servers want to know it.
    signature = tf.saved_model.load(exported).signatures["encoded"]
    assert signature.structured_outputs["embedding"].shape.as_list() == [None, measured.shape[1]]
    again = open_model(any_size_config(1.0, image_size=image_size), "", exported)
    again = again.embed(index, str(tmp_path / "again"))
    np.testing.assert_allclose(again, measured, atol=1e-5)


def test_a_model_of_one_size_is_not_exported_at_other_scales(run, tmp_path):
    folder, config, _ = run
    model = open_model(config, str(folder), None).model
    with pytest.raises(
        InputError, match=r"of images of \(8, 8\) pixels cannot be exported at scales \(1, 0.5\)"
    ):
        export_model(config.data, config.evaluation, model, str(tmp_path / "model"), scales=[1, 0.5])
    assert not os.listdir(tmp_path)
    export_model(config.data, config.evaluation, model, str(tmp_path / "model"), scales=[1])


def test_a_saved_model_of_images_of_another_size_is_refused(run):
    folder, _, _ = run
    load_saved_model(f"{folder}/saved_model", (8, 8, 3))
    with pytest.raises(InputError, match="its images are of shape 8 x 8 x 3, not 16 x 16 x 3"):
        load_saved_model(f"{folder}/saved_model", (16, 16, 3))
    with pytest.raises(InputError, match="its images are of shape 8 x 8 x 3, not any x any x 3"):
        load_saved_model(f"{folder}/saved_model", ANY_SIZE)


@pytest.mark.parametrize(
    ("field", "value", "nothing"), [("whitening", 0.25, "0.0"), ("scales", (1.0, 0.5), "1.0")]
)
def test_what_an_exported_model_does_itself_is_not_done_twice(tmp_path, field, value, nothing):
    config = small_config()
    setattr(config.evaluation, field, value)
    contents = {"whitening": 0.0, "scales": [1.0]} | {field: list(value) if field == "scales" else value}
    (tmp_path / "tfrank.json").write_text(json.dumps(contents))
    with pytest.raises(InputError, match=f"done twice. Set config.evaluation.{field} to {nothing}"):
        trained.check_contents(str(tmp_path), config.evaluation)
    trained.check_contents(str(tmp_path), small_config().evaluation)
    (tmp_path / "tfrank.json").write_text("{")
    with pytest.raises(InputError, match=r"tfrank\.json is damaged"):
        trained.check_contents(str(tmp_path), config.evaluation)
    (tmp_path / "tfrank.json").unlink()
    trained.check_contents(str(tmp_path), config.evaluation)


def saved_module(folder, function):
    module = tf.Module()
    spec = tf.TensorSpec([None, 8, 8, 3], tf.float32, name="images")
    module.serve = tf.function(function, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})


def other_input(pixels):
    return {"embedding": tf.reshape(pixels, [-1, 192])}


def other_output(images):
    return {"logits": tf.reshape(images, [-1, 192])}


def test_what_is_no_saved_model_of_an_embedding_model_is_refused(tmp_path):
    os.makedirs(tmp_path / "empty")
    saved_module(tmp_path / "output", other_output)
    spec = tf.TensorSpec([None, 8, 8, 3], tf.float32, name="pixels")
    module = tf.Module()
    module.serve = tf.function(other_input, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path / "input"), signatures={"serving_default": module.serve})
    tf.saved_model.save(module, str(tmp_path / "signature"), signatures={"other": module.serve})
    for name in ("nothing", "empty", "output", "input", "signature"):
        with pytest.raises(InputError, match=f"{name} is not a SavedModel of an embedding model"):
            load_saved_model(str(tmp_path / name), ANY_SIZE)


def test_a_saved_model_that_writes_a_file_is_loaded_only_if_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(images):
        tf.io.write_file("mark", "it ran")
        return {"embedding": tf.reshape(images, [-1, 192])}

    saved_module("model", write)
    with pytest.raises(InputError, match=r"^model holds .*WriteFile \(may write files\).*--trust_model"):
        load_saved_model("model", (8, 8, 3))
    assert not os.path.exists("mark")
    load_saved_model("model", (8, 8, 3), trusted=True)(tf.ones([1, 8, 8, 3]))
    assert os.path.exists("mark")


def test_a_run_that_is_not_there_is_said(tmp_path):
    with pytest.raises(InputError, match="There is no run in"):
        trained.open_model(small_config(), str(tmp_path), None)
