"""The command tfrank scale as users run it: in one process, and in two, one of which is killed."""

import os
import pathlib
import signal
import time

import numpy as np
import pytest

from tests.command_lines import HANGS, CommandLine
from tests.scale import TWO_PROCESSES, unit, write_embeddings

EMBEDDINGS = unit(np.random.default_rng(0).normal(size=(200, 8)))
LABELS = np.arange(200) % 23


def start(*arguments):
    return CommandLine("-m", "tfrank.scale.entry_points", *arguments)


def run(*arguments):
    process = start(*arguments)
    out, err = process.communicate(timeout=HANGS)
    return process.returncode, out, err


def contents(folder):
    """The bytes of the files of a folder, by name."""
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir() if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Give one of prepare, embed, evaluate, index, search, export"),
        (["evalute"], "Unknown command 'evalute'"),
        (["evaluate", "--output_dir=x"], "tfrank scale evaluate needs --embeddings"),
        (["evaluate", "--embeddings=x", "--output_dir=x", "--runer=DirectRunner"], "no flag --runer"),
        (["evaluate", "--embeddings=x", "--output_dir=x", "--ks=one"], "expected whole numbers"),
        (["evaluate", "--embeddings=gs://nowhere/x", "--output_dir=x"], "Cannot reach gs://nowhere"),
    ],
)
def test_wrong_commands_end_with_one_line(arguments, message):
    status, out, err = run(*arguments)
    assert status == 1 and not out
    assert message in err and err.strip().count("\n") == 0


@pytest.mark.slow
def test_two_processes_give_the_metrics_of_one(tmp_path):
    folder = write_embeddings(tmp_path / "vectors", EMBEDDINGS, LABELS)
    status, out, err = run("evaluate", f"--embeddings={folder}", f"--output_dir={tmp_path / 'one'}")
    assert status == 0 and "Recall@1 " in out and not err
    flags = [f"--embeddings={folder}", f"--output_dir={tmp_path / 'two'}", *TWO_PROCESSES]
    assert run("evaluate", *flags)[0] == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.slow
def test_after_a_worker_is_killed_the_same_command_gives_the_same_bytes(model, photos, tmp_path):
    paths = sorted(photos.rglob("*.jpg"))
    lines = [f"{paths[number % 12]},image {number}\n" for number in range(600)]
    (tmp_path / "list.csv").write_text("path,id\n" + "".join(lines))
    flags = ["embed", f"--model={model}", f"--images={tmp_path / 'list.csv'}", "--rows=2"]
    assert run(*flags, f"--output_dir={tmp_path / 'whole'}")[0] == 0
    stopped = tmp_path / "stopped"
    process = start(*flags, f"--output_dir={stopped}", *TWO_PROCESSES)
    while not list(stopped.glob("*.parquet")):
        assert process.poll() is None
        time.sleep(0.01)
    # The one that works, since the other may have nothing to do.
    os.kill(max(children(process.pid), key=processor_time), signal.SIGKILL)
    _, err = process.communicate(timeout=HANGS)
    assert process.returncode == 1 and "A worker died" in err
    assert len(list(stopped.glob("*.parquet"))) < 300
    assert run(*flags, f"--output_dir={stopped}", *TWO_PROCESSES)[0] == 0
    assert contents(tmp_path / "whole") == contents(stopped)


def children(parent):
    """The processes that run Beam's workers for a process."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            if (
                b"sdk_worker_main" in words
                and ancestor(int(folder.name), parent)
                and b"python" in words[:200]
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def processor_time(process):
    """The time that a process has run, in clock ticks."""
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[11])


def ancestor(process, parent):
    """Whether a process descends from another."""
    while process > 1 and process != parent:
        process = int(pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return process == parent
