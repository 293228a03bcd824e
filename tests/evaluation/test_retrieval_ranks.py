"""Ranks of positives: against plain loops, in any blocks and tiles, with ties wherever they stand."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.evaluation import LABELS, ROWS, every_rows
from tfrank.evaluation import leave_one_out, parallel, threshold_counts
from tfrank.evaluation import retrieval_ranks as ranks
from tfrank.evaluation.leave_one_out import leave_one_out_ranks
from tfrank.evaluation.parallel import in_parallel, similarities
from tfrank.evaluation.relevance import relevance_by_label, relevance_by_list
from tfrank.evaluation.retrieval_ranks import positive_ranks

OWN = np.arange(60)


def of_the_loops(similarity, *pairs):
    """The ranks of the positives of each query, by the oracle."""
    rankings = reference.relevance(similarity, *pairs)
    return [[place for place, hit in enumerate(ranking or [], start=1) if hit] for ranking in rankings]


def of_each_query(found):
    return [part.tolist() for part in np.split(found.rank, found.start[1:-1])]


@pytest.fixture(
    params=[(2**24, 2**24, 8), (25 * 60, 7 * 60, 40), (1, 1, 0)],
    ids=["one block", "blocks of 25, in slices of 7", "blocks of 1, sorted"],
)
def blocks(request, monkeypatch):
    """Blocks and slices of several sizes; rows compared with each positive, or sorted."""
    monkeypatch.setattr(ranks, "BLOCK_SIMILARITIES", request.param[0])
    monkeypatch.setattr(ranks, "SLICE_SIMILARITIES", request.param[1])
    monkeypatch.setattr(ranks, "FEW_POSITIVES", request.param[2])


@every_rows
def test_ranks_are_those_of_the_plain_loops_in_any_blocks(blocks, rows):
    found = positive_ranks(rows, rows, relevance_by_label(LABELS, LABELS, OWN))
    assert of_each_query(found) == of_the_loops(similarities(rows, rows), LABELS, LABELS, OWN)
    assert found.positives.tolist() == [np.sum(label == LABELS) - 1 for label in LABELS]


@every_rows
def test_queries_may_stand_outside_the_gallery_and_some_inside(blocks, rows):
    own = np.where(np.arange(20) >= 15, np.arange(20) - 10, -1)
    pairs = (LABELS[:20], LABELS[10:], own)
    found = positive_ranks(rows[:20], rows[10:], relevance_by_label(*pairs))
    assert of_each_query(found) == of_the_loops(similarities(rows[:20], rows[10:]), *pairs)


@every_rows
def test_junk_is_neither_positive_nor_negative(blocks, rows):
    """As if the gallery of a query had no such rows."""
    junk = np.random.default_rng(3).random([60, 60]) < 0.3
    found = of_each_query(positive_ranks(rows, rows, relevance_by_label(LABELS, LABELS, OWN, junk)))
    lists = [np.flatnonzero((LABELS[q] == LABELS) & ~junk[q] & (q != OWN)) for q in OWN]
    ignored = [np.flatnonzero(junk[q] | (q == OWN)) for q in OWN]
    assert of_each_query(positive_ranks(rows, rows, relevance_by_list(lists, ignored))) == found
    for q in OWN:
        keep = np.flatnonzero(~junk[q] & (q != OWN))
        similarity = similarities(rows, rows)[q : q + 1, keep]
        assert of_the_loops(similarity, LABELS[q : q + 1], LABELS[keep], [-1]) == [found[q]]


@every_rows
@pytest.mark.parametrize("tile", [2048, 31, 40], ids="tiles of {}".format)
@pytest.mark.parametrize("most", [20, 50, 2], ids="up to {} positives".format)
def test_leave_one_out_in_tiles_gives_the_ranks_of_the_whole(monkeypatch, rows, tile, most):
    monkeypatch.setattr(leave_one_out, "TILE", tile)
    monkeypatch.setattr(leave_one_out, "MOST_POSITIVES", most)
    found = leave_one_out_ranks(rows, LABELS)
    assert of_each_query(found) == of_the_loops(similarities(rows, rows), LABELS, LABELS, OWN)


@pytest.mark.parametrize("dim", [3, 8, 64, 333])
@pytest.mark.parametrize("images", [1003, 900, 17])
def test_equal_images_tie_wherever_they_stand(monkeypatch, dim, images):
    """Every image twice, under another label: its double is a negative as near as itself can be."""
    monkeypatch.setattr(leave_one_out, "TILE", 256)
    rng = np.random.default_rng(dim)
    order = rng.permutation(2 * images)
    rows = rng.normal(size=(images, dim)).astype(np.float32)
    rows = np.tile(rows / np.linalg.norm(rows, axis=1, keepdims=True), [2, 1])[order]
    labels = np.repeat([0, 1], images)[order] * images + np.tile(np.arange(images) // 3, 2)[order]
    similarity = np.concatenate([block for _, block in ranks.similarity_blocks(rows, rows)])
    place = np.argsort(order)
    np.testing.assert_array_equal(similarity[:, place[:images]], similarity[:, place[images:]])
    # A positive has its double before it: among few positives no rank can be odd.
    found = leave_one_out_ranks(rows, labels)
    whole = positive_ranks(rows, rows, relevance_by_label(labels, labels, np.arange(2 * images)))
    np.testing.assert_array_equal(found.rank, whole.rank)
    # Before the nearest positive stand the query's double and the double of that positive, at least.
    assert found.rank.min() >= 3


@pytest.mark.parametrize("images", [18, 34, 1000])
def test_all_positives_of_a_collapsed_model_come_last(images):
    """Whatever the product rounds differently at its edges."""
    row = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    rows = np.repeat(row / np.linalg.norm(row), images, axis=0)
    found = leave_one_out_ranks(rows, np.arange(images) // 2)
    assert found.rank.tolist() == [images - 1] * images


def test_a_collapsed_model_has_the_worst_ranks():
    found = leave_one_out_ranks(np.ones([6, 1], np.float32), np.array([1, 1, 1, 2, 2, 3]))
    assert of_each_query(found) == [[4, 5], [4, 5], [4, 5], [5], [5], []]


@every_rows
@pytest.mark.parametrize("slab", [7, 60, 1000])
def test_a_gallery_that_is_not_held_is_read_slab_by_slab(monkeypatch, rows, slab):
    wanted = positive_ranks(rows, rows, relevance_by_label(LABELS, LABELS, OWN))
    monkeypatch.setattr(parallel, "HELD_BYTES", 0)
    monkeypatch.setattr(parallel, "SLAB_ROWS", slab)
    monkeypatch.setattr(ranks, "STREAMED_SIMILARITIES", 11 * 60)
    found = positive_ranks(rows, rows, relevance_by_label(LABELS, LABELS, OWN))
    np.testing.assert_array_equal(found.rank, wanted.rank)


def test_embeddings_may_be_mapped_from_a_file(tmp_path):
    np.save(tmp_path / "a.npy", ROWS["distinct"])
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    wanted = leave_one_out_ranks(ROWS["distinct"], LABELS)
    np.testing.assert_array_equal(leave_one_out_ranks(mapped, LABELS).rank, wanted.rank)
    np.testing.assert_array_equal(
        positive_ranks(mapped, mapped, relevance_by_label(LABELS, LABELS, OWN)).rank, wanted.rank
    )


@pytest.mark.parametrize("rows, columns", [(1, 1), (5, 2049), (300, 17), (257, 4100)])
def test_counts_are_those_of_a_plain_comparison(rows, columns):
    rng = np.random.default_rng(rows)
    similarity = rng.integers(-5, 5, [rows, columns]).astype(np.float32)
    thresholds = np.concatenate([rng.integers(-5, 6, [rows, 3]), np.full([rows, 1], np.inf)], 1)
    wanted = np.sum(similarity[:, None] >= thresholds[:, :, None], axis=2)
    thresholds = thresholds.astype(np.float32)
    np.testing.assert_array_equal(threshold_counts.count_at_least(similarity, thresholds), wanted)
    np.testing.assert_array_equal(
        threshold_counts.count_at_least_in_columns(similarity.T, thresholds), wanted
    )


def test_all_marks_of_a_row_are_counted():
    """A byte holds up to 255: none may overflow where every number counts."""
    ones = np.ones([300, 5000], np.float32)
    assert np.all(threshold_counts.count_at_least(ones, ones[:, :1]) == 5000)
    assert np.all(threshold_counts.count_at_least_in_columns(ones, np.ones([5000, 1], np.float32)) == 300)


def test_tasks_run_in_order_and_an_error_comes_where_its_result_would():
    def inverse(n):
        return 1 / n

    results = in_parallel(inverse, [2, 1, 0, 4])
    assert [next(results), next(results)] == [0.5, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_products_are_of_full_float32_while_in_parallel_and_afterwards_as_before(monkeypatch):
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    before = enabled()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    try:
        assert list(in_parallel(lambda _: enabled(), range(3))) == [False] * 3
        assert enabled()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def test_products_of_several_threads_are_of_full_float32_until_the_last_has_ended():
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    before = enabled()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    seen = []

    def work(number):
        barrier.wait()
        for turn in range(8):
            with parallel.full_float32():
                time.sleep(0.001 * ((number + turn) % 3))
                seen.append(enabled())

    try:
        for _ in range(4):
            barrier = threading.Barrier(8)
            threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert enabled()
        assert seen == [False] * len(seen)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def test_few_tasks_are_begun_ahead_of_those_asked_for():
    begun = []
    results = in_parallel(begun.append, range(1000))
    next(results)
    assert len(begun) < 1000
    results.close()
    assert parallel.MORE_THREADS < 100
