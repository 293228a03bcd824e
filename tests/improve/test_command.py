"""The command and the button, as real processes: killed at any moment, while a server answers."""

import contextlib
import os
import signal
import time

import pytest

from tests.command_lines import HANGS, CommandLine, run
from tests.improve import write_groups, write_index
from tests.search import write_model
from tests.search.server import servers
from tfrank.search.index import open_index

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    group_of = write_groups(tmp_path / "photos", 6)
    return write_index(tmp_path / "index", write_model(tmp_path / "model"), group_of, tmp_path / "photos")


# What the command has printed or made when it is killed.
MOMENTS = {
    "at the start": lambda folder, said: os.path.isdir(os.path.join(folder, "improve")),
    "while it learns": lambda folder, said: "photos of 6 groups" in said,
    "when it has measured": lambda folder, said: "Measured on" in said,
    "while it switches": lambda folder, said: len(os.listdir(os.path.join(folder, "models"))) > 1,
}


def test_killed_at_any_moment_the_index_is_as_it_was_and_the_same_command_ends_it(folder):
    before = open_index(folder)
    for moment, reached in MOMENTS.items():
        command = CommandLine("-m", "tfrank", "improve", f"--index_dir={folder}")
        while not reached(folder, command.written()[0]):
            assert command.poll() is None, (moment, command.written())
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.communicate()
        now = open_index(folder)
        assert now.said == before.said, moment
        if moment == "while it switches" and now.version.number == 2:
            break  # It had, before the signal came.
        assert now.version == before.version, moment
    else:
        ended = run("-m", "tfrank", "improve", f"--index_dir={folder}")
        assert ended.status == 0, ended.errors
        assert not os.path.exists(os.path.join(folder, "improve"))
    assert open_index(folder).version.number == 2
    ended = run("-m", "tfrank", "improve", f"--index_dir={folder}", "--back")
    assert ended.status == 0 and open_index(folder).version.model == before.version.model


def test_bad_input_is_one_line(folder, tmp_path):
    for flags, message in (
        ([], "Give the folder of the index"),
        ([f"--index_dir={tmp_path}"], "is not an index folder"),
        ([f"--index_dir={folder}", "--back"], "no way back"),
    ):
        ended = run("-m", "tfrank", "improve", *flags)
        assert ended.status == 1 and message in ended.errors and len(ended.errors.splitlines()) == 1


def state_at_last(server):
    """Waits until nothing runs, while searches are answered."""
    end = time.monotonic() + HANGS
    while (found := server.client.get("/v1/improve").json())["state"] == "running":
        assert time.monotonic() < end, found
        assert server.search(id="0-0.png", k=3).status_code == 200
        time.sleep(0.2)
    return found


def test_the_server_goes_on_answering_while_the_index_learns_and_goes_back(folder):
    with servers.serving(folder, token="") as server:
        key = {"Authorization": f"Bearer {server.key}"}
        assert server.client.post("/v1/improve", json={}).status_code == 401
        assert server.client.get("/v1/improve").json()["state"] == "none"
        assert server.client.post("/v1/improve", json={}, headers=key).status_code == 202
        again = server.client.post("/v1/improve", json={}, headers=key)
        assert (again.status_code, again.json()["error"]) == (409, "The index is being improved already.")
        found = state_at_last(server)
        assert found["state"] == "done" and any("Measured on 6 groups" in line for line in found["lines"])
        assert server.client.post("/v1/improve", json={}, headers=key).status_code == 202
        found = state_at_last(server)
        assert found["state"] == "failed" and "has learnt these groups already" in found["lines"][0]
        assert found["may_go_back"]
        assert server.client.post("/v1/improve", json={"back": True}, headers=key).status_code == 202
        assert state_at_last(server)["state"] == "done"
