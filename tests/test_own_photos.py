"""Own photos: what a config leaves open, the head that begins as a PCA, the fast road, and what is said."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.command_lines import run
from tfrank.common.checks import InputError
from tfrank.configs import default, own_images, own_images_whole
from tfrank.data.transforms import FITS
from tfrank.models.embedding import embedding_model, initialize_head_with_pca, split_at_head
from tfrank.models.vector_model import vector_model
from tfrank.run import datasets, settings
from tfrank.run.fit import choose_fit
from tfrank.run.verdict import best_sentence, losses_to_judge, warnings_of
from tfrank.training.trainer import Best


def labels_of(classes, images):
    return np.repeat(np.arange(classes), images)


@pytest.mark.parametrize(
    "weights, backbone, size, rate, share",
    [
        ("imagenet", "keras/MobileNetV2", 160, 3e-5, 0.5),
        ("net.pth", "mobilenet_v2", 160, 3e-5, 0.5),
        ("random", "convnet", 32, 1e-3, 0.0),
    ],
)
def test_what_is_left_open_follows_from_the_weights(weights, backbone, size, rate, share):
    config = own_images_whole.get_config()
    config.model.weights = weights
    found = settings.resolved(config)
    assert (found.model.backbone, found.data.image_size) == (backbone, size)
    assert (found.train.learning_rate, found.train.start_share) == (rate, share)
    assert found.data.resize == size
    fitted = settings.fitted(found, labels_of(16, 80))
    assert fitted.loss.warmup_steps == (400 if weights == "random" else 0)


@pytest.mark.parametrize("size, tested", [(224, 256), (320, 352), (36, 36)])
def test_the_size_in_tests_follows_the_size_in_training(size, tested):
    config = own_images.get_config()
    assert config.data.image_size == 224
    config.data.image_size = size
    assert settings.resolved(config).evaluation.image_size == tested
    config.evaluation.image_size = 288
    assert settings.resolved(config).evaluation.image_size == 288


@pytest.mark.parametrize(
    "name, value",
    [("model.backbone", "hub/vit_small"), ("model.pooling", "flatten"), ("evaluation.full_size", True)],
)
def test_a_network_of_one_size_and_images_of_their_own_size_are_not_enlarged_in_tests(name, value):
    config = own_images.get_config()
    section, field = name.split(".")
    setattr(getattr(config, section), field, value)
    assert settings.resolved(config).evaluation.image_size == 0


def test_what_is_given_stays():
    config = own_images_whole.get_config()
    config.model.backbone, config.data.image_size, config.train.learning_rate = "resnet50", 224, 1e-5
    config.data.classes_per_batch, config.data.examples_per_class, config.train.steps = 7, 3, 11
    found = settings.fitted(settings.resolved(config), labels_of(30, 10))
    assert (found.model.backbone, found.data.image_size, found.train.learning_rate) == ("resnet50", 224, 1e-5)
    assert (found.data.batch_size, found.train.steps) == (21, 11)


@pytest.mark.parametrize(
    "classes, images, batch, steps",
    [
        (2, 5, (2, 8), 100),
        (7, 5, (4, 8), 100),
        (15, 5, (8, 8), 100),
        (16, 80, (16, 4), 120),
        (16, 5000, (16, 4), 5000),
    ],
)
def test_batches_and_steps_follow_from_the_data_and_the_reason_is_printed(
    classes, images, batch, steps, capsys
):
    config = own_images_whole.get_config()
    found = settings.fitted(settings.resolved(config), labels_of(classes, images))
    assert (found.data.classes_per_batch, found.data.examples_per_class) == batch
    assert found.train.steps == steps
    said = capsys.readouterr().out
    shape = f"{batch[0]} classes x {batch[1]} images"
    assert f"A batch has {shape}, which fits {classes} training classes." in said
    assert f"The run has {steps:,} steps: " in said


def test_a_head_on_a_frozen_backbone_learns_faster_and_longer():
    config = own_images_whole.get_config()
    config.train.frozen_backbone = True
    found = settings.fitted(settings.resolved(config), labels_of(16, 80))
    assert (found.train.learning_rate, found.train.steps) == (3e-4, 480)


@pytest.mark.parametrize("images, views", [(12, 5), (4000, 5), (9999, 2), (50_000, 1)])
def test_fewer_views_are_stored_of_more_images(images, views, capsys):
    config = own_images.get_config()
    found = settings.fitted(settings.resolved(config), np.arange(images) % 4)
    assert found.train.feature_views == views
    assert f"{views} views of each training image are stored" in capsys.readouterr().out


@pytest.mark.parametrize(
    "places, fit",
    [
        ([(0, 32), (64, 96)], "whole"),
        ([(25, 32), (64, 71)], "wider"),
        ([(32, 64)], "centre"),
        ([(0, 96)], "centre"),
    ],
)
def test_a_trial_finds_how_much_of_an_image_tells_classes_apart(places, fit, tmp_path, capsys):
    """Wide pictures with the pattern of their class at some places, and noise elsewhere."""
    random = np.random.default_rng(0)
    for number in range(16):
        folder = tmp_path / "photos" / ("train" if number % 2 else "test") / f"class_{number:02}"
        folder.mkdir(parents=True)
        for image in range(6):
            pixels = random.integers(0, 256, [32, 1, 3]).repeat(96, axis=1)
            pattern = np.random.default_rng(number).integers(0, 256, [32, 96, 3])
            for first, end in places:
                pixels[:, first:end] = pattern[:, first:end]
            Image.fromarray(pixels.astype("uint8")).save(folder / f"{image}.png")
    config = own_images.get_config()
    config.data.update(source=str(tmp_path / "photos"), image_size=64, validation_classes=0)
    config = settings.resolved(config)
    data = datasets.build_data(config.data, str(tmp_path / "run"), seed=0)
    assert choose_fit(config, data.train) == fit
    assert "mAP of the pretrained features is" in capsys.readouterr().out
    assert config.data.fit == "auto"


def test_where_images_are_warped_no_fit_is_tried():
    config = own_images.get_config()
    config.data.crop = "warp"
    assert settings.resolved(config).data.fit == "centre"


def test_one_class_is_too_few_to_train_on():
    with pytest.raises(InputError, match=r"Training needs at least 2 classes. The training images have 1"):
        settings.fitted(settings.resolved(own_images_whole.get_config()), labels_of(1, 9))


@pytest.mark.parametrize("classes, held_out", [(11, 0), (12, 4), (25, 5), (100, 20)])
def test_a_fifth_of_the_classes_is_held_out_where_there_are_enough(classes, held_out, capsys):
    assert settings.held_out_classes(own_images_whole.get_config().data, labels_of(classes, 3)) == held_out
    assert f"{classes} training classes" in capsys.readouterr().out


def test_published_settings_hold_out_none():
    assert settings.held_out_classes(default.get_config().data, labels_of(100, 3)) == 0


def test_a_patience_on_several_machines_is_refused():
    config = default.get_config()
    config.train.update(steps=1, patience=1, strategy="multi_worker")
    with pytest.raises(InputError, match=r"config\.train\.patience=0"):
        settings.check_fields(config)


def test_a_head_that_begins_as_pca_keeps_what_the_features_say():
    """The similarities of the embeddings are the best approximation of their rank: NumPy's, by the SVD."""
    keras.utils.set_random_seed(0)
    model = embedding_model(image_size=8, blocks=1, filters=4, head="pca", embedding_dim=6)
    features_of, head = split_at_head(model)
    images = np.random.default_rng(0).uniform(0, 255, [30, 8, 8, 3]).astype("float32")
    features = np.asarray(features_of(images), np.float64)
    initialize_head_with_pca(model, features)
    left, values, _ = np.linalg.svd(features, full_matrices=False)
    wanted = (left[:, :6] * values[:6] ** 2) @ left[:, :6].T
    embeddings = np.asarray(model(images), np.float64)
    np.testing.assert_allclose(embeddings @ embeddings.T, wanted, rtol=1e-4, atol=1e-4 * wanted.max())
    np.testing.assert_allclose(head(features), embeddings, rtol=1e-4, atol=1e-4)


def test_without_a_head_the_features_are_the_embedding():
    model = embedding_model(image_size=8, blocks=1, filters=4, head="none", embedding_dim=6)
    assert model.output_shape == (None, 64)
    assert [variable.path.split("/")[-2] for variable in model.trainable_variables][-1] != "embedding"


@pytest.mark.parametrize("images", [3, 30])
def test_a_pca_of_very_many_features_is_the_same_without_their_square_matrix(images, monkeypatch):
    features = np.random.default_rng(0).normal(size=(images, 20)) * np.linspace(1, 3, 20)
    kernels = []
    for most in (4096, 10):
        monkeypatch.setattr("tfrank.models.embedding._MOST_SQUARE", most)
        model = vector_model(input_dim=20, embedding_dim=5)
        initialize_head_with_pca(model, features)
        kernels.append(model.get_layer("embedding").kernel.numpy())
    same = min(images, 5)
    np.testing.assert_allclose(kernels[1][:, :same], kernels[0][:, :same], atol=1e-5)
    np.testing.assert_allclose(kernels[1].T @ kernels[1], np.eye(5), atol=1e-5)


def test_a_pca_of_more_dimensions_than_features_is_refused():
    with pytest.raises(InputError, match=r"`embedding_dim`.*at most the backbone's 64 features"):
        embedding_model(image_size=8, blocks=1, filters=4, head="pca", embedding_dim=65)


ROWS = {"start": {"recall_at_1": 0.5, "map": 0.4}, "trained": {"recall_at_1": 0.6, "map": 0.5}}
FALLING = np.linspace(1.0, 0.5, 100)


def test_a_good_run_has_no_warning():
    assert warnings_of(ROWS, Best(150, 0.63, 0.59), FALLING) == []
    assert warnings_of({"trained": ROWS["trained"]}, None, []) == []


def test_a_result_below_the_start_is_said_with_what_to_try():
    worse = {**ROWS, "trained": {"recall_at_1": 0.4, "map": 0.3}}
    (warning,) = warnings_of(worse, None, FALLING)
    numbers = "Recall@1 0.5000 before, 0.4000 now; mAP 0.4000 before, 0.3000 now"
    assert warning.startswith(f"Training made the model worse on the test set: {numbers}. Try a lower learn")


def test_a_gain_in_one_metric_and_a_loss_in_another_are_both_said():
    mixed = {**ROWS, "trained": {"recall_at_1": 0.4, "map": 0.5}}
    (warning,) = warnings_of(mixed, None, FALLING)
    numbers = "Recall@1 0.5000 before, 0.4000 now; mAP 0.4000 before, 0.5000 now"
    said = f"Training improved some metrics on the test set and worsened others: {numbers}."
    assert warning.startswith(f"{said} Try a lower learning rate")


def test_vectors_that_rank_better_than_the_trained_head_are_said_without_advice_for_images():
    rows = {**ROWS, "vectors": {"recall_at_1": 0.7, "map": 0.6}}
    (warning,) = warnings_of(rows, None, FALLING)
    assert warning.startswith("The vectors themselves rank the test set better than the trained model: Rec")
    assert "--config.train.learning_rate" in warning and "image_size" not in warning
    rows["start"] = {"recall_at_1": 0.7, "map": 0.6}
    (warning,) = warnings_of(rows, None, FALLING)
    assert warning.startswith("Training made the model worse")


def test_a_start_that_no_step_improved_is_said():
    (warning,) = warnings_of(ROWS, Best(0, 0.59, 0.59), FALLING)
    assert warning.startswith("No step was better than the start")
    assert best_sentence(Best(0, 0.59, 0.59), 100).startswith("Best: the start.")


def test_a_loss_that_does_not_fall_is_said():
    (warning,) = warnings_of(ROWS, None, np.full(100, 0.9))
    assert warning.startswith("The loss did not fall: 0.9000 in the first 10 steps, 0.9000 in the last")
    (warning,) = warnings_of(ROWS, None, np.linspace(0, 0.9, 100))
    assert warning.startswith("The loss did not fall: 0.0")


def test_a_loss_that_is_0_from_the_start_had_nothing_to_teach():
    (warning,) = warnings_of(ROWS, None, np.full(100, 2e-4))
    assert warning.startswith("There was nothing to learn: the loss is 0.0002 from the first steps on")


@pytest.mark.parametrize(
    "loss, average, judged",
    [
        ("triplet", "all", True),
        ("triplet", "nonzero", False),
        ("smooth_ap", None, True),
        ("tcm", None, False),
    ],
)
def test_a_mean_over_violators_need_not_fall(loss, average, judged, tmp_path):
    (tmp_path / "training.csv").write_text("step,loss\n1,0.9\n2,0.9\n")
    config = default.get_config(loss)
    if average:
        config.loss.average = average
    assert losses_to_judge(config.loss, str(tmp_path)) == ([0.9, 0.9] if judged else [])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Folders of 26 classes that differ by colour, half of them to test on; 4 images each."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for number in range(26):
        place = folder / ("train" if number % 2 else "test") / f"class_{number:02}"
        place.mkdir(parents=True)
        color = random.uniform(40, 215, 3)
        for image in range(4):
            pixels = np.clip(color + random.normal(0, 25, [40, 48, 3]), 0, 255).astype("uint8")
            Image.fromarray(pixels).save(place / f"{image}.png")
    return folder


# Images of few pixels, in training and in tests.
SMALL = ("--config.data.image_size=64", "--config.evaluation.image_size=64")


def run_of(workdir, photos, *flags):
    fields = ("--config.data.image_size=32", "--config.train.steps=20", "--config.train.evaluate_every=10")
    given = ("--config=configs/own_images_whole.py", f"--workdir={workdir}", f"--config.data.source={photos}")
    return run("train_main.py", *given, *fields, *flags)


@pytest.mark.slow
def test_own_photos_begin_with_the_start_and_name_the_best_step(photos, tmp_path):
    status, output, errors = run_of(tmp_path / "run", photos, "--config.model.weights=random")
    assert status == 0, errors
    assert "4 of 13 training classes are held out, to choose the best weights by." in output
    assert "The head begins as the PCA of the features of 36 training images." in output
    assert "step 0: validation Recall@1 " in output
    assert "Best: " in output
    rows = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert list(rows) == ["raw pixels", "start", "trained"]


@pytest.mark.slow
def test_the_head_alone_is_trained_on_stored_features_and_a_second_run_reads_them(photos, tmp_path):
    from tfrank.models.embedding import embedding_model as build

    keras.utils.set_random_seed(0)
    network = build(backbone="mobilenet_v2", image_size=32, embedding_dim=8).get_layer("mobilenet_v2")
    arrays = {f"{v.path.split('/')[-2]}/{v.path.split('/')[-1]}": v.numpy() for v in network.variables}
    np.savez(tmp_path / "net.npz", **arrays)
    flags = (
        f"--config.model.weights={tmp_path / 'net.npz'}",
        "--config.model.backbone=mobilenet_v2",
        "--config.train.frozen_backbone=True",
    )
    status, output, errors = run_of(tmp_path / "run", photos, *flags)
    assert status == 0, errors
    assert "images/s" in output and "Best: " in output
    features = np.load(tmp_path / "run" / "features" / "train" / "embeddings.npy")
    assert features.shape == (4 * 36, 1280)
    status, output, errors = run_of(tmp_path / "run", photos, *flags)
    assert status == 0, errors
    assert "144 of 144 embeddings are there already" in output


@pytest.mark.slow
def test_the_last_stages_are_trained_on_stored_maps_and_a_second_run_ends_with_the_same_weights(
    photos, tmp_path
):
    flags = ("--config.train.steps=16", "--config.train.evaluate_every=16", "--config.train.feature_views=2")
    given = ("--config=configs/own_images.py", f"--config.data.source={photos}", *SMALL, *flags)
    rows = []
    for workdir in (tmp_path / "run", tmp_path / "run", tmp_path / "other"):
        status, output, errors = run("train_main.py", *given, f"--workdir={workdir}")
        assert status == 0, errors
        rows.append(json.loads((workdir / "metrics.json").read_text()))
    assert "The head whitens the features of 36 training images." in output
    assert "The head whitens the trained features of 36 training images." in output
    maps = np.load(tmp_path / "run" / "features" / "train" / "embeddings.npy")
    assert maps.shape == (2 * 36, 4 * 4 * 80) and maps.dtype == np.float16
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["fit"] in FITS
    assert rows[0] == rows[1] == rows[2]
    status, output, errors = run("eval_main.py", f"--workdir={tmp_path / 'run'}")
    assert status == 0, errors
    assert f"{rows[0]['trained']['map']:.4f}" in output


@pytest.mark.slow
def test_the_quick_way_trains_the_last_stage_on_one_view_and_teaches_last_stages(photos, tmp_path):
    for workdir, *given in (
        ("teacher", "--config=configs/own_images_fast.py", *SMALL),
        (
            "student",
            "--config=configs/own_images.py",
            "--config.train.steps=10",
            "--config.train.feature_views=2",
            "--config.data.image_size=48",
            "--config.evaluation.image_size=48",
            f"--config.train.teacher={tmp_path / 'teacher'}",
            "--config.train.teacher_weight=0",
            "--config.train.regression_weight=10",
        ),
    ):
        place = (f"--config.data.source={photos}", f"--workdir={tmp_path / workdir}")
        status, output, errors = run("train_main.py", *given, *place)
        assert status == 0, errors
        assert workdir == "student" or ("40 steps of " in output and "step 20: validation" in output)
    maps = np.load(tmp_path / "teacher" / "features" / "train" / "embeddings.npy", mmap_mode="r")
    assert maps.shape == (36, 2 * 2 * 192)
    assert list(json.loads((tmp_path / "teacher" / "metrics.json").read_text())) == [
        *("raw pixels", "start", "trained")
    ]
    assert "The head maps to the teacher's embeddings, by least squares, the trained features of" in output
    rows = json.loads((tmp_path / "student" / "metrics.json").read_text())
    assert "queries against the teacher's gallery" in rows
    encoded = [path.read_bytes() for path in sorted((photos / "train").glob("*/*.png"))]
    student, teacher = (embedded(tmp_path / name / "saved_model", encoded) for name in ("student", "teacher"))
    # It is .86; where the last head whitened, as without a teacher, it was .58.
    assert np.mean(np.sum(student * teacher, axis=1)) > 0.75


def embedded(model, encoded):
    """The embeddings of encoded images by a SavedModel."""
    return (
        tf.saved_model.load(str(model)).signatures["encoded"](bytes=tf.constant(encoded))["embedding"].numpy()
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model.head": "none", "model.weights": "net.pth"}, r"Set config\.model\.head=whitened or pca"),
        ({"model.weights": "random"}, "Give it pretrained weights"),
        ({"model.weights": "net.pth", "dry_run": True}, "config.dry_run cannot be combined with"),
        ({"model.weights": "net.pth", "train.strategy": "multi_worker"}, "trains on one machine"),
        ({"model.weights": "net.pth", "train.frozen_until": "conv1"}, "Set one of them"),
        (
            {"train.frozen_backbone": False, "train.frozen_until": "block", "model.backbone": "convnet"},
            "frozen_until needs a pretrained network",
        ),
        (
            {
                "train.frozen_backbone": False,
                "train.frozen_until": "last_stage",
                "model.backbone": "resnet50",
            },
            "last_stage is for efficientnet_lite0.*Name a layer of resnet50",
        ),
    ],
)
def test_what_does_not_go_with_a_frozen_backbone_is_refused(changes, message):
    from tfrank.run.frozen_backbone import check_frozen

    config = own_images_whole.get_config()
    config.train.frozen_backbone = True
    config.assign(changes)
    with pytest.raises(InputError, match=message):
        check_frozen(config.train, config.model, dry_run=config.dry_run)
