"""Films the search page: a picture is dropped, results are named, and the index learns from them.

    python docs/screencast.py --index_dir=INDEX --photo=PHOTO --truth=labels.csv --name=rhino \\
        --to=docs/screencast.webp

INDEX has labels of other groups, and is copied. PHOTO is searched for. `--truth` has the columns id and
label: the results that it calls by the name are selected, as a person would select them.
"""

import argparse
import base64
import contextlib
import csv
import io
import json
import pathlib
import shutil
import sys
import tempfile
import time

from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from tests.search.server import browser, servers

WIDTH, HEIGHT, CAPTION = 1120, 700, 44
LOADED = (
    "[...document.querySelectorAll('main img')]"
    ".every(one => one.complete || one.getBoundingClientRect().top > innerHeight)"
)
SAID = "document.querySelector('#improve [role=status]').textContent"
LEARNING = 900  # Seconds at most.
POINTER = """
    const pointer = document.createElement('div');
    pointer.innerHTML = `<svg width="26" height="26" viewBox="0 0 24 24"><path d="M4 2l6 18 2.6-7.4L20 10z"
        fill="#111" stroke="#fff" stroke-width="1.6"/></svg>`;
    pointer.style.cssText = 'position:fixed;z-index:99;left:560px;top:640px;pointer-events:none';
    document.body.append(pointer);
    window.point = (x, y) => { pointer.style.left = x - 5 + 'px'; pointer.style.top = y - 3 + 'px'; };
"""


class Film:
    """Pictures of a page, each with a caption and how many milliseconds it is shown."""

    def __init__(self, page: browser.Page):
        self.page, self.frames, self.lengths, self.caption, self.at = page, [], [], "", (560, 640)
        self.font = ImageFont.load_default(size=22)

    def take(self, milliseconds: int) -> None:
        """Adds what the page shows now."""
        data = self.page.call("Page.captureScreenshot", format="jpeg", quality=92)["data"]
        frame = Image.new("RGB", (WIDTH, HEIGHT + CAPTION), "#1d3557")
        frame.paste(Image.open(io.BytesIO(base64.b64decode(data))), (0, CAPTION))
        ImageDraw.Draw(frame).text((20, CAPTION / 2), self.caption, "white", self.font, anchor="lm")
        self.frames.append(frame)
        self.lengths.append(milliseconds)

    def move(self, x: float, y: float, steps: int = 4) -> None:
        """Moves the pointer there."""
        for step in range(1, steps + 1):
            share = step / steps
            place = [start + share * (end - start) for start, end in zip(self.at, (x, y))]
            self.page.run(f"point({place[0]}, {place[1]})")
            self.take(60)
        self.at = (x, y)

    def click(self, selector: str, steps: int = 4) -> None:
        """Moves the pointer to an element and clicks it."""
        element = f"document.querySelector({json.dumps(selector)})"
        x, y = self.page.run(
            "(({left, top, width, height}) => [left + width / 2, top + height / 2])"
            f"({element}.getBoundingClientRect())"
        )
        self.move(x, y, steps)
        for kind in ("mousePressed", "mouseReleased"):
            event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
            self.page.call("Input.dispatchMouseEvent", **event)

    def write(self, text: str, selector: str) -> None:
        """Writes a text into a field, letter by letter."""
        self.click(selector)
        for length in range(1, len(text) + 1):
            self.page.run(f"document.querySelector({json.dumps(selector)}).select()")
            self.page.call("Input.insertText", text=text[:length])
            self.take(90)

    def save(self, path: str) -> None:
        """Writes the film as an animated WebP."""
        first, *others = self.frames
        first.save(
            path, save_all=True, append_images=others, duration=self.lengths, loop=0, quality=58, method=4
        )


def search(film: Film, photo: str) -> None:
    """Chooses a picture and waits for the results."""
    film.page.give("#file", pathlib.Path(photo))
    film.page.wait("document.querySelectorAll('#results .similarity').length > 0")
    film.page.wait(LOADED)
    time.sleep(0.5)


def shoot(film: Film, photo: str, name: str, shown: set[str]) -> None:
    """Films a search, the naming of its results, the learning, and the search again."""
    page = film.page
    film.caption = "A folder of 600 photos, without training"
    film.take(1500)
    film.caption = "Drop a picture: the most similar photos of the folder"
    film.move(300, 250)
    search(film, photo)
    film.take(2200)
    film.caption = "Select what shows the same, and name it"
    ids = page.run("[...document.querySelectorAll('#results li')].map(one => one.dataset.id)")
    for image_id in [one for one in ids if one in shown][:8]:
        place = f"#results li[data-id={json.dumps(image_id)}]"
        page.run(f"document.querySelector({json.dumps(place)}).scrollIntoView({{block: 'nearest'}})")
        film.click(f"{place} .pick", 2)
        film.take(150)
    film.write(name, "#name")
    film.click("#saying .main")
    page.wait("document.querySelector('#told').textContent.length > 0")
    film.take(1500)
    page.run("scrollTo(0, 0)")
    film.caption = "The page proposes groups; then it learns from them"
    film.click("#grouping")
    page.wait("!!document.querySelector('#improve button.main')", seconds=120)
    page.wait("!!document.querySelector('.proposal')", seconds=120)
    page.wait(LOADED)
    film.take(2000)
    page.run("document.querySelector('#improve').scrollIntoView({block: 'center'})")
    page.wait(LOADED)
    film.take(500)
    film.click("#improve button.main")
    learn(film)
    film.take(4000)
    film.caption = "The same search, by what it has learnt"
    page.run("scrollTo(0, 0)")
    search(film, photo)
    film.take(3500)


def learn(film: Film) -> None:
    """Films each line that is said while the index learns."""
    said, end = "", time.monotonic() + LEARNING
    while not said or film.page.run("!document.querySelector('#improve button')"):
        assert time.monotonic() < end, said
        film.page.run("document.querySelector('#improve').scrollIntoView({block: 'center'})")
        if (now := film.page.run(SAID)) != said:
            said = now
            film.take(350)
        time.sleep(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("index_dir", "photo", "truth", "name", "to"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    with open(given.truth) as file:
        shown = {row["id"] for row in csv.DictReader(file) if row["label"] == given.name}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        index = shutil.copytree(given.index_dir, f"{folder}/index")
        server = stack.enter_context(servers.serving(index, token=""))
        page = stack.enter_context(browser.browser(pathlib.Path(folder, "chrome")))
        page.open(f"{server.url}/#key={server.key}", WIDTH, HEIGHT)
        page.wait("document.body.matches('.labelling')")
        page.wait("document.querySelectorAll('#results .frame').length > 0")
        page.wait(LOADED)
        page.run(POINTER)
        film = Film(page)
        shoot(film, given.photo, given.name, shown)
        film.save(given.to)
    size = pathlib.Path(given.to).stat().st_size / 1e6
    print(f"{given.to}: {len(film.frames)} frames, {size:.2f} MB")


if __name__ == "__main__":
    main()
