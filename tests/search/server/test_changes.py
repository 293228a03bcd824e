"""Adding, deleting, new versions and the end of a server, with readers meanwhile."""

import concurrent.futures
import signal
import socket
import threading
import time

import pytest

from tests.search.server import servers
from tests.search.server.servers import drawn
from tfrank import search
from tfrank.common import files
from tfrank.search import building, labels

NEW = drawn((240, 200, 20), 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, images):
    """An index folder that may be changed."""
    return servers.make_index(tmp_path_factory.mktemp("changed") / "index", model, images)


@pytest.fixture(scope="module")
def changing(folder):
    """A server that may change its index."""
    with servers.serving(folder) as server:
        yield server


def ids_of(answer):
    return [result["id"] for result in answer.json()["results"]]


def test_an_added_image_is_found_at_once_and_a_deleted_one_never_again(changing, folder):
    before = changing.client.get("/healthz").json()
    added = changing.add(NEW, id="new/ö & <b>.png", label="yellow")
    assert added.status_code == 201, added.text
    assert added.json() == {"version": before["version"] + 1, "id": "new/ö & <b>.png"}
    found = changing.search(NEW, k=1).json()
    assert found["version"] == before["version"] + 1 and found["results"][0]["similarity"] > 0.9999
    assert found["results"][0]["metadata"]["label"] == "yellow"
    assert ids_of(changing.search(id="new/ö & <b>.png", where='{"label": "yellow"}')) == []
    address = "/v1/items/new%2F%C3%B6%20%26%20%3Cb%3E.png"
    assert changing.client.get(f"{address}/thumbnail").status_code == 200
    image = changing.client.get(f"{address}/image")
    assert (image.content, image.headers["content-type"]) == (NEW, "image/png")
    assert changing.search(id="new/ö & <b>.png", box="0,0,0.5,0.5").status_code == 200
    # What another process sees.
    assert "new/ö & <b>.png" in search.open(folder)
    deleted = changing.delete(address.removeprefix("/v1/items/"))
    assert deleted.json()["version"] == added.json()["version"] + 1
    assert "new/ö & <b>.png" not in ids_of(changing.search(NEW, k=100))
    assert changing.client.get(address).status_code == 404


def test_an_id_is_made_from_the_content(changing):
    image_id = changing.add(NEW).json()["id"]
    assert image_id.startswith("uploads/") and changing.add(NEW).status_code == 409
    assert changing.delete(image_id).status_code == 200
    assert changing.delete(image_id).status_code == 404


def test_the_label_that_a_photo_is_sent_with_overrules_what_was_said_before_it_was_deleted(folder, changing):
    other, version = drawn((90, 9, 200), 4), lambda: labels.said(folder).version
    for old, again, file in (
        ("sent/1", "sent/1", NEW),
        ("sent/2", "sent/3", NEW),
        ("sent/4", "sent/4", other),
    ):
        assert changing.add(NEW, id=old).status_code == 201
        labels.change(folder, {old: "the old word"}, version())
        assert changing.delete(old.replace("/", "%2F")).status_code == 200
        assert changing.add(file, id=again, label="the latest").status_code == 201
        answer = changing.client.get(f"/v1/items/{again.replace('/', '%2F')}").json()
        assert answer["metadata"]["label"] == "the latest"
        assert labels.read(folder) == {}
        assert changing.delete(again.replace("/", "%2F")).status_code == 200
    # One that is sent without a label has the one that it had.
    changing.add(NEW, id="sent/1")
    labels.change(folder, {"sent/1": "the old word"}, version())
    changing.delete("sent%2F1")
    changing.add(NEW, id="sent/5")
    assert changing.client.get("/v1/items/sent%2F5").json()["metadata"]["label"] == "the old word"
    changing.delete("sent%2F5")
    labels.change(folder, {"sent/5": None}, version())


def test_bad_changes_change_nothing(changing):
    version = changing.client.get("/healthz").json()["version"]
    answers = {
        401: [changing.add(NEW, token="a wrong one"), changing.delete("a/0/0.png", token="ä")],
        409: [changing.add(NEW, id="a/0/0.png")],
        415: [changing.add(b"no image")],
        422: [
            changing.add(NEW, id="x/thumbnail"),
            changing.add(NEW, id="a\nb"),
            changing.add(NEW, id="."),
            changing.add(NEW, id=".."),
            changing.add(NEW, label="\x00"),
        ],
    }
    for status, some in answers.items():
        for answer in some:
            assert answer.status_code == status and set(answer.json()) == {"error"}, answer.text
    headers = {"Authorization": f"Bearer {servers.TOKEN}", "Origin": "http://attacker.example"}
    assert changing.client.delete("/v1/items/a%2F0%2F0.png", headers=headers).status_code == 403
    assert changing.client.get("/healthz").json()["version"] == version


def test_changes_of_several_callers_and_two_readers(changing):
    """Readers see whole versions, which never go back, and every change is in the end."""
    stop, seen, wrong = threading.Event(), [[], []], []

    def read(number):
        while not stop.is_set():
            answer = changing.search(drawn((200, 40, 30), 3), k=3)
            if answer.status_code != 200 or len(answer.json()["results"]) != 3:
                wrong.append(answer.text)
            seen[number].append(answer.json()["version"])

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        reading = [pool.submit(read, number) for number in range(2)]
        names = [f"many/{number}" for number in range(8)]
        added = list(pool.map(lambda name: changing.add(drawn((9, 9, 9), 2), id=name), names))
        deleted = list(pool.map(changing.delete, names[:4]))
        stop.set()
        concurrent.futures.wait(reading)
    assert not wrong
    assert {answer.status_code for answer in added} == {201}
    assert {answer.status_code for answer in deleted} == {200}
    assert all(versions == sorted(versions) and versions for versions in seen)
    for name in names[:4]:
        assert changing.client.get(f"/v1/items/{name}").status_code == 404
    for name in names[4:]:
        assert changing.client.get(f"/v1/items/{name}").status_code == 200


def test_a_version_that_another_process_publishes_is_served(changing, folder):
    version = building.remove(folder, ["a/2/0.png"])
    until = time.monotonic() + 10
    while changing.client.get("/healthz").json()["version"] != version.number:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert changing.client.get("/v1/items/a%2F2%2F0.png").status_code == 404


def test_a_change_waits_for_no_other_program(changing, folder):
    with files.locked(folder):
        answer = changing.add(NEW, id="locked")
    assert answer.status_code == 503 and answer.headers["retry-after"] == "5"
    assert changing.add(NEW, id="locked").status_code == 201


def test_the_last_image_stays(changing):
    ids = [one["id"] for one in changing.client.get("/v1/items?k=1000").json()["results"]]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(changing.delete, [one.replace("/", "%2F") for one in ids]))
    assert {answer.status_code for answer in answers} == {200, 409}
    assert changing.client.get("/healthz").json()["images"] >= 1


@pytest.mark.slow
def test_a_stopped_server_answers_what_it_took(index_folder):
    with servers.serving(index_folder) as server:
        assert server.client.get("/healthz").status_code == 200
        host, port = server.url.removeprefix("http://").split(":")
        body = b'{"id": "a/0/0.png", "k": 2}'
        head = f"POST /v1/search HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert server.process.poll() is None
            connection.sendall(body[5:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert server.process.wait(timeout=60) == 0
        assert not [line for line in server.log if "Traceback" in line]


@pytest.mark.slow
def test_a_server_stopped_as_soon_as_it_prints_its_address_ends(index_folder):
    with servers.serving(index_folder) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
        assert not [line for line in server.log if "Traceback" in line]
