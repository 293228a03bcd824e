"""What the server refuses, always with one sentence of JSON, and what it protects."""

import concurrent.futures
import io
import json
import re
import socket
import zlib

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.search.server import servers
from tests.search.server.servers import drawn, encoded

GOOD = drawn((1, 2, 3), 1)
TOO_MANY_PIXELS = encoded(Image.new("L", (1000, 101)))


def bomb():
    """A small PNG whose header promises 60,000 x 60,000 pixels."""
    header = b"IHDR" + np.array([60_000, 60_000], ">u4").tobytes() + bytes([8, 2, 0, 0, 0])
    content = b"IDAT" + zlib.compress(bytes(1000))
    chunks = (header, content, b"IEND")
    framed = [
        np.array([len(one) - 4], ">u4").tobytes() + one + np.array([zlib.crc32(one)], ">u4").tobytes()
        for one in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


TAKE_FILES = ("/v1/search", "/v1/classify", "/v1/embed")
BAD_FILES = [
    (b"just some text", 415, "no image in a known format"),
    (b"", 415, "empty"),
    (GOOD[:-30], 415, "truncated"),
    (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", 415, "no image"),
    (bomb(), 413, "pixels"),
    (TOO_MANY_PIXELS, 413, "101,000|1,000 x 101"),
    (encoded(Image.fromarray(servers.noise(500))), 413, "0.5 megabytes"),
]


@pytest.mark.parametrize("file, status, words", BAD_FILES, ids=range(len(BAD_FILES)))
@pytest.mark.parametrize("path", TAKE_FILES)
def test_a_bad_file_is_refused_by_what_it_is_and_not_by_what_it_is_called(server, path, file, status, words):
    answer = server.client.post(path, files={"file": ("photo.jpg", file, "image/jpeg")})
    assert answer.status_code == status, answer.text
    assert re.search(words, answer.json()["error"])


BAD_REQUESTS = [
    ({}, 422, "Send one of file, id and vector"),
    ({"id": "a/0/0.png", "vector": "AAAAAAAA"}, 422, "2 came"),
    ({"id": "/etc/passwd"}, 404, "no image '/etc/passwd'"),
    ({"id": "\ud800"}, 404, "no image"),
    ({"id": 5}, 422, "id: "),
    ({"id": "a/0/0.png", "k": 0}, 422, "k: "),
    ({"id": "a/0/0.png", "k": "many"}, 422, "k: "),
    ({"id": "a/0/0.png", "min_similarity": 2}, 422, "min_similarity: "),
    ({"id": "a/0/0.png", "kk": 2}, 422, "kk: "),
    ({"id": "a/0/0.png", "where": {"lable": "red"}}, 422, 'Did you mean "label".*id, label, width'),
    ({"id": "a/0/0.png", "where": {"path": "x"}}, 422, "no column 'path'"),
    ({"id": "a/0/0.png", "where": {"width": {"near": 2}}}, 422, "eq, ne, lt"),
    ({"id": "a/0/0.png", "where": {"width": "wide"}}, 422, "'width' has values of type int32"),
    ({"id": "a/0/0.png", "where": {"width": 2**100}}, 422, "int32"),
    ({"id": "a/0/0.png", "where": {"label": "\ud800"}}, 422, "string"),
    ({"id": "a/0/0.png", "where": "not JSON"}, 422, "where: "),
    ({"id": "a/0/0.png", "box": [0, 0, 2, 1]}, 422, "box: "),
    ({"id": "a/0/0.png", "box": [0, 0, 0, 1]}, 422, "box: "),
    ({"id": "a/0/0.png", "box": [0, 0, 1]}, 422, "box"),
    ({"id": "a/0/0.png", "where": {"x" * 400_000: 1}}, 422, "no column"),
    ({"id": "a/0/0.png", "where": {"day": 20454}}, 422, "Write a date as 2026-01-31"),
    ({"id": "x" * 400_000}, 404, "no image 'xxx"),
    ({"id": "a/0/0.png", "box": "all of it"}, 422, "box"),
    ({"vector": [1, 2]}, 422, "16 finite numbers"),
    ({"vector": [0] * 16}, 422, "not all 0"),
    ({"vector": "no base64!"}, 422, "base64"),
    ({"vector": [1] * 16, "box": [0, 0, 1, 1]}, 422, "a vector was sent"),
    ([], 422, "object"),
]


@pytest.mark.parametrize("body, status, words", BAD_REQUESTS, ids=range(len(BAD_REQUESTS)))
def test_a_bad_search_is_answered_with_what_is_wrong(server, body, status, words):
    headers = {"Content-Type": "application/json"}
    answer = server.client.post("/v1/search", content=json.dumps(body), headers=headers)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert re.search(words, answer.json()["error"]), answer.json()
    assert len(answer.content) < 5000


def test_a_box_or_limit_that_is_no_number_is_refused_everywhere(server):
    for box in ["[0,NaN,1,1]", "[0,0,1,NaN]", "[NaN,NaN,NaN,NaN]", "[0,0,Infinity,1]", "[-Infinity,0,1,1]"]:
        fields = {"file": ("a.png", GOOD), "box": (None, box.strip("[]"))}
        body = f'{{"id": "a/0/0.png", "box": {box}}}'
        answers = [server.client.post(path, files=fields) for path in TAKE_FILES]
        answers.append(
            server.client.post("/v1/search", content=body, headers={"Content-Type": "application/json"})
        )
        for answer in answers:
            assert answer.status_code == 422 and answer.json()["error"].startswith("box"), answer.text
    for least in ("NaN", "Infinity"):
        assert server.client.get(f"/v1/duplicates?min_similarity={least}").status_code == 422
        assert server.search(id="a/0/0.png", min_similarity=least).status_code == 422


def test_what_comes_twice_is_refused_and_not_dropped(server):
    two = [("file", ("a.png", GOOD)), ("file", ("b.png", GOOD))]
    ids = [("id", (None, "a/0/0.png")), ("id", (None, "a/0/1.png"))]
    answers = [server.client.post("/v1/search", files=fields) for fields in (two, ids)]
    answers.append(server.client.post("/v1/embed", files=two))
    twice = '{"id": "a/0/0.png", "id": "a/0/1.png"}'
    answers.append(
        server.client.post("/v1/search", content=twice, headers={"Content-Type": "application/json"})
    )
    answers.append(server.search(id="a/0/0.png", where='{"label": "red", "label": "green"}'))
    answers.append(server.client.get("/v1/items?k=1&k=2"))
    for answer in answers:
        assert answer.status_code in (400, 422) and re.search("twice|Too many files", answer.text), (
            answer.text
        )


BAD_BODIES = [
    ("application/json", b"{", 400),
    ("application/json", b"[" * 200_000, 400),
    ("application/json", b'{"id": "a/0/0.png", "min_similarity": NaN}', 422),
    ("application/json", b'{"vector": [' + b"1e999," * 15 + b"1]}", 422),
    ("text/plain", b"hello", 415),
    ("", b"hello", 415),
    ("multipart/form-data", b"hello", 400),
    ("multipart/form-data; boundary=x", b"hello", 400),
    ("multipart/form-data; boundary=x", b"--x\r\n\r\n\r\n--x--\r\n", 400),
]


@pytest.mark.parametrize("kind, body, status", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_bad_body_is_answered_with_what_is_wrong(server, kind, body, status):
    answer = server.client.post("/v1/search", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}


PATHS = [
    "/v1/items/..%2F..%2FCURRENT",
    "/v1/items/..%2F..%2FCURRENT/thumbnail",
    "/v1/items/%2Fetc%2Fpasswd/image",
    "/v1/items/a%2F0%2F0.png%00/image",
    "/page/../app.py",
    "/..%2fapp.py",
    "/page.css/",
    "/nothing",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_of_a_request_reaches_the_disk(server, path):
    answer = server.client.get(path)
    assert answer.status_code == 404 and set(answer.json()) == {"error"}
    assert answer.headers["index-version"] == "1"


def test_every_answer_has_the_headers_that_protect(server):
    for path in ("/", "/page.js", "/v1/columns", "/nothing", "/v1/items/a%2F0%2F0.png/thumbnail"):
        headers = server.client.get(path).headers
        assert "script-src 'self';" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    page = server.client.get("/").text
    assert "http" not in page and "<script>" not in page and "style=" not in page and " on" not in page[:400]


def test_without_a_token_nobody_changes_anything(server):
    for answer in (server.add(GOOD), server.delete("a/0/0.png")):
        assert answer.status_code == 403 and "without a token" in answer.json()["error"]


def test_a_method_that_is_not_there_and_parameters_out_of_range(server):
    assert server.client.put("/v1/search").json() == {"error": "PUT is not possible here."}
    for path in ("/v1/items?k=0", "/v1/items?k=1001", "/v1/duplicates?min_similarity=0.1"):
        answer = server.client.get(path)
        assert answer.status_code == 422 and set(answer.json()) == {"error"}


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/v1/items?labels=red", 'labels: .*Did you mean "label".*: k, label'),
        ("GET", "/v1/items/a%2F0%2F0.png?limit=2", "limit: .*takes none"),
        ("GET", "/v1/columns?" + "x" * 9000, "takes none"),
        ("POST", "/v1/search?k=2", "k: .*takes none, send it in the body"),
        ("DELETE", "/v1/items/a%2F0%2F0.png?dry_run=1", "dry_run: "),
    ],
)
def test_an_unknown_parameter_is_refused_before_anything_is_done(server, method, path, words):
    answer = server.client.request(method, path)
    assert answer.status_code == 422 and re.search(words, answer.json()["error"]), answer.text
    assert len(answer.content) < 2000
    for path in ("/page.js?v=2", "/?from=mail", "/healthz?verbose"):
        assert server.client.get(path).status_code == 200


def test_a_name_that_leads_here_by_trickery_is_refused(server):
    answer = server.client.get("/v1/columns", headers={"Host": "attacker.example"})
    assert answer.status_code == 421 and "--hosts" in answer.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "\xff"},
        {"Referer": "http://attacker.example/page"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_pages_of_other_servers_may_send_nothing(server, headers):
    headers = {name: value.encode("latin-1") for name, value in headers.items()}
    get = server.client.get
    for answer in (
        server.client.post("/v1/search", json={"id": "a/0/0.png"}, headers=headers),
        get("/v1/duplicates", headers=headers),
        get("/v1/items/a%2F0%2F0.png/image", headers=headers),
    ):
        assert answer.status_code == 403 and "other servers" in answer.json()["error"]
    assert get("/", headers=headers).status_code == 200
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert server.client.post("/v1/search", json={"id": "a/0/0.png"}, headers=own).status_code == 200


def test_a_body_without_a_length_has_the_same_limit(server):
    def endless():
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
        for _ in range(20):
            yield bytes(50_000)

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = server.client.post("/v1/search", content=endless(), headers=headers)
    assert answer.status_code == 413 and "0.5 megabytes" in answer.json()["error"]


def test_what_is_no_http_or_ends_early_leaves_the_server_well(server):
    host, port = server.url.removeprefix("http://").split(":")
    for data in (
        b"\x00\xff\n\n",
        b"GET / HTTP/9\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nContent-Length: 99\r\n\r\nx",
    ):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(data)
    assert server.client.get("/healthz").status_code == 200


def test_the_log_has_neither_images_nor_lines_that_a_client_made_up(server):
    marker = "made up"
    server.client.get(f"/v1/items/x%0a{marker}")
    server.search(GOOD)
    lines = [line for line in server.log if marker in line]
    assert all(f"\\n{marker}" in line for line in lines)
    assert not [line for line in server.log if "PNG" in line]


@pytest.mark.slow
def test_a_full_server_says_when_to_come_again(index_folder):
    with servers.serving(index_folder, "--max_waiting=1") as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: server.search(GOOD), range(200)))
        assert {answer.status_code for answer in answers} == {200, 503}
        busy = next(answer for answer in answers if answer.status_code == 503)
        assert busy.headers["retry-after"] == "1" and "busy" in busy.json()["error"]
        assert server.client.get("/healthz").status_code == 200
        assert until(lambda: server.search(id="a/0/0.png"), lambda answer: answer.status_code == 200)


def until(act, good, tries=200) -> httpx.Response:
    """The first answer that is good."""
    for _ in range(tries):
        if good(answer := act()):
            return answer
    raise AssertionError(answer.text)


def test_a_file_of_another_format_is_an_image_too(server):
    for format in ("JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        file = encoded(Image.open(io.BytesIO(GOOD)).convert("RGB"), format)
        assert server.search(file).status_code == 200, format
