"""Opening a folder of prepared records."""

import json
import pathlib
import shutil

import pytest

from tests.data import copy_to_memory
from tests.data.prepare import prepare_folder
from tfrank.common.checks import InputError
from tfrank.data.index import load_index
from tfrank.data.record_folder import load_summary, open_split
from tfrank.data.records import RecordReader


def test_a_lost_index_is_made_anew_from_all_shards_of_the_split_or_not_at_all(images, output):
    prepare_folder(images, output)
    wanted = open_split(output, "train").fingerprint()
    lost = pathlib.Path(output, "train.index")
    shutil.rmtree(lost)
    (pathlib.Path(output) / "train-extra-00000-of-00001.tfrecord").write_bytes(b"of another split")
    assert open_split(output, "train").fingerprint() == wanted
    shutil.rmtree(lost)
    prepare_folder(images, output)
    assert load_index(str(lost)).fingerprint() == wanted
    shutil.rmtree(lost)
    pathlib.Path(output, "train-00002-of-00004.tfrecord").unlink()
    with pytest.raises(InputError, match=r"train-00002-of-00004\.tfrecord"):
        open_split(output, "train")


def test_records_copied_to_a_remote_store_are_opened_there(images, output):
    prepare_folder(images, output)
    copy_to_memory(output, "ram://prepared")
    there, here = open_split("ram://prepared", "train"), open_split(output, "train")
    assert RecordReader(there).read([2, 0]) == RecordReader(here).read([2, 0])
    with pytest.raises(InputError, match="copy them to ram://elsewhere afterwards"):
        prepare_folder(images, "ram://elsewhere")


@pytest.mark.parametrize(
    "split, hint",
    [("tset", 'Did you mean "test"'), ("val", r"It has test \(15 images\), train \(16 images\)\.")],
)
def test_a_split_that_is_not_there_is_refused_with_those_that_are(images, output, split, hint):
    prepare_folder(images, output)
    with pytest.raises(InputError, match=hint):
        open_split(output, split)


def test_a_folder_without_records_says_how_to_make_some(tmp_path):
    with pytest.raises(InputError, match=r"no records of a split 'train'.*tfrank prepare"):
        open_split(str(tmp_path), "train")


def test_what_is_prepared_says_so_in_json(images, output):
    summary = prepare_folder(images, output)
    assert json.loads(pathlib.Path(output, "prepared.json").read_text()) == summary == load_summary(output)
    pathlib.Path(output, "prepared.json").write_text("{")
    with pytest.raises(InputError, match=r"prepared\.json is damaged"):
        load_summary(output)
