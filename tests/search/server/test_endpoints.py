"""What the endpoints answer, compared with the index opened in this process."""

import base64

import numpy as np
import pytest
from PIL import Image

from tests.search.server import servers
from tests.search.server.servers import COLORS, EACH, drawn, encoded
from tfrank import search
from tfrank.search.server.schemas import as_text

IMAGES = len(COLORS) * EACH


@pytest.fixture(scope="module")
def index(index_folder):
    return search.open(index_folder)


def same(answer, found):
    """Whether an answer has what the index finds, up to rounding and the order of equals."""
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    similarities = [result["similarity"] for result in results]
    np.testing.assert_allclose(similarities, found.similarities, atol=1e-5)
    wanted = dict(zip(found.ids, found.similarities))
    # Those that tie with the last may be others.
    clear = {key for key, similarity in wanted.items() if similarity > min(wanted.values(), default=0) + 1e-5}
    return clear <= {result["id"] for result in results}


OPTIONS = [
    {},
    {"k": 3},
    {"k": 10**30},
    {"min_similarity": 0.9},
    {"exclude_duplicates": "true"},
    {"where": '{"label": ["red", "green"], "price": {"ge": 3}}'},
    {"where": '{"even": true}', "k": 4},
    {"where": '{"label": "nothing has it"}'},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_search_by_file_finds_what_the_index_finds(server, index, options):
    file = drawn((190, 60, 40), 3)
    arguments = {name: eval(str(value).replace("true", "True")) for name, value in options.items()}
    wanted = {"k": 20, **arguments}
    wanted["k"] = min(wanted["k"], IMAGES)
    assert same(server.search(file, **options), index.search(file, **wanted)[0])


def test_a_search_by_id_leaves_out_the_image_itself_and_needs_no_file(server, index):
    answer = server.search(id="a/0/2.png", k=5)
    assert same(answer, index.search("a/0/2.png", k=5)[0])
    assert "a/0/2.png" not in [result["id"] for result in answer.json()["results"]]
    assert answer.json()["vector"] is None


def test_json_finds_what_a_form_finds(server):
    body = {"id": "a/1/1.png", "k": 4, "where": {"label": "green"}, "min_similarity": 0.1}
    answer = server.client.post("/v1/search", json=body).json()
    assert answer == server.search(**{**body, "where": '{"label": "green"}'}).json()
    assert len(answer["results"]) == 4


def test_the_vector_of_an_answer_finds_the_same_again(server, index):
    first = server.search(drawn((20, 150, 60), 2)).json()
    again = server.search(vector=first["vector"]).json()
    assert [one["id"] for one in again["results"][:4]] == [one["id"] for one in first["results"][:4]]
    embedding = index.embed([drawn((20, 150, 60), 2)])[0]
    vector = np.frombuffer(base64.urlsafe_b64decode(first["vector"] + "=="), "<f2")
    np.testing.assert_allclose(vector, embedding, atol=1e-3)
    numbers = server.client.post("/v1/search", json={"vector": (1e30 * embedding).tolist()})
    assert same(numbers, index.search(embedding, k=20)[0])
    assert first["vector"] == as_text(embedding)


def test_a_vector_of_another_model_is_refused(server, index):
    first = server.search(drawn((20, 150, 60), 2)).json()
    assert first["model"] == index.version.model
    for path in ("/v1/search", "/v1/classify"):
        for model, status in ((first["model"], 200), ("0123456789abcdef", 409)):
            answer = server.client.post(path, json={"vector": first["vector"], "model": model})
            assert answer.status_code == status, path
        assert answer.json()["error"].startswith("The index has another model")


def test_a_box_searches_by_a_part_of_a_file_and_of_an_image_of_the_index(server, index, images):
    left, right = drawn((200, 40, 30), 1), drawn((30, 60, 200), 4)
    both = Image.new("RGB", (120, 40))
    for place, file in ((0, left), (60, right)):
        both.paste(Image.open(servers.io.BytesIO(file)), (place, 0))
    answer = server.search(encoded(both), box="0.5,0,0.5,1")
    assert same(answer, index.search(right, k=20)[0])
    with Image.open(images / "0" / "3.png") as image:
        part = encoded(image.crop((0, 0, image.width // 2, image.height)))
    json = {"id": "a/0/3.png", "box": [0, 0, 0.5, 1], "k": IMAGES}
    answer = server.client.post("/v1/search", json=json)
    others = {"ne": "a/0/3.png"}
    assert same(answer, index.search(part, k=IMAGES, where={"id": others})[0])
    # It does not find the image itself.
    assert "a/0/3.png" not in [one["id"] for one in answer.json()["results"]]


def test_an_embedding_is_that_of_the_model(server, index):
    answer = server.client.post("/v1/embed", files={"file": drawn((1, 2, 3), 1)}).json()
    assert answer["model"] == index.version.model and answer["version"] == 1
    np.testing.assert_allclose(answer["embedding"], index.embed([drawn((1, 2, 3), 1)])[0], atol=1e-6)


def test_metadata_is_json_and_keeps_the_place_of_files_to_itself(server):
    metadata = server.client.get("/v1/items/a%2F0%2F5.png").json()["metadata"]
    assert metadata.pop("modified") > 0 and metadata.pop("bytes") > 0
    assert metadata == {
        "id": "a/0/5.png",
        "label": "red",
        "width": 60,
        "height": 50,
        "price": None,
        "title": servers.HOSTILE,
        "even": False,
        "day": "2026-01-06",
    }
    assert server.client.get("/v1/items/a/0/5.png").json()["id"] == "a/0/5.png"


@pytest.mark.parametrize("kind, media", [("thumbnail", "image/jpeg"), ("image", "image/png")])
def test_an_image_is_sent_once(server, kind, media):
    address = f"/v1/items/a%2F1%2F0.png/{kind}"
    answer = server.client.get(address)
    assert answer.headers["content-type"] == media and answer.headers["index-version"] == "1"
    assert Image.open(servers.io.BytesIO(answer.content)).size == (56, 40)
    again = server.client.get(address, headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304 and not again.content


def test_columns_have_types_and_what_there_is_to_choose(server):
    columns = {one.pop("name"): one for one in server.client.get("/v1/columns").json()["columns"]}
    assert columns["label"] == {"type": "text", "values": sorted(COLORS)}
    assert columns["price"] == {"type": "number", "min": 0, "max": 6}
    assert columns["even"] == {"type": "truth"} and "path" not in columns


def test_duplicates_are_groups(server, index):
    answer = server.client.get("/v1/duplicates?limit=2").json()
    assert answer["total"] == len(index.duplicates()) >= 2 and len(answer["groups"]) == 2
    assert answer["groups"][0] == index.duplicates()[0]


def test_some_images_are_spread_over_the_index(server):
    answer = server.client.get("/v1/items?k=3").json()
    assert answer["images"] == IMAGES
    assert [one["id"] for one in answer["results"]] == ["a/0/3.png", "a/1/3.png", "a/2/3.png"]
    everything = server.client.get("/v1/items?k=1000").json()["results"]
    assert len({one["id"] for one in everything}) == IMAGES


def test_health_metrics_and_the_description_of_the_endpoints(server):
    health = server.client.get("/healthz").json()
    assert 0 <= health.pop("look_seconds") < 10
    assert health == {"version": 1, "status": "ok", "images": IMAGES}
    server.search(id="a/0/0.png")
    text = server.client.get("/metrics").text
    assert 'tfrank_requests_total{endpoint="/v1/search",status="200"}' in text
    assert f"tfrank_index_images {IMAGES}.0" in text
    paths = server.client.get("/openapi.json").json()["paths"]
    page = server.client.get("/docs").text
    assert {"/v1/search", "/v1/embed", "/v1/items/{image_id}"} <= set(paths)
    assert all(path in page for path in paths)
