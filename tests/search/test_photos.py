"""A page for a folder of photos, as real processes: made, opened again, and what it says where it cannot."""

import contextlib
import multiprocessing
import os
import pathlib
import re
import signal
import socket
import threading
import time

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.command_lines import HANGS, CommandLine, run
from tests.search import write_photos
from tests.search.server.servers import save_model
from tfrank.search.index_folder import IndexFolder
from tfrank.search.signalled import say_if_killed
from tfrank.search.updating import index_of

USUAL_PORT = 8000

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def opened(photos, cwd, *flags):
    """The command, and a client of its page."""
    process = CommandLine("-m", "tfrank", "photos", str(photos), *(flags or ("--port=0",)), cwd=cwd)
    try:
        while not (found := re.search(r"(http://[^\s/]+)", process.written()[0])):
            assert process.poll() is None, process.written()
            time.sleep(0.01)
        with httpx.Client(base_url=found[1], timeout=HANGS) as client:
            yield process, client
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.wait(timeout=HANGS)


def rows_at_last(client, wanted):
    """Waits until the page searches so many photos."""
    end = time.monotonic() + HANGS
    while (rows := client.get("/v1/columns").json()["images"]) != wanted:
        assert time.monotonic() < end, rows
        time.sleep(0.1)
    return rows


def test_a_folder_is_searched_and_later_only_what_is_new_is_embedded(tmp_path):
    photos = write_photos(tmp_path / "photos")
    before = sorted(path.name for path in photos.rglob("*"))
    with opened(photos, tmp_path) as (process, client):
        rows_at_last(client, 12)
        page = client.get("/")
        assert page.status_code == 200 and "text/html" in page.headers["content-type"]
        file = next(photos.rglob("*.*")).read_bytes()
        found = client.post("/v1/search", files={"file": ("a.png", file)}).json()
        assert found["results"][0]["similarity"] > 0.999
    assert "12 embedded" in process.written()[0]
    Image.fromarray(np.full([300, 300, 3], 99, np.uint8)).save(photos / "new.png")
    with opened(photos, tmp_path) as (process, client):
        rows_at_last(client, 13)
        while "12 unchanged" not in process.written()[0]:
            time.sleep(0.1)
    assert "1 embedded, 12 unchanged" in process.written()[0]
    assert sorted(path.name for path in photos.rglob("*")) == sorted([*before, "new.png"])
    assert os.path.exists(tmp_path / index_of(str(photos)) / "CURRENT")


def test_the_embedding_ends_with_the_command_however_that_ends(tmp_path):
    photos = write_photos(tmp_path / "photos", classes=3, images=300)
    process = CommandLine("-m", "tfrank", "photos", str(photos), "--port=0", cwd=tmp_path)
    children, end = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children"), time.monotonic() + HANGS

    def started():
        for child in children.read_text().split():
            if b"spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                return pathlib.Path(f"/proc/{child}/stat")

    while not (embedding := started()) or not (tmp_path / "runs").exists():
        assert process.poll() is None and time.monotonic() < end, process.written()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # A process that has ended and that nobody asked for its status is a zombie.
    while embedding.exists() and " Z " not in embedding.read_text():
        assert time.monotonic() < end, "it goes on"
        time.sleep(0.1)
    assert not [*(tmp_path / "runs").rglob("CURRENT")], "it went on to its end"


@pytest.mark.parametrize("given", [False, True])
def test_the_page_goes_over_to_the_adapted_model(tmp_path, given):
    photos = write_photos(tmp_path / "photos", classes=3, images=40)
    flags = ["--port=0"]
    if given:
        save_model(tmp_path / "model")
        flags += [f"--model={tmp_path / 'model'}"]
    file = next(photos.rglob("*.*")).read_bytes()
    with opened(photos, tmp_path, *flags) as (process, client):
        end = time.monotonic() + HANGS
        while (found := client.post("/v1/search", files={"file": ("a.png", file)}).json())["version"] != 2:
            assert time.monotonic() < end, process.written()
            time.sleep(1)  # A search embeds the photo, beside the adapting.
        assert found["results"][0]["similarity"] > 0.999
    assert "The model was adapted to them" in process.written()[0]


def test_a_model_that_is_given_embeds_and_a_port_that_is_taken_is_left_alone(tmp_path):
    photos = write_photos(tmp_path / "photos")
    save_model(tmp_path / "model")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", USUAL_PORT))
        taken.listen()
        flags = f"--model={tmp_path / 'model'}", f"--index_dir={tmp_path / 'index'}"
        with opened(photos, tmp_path, *flags) as (process, client):
            rows_at_last(client, 12)
    assert f":{USUAL_PORT} " not in process.written()[0]
    assert IndexFolder(str(tmp_path / "index")).current().dim == 16


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "tfrank photos FOLDER"),
        (["none"], "none"),
        (["empty"], "has no images"),
        (["broken"], "No image of .*broken can be read; the first, a.png"),
    ],
)
def test_what_cannot_be_searched_is_one_line(words, message, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no image")
    ended = run("-m", "tfrank", "photos", *(str(tmp_path / word) for word in words), cwd=tmp_path)
    assert ended.status == 1 and len(ended.errors.splitlines()) == 1
    assert re.search(message, ended.errors)


def test_an_embedding_that_was_killed_later_is_said_too(capsys):
    ended = threading.Event()
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(HANGS,))
        process.start()
        os.kill(process.pid, number)
        say_if_killed(process, ended)
        ended.set()
    (said,) = capsys.readouterr().err.splitlines()
    assert "Signal 9 ended the embedding. Start again, and it goes on." in said
