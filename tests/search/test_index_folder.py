"""The files of an index: nothing that they say of themselves is believed."""

import io
import json
import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.search import write_model
from tfrank import search
from tfrank.common.checks import InputError
from tfrank.search.index_folder import MODEL_KEY


@pytest.fixture
def copied(folder, tmp_path):
    """A copy of the index, as a path."""
    return shutil.copytree(folder, tmp_path / "index")


def version_of(folder):
    (path,) = (folder / "versions").glob("*.json")
    return path, json.loads(path.read_text())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"rows": 10**6}, "its files have 12 rows, and version 1 1,000,000"),
        ({"rows": 10**15}, "its files have 12 rows, and version 1 1,000,000,000,000,000"),
        ({"rows": -1}, "`rows`: expected a whole number"),
        ({"rows": "12"}, "`rows`: expected a whole number"),
        ({"rows": None}, "`rows`: expected a whole number"),
        ({"dim": True}, "`dim`: expected a whole number"),
        ({"dim": 3}, "the column embedding is of type"),
        ({"dim": 10**12}, "`dim`: expected a whole number"),
        ({"parts": "embeddings-000001.parquet"}, "`parts`: expected a list"),
        ({"parts": ["/etc/passwd"]}, "`parts[0]`: expected text of the form"),
        ({"parts": ["../index/embeddings-000001.parquet"]}, "`parts[0]`: expected text of the form"),
        ({"parts": [["x"]]}, "`parts[0]`: expected text of the form"),
        ({"model": "../../model"}, "`model`: expected text of the form"),
        ({"model": 7}, "`model`: expected text of the form"),
        ({"model": ""}, "`model`: expected text of the form"),
        ({"search": "/tmp"}, "`search`: expected text of the form"),
        ({"search": ["search-1"]}, "`search`: expected text of the form"),
        ({"root": {}}, "`root`: expected text"),
        ({"number": 2}, "it is of version 2"),
        ({"changed": 0.5}, "`changed`: expected a whole number"),
        ({"more": 1}, "`more` is no field of it"),
    ],
)
def test_each_field_of_a_version_has_a_type_and_bounds(copied, changed, reason):
    path, fields = version_of(copied)
    path.write_text(json.dumps(fields | changed))
    with pytest.raises(InputError, match=re.escape(reason)) as caught:
        search.open(copied)
    assert "Make the index again" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["rows", "dim", "parts", "model", "root", "number"])
def test_a_missing_field_of_a_version_is_named(copied, name):
    path, fields = version_of(copied)
    del fields[name]
    path.write_text(json.dumps(fields))
    with pytest.raises(InputError, match=f"`{name}` is missing"):
        search.open(copied)


def replaced(folder, change):
    """Replaces the file of embeddings by one with other content, as another program writes it."""
    _, fields = version_of(folder)
    path = folder / fields["parts"][0]
    table = change(pq.read_table(path))
    pq.write_table(table.replace_schema_metadata({MODEL_KEY: fields["model"].encode()}), path)


def column(name, values):
    return lambda table: table.set_column(table.column_names.index(name), name, values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (column("id", pa.array(range(12))), "the column id is of type int64"),
        (column("label", pa.array([["a"]] * 12)), "the column label is of type list"),
        (lambda table: table.drop_columns("id"), "it has no column id"),
        (lambda table: table.drop_columns("embedding"), "no column embedding"),
        (column("embedding", pa.array([[0.5, 0.5]] * 12)), "the column embedding is of type list"),
        (lambda table: table.slice(3), "its files have 9 rows, and version 1 12"),
        (
            lambda table: column(
                "embedding",
                pa.FixedSizeListArray.from_arrays(
                    pa.array(np.full(12 * table["embedding"].type.list_size, np.nan, np.float32)),
                    table["embedding"].type.list_size,
                ),
            )(table),
            "an embedding is not finite",
        ),
    ],
)
def test_columns_of_another_type_are_refused(copied, change, reason):
    replaced(copied, change)
    with pytest.raises(InputError, match=re.escape(reason)):
        search.open(copied)


def test_a_small_file_that_would_take_gigabytes_is_refused(copied):
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(12), pa.int32()), ["x" * 100_000_000])
    replaced(copied, lambda table: table.append_column("note", long))
    _, fields = version_of(copied)
    path = copied / fields["parts"][0]
    table = pq.read_table(path, read_dictionary=["note"])
    pq.write_table(table, path, store_schema=False)
    assert os.path.getsize(path) < 10_000_000
    with pytest.raises(InputError, match=r"is damaged \((in memory it takes over|the column embedding)"):
        search.open(copied)


def test_no_flipped_byte_of_the_embeddings_or_the_version_changes_the_index_silently(folder, copied):
    before = search.open(folder)
    path, fields = version_of(copied)
    rng = np.random.default_rng(0)
    for name in (copied / fields["parts"][0], path):
        data = name.read_bytes()
        for place in rng.choice(len(data), min(len(data), 150), replace=False):
            flipped = bytearray(data)
            flipped[place] ^= 1 << rng.integers(7)
            name.write_bytes(flipped)
            try:
                opened = search.open(copied)
            except InputError:
                continue
            assert opened.table.equals(before.table), place
            np.testing.assert_array_equal(opened.embeddings, before.embeddings)
        name.write_bytes(data)


def test_another_model_in_the_place_of_the_indexs_own_is_refused_on_opening(copied, tmp_path):
    _, fields = version_of(copied)
    place = copied / "models" / fields["model"]
    shutil.rmtree(place)
    shutil.copytree(write_model(tmp_path / "other", seed=7), place)
    with pytest.raises(InputError, match="is another model than the one that made the embeddings"):
        search.open(copied)


def test_a_file_of_embeddings_by_another_model_is_refused(copied):
    _, fields = version_of(copied)
    path = copied / fields["parts"][0]
    table = pq.read_table(path).replace_schema_metadata({MODEL_KEY: b"another"})
    file = io.BytesIO()
    pq.write_table(table, file)
    path.write_bytes(file.getvalue())
    with pytest.raises(InputError, match="it is by another model"):
        search.open(copied)
