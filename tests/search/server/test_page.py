"""The page as Chromium shows it: driven by mouse, keyboard and addresses, without a network."""

import io
import json
import urllib.parse

import pytest
from PIL import Image

from tests.search.server import browser as chromium
from tests.search.server.servers import HOSTILE, drawn, encoded

pytestmark = pytest.mark.skipif(
    not chromium.CHROMIUM, reason="no Chromium or Chrome on the PATH to look at the page"
)
FOUND = "document.querySelectorAll('#results .similarity').length"
IDLE = "document.querySelector('#results').getAttribute('aria-busy') == 'false'"


@pytest.fixture
def page(chrome, server):
    """The page as one finds it first; afterwards nothing was wrong with it."""
    chrome.problems.clear()
    chrome.open(server.url)
    chrome.wait("document.querySelectorAll('#results .frame').length == 18")
    yield chrome
    assert chrome.run("document.title") != "broken"
    # What is refused on purpose is reported by its status.
    assert not [problem for problem in chrome.problems if "status of 415" not in problem]


MADE_UP = [
    "where=null",
    "where=[1]",
    "where=7",
    "where={",
    "k=1e9",
    "k=-1",
    "k=NaN",
    "min=2",
    "box=a,b",
    "box=0,0,9,9",
]


@pytest.mark.parametrize("part", MADE_UP)
def test_what_somebody_made_up_in_an_address_counts_as_absent(page, server, part):
    for address in (f"#{part}", f"#id=a/0/3.png&{part}"):
        page.open(f"{server.url}/{address}")
        page.wait(f"document.querySelectorAll('#results .frame').length >= 17 && {IDLE}")
        assert page.run("document.querySelector('#error').hidden")


def test_two_files_at_once_are_refused(page, tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(drawn((200, 40, 30), 3))
    page.run(
        """(() => {
            const files = new DataTransfer();
            for (const name of ["a.png", "b.png"]) files.items.add(new File(["x"], name));
            document.dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true}));
        })()"""
    )
    page.wait("!document.querySelector('#error').hidden")
    assert "2 files came" in page.run("document.querySelector('#error').textContent")
    assert ids(page)


def fragment(page):
    return dict(urllib.parse.parse_qsl(page.run("location.hash.slice(1)")))


def ids(page):
    return page.run("[...document.querySelectorAll('#results .frame')].map(frame => frame.title)")


def found(page):
    page.wait(f"{FOUND} > 0 && {IDLE}")
    return ids(page)


def test_a_chosen_file_is_searched_and_its_address_can_be_sent(page, server, tmp_path):
    path = tmp_path / "mine.png"
    path.write_bytes(drawn((200, 40, 30), 3))
    page.give("#file", path)
    results = found(page)
    assert results[0] == "a/0/3.png" and page.run("document.activeElement.id") == "heading"
    assert "18 images" in page.run("document.querySelector('#status').textContent")
    assert page.run("document.querySelector('#shown').src").startswith("blob:")
    address = page.run("location.href")
    page.open(address)
    assert found(page)[:3] == results[:3]
    assert "not the picture" in page.run("document.querySelector('#sent').textContent")
    assert page.run("document.querySelector('#picture').hidden")


def test_after_a_new_model_a_picture_is_looked_at_again_and_an_address_of_before_is_refused(page, tmp_path):
    path = tmp_path / "mine.png"
    path.write_bytes(drawn((200, 40, 30), 3))
    page.give("#file", path)
    results = found(page)
    address = page.run("location.href")
    # As if the index had another model since.
    page.run("""
        window.of_server = fetch;
        const refused = () => Promise.resolve(new Response('{"error": "another model"}', {status: 409}));
        window.fetch = (...asked) => asked[1]?.body instanceof FormData && asked[1].body.has("vector")
            ? refused() : of_server(...asked);
        document.querySelector("#results").replaceChildren();
        document.querySelector("#distinct").click();""")
    # Without near copies.
    assert found(page)[0] == results[1] and page.run("document.querySelector('#error').hidden")
    before = fragment(page)["model"]
    page.open(address.replace(before, before[::-1]))
    page.wait("!document.querySelector('#error').hidden")
    assert "another model" in page.run("document.querySelector('[role=alert]').textContent")
    page.problems[:] = [one for one in page.problems if "409" not in one]


def test_a_click_searches_again_and_back_goes_back(page):
    page.run("document.querySelectorAll('#results .frame')[7].click()")
    found(page)
    first = fragment(page)["id"]
    assert first == "a/1/1.png"
    second = ids(page)[0]
    page.run("document.querySelector('#results .frame').click()")
    page.wait(f"location.hash.includes({json.dumps(urllib.parse.quote_plus(second))})")
    page.run("history.back()")
    page.wait(f"decodeURIComponent(location.hash) == '#id={first}' && {IDLE}")
    assert found(page)[0] == second


def box_of(page):
    return page.run(
        "(({left, top, width, height}) => [left, top, width, height])"
        "(document.querySelector('#shown').getBoundingClientRect())"
    )


def test_a_box_over_the_picture_searches_by_the_part(page, tmp_path):
    both = Image.new("RGB", (120, 40))
    for place, color in ((0, (200, 40, 30)), (60, (30, 60, 200))):
        both.paste(Image.open(io.BytesIO(drawn(color, 3))), (place, 0))
    (tmp_path / "both.png").write_bytes(encoded(both))
    page.give("#file", tmp_path / "both.png")
    found(page)
    before = fragment(page)["vector"]
    page.wait("document.querySelector('#shown').naturalWidth == 120")
    left, top, width, height = box_of(page)
    page.drag(
        (left + width / 2, top + 1), (left + 0.8 * width, top + 9), (left + width - 1, top + height - 1)
    )
    page.wait(f"!document.querySelector('#whole').hidden && {IDLE} && !location.hash.includes('{before}')")
    assert found(page)[0].startswith("a/2/")
    page.run("document.querySelector('#whole').click()")
    page.wait(f"location.hash.includes('{before}') && {IDLE}")


def test_the_keyboard_does_what_the_mouse_does(page):
    page.run("document.querySelectorAll('#results .frame')[2].focus()")
    page.press("Enter")
    found(page)
    assert fragment(page) == {"id": "a/0/2.png"}
    page.run("document.querySelector('#frame').focus()")
    for key, shift in (("ArrowLeft", False), ("ArrowDown", True)):
        page.press(key, shift)
    assert "left 20 %, top 25 %, width 50 %, height 55 %" in page.run(
        "document.querySelector('#status').textContent"
    )
    page.press("Enter")
    page.wait(f"location.hash.includes('box') && {IDLE}")
    assert fragment(page)["box"] == "0.200,0.250,0.500,0.550"
    page.press("Escape")
    page.wait(f"!location.hash.includes('box') && {IDLE}")


def test_a_text_file_is_an_error_that_is_shown_and_said(page, tmp_path):
    (tmp_path / "words.txt").write_text("no image")
    page.give("#file", tmp_path / "words.txt")
    page.wait("!document.querySelector('#error').hidden")
    assert "no image in a known format" in page.run("document.querySelector('[role=alert]').textContent")
    assert not ids(page)


def test_a_filter_and_the_least_similarity_narrow_the_search_and_stay_in_the_address(page):
    page.run("document.querySelectorAll('#results .frame')[2].click()")
    assert len(found(page)) == 17
    page.run(
        "(field => { field.value = JSON.stringify('green'); field.dispatchEvent(new Event('change', "
        "{bubbles: true})); })(document.querySelector('[data-column=label]'))"
    )
    page.wait(f"{FOUND} == 6 && {IDLE}")
    assert json.loads(fragment(page)["where"]) == {"label": "green"}
    assert all(one.startswith("a/1/") for one in ids(page))
    page.run(
        "(field => { field.value = 0.99; field.dispatchEvent(new Event('input', {bubbles: true})); })"
        "(document.querySelector('#least'))"
    )
    page.wait(f"location.hash.includes('min=0.99') && {IDLE}")
    page.open(page.run("location.href"))
    page.wait(f"{IDLE} && document.querySelector('[data-column=label]')?.value == '\"green\"'")
    assert page.run("document.querySelector('#least').value") == "0.99"


def test_near_copies_are_shown_in_groups_and_more_of_them_if_there_are_more(page):
    # The server has one group; that there are 30 is said in its place.
    page.run(
        """(() => {
            const real = fetch;
            window.fetch = async (path, options) => {
                const response = await real(path, options);
                if (!String(path).startsWith("v1/duplicates")) return response;
                const limit = Number(new URL(path, location.href).searchParams.get("limit"));
                const answer = await response.json();
                answer.groups = Array(Math.min(30, limit)).fill(answer.groups[0]);
                return new Response(JSON.stringify({ ...answer, total: 30 }));
            };
        })()"""
    )
    page.run("document.querySelector('#copies').click()")
    page.wait("document.querySelectorAll('#groups .group').length == 24")
    assert fragment(page) == {"copies": "1"} and not ids(page)
    assert "30 groups, the first 24 shown, of images" in page.run(
        "document.querySelector('#status').textContent"
    )
    page.run("document.querySelector('#more').click()")
    page.wait("document.querySelectorAll('#groups .group').length == 30")
    assert page.run("document.querySelector('#more').hidden")
    page.wait("document.activeElement.closest('.group') == document.querySelectorAll('.group')[24]")


def test_an_address_that_cannot_be_copied_is_not_called_copied(page):
    page.run("document.querySelectorAll('#results .frame')[13].click()")
    found(page)
    page.run(
        "navigator.clipboard.writeText = async () => { throw new DOMException('no', 'NotAllowedError'); }"
    )
    page.run("document.querySelector('#share').click()")
    page.wait(
        "document.querySelector('#status').textContent.includes('Copy the address from its address bar.')"
    )
    # As where the page is of another machine, without TLS.
    page.run("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.run("document.querySelectorAll('#results .frame')[2].click()")
    page.wait("document.querySelector('#share').hidden")


def test_a_file_that_changes_after_it_was_chosen_is_searched_as_it_was(page, tmp_path):
    path = tmp_path / "mine.png"
    path.write_bytes(drawn((200, 40, 30), 3))
    page.give("#file", path)
    found(page)
    path.write_bytes(b"no image any more")
    page.wait("document.querySelector('#shown').naturalWidth == 60")
    left, top, width, height = box_of(page)
    page.drag((left + width / 4, top + 1), (left + width / 2, top + 9), (left + width - 1, top + height - 1))
    page.wait("document.querySelector('#heading').textContent == 'Similar to this part'")


def test_what_data_says_is_only_text(page):
    page.run("document.querySelectorAll('#results .frame')[13].click()")
    found(page)
    labels = page.run("[...document.querySelectorAll('#results .name')].map(name => name.textContent)")
    assert "blue & <b>bold</b>" in labels and not page.run("document.querySelectorAll('#results b').length")
    options = page.run("[...document.querySelectorAll('#columns option')].map(one => one.textContent)")
    assert "blue & <b>bold</b>" in options and HOSTILE not in page.run("document.body.innerHTML")


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_a_phone_and_says_what_each_part_is(page, server, dark):
    page.open(f"{server.url}/#id=a/0/2.png", 390, 844, dark)
    found(page)
    assert page.run("document.documentElement.scrollWidth") <= 390
    nameless = """[...document.querySelectorAll('button, input, select, a, [tabindex="0"]')].filter(one =>
        !one.getAttribute('aria-label') && !one.textContent.trim() && !one.labels?.length).length"""
    assert page.run(nameless) == 0
    dark_back = page.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 24)"
    assert dark_back == dark
