"""Search by codes: what is found, and in what order, is what plain loops find; damaged files are refused."""

import math
import os
import re

import numpy as np
import pytest

from tfrank.common.checks import InputError
from tfrank.evaluation.nearest import coded_index, codes
from tfrank.evaluation.nearest.coded_index import CodedIndex, Depth, Settings
from tfrank.evaluation.nearest.codes import CODES, Coder

DIM = 70


def vectors(rows, seed=0):
    draw = np.random.default_rng(seed)
    found = draw.normal(size=(30, DIM))[draw.integers(30, size=rows)] + 0.4 * draw.normal(size=(rows, DIM))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


ROWS, QUERIES = vectors(300), vectors(5, seed=1)


def learnt_by_loops(storage, rows):
    """The median of each dimension, or what its whole numbers are multiples of."""
    learnt = []
    for d in range(DIM):
        column = sorted(float(row[d]) for row in rows)
        middle = len(column) // 2
        median = np.float32((column[middle - 1] + column[middle]) / 2)
        scale = np.float32(max(-column[0], column[-1])) / np.float32(127)
        learnt.append(median if storage == "binary" else scale)
    return learnt


def code_by_loops(storage, learnt, row):
    """A list of numbers: bits, multiples of the scale, or half-precision values."""
    code = []
    for value, of_dimension in zip(row, learnt):
        if storage == "binary":
            code.append(int(value > of_dimension))
        elif storage == "int8":
            code.append(max(-127, min(127, round(float(value / of_dimension)))) * float(of_dimension))
        else:
            code.append(float(np.float16(value)))
    return code


def order_by_loops(storage, rows, query):
    """The rows from the nearest code to the farthest, of equal ones the lower first; and the scores."""
    scores, learnt = [], learnt_by_loops(storage, rows)
    own = code_by_loops(storage, learnt, query)
    for row in rows:
        code = code_by_loops(storage, learnt, row)
        if storage == "binary":
            scores.append(-sum(a != b for a, b in zip(own, code)))
        else:
            scores.append(sum(float(a) * b for a, b in zip(query, code)))
    return sorted(range(len(rows)), key=lambda row: (-scores[row], row)), scores


@pytest.mark.parametrize("storage", CODES)
def test_the_nearest_codes_are_those_of_plain_loops_however_the_rows_are_divided(storage, monkeypatch):
    monkeypatch.setattr(codes, "TILE_ROWS", 64)
    monkeypatch.setattr(codes, "FLOAT_ROWS", 16)
    rows = ROWS[:200]
    coder = Coder.learn(storage, rows)
    encoded = coder.encode(rows)
    found = coder.nearest(QUERIES, encoded, 40)
    for query, numbers in zip(QUERIES, found):
        order, scores = order_by_loops(storage, rows, query)
        if storage == "binary":
            assert numbers.tolist() == order[:40]
        else:
            np.testing.assert_allclose(np.array(scores)[numbers], np.array(scores)[order[:40]], atol=1e-5)
    wanted = np.array([[3, 7, 150]] * len(QUERIES))
    for query, needed in zip(QUERIES, coder.needed(QUERIES, encoded, wanted)):
        scores = order_by_loops(storage, rows, query)[1]
        for row, count in zip(wanted[0], needed):
            assert count == sum(score >= scores[row] - 1e-7 for score in scores)


def test_codes_take_the_bytes_that_are_promised():
    assert [Coder.learn(storage, ROWS).encode(ROWS[:1]).nbytes for storage in CODES] == [140, 70, 16]


@pytest.mark.parametrize("among", [None, np.arange(0, 300, 3)], ids=["all", "few"])
@pytest.mark.parametrize("storage", CODES)
def test_the_best_candidates_are_compared_by_their_full_vectors(storage, among, monkeypatch):
    monkeypatch.setattr(coded_index, "RESCORED_VALUES", 3 * 40 * DIM)
    coder = Coder.learn(storage, ROWS)
    settings = Settings(storage, (Depth(10, 4.0, 1.0),))
    index = CodedIndex(np.arange(300).astype(str), ROWS, settings, coder, coder.encode(ROWS))
    found = index.search(QUERIES, 5, among)
    for query, numbers, similarities in zip(QUERIES, *found):
        order = order_by_loops(storage, ROWS, query)[0]
        # Few rows of a condition are all compared.
        best = order[: 4 * 10] if among is None else among.tolist()
        product = {row: sum(float(a) * float(b) for a, b in zip(query, ROWS[row])) for row in best}
        assert numbers.tolist() == sorted(best, key=lambda row: -product[row])[:5]
        np.testing.assert_allclose(similarities, [product[row] for row in numbers], atol=1e-6)
    # Nothing was tuned for more neighbours, so all are compared.
    monkeypatch.setattr(coded_index, "EXACT_VALUES", 90 * DIM)
    numbers = np.arange(300) if among is None else among
    wanted = numbers[np.argsort(-(QUERIES @ ROWS[numbers].T), axis=1)]
    assert index.search(QUERIES, 1000, among).index.tolist() == wanted.tolist()


@pytest.mark.parametrize("storage", CODES)
def test_a_search_is_tuned_to_the_recall_on_rows_that_it_does_not_have(storage):
    rows = vectors(3300, seed=2)
    index = CodedIndex.build(rows[:3000], ids=np.arange(3000).astype(str), storage=storage, target_recall=0.9)
    assert index.settings.depths
    for depth in index.settings.depths:
        assert 0.9 <= depth.recall <= 1 and depth.rescore <= 3000 / 4 / depth.k
    # Also for numbers of neighbours between those that it is tuned for.
    for k in (3, 10, 11, 30, index.settings.depths[-1].k):
        found = index.search(rows[3000:], k).index
        wanted = np.argsort(-(rows[3000:] @ rows[:3000].T), axis=1)[:, :k]
        shared = np.mean([len(set(a) & set(b)) for a, b in zip(found.tolist(), wanted.tolist())])
        assert shared / k > 0.88


def test_a_condition_that_leaves_out_the_nearest_loses_no_more_than_is_promised(monkeypatch):
    draw = np.random.default_rng(3)
    kinds, centres = draw.integers(100, size=10_000), draw.normal(size=(100, DIM))
    drawn = centres[kinds] + 0.5 * draw.normal(size=(10_000, DIM))
    rows = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    index = CodedIndex.build(rows, ids=np.arange(10_000).astype(str), storage="binary")
    read, shares = [], []
    monkeypatch.setattr(index, "_exact", lambda *some: read.append(some) or CodedIndex._exact(index, *some))
    for k in (1, 10):
        for query in range(20):
            others = np.flatnonzero(kinds != kinds[query])
            found = index.search(rows[[query]], k, others)
            wanted = others[np.argsort(-(rows[others] @ rows[query]))[:k]]
            shares.append(len(np.intersect1d(found.index[0], wanted)) / k)
            np.testing.assert_allclose(found.similarity[0], rows[found.index[0]] @ rows[query], atol=1e-6)
    assert np.mean(shares) > 0.985
    # Where the nearest stay, all but some are left on disk.
    read.clear()
    some = np.flatnonzero(draw.random(10_000) < 0.9)
    (found,) = index.search(rows[some[:30]], 10, some).index[None]
    wanted = np.argsort(-(rows[some[:30]] @ rows[some].T), axis=1)[:, :10]
    assert np.mean([len(np.intersect1d(*pair)) for pair in zip(found, some[wanted])]) > 9.85
    assert sum(len(queries) for queries, *_ in read) < 10


@pytest.mark.parametrize("storage", CODES)
def test_a_loaded_index_knows_added_and_removed_rows_and_leaves_the_others_on_disk(tmp_path, storage):
    rows = vectors(1400)
    names = np.array([f"i{row}" for row in range(1400)])
    CodedIndex.build(rows[:1200], ids=names[:1200], storage=storage).save(str(tmp_path))
    same = CodedIndex.load(str(tmp_path), names[:1200], DIM, lambda new: pytest.fail("nothing is new"))
    assert np.asarray(same.rows).base is not None and not np.asarray(same.rows).flags.writeable
    np.testing.assert_array_equal(same.rows, rows[:1200])
    present = np.random.default_rng(0).permutation(np.arange(100, 1400))
    asked = []
    index = CodedIndex.load(
        str(tmp_path), names[present], DIM, lambda new: asked.append(new) or rows[present[new]]
    )
    assert sorted(present[asked[0]]) == list(range(1200, 1400))
    np.testing.assert_array_equal(index.rows[:], rows[present])
    np.testing.assert_array_equal(index.rows[np.array([[3, 4]])], rows[present[[[3, 4]]]])
    found = index.search(rows[1250:1260], 10)
    assert present[found.index[:, 0]].tolist() == list(range(1250, 1260))
    np.testing.assert_allclose(found.similarity[:, 0], 1, atol=1e-6)
    wanted = np.argsort(-(rows[1250:1260] @ rows[present].T), axis=1)[:, :10]
    assert np.mean([len(np.intersect1d(*pair)) for pair in zip(found.index, wanted)]) > 9


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: os.remove(folder / "vectors.f32"), "has no vectors.f32. Codes are searched together"),
        (lambda folder: os.remove(folder / "codes.npy"), "has no codes.npy."),
        (lambda folder: os.truncate(folder / "vectors.f32", 400), "vectors.f32 has other rows than ids.npy"),
        (
            lambda folder: (folder / "codes.npy").write_bytes(b"\x93NUMPY"),
            "the checksum of codes.npy differs",
        ),
        (lambda folder: (folder / "codes.json").write_text("{}"), "is damaged"),
    ],
)
def test_a_damaged_index_or_one_without_its_full_vectors_is_refused_in_one_line(tmp_path, damage, reason):
    names = np.arange(50).astype(str)
    CodedIndex.build(ROWS[:50], ids=names).save(str(tmp_path))
    damage(tmp_path)
    with pytest.raises(InputError, match=re.escape(reason)) as caught:
        CodedIndex.load(str(tmp_path), names, DIM, lambda new: ROWS[:0])
    assert "\n" not in str(caught.value)


def test_an_unknown_storage_is_refused():
    with pytest.raises(InputError, match=r'argument `storage`.*Did you mean "int8"'):
        CodedIndex.build(ROWS, ids=np.arange(300).astype(str), storage="int88")


def test_a_search_among_no_rows_says_so():
    index = CodedIndex.build(ROWS, ids=np.arange(300).astype(str))
    with pytest.raises(InputError, match=r"argument `among`\. Expected at least one row"):
        index.search(QUERIES, 3, np.array([], int))


def test_few_rows_are_all_compared():
    index = CodedIndex.build(ROWS[:9], ids=np.arange(9).astype(str))
    wanted = np.argsort(-(QUERIES @ ROWS[:9].T), axis=1)
    assert index.search(QUERIES, 10).index.tolist() == wanted.tolist() and math.isfinite(len(index))
