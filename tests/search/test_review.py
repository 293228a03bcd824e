"""The command tfrank review, as a real process."""

import collections
import csv
import shutil
import zipfile

import pytest

from tests.command_lines import ROOT, run

pytestmark = pytest.mark.slow
CALTECH = ROOT.parent / "shared" / "data" / "caltech101.zip"


@pytest.mark.skipif(not CALTECH.exists(), reason="no photos of Caltech-101 here")
def test_photos_in_the_folder_of_another_class_are_named_with_their_own(tmp_path):
    photos = tmp_path / "photos"
    with zipfile.ZipFile(CALTECH) as archive:
        taken = collections.Counter()
        for name in sorted(archive.namelist()):
            kind = name.split("/")[-2]
            if name.endswith(".jpg") and kind in ("accordion", "airplanes", "ant", "bass", "beaver"):
                taken[kind] += 1
                if taken[kind] > 40:
                    continue
                (photos / kind).mkdir(parents=True, exist_ok=True)
                (photos / kind / name.split("/")[-1]).write_bytes(archive.read(name))
    first, second = (sorted((photos / kind).iterdir())[0] for kind in ("accordion", "airplanes"))
    moved = {"bass/moved.jpg": "accordion", "ant/moved.jpg": "airplanes"}
    shutil.move(first, photos / "bass" / "moved.jpg")
    shutil.move(second, photos / "ant" / "moved.jpg")
    # A copy under another label.
    shutil.copy(sorted((photos / "bass").iterdir())[0], photos / "beaver" / "copy.jpg")
    status, printed, errors = run("-m", "tfrank", "review", photos, f"--index_dir={tmp_path / 'index'}")
    assert (status, errors) == (0, "")
    with open(tmp_path / "index" / "review.csv") as file:
        rows = list(csv.DictReader(file))
    doubted = {row["id"]: row["suggestion"] for row in rows if row["what"] == "label"}
    assert moved.items() <= doubted.items()
    assert "beaver/copy.jpg" in {row["id"] for row in rows if row["what"] == "copies"}
    page = (tmp_path / "index" / "review.html").read_text()
    pictures = [part.split('"')[0] for part in page.split('src="')[1:]]
    assert pictures and all((tmp_path / "index" / picture).exists() for picture in pictures)
    assert "bass/moved.jpg: 'accordion' is likelier than 'bass'" in printed
    assert "labels look wrong" in printed and "1 groups of near copies" in printed
    shutil.rmtree(photos)
    status, again, _ = run("-m", "tfrank", "review", f"--index_dir={tmp_path / 'index'}")
    assert status == 0 and again.splitlines()[0].startswith(f"{photos} is gone")
    assert again.splitlines()[1:] == printed.splitlines()[-len(again.splitlines()) + 1 :]


@pytest.mark.parametrize(
    "words, message",
    [([], "tfrank review FOLDER"), (["none"], "none"), (["moved"], "The records of moved are not at")],
)
def test_what_cannot_be_reviewed_is_one_line(words, message, tmp_path):
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "config.json").write_text('{"loss": {"name": "pnp"}}')
    ended = run("-m", "tfrank", "review", *words, cwd=tmp_path)
    assert ended.status == 1 and len(ended.errors.splitlines()) == 1 and message in ended.errors
