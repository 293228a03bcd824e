"""A server whose queries are embedded by another model than the images of its index."""

import collections
import shutil
import signal

import numpy as np
import pytest

from tests.search.server import servers
from tests.search.server.servers import drawn
from tests.search.server.test_endpoints import same
from tfrank import search
from tfrank.common.checks import InputError
from tfrank.search import building, times_found
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.server import service
from tfrank.search.server.query_model import BEHIND
from tfrank.search.server.service import NO_PROMISE, Service
from tfrank.search.server.settings import Settings

FILE = drawn((190, 60, 40), 3)


def test_images_are_embedded_by_the_query_model_and_nothing_is_promised_of_them(index_folder, tmp_path):
    servers.save_model(tmp_path / "saved_model", seed=1)
    index, student = search.open(index_folder), Embedder(str(tmp_path / "saved_model"))
    with servers.serving(index_folder, f"--query_model={tmp_path}", token="") as server:
        answer = server.search(FILE, k=5)
        assert same(answer, index.search(student.embed([FILE]), k=5)[0])
        of_index = index.search(FILE, k=5)[0].similarities
        assert abs(answer.json()["results"][0]["similarity"] - of_index[0]) > 0.1
        assert {result["match"] for result in answer.json()["results"]} == {""}
        assert answer.json()["promise"] == NO_PROMISE
        embedded = server.client.post("/v1/embed", files={"file": FILE}).json()
        assert embedded["model"] == student.fingerprint
        np.testing.assert_allclose(embedded["embedding"], student.embed([FILE])[0], atol=1e-5)
        # An image of the index has the embedding of its own model.
        by_id = server.search(id="a/0/2.png", k=5)
        assert same(by_id, index.search("a/0/2.png", k=5)[0]) and by_id.json()["promise"] != NO_PROMISE


def test_a_server_counts_how_often_images_are_found(index_folder, tmp_path):
    folder = shutil.copytree(index_folder, tmp_path / "index")
    # Servers of other tests may have counted.
    (folder / times_found.FILE).unlink(missing_ok=True)
    with servers.serving(folder, token="") as server:
        found = [server.search(FILE, k=20), server.search(FILE, k=2), server.search(id="a/0/2.png", k=1)]
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=60)
    wanted = collections.Counter(
        result["id"] for answer in found for result in answer.json()["results"][: service.COUNTED]
    )
    assert times_found.counts_of(str(folder)) == wanted
    times_found.add(str(folder), {"a/0/2.png": 5})
    assert times_found.counts_of(str(folder))["a/0/2.png"] == wanted["a/0/2.png"] + 5
    (folder / times_found.FILE).write_text("[]")
    with pytest.raises(InputError, match=r"times_found.json is damaged .* Delete it: the counts begin anew"):
        times_found.counts_of(str(folder))


def test_a_query_model_of_other_dimensions_is_refused(index_folder, tmp_path):
    servers.save_model(tmp_path / "saved_model", dim=8)
    with pytest.raises(InputError, match=r"--query_model=.* have 8 dimensions, and those of the index 16"):
        Service(str(index_folder), Settings(query_model=str(tmp_path / "saved_model")))


@pytest.fixture
def students(tmp_path):
    """Folders of three models of the dimensions of the index, and of one of others."""
    for name, options in {"1": {"seed": 1}, "2": {"seed": 2}, "3": {"seed": 3, "dim": 8}}.items():
        servers.save_model(tmp_path / name, **options)
    return tmp_path


@pytest.mark.parametrize("other", ["2", "3"])
def test_once_the_index_has_another_model_only_searches_with_that_go_on(
    index_folder, images, students, caplog, other
):
    folder = shutil.copytree(index_folder, students / "index")
    later = Embedder(str(students / other))
    with servers.serving_here(str(folder), Settings(query_model=str(students / "1"))) as here:
        vector = here.service.queries.embedder.embed([FILE])[0].tolist()
        post, file = here.client.post, {"files": {"file": FILE}}
        assert (
            post("/v1/search", **file).status_code
            == post("/v1/search", json={"vector": vector}).status_code
            == 200
        )
        listed = listed_images(str(images / "list.csv"))
        building.update(str(folder), later, listed, root=str(images), quiet=True)
        for _ in range(3):
            here.service.look()
        part = {"json": {"id": "a/0/2.png", "box": [0, 0, 0.5, 1]}}
        for body in (file, {"json": {"vector": vector}}, part):
            answer = post("/v1/search", **body)
            assert answer.status_code == 503 and answer.json() == {"error": BEHIND}
        assert post("/v1/embed", **file).status_code == 503
        assert here.client.get("/healthz").json()["status"] == "behind"
        assert len([line for line in caplog.messages if BEHIND in line]) == 1
        own = {"vector": later.embed([FILE])[0].tolist(), "model": later.fingerprint}
        for body in ({"id": "a/0/2.png"}, own):
            assert post("/v1/search", json=body).status_code == 200
        assert post("/v1/classify", **file).status_code == 200


def test_vectors_of_the_model_of_the_index_are_its_own_also_where_another_embeds_queries(
    index_folder, students
):
    index = search.open(index_folder)
    vectors = {
        one.fingerprint: one.embed([FILE])[0].tolist()
        for one in (index.embedder, Embedder(str(students / "1")))
    }
    bodies = [{"vector": vector, "model": model} for model, vector in vectors.items()]
    with servers.serving_here(index_folder, Settings(query_model=str(students / "1"))) as here:
        searched = [here.client.post("/v1/search", json=body) for body in bodies]
        classified = [here.client.post("/v1/classify", json=body) for body in bodies]
    (found,) = index.search(np.float32(bodies[0]["vector"]), k=20)
    assert same(searched[0], found) and searched[0].json()["promise"] == found.promise != NO_PROMISE
    assert searched[1].json()["promise"] == NO_PROMISE
    assert [answer.status_code for answer in classified] == [200, 409]
    assert classified[0].json()["nearest"] == index.classify(FILE)[0].nearest


def test_a_query_model_that_is_that_of_the_index_keeps_its_promise(index_folder, model):
    (found,) = search.open(index_folder).search(FILE, k=5)
    with servers.serving_here(index_folder, Settings(query_model=str(model))) as here:
        answer = here.client.post("/v1/search", files={"file": FILE}).json()
    assert answer["promise"] == found.promise
