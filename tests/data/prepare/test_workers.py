"""Work in several processes: all of it is done or stopped at once, and no process is left."""

import multiprocessing.forkserver
import os
import pathlib
import time

import pytest

from tfrank.data.prepare.workers import Counts, run_tasks

SECONDS = 60


def work(task, counts):
    """Counts a task; fails at -1, and takes long at any other below 0 unless it is told to stop."""
    counts.add()
    if task == -1:
        raise ValueError("no such task")
    end = time.monotonic() + SECONDS * (task < 0)
    while time.monotonic() < end and not counts.stopped:
        time.sleep(0.01)
    return 2 * task


@pytest.fixture(autouse=True)
def no_server_yet():
    """Ends the server that command lines of other tests were forked from: Python has one a process."""
    multiprocessing.forkserver._forkserver._stop()


def servers():
    """The processes of this one that others are forked from."""
    found = []
    for path in pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for child in path.read_text().split():
            if b"forkserver" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


@pytest.mark.slow
def test_several_processes_do_all_tasks_and_their_server_ends():
    counts, during = Counts(), []
    done = run_tasks(work, range(9), counts=counts, processes=2, watch=lambda: during.append(servers()))
    assert sorted(done) == [2 * task for task in range(9)] and counts.done == 9
    assert any(during) and not servers()


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_after_an_error_no_more_is_done(processes):
    counts = Counts()
    begun = time.monotonic()
    with pytest.raises(ValueError, match="no such task"):
        list(run_tasks(work, [-1, *[-2] * 40], counts=counts, processes=processes, watch=lambda: None))
    assert time.monotonic() - begun < SECONDS and counts.done <= 2 + processes
    assert not servers()
