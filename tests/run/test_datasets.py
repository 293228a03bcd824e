"""From a config to data: each way in which records are found, relabelled and drawn."""

import contextlib
import dataclasses
import importlib
import os
import pathlib
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.command_lines import run
from tests.data.prepare import picture, write_images
from tfrank.common.checks import InputError
from tfrank.configs import default, digits, letters
from tfrank.configs.sections.data import SAMPLERS
from tfrank.data.prepare.builder import prepare
from tfrank.data.records import RecordReader
from tfrank.data.sources import SOURCES
from tfrank.data.sources.csv_manifest import read_csv
from tfrank.data.sources.image import Source
from tfrank.run import datasets, evaluation_results, settings
from tfrank.run.embedding import embed_all


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Twelve classes of five images, the first one of six."""
    return write_images(tmp_path_factory.mktemp("datasets") / "images", classes=12)


@pytest.fixture(scope="module")
def records(images, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("records"))
    prepare("folder", str(images), folder)
    return folder


@pytest.fixture
def config():
    config = default.get_config()
    config.data.update(name="folder", image_size=4, classes_per_batch=2, examples_per_class=2)
    return config


def build(config, tmp_path):
    settings.check_fields(config)
    return datasets.build_data(config.data, str(tmp_path / "run"), seed=config.seed)


def test_records_prepared_before_are_used_where_they_are(config, records, tmp_path):
    config.data.records = records
    data = build(config, tmp_path)
    assert (data.train.num_classes, data.test.num_classes, data.validation) == (6, 6, None)
    assert all(shard.startswith(records) for shard in data.train.shards)


def test_a_source_is_prepared_into_the_workdir(config, images, records, tmp_path):
    config.data.source = str(images)
    data = build(config, tmp_path)
    assert all(shard.startswith(str(tmp_path)) for shard in data.train.shards)
    config.data.records = records
    assert (
        datasets.build_data(config.data, str(tmp_path / "other"), seed=config.seed).train.fingerprint()
        == data.train.fingerprint()
    )


def test_records_in_the_workdir_of_another_source_are_not_used(config, images, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        shutil.copytree(images, folder)
    config.data.source = str(first)
    data = build(config, tmp_path)
    config.data.source = str(second)
    with pytest.raises(InputError, match=r"has records of .*first, and .*second is another source"):
        build(config, tmp_path)
    # A source that is at another place now is the same one.
    shutil.rmtree(first)
    assert build(config, tmp_path).train.fingerprint() == data.train.fingerprint()


def test_embeddings_that_changed_since_are_not_those_of_the_records(config, tmp_path):
    config.data.name, config.model.backbone = "embeddings", "vectors"
    config.data.source = str(tmp_path / "features.npz")
    np.savez(config.data.source, embeddings=np.ones([24, 3]), labels=np.arange(24) // 4)
    build(config, tmp_path)
    build(config, tmp_path)
    np.savez(config.data.source, embeddings=np.zeros([24, 3]), labels=np.arange(24) // 4)
    later = time.time() + 10
    os.utime(config.data.source, (later, later))
    with pytest.raises(InputError, match=r"features\.npz is another source or has changed since"):
        build(config, tmp_path)


def test_a_corrected_table_is_not_read_as_it_was_and_one_that_is_written_anew_is(config, images, tmp_path):
    table = tmp_path / "photos.csv"
    config.data.name, config.data.source = "csv", str(table)
    paths = sorted(images.glob("*/*"))
    text = "\n".join(["path,label", *(f"{path},{path.parent.name}" for path in paths)])

    def write_later(text):
        table.write_text(text)
        os.utime(table, (time.time() + 10,) * 2)

    table.write_text(text)
    build(config, tmp_path)
    write_later(text)
    build(config, tmp_path)
    first = paths[0].parent.name
    write_later(text.replace(f",{first}\n", f",{paths[-1].parent.name}\n"))
    with pytest.raises(InputError, match=r"photos\.csv is another source or has changed since"):
        build(config, tmp_path)


@pytest.mark.parametrize(
    ("train", "test", "warnings"),
    [(("train",), ("val",), 1), (("train", "val"), ("test",), 1), (("train",), ("test",), 0)],
)
def test_classes_of_the_splits_that_a_run_uses_are_compared(config, tmp_path, capsys, train, test, warnings):
    labels = np.concatenate([np.arange(24) % 6, 3 + np.arange(24) % 6, 6 + np.arange(24) % 6])
    split = np.repeat(["train", "val", "test"], 24)
    config.data.update(name="embeddings", source=str(tmp_path / "features.npz"), train=train, test=test)
    config.model.backbone = "vectors"
    rows = np.random.default_rng(0).normal(size=[72, 3])
    np.savez(config.data.source, embeddings=rows, labels=labels, split=split)
    build(config, tmp_path)
    assert capsys.readouterr().out.count("Warning: 3 labels are both in train and in test.") == warnings


def test_neither_source_nor_records_is_said(config, tmp_path):
    with pytest.raises(
        InputError,
        match=r"names no images of 'folder'.*--config\.data\.source=PATH.*--config\.data\.rec",
    ):
        build(config, tmp_path)


def test_another_data_set_may_be_tested_on(config, images, records, tmp_path):
    prepare("folder", str(images), str(tmp_path / "more"), options={"test_share": 0.9})
    config.data.update(records=records, test_records=str(tmp_path / "more"))
    assert build(config, tmp_path).test.num_classes == 11


def test_several_splits_are_tested_on_side_by_side(config, records, tmp_path):
    config.data.update(records=records, test=("test", "train"), test_records=records)
    assert len(build(config, tmp_path).test) == 61


@pytest.mark.parametrize("use", ["region", "test_region"])
def test_cropping_to_boxes_that_are_not_there_is_refused_with_their_number(config, records, tmp_path, use):
    config.data.update({"records": records, use: "box"})
    message = rf"config\.data\.{use} is box, and 30 of 30 images to test on have no box"
    with pytest.raises(InputError, match=message):
        build(config, tmp_path)


def boxed(tmp_path, role, missing):
    """Records with boxes, but for those of these places; of the test, the second half are queries."""
    rows = []
    for number in range(16):
        (tmp_path / f"{number}.png").write_bytes(picture(number))
        test = number >= 8
        box = ",,," if number in missing else "1,1,4,4"
        part = "gallery" if number % 2 else "query"
        rows.append(
            f"{number}.png,{number // 2},{'test' if test else 'train'},{part * (role and test)},{box}"
        )
    manifest = tmp_path / "list.csv"
    manifest.write_text("\n".join(["path,label,split,role,x,y,w,h", *rows]))
    folder = str(tmp_path / "boxed")
    prepare("csv", str(manifest), folder)
    return folder


@pytest.mark.parametrize(
    "role, missing, refused",
    [
        (False, [], None),
        (False, [9], "1 of 8 images to test on"),
        (False, [0, 1], "2 of 8 images to train on"),
        (True, [9, 11], None),
        (True, [8], "1 of 4 images to test on"),
    ],
    ids=[
        "all",
        "one to test on lacks it",
        "two to train on",
        "whole images as a gallery",
        "a query has none",
    ],
)
def test_boxes_are_asked_for_of_every_image_but_those_of_a_gallery(config, tmp_path, role, missing, refused):
    config.data.update(name="csv", records=boxed(tmp_path, role, missing), region="box")
    if refused:
        with pytest.raises(InputError, match=refused):
            build(config, tmp_path)
    else:
        assert len(build(config, tmp_path).test) == 8


def without_class(label, config, tmp_path, monkeypatch):
    """Two training images of each of the classes 0 to 3 and two to test of 8; one class is taken away."""
    manifest = tmp_path / "list.csv"
    for number in range(10):
        (tmp_path / f"{number}.png").write_bytes(picture(number))
    lines = [f"{n}.png,{n // 2},train" for n in range(8)]
    manifest.write_text("\n".join(["path,label,split", *lines, "8.png,8,test", "9.png,8,test"]))

    def read(folder):
        for image in read_csv(folder):
            yield dataclasses.replace(image, label=-1 if image.label == label else image.label)

    monkeypatch.setitem(SOURCES, "csv", Source(read, own=True))
    config.data.update(name="csv", source=str(manifest))


def test_records_without_classes_are_refused(config, tmp_path, monkeypatch):
    without_class(8, config, tmp_path, monkeypatch)
    with pytest.raises(InputError, match="The test records have no classes"):
        build(config, tmp_path)


def test_training_images_without_a_class_serve_where_there_is_a_teacher(config, tmp_path, monkeypatch):
    without_class(1, config, tmp_path, monkeypatch)
    with pytest.raises(InputError, match=r"^2 of 8 training records have no class"):
        build(config, tmp_path)
    config.data.validation_classes = 2
    data = datasets.build_data(config.data, str(tmp_path / "run"), seed=0, unlabelled=True)
    assert data.validation.num_classes == 2 and -1 not in data.validation.label
    assert sorted(data.train.label)[:2] == [-3, -2] and len(set(data.train.label)) == 3
    assert sorted(data.said)[:2] == [-1, -1]
    # False labels are those of classes, not of images without one.
    config.data.update(validation_classes=0, label_noise=1.0)
    noisy = datasets.build_data(config.data, str(tmp_path / "noisy"), seed=0, unlabelled=True)
    assert (noisy.train.label < 0).tolist() == (noisy.said < 0).tolist() and -1 not in noisy.train.label
    assert not (noisy.train.label == noisy.said).any()
    below = dataclasses.replace(noisy.train, label=np.full(len(noisy.train), -5))
    monkeypatch.setattr(datasets, "build_train_set", lambda *_: below)
    with pytest.raises(InputError, match=r"^A training image has label -5\. Where there is a teacher,"):
        datasets.build_data(config.data, str(tmp_path / "below"), seed=0, unlabelled=True)


def test_merged_and_noisy_labels_are_trained_on_and_the_validation_part_keeps_its_own(
    config, records, tmp_path
):
    config.data.update(records=records, validation_classes=2, merge_classes=2, label_noise=0.2)
    plain, data = build(config, tmp_path), build(config, tmp_path)
    assert data.validation.num_classes == 2 and data.train.num_classes == 2
    assert set(data.validation.label).isdisjoint(RecordReader(plain.train).index.id)
    config.data.update(merge_classes=1, label_noise=0.0)
    unchanged = build(config, tmp_path)
    np.testing.assert_array_equal(unchanged.validation.label, data.validation.label)
    assert unchanged.train.num_classes == 4 and unchanged.train.id.tolist() == data.train.id.tolist()
    assert not set(unchanged.train.label) & set(unchanged.validation.label)


@pytest.mark.parametrize(
    "name, train, test", [("own_images_whole", "train", "test"), ("own_records", "train-*", "test-*")]
)
def test_a_handful_of_own_images_can_be_measured_and_an_impossible_k_is_refused(name, train, test, tmp_path):
    source = write_images(tmp_path / "images", classes=4)
    prepare("folder", str(source), str(tmp_path / "records"))
    config = settings.resolved(importlib.import_module(f"tfrank.configs.{name}").get_config())
    config.data.update(records=str(tmp_path / "records"), train=(train,), test=(test,))
    data = build(config, tmp_path)
    test_set = evaluation_results.test_set_of(data.test, data.relevance)
    evaluation_results.check_evaluation(config.evaluation, test_set)
    others = len(data.test) - 1
    assert others in (9, 10)
    config.evaluation.recall_at = (1, others)
    evaluation_results.check_evaluation(config.evaluation, test_set)
    config.evaluation.recall_at = (1, others + 1)
    with pytest.raises(InputError, match=rf"K={others + 1} is too large: .* against {others} images"):
        evaluation_results.check_evaluation(config.evaluation, test_set)


@pytest.mark.parametrize("name", ["digits", "letters", "omniglot", "own_images_whole", "own_records"])
def test_configs_of_data_of_any_size_ask_for_no_k_of_their_own(name):
    assert importlib.import_module(f"tfrank.configs.{name}").get_config().evaluation.recall_at == ()


def test_records_in_the_workdir_that_are_divided_in_another_way_are_not_measured(tmp_path):
    config = digits.get_config()
    config.data.update(train=(0,), test=(8, 9))
    build(config, tmp_path)
    config.data.test = (7,)
    with pytest.raises(
        InputError, match=r"has records of digits with \{'train': \[0\], 'test': \[8, 9\]\}, not"
    ):
        datasets.build_test_set(config.data, str(tmp_path / "run"))
    config.data.update(name="cub", test=("test",))
    with pytest.raises(InputError, match=r"has records of digits .*, not of cub"):
        datasets.build_test_set(config.data, str(tmp_path / "run"))


def test_named_records_that_are_divided_in_another_way_are_not_measured(tmp_path):
    config = digits.get_config()
    config.data.update(train=(0,), test=(8, 9))
    build(config, tmp_path)
    config.data.records = str(tmp_path / "run" / "records")
    assert len(datasets.build_test_set(config.data, str(tmp_path / "other"))[0])
    config.data.test = (7,)
    with pytest.raises(InputError, match="has records of digits with"):
        datasets.build_test_set(config.data, str(tmp_path / "other"))
    config.data.update(test=(8,), test_records=config.data.records)
    with pytest.raises(InputError, match="has no records of a split 8"):
        datasets.build_test_set(config.data, str(tmp_path / "other"))


def test_records_that_are_divided_as_the_config_says_may_have_been_drawn_by_another_seed(tmp_path):
    options = {"train": ["Greek"], "test": ["Georgian"], "seed": 1}
    prepare("letters", "", str(tmp_path / "records"), options=options, processes=1)
    config = letters.get_config()
    config.data.update(train=("Greek",), test=("Georgian",), records=str(tmp_path / "records"))
    assert build(config, tmp_path).test.num_classes == 33
    config.data.test = ("Armenian",)
    with pytest.raises(InputError, match=r"has records of letters with .*'seed': 1"):
        build(config, tmp_path)


@pytest.mark.parametrize("classes", [1, 2])
def test_a_validation_part_that_cannot_be_measured_is_refused_before_training(tmp_path, classes):
    """One class, or two classes of one image each."""
    for number in range(9):
        (tmp_path / f"{number}.png").write_bytes(picture(number))
    labels = [0, 0, 1, 1, 2, 2, 3, 3, 4] if classes == 1 else [0, 0, 1, 2, 3, 4, 5, 6, 6]
    lines = [f"{n}.png,{label},{'test' if n > 5 else 'train'}" for n, label in enumerate(labels)]
    (tmp_path / "x.csv").write_text("\n".join(["path,label,split", *lines]))
    config = settings.resolved(importlib.import_module("tfrank.configs.own_images_whole").get_config())
    config.data.update(name="csv", source=str(tmp_path / "x.csv"), validation_classes=classes)
    with pytest.raises(InputError, match=rf"The validation part has \d+ images? of {classes} class"):
        build(config, tmp_path)


@pytest.mark.parametrize(
    "test, test_records, name",
    [
        (("test",), "", "test"),
        ((8, 9), "", "test"),
        (("test_1600",), "", "test_1600"),
        (("a", "b"), "", "a_b"),
        (("test",), "records/roxford5k/", "roxford5k_test"),
        (("test-*",), "gs://bucket/my records", "myrecords_test-"),
        (("*",), "", "test"),
    ],
)
def test_a_test_set_has_a_name_for_a_path(config, test, test_records, name):
    config.data.update(test=test, test_records=test_records)
    assert datasets.test_name(config.data) == name


def test_the_seed_draws_the_classes_that_are_held_out(config, records, tmp_path):
    config.data.update(records=records, validation_classes=2)
    held_out = []
    for seed in range(6):
        data = datasets.build_data(config.data, str(tmp_path / f"{seed}"), seed=seed)
        held_out.append(tuple(np.unique(data.validation.label)))
    assert len(set(held_out)) > 1


def test_a_largest_shift_moves_the_images_of_a_batch(config, records, tmp_path):
    config.data.update(records=records, image_size=8)
    index = build(config, tmp_path).train
    plain = first_batch(config, index)
    config.data.max_shift = 3
    moved = first_batch(config, index)
    np.testing.assert_array_equal(plain["label"], moved["label"])
    assert not np.array_equal(plain["image"], moved["image"])


def first_batch(config, index):
    batches, _ = datasets.build_batches(config.data, index, stop=1, seed=config.seed)
    (batch,) = batches(0).as_numpy_iterator()
    return batch


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_sampler_of_the_config_is_built(config, records, tmp_path, sampler):
    config.data.update(records=records, sampler=sampler, classes_per_batch=4, examples_per_class=3)
    index = build(config, tmp_path).train
    if sampler == "category_pairs":
        classes = np.unique(index.label, return_inverse=True)[1]
        index = dataclasses.replace(index, category=classes % 2)
    batch = first_batch(config, index)
    classes = len(set(batch["label"]))
    assert len(batch["label"]) == 12
    assert classes == {"all_classes": 6, "uniform": classes}.get(sampler, 4)


@pytest.mark.parametrize(
    "sampler, named", [("class_balanced", True), ("uniform", False), ("all_classes", False)]
)
def test_short_classes_are_advised_and_taken_only_where_batches_are_drawn_by_class(sampler, named):
    config = default.get_config()
    config.data.update(sampler=sampler, short_classes="drop")
    assert ("short_classes" in settings.advice_without_pairs(config.data)) == named
    with contextlib.nullcontext() if named else pytest.raises(InputError, match="short_classes=drop is to"):
        settings.check_new(config)


def test_records_made_elsewhere_give_the_batches_of_prepared_ones(config, records, tmp_path):
    for name in os.listdir(records):
        if name.endswith(".tfrecord"):
            (tmp_path / name).write_bytes(pathlib.Path(records, name).read_bytes())
    config.data.records = records
    wanted = first_batch(config, build(config, tmp_path).train)
    config.data.update(name="tfrecords", records=str(tmp_path), train=("train-*",), test=("test-*",))
    got = first_batch(
        config, datasets.build_data(config.data, str(tmp_path / "foreign"), seed=config.seed).train
    )
    for name, values in wanted.items():
        np.testing.assert_array_equal(got[name], values)


def test_labels_in_both_parts_of_foreign_records_are_noted(config, records, tmp_path, capsys):
    config.data.update(
        name="tfrecords", records=records, train=("train-*",), test=("t*-00000-of-00004.tfrecord",)
    )
    datasets.build_data(config.data, str(tmp_path / "foreign"), seed=config.seed)
    assert "6 labels are both in train and in test" in capsys.readouterr().out


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_embedding_again_and_again_keeps_no_file_open(config, records, tmp_path):
    config.data.records = records
    index = build(config, tmp_path).test
    flat = lambda images: tf.reshape(images, [len(images), -1])  # noqa: E731
    embed_all(config.data, config.evaluation, flat, index)
    before = open_files()
    for _ in range(3):
        embed_all(config.data, config.evaluation, flat, index)
    assert open_files() <= before


@pytest.mark.slow
def test_train_main_has_no_flags_of_prepare():
    ended = run("train_main.py", "--max_skipped=0.5")
    assert ended.status == 1 and "There is no flag --max_skipped" in ended.errors
