"""An index in shards: the nearest images are those of one gallery."""

import json
import pathlib
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.scale import HERE, read_all, unit, write_embeddings
from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import searchers
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.scale import evaluate, sharded_index
from tfrank.scale.sharded_index import ShardedIndex
from tfrank.search.index_folder import MODEL_KEY

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


def test_where_scann_cannot_run_large_shards_are_searched_exactly(folders, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(searchers, "TREE_FROM", 50)
    monkeypatch.setattr(searchers, "scann_problem", lambda: "ScaNN is not here.")
    (shard,) = sharded_index.build(folders[0], str(tmp_path / "index"), HERE, shards=1)
    assert shard.recall == 1 and "Searched exactly, not by ScaNN. ScaNN is not here." in caplog.text
    found = ShardedIndex(str(tmp_path / "index")).search(EMBEDDINGS[:20], 7)
    np.testing.assert_array_equal(found.index, exact(EMBEDDINGS[:20], EMBEDDINGS, 7).index)


def test_a_pipeline_finds_the_same(folders, tmp_path):
    queries = write_embeddings(tmp_path / "queries", EMBEDDINGS[:30], np.zeros(30, int), rows=8)
    assert sharded_index.search(folders[1], queries, str(tmp_path / "out"), HERE, k=4) == 30
    found = read_all(tmp_path / "out", "nearest-")
    wanted = exact(EMBEDDINGS[:30], EMBEDDINGS, 4)
    np.testing.assert_array_equal(found["nearest"].to_pylist(), IDS[wanted.index])
    # Products with fewer than 48 queries are rounded by their number.
    np.testing.assert_allclose(found["similarity"].to_pylist(), wanted.similarity, rtol=0, atol=2e-7)


@pytest.mark.parametrize("shards", [0, 3, 5])
def test_files_of_unequal_size_make_as_many_shards_as_asked_for_by_default_one_each(tmp_path, shards):
    vectors = pathlib.Path(write_embeddings(tmp_path / "vectors", EMBEDDINGS, np.zeros(300, int), rows=60))
    for number, rows in ((2, 3), (3, 1), (5, 2)):
        path = vectors / f"embeddings-{number:06d}.parquet"
        pq.write_table(pq.read_table(path).slice(0, rows), path)
    built = sharded_index.build(str(vectors), str(tmp_path / "index"), HERE, shards=shards)
    sizes = [shard.rows for shard in built]
    assert sizes == {0: [60, 3, 1, 60, 2], 3: [60, 4, 62], 5: [60, 3, 1, 60, 2]}[shards]
    assert [shard.first for shard in built] == [0, *np.cumsum(sizes)[:-1]]


def test_a_search_finds_what_an_index_has_that_was_built_anew_in_the_same_folder(tmp_path):
    index, others = tmp_path / "index", unit(np.random.default_rng(1).normal(size=(40, 16)))
    for name, rows in (("one", EMBEDDINGS[:40]), ("other", others)):
        vectors = write_embeddings(tmp_path / name, rows, np.zeros(40, int))
        shutil.rmtree(index, ignore_errors=True)
        sharded_index.build(vectors, str(index), HERE)
        sharded_index.search(str(index), vectors, str(tmp_path / "out"), HERE, k=1)
        found = read_all(tmp_path / "out", "nearest-")
        assert [[name] for name in found["id"].to_pylist()] == found["nearest"].to_pylist()
        np.testing.assert_allclose(found["similarity"].to_pylist(), 1, atol=1e-6)


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
        (lambda: ShardedIndex(folders[1], [5]), r"numbers from 0 to 2, each once. Received: shards=\[5\]"),
        (lambda: ShardedIndex(folders[1], []), "one or several numbers from 0 to 2, each once"),
        (lambda: ShardedIndex(folders[1], [0, 0]), "one or several numbers from 0 to 2, each once"),
        (lambda: sharded_index.build(*folders, HERE), "has an index already"),
        (lambda: sharded_index.build(folders[0], str(tmp_path / "x"), HERE, shards=50), "has 10 files"),
    ):
        with pytest.raises(InputError, match=message):
            function()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tree: tree["shards"][0].update(name="../x"), "`shards[0].name`: expected the name"),
        (lambda tree: tree["shards"][0].update(name="/etc"), "`shards[0].name`: expected the name"),
        (lambda tree: tree["shards"][1].update(rows=True), "`shards[1].rows`: expected a whole number"),
        (lambda tree: tree["shards"][1].update(first=0), "no shard has the row"),
        (lambda tree: tree["shards"][2].update(rows=10**6), "rows, and shards.json names 1,000,000"),
        (lambda tree: tree["shards"][2].update(recall="all"), "`shards[2].recall`: expected a finite number"),
        (lambda tree: tree.update(shards={}), "`shards`: expected a list of at least 1"),
        (lambda tree: tree.update(dim=-1), "`dim`: expected a whole number"),
    ],
)
def test_each_field_of_the_manifest_has_a_type_and_bounds(folders, tmp_path, change, reason):
    damaged = shutil.copytree(folders[1], tmp_path / "index")
    tree = json.loads((damaged / "shards.json").read_text())
    change(tree)
    (damaged / "shards.json").write_text(json.dumps(tree))
    with pytest.raises(InputError, match=re.escape(reason)) as caught:
        ShardedIndex(str(damaged))
    assert "\n" not in str(caught.value)


def test_queries_by_another_model_or_of_other_dimensions_are_refused(tmp_path):
    names = ("one", "other", "unsaid", "short")
    made = dict.fromkeys(names)
    for name, model in zip(names, (b"a", b"b", b"", b"")):
        rows = EMBEDDINGS[:40, :8] if name == "short" else EMBEDDINGS[:40]
        made[name] = write_embeddings(tmp_path / name, rows, np.arange(40) % 4)
        for path in (tmp_path / name).glob("*.parquet"):
            table = pq.read_table(path)
            pq.write_table(table.replace_schema_metadata({MODEL_KEY: model} if model else None), path)
    sharded_index.build(made["one"], str(tmp_path / "index"), HERE, shards=1)
    out, refused = str(tmp_path / "out"), "is by the model b, and .* by a. .*two models mean nothing"
    for function in (
        lambda: sharded_index.search(str(tmp_path / "index"), made["other"], out, HERE),
        lambda: evaluate.evaluate(made["one"], out, HERE, queries=made["other"]),
    ):
        with pytest.raises(InputError, match=refused):
            function()
    found = evaluate.evaluate(made["one"], out, HERE, queries=made["other"], two_models=True)
    assert found["queries"] == 40
    assert sharded_index.search(str(tmp_path / "index"), made["other"], out, HERE, two_models=True) == 40
    with pytest.raises(InputError, match=r"short has embeddings of 8 dimensions, and .*index of"):
        sharded_index.search(str(tmp_path / "index"), made["short"], out, HERE)
    assert sharded_index.search(str(tmp_path / "index"), made["unsaid"], out, HERE) == 40
    shutil.copy(
        tmp_path / "other" / "embeddings-000001.parquet", tmp_path / "one" / "embeddings-000009.parquet"
    )
    with pytest.raises(InputError, match=refused):
        sharded_index.parts_of(made["one"])


def test_a_version_of_an_index_that_names_files_elsewhere_is_refused(tmp_path):
    folder = pathlib.Path(write_embeddings(tmp_path / "index", EMBEDDINGS[:40], np.arange(40) % 4))
    (folder / "versions").mkdir()
    (folder / "CURRENT").write_text("1")
    fields = {"number": 1, "model": "m", "dim": 16, "parts": ["../secret.parquet"], "rows": 40, "root": ""}
    (folder / "versions" / "1.json").write_text(json.dumps(fields))
    with pytest.raises(InputError, match=r"1.json is damaged \(`parts\[0\]`: expected text of the form"):
        sharded_index.parts_of(str(folder))
    (folder / "CURRENT").write_text("../1")
    with pytest.raises(InputError, match=r"CURRENT is damaged \(it is no number\)"):
        sharded_index.parts_of(str(folder))
