"""What a command sets before it imports much: it keeps memory that it frees, and Keras imports less."""

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
    assert (float(printed(PROGRAM, program, usual | environment)) > 200) == kept


def printed(code, program, environment):
    """What Python code prints in a process that was started as a program."""
    command = [sys.executable, "-c", code.format(argv=[str(ROOT / program)])]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout


# Prints what Keras has imported of what it needs not, and whether that can be imported later.
IMPORTS = """
import sys
sys.argv = {argv!r}
import tfrank.common
names = ["matplotlib", "pandas", "sklearn"]
print(*(name for name in names if name in sys.modules))
import matplotlib.pyplot, pandas, sklearn.neighbors
print(pandas.DataFrame, sklearn.neighbors.NearestNeighbors)
"""


@pytest.mark.parametrize(
    "program, imported", [("eval_main.py", ""), ("mine.py", "matplotlib pandas sklearn")]
)
def test_keras_is_imported_whole_but_for_commands_which_import_the_rest_when_they_need_it(program, imported):
    first, second = printed(IMPORTS, program, os.environ).splitlines()
    assert first == imported and "DataFrame" in second and "NearestNeighbors" in second
