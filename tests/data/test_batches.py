"""Balanced batches keep the promise of training in a `fit` of the user's own."""

import itertools
import json
import os
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfrank
from tests.programs import make_two_cpus, printed_json
from tfrank.common.checks import InputError
from tfrank.data import balanced_batches
from tfrank.data.images import decode
from tfrank.data.prepare.image_files import checked_image
from tfrank.data.samplers import ClassBalancedSampler
from tfrank.data.transforms import Transform, evaluation_transform

# Classes of 7, 5, 4, 4 and 3 images; an image is its number.
LABELS = np.repeat([9, -2, 2**40, 5, 7], [7, 5, 4, 4, 3])
IMAGES = np.arange(len(LABELS))
SIZES = {"classes_per_batch": 3, "examples_per_class": 3}


def of_an_iteration(batches):
    return [(images.numpy(), labels.numpy()) for images, labels in batches]


def as_the_sampler_draws(steps, seed=0):
    sampler = ClassBalancedSampler(LABELS, seed=seed, **SIZES)
    return [sampler.batch(step).tolist() for step in steps]


def test_a_batch_has_exactly_so_many_classes_and_distinct_images_of_each():
    batches = balanced_batches(IMAGES, LABELS, steps_per_epoch=40, **SIZES)
    for images, labels in of_an_iteration(batches):
        np.testing.assert_array_equal(labels, LABELS[images])
        classes, counts = np.unique(labels, return_counts=True)
        assert len(classes) == 3 and set(counts) == {3} and len(set(images)) == 9


def test_classes_are_visited_equally_often_in_an_iteration():
    batches = balanced_batches(IMAGES, LABELS, steps_per_epoch=10, **SIZES)
    visits = np.unique(np.concatenate([labels for _, labels in of_an_iteration(batches)]), return_counts=True)
    assert set(visits[1]) == {10 * 9 // 5}


def test_an_image_is_repeated_in_a_batch_only_where_its_class_is_smaller():
    batches = balanced_batches(IMAGES, LABELS, classes_per_batch=5, examples_per_class=4, steps_per_epoch=5)
    for images, labels in of_an_iteration(batches):
        assert sorted(labels) == sorted(np.repeat(np.unique(LABELS), 4))
        assert all(len(set(images[labels == c])) == min(4, (c == LABELS).sum()) for c in set(LABELS))


def test_each_iteration_goes_on_where_the_one_before_ended():
    batches = balanced_batches(IMAGES, LABELS, steps_per_epoch=4, seed=3, **SIZES)
    drawn = [of_an_iteration(batches) for _ in range(3)]
    assert [images.tolist() for epoch in drawn for images, _ in epoch] == as_the_sampler_draws(range(12), 3)
    again = balanced_batches(IMAGES, LABELS, steps_per_epoch=12, seed=3, **SIZES)
    assert [images.tolist() for images, _ in of_an_iteration(again)] == as_the_sampler_draws(range(12), 3)


def test_an_iteration_that_is_left_early_counts_as_one():
    batches = balanced_batches(IMAGES, LABELS, steps_per_epoch=4, **SIZES)
    next(iter(batches))
    assert [images.tolist() for images, _ in of_an_iteration(batches)] == as_the_sampler_draws(range(4, 8))


def test_the_length_is_known_and_by_default_one_pass_over_the_images():
    assert int(balanced_batches(IMAGES, LABELS, **SIZES).cardinality()) == len(LABELS) // 9
    assert int(balanced_batches(IMAGES, LABELS, steps_per_epoch=5, **SIZES).cardinality()) == 5
    few = balanced_batches(IMAGES, LABELS, classes_per_batch=5, examples_per_class=7)
    assert int(few.cardinality()) == 1


@pytest.fixture
def fitted():
    """A model that keeps the images of each step of a `fit`, with what it was given."""

    class Seen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append(seen.numpy().ravel().tolist())

    class Embed(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="ones")

        def call(self, images):
            seen.assign(images)
            return tf.concat([tf.cast(images, tf.float32), tf.ones_like(images, tf.float32)], 1) * self.scale

    def fit(batches, **options):
        steps.clear()
        model = keras.Sequential([keras.Input([1], dtype="int64"), Embed()])
        model.compile("sgd", loss=tfrank.PNPLoss("dq"))
        model.fit(batches, shuffle=False, verbose=0, callbacks=[Seen()], **options)
        return list(steps)

    steps, seen = [], tf.Variable(tf.zeros([9, 1], tf.int64))
    return fit


def test_every_epoch_of_fit_has_new_batches(fitted):
    batches = balanced_batches(IMAGES[:, None], LABELS, steps_per_epoch=3, **SIZES)
    assert fitted(batches, epochs=4) == as_the_sampler_draws(range(12))
    assert fitted(batches, epochs=1) == as_the_sampler_draws(range(12, 15)), (
        "nor does a second fit begin anew"
    )


def test_repeated_they_take_any_steps_per_epoch_of_fit(fitted):
    batches = balanced_batches(IMAGES[:, None], LABELS, steps_per_epoch=3, **SIZES).repeat()
    assert fitted(batches, epochs=2, steps_per_epoch=5) == as_the_sampler_draws(range(10))


def test_the_first_iteration_begins_at_the_step_that_is_given():
    batches = balanced_batches(IMAGES, LABELS, steps_per_epoch=4, seed=3, start_step=5, **SIZES)
    drawn = [images.tolist() for _ in range(2) for images, _ in of_an_iteration(batches)]
    assert drawn == as_the_sampler_draws(range(5, 13), seed=3)


def test_each_iteration_begins_at_the_current_value_of_a_variable():
    for step in (tf.Variable(2, dtype=tf.int64), keras.Variable(2, dtype="int64")):
        batches = balanced_batches(IMAGES, LABELS, steps_per_epoch=4, start_step=step, **SIZES)
        for start in (2, 2, 7):
            step.assign(start)
            drawn = [images.tolist() for images, _ in of_an_iteration(batches)]
            assert drawn == as_the_sampler_draws(range(start, start + 4))


class Stop(keras.callbacks.Callback):
    """Ends the run, as a kill would, in the middle of the third epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 10:
            raise KeyboardInterrupt


def test_a_fit_that_was_killed_goes_on_with_the_batches_it_would_have_had(tmp_path):
    def fit(folder, *others):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(4), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), tfrank.PNPLoss(temperature=1.0))
        step = model.optimizer.iterations
        features = IMAGES[:, None].astype("float32")
        batches = balanced_batches(features, LABELS, steps_per_epoch=4, start_step=step, **SIZES)
        backup = keras.callbacks.BackupAndRestore(folder)
        model.fit(batches, epochs=4, shuffle=False, verbose=0, callbacks=[backup, *others])
        return model.get_weights()

    wanted = fit(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "killed", Stop())
    for one, other in zip(fit(tmp_path / "killed"), wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_images_of_the_label_to_ignore_are_in_no_batch():
    batches = balanced_batches(IMAGES, LABELS, steps_per_epoch=20, ignore_label=-2, **SIZES)
    drawn = np.concatenate([images for images, _ in of_an_iteration(batches)])
    assert set(LABELS[drawn]) == {9, 2**40, 5, 7}
    by_default = balanced_batches(IMAGES, LABELS, ignore_label=-2, **SIZES)
    assert len(by_default) == (7 + 4 + 4 + 3) // 9


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float64", "bool"])
def test_images_keep_their_dtype_and_shapes_are_known(dtype):
    images = np.zeros([len(LABELS), 4, 5, 1], dtype)
    spec = balanced_batches(images, LABELS, **SIZES).element_spec
    assert spec == (tf.TensorSpec([9, 4, 5, 1], dtype), tf.TensorSpec([9], tf.int64))


def test_an_array_is_no_part_of_the_graph_and_may_be_a_memory_map(tmp_path):
    images = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (len(LABELS), 100_000))
    images[:, 0] = IMAGES
    batches = balanced_batches(np.load(tmp_path / "x.npy", mmap_mode="r"), LABELS, **SIZES)
    assert batches._as_serialized_graph().numpy().__sizeof__() < 100_000
    drawn = [images[:, 0].astype(int).tolist() for images, _ in of_an_iteration(batches)]
    assert drawn == as_the_sampler_draws(range(len(drawn)))


@pytest.mark.parametrize(
    "labels",
    [LABELS.tolist(), LABELS[:, None], (LABELS % 2**16).astype("uint16")],
    ids=["list", "column", "uint16"],
)
def test_integer_labels_of_any_form_come_out_as_they_are(labels):
    for images, classes in of_an_iteration(balanced_batches(IMAGES, labels, **SIZES)):
        np.testing.assert_array_equal(classes, np.asarray(labels).ravel()[images])


@pytest.mark.parametrize("form", [list, np.array, lambda names: np.array(names, object)])
def test_texts_are_numbered_in_sorted_order(form):
    names = [{9: "wren", -2: "auk", 2**40: "robin", 5: "Ibis", 7: "ö"}[label] for label in LABELS]
    numbers = {"Ibis": 0, "auk": 1, "robin": 2, "wren": 3, "ö": 4}
    for images, classes in of_an_iteration(balanced_batches(IMAGES, form(names), **SIZES)):
        assert [numbers[names[image]] for image in images] == classes.tolist()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Files of several formats, one of them lying on its side, and their classes."""
    from PIL import Image

    folder, noise = tmp_path_factory.mktemp("photos é"), np.random.default_rng(0)
    paths = []
    for number, ending in zip(range(8), itertools.cycle(["jpg", "png", "bmp", "webp"])):
        paths.append(folder / f"{number}.{ending}")
        image = Image.fromarray(noise.integers(0, 256, [20 + number, 31, 3], np.uint8))
        exif = Image.Exif()
        exif[274] = 6
        image.save(paths[-1], **({"exif": exif} if number == 4 else {}))
    return paths, np.arange(8) // 4


@pytest.mark.parametrize("form", [list, lambda paths: list(map(str, paths)), lambda paths: np.array(paths)])
def test_files_are_seen_as_tfrank_prepares_and_evaluates_them(photos, form):
    paths, labels = photos
    batches = balanced_batches(form(paths), labels, classes_per_batch=2, examples_per_class=4, image_size=12)
    ((images, classes),) = of_an_iteration(batches)
    assert images.dtype == np.uint8 and images.shape == (8, 12, 12, 3)
    numbers = ClassBalancedSampler(labels, classes_per_batch=2, examples_per_class=4).batch(0)
    np.testing.assert_array_equal(classes, labels[numbers])
    for image, number in zip(images, numbers):
        encoded = checked_image(paths[number].read_bytes()).encoded
        np.testing.assert_array_equal(
            image, evaluation_transform(decode(tf.constant(encoded)), Transform(size=12))
        )


def test_a_damaged_file_is_named_when_it_is_read(photos, tmp_path):
    paths, labels = list(photos[0]), photos[1]
    paths[5] = tmp_path / "cut.jpg"
    paths[5].write_bytes(paths[0].read_bytes()[:300])
    batches = balanced_batches(paths, labels, classes_per_batch=2, examples_per_class=4, image_size=12)
    with pytest.raises(tf.errors.OpError, match=r"InputError: .*cut\.jpg: truncated or damaged"):
        of_an_iteration(batches)


def test_missing_files_are_named_before_anything_is_read(photos):
    paths = [*photos[0][:6], pathlib.Path("nowhere/a.jpg"), "nowhere/b.jpg"]
    with pytest.raises(InputError, match=r"^2 of 8 image files do not exist. The first is nowhere/a.jpg\. "):
        balanced_batches(paths, photos[1], classes_per_batch=2, examples_per_class=4, image_size=12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"images": IMAGES[:-1]}, r"`labels`. Expected n integers or n texts, one for each of 22 images"),
        ({"labels": LABELS * 1.0}, r"`labels`.*Received: labels='float64 of shape \[23\]'"),
        ({"labels": np.eye(23, dtype=int)}, r"`labels`.*Received: labels='int64 of shape \[23, 23\]'"),
        ({"labels": [None] * 23}, r"`labels`.*Received: labels='object of shape \[23\]'"),
        ({"labels": LABELS.astype("uint64") + 2**63}, "`labels`.*Received: labels='uint64"),
        ({"images": [], "labels": []}, r"`images`.* n at least 1"),
        (
            {"images": 3.0},
            r"`images`. Expected an array \[n, ...\] of numbers, n at least 1, or a list of n paths",
        ),
        ({"images": [np.zeros(n % 3) for n in range(23)]}, "`images`.*'list of shape "),
        ({"images": [None] * 23}, "`images`.*and dtype object'"),
        ({"images": [os.curdir] * 23}, r"`image_size`. Expected an integer of at least 1.*image_size=None"),
        ({"image_size": 32}, "`image_size`. Expected None, since images are an array: resize the array"),
        ({"classes_per_batch": 6}, "there are only 5 to train on. Lower classes_per_batch"),
        ({"examples_per_class": 0}, "`examples_per_class`"),
        ({"short_classes": "drp"}, 'Did you mean "drop"'),
        ({"seed": -1}, "`seed`"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch`. Expected an integer of at least 1"),
        ({"start_step": -1}, "`start_step`. Expected an integer of at least 0"),
        ({"start_step": np.float64(1)}, "`start_step`. Expected an integer of at least 0"),
        ({"ignore_label": "-1"}, "`ignore_label`. Expected an integer, such as -1, or None"),
        ({"labels": list("abc") * 7 + ["a", "b"], "ignore_label": 0}, "`ignore_label`.*labels are texts"),
    ],
)
def test_bad_arguments_are_refused(given, message):
    given = {"images": IMAGES, "labels": LABELS, **SIZES, **given}
    with pytest.raises(InputError, match=message):
        balanced_batches(given.pop("images"), given.pop("labels"), **given)


def test_a_start_that_counts_no_steps_is_refused():
    accumulating = keras.optimizers.SGD(gradient_accumulation_steps=2)
    for start, message in (
        (tf.Variable(1.0), "Expected a variable of one integer"),
        (accumulating.iterations, "this tensor would be the same in each epoch"),
    ):
        with pytest.raises(InputError, match=f"`start_step`.*{message}"):
            balanced_batches(IMAGES, LABELS, start_step=start, **SIZES)


def mirrored_losses():
    """Prints the losses of a fit on two devices, in a process of its own."""
    make_two_cpus()
    print(json.dumps(losses_of_fit(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))))


def losses_of_fit(strategy):
    """The losses of a fit under a strategy."""
    keras.utils.set_random_seed(0)
    images = np.random.default_rng(0).normal(size=[len(LABELS), 5]).astype("float32")
    batches = balanced_batches(images, LABELS, classes_per_batch=4, examples_per_class=3, steps_per_epoch=3)
    if strategy.num_replicas_in_sync == 1:
        next(iter(batches))  # As Keras does under a strategy.
    with strategy.scope():
        model = keras.Sequential([keras.Input([5]), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(0.1), loss=tfrank.PNPLoss("dq"))
    return model.fit(batches, epochs=3, shuffle=False, verbose=0).history["loss"]


@pytest.mark.slow
def test_two_replicas_share_each_batch():
    one = losses_of_fit(tf.distribute.get_strategy())
    two = printed_json("-c", "from tests.data.test_batches import mirrored_losses; mirrored_losses()")
    assert two == pytest.approx(one, rel=1e-5) and len(set(one)) == 3
