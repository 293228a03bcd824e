"""What a command sets before it imports much: memory that it frees stays its own."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# Takes and frees 256 MB twice, in a thread; prints how much of it the process still has.
PROGRAM = """
import sys, threading
sys.argv = {argv!r}
import tfrank.common
import numpy as np
def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20
def take():
    np.ones(2**25)
    np.ones(2**25)
before = held()
thread = threading.Thread(target=take)
thread.start()
thread.join()
print(held() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux how much memory a process has")
@pytest.mark.parametrize(
    "program, environment, kept",
    [
        ("train_main.py", {}, True),
        ("mine.py", {}, False),
        ("train_main.py", {"MALLOC_ARENA_MAX": "16"}, False),
    ],
    ids=["a command", "a program that uses tfrank", "a command that is told otherwise"],
)
def test_a_command_keeps_the_memory_that_it_frees(program, environment, kept):
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    code = PROGRAM.format(argv=[str(ROOT / program)])
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=usual | environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert (float(found.stdout) > 200) == kept
