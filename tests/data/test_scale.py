"""At the size of VGGFace2: an index of 3.3 million records, in a process that has done nothing before."""

import numpy as np
import pytest

from tests.programs import printed_json
from tfrank.data.index import COLUMNS, RecordIndex

RECORDS, CLASSES = 3_300_000, 100_000

PROGRAM = """
import json, os, sys, time

import numpy as np

from tfrank.data.index import load_index
from tfrank.data.samplers import ClassBalancedSampler


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


before, begin = resident(), time.monotonic()
index = load_index(sys.argv[1])
result = {"records": len(index), "load_seconds": time.monotonic() - begin}
sampler = ClassBalancedSampler(index.label, classes_per_batch=96, examples_per_class=4)
seconds = []
for step in range(60):
    begin = time.monotonic()
    batch = sampler.batch(step)
    seconds.append(time.monotonic() - begin)
assert len(set(index.label[batch])) == 96
print(json.dumps({**result, "batch_milliseconds": 1e3 * sorted(seconds)[30], "bytes": resident() - before}))
"""


@pytest.mark.slow
def test_an_index_of_millions_loads_at_once_and_batches_are_drawn_from_many_classes(tmp_path):
    """Goals: loaded in 3 s and 200 MB; a batch of 384 from 100,000 classes in 2 ms. Doubled: CI is noisy."""
    (tmp_path / "a.tfrecord").write_bytes(b"")
    numbers = np.arange(RECORDS)
    columns = dict.fromkeys(COLUMNS, numbers)
    columns["label"] = numbers % CLASSES
    columns["id"] = np.char.add("n000000/", (numbers % 10**7).astype("U11")).astype(np.bytes_)
    columns["role"] = np.zeros(RECORDS, np.int8)
    columns["checksum"] = numbers.astype(np.uint32)
    size = np.zeros(1, np.int64)
    RecordIndex(shards=(str(tmp_path / "a.tfrecord"),), size=size, **columns).save(str(tmp_path / "a.npz"))
    del columns
    result = printed_json("-c", PROGRAM, str(tmp_path / "a.npz"))
    print(result)
    assert result["records"] == RECORDS
    # With the sampler, which has read the labels.
    assert result["load_seconds"] < 6 and result["bytes"] < 200e6
    assert result["batch_milliseconds"] < 4
