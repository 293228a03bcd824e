"""k-reciprocal re-ranking against sets and dense vectors in float64, and by hand."""

import math
import tracemalloc

import numpy as np
import pytest

from tests import reference
from tests.evaluation import LABELS, ROWS, every_rows
from tfrank.common.checks import InputError
from tfrank.evaluation import retrieval_metrics as metrics
from tfrank.evaluation import retrieval_ranks as ranks
from tfrank.evaluation.nearest import exhaustive
from tfrank.evaluation.postprocessing import reranking
from tfrank.evaluation.postprocessing.reranking import k_reciprocal_blocks
from tfrank.evaluation.relevance import relevance_by_label

DISTINCT = ROWS["distinct"]
OWN = np.arange(60)
OPTIONS = [
    {},
    {"k1": 1, "k2": 1},
    {"k1": 5, "k2": 9},
    {"k1": 9, "k2": 2, "lambda_value": 0},
    {"k1": 100, "k2": 100, "lambda_value": 0.8},
]
in_any_blocks = pytest.mark.parametrize(
    "block", [reranking.BLOCK_SIMILARITIES, 7 * 60, 1], ids=["one block", "blocks of 7", "of 1"]
)


def similarities(queries, gallery, **options):
    blocks = list(k_reciprocal_blocks(queries, gallery, **options))
    starts = np.cumsum([0] + [len(block) for _, block in blocks[:-1]])
    assert [start for start, _ in blocks] == starts.tolist()
    assert all(block.dtype == np.float32 for _, block in blocks)
    return np.concatenate([block for _, block in blocks])


def oracle(queries, gallery, k1=20, k2=6, lambda_value=0.3, self_index=None):
    own = np.full(len(queries), -1) if self_index is None else self_index
    return reference.k_reciprocal(queries, gallery, k1, k2, lambda_value, own)


def turned(*degrees):
    """Unit vectors at these angles."""
    return np.array([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in degrees], np.float32)


@every_rows
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("own", ["all", "none", "some"])
def test_similarities_are_those_of_sets_and_dense_vectors(rows, options, own):
    """Leave one out; queries apart from the gallery; ten queries of which five stand in the gallery."""
    queries, gallery, self_index = {
        "all": (rows[:30], rows[:30], OWN[:30]),
        "none": (rows[:10], rows[10:40], None),
        "some": (rows[:10], rows[5:35], np.array([-1] * 5 + [0, 1, 2, 3, 4])),
    }[own]
    got = similarities(queries, gallery, self_index=self_index, **options)
    np.testing.assert_allclose(got, oracle(queries, gallery, self_index=self_index, **options), atol=2e-6)


@in_any_blocks
def test_blocks_of_any_size_give_the_same(monkeypatch, block):
    whole = similarities(DISTINCT, DISTINCT, self_index=OWN)
    monkeypatch.setattr(reranking, "BLOCK_SIMILARITIES", block)
    monkeypatch.setattr(reranking, "BLOCK_NUMBERS", block)
    np.testing.assert_allclose(similarities(DISTINCT, DISTINCT, self_index=OWN), whole, atol=1e-6)


def test_a_set_that_shares_two_thirds_joins_by_hand():
    """Angles of p, a, b, q, r, x, y. With k1 = 4 the neighbours of p are p, a, b, q and r: not x.

    But the neighbours of r for k1/2 = 2 are q, r and x, of which q and r, two thirds, are neighbours of p: so
    x joins. Those of y are x and y; so p and y share x.
    """
    images = turned(0, -15, -16, 20, 30, 50, 90)
    got = similarities(images, images, k1=4, k2=1, lambda_value=0, self_index=np.arange(7))

    def weights(angles, farthest):
        return [
            math.exp(-(1 - math.cos(math.radians(a))) / (1 - math.cos(math.radians(farthest))))
            for a in angles
        ]

    of_p, of_y = weights([0, 15, 16, 20, 30, 50], farthest=90), weights([0, 40], farthest=106)
    shared = min(of_p[5], of_y[1])
    jaccard = 1 - shared / (sum(of_p) + sum(of_y) - shared)
    assert got[0, 6] == pytest.approx(-jaccard, abs=1e-6) and jaccard == pytest.approx(0.8936, abs=1e-4)


def test_local_query_expansion_by_hand():
    """Two pairs: with k1 = 1 each image shares its vector's places with its twin alone.

    With k2 = 2, an image and its nearest have the same mean vector, at a Jaccard distance of 0.
    """
    images = turned(0, 10, 100, 120)
    plain, expanded = (
        similarities(images, images, k1=1, k2=k2, lambda_value=0, self_index=np.arange(4)) for k2 in (1, 2)
    )
    assert -0.5 < plain[0, 1] < -0.01
    np.testing.assert_allclose(expanded[[0, 1, 2, 3], [1, 0, 3, 2]], 0, atol=1e-6)
    np.testing.assert_array_equal(expanded[0, 2:], [-1, -1])


def test_among_images_without_a_common_neighbor_distance_decides():
    images = turned(0, 10, 100, 120)
    got = similarities(images, images, k1=1, k2=1, self_index=np.arange(4))
    farthest = 1 - math.cos(math.radians(120))
    wanted = [-0.7 - 0.3 * (1 - math.cos(math.radians(a))) / farthest for a in (100, 120)]
    np.testing.assert_allclose(got[0, 2:], wanted, atol=1e-6)


@every_rows
def test_lambda_1_leaves_the_ranking_as_it_was(rows):
    relevance = relevance_by_label(LABELS, LABELS, OWN)
    blocks = k_reciprocal_blocks(rows, rows, lambda_value=1, self_index=OWN)
    np.testing.assert_array_equal(
        ranks.ranks_of_blocks(blocks, relevance).rank, ranks.positive_ranks(rows, rows, relevance).rank
    )


def test_the_ranking_of_clustered_rows_becomes_better():
    relevance = relevance_by_label(LABELS, LABELS, OWN)

    def mean_ap(found):
        return np.nanmean(metrics.average_precision(found))

    before = mean_ap(ranks.positive_ranks(DISTINCT, DISTINCT, relevance))
    blocks = k_reciprocal_blocks(DISTINCT, DISTINCT, k1=10, k2=4, self_index=OWN)
    assert mean_ap(ranks.ranks_of_blocks(blocks, relevance)) > before + 0.05


@pytest.mark.parametrize(
    "rows", [np.ones([9, 1]), np.zeros([9, 4]), np.ones([1, 1])], ids=["alike", "0", "one"]
)
def test_a_collapsed_model_gives_finite_similarities(rows):
    rows = rows.astype(np.float32)
    got = similarities(rows, rows, self_index=np.arange(len(rows)))
    np.testing.assert_allclose(got, oracle(rows, rows, self_index=np.arange(len(rows))), atol=1e-6)
    assert np.isfinite(got[~np.eye(len(rows), dtype=bool)]).all()


@pytest.mark.parametrize("lambda_value", [0, 0.3, 1])
@pytest.mark.parametrize("spread", [0, 1e-8, 1e-7, 1e-4, 1])
def test_similarities_lie_between_minus_1_and_0_however_alike_the_images(spread, lambda_value):
    """Also where rounding decides which of them are near, and how far the farthest is."""
    rng = np.random.default_rng(0)
    rows = reference.unit(rng.normal(size=[1, 33]) + spread * rng.normal(size=[40, 33])).astype(np.float32)
    got = similarities(rows, rows, k1=5, k2=3, lambda_value=lambda_value, self_index=np.arange(40))
    others = got[~np.eye(40, dtype=bool)]
    assert np.all(others <= 0) and np.all(others >= -1)


def test_no_array_of_all_pairs_is_made(monkeypatch):
    """4,000 images of which an array of all pairs would take 64 MB."""
    for module in (reranking, exhaustive):
        monkeypatch.setattr(module, "BLOCK_SIMILARITIES", 2**18)
    rows = np.random.default_rng(0).normal(size=[4000, 8])
    rows = reference.unit(rows).astype(np.float32)
    tracemalloc.start()
    for _ in k_reciprocal_blocks(rows, rows, k1=5, k2=2, self_index=np.arange(4000)):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4000 * 4000 * 4 / 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"k1": 0}, "argument `k1`. Expected an integer of at least 1"),
        ({"k2": 0}, "argument `k2`. Expected an integer of at least 1"),
        (
            {"lambda_value": 1.1},
            "argument `lambda_value`. Expected a finite number of at least 0 and of at most 1",
        ),
        ({"lambda_value": -0.1}, "argument `lambda_value`"),
        ({"self_index": OWN + 1}, "argument `self_index`. Expected rows below"),
        ({"gallery": DISTINCT[:, :5]}, r"argument `gallery`. .*\[rows, 12\]"),
        ({"queries": DISTINCT[:0]}, "argument `queries`"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_block(arguments, message):
    arguments = {"queries": DISTINCT, "gallery": DISTINCT, **arguments}
    with pytest.raises(InputError, match=message):
        k_reciprocal_blocks(arguments.pop("queries"), arguments.pop("gallery"), **arguments)
