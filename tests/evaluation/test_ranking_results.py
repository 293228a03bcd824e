"""Results of rankings equal those of search, post-processing and metrics composed by hand."""

import itertools

import numpy as np
import pytest

from tests import reference
from tests.evaluation import LABELS, ROWS, by, on_circle
from tests.reference import metrics as oracle
from tfrank.common.checks import InputError
from tfrank.evaluation import ranking_results as module
from tfrank.evaluation import retrieval_metrics as metrics
from tfrank.evaluation.class_means import class_means
from tfrank.evaluation.nearest import exhaustive, neighbors, searchers
from tfrank.evaluation.nearest.scann_index import ScannIndex
from tfrank.evaluation.postprocessing.neighbor_whitening import learn_neighbor_whitening
from tfrank.evaluation.postprocessing.whitening import whiten
from tfrank.evaluation.protocols import RetrievalTask, TestSet, tasks_of
from tfrank.evaluation.ranking_results import evaluate_task, evaluate_tasks
from tfrank.evaluation.relevance import relevance_by_label, relevance_by_list

KS = (1, 3)
DISTINCT = ROWS["distinct"]
IDS = np.array([f"{number}" for number in range(60)])
APART = np.where(np.arange(60) % 3 == 0, "query", "gallery")
EVERY_POST = [
    {
        "query_expansion": expansion,
        "database_augmentation": augmentation,
        "expansion_alpha": 1.5,
        "rerank": rerank,
    }
    for expansion, augmentation, rerank in itertools.product((0, 4), (0, 3), (False, True))
]
every_post = pytest.mark.parametrize("post", EVERY_POST, ids=lambda post: "-".join(map(str, post.values())))


def task_of(protocol):
    (task,) = tasks_of(TestSet(LABELS, IDS, APART, np.full(60, -1)), protocol)
    return task


def similarities_by_hand(queries, gallery, own, post):
    """`[queries, gallery]` after the post-processing, by the plain loops of each."""
    if post["database_augmentation"]:
        everyone = np.arange(len(gallery))
        gallery = reference.expanded(
            gallery, gallery, post["database_augmentation"], post["expansion_alpha"], everyone
        )
        queries = np.array([q if o < 0 else gallery[o] for q, o in zip(queries, own)])
    if post["query_expansion"]:
        queries = reference.expanded(queries, gallery, post["query_expansion"], post["expansion_alpha"], own)
    if post["rerank"]:
        return reference.k_reciprocal(queries, gallery, 20, 6, 0.3, own)
    return queries @ gallery.T


@pytest.mark.parametrize("protocol", ["leave_one_out", "query_gallery"])
def test_adapted_embeddings_are_whitened_within_the_neighbours_of_the_gallery_alone(protocol):
    task = task_of(protocol)
    whitened = whiten(DISTINCT, learn_neighbor_whitening(DISTINCT[task.gallery]))
    wanted = evaluate_tasks(whitened, [task], KS)[protocol].metrics
    assert evaluate_tasks(DISTINCT, [task], KS, options={"adapt": True})[protocol].metrics == wanted


@pytest.mark.parametrize("protocol", ["leave_one_out", "query_gallery"])
@every_post
def test_every_post_processing_is_that_of_the_plain_loops(protocol, post):
    """Where each image is a query in turn, a query is what augmentation has made of it in the gallery."""
    task = task_of(protocol)
    queries, gallery = DISTINCT[task.queries].astype(float), DISTINCT[task.gallery].astype(float)
    if post["rerank"] and post["query_expansion"] and protocol == "leave_one_out":
        with pytest.raises(InputError, match="Re-ranking takes a query that is in the gallery from there"):
            evaluate_tasks(DISTINCT, [task], KS, options=post)
        return
    similarity = similarities_by_hand(queries, gallery, task.self_index, post)
    labels = LABELS[task.queries], LABELS[task.gallery], task.self_index
    found = evaluate_tasks(DISTINCT, [task], KS, options=post)[protocol]
    precisions = reference.average_precision(similarity, *labels)
    np.testing.assert_allclose(found.per_query["ap"], precisions, atol=1e-6)
    for k in KS:
        wanted = reference.recall_at_k(similarity, *labels, k)
        assert found.metrics[f"recall_at_{k}"] == pytest.approx(wanted)
    assert found.metrics["queries_without_positive"] == np.sum(np.isnan(precisions))


def test_each_post_processing_changes_the_numbers():
    task = task_of("query_gallery")
    maps = [
        evaluate_tasks(DISTINCT, [task], KS, options=post)["query_gallery"].metrics["map"]
        for post in EVERY_POST
    ]
    assert len(set(maps)) == len(EVERY_POST)
    assert maps[0] == evaluate_tasks(DISTINCT, [task], KS)["query_gallery"].metrics["map"]


@pytest.mark.parametrize("rerank", [False, True])
def test_several_rankings_of_a_task_are_ranked_alike(rerank):
    """Re-ranked similarities come once and serve every relevance."""
    rng = np.random.default_rng(0)
    lists = [[rng.permutation(40)[:5] for _ in range(20)] for _ in range(2)]
    nothing, own = [np.empty(0, int)] * 20, np.full(20, -1)
    relevance = {name: relevance_by_list(positives, nothing) for name, positives in zip("ab", lists)}
    task = RetrievalTask(np.arange(40, 60), np.arange(40), own, relevance, None)
    queries, gallery = DISTINCT[40:].astype(float), DISTINCT[:40].astype(float)
    post = EVERY_POST[0] | {"rerank": rerank}
    similarity = similarities_by_hand(queries, gallery, own, post)
    found = evaluate_tasks(DISTINCT, [task], [1], options=post)
    for name, positives in zip("ab", lists):
        rankings = [reference.ranking_of(s, set(p.tolist())) for s, p in zip(similarity, positives)]
        wanted = list(map(oracle.trapezoid_ap, rankings))
        np.testing.assert_allclose(found[name].per_query["trapezoid_ap"], wanted, atol=1e-6)
        # Its Ks are those of the protocol.
        assert "capped_precision_at_10" in found[name].per_query


@pytest.mark.parametrize("protocol", ["leave_one_out", "query_gallery"])
@pytest.mark.parametrize("expansion", [0, 4])
def test_scann_gives_the_hits_of_exact_search_and_no_more(protocol, expansion):
    pytest.importorskip("scann")
    task, post = task_of(protocol), {"query_expansion": expansion, "expansion_alpha": 2.0}
    exact = evaluate_tasks(DISTINCT, [task], KS, options=post)[protocol]
    found = evaluate_tasks(DISTINCT, [task], KS, options=post, search="scann")[protocol]
    assert found.first is None and found.task is task
    names = [f"{metric}_at_{k}" for metric in ("recall", "precision") for k in KS]
    assert list(found.per_query) == names
    for name in names:
        np.testing.assert_array_equal(found.per_query[name], exact.per_query[name])
    wanted = {
        name: exact.metrics[name]
        for name in (*names, "recall_at_1_by_class", "queries", "queries_without_positive")
    }
    assert found.metrics == {**wanted, "scann_recall": 1.0}


# 12 rows of any floats, five times each: of one class, of five, and of either.
REPEATED = DISTINCT[np.arange(60) % 12]
CLASSES = {
    "within": np.arange(60) % 12,
    "across": np.arange(60) // 12,
    "both": np.random.default_rng(5).integers(8, size=60),
}


def hashed(queries, gallery, k, self_index):
    """By hashes, of which ScaNN compares so few rows all itself."""
    return ScannIndex.build(gallery, k=k, method="hashing").search(queries, k, self_index)


def rounded_by_place(queries, gallery, k, self_index):
    """As ScaNN's products are: those of equal rows differ in their last bit, and the greater comes first."""
    found = exhaustive.exact(queries, gallery, len(gallery), self_index)
    similarity = found.similarity - np.float32(1.2e-7) * (found.index // 12 % 3)
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    return neighbors.Neighbors(
        *(np.take_along_axis(part, order, axis=1) for part in (found.index, similarity))
    )


@pytest.mark.parametrize("search", [hashed, rounded_by_place])
@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("labels", CLASSES.values(), ids=CLASSES)
@pytest.mark.parametrize(
    "rows",
    [pytest.param(REPEATED, id="repeated"), pytest.param(ROWS["tied"], id="tied", marks=pytest.mark.slow)],
)
def test_scann_gives_the_hits_of_exact_search_at_every_k_where_many_are_tied(
    monkeypatch, search, leave_one_out, labels, rows
):
    """Whichever K the lists end at; of queries and a gallery some queries are in it."""
    pytest.importorskip("scann")
    monkeypatch.setattr(searchers, "find", by(search))
    queries = np.arange(60) if leave_one_out else np.arange(30)
    gallery = np.arange(60) if leave_one_out else np.arange(20, 60)
    own = queries if leave_one_out else np.where(queries < 20, -1, queries - 20)
    both = labels[queries], labels[gallery]
    task = RetrievalTask(queries, gallery, own, {"": relevance_by_label(*both, own)}, both, leave_one_out)
    exact = evaluate_tasks(rows, [task], range(1, task.ranked + 1))[""]
    for most in (1, 2, 3, 4, 5, 8, 19, task.ranked - 1, task.ranked):
        found = evaluate_tasks(rows, [task], range(1, most + 1), search="scann")[""]
        for name, values in found.per_query.items():
            np.testing.assert_array_equal(values, exact.per_query[name], err_msg=name)
            assert found.metrics[name] == exact.metrics[name]


def test_images_of_a_class_that_are_all_alike_find_each_other_by_scann():
    pytest.importorskip("scann")
    labels, own = np.arange(40) % 10, np.arange(40)
    task = RetrievalTask(own, own, own, {"": relevance_by_label(labels, labels, own)}, (labels, labels), True)
    found = evaluate_tasks(on_circle(*labels * 9), [task], [1, 2, 3], search="scann")[""].metrics
    for k in (1, 2, 3):
        assert found[f"recall_at_{k}"] == found[f"precision_at_{k}"] == 1


def test_only_queries_with_a_positive_in_a_tie_at_the_end_of_their_lists_are_ranked_exactly(monkeypatch):
    """Seen from 0 degrees, 10 and -10 are tied; seen from 1, nothing is; from 180, two negatives are."""
    asked = []

    def spy(queries, gallery):
        asked.append(queries.tolist())
        return similarity_blocks(queries, gallery)

    similarity_blocks = module.similarity_blocks
    monkeypatch.setattr(module, "similarity_blocks", spy)
    monkeypatch.setattr(searchers, "find", by(exhaustive.exact))
    rows = on_circle(1, 0, 180, 0, 10, -10, 180, 170, 190)
    labels = np.array([7, 7, 7]), np.array([8, 7, 8, 7, 8, 8])
    task = RetrievalTask(
        np.arange(3), np.arange(3, 9), np.full(3, -1), {"": relevance_by_label(*labels)}, labels
    )
    found = evaluate_tasks(rows, [task], [2], search="scann")[""]
    assert asked == [[rows[1].tolist()]]
    # Of equals the negative is first.
    assert found.per_query["recall_at_2"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_positive_that_rounding_puts_before_equal_negatives_is_after_them(monkeypatch, k):
    def scann(queries, gallery, k, self_index):
        index = np.arange(k)[None]
        return neighbors.Neighbors(index, np.float32(1 - 1.2e-7 * index))

    monkeypatch.setattr(searchers, "find", by(scann))
    labels = np.array([7]), np.array([7, 8, 8, 8])
    task = RetrievalTask(
        np.array([0]), np.arange(1, 5), np.array([-1]), {"": relevance_by_label(*labels)}, labels
    )
    assert evaluate_tasks(on_circle(*[0] * 5), [task], [k], search="scann")[""].metrics[f"recall_at_{k}"] == 0


def test_queries_with_too_few_found_are_ranked_exactly(monkeypatch):
    def poor(queries, gallery, k, self_index):
        found = exhaustive.exact(queries, gallery, k, self_index)
        gone = (np.arange(len(queries)) % 2 == 0)[:, None] & (np.arange(k) > 0)
        return neighbors.Neighbors(np.where(gone, -1, found.index), np.where(gone, -np.inf, found.similarity))

    monkeypatch.setattr(searchers, "find", by(poor))
    task = task_of("leave_one_out")
    exact = evaluate_tasks(DISTINCT, [task], KS)["leave_one_out"]
    found = evaluate_tasks(DISTINCT, [task], KS, search="scann")["leave_one_out"]
    assert found.metrics["scann_recall"] < 1
    for name, values in found.per_query.items():
        np.testing.assert_array_equal(values, exact.per_query[name])


def test_draws_of_an_approximate_search_are_averaged_with_its_own_recall(monkeypatch):
    """The second draw misses half of what it should find."""
    calls = []

    def poor(queries, gallery, k, self_index):
        calls.append(k)
        found = exhaustive.exact(queries, gallery, k, self_index)
        return found._replace(index=np.where(np.arange(k) < len(calls), found.index, -1))

    monkeypatch.setattr(searchers, "find", by(poor))
    task = task_of("query_gallery")
    found = evaluate_tasks(DISTINCT, [task] * 2, [2], search="scann")["query_gallery"]
    assert calls == [3, 3] and found.metrics["scann_recall"] == 0.75


def test_a_query_without_a_positive_in_one_draw_has_the_values_of_the_others():
    """Row 0 finds its only positive at rank 1 in the first draw, and has none in the second."""
    rows, nothing = DISTINCT[[0, 0, 1, 2]], [np.empty(0, int)]
    draws = [
        RetrievalTask(
            np.array([0]),
            np.array([1, 2, 3]),
            np.array([-1]),
            {"": relevance_by_list([[0]], nothing)},
            (LABELS[:1], LABELS[1:4]),
        ),
        RetrievalTask(
            np.array([0, 2]),
            np.array([1, 2, 3]),
            np.array([-1, -1]),
            {"": relevance_by_list([nothing[0], np.array([0, 1])], nothing * 2)},
            (LABELS[[0, 2]], LABELS[1:4]),
        ),
    ]
    found = evaluate_tasks(rows, draws, [1])[""]
    assert found.queries.tolist() == [0, 2] and found.per_query["recall_at_1"].tolist() == [1, 1]


def test_what_needs_whole_rankings_is_refused_with_scann():
    graded = RetrievalTask(
        np.arange(2), np.arange(9), np.full(2, -1), {"easy": relevance_by_list([[1]] * 2, [[]] * 2)}, None
    )
    for task, post in [(graded, {}), (task_of("leave_one_out"), {"rerank": True})]:
        with pytest.raises(InputError, match="Graded relevance and re-ranking need exact search, not scann"):
            evaluate_tasks(DISTINCT, [task], KS, search="scann", options=post)


@pytest.mark.parametrize("protocol", ["query_gallery", "random_gallery"])
def test_nothing_to_find_is_said(protocol):
    test = TestSet(np.arange(60), IDS, APART, np.full(60, -1))
    with pytest.raises(InputError, match="there is nothing to retrieve"):
        evaluate_tasks(DISTINCT, tasks_of(test, protocol), [1])


def test_a_split_is_measured_from_its_rows_alone():
    task = task_of("query_gallery")
    rows = DISTINCT[task.queries], DISTINCT[task.gallery]
    found = evaluate_task(*rows, task, KS, keep_ranks=True)["query_gallery"]
    assert found.metrics == evaluate_tasks(DISTINCT, [task], KS)["query_gallery"].metrics
    per_query = metrics.per_query(found.ranks, KS)
    by_class = class_means(per_query, task.labels[0])
    assert found.metrics == metrics.summarize(per_query) | by_class
    assert [*found.metrics][-2:] == ["queries", "queries_without_positive"]
