"""Writes a data set to TFRecords: shards, their index, and what was left out.

    python -m tfrank.data.prepare --source=sop --source_dir=Stanford_Online_Products --output_dir=records/sop

Killed and started again with the same command, it goes on with the shards that are missing.
"""

import csv
import glob
import inspect
import io
import itertools
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

import tfrank
from tfrank import checks, commands, files
from tfrank.checks import InputError
from tfrank.data import shards
from tfrank.data.archives import is_archive, unpack
from tfrank.data.index import RecordIndex, concatenate, index_path, load_index
from tfrank.data.listing import check_disjoint, list_images
from tfrank.data.scan import scan
from tfrank.data.shards import Skipped
from tfrank.data.sources import SOURCES
from tfrank.data.sources.counts import compare_counts
from tfrank.data.workers import Counts, run
from tfrank.progress import Progress
from tfrank.workdir import locked

# What stands in a folder of records beside shards and their index.
PREPARED, SKIPPED, GROUND_TRUTH = "prepared.json", "skipped.csv", "ground_truth.json"
UNPACKED = "unpacked"
IMAGES_IN_A_SHARD = 10_000
FEWEST_SHARDS = 4
# Fewer images than that are not worth starting processes for.
_FEW_IMAGES = 4_000
_SHOWN = 5

_SOURCE = flags.DEFINE_enum("source", None, sorted(SOURCES), "The data set's layout.")
_SOURCE_DIR = flags.DEFINE_string("source_dir", None, "The data set's folder, archive or manifest.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where records, index and skipped.csv go.")
_SHARDS = flags.DEFINE_integer(
    "shards", 0, f"Of each split; 0: one for each {IMAGES_IN_A_SHARD:,} images, at least {FEWEST_SHARDS}."
)
_PROCESSES = flags.DEFINE_integer("processes", 0, "That work at once; 0: one a core.")
_MAX_SKIPPED = flags.DEFINE_float("max_skipped", 0.01, "The share of images that may be left out as bad.")
_ALLOW_COMMON = flags.DEFINE_bool(
    "allow_common_classes", False, "Whether classes to train on may be among those to test on."
)
_OPTION = flags.DEFINE_multi_string(
    "option", [], "Of the source, as in --option=test_share=0.2; its function's docstring has them."
)


def prepare(
    name: str,
    source_dir: str,
    output_dir: str,
    *,
    options: Mapping[str, Any] = {},
    num_shards: int = 0,
    processes: int = 0,
    max_skipped: float = 0.01,
    allow_common_classes: bool = False,
) -> dict[str, Any]:
    """Writes the records of a data set and prints what they are; does nothing where that has been done.

    Args:
        name: one of `SOURCES`.
        source_dir: its folder, or an archive (zip, tar), which is unpacked meanwhile.
        output_dir: gets `<split>-00000-of-00004.tfrecord` and so on, `<split>.index.npz`, `skipped.csv` and
            `prepared.json`.
        options: of the source's function.
        num_shards: of each split; 0: one for each 10,000 images, at least 4.
        processes: that work at once; 0: one a core.
        max_skipped: the share of images that may be left out: missing, damaged, no image, repeated.
        allow_common_classes: whether classes to train on may be among those to test on.

    Returns:
        What `prepared.json` says: the source, and classes and images of each split.

    Raises:
        InputError: the data set is not as it should be, too many images are bad, or `output_dir` holds
            records of something else.
    """
    checks.integer("num_shards", num_shards, at_least=0)
    checks.number("max_skipped", max_skipped, at_least=0, at_most=1)
    processes = checks.integer("processes", processes, at_least=0) or os.cpu_count()
    source = _source(name, options)
    about = json.loads(json.dumps({"source": name, "options": dict(options)}, default=list))
    with locked(output_dir):
        summary = prepared(output_dir)
        if summary is None:
            folder = _unpacked(source_dir, output_dir)
            listings = list_images(source.read(folder, **options), output_dir)
            if not allow_common_classes:
                check_disjoint(listings)
            _say_counts(source, listings)
            # Paths of a manifest are relative to where it is.
            root = os.path.dirname(folder) if os.path.isfile(folder) else folder
            tasks = _tasks(listings, root, output_dir, num_shards, max_skipped)
            skipped = _write_shards(tasks, listings, output_dir, processes)
            splits = {split: _join(tasks[split], split, output_dir) for split in listings}
            for split, row in splits.items():
                row["skipped"] = sum(one.split == split for one in skipped)
            if source.ground_truth:
                files.write_json(os.path.join(output_dir, GROUND_TRUTH), source.ground_truth(folder))
            summary = about | {"tfrank": tfrank.__version__, "splits": splits}
            files.write_json(os.path.join(output_dir, PREPARED), summary)
        elif {key: summary[key] for key in about} != about:
            raise InputError(
                f"{output_dir} has records of {summary['source']} with options {summary['options']}, not of"
                f" {name} with {about['options']}. Choose another folder."
            )
        _tidy(output_dir)
    return summary


def prepared(folder: str) -> dict[str, Any] | None:
    """What a folder of prepared records says of itself; None where preparation has not ended."""
    path = os.path.join(folder, PREPARED)
    if not os.path.exists(path):
        return None
    try:
        with open(path) as file:
            return dict(json.load(file))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}). Delete the folder and prepare it again.") from None


def open_split(folder: str, split: str) -> RecordIndex:
    """The index of a split of prepared records, made anew from the shards where it was lost.

    Raises:
        InputError: there is no such split, or its records or index are damaged.
    """
    path = index_path(folder, split)
    known = sorted((prepared(folder) or {}).get("splits", {}))
    if split in known and not os.path.exists(path):
        written = sorted(glob.glob(os.path.join(glob.escape(folder), f"{split}-*-of-*.tfrecord")))
        scan(written, processes=os.cpu_count()).save(path)
    if not os.path.exists(path):
        raise InputError(
            f"{folder} has no records of a split {split!r}.{checks.did_you_mean(split, known)}"
            + (
                f" It has {', '.join(known)}."
                if known
                else " Prepare it: python -m tfrank.data.prepare --help"
            )
        )
    return load_index(path)


def table(summary: Mapping[str, Any]) -> str:
    """The splits of prepared records: classes, images, images of a class (least, mean, most), skipped."""
    lines = [
        f"{'':12}{'classes':>10}{'images':>12}{'a class: least':>16}{'mean':>8}{'most':>8}{'skipped':>10}"
    ]
    for split, row in summary["splits"].items():
        least, mean, most = row["images_per_class"]
        lines.append(
            f"{split:12}{row['classes']:>10,}{row['images']:>12,}{least:>16,}{mean:>8.1f}{most:>8,}"
            f"{row['skipped']:>10,}"
        )
    return "\n".join(lines)


def _source(name, options):
    checks.one_of("source", name, SOURCES)
    known = list(inspect.signature(SOURCES[name].read).parameters)[1:]
    for option in options:
        if option not in known:
            listed = f"Its options are {', '.join(known)}." if known else "It has none."
            raise InputError(
                f"Source {name!r} has no option {option!r}.{checks.did_you_mean(option, known)} {listed}"
            )
    return SOURCES[name]


def _unpacked(source_dir, output_dir):
    if source_dir and not os.path.exists(source_dir):
        raise InputError(
            f"There is nothing at {source_dir}. Give the path of the data set's folder or archive."
        )
    if is_archive(source_dir):
        print(f"Unpacking {source_dir}", flush=True)
        return unpack(source_dir, os.path.join(output_dir, UNPACKED))
    return source_dir


def _say_counts(source, listings):
    counts = {}
    for split, listing in listings.items():
        counts |= listing.counts(split)
    for difference in compare_counts(source, counts):
        print(f"Note: {difference}")


def _tasks(listings, folder, output_dir, num_shards, max_skipped):
    most_bad = math.floor(max_skipped * sum(map(len, listings.values())))
    return {
        split: shards.shard_tasks(
            listing,
            split,
            folder,
            output_dir,
            num_shards=num_shards or max(FEWEST_SHARDS, math.ceil(len(listing) / IMAGES_IN_A_SHARD)),
            most_bad=most_bad,
        )
        for split, listing in listings.items()
    }


def _write_shards(tasks, listings, output_dir, processes):
    """Writes the shards that are not there yet; InputError where more images are bad than may be."""
    total = sum(map(len, listings.values()))
    counts, skipped, left = Counts(), [], []
    for task in itertools.chain(*tasks.values()):
        done = shards.finished(task)
        if done is None:
            left.append(task)
        else:
            skipped += done
            counts.add(len(task.starts) - len(done), bad=len(done))
    progress = Progress("image", total, done=counts.done + counts.bad)
    processes = min(processes, len(left)) if total >= _FEW_IMAGES else 1
    complete = True
    for whole, bad in run(
        shards.write,
        left,
        counts=counts,
        processes=processes,
        watch=lambda: progress.show(counts.done + counts.bad, f"{counts.bad} skipped  " * (counts.bad > 0)),
    ):
        complete &= whole
        skipped += bad
    path = os.path.join(output_dir, SKIPPED)
    with files.atomic_write(path) as file:
        rows = io.StringIO(newline="")
        csv.writer(rows).writerows([Skipped._fields, *sorted(skipped)])
        file.write(rows.getvalue().encode(errors="surrogateescape"))
    if not complete:
        first = "".join(f"\n  {one.path}: {one.reason}" for one in sorted(skipped)[:_SHOWN])
        raise InputError(
            f"{len(skipped):,} of {total:,} images cannot be used, which is more than the share of"
            f" --max_skipped; the rest were not looked at. {path} lists them, such as{first}"
        )
    return skipped


def _join(tasks, split, output_dir):
    """One index of a split's shards, saved; and what to say of it."""
    index = concatenate([load_index(shards.index_path(task)) for task in tasks])
    if not len(index):
        raise InputError(f"None of the images of {split!r} can be used.")
    index.save(index_path(output_dir, split))
    images = np.unique(index.label, return_counts=True)[1]
    return {
        "classes": len(images),
        "images": len(index),
        "images_per_class": [int(images.min()), round(float(images.mean()), 2), int(images.max())],
    }


def _tidy(output_dir):
    """Removes what only an interrupted preparation needs."""
    for pattern in ("*.images", "*.tfrecord.index.npz", "*.tfrecord.done.json", "*.tmp"):
        for path in glob.glob(os.path.join(glob.escape(output_dir), pattern)):
            os.remove(path)
    shutil.rmtree(os.path.join(output_dir, UNPACKED), ignore_errors=True)


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    """Options of a source as they stand on a command line."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise checks.invalid("option", "something like test_share=0.2", pair)
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def main(_: Sequence[str]) -> None:
    """The command."""
    if not (_SOURCE.value and _SOURCE_DIR.value and _OUTPUT_DIR.value):
        raise InputError("Give --source, --source_dir and --output_dir. --help explains them.")
    summary = prepare(
        _SOURCE.value,
        _SOURCE_DIR.value,
        _OUTPUT_DIR.value,
        options=_options(_OPTION.value),
        num_shards=_SHARDS.value,
        processes=_PROCESSES.value,
        max_skipped=_MAX_SKIPPED.value,
        allow_common_classes=_ALLOW_COMMON.value,
    )
    print(table(summary))
    if any(row["skipped"] for row in summary["splits"].values()):
        print(f"Skipped: {os.path.join(_OUTPUT_DIR.value, SKIPPED)}")


if __name__ == "__main__":
    commands.run(main)
