"""Groups on the page, as Chromium shows it: selected by mouse, keyboard and finger, named, and undone."""

import json
import time

import pytest

from tests.search.server import browser as chromium
from tests.search.server import servers
from tfrank.search import building, labels
from tfrank.search.embedder import Embedder
from tfrank.search.images import listed_images
from tfrank.search.server.settings import Settings

pytestmark = pytest.mark.skipif(
    not chromium.CHROMIUM, reason="no Chromium or Chrome on the PATH to look at the page"
)
READY = "document.querySelectorAll('#results .frame').length == 18 && document.body.matches('.labelling')"
SETTLED = "document.querySelector('#groups').getAttribute('aria-busy') == 'false'"
TOLD = "document.querySelector('#told').textContent"
SELECTED = "[...document.querySelectorAll('.pick:checked')].map(one => one.closest('li').dataset.id)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model, images):
    """An index folder whose blue images have no label."""
    listed = listed_images(str(images / "list.csv"))
    listed = [one._replace(label="") if one.id.startswith("a/2/") else one for one in listed]
    path = str(tmp_path_factory.mktemp("pointed") / "index")
    building.update(path, Embedder(str(model)), listed, root=str(images), quiet=True)
    return path


@pytest.fixture(scope="module")
def server(folder):
    """A server that prints a key."""
    with servers.serving(folder, token="") as running:
        yield running


@pytest.fixture
def page(chrome, server, folder):
    """The page, opened with its key, of an index of which nothing was said."""
    labels.change(folder, dict.fromkeys(labels.read(folder)), labels.said(folder).version)
    version, until = labels.said(folder).version, time.monotonic() + 20
    # Not by the groups, which are the same after some changes.
    while (seen := server.client.get("/v1/labels").json())["labels_version"] != version:
        assert time.monotonic() < until
    assert [one["label"] for one in seen["groups"]] == ["green", "red"]
    chrome.problems.clear()
    opened(chrome, server)
    yield chrome
    assert not [problem for problem in chrome.problems if "status of 409" not in problem]


def opened(page, server, width=1280, dark=False):
    page.open(f"{server.url}/#key={server.key}", width, 844, dark)
    page.wait(READY)


def middle(page, selector, number=0):
    script = f"""(element => {{
        element.scrollIntoView({{block: 'center'}});
        const {{left, top, width, height}} = element.getBoundingClientRect();
        return [left + width / 2, top + height / 2];
    }})(document.querySelectorAll({json.dumps(selector)})[{number}])"""
    return page.run(script)


def click(page, selector, number=0, **modifiers):
    """Clicks on the middle of an element, as a mouse does."""
    x, y = middle(page, selector, number)
    for kind in ("mousePressed", "mouseReleased"):
        event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1, **modifiers}
        page.call("Input.dispatchMouseEvent", **event)


def name(page, text):
    page.run("(field => { field.focus(); field.select(); })(document.querySelector('#name'))")
    page.call("Input.insertText", text=text)


def test_pictures_are_selected_named_and_undone_and_the_address_keeps_no_key(page, server, folder):
    assert server.key not in page.run("location.href")
    click(page, ".pick", 1)
    click(page, ".frame", 4, modifiers=8)  # With Shift: all in between.
    click(page, ".frame", 2)  # While some are selected, a click on a picture selects.
    chosen = page.run(SELECTED)
    assert chosen == ["a/0/1.png", "a/0/3.png", "a/0/4.png"]
    assert page.run("document.querySelector('#count').textContent") == "3 selected"
    # The name that they have is what they are likely called.
    assert page.run("document.querySelector('#name').value") == "red"
    assert page.run("document.querySelector('#name').offsetWidth") == 250
    name(page, "crimson")
    page.press("Enter")
    page.wait(f"{TOLD} == '3 pictures: crimson.'")
    assert labels.read(folder) == dict.fromkeys(chosen, "crimson")
    shown = page.run("[...document.querySelectorAll('#results .name')].map(one => one.textContent)")
    assert shown.count("crimson") == 3 and not page.run(SELECTED)
    click(page, "#undo")
    page.wait(f"{TOLD} == 'Undone for 3 pictures.'")
    assert labels.read(folder) == {}


def test_who_has_a_second_tab_is_told_of_the_first_and_loses_nothing(page, server, folder):
    click(page, ".pick", 0)
    key = {"Authorization": f"Bearer {server.key}"}
    fields = {"ids": ["a/0/0.png"], "label": "theirs", "labels_version": labels.said(folder).version}
    assert server.client.post("/v1/labels", json=fields, headers=key).status_code == 200
    name(page, "mine")
    page.press("Enter")
    page.wait(f"{TOLD}.startsWith('Somebody else changed the labels meanwhile.')")
    page.wait("document.querySelector('#results .name').textContent == 'theirs'")
    assert page.run(SELECTED) == ["a/0/0.png"] and labels.read(folder) == {"a/0/0.png": "theirs"}
    assert page.run("document.querySelector('#name').value") == "mine"
    click(page, "#saying .main")
    page.wait(f"{TOLD} == '1 picture: mine.'")
    assert labels.read(folder) == {"a/0/0.png": "mine"}


def test_a_picture_that_somebody_removed_keeps_no_other_from_its_label(page, server, folder):
    click(page, ".pick", 0)
    click(page, ".pick", 1)
    page.run("document.querySelector('#results li').dataset.id = 'gone'")
    click(page, ".pick", 0)
    click(page, ".pick", 0)
    name(page, "crimson")
    page.press("Enter")
    page.wait(f"{TOLD} == '2 pictures: crimson.'")
    assert labels.read(folder) == dict.fromkeys(["a/0/0.png", "a/0/1.png"], "crimson")
    page.problems[:] = [problem for problem in page.problems if "status of 404" not in problem]


def test_the_keyboard_alone_selects_says_that_pictures_do_not_belong_and_clears(page, folder):
    page.run("document.querySelectorAll('#results .pick')[2].focus()")
    page.press(" ")
    assert page.run(SELECTED) == ["a/0/2.png"]
    page.press("Escape")
    assert page.run(SELECTED) == [] and page.run("document.querySelector('#bar').hidden")
    page.press(" ")
    page.run("document.querySelector('#none').focus()")
    page.press("Enter")
    page.wait(f"{TOLD} == '1 picture: no group.'")
    assert labels.read(folder) == {"a/0/2.png": ""}
    # It goes on where it was.
    assert page.run("document.activeElement.closest('li').dataset.id") == "a/0/2.png"


def test_groups_are_proposed_renamed_and_opened_to_take_a_picture_out(page, folder):
    click(page, "#grouping")
    page.wait(f"document.querySelectorAll('.proposal li').length == 6 && {SETTLED}")
    taken = page.run("document.querySelectorAll('.proposal li')[1].dataset.id")
    click(page, ".proposal .frame", 1)
    click(page, ".proposal .main")  # Without a name.
    page.wait(f"{TOLD} == '5 pictures: Group 1.'")
    assert taken not in labels.read(folder) and len(labels.read(folder)) == 5
    page.wait(f"document.querySelectorAll('.groups .group').length == 3 && {SETTLED}")
    click(page, "[aria-label='Rename Group 1']")
    page.call("Input.insertText", text="sky")
    page.press("Enter")
    page.wait(f"[...document.querySelectorAll('h3')].some(one => one.textContent == 'sky') && {SETTLED}")
    assert set(labels.read(folder).values()) == {"sky"}
    click(page, "h3 button", 2)
    page.wait("document.querySelectorAll('#results .frame').length == 5")
    click(page, ".pick", 0)
    click(page, "#none")
    page.wait("document.querySelectorAll('#results .frame').length == 4")
    assert sorted(labels.read(folder).values()) == ["", *["sky"] * 4]


def answer_late(page, path, milliseconds):
    """Lets requests of a path wait."""
    page.run(f"""
        window.at_once = fetch;
        window.fetch = async (...asked) => {{
            const late = String(asked[0]).includes("{path}");
            if (late) await new Promise(done => setTimeout(done, {milliseconds}));
            return at_once(...asked);
        }};""")


def test_proposals_that_arrive_late_leave_the_reader_where_he_is(page):
    answer_late(page, "v1/proposals", 1500)
    click(page, "#grouping")
    page.wait("document.querySelectorAll('.groups .group').length == 2 && document.title == 'Groups'")
    assert not page.run("document.querySelectorAll('.proposal').length")
    assert page.run("document.activeElement.id") == "heading"
    page.wait("!!document.querySelector('#improve button')")
    page.run("document.querySelector('#improve button').focus()")
    page.wait("document.querySelectorAll('.proposal li').length == 6")
    time.sleep(0.3)
    assert page.run("document.activeElement.textContent") == "Learn from the groups"
    # Nor does anything jump when the groups are shown anew.
    top = "document.querySelector('.groups').getBoundingClientRect().top + scrollY"
    before = page.run(top)
    click(page, "[aria-label='Rename red']")
    page.call("Input.insertText", text="crimson")
    page.press("Enter")
    page.wait("[...document.querySelectorAll('h3')].some(one => one.textContent == 'crimson')")
    assert page.run("document.querySelectorAll('.proposal li').length") == 6
    page.wait(SETTLED)
    assert page.run(top) == pytest.approx(before, abs=1)


def test_who_leaves_while_groups_load_does_not_see_them_later(page):
    answer_late(page, "v1/labels", 700)
    click(page, "#grouping")
    click(page, "#home")
    page.wait("document.querySelectorAll('#results .frame').length == 18")
    time.sleep(1.2)
    shown = page.run("[document.title, location.hash, document.querySelectorAll('#groups *').length]")
    assert shown == ["Search by a picture", "", 0]


def test_a_printed_address_in_a_tab_that_is_open_gives_its_key(page, server):
    page.run("localStorage.setItem('key', 'of before')")
    page.run(f"location.hash = 'key={server.key}'")
    page.wait(f"localStorage.getItem('key') == '{server.key}' && !location.hash")
    page.wait("document.body.matches('.labelling')")


def test_where_a_browser_keeps_nothing_of_pages_the_printed_address_gives_its_key_too(chrome, server):
    refuse = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no'); } })"
    script = chrome.call("Page.addScriptToEvaluateOnNewDocument", source=refuse)["identifier"]
    try:
        chrome.open(f"{server.url}/#key={server.key}")
        chrome.wait("document.querySelectorAll('#results .frame').length == 18")
        chrome.wait("document.body.matches('.labelling')")
    finally:
        chrome.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)


def test_groups_that_were_named_can_be_filtered_by(page):
    click(page, ".pick", 1)
    name(page, "crimson")
    page.press("Enter")
    page.wait(f"{TOLD} == '1 picture: crimson.'")
    page.wait("[...document.querySelectorAll('#columns option')].some(one => one.textContent == 'crimson')")


def test_a_long_press_selects_on_a_phone_that_the_bar_fits(page, server):
    page.call("Emulation.setTouchEmulationEnabled", enabled=True)
    opened(page, server, 390, dark=True)
    x, y = middle(page, ".frame")
    page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    page.wait("document.querySelectorAll('.pick:checked').length == 1")
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.call("Emulation.setTouchEmulationEnabled", enabled=False)
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert page.run("document.querySelector('#bar').getBoundingClientRect().bottom") <= 844
    click(page, "#grouping")
    page.wait("document.querySelectorAll('.groups .group').length == 2")
    assert page.run("document.documentElement.scrollWidth") <= 390


def test_each_part_says_to_a_screen_reader_what_it_is(page):
    click(page, ".pick", 0)
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    names = {(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if "role" in node}
    assert {
        ("checkbox", "Select red, 0.png"),
        ("button", "Search by red"),
        ("textbox", "What the selected pictures show"),
        ("button", "These show the same"),
        ("button", "Does not belong"),
        ("button", "Clear the selection"),
        ("region", "What selected pictures show"),
    } <= {
        (role.replace("comboBoxTextField", "textbox").replace("combobox", "textbox"), one)
        for role, one in names
    }
    assert ("button", "") not in names and ("checkbox", "") not in names


def test_without_the_key_the_page_offers_no_change(chrome, server):
    chrome.open(server.url)
    chrome.run("localStorage.clear()")
    chrome.open(server.url)
    chrome.wait("document.querySelectorAll('#results .frame').length == 18")
    chrome.run("document.querySelector('#grouping').click()")
    chrome.wait("document.querySelectorAll('.groups .group').length == 2")
    assert "with its key" in chrome.run("document.querySelector('.tools').textContent")
    assert server.client.get("/v1/labels").json()["secret"] == "key"
    assert not chrome.run("document.body.matches('.labelling')")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(), "the server was started without a token"),
        (Settings(token="a token"), "with the server's token, #key=TOKEN"),
    ],
)
def test_without_a_key_the_page_says_what_allows_changes(chrome, folder, settings, words):
    with servers.serving_here(folder, settings) as here:
        chrome.open(f"{here.client.base_url}/#groups=1")
        chrome.wait("!!document.querySelector('.tools p')")
        said = chrome.run("document.querySelector('.tools').textContent")
    assert words in said and "printed" not in said
