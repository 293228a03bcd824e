"""One index and one server for the tests that change nothing."""

import pytest

from tests.search.server import browser as chromium
from tests.search.server import servers


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a SavedModel."""
    folder = tmp_path_factory.mktemp("model") / "saved_model"
    servers.save_model(folder)
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder of images with their list."""
    folder = tmp_path_factory.mktemp("images") / "drawn"
    servers.write_images(folder)
    return folder


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory, model, images):
    """An index folder."""
    return servers.make_index(tmp_path_factory.mktemp("index") / "index", model, images)


@pytest.fixture(scope="session")
def server(index_folder):
    """A server of that index with low limits, which may not be changed."""
    with servers.serving(index_folder, "--max_megabytes=0.5", "--max_megapixels=0.1", token="") as running:
        yield running


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    """A tab of Chromium."""
    with chromium.browser(tmp_path_factory.mktemp("profile")) as page:
        yield page
