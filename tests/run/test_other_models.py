"""Another model beside that of a run: its embeddings are stored, delivered with batches, and searched."""

import dataclasses
import json
import logging
import os
import shutil
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.data import image_records, names_in, write_records
from tests.run.test_trained import TRAIN_IMAGES, small_config
from tests.training.runs import finish, saved_step, start, state_hashes
from tfrank.common.checks import InputError
from tfrank.configs import default
from tfrank.data.index import select
from tfrank.run import datasets, experiment, frozen_backbone
from tfrank.run.embedding import embed_all, embed_fn
from tfrank.run.evaluation_results import evaluate_embeddings
from tfrank.run.evaluation_results import test_set_of as set_of
from tfrank.run.objective import check_others
from tfrank.run.other_models import (
    check_dims,
    measure_others,
    on_compatibility,
    open_others,
    open_those_left,
    stored_embeddings,
    with_others,
)
from tfrank.run.start import load_start, turn_head
from tfrank.run.trained import open_model
from tfrank.run.workdir import check_config_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one saved step, with its SavedModel."""
    folder, config = tmp_path_factory.mktemp("teacher"), small_config()
    check_config_of(str(folder), config)
    training = experiment.build_training(config, str(folder), tf.distribute.get_strategy(), 1, TRAIN_IMAGES)
    training.checkpoints.save(1)
    open_model(config, str(folder), None).export(str(folder / "saved_model"), None)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Eleven records."""
    return write_records(image_records(), str(tmp_path_factory.mktemp("records")), "test")


@pytest.fixture(scope="module")
def rows(run, index, tmp_path_factory):
    """Their embeddings by the run."""
    return open_model(small_config(), str(run), None).embed(index, str(tmp_path_factory.mktemp("rows")))


def config_of(teacher, image_size=16, **train):
    """The config of a student, which sees larger images."""
    config = small_config()
    config.data.image_size = image_size
    config.train.update(teacher=str(teacher), **train)
    return config


def npz(path, index, rows, **changes):
    arrays = {"embeddings": rows, "labels": index.label, "ids": index.id} | changes
    np.savez(path, **arrays)
    return path


def folder_in(folder, name):
    (folder / name).mkdir()
    return str(folder / name)


def test_a_run_a_saved_model_and_embeddings_in_any_order_give_the_same(run, index, rows, tmp_path):
    backwards = select(index, np.arange(len(index))[::-1])
    for path in (run, run / "saved_model", npz(tmp_path / "e.npz", backwards, 3 * rows[::-1])):
        others = open_others(config_of(path))
        assert list(others) == ["teacher"] and others["teacher"].dim == 5
        stored = stored_embeddings(others, index, folder_in(tmp_path, f"of {path.name}"))
        np.testing.assert_allclose(stored["teacher"], rows, atol=1e-5)
    assert open_others(config_of("")) == {}


def test_embeddings_are_computed_once_and_a_run_keeps_its_teacher(run, index, tmp_path, caplog):
    others, workdir = open_others(config_of(run)), folder_in(tmp_path, "run")
    stored_embeddings(others, index, workdir)
    with caplog.at_level(logging.INFO):
        stored_embeddings(others, index, workdir)
    assert "11 of 11 embeddings are there already" in caplog.text
    another = {"teacher": others["teacher"]._replace(fingerprint="another")}
    stored_embeddings(another, index, workdir)  # Nothing has been trained with the first one.
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "checkpoints" / "ckpt-3.index").touch()
    with pytest.raises(InputError, match=r"The other models \(teacher\) of the run in .* changed since"):
        stored_embeddings(others, index, workdir)
    with pytest.raises(InputError, match=r"The other models \(none now\) of the run"):
        stored_embeddings({}, index, workdir)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"ids": np.arange(11)}, r"=.* has no embedding of 11 of 11 images; the first is 'image-0-ß'\. Let"),
        ({"labels": np.arange(11)}, r"=.* has other classes for \d+ of 11 images: 'image-.*' is of class"),
        ({"embeddings": np.ones([11, 3, 2])}, r"e\.npz cannot be measured: embeddings are float64 of shape"),
    ],
)
def test_embeddings_of_other_images_or_classes_are_refused(index, rows, tmp_path, changes, message):
    path = npz(tmp_path / "e.npz", index, rows, **changes)
    with pytest.raises(InputError, match=message):
        stored_embeddings(open_others(config_of(path)), index, str(tmp_path))


def test_embeddings_of_the_records_serve_whatever_labels_are_trained_on(index, rows, tmp_path):
    config = config_of(npz(tmp_path / "e.npz", index, rows))
    trained_on = dataclasses.replace(index, label=index.label[::-1].copy())
    data, _ = with_others(config, datasets.Data(trained_on, None, index, None, index.label), str(tmp_path))
    np.testing.assert_allclose(data.stored["teacher"], rows, atol=1e-6)
    unlabelled = dataclasses.replace(index, label=np.full(len(index), -1))
    stored_embeddings(open_others(config), unlabelled, str(tmp_path))


def test_the_same_rows_with_other_ids_are_another_teacher(index, rows, tmp_path):
    paths = [npz(tmp_path / "e.npz", index, rows), npz(tmp_path / "f.npz", index, rows, ids=index.id[::-1])]
    assert len({open_others(config_of(path))["teacher"].fingerprint for path in paths}) == 2


def test_a_model_that_took_the_place_of_the_teacher_is_not_measured(index, rows, tmp_path, capsys):
    workdir, path = folder_in(tmp_path, "run"), npz(tmp_path / "e.npz", index, rows)
    config = config_of(path)
    check_config_of(workdir, config)
    stored_embeddings(open_others(config), index, workdir)
    assert list(open_those_left(config, workdir)) == ["teacher"] and not capsys.readouterr().out
    npz(path, index, -rows)
    assert open_those_left(config, workdir) == {}
    assert "is another model now than the one that the run learnt from." in capsys.readouterr().out
    moved = config_of(npz(tmp_path / "f.npz", index, rows))  # Somebody names it on purpose.
    assert list(open_those_left(moved, workdir)) == ["teacher"]


def test_a_teacher_that_is_missing_or_of_vectors_is_refused_and_said_by_evaluation(run, tmp_path, capsys):
    with pytest.raises(InputError, match=r"^config\.train\.teacher is neither a run nor .*gone\. Give"):
        open_others(config_of(tmp_path / "gone"))
    assert open_those_left(config_of(tmp_path / "gone")) == {}
    assert "The teacher is not measured. config.train.teacher is neither a run" in capsys.readouterr().out
    vectors = config_of(run)
    vectors.data.update(name="embeddings", dim=3)
    with pytest.raises(InputError, match=r"^config\.train\.teacher takes images, and this run has vectors:"):
        open_others(vectors)


def test_dimensions_have_to_agree_unless_only_distances_are_learnt(run):
    config = config_of(run)
    config.model.embedding_dim = 4
    others = open_others(config)
    with pytest.raises(InputError, match=r"teacher have 5 dimensions, and those of this model 4\. Set"):
        check_dims(config, others)
    config.train.update(teacher_weight=0.0, relational_weight=1.0)
    check_dims(config, others)


@pytest.mark.parametrize(
    "loss, train, model, message",
    [
        ("pnp", {"regression_weight": 1.0}, {}, "are of a teacher. Name one"),
        ("pnp", {"loss_weight": 0.0}, {}, "loss_weight=0 learns from a teacher alone. Name one"),
        ("pnp", {"teacher": "t", "teacher_weight": 0.0}, {}, "its three weights are 0"),
        ("pnp", {"teacher": "t"}, {"backbone": "bn_inception", "levels": "LM"}, "Several levels have an emb"),
        ("arc_face", {"teacher": "t"}, {}, "Loss 'arc_face' cannot rank the gallery of a teacher"),
        ("arc_face", {"compatible_with": "o"}, {}, "Loss 'arc_face' cannot rank the gallery of an older"),
        ("pnp", {"compatible_with": "o"}, {"backbone": "bn_inception", "levels": "LM"}, "an older model has"),
    ],
)
def test_settings_that_go_with_no_teacher_are_refused(loss, train, model, message):
    config = default.get_config(loss)
    config.train.update(train)
    config.model.update(model)
    with pytest.raises(InputError, match=message):
        check_others(config)


def test_batches_deliver_the_rows_of_their_images(index):
    config = config_of("", image_size=8)
    config.data.update(classes_per_batch=2, examples_per_class=2)
    numbers = np.arange(len(index), dtype=np.float32)
    stored = {"teacher": np.stack([numbers, index.label], axis=1)}
    sampler = datasets.build_sampler(config.data, index, seed=3)
    batches, _ = datasets.build_batches(config.data, index, 4, seed=3, stored=stored)
    features = np.arange(len(index), dtype=np.float32)[None, :, None]
    of_features = frozen_backbone.feature_batches(
        config.data, features, index, 4, seed=3, shape=(1,), stored=stored
    )
    for batch, other in zip(batches(1).as_numpy_iterator(), of_features(1).as_numpy_iterator()):
        np.testing.assert_array_equal(batch["teacher"][:, 1], batch["label"])
        np.testing.assert_array_equal(other["teacher"], batch["teacher"])
        np.testing.assert_array_equal(other["teacher"][:, :1], other["image"])
    np.testing.assert_array_equal(batch["teacher"][:, 0], sampler.batch(3))


def test_queries_are_measured_against_the_gallery_of_the_teacher(run, index, rows, tmp_path):
    config, test = config_of(run), set_of(index, None)
    queries = reference.unit(np.random.default_rng(0).normal(size=rows.shape)).astype(np.float32)
    found = measure_others(config, open_others(config), queries, index, test, str(tmp_path))
    labels, own = index.label, range(len(index))
    for name, similarity in zip(found, (rows @ rows.T, queries @ rows.T)):
        recall = reference.recall_at_k(similarity, labels, labels, own, 1)
        precision = np.nanmean(reference.average_precision(similarity, labels, labels, own))
        metrics = found[name].main.metrics
        np.testing.assert_allclose([metrics["recall_at_1"], metrics["map"]], [recall, precision], rtol=1e-5)
    assert list(found) == ["teacher", "queries against the teacher's gallery"]
    assert names_in(tmp_path / "teacher") == ["embeddings.npy", "ids.npy", "labels.npy", "pass.json"]
    narrow = measure_others(config, open_others(config), queries[:, :4], index, test, str(tmp_path))
    assert list(narrow) == ["teacher"]


def test_embeddings_without_the_test_images_are_not_measured(index, rows, tmp_path, capsys):
    half = select(index, np.arange(5))
    config = config_of(npz(tmp_path / "e.npz", half, rows[:5]))
    assert measure_others(config, open_others(config), rows, index, set_of(index, None), str(tmp_path)) == {}
    assert "The teacher is not measured. config.train.teacher=" in capsys.readouterr().out


def test_an_older_model_of_other_dimensions_or_an_index_is_refused(run, tmp_path):
    config = config_of("", compatible_with=str(run))
    config.model.embedding_dim = 4
    with pytest.raises(
        InputError, match=r"compatible_with have 5 dimensions, and those of this model 4\. Set"
    ):
        check_dims(config, open_others(config))
    (tmp_path / "CURRENT").write_text("1")
    with pytest.raises(
        InputError, match=r"^config\.train\.compatible_with is an index: .*Give the run of its model\.$"
    ):
        open_others(config_of("", compatible_with=str(tmp_path)))


def test_a_head_is_turned_to_an_older_model_and_no_angle_changes(index):
    config = small_config()
    model = experiment.build_model(config)
    before = embed_all(config.data, config.evaluation, embed_fn(model), index)[0]
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=[before.shape[1]] * 2))[0]
    turn_head(config, model, index, before @ turn)
    after = embed_all(config.data, config.evaluation, embed_fn(model), index)[0]
    np.testing.assert_allclose(after, before @ turn, atol=1e-4)
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-5)


@pytest.mark.parametrize("head", ["whitened", "pca", "random"])
def test_a_computed_head_begins_near_the_teacher_where_its_embeddings_are_learnt(index, tmp_path, head):
    config = config_of("teacher", teacher_weight=0.0)
    config.model.update(head=head, embedding_dim=3)
    # As far from each other as random ones, and a map of what the network sees.
    colours = index.label[:, None] == np.arange(3)
    teacher = (colours + 0.1).astype(np.float32)
    teacher /= np.linalg.norm(teacher, axis=1, keepdims=True)
    cosines = []
    for config.train.regression_weight in (1.0, 0.0):
        model = experiment.build_model(config)
        load_start(config, model, index, str(tmp_path), {"teacher": teacher})
        rows = embed_all(config.data, config.evaluation, embed_fn(model), index)[0]
        cosines.append(np.mean(np.sum(rows * teacher, axis=1)))
    assert (cosines[0] > 0.9 and cosines[0] > cosines[1] + 0.1) == (head != "random")


def test_a_report_says_whether_an_upgrade_is_compatible(run, index, rows, tmp_path):
    config, test = config_of("", compatible_with=str(run)), set_of(index, None)
    # Of the same class, all are equal; of the model that is new, none is near its class.
    _, place = np.unique(index.label, return_inverse=True)
    old = np.eye(5, dtype=np.float32)[place % 5]
    new = np.eye(5, dtype=np.float32)[(place + 1) % 5]
    others = {"compatible_with": open_others(config)["compatible_with"]._replace(embed=lambda *_: old)}
    results = evaluate_embeddings(config.evaluation, rows, test)
    for queries, warned in ((old, False), (new, True)):
        measured = measure_others(config, others, queries, index, test, str(tmp_path))
        assert list(measured) == ["old model", "queries against the old model's gallery"]
        facts, warnings = on_compatibility(measured, results)
        (said,) = facts.values()
        assert said.startswith("Recall@1: old in old ") and "new in old" in said and "mAP: old" in said
        assert bool(warnings) == warned
    assert warnings[0].startswith("The upgrade is not compatible. New queries find less in old embeddings")
    assert on_compatibility({}, results) == ({}, [])


@pytest.mark.slow
def test_a_killed_student_ends_with_the_same_bits_and_its_report_has_the_teacher(tmp_path):
    def flags(teacher):
        weights = ["memory_size=40", "memory_warm_up=1", "regression_weight=1", "relational_weight=1"]
        return [f"--config.train.{flag}" for flag in ("steps=20", f"teacher={teacher}", *weights)]

    def end(folder, *given):
        status, _, errors = finish(tmp_path / folder, *given)
        assert status == 0, errors
        return state_hashes(tmp_path / folder)

    end("teacher", "--config.train.steps=2")
    at_once = end("at once", *flags(tmp_path / "teacher"))
    process = start(tmp_path / "killed", *flags(tmp_path / "teacher"))
    while not saved_step(tmp_path / "killed"):
        assert process.poll() is None, process.written()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    assert saved_step(tmp_path / "killed") < 20
    moved = shutil.move(tmp_path / "teacher", tmp_path / "moved")
    assert end("killed", *flags(moved)) == at_once
    with open(tmp_path / "killed" / "metrics.json") as file:
        assert {"teacher", "queries against the teacher's gallery", "trained"} <= set(json.load(file))
