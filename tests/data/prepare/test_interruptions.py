"""Preparing is interrupted, killed, done by several processes, or meets a full disk."""

import errno
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.command_lines import HANGS, ROOT, accept_interrupt
from tests.data.prepare import files_of, picture, prepare_folder, skipped_in, write_images
from tfrank.common.checks import InputError
from tfrank.data.prepare import builder
from tfrank.data.record_folder import load_summary


def test_a_photo_that_changes_while_it_is_read_is_left_out(images, output, monkeypatch):
    changing, fstat = images / "class 0" / "0.png", os.fstat

    def write_meanwhile(number):
        status = fstat(number)
        if os.path.samestat(status, os.stat(changing)):
            os.utime(changing, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        return status

    monkeypatch.setattr(os, "fstat", write_meanwhile)
    prepare_folder(images, output)
    assert skipped_in(output)[0][1:] == ("class 0/0.png", "changed while it was read")


def test_a_full_disk_is_told_in_one_line_and_loses_nothing(images, output, monkeypatch):
    save, saved = np.save, []

    def fill(file, array, **options):
        if "looks" in getattr(file, "name", ""):
            if len(saved) == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            saved.append(file.name)
        save(file, array, **options)

    monkeypatch.setattr(np, "save", fill)
    with pytest.raises(
        InputError, match=r"^The disk of .* is full\. Make room and run the same command again"
    ):
        prepare_folder(images, output)
    monkeypatch.undo()
    done = list(pathlib.Path(output, ".unfinished").glob("*.done.json"))
    times = {path: path.stat().st_mtime_ns for path in done}
    assert len(done) == 3
    monkeypatch.setattr(builder.shutil, "rmtree", lambda *_, **__: None)
    prepare_folder(images, output)
    assert times == {path: path.stat().st_mtime_ns for path in done}


def test_an_interrupted_preparation_goes_on_with_the_shards_that_are_missing(
    images, output, tmp_path, monkeypatch
):
    prepare_folder(images, str(tmp_path / "whole"), num_shards=4)
    write, written = builder.shards.write, []

    def write_three(task, counts):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(task.path)
        return write(task, counts)

    monkeypatch.setattr(builder.shards, "write", write_three)
    with pytest.raises(KeyboardInterrupt):
        prepare_folder(images, output, num_shards=4)
    assert load_summary(output) is None
    first = list(written)
    monkeypatch.setattr(
        builder.shards, "write", lambda task, counts: written.append(task.path) or write(task, counts)
    )
    prepare_folder(images, output, num_shards=4)
    assert len(written) == 8 and not set(first) & set(written[3:])
    assert files_of(output) == files_of(tmp_path / "whole")


def add(images):
    (images / "class 0" / "new.png").write_bytes(picture(77))


def replace(images):
    """Puts another image of as many bytes in the place of one."""
    path = images / "class 1" / "1.png"
    size = path.stat().st_size
    path.write_bytes(next(data for data in map(picture, range(1000, 2000)) if len(data) == size))


@pytest.mark.parametrize("change, count", [(add, 32), (replace, 31)])
def test_a_shard_of_other_images_is_written_again(images, output, monkeypatch, change, count):
    monkeypatch.setattr(builder, "_join", None)
    with pytest.raises(TypeError):
        prepare_folder(images, output)
    monkeypatch.undo()
    change(images)
    summary = prepare_folder(images, output)
    assert sum(row["images"] for row in summary["splits"].values()) == count
    prepare_folder(images, str(images.parent / "at once"))
    assert files_of(output) == files_of(images.parent / "at once")


COMMAND = [sys.executable, "-m", "tfrank.data.prepare"]


def command(images, output, *flags):
    arguments = [*COMMAND, "--source=folder", f"--source_dir={images}", f"--output_dir={output}", *flags]
    return {"args": arguments, "cwd": ROOT, "text": True}


def run(images, output, *flags):
    return subprocess.run(**command(images, output, *flags), capture_output=True, timeout=HANGS)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Enough images for several processes."""
    return write_images(tmp_path_factory.mktemp("many") / "images", classes=45, images=90)


@pytest.fixture(scope="module")
def whole(many, tmp_path_factory):
    """What one process writes of them."""
    output = tmp_path_factory.mktemp("whole")
    done = run(many, output, "--processes=1", "--shards=40")
    assert done.returncode == 0, done.stderr
    assert "a class: least" in done.stdout and not done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"Reading {many}"
    assert lines[-2:] == [
        f"Records: {output}",
        f"Next: python train_main.py --config=configs/own_images.py --config.data.records={output}",
    ]
    return files_of(output)


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_killed_while_two_processes_write_it_goes_on_and_ends_with_the_files_of_one(
    many, whole, tmp_path, signal_number
):
    output = tmp_path / "killed"
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        **command(many, output, "--shards=40", "--processes=2"), **pipes, preexec_fn=accept_interrupt
    )
    while len(list(output.glob(".unfinished/*.done.json"))) < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    process.send_signal(signal_number)
    _, errors = process.communicate(timeout=60)
    if signal_number == signal.SIGINT:
        assert (process.returncode, errors.strip().splitlines()[-1]) == (130, "Interrupted.")
    done = len(list(output.glob(".unfinished/*.done.json")))
    assert 3 <= done < 80 and load_summary(str(output)) is None
    assert run(many, output, "--shards=40", "--processes=2").returncode == 0
    assert files_of(output) == whole


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_interrupted_while_workers_start_it_says_so_in_one_line(many, tmp_path, seconds):
    """By Ctrl-C, which all processes of a terminal get."""
    process = subprocess.Popen(
        **command(many, tmp_path / "out", "--shards=40", "--processes=2"),
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=accept_interrupt,
    )
    while "images listed" not in process.stdout.readline():
        assert process.poll() is None, process.stderr.read()
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (130, "Interrupted.")


def test_two_preparations_of_one_folder_do_not_meet(images, output):
    with builder.locked(output), pytest.raises(InputError, match="Another process is at work"):
        prepare_folder(images, output)
