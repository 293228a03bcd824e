"""A server of an index under load: latency, images a second, answers by status, memory, right answers.

    python -m benchmarks.serving --index_dir=FOLDER --images=FOLDER [--seconds=300] [--clients=64]

Starts `tfrank serve` with a copy of the index on this machine. Threads of a process of their own search by
files, ids and vectors, with and without conditions, send text, cut images and bad requests, and add and
delete images meanwhile. Nine of ten requests are searches by files.

Prints the latencies of good searches, the images a second and the processor time an image, each beside that
of the bare model on the same files before and after the load, the number of answers by status, the memory of
the server, and how many answers differ from exact search by more than rounding. The threads that send share
the processors with the server, which lowers its images a second but not its processor time an image.
"""

import collections
import concurrent.futures
import http.client
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import httpx
import numpy as np
from absl import app, flags

_INDEX = flags.DEFINE_string("index_dir", None, "The index; a copy is served.", required=True)
_IMAGES = flags.DEFINE_string("images", None, "Folder of JPEGs to search by.", required=True)
_SECONDS = flags.DEFINE_integer("seconds", 300, "Length of the load.", lower_bound=10)
_CLIENTS = flags.DEFINE_integer("clients", 64, "Number of threads that send.", lower_bound=1)

TOKEN, K, FILES = "benchmark", 10, 256
# Largest difference of a similarity that is rounding: batches of other sizes sum in another order.
ROUNDING = 1e-4
Sent = collections.namedtuple("Sent", "kind status seconds file answer")


def main(_):
    """Measures and prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        index = os.path.join(folder, "index")
        shutil.copytree(_INDEX.value, index)
        paths = sorted(pathlib.Path(_IMAGES.value).rglob("*.jpg"))
        paths = [paths[i] for i in np.linspace(0, len(paths) - 1, FILES).astype(int)]
        files = [path.read_bytes() for path in paths]
        bare, embeddings, gallery = bare_model(index, files)
        process, url = started(index)
        try:
            before = processor_seconds(process.pid)
            memory, sent = loaded(process, url, files)
            busy = processor_seconds(process.pid) - before
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
        again, *_ = bare_model(index, files)
        wrong = wrong_answers(sent, embeddings, gallery)
        report(sent, memory, busy, (bare, again), wrong, process.returncode)


def bare_model(index, files):
    """Images a second and processor seconds an image of the model alone; the files' embeddings; the index."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_bare_model, index, files).result()


def _bare_model(index, files):
    from tfrank import search

    opened = search.open(index)
    opened.embedder.embed(files[:64])
    start, busy, rounds = time.monotonic(), time.process_time(), 0
    while time.monotonic() < start + 10:
        embeddings, rounds = opened.embedder.embed(files), rounds + 1
    images = rounds * len(files)
    speed = images / (time.monotonic() - start), (time.process_time() - busy) / images
    return speed, embeddings, (opened.ids, opened.embeddings)


def started(index):
    """Starts the server; returns its process and its address."""
    command = [sys.executable, "-m", "tfrank.search.server.command", f"--index_dir={index}", "--port=0"]
    command += [f"--token={TOKEN}", "--nolog_requests", "--max_megabytes=2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, re.search(r"http://[^\s/]+", process.stdout.readline())[0]


def loaded(process, url, files):
    """Returns the memory of the server at each second, in MiB, and all that was sent."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        load = pool.submit(send_all, url, files, _SECONDS.value, _CLIENTS.value)
        memory = []
        while not load.done():
            memory.append(resident(process.pid))
            time.sleep(1)
        return memory, load.result()


def resident(process):
    """Resident memory of a process in MiB."""
    text = pathlib.Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


def processor_seconds(process):
    """Processor time that a process has used."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send_all(url, files, seconds, clients):
    """All that the threads send in so many seconds."""
    until = time.monotonic() + seconds
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        threads = [pool.submit(send, url, files, until, number) for number in range(clients)]
        return [one for thread in threads for one in thread.result()]


def send(url, files, until, number):
    """What one thread sends until a time; thread 0 also adds and deletes."""
    draw, sent, added, changed = np.random.default_rng(number), [], [], 0.0
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    # The server closes connections that are idle for 5 s.
    idle = httpx.Limits(keepalive_expiry=2)
    with httpx.Client(base_url=url, timeout=60, limits=idle) as client:
        ids = [one["id"] for one in client.get("/v1/items?k=200").json()["results"]]
        while time.monotonic() < until:
            place = int(draw.integers(len(files)))
            kind = draw.choice(["file", "other", "bad"], p=[0.9, 0.07, 0.03])
            if number == 0 and time.monotonic() > changed + 1:
                kind, changed = "change", time.monotonic()
            start = time.monotonic()
            if kind == "file":
                answer = searched(connection, files[place])
            elif kind == "other":
                answer = other(client, draw, ids)
            elif kind == "bad":
                answer = bad(client, draw, files[place])
            else:
                answer = change(client, files[place], added)
            content = answer.json() if kind == "file" and answer.status_code == 200 else None
            sent.append(Sent(str(kind), answer.status_code, time.monotonic() - start, place, content))
    return sent


def searched(connection, file):
    """The answer to a search by a file, sent with less work than httpx takes."""
    kind = "multipart/form-data; boundary=file"
    head = b'--file\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'
    tail = b'\r\n--file\r\nContent-Disposition: form-data; name="k"\r\n\r\n%d\r\n--file--\r\n' % K
    connection.request("POST", "/v1/search", head + file + tail, {"Content-Type": kind})
    answer = connection.getresponse()
    return httpx.Response(answer.status, content=answer.read())


def other(client, draw, ids):
    """A search by an id with a condition, or the metadata of an image."""
    image = ids[draw.integers(len(ids))]
    if draw.random() < 0.5:
        return client.post("/v1/search", json={"id": image, "k": K, "where": {"width": {"ge": 150}}})
    return client.get("/v1/items/" + image.replace("/", "%2F") + "/thumbnail")


def bad(client, draw, file):
    """A request that is refused."""
    kind = draw.integers(5)
    if kind == 0:
        return client.post("/v1/search", files={"file": b"some text"})
    if kind == 1:
        return client.post("/v1/search", files={"file": file[: len(file) // 2]})
    if kind == 2:
        return client.post("/v1/search", files={"file": bytes(3_000_000)})
    if kind == 3:
        return client.post("/v1/search", json={"id": "nothing", "k": 0})
    return client.post("/v1/search", content=b"\xff" * 1000, headers={"Content-Type": "application/json"})


def change(client, file, added):
    """Adds an image, or deletes one that was added when there are several."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    if len(added) >= 5:
        return client.delete(f"/v1/items/{added.pop(0)}", headers=headers)
    name = f"added/{time.monotonic_ns()}"
    answer = client.post("/v1/items", files={"file": file}, data={"id": name}, headers=headers)
    if answer.status_code == 201:
        added.append(name)
    return answer


def wrong_answers(sent, embeddings, gallery):
    """Number of compared answers, and of those that differ from exact search. Added images are left out."""
    ids, rows = gallery
    row_of = {key: row for row, key in enumerate(ids.tolist())}
    exact, compared, wrong = {}, 0, 0
    for one in sent:
        if one.answer is None:
            continue
        if one.file not in exact:
            exact[one.file] = rows @ embeddings[one.file]
        similarity, compared = exact[one.file], compared + 1
        found = [result for result in one.answer["results"] if not result["id"].startswith("added/")]
        wanted = np.sort(similarity)[::-1][: len(found)]
        given = np.array([result["similarity"] for result in found])
        true = similarity[[row_of[result["id"]] for result in found]]
        wrong += not (np.allclose(given, wanted, atol=ROUNDING) and np.allclose(given, true, atol=ROUNDING))
    return compared, wrong


def report(sent, memory, busy, bare, checked, status):
    """Prints the table."""
    good = [one for one in sent if one.kind == "file" and one.status == 200]
    latency = np.percentile([1e3 * one.seconds for one in good], [50, 95, 99])
    statuses = collections.Counter((one.kind, one.status) for one in sent)
    speed = len(good) / _SECONDS.value
    answers = json.dumps({f"{kind} {code}": number for (kind, code), number in sorted(statuses.items())})
    tenths = ", ".join(f"{np.mean(part):.0f}" for part in np.array_split(memory, 10))
    print(f"searches by file       {len(good):,} in {_SECONDS.value} s, {_CLIENTS.value} threads")
    print("latency p50, p95, p99  " + ", ".join(f"{one:.0f} ms" for one in latency))
    print(
        f"images a second        {speed:.0f}; bare model {bare[0][0]:.0f} before,"
        f" {bare[1][0]:.0f} after the load"
    )
    embedded = len(good) + sum(one.kind == "change" for one in sent)
    print(
        f"processor ms an image  {1e3 * busy / embedded:.1f}; bare model {1e3 * bare[0][1]:.1f} before,"
        f" {1e3 * bare[1][1]:.1f} after the load"
    )
    print(f"answers by status      {answers}")
    print(f"memory, MiB            {tenths}, in each tenth of the time")
    print(f"differ from exact      {checked[1]:,} of {checked[0]:,}")
    print(f"exit status            {status}")


if __name__ == "__main__":
    app.run(main)
