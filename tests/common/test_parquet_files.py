"""Parquet that is read back: every flipped byte is found, and a small file cannot take all memory."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfrank.common import parquet_files
from tfrank.common.checks import InputError


def table(rows=60):
    rng = np.random.default_rng(0)
    vectors = pa.array(rng.normal(size=4 * rows).astype(np.float32))
    names = [f"robin/{row}.jpg" for row in range(rows)]
    tags = pa.array([["a", "b"], []] * (rows // 2), pa.list_(pa.field("element", pa.string())))
    columns = {"id": names, "label": ["robin", None] * (rows // 2), "tags": tags}
    columns |= {"place": [{"city": name} for name in names], "modified": rng.integers(0, 10**18, rows)}
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(vectors, 4)
    return pa.table(columns).replace_schema_metadata({b"model": b"of this one"})


def written(content):
    return io.BytesIO(parquet_files.encoded(content))


def same(one, other):
    return one.equals(other) and one.schema.metadata == other.schema.metadata


def test_what_is_written_is_read_with_its_types_and_metadata_whole_or_in_part():
    content = table()
    back = parquet_files.read(written(content), "part", "Again.")
    assert same(back, content)
    some = parquet_files.read(written(content), "part", "Again.", ["embedding", "id"])
    assert some.equals(content.select(["embedding", "id"]))
    found = list(parquet_files.batches(written(content), "part", "Again.", 25, ["label", "id"]))
    assert [len(batch) for batch in found] == [25, 25, 10]
    assert pa.Table.from_batches(found)["id"].equals(content["id"])
    assert parquet_files.schema(written(content), "part", "Again.")[1] == 60


def test_files_of_other_programs_are_read_without_checksums():
    file = io.BytesIO()
    pq.write_table(table(), file)
    assert parquet_files.read(file, "part", "Again.").equals(table())


def test_no_flipped_bit_changes_what_is_read():
    content = table()
    data, silent, damaged = written(content).getvalue(), [], 0
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        try:
            back = parquet_files.read(io.BytesIO(flipped), "part", "Again.")
        except InputError as error:
            damaged += 1
            assert str(error).startswith("part is damaged (") and "\n" not in str(error)
        else:
            if not same(back, content):
                silent.append(place)
    assert not silent and damaged > len(data) / 2


@pytest.mark.parametrize("kind", ["text", "list", "struct", "numbers"])
def test_a_small_file_that_takes_gigabytes_of_memory_is_refused_before_it_does(kind):
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000), pa.int32()), ["x" * 4_000_000])
    columns = {
        "text": long,
        "list": pa.ListArray.from_arrays(pa.array(np.arange(1001), pa.int32()), long),
        "struct": pa.StructArray.from_arrays([long], ["inside"]),
        "numbers": pa.array(np.zeros(100_000_000, np.int64)) if kind == "numbers" else None,
    }
    file = io.BytesIO()
    pq.write_table(pa.table({kind: columns[kind]}), file, compression="zstd", store_schema=False)
    assert len(file.getvalue()) < 500_000
    before = pa.total_allocated_bytes()
    with pytest.raises(InputError, match=r"^part is damaged \(in memory it takes over 2\d\d,.*\)\. Again\.$"):
        parquet_files.read(file, "part", "Again.")
    assert pa.total_allocated_bytes() - before < 2**27
    if kind != "numbers":
        with pytest.raises(InputError, match="in memory it takes over"):
            list(parquet_files.batches(file, "part", "Again.", 1000))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no parquet" * 10, b"PAR1" + b"\0" * 40 + b"PAR1"])
def test_what_is_no_parquet_file_is_refused_in_one_line(data):
    with pytest.raises(InputError, match=r"^part is damaged \([^\n]+\)\. Again\.$"):
        parquet_files.read(io.BytesIO(data), "part", "Again.")


def test_a_missing_column_is_named():
    with pytest.raises(InputError, match="it has no column nothing"):
        parquet_files.read(written(table()), "part", "Again.", ["id", "nothing"])
