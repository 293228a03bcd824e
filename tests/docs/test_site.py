"""The site of the documentation, built from nothing: what it loads, where its links lead, its search."""

import html.parser
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple
from urllib.parse import unquote, urldefrag

import pytest

from tests.command_lines import ROOT

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("myst_nb") is None, reason="needs the extra docs"),
]


class Page(NamedTuple):
    """What a page loads, where it leads to, where it can be led to, and its pictures without words."""

    loaded: list[str]
    links: list[str]
    ids: set[str]
    wordless: list[str]


class _Reader(html.parser.HTMLParser):
    def __init__(self, page: Page):
        super().__init__()
        self.page = page

    def handle_starttag(self, tag, attributes):
        said = dict(attributes)
        self.page.ids.update(filter(None, (said.get("id"), said.get("name"))))
        if tag == "a" and said.get("href"):
            self.page.links.append(said["href"])
        elif source := said.get("src") or (said.get("href") if tag == "link" else None):
            self.page.loaded.append(source)
        if tag == "img" and not (said.get("alt") or "").strip():
            self.page.wordless.append(said.get("src"))


def read(path: pathlib.Path) -> Page:
    page = Page([], [], set(), [])
    _Reader(page).feed(path.read_text())
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-j",
        "2",
        "-d",
        folder / "read",
        "docs",
        folder / "site",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): read(path) for path in site.rglob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site, pages):
    for name, page in pages.items():
        assert [source for source in page.loaded if re.match(r"(https?:)?//", source)] == [], name
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", path.read_text()), path


def test_no_link_leads_nowhere(site, pages):
    for name, page in pages.items():
        for link in page.links:
            path, place = urldefrag(link)
            if re.match(r"\w+:", link):
                continue
            target = (site / name).parent / unquote(path) if path else site / name
            assert target.exists(), (name, link)
            if place and target.suffix == ".html":
                assert unquote(place) in pages[target.resolve().relative_to(site.resolve()).as_posix()].ids, (
                    name,
                    link,
                )


def test_every_picture_has_words_for_those_who_do_not_see_it(pages):
    assert {name: page.wordless for name, page in pages.items() if page.wordless} == {}


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_search_finds_a_loss(site, tmp_path):
    page = (site / "search.html").as_uri() + "?q=SmoothAPLoss"
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=20000",
    ]
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", page], capture_output=True, text=True, timeout=120
    )
    assert 'href="losses/smooth_ap.html' in done.stdout
