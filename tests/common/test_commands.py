import os
import signal
import subprocess
import sys
import time

import pytest

from tests.command_lines import ROOT, run, run_alone
from tests.search import write_photos
from tfrank.__main__ import VERBS

INSTALLED = os.path.join(os.path.dirname(sys.executable), "tfrank")
# Ctrl-C that comes while an object is destroyed, or while a weak reference to it tells so.
CTRL_C = """
import signal, time, weakref
from tfrank.common import commands

class Thing:
    pass

def interrupt(*_):
    signal.raise_signal(signal.SIGINT)
    time.sleep(0)

def main(_):
    thing = Thing()
    {place}
    del thing
    time.sleep(20)
    print("went on")

commands.run(main)
"""


@pytest.mark.parametrize("place", ["Thing.__del__ = interrupt", "reference = weakref.ref(thing, interrupt)"])
def test_ctrl_c_ends_a_command_where_python_only_prints_it_too(place):
    assert run("-c", CTRL_C.format(place=place)) == (130, "", "Interrupted.\n")


def test_ctrl_c_that_comes_while_python_evaluates_text_ends_with_the_same_status(tmp_path):
    program = "from tfrank.common import commands\ncommands.run(lambda _: exec('raise KeyboardInterrupt'))\n"
    (tmp_path / "program.py").write_text(program)
    ended = run_alone("-m", "program", cwd=tmp_path)
    assert ended == (130, "", "Interrupted.\n")


# A program that prints a name and fails with it in its message.
NAMED = """
from tfrank.common import commands
from tfrank.common.checks import InputError

def main(_):
    print("\\x1b]0;title\\x07 a\\rb caf\\udce9 \\u202e x")
    {error}

commands.run(main)
"""


def test_names_of_files_cannot_send_codes_to_the_terminal_and_may_be_no_utf_8():
    ended = run_alone("-c", NAMED.format(error='raise InputError("\\x9b2J caf\\udce9")'))
    assert ended == (1, "\\x1b]0;title\\x07 a\\rb caf\\udce9 \\u202e x\n", "Error: \\x9b2J caf\\udce9\n")


def test_memory_that_runs_out_without_a_message_ends_in_one_line():
    ended = run_alone("-c", NAMED.format(error="raise MemoryError"))
    expected = (
        "Error: Memory ran out (MemoryError). Close other programs, or take a machine with more memory.\n"
    )
    assert (ended.status, ended.errors) == (1, expected)


def test_an_environment_without_utf_8_is_refused_in_one_line():
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    ended = run_alone("-c", NAMED.format(error="pass"), env=env)
    assert ended.status == 1 and ended.errors.startswith(
        "Error: Names of files are read and written as ascii"
    )
    assert ended.errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tfrank.search.command", "duplicates", "--index_dir=x", "--ids=a"), "duplicates takes no --ids."),
        (("tfrank.search.command", "--index_dir=x", "--images=y", "--ids=a"), "tfrank index takes no --ids."),
        (("tfrank.scale.entry_points", "embed", "--shards=3"), "tfrank scale embed takes no --shards."),
        (
            ("tfrank.scale.entry_points", "export", "--neighbors=3"),
            "export takes no --neighbors.",
        ),
    ],
)
def test_a_flag_that_an_action_does_not_take_is_refused(arguments, message):
    ended = run("-m", *arguments)
    assert ended.status == 1 and message in ended.errors, ended


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["train_main.py"],
        ["eval_main.py"],
        ["-m", "tfrank.data.prepare"],
        ["-m", "tfrank.export"],
        ["-m", "tfrank", "index"],
        *([INSTALLED, verb] for verb in VERBS),
    ],
    ids=lambda command: os.path.basename(command[-1]),
)
def test_ctrl_c_while_a_command_starts_ends_it_in_one_line(command):
    if command[0] == INSTALLED and not os.path.exists(INSTALLED):
        pytest.skip("tfrank is not installed here")
    for seconds in (0.3, 1, 2.2):
        process = subprocess.Popen(
            [sys.executable, *command, "--help"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
        if printed:  # It had begun to print its help, and perhaps ended.
            assert "Traceback" not in errors
            break
        assert (process.returncode, errors) == (130, "Interrupted.\n"), seconds


def test_ctrl_c_reaches_a_program_that_uses_tfrank(tmp_path):
    (tmp_path / "train_main.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nimport tfrank\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    assert (
        run_alone("train_main.py", cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}).output
        == "True\n"
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--source=folder", "--source_dir=photos", "--output_dir=records"]]
)
def test_a_standard_output_without_room_is_named_and_nothing_else_is_blamed(tmp_path, arguments):
    write_photos(tmp_path / "photos", classes=4)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tfrank.data.prepare", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "Error: Cannot write to the standard output (No space left on device).\n"
