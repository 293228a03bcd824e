"""How the command starts, and what it says where it cannot."""

import os
import socket

import numpy as np
import pytest

from tests.command_lines import run
from tests.search.server import servers

# Each starts a process, which takes seconds to import TensorFlow.
pytestmark = pytest.mark.slow
WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from tfrank.__main__ import main
main()
"""


def ended(*command):
    status, _, errors = run(*command)
    return status, errors.strip()


def test_a_port_in_use_is_named(index_folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, said = ended(*servers.COMMAND, f"--index_dir={index_folder}", f"--port={port}")
    assert status == 1 and len(said.splitlines()) == 1
    assert f"port {port} (Address already in use)" in said and "--port" in said


def test_a_missing_index_and_no_index_are_named(tmp_path):
    status, said = ended(*servers.COMMAND, f"--index_dir={tmp_path / 'none'}")
    assert status == 1 and said.endswith("none is not an index folder. Make one with tfrank index.")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("name, module", [("serve", "fastapi"), ("serve", "pyarrow"), ("index", "pyarrow")])
def test_a_missing_extra_is_one_line(name, module):
    flags = ["--index_dir=x"]
    status, said = ended("-c", WITHOUT, module, name, *flags)
    assert status == 1 and len(said.splitlines()) == 1
    assert module in said and "pip install 'tfrank[serve]'" in said


@pytest.mark.parametrize("host", ["", " ", "a..b", "\u00e4" * 80])
def test_an_address_that_is_none_is_refused(index_folder, host):
    status, said = ended(*servers.COMMAND, f"--index_dir={index_folder}", f"--host={host}", "--port=0")
    assert status == 1 and len(said.splitlines()) == 1
    assert ("--host is empty" if not host.strip() else "Cannot listen at") in said


@pytest.mark.parametrize("name", ["max_megabytes", "max_megapixels"])
@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e300"])
def test_a_limit_that_is_no_number_is_refused_at_the_start(index_folder, name, value):
    status, said = ended(*servers.COMMAND, f"--index_dir={index_folder}", f"--{name}={value}")
    assert status == 1 and len(said.splitlines()) == 1 and f"--{name}" in said


@pytest.mark.parametrize("token", ["geheim\u00fc", "qx\nqy", " qx", "qx ", "qx\x7f"])
def test_a_token_that_no_header_can_carry_is_refused_at_the_start(index_folder, token):
    environment = {**os.environ, "TFRANK_TOKEN": token}
    status, _, said = run(*servers.COMMAND, f"--index_dir={index_folder}", env=environment)
    assert status == 1 and len(said.strip().splitlines()) == 1
    assert "token cannot be sent in a header" in said and token.strip() not in said


def test_the_demo_trains_indexes_and_serves_once(tmp_path):
    for _ in range(2):
        with servers.serving(str(tmp_path / "demo"), "--demo") as server:
            items = server.client.get("/v1/items?k=40").json()["results"]
            labels = [item["metadata"]["label"] for item in items]
            answers = [server.search(id=item["id"], k=1).json() for item in items]
            nearest = [answer["results"][0]["metadata"]["label"] for answer in answers]
            assert all("Armenian " in label or "Georgian letter " in label for label in labels)
            assert answers[0]["version"] == 1
            assert np.mean(np.equal(labels, nearest)) > 0.7
