"""A model and an index that tests only read."""

import pytest

from tests.search import updated, write_model, write_photos
from tfrank.search.embedder import Embedder


@pytest.fixture(scope="package")
def model(tmp_path_factory):
    """The folder of a SavedModel."""
    return write_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="package")
def embedder(model):
    """The model, loaded."""
    return Embedder(str(model))


@pytest.fixture(scope="package")
def photos(tmp_path_factory):
    """A folder of 12 photos in three classes."""
    return write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="package")
def folder(embedder, photos, tmp_path_factory):
    """An index of these photos."""
    path = str(tmp_path_factory.mktemp("indexes") / "index")
    updated(path, embedder, photos)
    return path
