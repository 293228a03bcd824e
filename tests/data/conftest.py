"""Images to prepare, a folder for their records, and written records."""

import pytest

from tests.data import RECORDS, write_records
from tests.data.prepare import write_images


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "images")


@pytest.fixture
def output(tmp_path):
    return str(tmp_path / "records")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "records"
    path.mkdir()
    return str(path)


@pytest.fixture
def index(folder):
    return write_records(RECORDS, folder, "train", num_shards=3)
