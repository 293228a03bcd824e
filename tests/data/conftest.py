"""Images to prepare, and a folder for their records."""

import pytest

from tests.data.prepare import write_images


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "images")


@pytest.fixture
def output(tmp_path):
    return str(tmp_path / "records")
