"""An index in shards: the nearest images are those of one gallery."""

import numpy as np
import pytest

from tests.scale import HERE, read_all, unit, write_embeddings
from tfrank.common.checks import InputError
from tfrank.evaluation.search.exhaustive import exact
from tfrank.scale import sharded_index
from tfrank.scale.sharded_index import ShardedIndex

EMBEDDINGS = unit(np.random.default_rng(0).normal(size=(300, 16)))
IDS = np.array([f"image {number}" for number in range(300)])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Embeddings, and an index of them in three shards."""
    folder = tmp_path_factory.mktemp("sharded")
    vectors = write_embeddings(folder / "vectors", EMBEDDINGS, np.zeros(300, int), rows=31)
    index = str(folder / "index")
    built = sharded_index.build(vectors, index, HERE, shards=3)
    assert [shard.first for shard in built] == [0, *np.cumsum([shard.rows for shard in built])[:-1]]
    assert sum(shard.rows for shard in built) == 300 and len(built) == 3
    return vectors, index


def test_the_nearest_images_of_the_shards_are_those_of_the_whole(folders):
    index = ShardedIndex(folders[1])
    found, wanted = index.search(EMBEDDINGS[:20], 7), exact(EMBEDDINGS[:20], EMBEDDINGS, 7)
    np.testing.assert_array_equal(found.index, wanted.index)
    np.testing.assert_array_equal(index.ids(found.index), IDS[wanted.index])
    assert index.ids(np.array([[-1]])).tolist() == [[""]]


def test_machines_that_open_some_shards_each_find_the_same_together(folders):
    ones = [ShardedIndex(folders[1], numbers) for numbers in ([0, 2], [1])]
    parts = [one.search(EMBEDDINGS[:20], 7) for one in ones]
    merged = sharded_index.merge_neighbors(parts, [0, 0], 7)
    np.testing.assert_array_equal(merged.index, exact(EMBEDDINGS[:20], EMBEDDINGS, 7).index)


def test_a_pipeline_finds_the_same(folders, tmp_path):
    queries = write_embeddings(tmp_path / "queries", EMBEDDINGS[:30], np.zeros(30, int), rows=8)
    assert sharded_index.search(folders[1], queries, str(tmp_path / "out"), HERE, k=4) == 30
    found = read_all(tmp_path / "out", "nearest-")
    wanted = exact(EMBEDDINGS[:30], EMBEDDINGS, 4)
    np.testing.assert_array_equal(found["nearest"].to_pylist(), IDS[wanted.index])
    np.testing.assert_array_equal(found["similarity"].to_pylist(), wanted.similarity)


def test_an_index_of_a_store_is_the_same(folders, store):
    sharded_index.storage.upload(folders[0], "store://vectors")
    sharded_index.build("store://vectors", "store://index", HERE, shards=2)
    found = ShardedIndex("store://index").search(EMBEDDINGS[:5], 3)
    np.testing.assert_array_equal(found.index, exact(EMBEDDINGS[:5], EMBEDDINGS, 3).index)


def test_bad_input_is_named(folders, tmp_path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "shards.json").write_text("{")
    for function, message in (
        (lambda: ShardedIndex(str(tmp_path)), "is no index in shards"),
        (lambda: ShardedIndex(str(tmp_path / "damaged")), "is damaged"),
        (lambda: ShardedIndex(folders[1], [5]), "numbers from 0 to 2"),
        (lambda: sharded_index.build(*folders, HERE), "has an index already"),
        (lambda: sharded_index.build(folders[0], str(tmp_path / "x"), HERE, shards=50), "has 10 files"),
    ):
        with pytest.raises(InputError, match=message):
            function()
