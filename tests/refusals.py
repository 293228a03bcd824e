"""Command lines that must be refused, each with status 1 and one line of advice.

They stand in text files: a command line's arguments, then, indented, the message. `{bad}` is the folder of
bad input (see `bad_inputs.py`), `{new}` one that does not exist yet, and `...` any text.
"""

import pathlib
import re

from tests import bad_inputs
from tests.command_lines import PREPARE, Ended, run

# Where a command line names no config.
CONFIG = "--config=configs/digits.py"
# A run of seconds.
SMALL = (
    "--config.data.image_size=8",
    "--config.data.classes_per_batch=4",
    "--config.data.examples_per_class=4",
    "--config.model.filters=8",
    "--config.model.embedding_dim=8",
    "--config.train.steps=4",
    "--config.evaluation.baselines=False",
)
# The same on few digits.
DIGITS = (
    "--config.data.train=0",
    "--config.data.train=1",
    "--config.data.test=8",
    "--config.data.test=9",
)
# In a command line that chooses its own data.
OWN_DATA = ("--config=", "config.data.train", "config.data.name", "config.data.test", "config.data.source")


def rows(path: pathlib.Path) -> list[tuple[str, str]]:
    """The command lines of a text file, each with its message."""
    table = []
    for line in path.read_text().splitlines():
        if not line.startswith(" "):
            table.append((line.replace('""', ""), []))
        else:
            table[-1][1].append(line.strip())
    return [(arguments, " ".join(message)) for arguments, message in table]


def make_bad_inputs(folder: pathlib.Path) -> None:
    """Fills a folder with bad input, and with records that `prepare` wrote."""
    bad_inputs.make(folder)
    flags = ["--source=folder", f"--source_dir={folder}/photos", f"--output_dir={folder}/prepared"]
    done = run(*PREPARE, *flags)
    assert done.status == 0, done.errors


def make_bad_runs(folder: pathlib.Path) -> None:
    """Adds a run and an evaluation to the folder of bad input, and damaged copies of both."""
    for arguments in (
        ("train_main.py", f"--workdir={folder}/run", CONFIG, *SMALL, *DIGITS),
        ("eval_main.py", f"--embeddings={folder}/good_x.npz"),
    ):
        done = run(*arguments)
        assert done.status == 0, done.errors
    bad_inputs.damage_evaluations(folder)
    bad_inputs.damage_runs(folder)


def words(program: str, arguments: str, bad: pathlib.Path, new: pathlib.Path) -> list[str]:
    """The words of a command line; a training is small, in a folder of its own, and on records that exist."""
    given = arguments.replace("{bad}", str(bad)).replace("{new}", str(new)).split()
    if program != "train_main.py":
        return given
    config = () if "--config=" in arguments else (CONFIG,)
    data = () if any(name in arguments for name in OWN_DATA) else DIGITS
    if "--workdir" in arguments:
        return [*config, *SMALL, *data, *given]
    if data and "config.data.records" not in arguments:
        data = (*data, f"--config.data.records={bad}/run/records")
    return [f"--workdir={new}", *config, *SMALL, *data, *given]


def check(ended: Ended, message: str, bad: pathlib.Path, new: pathlib.Path) -> None:
    """Status 1, and on the standard error the one line that is expected."""
    assert ended.status == 1, ended
    line = f"Error: {message}".replace("{bad}", str(bad)).replace("{new}", str(new))
    pattern = ".*".join(re.escape(part) for part in line.split("..."))
    assert re.fullmatch(pattern, ended.errors.removesuffix("\n")), ended.errors
