"""The button that lets the index learn: what it says where it cannot. `tests/improve` has what it does."""

import os

import pytest

from tests.search.server import browser as chromium
from tests.search.server import servers
from tfrank.search import labels
from tfrank.search.server import improvement


@pytest.fixture
def server(tmp_path, model, images):
    """A server of an index of three groups, which prints a key."""
    folder = servers.make_index(tmp_path / "index", model, images)
    assert labels.read(folder) == {}
    with servers.serving(folder, token="") as running:
        yield running


@pytest.mark.slow
@pytest.mark.skipif(not chromium.CHROMIUM, reason="no Chromium or Chrome on the PATH to look at the page")
def test_the_button_says_how_far_it_is_and_why_it_failed(server, tmp_path):
    with chromium.browser(tmp_path / "profile") as page:
        page.open(f"{server.url}/#key={server.key}")
        page.wait("document.querySelectorAll('#results .frame').length == 18")
        page.run("document.querySelector('#grouping').click()")
        page.wait("!!document.querySelector('#improve button.main')")
        page.run("document.querySelector('#improve button.main').click()")
        said = "document.querySelector('#improve [role=status]').textContent"
        page.wait(f"{said}.length > 0 && !document.querySelector('#improve button')")
        page.wait(f"{said}.includes('It takes 4 groups of at least two photos')", seconds=120)
        assert page.run("document.querySelectorAll('#improve button').length") == 1
        assert not page.problems


def test_who_has_no_key_is_refused_and_other_fields_too(server):
    assert server.client.get("/v1/improve").json()["state"] == "none"
    assert server.client.post("/v1/improve", json={}).status_code == 401
    key = {"Authorization": f"Bearer {server.key}"}
    assert server.client.post("/v1/improve", json={"forth": True}, headers=key).status_code == 422
    assert server.client.get("/v1/improve").json()["lines"] == []


@pytest.mark.parametrize("trusted", [False, True])
def test_the_command_trusts_the_models_that_the_server_trusts(trusted, monkeypatch):
    started = []
    monkeypatch.setattr(improvement.subprocess, "Popen", lambda command, **_: started.append(command))
    started_at = improvement.Improvement("index", trusted=trusted)
    os.rmdir(started_at._files.name)  # As systems do with what has lain in /tmp for long.
    started_at.start(back=True)
    assert ("--trust_model" in started[0]) == trusted and "--back" in started[0]
