"""One call on arrays: the numbers of the plain loops, and every fault of its input said by name."""

import sys

import numpy as np
import pytest

from tests import reference
from tests.evaluation import LABELS, ROWS, on_circle
from tests.reference import metrics as oracle
from tfrank.common.checks import InputError
from tfrank.evaluation import array_checks
from tfrank.evaluation.array_checks import unit_rows
from tfrank.evaluation.euclidean import euclidean_rows
from tfrank.evaluation.evaluate_arrays import evaluate
from tfrank.evaluation.nearest import searchers
from tfrank.evaluation.nearest.exhaustive import exact
from tfrank.evaluation.ranking_results import leave_one_out

# Not the function of that name, which the folder offers.
module = sys.modules["tfrank.evaluation.evaluate_arrays"]
DISTINCT, TIED = ROWS["distinct"], ROWS["tied"]
KS = (1, 2, 10)
OF_A_RANKING = {
    **{f"recall_at_{k}": lambda ranking, k=k: any(ranking[:k]) for k in KS},
    **{f"precision_at_{k}": lambda ranking, k=k: oracle.precision(ranking, k) for k in KS},
    "ap": oracle.ap,
    "ap_at_r": oracle.ap_at_r,
    "r_precision": oracle.r_precision,
    "reciprocal_rank": oracle.reciprocal_rank,
    "ndcg": oracle.ndcg,
}
MEANS = {"ap": "map", "ap_at_r": "map_at_r", "reciprocal_rank": "mrr"}


def assert_as_ranked(found, rankings):
    """That all there is of an evaluation is that of the rankings, each a list of hits or None."""
    assert set(found.per_query) == set(OF_A_RANKING)
    for name, metric in OF_A_RANKING.items():
        wanted = [np.nan if ranking is None else metric(ranking) for ranking in rankings]
        np.testing.assert_allclose(found.per_query[name], wanted, rtol=1e-12, err_msg=name)
        assert found.metrics[MEANS.get(name, name)] == pytest.approx(np.nanmean(wanted)), name
    lone = rankings.count(None)
    assert (found.metrics["queries"], found.metrics["queries_without_positive"]) == (
        len(rankings) - lone,
        lone,
    )
    places = [oracle.places(ranking) if ranking else [] for ranking in rankings]
    assert [part.tolist() for part in np.split(found.ranks.rank, found.ranks.start[1:-1])] == places


# The category of each label, and a coarser one.
CATEGORIES = np.stack([LABELS % 4, LABELS % 2], axis=1)


@pytest.mark.parametrize("rows", [DISTINCT, TIED], ids=["distinct", "tied"])
@pytest.mark.parametrize("levels", [1, 2])
def test_metrics_of_graded_relevance_are_those_of_the_plain_loops(rows, levels):
    wanted = {"hierarchical_ap": [], "graded_ndcg": [], "asi": []}
    of_levels = [CATEGORIES[:, 0], LABELS] if levels == 1 else [*CATEGORIES.T[::-1], LABELS]
    for q, similarity in enumerate((rows @ rows.T).tolist()):
        shared = np.sum([numbers == numbers[q] for numbers in of_levels], axis=0).tolist()
        others = sorted(set(range(60)) - {q}, key=lambda j: (-similarity[j], shared[j]))
        ranking = [shared[j] for j in others]
        wanted["hierarchical_ap"].append(oracle.hierarchical_ap(ranking, levels + 1))
        wanted["graded_ndcg"].append(oracle.graded_ndcg(ranking))
        wanted["asi"].append(oracle.average_set_intersection(ranking))
    found = evaluate(rows, LABELS, ks=KS, categories=CATEGORIES[:, :levels])
    valid = np.isfinite(found.per_query["ap"])
    for name, values in wanted.items():
        np.testing.assert_allclose(found.per_query[name], values, rtol=1e-12, err_msg=name)
        mean = found.metrics["hierarchical_map" if name == "hierarchical_ap" else name]
        assert mean == pytest.approx(np.mean(np.array(values)[valid]))
    assert all(title in str(found) for title in ("H-AP:", "Graded nDCG:", "ASI:"))


def test_metrics_of_graded_relevance_are_1_for_a_perfect_ranking():
    """One category for all, and a perfect ranking."""
    perfect = evaluate(np.eye(3)[[0, 0, 1, 1, 2, 2]], np.arange(6) // 2, ks=[1], categories=np.zeros(6, int))
    assert [perfect.metrics[name] for name in ("hierarchical_map", "graded_ndcg", "asi")] == [1, 1, 1]


def test_hierarchical_ap_of_queries_and_a_gallery_of_their_own():
    both = slice(None, 30), slice(30, None)
    (queries, gallery), (labels, of_gallery), (categories, theirs) = (
        [array[part] for part in both] for array in (DISTINCT, LABELS, CATEGORIES)
    )
    found = evaluate(
        queries,
        labels,
        gallery_embeddings=gallery,
        gallery_labels=of_gallery,
        categories=categories[:, 0],
        gallery_categories=theirs[:, 0],
    )
    for q, similarity in enumerate((queries @ gallery.T).tolist()):
        shared = (categories[q, 0] == theirs[:, 0]).astype(int) + (labels[q] == of_gallery)
        ranking = [int(shared[j]) for j in np.argsort(-np.array(similarity))]
        assert found.per_query["hierarchical_ap"][q] == pytest.approx(oracle.hierarchical_ap(ranking, 2))


@pytest.mark.parametrize(
    "more, message",
    [
        ({"categories": CATEGORIES[:5]}, "`categories`. Expected 60 integers"),
        ({"categories": CATEGORIES * 0.5}, "`categories`. Expected 60 integers"),
        ({"categories": np.arange(60)}, r"Class \d+ has the categories \d+ and \d+, but a class has one"),
        ({"gallery_categories": CATEGORIES}, "if and only if there is a gallery"),
        (
            {"categories": CATEGORIES, "search": "scann"},
            "Only exact search measures H-AP, graded nDCG and ASI",
        ),
        ({"distance": "euclidean", "search": "scann"}, "Only exact search ranks by Euclidean distance"),
        ({"distance": "l2"}, "`distance`. Expected one of"),
        ({"keep_ranks": True, "search": "scann"}, "Only exact search gives all ranks"),
        ({"cutoffs": True, "search": "scann"}, "Only exact search measures mAP@K, nDCG@K and MRR@K"),
    ],
)
def test_categories_and_cutoffs_that_do_not_fit_are_refused(more, message):
    with pytest.raises(InputError, match=message):
        evaluate(DISTINCT, LABELS, **more)


@pytest.mark.parametrize("rows", [DISTINCT, TIED], ids=["distinct", "tied"])
@pytest.mark.parametrize("with_junk", [False, True])
def test_each_image_in_turn_is_a_query_as_in_the_plain_loops(rows, with_junk):
    junk = np.random.default_rng(0).random([60, 60]) < 0.3 if with_junk else None
    rankings = []
    for q, similarity in enumerate((rows @ rows.T).tolist()):
        ignored = {q} | set(np.flatnonzero(junk[q]).tolist() if with_junk else [])
        positives = set(np.flatnonzero(LABELS[q] == LABELS).tolist()) - ignored
        rankings.append(reference.ranking_of(similarity, positives, ignored))
    assert None in rankings
    assert_as_ranked(evaluate(rows, LABELS, ks=KS, junk=junk, keep_ranks=True), rankings)


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("with_junk", [False, True])
def test_queries_and_a_gallery_are_ranked_as_in_the_plain_loops(with_ids, with_junk):
    """Rows 0 to 29 are queries, 20 to 59 the gallery in another order; by their ids ten are both."""
    rng = np.random.default_rng(1)
    order = rng.permutation(np.arange(20, 60))
    junk = rng.random([30, 40]) < 0.3 if with_junk else None
    names = [f"image {number} å" for number in range(60)]
    ids = {"ids": names[:30], "gallery_ids": [names[n] for n in order]} if with_ids else {}
    rankings = []
    for q in range(30):
        ignored = {place for place, n in enumerate(order) if with_ids and n == q}
        ignored |= set(np.flatnonzero(junk[q]).tolist()) if with_junk else set()
        positives = {place for place, n in enumerate(order) if LABELS[n] == LABELS[q]} - ignored
        similarity = (TIED[order] @ TIED[q]).tolist()
        rankings.append(reference.ranking_of(similarity, positives, ignored))
    gallery = {"gallery_embeddings": TIED[order], "gallery_labels": LABELS[order]}
    found = evaluate(TIED[:30], LABELS[:30], **gallery, **ids, ks=KS, junk=junk, keep_ranks=True)
    assert_as_ranked(found, rankings)


# Norms from 0.1 to 10 about a far point; rows of small integers, whose distances are often equal, too.
FAR = np.float32(DISTINCT * np.random.default_rng(3).uniform(0.1, 10, size=(60, 1)) + 30)
COARSE = np.random.default_rng(4).integers(-2, 3, size=(60, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "rows, scale",
    [
        (FAR, 1),
        (COARSE, 1),
        (np.float16(COARSE), 1),
        (COARSE + 1000, 1),
        (COARSE * np.float64(2) ** 600, 2**600),
    ],
    ids=["far", "coarse", "half", "coarse and far", "huge"],
)
@pytest.mark.parametrize("apart", [False, True])
def test_ranking_by_euclidean_distance_is_that_of_the_plain_loops(rows, scale, apart):
    """Equal distances are ties."""
    queries, rest = np.arange(30) if apart else np.arange(60), np.arange(30, 60) if apart else np.arange(60)
    plain = np.float64(rows) / scale
    rankings = []
    for q in queries:
        similarity = [-sum((a - b) ** 2 for a, b in zip(plain[q], plain[j])) for j in rest]
        ignored = set() if apart else {int(q)}
        positives = {place for place, j in enumerate(rest) if LABELS[j] == LABELS[q]} - ignored
        rankings.append(reference.ranking_of(similarity, positives, ignored))
    more = {"gallery_embeddings": rows[rest], "gallery_labels": LABELS[rest]} if apart else {}
    found = evaluate(rows[queries], LABELS[queries], **more, ks=KS, distance="euclidean", keep_ranks=True)
    assert_as_ranked(found, rankings)
    assert "Ranked by the Euclidean distance" in str(found)


def test_euclidean_distance_and_cosine_differ_where_norms_do_and_agree_where_they_do_not():
    rows = DISTINCT * np.random.default_rng(3).uniform(0.1, 10, size=(60, 1))
    by = {distance: evaluate(rows, LABELS, ks=KS, distance=distance).metrics for distance in module.DISTANCES}
    assert abs(by["cosine"]["map"] - by["euclidean"]["map"]) > 0.01
    unit = [evaluate(DISTINCT, LABELS, ks=KS, distance=distance).metrics for distance in module.DISTANCES]
    assert unit[0] == pytest.approx(unit[1])


def test_the_nearest_by_euclidean_distance_are_found_by_exact_search():
    found = exact(*euclidean_rows(FAR[:20], FAR), 5).index
    distance = np.linalg.norm(np.float64(FAR[:20, None]) - FAR, axis=2)
    np.testing.assert_array_equal(found, np.argsort(distance, axis=1)[:, :5])


def test_a_query_is_left_out_of_the_gallery_by_its_id_whatever_the_type():
    """As bytes, text, numbers or objects; where it stays in, it finds itself."""
    rows, labels = on_circle(0, 1, 90), np.array([1, 2, 1])
    gallery = {"gallery_embeddings": rows[::-1], "gallery_labels": labels[::-1], "ks": [1]}
    kinds = [
        ([b"a", b"b", b"c"], ["c", "b", "a"]),
        (np.array(["a", "b", "c"], object), np.array([b"c", b"b", b"a"])),
        (["10", "9", "1"], np.array([1, 9, 10])),
        (["a", None, "c"], np.array(["c", None, "a"], object)),
    ]
    for ids, gallery_ids in kinds:
        found = evaluate(rows, labels, ids=ids, gallery_ids=gallery_ids, **gallery)
        assert found.per_query["recall_at_1"].tolist()[::2] == [0, 0]
        assert found.metrics["queries_without_positive"] == 1
    for ids in ({}, {"ids": list("abc")}, {"ids": list("abc"), "gallery_ids": list("xyz")}):
        assert evaluate(rows, labels, **ids, **gallery).metrics["recall_at_1"] == 1


def test_some_queries_may_be_in_the_gallery():
    """a is in it, at the first place; b is not, and finds what is where it would be in order."""
    gallery = {"gallery_embeddings": on_circle(0, 10, 20), "gallery_labels": np.array([1, 1, 2])}
    ids = {"ids": ["a", "b"], "gallery_ids": ["a", "c", "e"]}
    found = evaluate(on_circle(0, 0), np.array([1, 1]), **gallery, **ids, ks=[1], keep_ranks=True)
    assert found.ranks.positives.tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("norm", [1e-2, 1, 1e4])
def test_embeddings_are_of_any_dtype_and_norm(dtype, norm):
    import ml_dtypes

    rows = (TIED * norm).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    got, wanted = evaluate(rows, LABELS), evaluate(TIED, LABELS)
    # A power of two times a row rounds nothing; otherwise ties may part.
    assert got.metrics["map"] == pytest.approx(wanted.metrics["map"], abs=0.02)
    assert got.notes == wanted.notes


@pytest.mark.parametrize("norm", [1e-5, 1e200], ids=["small", "large"])
def test_norms_whose_squares_leave_float32_do_not_matter(norm):
    rows = DISTINCT.astype(np.float64)
    got, wanted = evaluate(rows * norm, LABELS), evaluate(rows, LABELS)
    assert got.metrics == pytest.approx(wanted.metrics, abs=1e-6)


def test_unit_rows_of_float32_are_not_copied_even_from_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(array_checks, "BLOCK", 7)
    np.save(tmp_path / "rows.npy", DISTINCT)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert np.shares_memory(unit_rows(mapped)[0], mapped)
    longer = DISTINCT * np.float32(1.00001)
    assert not np.shares_memory(unit_rows(longer)[0], longer)
    assert evaluate(mapped, LABELS).metrics == evaluate(DISTINCT, LABELS).metrics
    assert evaluate(mapped, LABELS).metrics["map"] == leave_one_out(DISTINCT, LABELS, [1])["map"]


@pytest.mark.parametrize("block", [1, 7, 60, 65536])
def test_rows_are_normalised_alike_in_any_blocks(monkeypatch, block):
    monkeypatch.setattr(array_checks, "BLOCK", block)
    rows = DISTINCT.astype(np.float64) * np.arange(60)[:, None]
    got, zeros = unit_rows(rows)
    assert zeros == 1 and got.dtype == np.float32
    np.testing.assert_allclose(got, reference.unit(rows), atol=1e-7)


@pytest.mark.parametrize("labels", [LABELS[:, None], LABELS.astype(np.uint64), LABELS.tolist()])
def test_labels_are_a_row_or_a_column_of_any_integers(labels):
    assert evaluate(DISTINCT, labels).metrics == evaluate(DISTINCT, LABELS).metrics


def test_labels_beyond_int64_are_no_negative_ones_of_the_gallery():
    both = {"gallery_embeddings": DISTINCT, "gallery_labels": np.where(LABELS == 0, -1, LABELS)}
    with pytest.raises(InputError, match=r"`labels`. Expected integers below 2\^63"):
        evaluate(DISTINCT[:4], np.full(4, 2**64 - 1, np.uint64), **both)


@pytest.mark.parametrize("scale", [1e-200, 1e-7, 1e200])
def test_any_norm_but_zero_is_a_norm(scale):
    scaled = evaluate(DISTINCT.astype(np.float64) * scale, LABELS)
    assert scaled.metrics == evaluate(DISTINCT.astype(np.float64), LABELS).metrics and not scaled.notes[1:]


def test_what_overflows_in_float64_is_not_finite():
    rows = DISTINCT.astype(np.longdouble)
    rows[7] *= np.longdouble("1e400")
    with pytest.raises(InputError, match="The embedding of image 7 is not finite"):
        evaluate(rows, LABELS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_embedding_that_is_not_finite_is_named(monkeypatch, value):
    monkeypatch.setattr(array_checks, "BLOCK", 7)
    rows, names = DISTINCT.copy(), [f"image-{number}".encode() for number in range(60)]
    rows[40, 3] = rows[50] = value
    gallery = {"gallery_embeddings": rows, "gallery_labels": LABELS}
    with pytest.raises(InputError, match=r"^The embedding of image 40 is not finite"):
        evaluate(rows, LABELS)
    with pytest.raises(InputError, match=r"^The embedding of 'image-40' is not finite"):
        evaluate(rows, LABELS, ids=names)
    with pytest.raises(InputError, match=r"^The embedding of 'image-40' is not finite"):
        evaluate(DISTINCT, LABELS, **gallery, ids=names, gallery_ids=names)


def test_zero_embeddings_and_galleries_of_one_class_are_noted():
    rows = DISTINCT.copy()
    rows[[3, 8]] = 0
    assert evaluate(rows, LABELS, ks=[1]).notes == (
        "2 embeddings are zero; their similarity to everything is 0.",
    )
    (note,) = evaluate(DISTINCT, np.zeros(60, int), ks=[1]).notes
    assert note == "The gallery has images of one class only: no ranking can be wrong."
    gallery = {"gallery_embeddings": DISTINCT, "gallery_labels": np.full(60, 9)}
    assert evaluate(rows, LABELS, **gallery, ks=[1]).notes == (
        "2 embeddings are zero; their similarity to everything is 0.",
        note,
    )


def test_zero_embeddings_of_a_gallery_are_noted_too():
    gallery = {"gallery_embeddings": on_circle(0, 9) * [[0], [1]], "gallery_labels": np.array([1, 2])}
    (note,) = evaluate(on_circle(0, 1), np.array([1, 2]), **gallery, ks=[1]).notes
    assert note.startswith("1 embeddings are zero")


def test_zero_embeddings_are_as_similar_to_all_as_orthogonal_ones():
    """To the zero query all are as similar, so the two negatives stand before its positive."""
    found = evaluate(np.float32([[0, 0], [1, 0], [-1, 0], [0, 1]]), np.array([1, 1, 2, 2]), ks=[1])
    assert found.per_query["reciprocal_rank"][0] == 1 / 3


def test_queries_whose_label_the_gallery_lacks_are_counted_as_lone():
    gallery = {"gallery_embeddings": on_circle(0, 9), "gallery_labels": np.array([2, 4])}
    found = evaluate(on_circle(0, 1, 2, 3, 4), np.array([1, 2, 3, 5, 4]), **gallery)
    assert (found.metrics["queries"], found.metrics["queries_without_positive"]) == (2, 3)
    assert np.isnan(found.per_query["ap"]).tolist() == [True, False, True, True, False]


def test_default_ks_are_those_that_are_possible_and_others_are_refused():
    found = evaluate(DISTINCT, LABELS)
    assert found.notes == ("Left out: K=100. A query is ranked against 59 images.",)
    recalls = [name for name in found.metrics if name.startswith("recall")]
    assert recalls == ["recall_at_1", "recall_at_10", "recall_at_1_by_class"]
    with pytest.raises(InputError, match="K=60 is too large: a query is ranked against 59 images"):
        evaluate(DISTINCT, LABELS, ks=[1, 60])
    gallery = {"gallery_embeddings": DISTINCT, "gallery_labels": LABELS, "ks": [60]}
    assert evaluate(DISTINCT, LABELS, **gallery).metrics["recall_at_60"] == 1
    with pytest.raises(InputError, match="K=60 is too large"):
        evaluate(DISTINCT[:1], LABELS[:1], **gallery, ids=["a"], gallery_ids=["a", *range(59)])


def test_scann_gives_the_hits_of_exact_search():
    pytest.importorskip("scann")
    found, wanted = (evaluate(DISTINCT, LABELS, ks=KS, search=search) for search in ("scann", "exact"))
    assert found.metrics["scann_recall"] == 1 and "map" not in found.metrics
    for name in found.per_query:
        np.testing.assert_array_equal(found.per_query[name], wanted.per_query[name])


def test_where_scann_cannot_run_all_is_found_exactly_and_a_note_says_so(monkeypatch, caplog):
    monkeypatch.setattr(searchers, "scann_problem", lambda: "ScaNN is away.")
    found, wanted = (evaluate(DISTINCT, LABELS, search=search) for search in ("scann", "exact"))
    assert found.metrics == wanted.metrics and "map" in found.metrics
    np.testing.assert_array_equal(found.per_query["ap"], wanted.per_query["ap"])
    assert found.notes == ("Searched exactly, not by ScaNN. ScaNN is away.", *wanted.notes)
    assert not caplog.text


ITSELF = (
    "Gallery and queries have the same embeddings, so each query finds itself first. Leave out the gallery,"
    " or give ids and gallery_ids."
)
WIDE = DISTINCT.astype(np.float64) * 3
AGAIN = DISTINCT.copy()
AGAIN[-1] = DISTINCT[0]


@pytest.mark.parametrize(
    ("queries", "gallery", "noted"),
    [
        (DISTINCT, DISTINCT, True),
        (DISTINCT, DISTINCT.copy(), True),
        # The same but for their norms; and in blocks of which the last differs.
        (DISTINCT, DISTINCT * 2, True),
        (DISTINCT, AGAIN, False),
        # Some of the gallery, or in another order, whether rows are copied to be normalised or not.
        (DISTINCT[20:30], DISTINCT, True),
        (DISTINCT, DISTINCT[::-1], True),
        (WIDE[20:30], WIDE, True),
        # Of copies, only all of them are seen.
        (DISTINCT[:14].copy(), DISTINCT, False),
        # In one array, and most of them apart.
        (DISTINCT[:30], DISTINCT[30:], False),
        (DISTINCT[:30], DISTINCT[20:], False),
        (DISTINCT[:, :6], DISTINCT[:, 6:], False),
        (DISTINCT[:, :6], DISTINCT[:, ::2], False),
        (DISTINCT[::2], DISTINCT[1::2], False),
    ],
)
def test_a_gallery_of_the_queries_themselves_is_noted(monkeypatch, queries, gallery, noted):
    monkeypatch.setattr(module, "BLOCK", 7)
    labels = np.arange(60) % 2
    arrays = {"gallery_embeddings": gallery, "gallery_labels": labels[: len(gallery)], "ks": [1]}
    assert evaluate(queries, labels[: len(queries)], **arrays).notes == ((ITSELF,) if noted else ())


def test_queries_that_are_left_out_of_their_own_rankings_are_not_noted():
    """By their ids, or as junk; ids without those of the gallery are for messages alone."""
    gallery = {"gallery_embeddings": DISTINCT, "gallery_labels": LABELS, "ks": [1]}
    names = np.arange(60)
    for left_out in ({"ids": names, "gallery_ids": names}, {"junk": np.eye(60, dtype=bool)}):
        found = evaluate(DISTINCT, LABELS, **gallery, **left_out)
        assert found.notes == () and found.metrics["recall_at_1"] < 1
    assert evaluate(DISTINCT, LABELS, **gallery, ids=names).notes == (ITSELF,)


@pytest.mark.parametrize(
    ("labels", "gallery_labels", "said"),
    [
        ([3, 1, 2, 1], [8, 7, 8, 8], "(queries have labels 1, 2, 3, the gallery 7, 8)"),
        ([5, 4, 3, 2, 1], [-6] * 2, "(queries have labels 1, 2, 3, 4, 5, the gallery -6)"),
        (
            [5, 4, 3, 2, 1, 0],
            range(6, 90),
            "(queries have labels 0, 1, 2, 3, 4, ..., the gallery 6, 7, 8, 9, 10, ...)",
        ),
    ],
)
@pytest.mark.parametrize("search", ["exact", "scann"])
def test_queries_whose_classes_the_gallery_lacks_are_refused_before_they_are_searched(
    monkeypatch, search, labels, gallery_labels, said
):
    monkeypatch.setattr(module, "evaluate_task", None)
    rows, others = on_circle(*range(len(labels))), on_circle(*range(len(gallery_labels)))
    with pytest.raises(InputError) as error:
        evaluate(
            rows,
            np.array(labels),
            gallery_embeddings=others,
            gallery_labels=np.array(gallery_labels),
            search=search,
        )
    assert str(error.value) == f"No query's class is in the gallery {said}, so there is nothing to retrieve."


def test_a_gallery_of_nothing_but_the_query_and_junk_is_refused(monkeypatch):
    monkeypatch.setattr(module, "evaluate_task", None)
    gallery = {"gallery_embeddings": ROWS_OF_4, "gallery_labels": np.arange(4)}
    for left_out in ({"ids": list("abcd"), "gallery_ids": list("abcd")}, {"junk": np.eye(4, dtype=bool)}):
        with pytest.raises(
            InputError, match="anything to find in the gallery but itself or junk, so there is"
        ):
            evaluate(ROWS_OF_4, np.arange(4), **gallery, **left_out)


def test_ids_that_are_no_text_are_told_apart():
    for ids in ([b"a\xff", b"a\xfe", b"a", b"b"], ["a\udc80", "a\udc81", "a", "b"]):
        assert evaluate(ROWS_OF_4, LABELS_OF_4, ids=ids, ks=[1]).metrics["queries"] == 4
        with pytest.raises(InputError, match="more than once"):
            evaluate(ROWS_OF_4, LABELS_OF_4, ids=[*ids[:3], ids[0]])


ROWS_OF_4 = on_circle(0, 1, 2, 3)
LABELS_OF_4 = np.array([1, 1, 2, 2])
GALLERY = {"gallery_embeddings": ROWS_OF_4, "gallery_labels": LABELS_OF_4}
NO = np.zeros([4, 4], bool)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embeddings": ROWS_OF_4[0]}, r"`embeddings`. Expected `\[rows, dim\]` floats"),
        ({"embeddings": np.eye(4, dtype=int)}, r"`embeddings`. Expected .*floats.*int64 of shape \(4, 4\)"),
        ({"embeddings": ROWS_OF_4[:0], "labels": []}, "`embeddings`. Expected .* at least one row"),
        ({"labels": LABELS_OF_4 * 1.0}, r"`labels`. Expected 4 integers. Received: labels='float64 \(4,\)'"),
        ({"labels": LABELS_OF_4[:3]}, r"`labels`. Expected 4 integers. .*\(3,\)"),
        ({"labels": np.eye(4, dtype=int)}, r"`labels`. Expected 4 integers. .*\(4, 4\)"),
        ({"labels": list("aabb")}, "`labels`. Expected 4 integers"),
        ({"labels": LABELS_OF_4 > 1}, "`labels`. Expected 4 integers"),
        ({"labels": np.arange(4)}, "there is nothing to retrieve"),
        ({"ids": list("abca")}, r"`ids` has 'a' more than once \(1 repeated\)"),
        ({"ids": [b"a", b"b", b"b", b"b"]}, r"`ids` has 'b' more than once \(2 repeated\)"),
        ({"ids": list("abc")}, r"`ids`. Expected 4 names. Received: ids=\(3,\)"),
        ({"ids": "abcd"}, "`ids`. Expected 4 names"),
        (
            {**GALLERY, "ids": list("abcd"), "gallery_ids": list("xyyz")},
            "`gallery_ids` has 'y' more than once",
        ),
        ({**GALLERY, "gallery_ids": list("wxyz")}, "There are gallery_ids, but no ids to compare them with"),
        ({"gallery_embeddings": ROWS_OF_4}, "Give both gallery_embeddings and gallery_labels"),
        ({"gallery_labels": LABELS_OF_4}, "Give both gallery_embeddings and gallery_labels"),
        ({"gallery_ids": list("abcd")}, "Give both gallery_embeddings and gallery_labels"),
        ({**GALLERY, "gallery_labels": LABELS_OF_4[:2]}, "`gallery_labels`. Expected 4 integers"),
        (
            {"gallery_embeddings": ROWS_OF_4[:0], "gallery_labels": LABELS_OF_4[:0]},
            "`gallery_embeddings`. Expected .* at least one row",
        ),
        ({**GALLERY, "gallery_embeddings": np.eye(4)}, "Queries have 2 dimensions, the gallery has 4"),
        ({**GALLERY, "junk": NO[:3]}, r"`junk`. Expected bools of shape \(4, 4\). .*bool \(3, 4\)"),
        ({"junk": NO.astype(int)}, r"`junk`. Expected bools of shape \(4, 4\). .*int64 \(4, 4\)"),
        ({"junk": NO.tolist()}, "`junk`. Expected bools .*'list'"),
        ({"junk": ~NO}, "there is nothing to retrieve"),
        ({"junk": NO, "search": "scann"}, "Give search='exact'"),
        ({"search": "scan"}, 'Did you mean "scann"'),
        ({"ks": [0]}, "`ks`. Expected an integer of at least 1"),
        ({"ks": []}, "`ks`. Expected a list of numbers"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments, message):
    with pytest.raises(InputError, match=message):
        evaluate(**{"embeddings": ROWS_OF_4, "labels": LABELS_OF_4, **arguments})


def test_an_evaluation_prints_its_numbers_what_they_mean_and_its_notes():
    text = str(evaluate(DISTINCT, LABELS))
    assert "Recall@1 " in text and "Queries without a positive" in text
    assert "Recall@K (hit rate): share of queries" in text
    assert text.endswith("Left out: K=100. A query is ranked against 59 images.")


def test_unit_rows_keep_their_bits_beside_rows_of_other_norms():
    unit = np.float32([[0.6, 0.8], [0.28, 0.96]])
    rows = np.concatenate([unit, 3 * unit])
    found, _ = unit_rows(rows)
    np.testing.assert_array_equal(found[:2], unit)
    np.testing.assert_allclose(found[2:], unit, rtol=1e-6)


def test_metrics_of_the_k_nearest_are_measured_if_asked_for():
    found = evaluate(DISTINCT, LABELS, ks=KS, cutoffs=True)
    usual = evaluate(DISTINCT, LABELS, ks=KS)
    added = {f"{name}_at_{k}" for name in ("map", "ndcg", "mrr") for k in KS}
    assert set(found.metrics) - set(usual.metrics) == added
    assert all(title in str(found) for title in ("mAP@10", "nDCG@10", "MRR@10", "mAP@K: like mAP"))


@pytest.mark.parametrize("with_gallery", [False, True])
def test_images_of_the_label_to_ignore_are_no_queries_and_not_in_the_gallery(with_gallery):
    labels = np.where(np.arange(60) % 7 == 2, -1, LABELS)
    kept = labels != -1
    gallery = {"gallery_embeddings": DISTINCT[::-1], "gallery_labels": labels[::-1]} if with_gallery else {}
    found = evaluate(DISTINCT, labels, ignore_label=-1, ids=np.arange(60), **gallery)
    gallery = {name: rows[kept[::-1]] for name, rows in gallery.items()}
    wanted = evaluate(DISTINCT[kept], labels[kept], **gallery)
    assert found.metrics == wanted.metrics
    for name, values in wanted.per_query.items():
        np.testing.assert_array_equal(found.per_query[name][kept], values)
        assert np.all(np.isnan(found.per_query[name][~kept]))
    assert "images without a class (label -1) are left out" in str(found)
    assert evaluate(DISTINCT, labels).metrics != found.metrics
    with pytest.raises(InputError, match=r"`labels`. Expected 60 integers"):
        evaluate(DISTINCT, labels[:-1], ignore_label=-1)
    with pytest.raises(InputError, match=r"`ignore_label`. Expected an integer, such as -1, or None"):
        evaluate(DISTINCT, labels, ignore_label="-1")
