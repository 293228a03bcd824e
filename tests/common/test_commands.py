import pytest

from tests.command_lines import run

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
