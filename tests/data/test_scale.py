"""At the sizes of data sets, in processes that have done nothing before, by the clock of their own work."""

import dataclasses
import os

import numpy as np
import pytest

from tests.command_lines import run_alone
from tests.data import image_records
from tests.programs import printed_json
from tfrank.data.index import COLUMNS, RecordIndex, select
from tfrank.data.records import write_shard

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="memory is read from Linux' /proc"
)

MEASURING = """
import json, os, sys
from time import process_time

import numpy as np

from tfrank.data.images import ImageLoader
from tfrank.data.index import load_index
from tfrank.data.pipeline import train_batches
from tfrank.data.records import RecordReader
from tfrank.data.samplers import ClassBalancedSampler
from tfrank.data.transforms import Transform


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


before, begin = resident(), process_time()
index = load_index(sys.argv[1])
loaded = process_time() - begin
"""

TRAINING = """
sampler = ClassBalancedSampler(index.label, classes_per_batch=28, examples_per_class=4)
loader = ImageLoader(transform=Transform(size=4))
iterator = iter(train_batches(RecordReader(index), sampler, loader, max_shift=1, stop=201))
batch, seconds, before = next(iterator), process_time() - begin, resident()
assert len(np.unique(batch["label"])) == 28 and sum(1 for _ in iterator) == 200
print(json.dumps({"seconds": seconds, "bytes": resident() - before}))
"""

SAMPLING = """
sampler = ClassBalancedSampler(index.label, classes_per_batch=96, examples_per_class=4)


def shuffles(step):
    for c in range(96):
        np.random.Generator(np.random.Philox([step, c])).permutation(33)


def seconds(work, step):
    begin = process_time()
    work(step)
    return process_time() - begin


# In turn, so that a core which is slow for a while is slow for both.
times = np.array([[seconds(shuffles, step), seconds(sampler.batch, step)] for step in range(100)])
assert len(set(index.label[sampler.batch(100)])) == 96
result = {"records": len(index), "load_seconds": loaded}
result["batch_by_shuffles"] = np.median(times[:, 1] / times[:, 0])
print(json.dumps({**result, "bytes": resident() - before}))
"""


@pytest.mark.slow
def test_training_on_many_classes_starts_at_once_and_does_not_grow(tmp_path):
    """Stanford Online Products: the first batch of 59,551 images of 11,318 classes within 2 s."""
    one = write_shard(image_records([0]), str(tmp_path / "one.tfrecord"))
    # All entries point to one record.
    many = select(one, np.zeros(59_551, int))
    labels, ids = np.arange(59_551) % 11_318, np.arange(59_551).astype(np.bytes_)
    dataclasses.replace(many, label=labels, id=ids).save(str(tmp_path / "many.index"))
    result = printed_json("-c", MEASURING + TRAINING, str(tmp_path / "many.index"), run=run_alone)
    print(result)
    assert result["seconds"] < 2 and result["bytes"] < 50e6


@pytest.mark.slow
def test_an_index_of_millions_loads_at_once_and_batches_are_drawn_from_many_classes(tmp_path):
    """VGGFace2, 3.3 million records: loaded in 6 s and 200 MB; a batch of 384 from 100,000 classes.

    A batch takes at most 1.5 times NumPy's own shuffles of its 96 classes: no limit for a slow machine.
    """
    with open(tmp_path / "a.tfrecord", "wb") as shard:
        shard.truncate(7_000_000)  # Sparse; all offsets and lengths lie within.
    numbers = np.arange(3_300_000)
    columns = dict.fromkeys(COLUMNS, numbers)
    columns["label"] = numbers % 100_000
    columns["id"] = np.char.add("n000000/", (numbers % 10**7).astype("U11")).astype(np.bytes_)
    columns["shard"] = np.zeros(len(numbers), np.int32)
    columns["role"] = np.zeros(len(numbers), np.int8)
    columns["has_box"] = numbers % 2 == 0
    columns["checksum"] = numbers.astype(np.uint32)
    size = np.array([7_000_000])
    RecordIndex(shards=(str(tmp_path / "a.tfrecord"),), size=size, **columns).save(str(tmp_path / "a.index"))
    result = printed_json("-c", MEASURING + SAMPLING, str(tmp_path / "a.index"), run=run_alone)
    print(result)
    assert result["records"] == len(numbers)
    # With the sampler, which has read the labels.
    assert result["load_seconds"] < 6 and result["bytes"] < 200e6
    assert result["batch_by_shuffles"] < 1.5
