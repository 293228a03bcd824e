"""Batches from records: the right images, the same at any start, and bad ones by name."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.data import image_records, picture, png, write_records
from tfrank.common.checks import InputError
from tfrank.data.images import ImageLoader, shift_images
from tfrank.data.pipeline import (
    augmented_passes,
    check_batch,
    evaluation_batches,
    naming_bad_images,
    train_batches,
)
from tfrank.data.records import RecordReader
from tfrank.data.samplers import ClassBalancedSampler
from tfrank.data.transforms import Transform

RECORDS = image_records([1, 2, 3, 1, 2, 3, 1, 2, 1, 1])
SIZE = 4
LOADER = ImageLoader(transform=Transform(size=SIZE))
PICTURES = {record.id: picture(number, SIZE) for number, record in enumerate(RECORDS)}


def reader_of(records, folder):
    return RecordReader(write_records(records, str(folder), "train", num_shards=3))


@pytest.fixture
def reader(tmp_path):
    return reader_of(RECORDS, tmp_path)


def sampler_of(reader, seed=5):
    return ClassBalancedSampler(reader.index.label, classes_per_batch=2, examples_per_class=3, seed=seed)


def pictures_of(reader, numbers):
    return np.stack([PICTURES[reader.index.id[number].decode()] for number in numbers])


def batches(reader, *, loader=LOADER, start=0, stop=7, seed=5, **options):
    sampler = sampler_of(reader, seed)
    dataset = train_batches(reader, sampler, loader, start=start, stop=stop, **options)
    return list(dataset.as_numpy_iterator())


# What is in a batch.


def test_training_batches_hold_the_images_and_labels_that_the_sampler_chose(reader):
    got = batches(reader)
    assert len(got) == 7
    for step, batch in enumerate(got):
        numbers = sampler_of(reader).batch(step)
        np.testing.assert_array_equal(batch["label"], reader.index.label[numbers])
        np.testing.assert_array_equal(batch["image"], pictures_of(reader, numbers))
        assert batch["image"].dtype == np.uint8 and batch["label"].dtype == np.int64


@pytest.mark.parametrize("max_shift", [0, 2])
@pytest.mark.parametrize("start", [1, 4, 6])
def test_a_run_may_start_at_any_batch(reader, start, max_shift):
    wanted = batches(reader, max_shift=max_shift)[start:]
    got = batches(reader, start=start, max_shift=max_shift)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        np.testing.assert_array_equal(one["image"], other["image"])
        np.testing.assert_array_equal(one["label"], other["label"])


def test_shapes_are_known_before_a_batch_is_read(reader):
    spec = train_batches(reader, sampler_of(reader), LOADER, stop=1).element_spec
    assert spec["image"].shape.as_list() == [6, SIZE, SIZE, 3] and spec["label"].shape.as_list() == [6]


def shift_of(images, originals):
    """By how many pixels, at most 1 in each direction, images were rolled down and right."""
    shifts = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    return next(s for s in shifts if np.array_equal(np.roll(originals, s, axis=[1, 2]), images))


def test_shifts_stay_within_bounds_and_change_with_the_step_and_the_seed(reader):
    def shifts(seed):
        sampler = sampler_of(reader, seed)
        return [
            shift_of(batch["image"], pictures_of(reader, sampler.batch(step)))
            for step, batch in enumerate(batches(reader, seed=seed, stop=20, max_shift=1))
        ]

    assert len(set(shifts(5))) > 4
    assert shifts(5) != shifts(6)


@pytest.mark.parametrize("batch_size", [1, 4, 5, 10, 64])
def test_evaluation_batches_hold_every_record_once_in_order(reader, batch_size):
    got = list(evaluation_batches(reader, LOADER, batch_size=batch_size).as_numpy_iterator())
    sizes = [len(batch["label"]) for batch in got]
    assert sizes[:-1] == [batch_size] * (len(got) - 1) and sum(sizes) == len(RECORDS)
    np.testing.assert_array_equal(np.concatenate([batch["label"] for batch in got]), reader.index.label)
    images = np.concatenate([batch["image"] for batch in got])
    np.testing.assert_array_equal(images, pictures_of(reader, range(len(RECORDS))))


# Decoding.

LOADER_OF_5 = ImageLoader(transform=Transform(size=5))


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "bmp"])
def test_every_kind_of_image_decodes_to_rgb_of_the_size_asked(kind):
    grey = np.full([6, 9, 3], 128, np.uint8)
    files = {
        "png": lambda: tf.io.encode_png(grey[..., :1]).numpy(),
        "jpeg": lambda: tf.io.encode_jpeg(grey).numpy(),
        "gif": lambda: b"GIF89a\x01\0\x01\0\x80\0\0\x80\x80\x80\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;",
        "bmp": lambda: bmp_of_one_color(128, width=9, height=6),
    }
    image = LOADER_OF_5.serve(tf.constant(files[kind]()))
    assert image.dtype == tf.uint8
    np.testing.assert_allclose(image, np.full([5, 5, 3], 128), atol=1)


def bmp_of_one_color(value, *, width, height):
    row = bytes([value] * 3 * width)
    row += b"\0" * (-len(row) % 4)
    numbers = [54 + len(row) * height, 0, 54, 40, width, height]
    head = b"BM" + b"".join(number.to_bytes(4, "little") for number in numbers) + b"\x01\0\x18\0"
    return head + b"\0" * 24 + row * height


def test_resizing_is_antialiased():
    """A quarter of the columns is white. Without antialiasing they fall between the places looked at."""
    columns = np.zeros([16, 16, 3], np.uint8)
    columns[:, ::4] = 255
    image = LOADER.serve(tf.io.encode_png(columns)).numpy()
    np.testing.assert_allclose(image[:, 1:-1], 255 / 4, atol=8)


def test_shift_of_at_most_zero_leaves_images_alone():
    images = np.stack([picture(0), picture(1)])
    np.testing.assert_array_equal(shift_images(images, 0, tf.constant([1, 2], tf.int64)), images)


# Augmentation.

CROPPED = ImageLoader(transform=Transform(size=2, resize=4, flip=0.5))


@pytest.mark.parametrize("start", [1, 5])
def test_the_augmentation_of_an_image_depends_on_seed_step_and_place_only(reader, start):
    wanted = batches(reader, loader=CROPPED)
    for one, other in zip(batches(reader, loader=CROPPED, start=start), wanted[start:]):
        np.testing.assert_array_equal(one["image"], other["image"])


@pytest.mark.parametrize("start", [3, 10, 17])
def test_augmented_passes_may_start_at_any_image(reader, start):
    def images(start):
        passes = augmented_passes(reader, CROPPED, passes=3, seed=5, batch_size=4, start=start)
        return np.concatenate([batch["image"] for batch in passes.as_numpy_iterator()])

    whole = images(0)
    assert len(whole) == 3 * len(RECORDS)
    np.testing.assert_array_equal(images(start), whole[start:])


def test_the_same_image_is_seen_otherwise_at_other_places_and_steps(tmp_path):
    """One class of one image, which is repeated."""
    sampler = ClassBalancedSampler(np.array([1]), classes_per_batch=1, examples_per_class=40, seed=3)
    reader = reader_of([RECORDS[0]], tmp_path)
    crops = [batch["image"] for batch in train_batches(reader, sampler, CROPPED, stop=2).as_numpy_iterator()]
    assert all(len({crop.tobytes() for crop in step}) > 10 for step in crops)
    assert not np.array_equal(*crops)


def test_labels_are_those_of_the_index(reader):
    relabelled = RecordReader(dataclasses.replace(reader.index, label=reader.index.label * 10))
    for dataset in (
        train_batches(relabelled, sampler_of(reader), LOADER, stop=3),
        evaluation_batches(relabelled, LOADER, batch_size=4),
    ):
        assert all(np.all(batch["label"] % 10 == 0) for batch in dataset.as_numpy_iterator())


def test_at_full_size_every_image_is_a_batch_of_its_own_size(tmp_path):
    records = [
        dataclasses.replace(RECORDS[0], encoded=png(size, size=size), id=str(size)) for size in (3, 5, 8)
    ]
    loader = ImageLoader(transform=Transform(size=SIZE), full_size=True)
    got = list(evaluation_batches(reader_of(records, tmp_path), loader, batch_size=2).as_numpy_iterator())
    assert sorted(batch["image"].shape for batch in got) == [(1, n, n, 3) for n in (3, 5, 8)]


# What of an image is looked at.

FACE = tuple((x / 112, y / 112) for x, y in [(38, 52), (74, 51), (56, 72), (42, 92), (71, 92)])


def test_the_box_is_cut_out_and_an_image_without_one_is_whole(tmp_path):
    records = [
        dataclasses.replace(RECORDS[0], encoded=png(3, size=8), id=str(n), box=box)
        for n, box in enumerate([(0.25, 0.5, 0.75, 1.0), None])
    ]
    loader = ImageLoader(transform=Transform(size=4), test_region="box", full_size=True)
    reader = reader_of(records, tmp_path)
    cut, whole = (loader.test(data).numpy() for data in reader.read([0, 1]))
    np.testing.assert_array_equal(cut, picture(3, size=8)[4:8, 2:6])
    np.testing.assert_array_equal(whole, picture(3, size=8))


@pytest.mark.parametrize("box", [(1.0, 1.0, 6.0, 5.0), (0.75, 0.5, 0.25, 1.0), (0.2, 0.2, 0.2, 0.4)], ids=str)
def test_a_box_that_is_none_is_named(tmp_path, box):
    """As in pixels, of which nothing but a corner would be left, or with its ends exchanged."""
    reader = reader_of([dataclasses.replace(RECORDS[0], box=box)], tmp_path)
    loader = ImageLoader(transform=Transform(size=4), region="box", test_region="image")
    check_batch(reader, [0], LOADER)
    with pytest.raises(InputError, match=r"image id '.*'\): .*the record's box is not xmin < xmax"):
        check_batch(reader, [0], loader)


def test_a_face_is_aligned_and_a_record_without_landmarks_is_named(tmp_path):
    records = [
        dataclasses.replace(RECORDS[0], encoded=png(3, size=112), landmarks=FACE),
        dataclasses.replace(RECORDS[1], id="no-face"),
    ]
    loader = ImageLoader(transform=Transform(size=112), region="face", test_region="face")
    reader = reader_of(records, tmp_path)
    assert loader.test(reader.read([0])[0]).shape == (112, 112, 3)
    with pytest.raises(InputError, match=r"image id 'no-face'\): .*no five landmarks of a face"):
        list(naming_bad_images(reader, evaluation_batches(reader, loader, batch_size=2), loader))


# Bad images.


@pytest.fixture
def with_bad_image(tmp_path):
    """A reader of records of which one, whose id is bad-one, is cut off in its file; and its number."""
    bad = image_records([2], first=77)[0]
    records = [*RECORDS, type(bad)(**{**vars(bad), "encoded": png(77)[:40], "id": "bad-one"})]
    reader = reader_of(records, tmp_path)
    return reader, int(np.flatnonzero(reader.index.id == b"bad-one")[0])


@pytest.fixture
def with_changed_record(reader):
    """A reader of records of which one was changed on disk after it was indexed; and its number."""
    index, number = reader.index, 6
    with open(index.shards[index.shard[number]], "r+b") as file:
        file.seek(index.offset[number] + 30)
        file.write(b"changed!")
    return reader, number


@pytest.mark.parametrize("damage", ["with_bad_image", "with_changed_record"])
@pytest.mark.parametrize("batch_size", [2, 64])
def test_a_bad_record_is_named_when_everything_is_read(request, damage, batch_size):
    reader, number = request.getfixturevalue(damage)
    name = reader.index.id[number].decode()
    dataset = evaluation_batches(reader, LOADER, batch_size=batch_size)
    batches = naming_bad_images(reader, dataset, LOADER)
    with pytest.raises(InputError, match=rf"\.tfrecord at byte \d+ \(image id '{name}'\): the ") as error:
        list(batches)
    assert str(error.value).startswith(reader.index.describe(number))


@pytest.mark.parametrize("damage", ["with_bad_image", "with_changed_record"])
def test_check_batch_names_the_bad_record_of_a_batch_and_no_other(request, damage):
    reader, number = request.getfixturevalue(damage)
    others = [n for n in range(len(reader.index)) if n != number]
    check_batch(reader, others, LOADER)
    with pytest.raises(InputError, match=rf"^record {number} of "):
        check_batch(reader, [*others, number], LOADER)


def test_good_batches_before_a_bad_image_are_given(with_bad_image):
    reader, number = with_bad_image
    dataset = evaluation_batches(reader, LOADER, batch_size=1)
    given = []
    with pytest.raises(InputError, match="the image cannot be loaded"):
        given.extend(naming_bad_images(reader, dataset, LOADER))
    assert [batch["label"][0] for batch in given] == reader.index.label[:number].tolist()


def test_batches_without_a_bad_image_pass_as_they_are(reader):
    dataset = evaluation_batches(reader, LOADER, batch_size=4)
    assert [len(batch["label"]) for batch in naming_bad_images(reader, dataset, LOADER)] == [4, 4, 2]


# One machine's slice of a batch.

STEPS = 5


def slices(reader, machines, devices, **options):
    """Of each machine, the shares of its devices, one after another."""
    return [
        batches(
            reader,
            stop=STEPS,
            context=tf.distribute.InputContext(machines, machine, machines * devices),
            **options,
        )
        for machine in range(machines)
    ]


@pytest.mark.parametrize("max_shift", [0, 2])
@pytest.mark.parametrize("machines, devices", [(1, 2), (2, 1), (3, 2)])
def test_the_shares_of_all_devices_side_by_side_are_the_batch_of_one(reader, machines, devices, max_shift):
    wanted = batches(reader, loader=CROPPED, start=2, stop=STEPS, max_shift=max_shift)
    got = slices(reader, machines, devices, loader=CROPPED, start=2, max_shift=max_shift)
    assert [len(shares) for shares in got] == [len(wanted) * devices] * machines
    for number, batch in enumerate(wanted):
        shares = [share for own in got for share in own[number * devices : (number + 1) * devices]]
        assert {len(share["label"]) for share in shares} == {6 // (machines * devices)}
        for name, values in batch.items():
            np.testing.assert_array_equal(np.concatenate([share[name] for share in shares]), values)


@pytest.mark.parametrize("machines, devices", [(2, 1), (3, 2)])
def test_each_machine_reads_its_own_slice_of_the_records_and_no_other(reader, machines, devices, monkeypatch):
    read, plain = [], reader.read
    monkeypatch.setattr(reader, "read", lambda numbers: read.append(list(numbers)) or plain(numbers))
    for machine in range(machines):
        context = tf.distribute.InputContext(machines, machine, machines * devices)
        batches(reader, stop=STEPS, context=context)
        wanted = [np.split(sampler_of(reader).batch(step), machines)[machine] for step in range(STEPS)]
        # Two calls of the reader may be under way at once.
        assert sorted(read) == sorted(part.tolist() for part in wanted)
        read.clear()


def test_the_shape_of_a_share_is_known_before_it_is_read(reader):
    context = tf.distribute.InputContext(3, 0, 6)
    spec = train_batches(reader, sampler_of(reader), LOADER, stop=1, context=context).element_spec
    assert spec["image"].shape.as_list() == [1, SIZE, SIZE, 3] and spec["label"].shape.as_list() == [1]
