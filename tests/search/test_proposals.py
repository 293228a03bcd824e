"""Groups that are proposed."""

import numpy as np

from tfrank.evaluation.nearest.exact_index import ExactIndex
from tfrank.search.label_review import compressed, doubtful_labels
from tfrank.search.proposals import MOST, nearest, proposals


def clusters(each, groups=4, dim=16, noise=0.05):
    rows = np.eye(dim)[np.arange(groups).repeat(each)] + noise * np.random.default_rng(0).normal(
        size=(groups * each, dim)
    )
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def found(rows, labels, left_out=()):
    ids = np.array([str(row) for row in range(len(rows))])
    return proposals(*nearest(ExactIndex(rows, ids), rows), labels, left_out)


def test_the_nearest_are_those_of_plain_loops_without_the_row_itself():
    rows = np.repeat(clusters(4, noise=0.3), 2, axis=0)  # Each has a copy.
    index, similarity = nearest(ExactIndex(rows, np.arange(len(rows)).astype(str)), rows)
    for row in range(len(rows)):
        others = [one for one in range(len(rows)) if one != row]
        best = sorted((float(rows[row] @ rows[one]) for one in others), reverse=True)[: index.shape[1]]
        assert row not in index[row]
        np.testing.assert_allclose(similarity[row], best, atol=1e-6)


def test_each_cluster_is_proposed_and_no_photo_twice_or_of_two_clusters():
    some = found(clusters(9), [""] * 36)
    assert {frozenset(row // 9 for row in one.rows) for one in some} == {frozenset({n}) for n in range(4)}
    every = [row for one in some for row in one.rows]
    assert len(every) == len(set(every)) and all(one.label == "" for one in some)


def test_photos_join_the_label_of_most_of_their_nearest_and_not_that_of_another_cluster():
    labels = [""] * 36
    labels[:5] = ["a"] * 5
    joined, *others = sorted(found(clusters(9), labels), key=lambda one: one.label, reverse=True)
    assert (joined.label, sorted(joined.rows)) == ("a", [5, 6, 7, 8])
    assert all(one.label == "" and min(one.rows) >= 9 for one in others)


def test_what_belongs_to_no_group_is_not_proposed_and_no_proposal_is_too_large():
    assert all(3 not in one.rows for one in found(clusters(9), [""] * 36, left_out=[3]))
    labels = ["a"] * 20 + [""] * 40
    assert max(len(one.rows) for one in found(clusters(60, groups=1), labels)) <= MOST
    assert found(clusters(1, groups=1), [""]) == []


def test_wrong_labels_are_found_in_fewer_dimensions_too():
    rows, labels = clusters(20, dim=300), np.arange(4).repeat(20)
    labels[[3, 44]] = [2, 1]
    doubts = doubtful_labels(compressed(rows), labels)
    assert {(one.row, one.suggestion) for one in doubts} == {(3, 0), (44, 2)}
