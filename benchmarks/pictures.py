"""Image files of every kind as they are stored and embedded, beside what Chromium and ImageMagick show.

    python -m benchmarks.pictures [--folder=FOLDER] [--all]

Some 300 files that `picture_files` makes, or those of a folder. Chromium draws each on a white canvas; what
it cannot show, ImageMagick converts. The stored picture is what `checked_image` gives to `prepare`, an index
and the server. `encoded` is what an exported model decodes inside TensorFlow's graph. Printed are the mean
absolute difference, of 255, of the stored picture from the shown one, and the cosine of the pixels of the
other to it.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import http.server
import io
import json
import pathlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping

import numpy as np
from absl import app, flags
from PIL import Image

from benchmarks import picture_files

_FOLDER = flags.DEFINE_string("folder", "", "Folder of image files in place of those that are made.")
_ALL = flags.DEFINE_bool("all", False, "Print every file, not only those that differ.")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MAGICK = next(filter(None, map(shutil.which, ("/usr/bin/convert", "magick", "convert"))), None)
# Limits of a stored picture's difference, and of the cosine of another way to it.
MOST, LEAST = 3, 0.999
PAGE = """<!doctype html><script>(async () => {
for (const number of await (await fetch("/numbers")).json()) {
  let size = [0, 0], pixels = new Uint8Array();
  try {
    const image = new Image();
    image.src = "/file/" + number;
    await image.decode();
    size = [image.naturalWidth, image.naturalHeight];
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = size;
    const context = canvas.getContext("2d", {willReadFrequently: true});
    context.fillStyle = "white";
    context.fillRect(0, 0, ...size);
    context.drawImage(image, 0, 0);
    pixels = context.getImageData(0, 0, ...size).data;
  } catch (error) { size = [0, 0]; }
  await fetch(`/shown/${number}/${size[0]}/${size[1]}`, {method: "POST", body: pixels});
}
await fetch("/done", {method: "POST"});
})();</script>"""


def shown_by_chromium(files: Mapping[str, bytes], *, seconds: float = 600) -> dict[str, np.ndarray]:
    """Returns `[height, width, 3]` uint8 of the files that Chromium shows, by name."""
    names, shown, done = list(files), {}, threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, body=b"", kind="text/html"):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            if self.path.startswith("/file/"):
                self.answer(files[names[int(self.path[6:])]], "application/octet-stream")
            elif self.path == "/numbers":
                self.answer(json.dumps(list(range(len(names)))).encode())
            else:
                self.answer(PAGE.encode() if self.path == "/" else b"")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            if self.path == "/done":
                done.set()
            else:
                number, width, height = map(int, self.path.split("/")[2:])
                if width:
                    shown[names[number]] = np.frombuffer(body, np.uint8).reshape(height, width, 4)[:, :, :3]
            self.answer()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # The browser closes connections as it likes.
    server.handle_error = lambda *_: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", address]
        process = subprocess.Popen([CHROMIUM, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        finished = done.wait(seconds)
        process.terminate()
        process.wait()
    server.shutdown()
    if not finished:
        raise TimeoutError(f"Chromium drew {len(shown)} of {len(names)} files in {seconds} s.")
    return shown


def shown_by_magick(data: bytes, suffix: str) -> np.ndarray | None:
    """Returns `[height, width, 3]` uint8 of a file as ImageMagick shows it; None if it does not."""
    with tempfile.TemporaryDirectory() as folder:
        path, profile = os.path.join(folder, f"file.{suffix}"), os.path.join(folder, "srgb.icc")
        pathlib.Path(path).write_bytes(data)
        pathlib.Path(profile).write_bytes(picture_files.PROFILES["sRGB"])
        options = ["-auto-orient", "-profile", profile, "-colorspace", "sRGB", "-background", "white"]
        options += ["-alpha", "remove", "-depth", "8", "ppm:-"]
        done = subprocess.run([MAGICK, f"{path}[0]", *options], capture_output=True, timeout=60)
    return np.asarray(Image.open(io.BytesIO(done.stdout)).convert("RGB")) if done.stdout else None


def references(files: Mapping[str, bytes]) -> dict[str, tuple[str, np.ndarray]]:
    """Returns the program that shows a file, and what it shows, of the files that one can show."""
    found = {name: ("Chromium", image) for name, image in shown_by_chromium(files).items()}
    for name, data in files.items():
        suffix = name.rsplit(".", 1)[1] if "." in name[-6:] else name.split()[0].strip(",").lower()
        if name not in found and MAGICK and (image := shown_by_magick(data, suffix)) is not None:
            found[name] = ("ImageMagick", image)
    return found


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The mean absolute difference of two pictures; infinite if their sizes differ."""
    if one.shape != other.shape:
        return float("inf")
    return float(np.abs(np.subtract(one, other, dtype=float)).mean())


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """The cosine of the pixels of two pictures; 0 if their sizes differ."""
    if one.shape != other.shape:
        return 0.0
    # Black pictures have a direction too.
    one, other = (np.ravel(image).astype(float) + 1 for image in (one, other))
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def main(_) -> None:
    """Prints the table."""
    import tensorflow as tf

    from tfrank.data.decoding import decode
    from tfrank.data.images import ImageLoader
    from tfrank.data.prepare.image_files import BadImage, checked_image
    from tfrank.data.transforms import Transform

    loader = ImageLoader(transform=Transform(size=64), full_size=True)
    encoded = tf.function(loader.serve, input_signature=[tf.TensorSpec([], tf.string)])
    paths = sorted(path for path in pathlib.Path(_FOLDER.value).rglob("*") if path.is_file())
    files = {str(path): path.read_bytes() for path in paths} if _FOLDER.value else picture_files.all_files()
    shown = references(files)
    counts = dict.fromkeys(("shown", "stored as shown", "refused", "encoded as stored", "not decoded"), 0)
    print(f"{'file':60} {'shown by':12} {'stored':>7} {'encoded':>8}")
    for name, (program, picture) in shown.items():
        counts["shown"] += 1
        try:
            stored = decode(tf.constant(checked_image(files[name]).encoded)).numpy()
        except BadImage as error:
            counts["refused"] += 1
            print(f"{name:60} {program:12} refused: {error}")
            continue
        differs = difference(stored, picture)
        try:
            served = cosine(encoded(tf.constant(files[name])).numpy(), stored)
        except tf.errors.OpError:
            counts["not decoded"], served = counts["not decoded"] + 1, None
        counts["stored as shown"] += differs < MOST
        counts["encoded as stored"] += served is not None and served >= LEAST
        if _ALL.value or differs >= MOST or (served or 1) < LEAST:
            print(f"{name:60} {program:12} {differs:7.2f} {'-' if served is None else f'{served:.4f}':>8}")
    print(", ".join(f"{what} {count}" for what, count in counts.items()))


if __name__ == "__main__":
    app.run(main)
