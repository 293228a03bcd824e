"""A small index of drawn images, and the server as a process of its own."""

import contextlib
import csv
import io
import os
import pathlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import keras
import numpy as np
import tensorflow as tf
import uvicorn
from PIL import Image, ImageDraw

from tests.command_lines import CommandLine
from tfrank.export.saved_model import export_saved_model
from tfrank.search import building
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.server.app import create_app
from tfrank.search.server.protocol import server_of
from tfrank.search.server.service import Service
from tfrank.search.server.settings import Settings

TOKEN = "a long secret"
SIZE = 8
COLORS = {"red": (200, 40, 30), "green": (30, 160, 60), "blue & <b>bold</b>": (30, 60, 200)}
HOSTILE = "<img src=x onerror=document.title='broken'>"
EACH = 6


def drawn(color: tuple[int, int, int], place: int, size: tuple[int, int] = (60, 40)) -> bytes:
    """The bytes of a PNG: a coloured ground with a white square in one of many places."""
    image = Image.new("RGB", size, color)
    left, top = 8 * (place % 6), 6 * (place // 2 % 5)
    ImageDraw.Draw(image).rectangle((left, top, left + 16, top + 14), fill="white")
    return encoded(image)


def encoded(image: Image.Image, format: str = "PNG") -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, format)
    return buffer.getvalue()


def save_model(folder: pathlib.Path, seed: int = 0, dim: int = 16) -> None:
    """Exports a random projection of the pixels: what looks alike has a similarity near 1."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Rescaling(1 / 127.5, -1), keras.layers.Flatten(), keras.layers.Dense(dim)]
    model = keras.Sequential([keras.Input([SIZE, SIZE, 3]), *layers])

    def decode(file):
        image = tf.io.decode_image(file, channels=3, expand_animations=False)
        return tf.image.resize(image, [SIZE, SIZE], antialias=True)

    export_saved_model(model, str(folder), decode)


def write_images(folder: pathlib.Path) -> None:
    """Images of three labels, the first of each twice, and a list with more columns."""
    folder.mkdir()
    rows = []
    for number, (label, color) in enumerate(COLORS.items()):
        for place in range(EACH):
            name = f"{number}/{place}.png"
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(drawn(color, max(place, 1), (60 - 4 * number, 40 + 2 * place)))
            price = float("nan") if place == 5 else 1.5 * place
            rows.append([name, f"a/{name}", label, price, HOSTILE, place % 2 == 0, f"2026-01-{place + 1:02}"])
    with open(folder / "list.csv", "w") as file:
        columns = ["path", "id", "label", "price", "title", "even", "day"]
        csv.writer(file).writerows([columns, *rows])


def make_index(folder: pathlib.Path, model: pathlib.Path, images: pathlib.Path) -> str:
    """Makes the index folder of the list of images; returns its path."""
    listed = listed_images(str(images / "list.csv"))
    building.update(str(folder), Embedder(str(model)), listed, root=str(images), quiet=True)
    return str(folder)


class Here(NamedTuple):
    """A server that runs in this process: a client, and what answers."""

    client: httpx.Client
    service: Service
    server: uvicorn.Server

    def connect(self) -> socket.socket:
        """A bare connection to it."""
        return socket.create_connection((self.client.base_url.host, self.client.base_url.port), timeout=20)


class Server:
    """A server that runs: its address, the key of its page, its process, and a client."""

    def __init__(self, process: CommandLine, url: str, key: str):
        self.process, self.url, self.key = process, url, key
        self.client = httpx.Client(base_url=url, timeout=30)

    @property
    def log(self) -> list[str]:
        """The lines that it has written so far."""
        return "".join(self.process.written()).splitlines()

    def search(self, file: bytes | None = None, **fields: object) -> httpx.Response:
        """The answer to a search by a form."""
        files = {name: (None, str(value)) for name, value in fields.items()}
        if file is not None:
            files["file"] = ("photo.png", file)
        return self.client.post("/v1/search", files=files)

    def add(self, file: bytes, token: str = TOKEN, **fields: str) -> httpx.Response:
        """The answer to an image to add."""
        headers = {"Authorization": f"Bearer {token}".encode()}
        return self.client.post("/v1/items", files={"file": ("a.png", file)}, data=fields, headers=headers)

    def delete(self, image_id: str, token: str = TOKEN) -> httpx.Response:
        """The answer to an image to delete."""
        headers = {"Authorization": f"Bearer {token}".encode()}
        return self.client.delete(f"/v1/items/{image_id}", headers=headers)


@contextlib.contextmanager
def serving_here(folder: str, settings: Settings) -> Iterator[Here]:
    """Serves from a thread of this process, with settings that have no flags."""
    application = create_app(folder, settings)
    server, listener = server_of(application, settings), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=30) as client:
            yield Here(client, application.state.service, server)
    finally:
        server.should_exit = True
        thread.join(timeout=60)


# The program, and the arguments of Python that run it.
COMMAND = ("-m", "tfrank.search.server.command")


@contextlib.contextmanager
def serving(folder: str, *flags: str, token: str = TOKEN) -> Iterator[Server]:
    """Starts a server at a free port; stops it when the context ends."""
    environment = {**os.environ, "TFRANK_TOKEN": token, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = CommandLine(*COMMAND, f"--index_dir={folder}", "--port=0", *flags, env=environment)
    try:
        while not (found := re.search(r"(http://[^\s/]+)(?:/#key=)?(\S*).*\n", process.written()[0])):
            assert process.poll() is None, process.written()
            time.sleep(0.01)
        server = Server(process, found[1], found[2])
        with server.client:
            yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=30)


def noise(side: int, seed: int = 0) -> np.ndarray:
    """Pixels that no format can compress."""
    return np.random.default_rng(seed).integers(0, 256, [side, side, 3], np.uint8)
