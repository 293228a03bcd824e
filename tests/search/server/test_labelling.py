"""What people say of labels through the server: who may, what they see, and what is never lost."""

import pathlib
import resource
import time

import pytest

from tests.search.server import servers
from tfrank import search
from tfrank.search import labels


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, images):
    """An index folder whose labels may be changed."""
    return servers.make_index(tmp_path_factory.mktemp("labelled") / "index", model, images)


@pytest.fixture(scope="module")
def server(folder):
    """A server without a token, which prints a key."""
    with servers.serving(folder, token="") as running:
        yield running


def state(server):
    return server.client.get("/v1/labels", headers={"Authorization": f"Bearer {server.key or 'none'}"}).json()


def post(server, path="/v1/labels", key=None, **fields):
    headers = {"Authorization": f"Bearer {server.key if key is None else key}"}
    fields = {"labels_version": state(server)["labels_version"], **fields}
    return server.client.post(path, json=fields, headers=headers)


def test_a_label_is_seen_at_once_by_searches_filters_and_other_processes_and_undone(server, folder):
    before = state(server)
    assert before["may_change"] and before["undo"] == 0
    assert [group["images"] for group in before["groups"]] == [6, 6, 6]
    answer = post(server, ids=["a/0/2.png", "a/1/2.png"], label=" mixed ")
    assert answer.json()["changed"] == {"a/0/2.png": "mixed", "a/1/2.png": "mixed"}
    found = server.search(id="a/0/3.png", k=100, where='{"label": "mixed"}').json()["results"]
    assert {one["id"]: one["metadata"]["label"] for one in found} == answer.json()["changed"]
    listed = server.client.get("/v1/items", params={"label": "mixed"}).json()["results"]
    assert [one["id"] for one in listed] == ["a/0/2.png", "a/1/2.png"]
    assert search.open(folder).metadata("a/0/2.png")["label"] == "mixed"
    assert post(server, group="mixed", label="").json()["changed"] == {"a/0/2.png": "", "a/1/2.png": ""}
    for label in ("mixed", "red"):
        assert state(server)["undo"] == 2
        assert post(server, "/v1/labels/undo").json()["changed"]["a/0/2.png"] == label
    assert state(server)["labels_version"] == before["labels_version"]
    assert post(server, "/v1/labels/undo").json() == {"error": "There is no change to undo."}


def test_who_saw_older_labels_is_told_and_changes_nothing(server):
    old = state(server)["labels_version"]
    assert post(server, ids=["a/0/2.png"], label="first").status_code == 200
    second = post(server, ids=["a/0/3.png"], label="second", labels_version=old)
    assert second.status_code == 409 and "Somebody else changed the labels" in second.json()["error"]
    assert "second" not in [group["label"] for group in state(server)["groups"]]
    assert post(server, "/v1/labels/undo").status_code == 200


def test_an_unknown_id_is_named_and_no_image_gets_the_label(server, folder):
    before = labels.read(folder)
    answer = post(server, ids=["a/0/2.png", "gone", "a/1/2.png", "too"], label="mixed")
    words = "The index has no image 'gone', nor 1 more of these. No image got the label."
    assert (answer.status_code, answer.json()) == (404, {"error": words, "unknown": ["gone", "too"]})
    assert labels.read(folder) == before


def test_a_label_is_found_however_its_letters_are_composed(server):
    composed, apart = "caf\u00e9", "cafe\u0301"
    assert post(server, ids=["a/0/2.png", "a/1/2.png"], label=apart).status_code == 200
    for label in (composed, apart):
        listed = server.client.get("/v1/items", params={"label": label}).json()["results"]
        assert [one["id"] for one in listed] == ["a/0/2.png", "a/1/2.png"]
        for condition in (label, ["none", label], {"eq": label}):
            body = {"id": "a/0/3.png", "where": {"label": condition}}
            found = server.client.post("/v1/search", json=body).json()["results"]
            assert {one["id"] for one in found} == {"a/0/2.png", "a/1/2.png"}, condition
    assert post(server, "/v1/labels/undo").status_code == 200


def test_only_the_key_or_the_token_changes_labels(server, folder):
    assert post(server, key="another", ids=["a/0/2.png"], label="x").status_code == 401
    assert not server.client.get("/v1/labels").json()["may_change"]
    # The key is for labels alone.
    assert server.add(servers.drawn((9, 9, 9), 3), token=server.key).status_code == 403
    with servers.serving(folder) as other:
        assert other.key == ""
        assert post(other, ids=["a/0/2.png"], label="x", key=servers.TOKEN).status_code == 200
        assert post(other, "/v1/labels/undo", key=servers.TOKEN).status_code == 200
    with servers.serving(folder, "--host=0.0.0.0", token="") as other:
        answer = post(other, ids=["a/0/2.png"], label="x", key="y")
        assert answer.status_code == 403 and "nobody may change labels" in answer.json()["error"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"ids": [], "label": "x"}, 422),
        ({"ids": ["a/0/2.png"], "group": "red", "label": "x"}, 422),
        ({"ids": ["a/0/2.png"]}, 422),
        ({"ids": ["a/0/2.png"], "label": "a\nb"}, 422),
        ({"ids": ["a/0/2.png"], "label": "x" * 201}, 422),
        ({"ids": ["gone"], "label": "x"}, 404),
        ({"group": "gone", "label": "x"}, 404),
    ],
)
def test_a_bad_change_is_refused_with_a_sentence(server, fields, status):
    answer = post(server, **fields)
    assert answer.status_code == status and answer.json()["error"].endswith(".")


def test_an_index_that_cannot_be_written_is_told_and_keeps_its_labels(server, folder):
    blocked = pathlib.Path(folder, "labels-history.csv.tmp")
    blocked.mkdir()
    try:
        answer = post(server, ids=["a/0/2.png"], label="x")
    finally:
        blocked.rmdir()
    assert answer.status_code == 500
    assert answer.json()["error"] == "The labels cannot be written (Is a directory). Nothing was changed."


def test_a_full_disk_is_told_and_the_labels_are_whole_before_and_after(server, folder):
    before, own = labels.read(folder), resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (10, own[1]))  # No file can grow beyond.
    try:
        answer = post(server, ids=["a/0/2.png"], label="x")
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, own)
    assert answer.status_code == 507
    assert answer.json()["error"] == "The server's disk is full. Nothing was changed."
    assert labels.read(folder) == before
    assert post(server, ids=["a/0/2.png"], label="x").status_code == 200
    assert post(server, "/v1/labels/undo").status_code == 200 and labels.read(folder) == before


def test_what_another_process_says_is_seen_and_images_that_are_gone_are_counted(server, folder):
    labels.change(folder, {"gone": "x", "a/0/4.png": "elsewhere"}, labels.said(folder).version)
    until = time.monotonic() + 20
    while not (elsewhere := [one for one in state(server)["groups"] if one["label"] == "elsewhere"]):
        assert time.monotonic() < until
    assert elsewhere[0]["ids"] == ["a/0/4.png"]
    assert "1 of the labels in labels.csv" in state(server)["note"]
    assert post(server, "/v1/labels/undo").status_code == 200


def test_groups_without_a_label_are_proposed_and_doubtful_labels_are_listed(server):
    every = [f"a/{number}/{place}.png" for number in range(3) for place in range(6)]
    assert post(server, ids=every, label="").status_code == 200
    # What was said to belong to no group is not proposed.
    assert server.client.get("/v1/proposals").json()["groups"] == []
    post(server, "/v1/labels/undo")
    assert post(server, ids=["a/0/3.png"], label="green").status_code == 200
    (doubt,) = server.client.get("/v1/doubts").json()["doubts"]
    assert (doubt["id"], doubt["label"], doubt["suggestion"]) == ("a/0/3.png", "green", "red")
    post(server, "/v1/labels/undo")
