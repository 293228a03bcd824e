"""What `prepare` prints: the table, and the next command."""

import pathlib
import re

import pytest

from tests.command_lines import ROOT
from tests.data.prepare import in_source, listed, prepare_folder
from tfrank.data.prepare.__main__ import next_command, table
from tfrank.data.prepare.builder import prepare
from tfrank.data.record_folder import open_split


def test_the_table_has_classes_images_and_what_was_skipped(images, output):
    (images / "class 1" / "bad.png").write_bytes(b"")
    lines = table(prepare_folder(images, output, max_skipped=0.1)).splitlines()
    assert lines[0].split() == ["classes", "images", "a", "class:", "least", "mean", "most", "skipped"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert sum(int(row[1]) for row in rows.values()) == 31 and sum(int(row[-1]) for row in rows.values()) == 1


def test_the_table_has_queries_and_gallery_and_no_classes_where_there_are_none(images, output, monkeypatch):
    def image(number, **fields):
        path = f"class 0/{number}.png"
        return listed(path, split="test", label=-1, text="", **fields)

    roles = ["query", "query", "gallery", "gallery", "gallery", "distractor"]
    in_source(monkeypatch, *(image(number, role=role) for number, role in enumerate(roles)))
    lines = table(prepare("folder", str(images), output)).splitlines()
    assert lines[1].split() == ["test", "-", "6", "-", "-", "-", "0"]
    assert lines[2] == "test: 2 queries, 3 in the gallery, 1 distractors"
    assert len(lines) == 3 and open_split(output, "test").num_classes == 0


@pytest.mark.parametrize(
    "source, splits, wanted",
    [
        (
            "folder",
            ["train", "test"],
            "train_main.py --config=configs/own_images.py --config.data.records='my p'",
        ),
        ("csv", ["test"], "eval_main.py --workdir=RUN --config.data.test_records='my p'"),
        ("cub", ["train", "test"], "train_main.py --config=configs/cub.py --config.data.records='my p'"),
        (
            "ijb_c",
            ["test"],
            "eval_main.py --workdir=runs/vgg_face2_smooth_ap --config.data.test_records='my p'",
        ),
    ],
)
def test_the_next_command_is_of_the_source(source, splits, wanted):
    summary = {"splits": {split: {"classes": 4} for split in splits}}
    assert next_command(source, "my p", summary, installed=False) == f"python {wanted}"
    installed = re.sub(r"^(\w+)_main\.py", r"tfrank \1", wanted)
    assert next_command(source, "my p", summary, installed=True) == installed
    config = re.search(r"configs/\w+\.py", wanted)
    assert not config or (pathlib.Path(ROOT) / "tfrank" / config[0]).exists()
