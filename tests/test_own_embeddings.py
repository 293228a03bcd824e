"""Own embeddings, as a user trains on them: from a file to a head, its report and a joined model."""

import csv
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.command_lines import HANGS, CommandLine
from tests.search import write_model
from tests.training.runs import state_hashes
from tfrank.common.checks import InputError
from tfrank.configs import own_embeddings
from tfrank.export import formats, joined
from tfrank.run import experiment, settings

CONFIG = "--config=configs/own_embeddings.py"
SMALL = ("--config.train.steps=12", "--config.train.evaluate_every=4", "--config.train.checkpoint_every=3")
DIM = 16


def features(path):
    """24 classes around means in four dimensions, and noise in all."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 8)
    means = np.concatenate([3 * rng.normal(size=(24, 4)), np.zeros([24, DIM - 4])], axis=1)
    rows = means[labels] + rng.normal(size=(len(labels), DIM)) * np.linspace(0.5, 3, DIM)
    np.savez(path, embeddings=rows.astype(np.float32), labels=np.char.add("kind ", labels.astype(str)))
    return path


def start(workdir, path, main="train_main.py"):
    flags = (CONFIG, f"--config.data.source={path}", f"--workdir={workdir}", *SMALL)
    return CommandLine(main, *flags)


def finish(*arguments, **options):
    process = start(*arguments, **options)
    output, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 0, errors
    return output


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embeddings")
    path = features(folder / "features.npz")
    return folder / "run", path, finish(folder / "run", path)


@pytest.mark.slow
def test_the_vectors_the_start_and_the_trained_head_are_compared(run):
    folder, path, output = run
    for name in ("vectors", "start", "trained"):
        assert f"\n{name} " in output
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["vectors"]["map"] == pytest.approx(metrics["start"]["map"], abs=1e-3), "a whole PCA"
    page = (folder / "evaluation" / "test" / "report.html").read_text()
    assert "kind " in page and "<img" not in page
    finish(folder, path, main="eval_main.py")
    after = json.loads((folder / "evaluation" / "test" / "metrics.json").read_text())
    assert {*metrics} == {*next(iter(after["models"].values()))["recall_at_1"]}, "the baselines are kept"


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(run, tmp_path):
    folder, path, _ = run
    process = start(tmp_path / "run", path)
    log = tmp_path / "run" / "training.csv"
    while process.poll() is None:
        if log.exists() and len(list(csv.reader(log.open()))) > 2:
            process.kill()
    process.communicate()
    finish(tmp_path / "run", path)
    assert state_hashes(tmp_path / "run") == state_hashes(folder)


@pytest.mark.slow
def test_head_and_network_are_exported_as_one_model_that_embeds_as_both(run, tmp_path):
    folder, _, _ = run
    network = str(write_model(tmp_path / "network", dim=DIM))
    both = tf.saved_model.load(joined.join(network, str(folder / "saved_model"), str(tmp_path / "both")))
    first, head = (tf.saved_model.load(path) for path in (network, str(folder / "saved_model")))
    images = tf.random.uniform([5, 16, 16, 3], maxval=255)
    vectors = first.signatures["serving_default"](images=images)["embedding"]
    wanted = head.signatures["serving_default"](vectors=vectors)["embedding"]
    found = both.signatures["serving_default"](images=images)["embedding"]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    png = tf.io.encode_png(tf.cast(images[0], tf.uint8))
    assert both.signatures["encoded"](bytes=png[None])["embedding"].shape == found[:1].shape
    assert json.loads((tmp_path / "both" / "tfrank.json").read_text())["matches"]["curve"]["classes"] >= 2
    with pytest.raises(InputError, match=rf"takes vectors of {DIM} dimensions, and .* gives 8"):
        joined.join(
            str(write_model(tmp_path / "other", dim=8)), str(folder / "saved_model"), str(tmp_path / "x")
        )
    assert formats.write(str(folder / "saved_model"), str(tmp_path), "tflite").cosine > 0.9999
    with pytest.raises(InputError, match="takes vectors and no images"):
        formats.image_size(str(folder / "saved_model"))


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("data.name", "folder", "go together: images have another backbone"),
        ("model.backbone", "convnet", "go together: images have another backbone"),
        ("evaluation.scales", (1.0, 0.5), "Vectors have neither size nor scales"),
        ("evaluation.image_size", 64, "Vectors have neither size nor scales"),
        ("model.hidden", (0,), "config.model.hidden"),
        ("model.head", "none", "There is nothing to train"),
        ("data.dim", 0, "config.data.dim"),
        ("train.frozen_backbone", True, "pretrained weights"),
    ],
)
def test_what_only_images_have_is_refused(field, value, message):
    config = own_embeddings.get_config()
    config.assign({field: value})
    with pytest.raises(InputError, match=message):
        experiment.check_config(settings.resolved(config))


def test_hidden_layers_are_for_vectors_alone():
    config = own_embeddings.get_config()
    config.assign({"model.backbone": "convnet", "data.name": "folder", "model.hidden": (8,)})
    with pytest.raises(InputError, match=r"config\.model\.hidden"):
        experiment.check_config(settings.resolved(config))
