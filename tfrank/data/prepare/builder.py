"""Prepares a folder of records from a data set: shards, their index, and a list of skipped images.

Until the folder is complete, everything is in its subfolder `.unfinished`, from which an interrupted
preparation resumes.
"""

import collections
import contextlib
import csv
import dataclasses
import errno
import inspect
import io
import itertools
import json
import math
import os
import shutil
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

import tfrank
from tfrank.common import checks, files
from tfrank.common.checks import InputError
from tfrank.common.files import locked
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.data.index import index_path
from tfrank.data.prepare import copies, overview, shards
from tfrank.data.prepare.archives import is_archive, unpack
from tfrank.data.prepare.image_files import JPEG_QUALITY, SHORTER_SIDE
from tfrank.data.prepare.listing import check_disjoint, check_enough, check_images_apart, list_images
from tfrank.data.prepare.processes import Processes, Writer
from tfrank.data.prepare.shards import Skipped
from tfrank.data.record_folder import (
    GROUND_TRUTH,
    SKIPPED,
    SUMMARY,
    identity_of_source,
    is_of_another_source,
    load_summary,
)
from tfrank.data.sources import SOURCES
from tfrank.data.sources.counts import compare_counts
from tfrank.data.sources.image import ROLES
from tfrank.data.templates import save_templates

UNFINISHED = ".unfinished"
IMAGES_PER_SHARD = 10_000
MIN_SHARDS = 4


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
    root: str = "",
    writer: Writer | None = None,
) -> dict[str, Any]:
    """Writes the records of a data set; does nothing if they exist already.

    With several processes, a script that calls this needs `if __name__ == "__main__":`, because the worker
    processes import the script.

    Args:
        name: one of `SOURCES`.
        source_dir: the data set's folder, or an archive (zip, tar), which is unpacked for the time of the
            preparation; "" if the data is part of a package.
        output_dir: gets `<split>-00000-of-00004.tfrecord` and so on, `<split>.index`, `skipped.csv` and
            `prepared.json`; `duplicates.csv` if photos are in train and in test, or in two classes; and
            `near_copies.csv` if photos have near copies.
        options: options of the source's function; and `shorter_side` in pixels, to which larger images are
            shrunk. 0 keeps their size. The default is 512 for folders and CSV files, 0 for published data.
            Folders and CSV files also have `near_copies`, see `copies`; the default is "keep".
        num_shards: shards per split; 0: one for each 10,000 images, at least 4.
        processes: number of worker processes; 0: one per core.
        max_skipped: the share of images that may be left out because they are missing, damaged, repeated or
            no image. Their number is rounded up.
        allow_common_classes: whether classes to train on may be among those to test on.
        root: the folder, local or remote, that paths in a manifest are relative to; "": that of the manifest.
        writer: who writes the shards; None: processes of this machine.

    Returns:
        The content of `prepared.json`: the source, its folder, and classes and images of each split.

    Raises:
        InputError: the data set is not as expected, too many images are bad, or `output_dir` holds records
            of something else.
    """
    checks.integer("num_shards", num_shards, at_least=0)
    checks.number("max_skipped", max_skipped, at_least=0, at_most=1)
    writer = writer or Processes(checks.integer("processes", processes, at_least=0) or os.cpu_count())
    source, about, options, near = _asked(name, dict(options))
    if source_dir and os.path.realpath(source_dir) == os.path.realpath(output_dir):
        raise InputError(f"{output_dir} is the folder of the source. Choose another folder for the records.")
    if files.is_remote(output_dir):
        raise InputError(f"Records are written to local folders; copy them to {output_dir} afterwards.")
    with locked(output_dir), _naming_a_full_disk(output_dir):
        summary = load_summary(output_dir)
        if summary is None:
            work = files.make_folder(os.path.join(output_dir, UNFINISHED))
            about |= identity_of_source(source_dir, root)  # Before it is read: it may change meanwhile.
            source = source.in_layout_of(folder := _unpacked(source_dir, work))
            # Paths in a manifest are relative to its folder.
            root = root or (os.path.dirname(folder) if os.path.isfile(folder) else folder)
            with _naming_the_archive(folder, source_dir):
                listings = list_images(source.read(folder, **options), work, root=root)
            _check_listings(source, listings, source_dir, root, max_skipped, allow_common_classes)
            templates = source.templates and save_templates(work, source.templates(folder))

            def write(listings, choose=dict):
                tasks = choose(_tasks(listings, root, work, num_shards, about["shorter_side"], source.own))
                return tasks, *_write_shards(tasks, output_dir, writer, max_skipped)

            written, said = write(listings), []
            if source.own:
                written, said = overview.looked_over(listings, written, near, write, output_dir)
            tasks, skipped, changes = written
            if templates:
                save_templates(output_dir, templates, shards.joined(itertools.chain(*tasks.values())).id)
            splits = {split: _join(split, tasks[split], skipped, output_dir, writer) for split in tasks}
            if source.ground_truth:
                files.write_json(os.path.join(output_dir, GROUND_TRUTH), source.ground_truth(folder))
            summary = about | {
                "tfrank": tfrank.__version__,
                "images": changes,
                "jpeg_quality": JPEG_QUALITY,
                "splits": splits,
                "advice": said,
                **(templates.counts() if templates else {}),
            }
            files.write_json(os.path.join(output_dir, SUMMARY), summary)
        else:
            _check_existing(summary, about, output_dir, (source_dir, root), writer)
        shutil.rmtree(os.path.join(output_dir, UNFINISHED), ignore_errors=True)
    return summary


def _asked(name, options):
    """Returns the source, what `prepared.json` says of it, its own options, and what is done with copies."""
    near = checks.one_of("near_copies", options.pop("near_copies", "keep"), copies.CHOICES)
    shorter_side = options.pop("shorter_side", None)
    source = _source(name, options)
    if shorter_side is None:
        shorter_side = SHORTER_SIDE if source.own else 0
    checks.integer("shorter_side", shorter_side, at_least=0)
    if near != "keep" and not source.own:
        raise InputError(f"near_copies is for photos of your own, not for {name!r}. Leave it out.")
    asked = options | ({} if near == "keep" else {"near_copies": near})
    return source, _as_json({"source": name, "options": asked, "shorter_side": shorter_side}), options, near


def _as_json(tree):
    return json.loads(json.dumps(tree, default=list))


def _check_existing(summary, about, output_dir, source, writer):
    """Rebuilds missing indexes; raises InputError if the records are of another source or other options."""
    if is_of_another_source(summary, output_dir, *source):
        raise InputError(
            f"{output_dir} has records of {summary['source_dir']}, and {source[0]} is another source or has"
            " changed since. Choose another folder, or delete the records to write them anew."
        )
    before = {"shorter_side": 0} | summary  # Earlier versions did not shrink, and did not write this key.
    if {key: before[key] for key in about} != about:
        of, now = (f"{one['source']} with options {_all_options(one)}" for one in (before, about))
        raise InputError(f"{output_dir} has records of {of}, not of {now}. Choose another folder.")
    for split in summary["splits"]:
        writer.check(output_dir, split)


def _all_options(about):
    return about["options"] | {"shorter_side": about["shorter_side"]}


@contextlib.contextmanager
def _naming_a_full_disk(output_dir):
    """Turns the error of a full disk into an InputError that says what to do; finished shards are kept."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InputError(
            f"The disk of {output_dir} is full. Make room and run the same command again: it resumes with the"
            " missing shards."
        ) from None


@contextlib.contextmanager
def _naming_the_archive(folder, source_dir):
    """Makes errors name the archive that the user gave instead of the folder that it was unpacked to."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(folder, source_dir) if folder else str(error)) from None


def _source(name, options):
    checks.one_of("source", name, SOURCES)
    known = dict(list(inspect.signature(SOURCES[name].read).parameters.items())[1:])
    listed = f"Its options are {', '.join(known)}." if known else "It has none."
    for option in options:
        if option not in known:
            hint = checks.did_you_mean(option, known)
            raise InputError(f"Source {name!r} has no option {option!r}.{hint} {listed}")
    needed = [option for option, about in known.items() if about.default is about.empty]
    if not options.keys() >= set(needed):
        raise InputError(
            f"Source {name!r} needs the options {', '.join(needed)}. Give each;"
            f" prepare takes --option={needed[0]}=A,B"
        )
    return SOURCES[name]


def _unpacked(source_dir, work):
    if source_dir:
        print(f"Reading {os.path.abspath(source_dir)}", flush=True)
    if source_dir and not os.path.exists(source_dir):
        raise InputError(
            f"The source does not exist: {source_dir}. Give the path of the data set's folder or archive."
        )
    if not is_archive(source_dir):
        return source_dir
    print(f"Unpacking {source_dir}", flush=True)
    # Name the folder after the archive's path, size and time, so that no other archive is taken for it.
    status = os.stat(source_dir)
    about = f"{os.path.realpath(source_dir)} {status.st_size} {status.st_mtime_ns}"
    return unpack(source_dir, os.path.join(work, f"unpacked-{zlib.crc32(os.fsencode(about)):08x}"))


def _check_listings(source, listings, source_dir, root, max_skipped, allow_common_classes):
    """Prints what was listed; raises InputError for errors that are known before any image is read."""
    print(f"{sum(map(len, listings.values())):,} images listed", flush=True)
    if source.own:
        check_enough(listings, source_dir)
    if not allow_common_classes:
        check_disjoint(listings)
    if source.own:
        check_images_apart(listings)
    counts = {}
    for split, listing in listings.items():
        counts |= listing.counts(split)
    for difference in compare_counts(source, counts):
        print(f"Note: {difference}")
    _check_missing(source, listings, root, max_skipped)


def _check_missing(source, listings, root, max_skipped):
    """Raises InputError if more files are missing than may be skipped; usually the paths are wrong."""
    counts = ((len(x), x.missing, x.unusable) for x in listings.values())
    total, missing, unusable = map(sum, zip(*counts))
    if missing <= math.ceil(max_skipped * total):
        return
    path = next(listing.first_missing for listing in listings.values() if listing.missing)
    looked_for = os.path.join(os.path.abspath(root), path)
    relative = "" if os.path.isabs(path) else f", since paths are relative to {os.path.abspath(root)}"
    message = (
        f"{missing:,} of {total:,} listed images do not exist. The first, {path}, was expected at"
        f" {looked_for}{relative}. Correct the paths"
    )
    if "\\" in path:
        message += ", with / instead of \\"
    if unusable < total:
        message += f", or skip those images: prepare them with --max_skipped={_enough(unusable, total)}"
    raise InputError(f"{message}.{source.missing and ' '}{source.missing}")


def _enough(bad, total):
    """Returns the least --max_skipped, to three decimal places, that allows so many bad images."""
    return math.ceil(1000 * bad / total) / 1000


def _tasks(listings, folder, work, num_shards, shorter_side, looks):
    return {
        split: shards.shard_tasks(
            listing,
            split,
            folder,
            work,
            num_shards=num_shards or max(MIN_SHARDS, math.ceil(len(listing) / IMAGES_PER_SHARD)),
            shorter_side=shorter_side,
            looks=looks,
        )
        for split, listing in listings.items()
    }


def _write_shards(tasks, output_dir, writer, max_skipped):
    """Writes the missing shards; returns the skipped images, and how many images were changed in each way.

    All images are checked before it is decided whether too many are bad. So the message has the sufficient
    --max_skipped, and with that the same command finds all shards written.
    """
    tasks = list(itertools.chain(*tasks.values()))
    results = list(writer.write(tasks))
    skipped = sorted(one for result in results for one in result.skipped)
    total = sum(len(task.starts) for task in tasks)
    _write_skipped(skipped, total, os.path.join(output_dir, SKIPPED), max_skipped)
    changes = collections.Counter()
    for result in results:
        changes.update(result.changes)
    return skipped, dict(sorted(changes.items()))


def _write_skipped(skipped, total, path, max_skipped):
    """Writes the list of skipped images; raises InputError if they are too many."""
    with files.atomic_write(path) as file:
        rows = io.StringIO(newline="")
        csv.writer(rows).writerows([Skipped._fields, *skipped])
        file.write(rows.getvalue().encode(errors="surrogateescape"))
    most = math.ceil(max_skipped * total)
    if len(skipped) > most:
        enough = _enough(len(skipped), total)
        remedy = f" To skip them, prepare with --max_skipped={enough}; finished shards are kept."
        raise InputError(
            f"{len(skipped):,} of {total:,} images cannot be used; at most {most:,} may be skipped."
            f"{remedy * (len(skipped) < total)} {path} lists them. The first is {skipped[0].path}:"
            f" {skipped[0].reason}"
        )


def _join(split, tasks, skipped, output_dir, writer):
    """Moves a split's shards to the output folder and saves one index; returns its part of the summary."""
    index = shards.joined(tasks)
    if not len(index):
        raise InputError(
            f"No image of the split {split!r} can be used. {os.path.join(output_dir, SKIPPED)} says why."
        )
    names = [os.path.basename(shard) for shard in index.shards]
    index = dataclasses.replace(index, shards=tuple(os.path.join(output_dir, name) for name in names))
    for task, path in zip(tasks, index.shards):
        writer.move(task.path, path)
    index.save(index_path(output_dir, split))
    images = np.unique(index.label[index.label != UNKNOWN], return_counts=True)[1]
    of_class = [int(images.min()), round(float(images.mean()), 2), int(images.max())] if len(images) else None
    roles = {role: int((index.role == number).sum()) for number, role in enumerate(ROLES) if role}
    return {
        "classes": len(images),
        "images": len(index),
        "images_per_class": of_class,
        "roles": {role: count for role, count in roles.items() if count},
        "skipped": sum(one.split == split for one in skipped),
        "shards": names,
    }
