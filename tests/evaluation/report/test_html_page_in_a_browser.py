"""The page of an evaluation as Chromium shows it, without a window and without a network."""

import html
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from tests.evaluation.report.test_html_page import HOSTILE, report_of
from tfrank.evaluation.report import html_page

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)


def chromium(tmp_path, *arguments):
    """Runs a browser without a window, which finds no host; returns its output and its log."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
        "--v=0",
    ]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [CHROMIUM, *flags, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout, done.stderr


needs_chromium = pytest.mark.skipif(
    not CHROMIUM, reason="no Chromium or Chrome on the PATH to look at the page"
)


# Of the dark and of the light page.
GREEN_AND_RED = [((70, 194, 101), (255, 112, 102)), ((24, 121, 58), (200, 40, 30))]


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scheme, width", [(0, 360), (1, 1280)], ids=["dark", "light"])
def test_a_browser_shows_the_page_in_green_and_red(tmp_path, width, scheme):
    page, shot = tmp_path / "report.html", tmp_path / "shot.png"
    page.write_text(html_page.render(report_of(HOSTILE)))
    _, log = chromium(
        tmp_path,
        f"--blink-settings=preferredColorScheme={scheme}",
        f"--window-size={width},9000",
        f"--screenshot={shot}",
        page.as_uri(),
    )
    assert "Content Security Policy" not in log and "ERR_NAME_NOT_RESOLVED" not in log
    pixels = np.asarray(Image.open(shot).convert("RGB"))
    assert pixels.shape[1] == width
    green, red = GREEN_AND_RED[scheme]
    assert all((pixels == color).all(axis=-1).any() for color in (green, red))
    assert (pixels[0, 0].mean() < 64) == (scheme == 0)


# What the page says of itself: how wide it is, its smallest text in pixels, and what it has loaded,
# which images it cannot show, and which tables are wider than their place.
MEASURE = """<script>
const smallest = Math.min(...[...document.querySelectorAll("body *")]
  .filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && e.getClientRects().length)
  .map(e => parseFloat(getComputedStyle(e).fontSize) * (e.getCTM ? e.getCTM().a : 1)));
parent.document.body.setAttribute("measured" + innerWidth, [
  document.documentElement.scrollWidth, innerWidth, smallest.toFixed(2),
  performance.getEntriesByType("resource").filter(r => !r.name.startsWith("data:")).length,
  [...document.images].filter(i => !i.naturalWidth).length,
  [...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth).length].join(" "));
</script></body>"""


@pytest.mark.slow
@needs_chromium
def test_the_page_is_no_wider_than_the_window_and_its_text_no_smaller_than_14_pixels(tmp_path):
    text, widths = html_page.render(report_of(HOSTILE)), (1280, 800, 390, 360)
    # The test's own script, which the page's policy would not run.
    text = html.escape(re.sub("<meta http-equiv.*?>", "", text).replace("</body>", MEASURE))
    # In frames, since a window is at least 500 pixels wide.
    frames = [f'<iframe width="{width}" frameborder="0" srcdoc="{text}"></iframe>' for width in widths]
    page = tmp_path / "frames.html"
    page.write_text(f"<body>{''.join(frames)}</body>")
    dom, _ = chromium(tmp_path, "--dump-dom", page.as_uri())
    for width in widths:
        measured = re.search(f'measured{width}="(.*?)"', dom)[1]
        wide, window, smallest, loaded, broken, cut = map(float, measured.split())
        assert (wide, window) == (width, width)
        assert smallest >= 14
        assert (loaded, broken, cut) == (0, 0, 0)


@pytest.mark.slow
@needs_chromium
def test_the_policy_of_the_page_runs_its_own_script_alone_and_loads_nothing(tmp_path):
    text = html_page.render(report_of(["name"]))
    added = '<script>document.title = "ran"</script><img id="out" src="https://example.org/x.png"></body>'
    page = tmp_path / "report.html"
    page.write_text(text.replace("</body>", added))
    dom, log = chromium(tmp_path, "--dump-dom", page.as_uri())
    assert "<title>name</title>" in dom and '<html lang="en" class="enlarges">' in dom
    assert log.count("violates the following Content Security Policy directive") == 2


# Clicks the second picture, then what is open, and says what was seen.
CLICK = """<script>
const second = document.querySelectorAll("button.frame")[1];
second.click();
const shown = dialog.open && enlarged.src == second.querySelector("img").src;
const seen = [shown, enlarged.getBoundingClientRect().height > 200, description.textContent];
enlarged.click();
document.body.setAttribute("seen", [...seen, dialog.open].join("|"));
</script></body>"""


@pytest.mark.slow
@needs_chromium
def test_a_click_enlarges_a_picture_and_says_its_file_and_another_closes_it(tmp_path):
    text = html_page.render(report_of(["cat"], ["comparisons"]))
    page = tmp_path / "report.html"
    page.write_text(re.sub("<meta http-equiv.*?>", "", text).replace("</body>", CLICK))
    dom, _ = chromium(tmp_path, "--dump-dom", page.as_uri())
    assert re.search('seen="(.*?)"', dom)[1] == "true|true|cat · Rank 1, right: cat, similarity 0.900|false"
