"""An index without --model, as a real process: photos are found by what is in them, without training."""

import collections
import zipfile

import numpy as np
import pytest

from tests.command_lines import ROOT, run
from tests.search import write_photos
from tfrank.search.embedder import Embedder
from tfrank.search.index import open_index
from tfrank.search.start import DIM, export_start

pytestmark = pytest.mark.slow
CALTECH = ROOT.parent / "shared" / "data" / "caltech101.zip"


def index(images, folder):
    status, printed, errors = run("-m", "tfrank", "index", f"--images={images}", f"--index_dir={folder}")
    assert (status, errors) == (0, "")
    return printed


@pytest.mark.skipif(not CALTECH.exists(), reason="no photos of Caltech-101 here")
def test_most_photos_are_found_beside_one_of_their_kind_without_labels_or_training(tmp_path):
    """Eight photos of each of a hundred kinds, in one folder: .84."""
    taken, photos = collections.Counter(), tmp_path / "photos"
    photos.mkdir()
    with zipfile.ZipFile(CALTECH) as archive:
        for name in archive.namelist():
            if name.endswith(".jpg") and taken[kind := name.split("/")[-2]] < 8:
                taken[kind] += 1
                (photos / f"{kind} {taken[kind]}.jpg").write_bytes(archive.read(name))
    printed = index(photos, tmp_path / "index")
    assert "EfficientNet-Lite0" in printed and f"tfrank serve --index_dir={tmp_path / 'index'}" in printed
    ids = [path.name for path in photos.iterdir()]
    nearest = [found.ids[0] for found in open_index(str(tmp_path / "index")).search(ids, k=1)]
    right = [one.rsplit(" ", 1)[0] == other.rsplit(" ", 1)[0] for one, other in zip(ids, nearest)]
    assert len(ids) == 800 and np.mean(right) > 0.8


def test_the_model_is_written_once_and_stays_that_of_the_index(tmp_path):
    photos = write_photos(tmp_path / "photos")
    assert "12 embedded" in index(photos, tmp_path / "index")
    again = index(photos, tmp_path / "index")
    assert "0 embedded, 12 unchanged" in again and "EfficientNet" not in again
    # Made anew it is the same model, so that nothing is embedded again.
    export_start(str(tmp_path / "start"))
    (of_index,) = (tmp_path / "index" / "models").iterdir()
    one, other = Embedder(str(tmp_path / "start")), Embedder(str(of_index))
    assert one.fingerprint == other.fingerprint and one.dim == DIM


def test_images_that_are_not_there_are_named_before_a_model_is_written(tmp_path):
    ended = run("-m", "tfrank", "index", f"--images={tmp_path}/none", f"--index_dir={tmp_path}/index")
    assert ended.status == 1 and len(ended.errors.splitlines()) == 1
    assert f"{tmp_path}/none" in ended.errors and "EfficientNet" not in ended.output
