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
from tfrank.search import times_found
from tfrank.search.embedder import Embedder
from tfrank.search.server import service
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
