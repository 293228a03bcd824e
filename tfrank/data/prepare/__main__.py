"""Writes a data set to TFRecords: shards, their index, and a list of images that were left out.

    tfrank prepare --source=sop --source_dir=Stanford_Online_Products --output_dir=records/sop

If it was stopped, the same command resumes with the shards that are missing.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from tfrank.common import checks, commands
from tfrank.common.checks import InputError
from tfrank.data.prepare.builder import IMAGES_PER_SHARD, MIN_SHARDS, prepare
from tfrank.data.prepare.command_line import changes, parse_options, table
from tfrank.data.record_folder import SKIPPED, load_summary
from tfrank.data.sources import SOURCES

_SOURCE = flags.DEFINE_enum("source", None, sorted(SOURCES), "The data set's layout.")
_SOURCE_DIR = flags.DEFINE_string("source_dir", None, "The data set's folder, archive or manifest.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Folder for the records, their index and skipped.csv.")
_SHARDS = flags.DEFINE_integer(
    "shards", 0, f"Shards of each split; 0: one for each {IMAGES_PER_SHARD:,} images, at least {MIN_SHARDS}."
)
_PROCESSES = flags.DEFINE_integer("processes", 0, "Number of worker processes; 0: one per core.")
_MAX_SKIPPED = flags.DEFINE_float(
    "max_skipped", 0.01, "Share of images that may be skipped because they cannot be used."
)
_ALLOW_COMMON = flags.DEFINE_bool(
    "allow_common_classes", False, "Whether train and test may have classes in common."
)
_OPTION = flags.DEFINE_multi_string(
    "option", [], "Option of the source, such as --option=test_share=0.2; see the docstring of its function."
)


def next_command(source: str, folder: str, summary: Mapping[str, Any], *, installed: bool) -> str:
    """Returns the next command: train on the records, or evaluate a run on them if they are for tests only.

    Args:
        source: name of the source.
        folder: folder of the records.
        summary: content of its `prepared.json`.
        installed: whether to name the installed commands, not train_main.py and eval_main.py.

    >>> summary = {"splits": {"train": {"classes": 11_318}, "test": {}}}
    >>> next_command("sop", "records/sop", summary, installed=True)
    'tfrank train --config=configs/sop.py --config.data.records=records/sop'
    >>> next_command("sop", "records/sop", summary, installed=False)
    'python train_main.py --config=configs/sop.py --config.data.records=records/sop'
    """
    train, evaluate = (
        ("tfrank train", "tfrank eval") if installed else ("python train_main.py", "python eval_main.py")
    )
    folder, splits = shlex.quote(folder), summary["splits"]
    if "train" not in splits:
        command = f"{evaluate} --workdir={SOURCES[source].run} --config.data.test_records={folder}"
        # Loose crops have face landmarks but no boxes.
        return command + " --config.data.test_region=face" * ("templates" in summary)
    config, *flags = SOURCES[source].config or (f"{source}.py",)
    command = f"{train} --config=configs/{config} --config.data.records={folder}"
    return " ".join([command, *flags])


def main(_: Sequence[str]) -> None:
    """Prepares records as given by the flags."""
    source_dir, output_dir = _SOURCE_DIR.value, _OUTPUT_DIR.value
    if not (_SOURCE.value and source_dir and output_dir):
        raise InputError("Give --source, --source_dir and --output_dir. --help explains them.")
    before = load_summary(output_dir)
    if before and before["source_dir"] != os.path.realpath(source_dir):
        raise InputError(f"{output_dir} has records of {before['source_dir']}. Choose another --output_dir.")
    flags_of = {"num_shards": "--shards", "processes": "--processes", "max_skipped": "--max_skipped"}
    with checks.called(flags_of):
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
        print(
            f"The records exist already, so nothing was written. To prepare them again, delete {output_dir}."
        )
    else:
        print(f"Images: {changes(summary)}")
        print(f"Records: {os.path.abspath(output_dir)}")
    # Who works in a copy of the repository need not have installed the commands.
    installed = not os.path.isfile("train_main.py")
    print(f"Next: {next_command(_SOURCE.value, output_dir, summary, installed=installed)}")


def command() -> None:
    """Runs the command line of this process."""
    commands.run(main)


if __name__ == "__main__":
    command()
