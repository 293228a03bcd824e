"""Writes a data set to TFRecords: shards, their index, and what was left out.

    python -m tfrank.data.prepare --source=sop --source_dir=Stanford_Online_Products --output_dir=records/sop

Killed and started again with the same command, it goes on with the shards that are missing.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from tfrank import checks, commands
from tfrank.checks import InputError
from tfrank.data.preparation import FEWEST_SHARDS, IMAGES_IN_A_SHARD, SKIPPED, prepare, prepared
from tfrank.data.sources import SOURCES

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


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Options of a source as they stand on a command line.

    >>> parse_options(["test_share=0.2", "train=Greek,Latin"])
    {'test_share': 0.2, 'train': ['Greek', 'Latin']}
    """
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise checks.invalid("option", "something like test_share=0.2", pair)
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value.split(",") if "," in value else value
    return options


def main(_: Sequence[str]) -> None:
    """The command."""
    source_dir, output_dir = _SOURCE_DIR.value, _OUTPUT_DIR.value
    if not (_SOURCE.value and source_dir and output_dir):
        raise InputError("Give --source, --source_dir and --output_dir. --help explains them.")
    before = prepared(output_dir)
    if before and before["source_dir"] != os.path.realpath(source_dir):
        raise InputError(f"{output_dir} has records of {before['source_dir']}. Choose another --output_dir.")
    summary = prepare(
        _SOURCE.value,
        source_dir,
        output_dir,
        options=parse_options(_OPTION.value),
        num_shards=_SHARDS.value,
        processes=_PROCESSES.value,
        max_skipped=_MAX_SKIPPED.value,
        allow_common_classes=_ALLOW_COMMON.value,
    )
    print(table(summary))
    if any(row["skipped"] for row in summary["splits"].values()):
        print(f"Skipped: {os.path.join(output_dir, SKIPPED)}")
    if before:
        print(f"All of it was there before, nothing was written. To prepare it anew delete {output_dir}.")


if __name__ == "__main__":
    commands.run(main)
