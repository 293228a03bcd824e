"""Clients that are slow, too many or too demanding, and what they leave to others."""

import concurrent.futures
import contextlib
import dataclasses
import errno
import json
import os
import shutil
import socket
import tempfile
import threading
import time
import urllib.parse

import pytest

from tests.search.server import servers
from tests.search.server.servers import drawn
from tfrank.search import index_folder
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.server import app, protocol
from tfrank.search.server import service as services
from tfrank.search.server.settings import Settings
from tfrank.search.server.threads import MOST_LONG

SETTINGS = Settings(
    max_megabytes=0.5,
    max_waiting=4,
    max_connections=20,
    header_seconds=1,
    body_seconds=1.5,
    poll_seconds=0.05,
)
HEAD = b"POST /v1/search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def here(index_folder):
    with servers.serving_here(index_folder, SETTINGS) as running:
        yield running


def test_a_part_of_a_photo_of_the_index_may_have_more_pixels_than_a_request(index_folder):
    settings = dataclasses.replace(SETTINGS, max_megapixels=0.001)
    with servers.serving_here(index_folder, settings) as small:
        part = {"id": "a/0/0.png", "box": "0,0,0.5,0.5"}
        assert small.client.post(
            "/v1/search", files={"id": (None, part["id"]), "box": (None, part["box"])}
        ).is_success
        sent = small.client.post("/v1/search", files={"file": ("a.png", drawn((1, 2, 3), 0))})
        assert sent.status_code == 413 and "60 x 40 pixels" in sent.json()["error"]


def answers_others(here):
    """Whether searches of others are answered, and soon."""
    start = time.monotonic()
    for _ in range(3):
        with here.connect() as connection:
            connection.sendall(HEAD + b'Content-Length: 19\r\n\r\n{"id": "a/0/0.png"}')
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    return time.monotonic() - start < 5


def all_of(connection):
    """What comes until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def test_an_endless_header_ends_with_431(here):
    for piece in (b"a" * 1000, b"x-a: " + b"b" * 500 + b"\r\n", b"GET / HTTP/1.1 "):
        with here.connect() as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nx-long: ")
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 3_000_000:
                    connection.sendall(piece)
                    sent += len(piece)
            assert sent < 3_000_000
    # One who stops to read sees why.
    with here.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nx-long: " + b"a" * 33_000)
        head, _, body = all_of(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431 ") and "32,768 bytes" in json.loads(body)["error"]
    assert here.client.get("/healthz", headers={"x-long": "a" * 30_000}).status_code == 200


def test_a_header_that_does_not_end_is_waited_for_a_while_only(here):
    with contextlib.ExitStack() as stack:
        begun = [stack.enter_context(here.connect()) for _ in range(6)]
        for number, connection in enumerate(begun):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n"[: 7 * number])
        assert answers_others(here)
        start = time.monotonic()
        for connection in begun:
            answer = all_of(connection)
            assert answer.startswith(b"HTTP/1.1 408 ") and b"too long" in answer
        assert time.monotonic() - start < 5


def test_a_header_that_comes_byte_by_byte_has_the_same_time(here):
    with here.connect() as connection:
        start = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() - start < 8


def test_a_header_that_came_while_the_server_was_busy_is_not_late(here, monkeypatch):
    received, busy = protocol.Connection.data_received, threading.Event()

    def received_by_a_busy_server(connection, data):
        if data == b"G":
            busy.set()
            time.sleep(1.5 * SETTINGS.header_seconds)
        received(connection, data)

    monkeypatch.setattr(protocol.Connection, "data_received", received_by_a_busy_server)
    with here.connect() as connection, here.connect() as other:
        other.sendall(b"G")
        assert busy.wait(10)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert all_of(connection).startswith(b"HTTP/1.1 200 ")


def test_bodies_that_do_not_come_keep_nobody_waiting(here):
    with contextlib.ExitStack() as stack:
        begun = [stack.enter_context(here.connect()) for _ in range(12)]
        for connection in begun:
            connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
        assert answers_others(here)
        for connection in begun:
            assert all_of(connection).startswith(b"HTTP/1.1 408 ")


def test_bodies_that_do_not_come_do_not_keep_the_server_from_its_end(index_folder, monkeypatch):
    monkeypatch.setattr(protocol, "ARRIVE_SECONDS", 0.5)
    patient = dataclasses.replace(SETTINGS, header_seconds=60, body_seconds=60)
    with servers.serving_here(index_folder, patient) as here, contextlib.ExitStack() as stack:
        begun = [stack.enter_context(here.connect()) for _ in range(12)]
        for connection in begun:
            connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
        assert answers_others(here)
        start = time.monotonic()
        here.server.should_exit = True
        for connection in begun:
            assert all_of(connection).startswith(b"HTTP/1.1 503 ")
        assert time.monotonic() - start < 5


def test_more_connections_than_allowed_close_the_one_that_waited_longest(here):
    with contextlib.ExitStack() as stack:
        begun = [stack.enter_context(here.connect()) for _ in range(3 * SETTINGS.max_connections)]
        for connection in begun[-5:]:
            connection.sendall(b"GET / HTTP/1.1\r\n")
        assert answers_others(here)
        assert all(all_of(connection) == b"" for connection in begun[: SETTINGS.max_connections])
    assert here.client.get("/healthz").json()["status"] == "ok"


def test_answers_that_nobody_reads_are_given_up(here, monkeypatch):
    monkeypatch.setattr(protocol, "PACE_SECONDS", 1)
    with contextlib.ExitStack() as stack:
        lazy = [stack.enter_context(here.connect()) for _ in range(5)]
        for connection in lazy:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                for _ in range(60):
                    connection.sendall(b"GET /v1/items?k=1000 HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        assert answers_others(here)
        until = time.monotonic() + 10
        while any(one.flow.write_paused for one in here.server.server_state.connections):
            assert time.monotonic() < until
            time.sleep(0.1)


def test_what_is_no_http_is_answered_with_one_sentence(here):
    for data in (
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ):
        with here.connect() as connection:
            connection.sendall(data)
            head, _, body = all_of(connection).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 ") and set(json.loads(body)) == {"error"}


def test_a_client_who_leaves_is_one_line_of_the_log(here, caplog):
    with caplog.at_level("INFO", "tfrank.search.server"):
        for kind in (b"application/json", b"multipart/form-data; boundary=x"):
            for sent in (b"", b"--x\r\nContent-Disposition: form-data; name="):
                head = HEAD.replace(b"application/json", kind)
                with here.connect() as connection:
                    connection.sendall(head + b"Content-Length: 1000\r\n\r\n" + sent)
        until = time.monotonic() + 5
        while len(found := [line for line in caplog.messages if "/v1/search 499" in line]) < 4:
            assert time.monotonic() < until, caplog.messages
            time.sleep(0.02)
    assert len(found) == 4 and not [record for record in caplog.records if record.exc_info]


def test_an_answer_has_at_most_so_many_images(here, monkeypatch):
    monkeypatch.setattr(services, "MOST_RESULTS", 17)
    answer = here.client.post("/v1/search", json={"id": "a/0/0.png", "k": 10**9})
    assert answer.status_code == 422 and "at most 17 images" in answer.json()["error"]
    assert here.client.post("/v1/search", json={"id": "a/0/0.png", "k": 17}).status_code == 200


def test_json_has_a_limit_of_its_own(here, monkeypatch):
    monkeypatch.setattr(app, "MOST_JSON_BYTES", 100)
    answer = here.client.post("/v1/search", json={"vector": [1] * 100})
    assert answer.status_code == 413 and "JSON may have at most 100 bytes" in answer.json()["error"]


@pytest.mark.parametrize(
    "number, status, words", [(errno.ENOSPC, 507, "disk is full"), (errno.EIO, 500, "Its log says why")]
)
def test_a_disk_that_is_full_is_said(tmp_path, model, images, monkeypatch, caplog, number, status, words):
    folder = servers.make_index(tmp_path / "index", model, images)

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    with servers.serving_here(folder, dataclasses.replace(SETTINGS, token="t")) as here:
        with monkeypatch.context() as full:
            full.setattr(index_folder.IndexFolder, "write_part", fail)
            answer = here.client.post(
                "/v1/items", files={"file": drawn((1, 2, 3), 2)}, headers={"Authorization": "Bearer t"}
            )
        assert answer.status_code == status and words in answer.json()["error"]
        with monkeypatch.context() as full:
            full.setattr(tempfile.SpooledTemporaryFile, "write", fail)
            answer = here.client.post("/v1/search", files={"file": drawn((1, 2, 3), 2)})
        assert answer.status_code == status and words in answer.json()["error"]
        assert here.client.get("/healthz").json()["images"] == 18
        assert here.client.post("/v1/search", files={"file": drawn((1, 2, 3), 2)}).status_code == 200


def test_an_index_that_cannot_be_changed_is_no_fault_of_the_request(tmp_path, model, images, caplog):
    folder = servers.make_index(tmp_path / "index", model, images)
    with servers.serving_here(folder, dataclasses.replace(SETTINGS, token="t", poll_seconds=60)) as here:
        (part,) = (tmp_path / "index").glob("embeddings-*.parquet")
        part.write_bytes(part.read_bytes()[:-100])
        headers = {"Authorization": "Bearer t"}
        answer = here.client.delete("/v1/items/a%2F0%2F0.png", headers=headers)
        assert answer.status_code == 500 and "cannot be changed" in answer.json()["error"]
        assert folder not in answer.text and folder in caplog.text


def test_ids_that_end_as_addresses_of_pictures_do(tmp_path, model, images):
    ids = ["a", "a/image", "a/thumbnail", "a/image/image", "a%2Fimage", "ö b?&#/image"]
    lines = [f'0/{place}.png,"{one}"\n' for place, one in enumerate(ids)]
    (tmp_path / "list.csv").write_text("path,id\n" + "".join(lines))
    shutil.copytree(images / "0", tmp_path / "0")
    listed = listed_images(str(tmp_path / "list.csv"))
    folder = str(tmp_path / "index")
    services.building.update(folder, Embedder(str(model)), listed, root=str(tmp_path), quiet=True)
    with servers.serving_here(folder, dataclasses.replace(SETTINGS, token="t")) as here:
        get, thumbnails = here.client.get, set()
        for one in ids:
            address = f"/v1/items/{urllib.parse.quote(one, safe='')}"
            assert get(address).json()["id"] == one
            picture = get(f"{address}/image").content
            assert picture == (tmp_path / "0" / f"{ids.index(one)}.png").read_bytes()
            thumbnails.add(get(f"{address}/thumbnail").content)
        assert len(thumbnails) == len(ids)
        gone = here.client.delete("/v1/items/a%2Fimage", headers={"Authorization": "Bearer t"})
        assert gone.json()["id"] == "a/image" and get("/v1/items/a").json()["id"] == "a"


def test_long_work_keeps_nothing_waiting_and_ends_with_the_server(tmp_path, model, images, monkeypatch):
    folder, released = servers.make_index(tmp_path / "index", model, images), threading.Event()

    def for_ever(_, check):
        while not released.wait(0.01):
            check()
        return []

    with servers.serving_here(folder, SETTINGS) as here, concurrent.futures.ThreadPoolExecutor(10) as pool:
        monkeypatch.setattr(here.service.versions.current.index, "duplicates", for_ever)
        get = here.client.get
        waiting = [pool.submit(get, f"/v1/duplicates?min_similarity=0.9{n}") for n in range(MOST_LONG)]
        until = time.monotonic() + 10
        while here.service.threads._waiting < MOST_LONG:
            assert time.monotonic() < until
        full = get("/v1/duplicates?min_similarity=0.99")
        assert full.status_code == 503
        assert full.headers["retry-after"] == "60" and "long work" in full.json()["error"]
        assert answers_others(here)
        version = services.building.remove(folder, ["a/2/0.png"]).number
        while get("/healthz").json()["version"] != version:
            assert time.monotonic() < until
            time.sleep(0.02)
        start = time.monotonic()
        here.server.should_exit = True
        assert {answer.result().status_code for answer in waiting} == {503}
        assert time.monotonic() - start < 5
