"""Which class of an index an image is of: the endpoint, and the line above the results of the page."""

import colorsys
import pathlib

import pytest

from tests.search import updated
from tests.search.server import browser as chromium
from tests.search.server import servers
from tests.search.server.servers import drawn
from tfrank import search
from tfrank.search.embedder import Embedder
from tfrank.search.server.settings import Settings

CLASSES, EACH = 8, 20
OF_NONE = drawn((250, 250, 250), 3, (60, 41))


def of_class(number: int, size: int) -> bytes:
    """A square on a ground whose colour is that of its class, in one of many sizes."""
    color = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number / CLASSES, 1, 0.8))
    return drawn(color, number, (60 + size, 40))


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """An index of eight classes."""
    photos: pathlib.Path = tmp_path_factory.mktemp("kinds")
    for number in range(CLASSES):
        (photos / f"kind {number}").mkdir()
        for size in range(EACH):
            (photos / f"kind {number}/{size}.png").write_bytes(of_class(number, size))
    index = str(tmp_path_factory.mktemp("classes") / "index")
    updated(index, Embedder(str(model)), photos)
    return index


@pytest.fixture(scope="module")
def here(folder):
    with servers.serving_here(folder, Settings()) as running:
        yield running


def answered(here, **options) -> dict:
    answer = here.client.post("/v1/classify", **options)
    assert answer.status_code == 200, answer.text
    assert answer.json().pop("version") == 1
    return {name: value for name, value in answer.json().items() if name != "version"}


def test_a_file_an_id_and_a_vector_get_what_the_index_says(here, folder):
    index, file = search.open(folder), of_class(3, EACH)
    vector = index.embed([file])[0].tolist()
    (wanted,) = index.classify(file)
    assert wanted.label == "kind 3"
    by_file = answered(here, files={"file": ("a.png", file)})
    for found in (by_file, answered(here, json={"vector": vector})):
        assert found == pytest.approx(wanted._asdict(), abs=1e-5)
    by_id, (own,) = answered(here, json={"id": "kind 3/4.png"}), index.classify("kind 3/4.png")
    assert by_id == pytest.approx(own._asdict(), abs=1e-5)
    none = answered(here, files={"file": ("a.png", OF_NONE)})
    assert none["label"] is None and none["score"] < none["threshold"] == by_file["threshold"]
    strict = answered(here, files={"file": ("a.png", file)}, data={"far": "0.001"})
    assert strict["threshold"] is None and "too few to promise it of at most 0.1 %" in strict["promise"]
    assert 'endpoint="/v1/classify",status="200"' in here.client.get("/metrics").text


def test_a_part_of_an_image_is_classified(here):
    whole, part = (
        answered(here, json={"id": "kind 3/4.png", **more}) for more in ({}, {"box": [0.5, 0, 0.5, 1]})
    )
    assert part["nearest"] and part["score"] < whole["score"]


def test_an_image_has_no_vote_on_its_file_or_a_part_of_it(here):
    for image_id in ("kind 3/4.png", "kind 5/0.png"):
        whole, part = (answered(here, json={"id": image_id, **more}) for more in ({}, {"box": [0, 0, 1, 1]}))
        assert part == pytest.approx(whole, abs=1e-4)
        kind, size = int(image_id[5]), int(image_id[7])
        file = answered(here, files={"file": ("a.png", of_class(kind, size))})
        assert file == pytest.approx(whole, abs=1e-4)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "Send one of file, id and vector"),
        ({"id": "kind 3/4.png", "far": 0}, 422, "far: "),
        ({"id": "kind 3/4.png", "k": 3}, 422, "k: "),
        ({"id": "nothing"}, 404, "no image 'nothing'"),
        ({"vector": [1, 2]}, 422, "16 finite numbers"),
        ({"vector": [1] * 16, "box": [0, 0, 1, 1]}, 422, "a vector was sent"),
    ],
)
def test_a_bad_request_is_answered_with_what_is_wrong(here, body, status, words):
    answer = here.client.post("/v1/classify", json=body)
    assert answer.status_code == status and words in answer.json()["error"], answer.text


@pytest.mark.skipif(not chromium.CHROMIUM, reason="no Chromium or Chrome on the PATH to look at the page")
def test_the_page_says_above_the_results_of_a_picture_what_it_looks_like(here, server, tmp_path):
    files = {"mine": of_class(3, EACH), "none": OF_NONE}
    for name, data in files.items():
        (tmp_path / f"{name}.png").write_bytes(data)
    line = "document.querySelector('#class')"
    with chromium.browser(tmp_path / "profile") as page:

        def said(url, name):
            page.open(url)
            page.give("#file", tmp_path / f"{name}.png")
            page.wait(f"!{line}.hidden")
            return page.run(f"{line}.textContent")

        assert said(str(here.client.base_url), "mine") == "Looks like kind 3 (100 %)."
        page.run("document.querySelector('#results .frame').click()")
        page.wait("location.hash.startsWith('#id=')")
        assert page.run(f"{line}.hidden")
        none = said(str(here.client.base_url), "none")
        assert none.startswith("Looks like none of this index's classes. The nearest is kind ")
        few = said(server.url, "mine")
        assert few.startswith("The nearest class is ") and "5 are needed" in few
        assert not page.problems


@pytest.mark.skipif(not chromium.CHROMIUM, reason="no Chromium or Chrome on the PATH to look at the page")
def test_the_page_classifies_by_the_model_of_the_index_where_another_embeds_queries(folder, tmp_path):
    servers.save_model(tmp_path / "student", seed=1)
    (tmp_path / "mine.png").write_bytes(of_class(3, EACH))
    settings = Settings(query_model=str(tmp_path / "student"))
    with servers.serving_here(folder, settings) as here, chromium.browser(tmp_path / "profile") as page:
        page.open(str(here.client.base_url))
        page.give("#file", tmp_path / "mine.png")
        page.wait("!document.querySelector('#class').hidden", seconds=20)
        assert page.run("document.querySelector('#class').textContent") == "Looks like kind 3 (100 %)."
