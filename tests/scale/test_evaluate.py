"""Evaluation of a gallery in many files: the result of `tfrank.evaluation.evaluate`."""

import json
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import slow
from tests.scale import HERE, read_all, unit, write_embeddings
from tfrank.common.checks import InputError
from tfrank.evaluation import evaluate
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.parallel import similarities
from tfrank.scale import evaluate as scale
from tfrank.scale import ranking, storage
from tfrank.scale.parts import Rows, labels_of, parts_of, table_of
from tfrank.search.index_folder import MODEL_KEY

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 30, 300)
EMBEDDINGS = unit(RNG.normal(size=(300, 16)))
# Equal rows of different and of the same class, and lone images.
EMBEDDINGS[40:80] = EMBEDDINGS[80:120]
LABELS[-3:] = [101, 102, 103]


def assert_equal(found, folder, wanted):
    """The metrics of each query are those wanted, bit for bit, and the means up to the order of sums."""
    rows = read_all(folder)
    for name, values in wanted.per_query.items():
        np.testing.assert_array_equal(rows[name].to_numpy(), values)
    assert found.pop("note", "") == "" and found.keys() >= wanted.metrics.keys()
    for name, value in wanted.metrics.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("block_queries", [slow(7), 64, slow(8192)])
def test_leave_one_out_is_that_of_one_machine_ties_and_lone_images_included(tmp_path, block_queries):
    folder = write_embeddings(tmp_path / "vectors", EMBEDDINGS, LABELS)
    found = scale.evaluate(
        folder, str(tmp_path / "out"), HERE, ks=[1, 5], neighbors=4, block_queries=block_queries
    )
    assert_equal(found, tmp_path / "out", evaluate(EMBEDDINGS, LABELS, ks=[1, 5]))
    rows = read_all(tmp_path / "out")
    # One product of all rows: the rounding of `exact` depends on its blocks, and so on the number of cores.
    similarity = np.array(similarities(EMBEDDINGS, EMBEDDINGS))
    np.fill_diagonal(similarity, -np.inf)
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(rows["neighbor_rows"].to_pylist(), nearest)
    np.testing.assert_array_equal(
        rows["similarities"].to_pylist(), np.take_along_axis(similarity, nearest, axis=1)
    )


def test_queries_against_a_gallery_with_distractors_leave_out_the_image_of_their_own_id(tmp_path):
    labels = LABELS.copy()
    labels[::5] = -1  # Distractors.
    query_rows = np.r_[1:40:2, 81:100:2]
    ids = np.array([f"image {number}" for number in range(300)])
    gallery = write_embeddings(tmp_path / "gallery", EMBEDDINGS, labels)
    query_labels = np.where(labels[query_rows] < 0, 7, labels[query_rows])
    queries = write_embeddings(
        tmp_path / "queries", EMBEDDINGS[query_rows], query_labels, ids=ids[query_rows].tolist(), rows=9
    )
    found = scale.evaluate(gallery, str(tmp_path / "out"), HERE, queries=queries, ks=[1, 10])
    wanted = evaluate(
        EMBEDDINGS[query_rows],
        query_labels,
        gallery_embeddings=EMBEDDINGS,
        gallery_labels=np.where(labels < 0, 10_000 + np.arange(300), labels),
        ids=ids[query_rows],
        gallery_ids=ids,
        ks=[1, 10],
    )
    assert found.pop("note") == "60 images of the gallery have no class, and are negatives."
    assert_equal(found, tmp_path / "out", wanted)


def test_more_neighbors_than_there_are_images_are_all_other_images(tmp_path):
    rows, labels = EMBEDDINGS[:30], np.arange(30) % 5
    gallery = write_embeddings(tmp_path / "gallery", rows, labels, rows=8)
    ids = ["image 3", "another"]
    queries = write_embeddings(tmp_path / "queries", rows[3:5], labels[3:5], ids=ids)
    for name, others, counts in (("own", "", [29] * 30), ("given", queries, [29, 30])):
        scale.evaluate(gallery, str(tmp_path / name), HERE, queries=others, ks=[1], neighbors=100)
        found = read_all(tmp_path / name)
        numbers, similarities = (found[key].to_pylist() for key in ("neighbor_rows", "similarities"))
        assert [*map(len, numbers)] == [*map(len, similarities)] == counts
        assert all(len(set(row)) == len(row) and min(row) >= 0 for row in numbers)
        assert np.isfinite(np.concatenate(similarities)).all()


def test_queries_of_another_model_are_ranked_against_the_gallery_without_themselves(tmp_path):
    """A student searches in its teacher's gallery, where each of its images is a row too."""
    students = unit(EMBEDDINGS + 0.3 * RNG.normal(size=EMBEDDINGS.shape))
    gallery = write_embeddings(tmp_path / "gallery", EMBEDDINGS, LABELS)
    queries = write_embeddings(tmp_path / "queries", students, LABELS)
    for folder, model in ((gallery, b"teacher"), (queries, b"student")):
        for path in pathlib.Path(folder).glob("*.parquet"):
            pq.write_table(pq.read_table(path).replace_schema_metadata({MODEL_KEY: model}), path)
    found = scale.evaluate(gallery, str(tmp_path / "out"), HERE, queries=queries, ks=[1], two_models=True)
    ids = [f"image {number}" for number in range(300)]
    wanted = evaluate(
        students,
        LABELS,
        gallery_embeddings=EMBEDDINGS,
        gallery_labels=LABELS,
        ids=ids,
        gallery_ids=ids,
        ks=[1],
    )
    assert_equal(found, tmp_path / "out", wanted)


@pytest.mark.parametrize("dim", [slow(1024), 2048])
def test_many_dimensions_give_the_ranks_of_one_machine(tmp_path, dim):
    """TensorFlow rounds products of so many dimensions by their shape."""
    labels = np.arange(600) % 60
    rows = unit(RNG.normal(size=(600, dim)) + 0.3 * RNG.normal(size=(60, dim))[labels])
    rows[500:550] = rows[:50]
    folder = write_embeddings(tmp_path / "vectors", rows, labels, rows=200)
    scale.evaluate(folder, str(tmp_path / "out"), HERE, ks=[1], block_queries=70)
    wanted = evaluate(rows, labels, ks=[1]).per_query
    found = read_all(tmp_path / "out")
    assert np.mean(found["ap"].to_numpy() == wanted["ap"]) > 0.99
    np.testing.assert_allclose(found["ap"].to_numpy(), wanted["ap"], atol=1e-3)


def test_the_current_version_of_a_search_index_is_evaluated_alone(tmp_path):
    folder = write_embeddings(tmp_path / "index", EMBEDDINGS, LABELS, rows=100)
    (tmp_path / "index" / "versions").mkdir()
    version = {"parts": ["embeddings-000001.parquet", "embeddings-000003.parquet"]}
    (tmp_path / "index" / "versions" / "7.json").write_text(json.dumps(version))
    (tmp_path / "index" / "CURRENT").write_text("7\n")
    found = scale.evaluate(folder, str(tmp_path / "out"), HERE, ks=[1])
    rows = np.r_[0:100, 200:300]
    assert_equal(found, tmp_path / "out", evaluate(EMBEDDINGS[rows], LABELS[rows], ks=[1]))


def test_labels_that_people_gave_in_an_index_count_in_blocks_of_any_size(tmp_path, store):
    folder = write_embeddings(tmp_path / "index", EMBEDDINGS, LABELS, rows=100)
    (tmp_path / "index" / "versions").mkdir()
    version = {"parts": [f"embeddings-{number:06d}.parquet" for number in (1, 2, 3)]}
    (tmp_path / "index" / "versions" / "7.json").write_text(json.dumps(version))
    (tmp_path / "index" / "CURRENT").write_text("7\n")
    now = LABELS.copy()
    now[10:250:3] = 500 + np.arange(80) % 5
    rows = [f"image {row},class {now[row]}\n" for row in range(10, 250, 3)]
    (tmp_path / "index" / "labels.csv").write_text("id,label\ngone,class 1\n" + "".join(rows))
    found = scale.evaluate(folder, str(tmp_path / "out"), HERE, ks=[1], block_queries=70)
    assert_equal(found, tmp_path / "out", evaluate(EMBEDDINGS, now, ks=[1]))
    assert read_all(tmp_path / "out")["label"].to_pylist() == [f"class {label}" for label in now]
    storage.upload(folder, "store://index")
    assert (
        labels_of(table_of(parts_of("store://index")[0])).tolist()
        == labels_of(pa.table({"label": [f"class {label}" for label in now[:100]]})).tolist()
    )
    (tmp_path / "index" / "labels.csv").write_text("id,label\nimage 1\n")
    with pytest.raises(InputError, match=r"labels.csv is damaged \(line 2: expected id,label"):
        parts_of(folder)


@pytest.mark.parametrize(
    "queries, images, dim", [(1, 7, 16), (50, 200, 100), (300, 1000, 512), (65, 4097, 700)]
)
def test_the_product_of_two_rows_has_the_same_bits_beside_any_others(queries, images, dim):
    rng = np.random.default_rng(0)
    left, right = unit(rng.normal(size=(queries, dim))), unit(rng.normal(size=(images, dim)))
    whole = ranking.product(left, right)
    for _ in range(3):
        some, others = rng.permutation(queries)[: rng.integers(1, queries + 1)], rng.permutation(images)
        others = others[: rng.integers(1, images + 1)]
        np.testing.assert_array_equal(ranking.product(left[some], right[others]), whole[some][:, others])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 5), st.integers(0, 5))
def test_parts_of_any_sizes_add_up_to_the_ranks_of_the_whole_gallery(seed, images, parts, k):
    rng = np.random.default_rng(seed)
    # Products are multiples of 1/4, so that there are many ties and no rounding.
    embeddings = rng.choice(np.float32([-0.5, 0.5]), (images, 4))
    embeddings[::3] = np.eye(4, dtype=np.float32)[rng.integers(0, 4, len(embeddings[::3]))]
    labels, numbers = rng.integers(0, 5, images), np.arange(images)
    rows = Rows(numbers, labels, numbers, embeddings)
    thresholds = ranking.thresholds_of(rows, rows, leave_one_out=True)
    cuts = np.sort(rng.integers(0, images + 1, parts - 1))
    pieces = [some for some in np.split(numbers, cuts) if len(some)]
    counted = [
        ranking.counted(rows, Rows(*(column[piece] for column in rows)), thresholds, k) for piece in pieces
    ]
    whole = ranking.merged(counted, k)
    ranks = ranking.ranks(thresholds, whole.no_less)
    positives = [np.flatnonzero((labels == labels[q]) & (numbers != q)) for q in numbers]
    if any(map(len, positives)):
        wanted = evaluate(embeddings, labels, ks=[1], keep_ranks=True).ranks
        np.testing.assert_array_equal(ranks.rank, wanted.rank)
        np.testing.assert_array_equal(ranks.start, wanted.start)
    if k:
        nearest = exact(embeddings, embeddings, k, numbers)
        width = nearest.index.shape[1]
        np.testing.assert_array_equal(whole.neighbors.index[:, :width], nearest.index)


def test_embeddings_that_a_map_has_made_are_said(tmp_path, capsys):
    folder = write_embeddings(tmp_path / "vectors", EMBEDDINGS[:60], LABELS[:60])
    first = tmp_path / "vectors" / "embeddings-000001.parquet"
    marks = pa.array(["old model"] * 25 + [None] * 15, pa.string())
    pq.write_table(pq.read_table(first).append_column("mapped_from", marks), first)
    found = scale.evaluate(folder, str(tmp_path / "out"), HERE, ks=[1])
    said = "A map has made the embeddings of 25 of 60 images from an older model's. `tfrank index upgrade` "
    assert found["note"].startswith(said) and said in capsys.readouterr().out


def test_labels_mean_what_they_mean_in_records():
    names = ["owl", "-1", "", None, "caf\u00e9", "cafe\u0301", "Owl"]
    owl, *without, one, other, upper = labels_of(pa.table({"label": names})).tolist()
    assert without == [-1, -1, -1] and one == other and len({owl, one, upper}) == 3


def test_bad_input_is_named(tmp_path):
    folder = write_embeddings(tmp_path / "vectors", EMBEDDINGS, LABELS)
    other = write_embeddings(tmp_path / "other", EMBEDDINGS[:, :8], LABELS)
    lone = write_embeddings(tmp_path / "lone", EMBEDDINGS[:5], np.arange(5))
    broken = EMBEDDINGS.copy()
    broken[7, 3] = np.nan
    nan = write_embeddings(tmp_path / "nan", broken, LABELS)
    mixed = write_embeddings(tmp_path / "mixed", EMBEDDINGS[:80], LABELS[:80])
    (tmp_path / "other" / "embeddings-000001.parquet").rename(f"{mixed}/embeddings-000009.parquet")
    twice = write_embeddings(
        tmp_path / "twice", EMBEDDINGS, LABELS, ids=["same", *map(str, range(298)), "same"]
    )
    write_embeddings(tmp_path / "none", EMBEDDINGS[:1], LABELS[:1])
    none = tmp_path / "none" / "embeddings-000001.parquet"
    pq.write_table(pq.read_table(none).slice(0, 0), none)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "embeddings-000001.parquet").write_bytes(b"PAR1")
    out = str(tmp_path / "out")
    for gallery, queries, message in (
        (str(tmp_path / "nothing"), "", "has no files embeddings-"),
        (folder, other, "Queries have 8 dimensions, the gallery has 16"),
        (lone, "", "No query has an image of its class"),
        (nan, "", "The embedding of 'image 7' is not finite"),
        (mixed, "", "embeddings-000009.parquet has embeddings of 8 dimensions"),
        (twice, "", "has the id 'same' twice"),
        (str(tmp_path / "none"), "", "have no rows"),
        (str(tmp_path / "cut"), "", r"embeddings-000001.parquet is damaged"),
    ):
        with pytest.raises(InputError, match=message) as error:
            scale.evaluate(gallery, out, HERE, queries=queries)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="`two_models` is for `queries` of another model"):
        scale.evaluate(folder, out, HERE, two_models=True)
