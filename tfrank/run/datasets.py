"""Builds the records, images and batches of a run from its config."""

import copy
import dataclasses
import os
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.configs import sections
from tfrank.configs.fields import OPEN
from tfrank.configs.sections.data import FOREIGN, SAMPLERS
from tfrank.data import pipeline, vectors
from tfrank.data.images import ImageLoader
from tfrank.data.index import RecordIndex, concatenate, select
from tfrank.data.prepare.builder import prepare
from tfrank.data.prepare.scan import open_foreign_records
from tfrank.data.record_folder import (
    GROUND_TRUTH,
    is_of_another_source,
    load_ground_truth,
    load_summary,
    open_split,
)
from tfrank.data.records import RecordReader, encoded_image
from tfrank.data.relabel import add_label_noise, hold_out, merge_classes
from tfrank.data.samplers import (
    AllClassesSampler,
    CategoryPairsSampler,
    ClassBalancedSampler,
    Sampler,
    UniformSampler,
)
from tfrank.data.sources.image import ROLES
from tfrank.data.templates import TEMPLATES, Templates, load_templates
from tfrank.data.transforms import Transform
from tfrank.data.vectors import VectorLoader
from tfrank.run import settings
from tfrank.run.workdir import check_records_of

# Sources whose classes the config divides into train and test.
DIVIDED_BY_CONFIG = ("digits", "letters", "omniglot")

# Sources whose images come with a package, so that there is no path to give.
IN_PACKAGES = ("digits", "letters")


@dataclasses.dataclass(frozen=True)
class Data:
    """The records of a run.

    Attributes:
        train: training images.
        validation: images of the classes held out of the training set, or None.
        test: test images.
        relevance: graded relevance of the test set: for each query id, the gallery ids of each grade. Or its
            templates and their pairs. None if labels define relevance.
        said: `[images]` labels of the training images as the records have them: not merged or noisy, and
            `UNKNOWN` of an image without a class.
        stored: `[images, dim]` embeddings of the training images by other models, by name; see
            `other_models`.
    """

    train: RecordIndex
    validation: RecordIndex | None
    test: RecordIndex
    relevance: dict | Templates | None
    said: np.ndarray
    stored: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def build_data(data: sections.Data, workdir: str, *, seed: int, unlabelled: bool = False) -> Data:
    """Opens the records of a data set; writes them to `workdir/records` if it names none.

    Classes that are held out or merged, and false labels, are drawn by the seed. With `unlabelled`, as a
    teacher allows it, each training image without a class gets a label of its own, below `UNKNOWN`.
    """
    files.make_folder(workdir)
    train, (test, relevance) = build_train_set(data, workdir), build_test_set(data, workdir)
    _check_boxes(data, "region", train, "train")
    if unlabelled and train.label.min() < UNKNOWN:
        raise InputError(
            f"A training image has label {train.label.min()}. Where there is a teacher, labels of classes"
            f" have to be 0 or more, and {UNKNOWN} is no class."
        )
    if missing := np.count_nonzero(train.label == UNKNOWN):
        if not unlabelled:
            raise InputError(
                f"{missing:,} of {len(train):,} training records have no class. Give others,"
                " --config.data.records=PATH, and test records by --config.data.test_records=PATH. Or name"
                " a teacher to learn from, --config.train.teacher=PATH."
            )
        print(
            f"{missing:,} of {len(train):,} training images have no class. They learn from the teacher alone."
        )
    if not data.test_records:
        _warn_of_common(train, test, foreign=data.name == FOREIGN)
    check_records_of(workdir, {"train": train.fingerprint(), "test": test.fingerprint()})
    train, validation, said = _relabelled(data, train, seed)
    for name, index in (("train", train), ("validation", validation), ("test", test)):
        if index:
            number = index.num_classes - missing * (index is train)
            print(f"{name}: {len(index):,} images{f' of {number:,} classes' if number else ''}")
    return Data(train, validation, test, relevance, said)


def build_test_set(
    data: sections.Data, workdir: str
) -> tuple[RecordIndex, dict[str, Any] | Templates | None]:
    """Opens the test records, with their graded relevance or templates if they have any; see `Data`."""
    test, relevance = _open_test(data, workdir)
    _check_boxes(data, "test_region" if data.test_region else "region", test, "test")
    return test, relevance


def _open_test(data, workdir):
    if data.name == FOREIGN:
        return _open_foreign(data, data.test_records or data.records, data.test, workdir), None
    folder = data.test_records or _records_folder(data, workdir)
    by_config = data.name in DIVIDED_BY_CONFIG and not data.test_records
    test = concatenate([open_split(folder, split) for split in (("test",) if by_config else data.test)])
    relevance = load_ground_truth(folder)
    if relevance is None:
        relevance = load_templates(folder)
    if relevance is None and (test.label == UNKNOWN).any():
        raise InputError(
            f"The test records have no classes, and there is no {GROUND_TRUTH} or {TEMPLATES} in {folder}."
        )
    return test, relevance


def _check_boxes(data, field, index, use):
    """Raises InputError if the config crops images to boxes that they lack: that is another protocol.

    Gallery images may lack boxes: ROxford crops only its queries.
    """
    looked_for = (index.role == ROLES.index("")) | (index.role == ROLES.index("query"))
    missing = int((looked_for & ~index.has_box).sum())
    if getattr(data, field) == "box" and missing:
        raise InputError(
            f"config.data.{field} is box, and {missing:,} of {int(looked_for.sum()):,} images to {use} on"
            " have no box. Prepare the records anew, from a source with a box for each image; or take whole"
            f" images, --config.data.{field}=image, whose results cannot be compared with those of boxes."
        )


def test_name(data: sections.Data) -> str:
    """Returns the name of the test set for use in paths.

    >>> test_name(sections.Data(test=("test_800",), test_records="records/vehicle_id"))
    'vehicle_id_test_800'
    """
    splits = [split for split in data.test if isinstance(split, str)] or ["test"]
    names = [os.path.basename(data.test_records.rstrip("/")), *splits]
    return re.sub(r"[^\w-]+", "", "_".join(name for name in names if name)) or "test"


def build_train_set(data: sections.Data, workdir: str) -> RecordIndex:
    """Opens the training records, before any relabelling."""
    if data.name == FOREIGN:
        return _open_foreign(data, data.records, data.train, workdir)
    splits = ("train",) if data.name in DIVIDED_BY_CONFIG else data.train
    folder = _records_folder(data, workdir)
    return concatenate([open_split(folder, str(split)) for split in splits])


def _records_folder(data, workdir):
    """Returns the folder of the prepared records; writes them to the workdir if none is named."""
    folder = data.records or os.path.join(workdir, "records")
    options: dict[str, Any] = {}
    if data.name in DIVIDED_BY_CONFIG:
        options = {"train": list(data.train), "test": list(data.test)}
    elif data.records:
        return folder
    before = load_summary(folder)
    if before is None:
        if not data.records:
            _prepare(data, folder, options)
    elif is_of_another_source(before, folder, data.source):
        raise InputError(
            f"{folder} has records of {before['source_dir']}, and {data.source} is another source or has"
            " changed since. Choose another --workdir, or give the folder of the records,"
            " --config.data.records=PATH."
        )
    elif before["source"] != data.name or not options.items() <= before["options"].items():
        raise InputError(
            f"{folder} has records of {before['source']} with {before['options']}, not of {data.name} with"
            f" {options}. Name other records, --config.data.test_records=PATH, or choose another --workdir."
        )
    return folder


def _prepare(data, folder, options):
    if not data.source and data.name not in IN_PACKAGES:
        raise InputError(
            f"The config names no images of {data.name!r}. Give their folder or archive,"
            " --config.data.source=PATH, or records that"
            " `tfrank prepare` has written, --config.data.records=PATH."
        )
    prepare(data.name, data.source, folder, options=options, num_shards=data.shards)


def _open_foreign(data, folder, patterns, workdir):
    if not folder:
        raise InputError(
            "The config names no records. Give the folder of the shards, --config.data.records=PATH."
        )
    for field in ("train", "test"):
        found = getattr(data, field)
        if not all(isinstance(pattern, str) for pattern in found):
            raise checks.invalid(f"config.data.{field}", "patterns of shard files, such as train-*", found)
    cache = files.make_folder(os.path.join(workdir, "records"))
    with checks.as_fields("data", ["features"]):
        return open_foreign_records(
            patterns, folder, features=data.features, cache=cache, processes=os.cpu_count() or 1
        )


def _warn_of_common(train, test, *, foreign):
    """Warns of images and classes that are in both parts. Of foreign records neither need be the same."""
    images = 0 if foreign else len(np.intersect1d(train.id, test.id))
    if images:
        print(
            f"Warning: {images:,} images are both in train and in test. Results on images that a model was"
            " trained on say nothing of others."
        )
    labels = len(np.setdiff1d(np.intersect1d(train.label, test.label), [UNKNOWN]))
    if labels:
        print(
            f"Warning: {labels:,} labels are both in train and in test. Where a label is the same class in"
            " both, the results are not those of classes that the model has not seen."
        )


def _relabelled(
    data: sections.Data, train: RecordIndex, seed: int
) -> tuple[RecordIndex, RecordIndex | None, np.ndarray]:
    """Returns the training part, with merged classes and label noise if configured, and the held-out part.

    Last are the labels of the training part as they were. Images without a class have none of another.
    """
    validation = None
    known = np.flatnonzero(train.label != UNKNOWN)
    if held_out_classes := settings.held_out_classes(data, train.label[known]):
        _, held_out = hold_out(train.label[known], held_out_classes, seed=seed)
        rows = np.delete(np.arange(len(train)), known[held_out])
        train, validation = select(train, rows), select(train, known[held_out])
        _, sizes = np.unique(validation.label, return_counts=True)
        if len(sizes) < 2 or sizes.max() < 2:
            raise InputError(
                f"The validation part has {len(validation)} image{'s' * (len(validation) != 1)} of"
                f" {len(sizes)} class{'es' * (len(sizes) != 1)}. To choose the best weights, it needs two"
                " classes, one of them with two images. Set a higher config.data.validation_classes, or 0 for"
                " none."
            )
    known = train.label != UNKNOWN
    labels = train.label[known]
    if data.merge_classes > 1:
        labels = merge_classes(labels, data.merge_classes, seed=seed)
        print(f"{train.num_classes:,} training classes merged by {data.merge_classes}")
    if data.label_noise:
        before, labels = labels, add_label_noise(labels, data.label_noise, seed=seed)
        print(f"{(labels != before).sum():,} of {len(labels):,} training labels are false (label_noise)")
    own = UNKNOWN - np.cumsum(~known)
    own[known] = labels
    return dataclasses.replace(train, label=own), validation, train.label


def vector_dim(data: sections.Data, workdir: str) -> int:
    """Returns the dimensions of the vectors of a data set, read from its test set if they are left open."""
    if not data.of_vectors or data.dim != OPEN:
        return data.dim
    with RecordReader(build_test_set(data, workdir)[0]) as reader:
        return len(vectors.decode(encoded_image(reader.read([0])[0])))


def build_loader(data: sections.Data, *, full_size: bool = False) -> ImageLoader | VectorLoader:
    """Builds the loader, which turns a record into the image or the vector that the model sees.

    Args:
        data: the fields of the images.
        full_size: whether tests take images at their own size.
    """
    if data.of_vectors:
        return VectorLoader(data.dim, data.features.encoded)
    transform = Transform(
        size=data.image_size,
        resize=data.resize,
        crop=data.crop,
        # Left open where no run has chosen.
        fit="centre" if data.fit == "auto" else data.fit,
        crop_area=data.crop_area,
        crop_ratio=data.crop_ratio,
        flip=data.flip,
        color_jitter=data.color_jitter,
        rotation=data.rotation,
        scale=data.scale,
    )
    return ImageLoader(
        transform=transform,
        region=data.region,
        test_region=data.test_region or data.region,
        box_margin=data.box_margin,
        box_min_aspect=data.box_min_aspect,
        full_size=full_size,
        encoded=data.features.encoded,
    )


def test_size(data: sections.Data, evaluation: sections.Evaluation) -> int:
    """Returns the side of the square that the model sees in tests, in pixels."""
    return evaluation.image_size or data.image_size


def build_test_loader(data: sections.Data, evaluation: sections.Evaluation) -> ImageLoader | VectorLoader:
    """Builds the loader of tests, whose images may be larger than those of training, or of their own size."""
    of_tests, side = copy.deepcopy(data), test_size(data, evaluation)
    of_tests.update(image_size=side, resize=round(data.resize * side / data.image_size))
    return build_loader(of_tests, full_size=evaluation.full_size)


def build_sampler(data: sections.Data, index: RecordIndex, *, seed: int) -> Sampler:
    """Builds the sampler, which chooses the images of batch t."""
    grouped: dict[str, Any] = {
        "classes_per_batch": data.classes_per_batch,
        "examples_per_class": data.examples_per_class,
        "short_classes": data.short_classes,
    }
    # The batch size of some samplers is the product of two fields: errors should name both.
    batch = {"batch_size": "classes_per_batch x config.data.examples_per_class"}
    with checks.as_fields("data", data.as_dict(), **batch):
        match data.sampler:
            case "class_balanced":
                return ClassBalancedSampler(index.label, seed=seed, **grouped)
            case "category_pairs":
                return CategoryPairsSampler(index.label, index.category, seed=seed, **grouped)
            case "all_classes":
                return AllClassesSampler(index.label, batch_size=data.batch_size, seed=seed)
            case "uniform":
                return UniformSampler(len(index), batch_size=data.batch_size, seed=seed)
    raise checks.invalid("config.data.sampler", f"one of {SAMPLERS}", data.sampler)


def build_batches(
    data: sections.Data,
    index: RecordIndex,
    stop: int,
    *,
    seed: int,
    stored: Mapping[str, np.ndarray] = types.MappingProxyType({}),
) -> tuple[Callable[..., tf.data.Dataset], Callable[[int], None]]:
    """Builds the training batches of a run on these records, until step `stop`; see `Data` for `stored`.

    Returns:
        `batches(step, context)`, the batches from that step on; `context` is that of the machine that reads,
        None if it is the only one. And `explain(step)`, which names the bad record of a failed batch.
    """
    reader, sampler, loader = RecordReader(index), build_sampler(data, index, seed=seed), build_loader(data)

    def batches(start, context=None):
        return pipeline.train_batches(
            reader,
            sampler,
            loader,
            max_shift=data.max_shift,
            start=start,
            stop=stop,
            context=context,
            columns=stored,
        )

    return batches, lambda step: pipeline.check_batch(reader, sampler.batch(step), loader)
