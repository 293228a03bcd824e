"""A model, a list of photos, and a store that is not local."""

import csv

import pytest

from tests.scale import remote_store
from tests.search import write_model, write_photos


@pytest.fixture(scope="package")
def model(tmp_path_factory):
    """The folder of a SavedModel."""
    return str(write_model(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(scope="package")
def photos(tmp_path_factory):
    """A folder of 12 photos in four classes."""
    return write_photos(tmp_path_factory.mktemp("photos"), classes=4, images=3)


@pytest.fixture
def listed(photos, tmp_path):
    """A CSV list of the photos, with an image that does not exist."""
    paths = sorted(path for path in photos.rglob("*.jpg"))
    path = tmp_path / "list.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        rows.writerows([path, path.parent.name] for path in paths[:5])
        rows.writerow(["gone.jpg", paths[0].parent.name])
        rows.writerows([path, path.parent.name] for path in paths[5:])
    return str(path)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The local folder of what store:// holds."""
    folder = tmp_path / "store"
    folder.mkdir()
    monkeypatch.setenv(remote_store.FOLDER, str(folder))
    return folder
