"""Records by Beam: byte for byte those of one machine."""

import csv
import os
import pathlib
import shutil

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.scale import HERE
from tests.search import write_photos
from tfrank.common.checks import InputError
from tfrank.data.prepare import builder
from tfrank.scale import records


@pytest.fixture
def manifest(tmp_path):
    """A list of 24 photos with paths relative to it, one of which does not exist."""
    write_photos(tmp_path / "photos", classes=6)
    paths = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "photos").rglob("*.jpg"))
    path = tmp_path / "list.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split"])
        for name in [*paths, "photos/class 1/gone.jpg"]:
            label = name.split("/")[1]
            rows.writerow([name, label, "train" if label < "class 3" else "test"])
    return str(path)


def contents(folder):
    """The bytes of the files of a folder and of folders inside it, by their names."""
    paths = [path for path in pathlib.Path(folder).rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_records_are_those_of_one_machine_byte_for_byte(manifest, tmp_path):
    builder.prepare("csv", manifest, str(tmp_path / "here"), max_skipped=0.1)
    found = records.prepare(manifest, str(tmp_path / "beam"), HERE, max_skipped=0.1)
    assert contents(tmp_path / "here") == contents(tmp_path / "beam")
    assert found["splits"]["train"]["images"] + found["splits"]["test"]["images"] == 24
    assert "gone.jpg" in (tmp_path / "beam" / "skipped.csv").read_text()


def test_a_parquet_list_of_a_store_gives_the_same_records_in_the_store(manifest, tmp_path, store):
    builder.prepare("csv", manifest, str(tmp_path / "here"), max_skipped=0.1)
    shutil.copytree(tmp_path / "photos", store / "bucket" / "photos")
    pq.write_table(pyarrow.csv.read_csv(manifest), store / "bucket" / "list.parquet")
    where = "store://bucket/list.parquet", "store://bucket/records"
    found = records.prepare(*where, HERE, max_skipped=0.1)
    here, there = contents(tmp_path / "here"), contents(store / "bucket" / "records")
    # Only the folder of the list differs.
    assert here.pop("prepared.json") != there.pop("prepared.json")
    assert here == there
    assert found["splits"]["test"]["classes"] == 3
    assert records.prepare(*where, HERE, max_skipped=0.1) == found
    assert found["source_dir"] == where[0]
    table = pq.read_table(store / "bucket" / "list.parquet")
    for name, rows in (("list.parquet", table.slice(1)), ("other.parquet", table)):
        pq.write_table(rows, store / "bucket" / name)
        with pytest.raises(InputError, match="is another source or has changed since"):
            records.prepare(f"store://bucket/{name}", where[1], HERE, max_skipped=0.1)


def test_shards_without_images_are_written_too(manifest, tmp_path):
    for writer, out in ((builder, "here"), (records, "beam")):
        arguments = (
            ("csv", manifest, str(tmp_path / out))
            if writer is builder
            else (manifest, str(tmp_path / out), HERE)
        )
        writer.prepare(*arguments, num_shards=20, max_skipped=0.1)
    assert contents(tmp_path / "here") == contents(tmp_path / "beam")


def test_a_stopped_command_continues_with_the_missing_shards(manifest, tmp_path, monkeypatch):
    builder.prepare("csv", manifest, str(tmp_path / "here"), max_skipped=0.1)
    out = str(tmp_path / "beam")
    write, calls = records.shards.write, []

    def fail_at_the_third(task, counts):
        calls.append(task.path)
        if len(calls) == 3:
            raise OSError("the machine was taken away")
        return write(task, counts)

    monkeypatch.setattr(records.shards, "write", fail_at_the_third)
    with pytest.raises(Exception, match="the machine was taken away"):
        records.prepare(manifest, out, HERE, max_skipped=0.1)
    assert not os.path.exists(os.path.join(out, "prepared.json"))
    records.prepare(manifest, out, HERE, max_skipped=0.1)
    assert len(calls) == 3 + 6  # Of eight shards two were there.
    assert contents(tmp_path / "here") == contents(out)


def test_too_many_bad_images_end_with_the_share_that_would_do(manifest, tmp_path):
    with pytest.raises(InputError, match="1 of 25 listed images do not exist"):
        records.prepare(manifest, str(tmp_path / "beam"), HERE, max_skipped=0.0)


def test_what_is_no_list_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"ends in .csv, .tsv or .parquet"):
        records.prepare(str(tmp_path), str(tmp_path / "out"), HERE)
