"""Who is ranked against whom and what counts: protocols worked by hand, and against plain loops."""

import dataclasses

import numpy as np
import pytest

from tests import reference
from tests.evaluation import on_circle
from tests.reference import metrics as oracle
from tfrank.common.checks import InputError
from tfrank.evaluation.protocols import (
    DRAWS,
    TestSet,
    average_groups,
    tasks_of,
    text_of,
    usual_protocol,
)
from tfrank.evaluation.ranking_results import evaluate_tasks


def images(*rows, grades=None):
    """A test set, and its embeddings, of (id, label, role, degrees)."""
    names, labels, roles, degrees = zip(*rows)
    ids = np.array([name.encode() for name in names])
    test = TestSet(np.array(labels), ids, np.array(roles), np.full(len(rows), -1), grades)
    return on_circle(*degrees), test


def measured(rows, protocol, ks=(1, 2), **options):
    embeddings, test = rows
    return evaluate_tasks(embeddings, tasks_of(test, protocol, **options), ks)


def test_leave_one_out_by_hand():
    """Neighbours by their angles, nearest first; the image to be found in capitals.

    a: b C d e, rank 2.  b: a c D e, rank 3.  c: b A d e, rank 2.  d: c B a e, rank 2.  e has no positive.
    The distractor x, which is next to a and b, is no part of this.
    """
    rows = images(
        ("a", 1, "", 0),
        ("x", -1, "distractor", 5),
        ("b", 2, "", 10),
        ("c", 1, "", 30),
        ("d", 2, "", 70),
        ("e", 2**40, "", 200),
    )
    found = measured(rows, "leave_one_out", [1, 2, 3])["leave_one_out"]
    assert found.queries.tolist() == [0, 2, 3, 4, 5]
    assert found.first[:4].tolist() == [2, 3, 2, 2] and np.isnan(found.first[4])
    wanted = {"recall_at_1": 0, "recall_at_2": 3 / 4, "recall_at_3": 1, "precision_at_2": 3 / 8}
    wanted |= {"map": (1 / 2 + 1 / 3 + 1 / 2 + 1 / 2) / 4, "queries": 4, "queries_without_positive": 1}
    assert {name: found.metrics[name] for name in wanted} == pytest.approx(wanted)
    np.testing.assert_allclose(found.per_query["ap"], [1 / 2, 1 / 3, 1 / 2, 1 / 2, np.nan])


def test_in_shop_queries_against_its_gallery_by_hand():
    """Query p (class 1): s R u T, its class in capitals at ranks 2 and 4.  q (class 3): U t r s, rank 1.

    p2 is of p's class and beside it, but a query, and so found by none. n's class is not in the gallery.
    """
    rows = images(
        ("u", 3, "gallery", 50),
        ("p", 1, "query", 0),
        ("s", 2, "gallery", 10),
        ("n", 9, "query", 0),
        ("r", 1, "gallery", 20),
        ("p2", 1, "query", 1),
        ("t", 1, "gallery", 300),
        ("q", 3, "query", 80),
    )
    found = measured(rows, "query_gallery")["query_gallery"]
    assert found.queries.tolist() == [1, 3, 5, 7]
    # For p2 and p alike.
    p, q = (1 / 2 + 2 / 4) / 2, 1
    np.testing.assert_allclose(found.per_query["ap"], [p, np.nan, p, q])
    assert found.metrics["map"] == pytest.approx((p + p + q) / 3)
    assert found.metrics["recall_at_1"] == pytest.approx(1 / 3)
    assert (found.metrics["queries"], found.metrics["queries_without_positive"]) == (3, 1)


# One class each of 1, 2, 3, 4 and 6 images, mixed; angles without ties.
RNG = np.random.default_rng(0)
LABELS = RNG.permutation(np.repeat([5, 2**40, 0, 7, 3], [1, 2, 3, 4, 6]))
VEHICLES = images(*((f"{n}", label, "", RNG.uniform(0, 360)) for n, label in enumerate(LABELS)))


def test_a_random_gallery_has_one_image_of_each_class_and_every_other_image_is_a_query():
    tasks = tasks_of(VEHICLES[1], "random_gallery", seed=3)
    assert len(tasks) == DRAWS == 10
    for task in tasks:
        assert sorted(LABELS[task.gallery]) == sorted(set(LABELS))
        assert sorted([*task.queries, *task.gallery]) == list(range(16))
        assert (task.self_index == -1).all()
        # The class of one image has none left to be a query.
        assert 5 not in LABELS[task.queries]
    assert len({tuple(task.gallery) for task in tasks}) > 5


def test_random_galleries_are_those_of_the_seed_and_any_image_may_be_drawn():
    def galleries(seed):
        return [tuple(task.gallery) for task in tasks_of(VEHICLES[1], "random_gallery", seed=seed)]

    assert galleries(1) == galleries(1) != galleries(2)
    drawn = np.bincount(np.ravel([galleries(seed) for seed in range(30)]), minlength=16)
    shares = drawn / 300 * [np.sum(label == LABELS) for label in LABELS]
    # Of 300 draws; an image of the largest class is expected 50 times, with a deviation of 6.5.
    np.testing.assert_allclose(shares, 1, atol=0.5)


def test_the_numbers_of_random_galleries_are_means_over_the_draws():
    """Against plain loops over the same draws; and of each image over the draws where it is a query."""
    embeddings, test = VEHICLES
    found = measured(VEHICLES, "random_gallery", [1, 3], seed=3)["random_gallery"]
    means, of_image = [], {}
    for task in tasks_of(test, "random_gallery", seed=3):
        values = []
        for query in task.queries:
            similarity = [float(embeddings[query] @ embeddings[row]) for row in task.gallery]
            right = [place for place, row in enumerate(task.gallery) if LABELS[row] == LABELS[query]]
            ranking = reference.ranking_of(similarity, right)
            values.append([any(ranking[:1]), any(ranking[:3]), oracle.ap(ranking)])
            of_image.setdefault(int(query), []).append(values[-1])
        means.append(np.mean(values, axis=0))
    names = "recall_at_1", "recall_at_3", "map"
    np.testing.assert_allclose([found.metrics[name] for name in names], np.mean(means, axis=0), rtol=1e-12)
    assert 0 < found.metrics["recall_at_1"] < found.metrics["recall_at_3"] < 1
    assert (found.metrics["queries"], found.metrics["queries_without_positive"]) == (11, 0)
    assert found.queries.tolist() == sorted(of_image)
    wanted = np.array([np.mean(of_image[image], axis=0) for image in found.queries.tolist()])
    for name, column in zip(("recall_at_1", "recall_at_3", "ap"), wanted.T):
        np.testing.assert_allclose(found.per_query[name], column, rtol=1e-12)
    # What belongs to one draw alone.
    assert found.first is None and found.task is None


# By similarity to p: [x] a b c d e f, to q: f e d c b a [x].
LANDMARKS = [
    *(("d", -1, "gallery", 40), ("p", -1, "query", 0), ("b", -1, "gallery", 20), ("f", -1, "gallery", 60)),
    *(("a", -1, "gallery", 10), ("e", -1, "gallery", 50), ("q", -1, "query", 70), ("c", -1, "gallery", 30)),
]
RELEVANCE = {
    "p": {"easy": ["e", "b"], "hard": ["d"], "junk": ["a"]},
    "q": {"easy": [], "hard": ["f"], "junk": []},
}
# Of p, what counts, what is to be found in capitals:
# easy    B c E f    ranks 1, 3
# medium  B c D E f  ranks 1, 3, 4
# hard    c D f      rank 2
# An area under a precision-recall curve is of trapezoids: (precision just before + precision there) / 2.
P = {
    "easy": {
        "trapezoid_ap": (1 + (1 / 2 + 2 / 3) / 2) / 2,
        **{"capped_precision_at_1": 1, "capped_precision_at_5": 2 / 3, "capped_precision_at_10": 2 / 3},
    },
    "medium": {
        "trapezoid_ap": (1 + (1 / 2 + 2 / 3) / 2 + (2 / 3 + 3 / 4) / 2) / 3,
        **{"capped_precision_at_1": 1, "capped_precision_at_5": 3 / 4, "capped_precision_at_10": 3 / 4},
    },
    "hard": {
        "trapezoid_ap": (0 + 1 / 2) / 2,
        **{"capped_precision_at_1": 0, "capped_precision_at_5": 1 / 2, "capped_precision_at_10": 1 / 2},
    },
}


def test_revisited_oxford_and_paris_by_hand():
    """For q, f is first, 1 by every measure; at "easy" q has nothing to find and is left out."""
    found = measured(images(*LANDMARKS, grades=RELEVANCE), "revisited")
    assert list(found) == ["easy", "medium", "hard"]
    for name, of_p in P.items():
        of_q = np.nan if name == "easy" else 1
        assert found[name].queries.tolist() == [1, 6]
        assert set(found[name].per_query) == set(of_p)
        for metric, value in of_p.items():
            np.testing.assert_allclose(found[name].per_query[metric], [value, of_q], err_msg=metric)
            mean = found[name].metrics["trapezoid_map" if metric == "trapezoid_ap" else metric]
            assert mean == pytest.approx(value if name == "easy" else (value + 1) / 2)
        lone = found[name].metrics["queries_without_positive"]
        assert (found[name].metrics["queries"], lone) == ((1, 1) if name == "easy" else (2, 0))


def test_distractors_make_a_second_set_of_rankings():
    """x stands before all others for p and behind all for q; easy for p: x B c E f, ranks 2 and 4."""
    rows = images(*LANDMARKS, ("x", -1, "distractor", 5), grades=RELEVANCE)
    found = measured(rows, "revisited")
    assert list(found) == [
        *("easy", "medium", "hard"),
        *("easy_distractors", "medium_distractors", "hard_distractors"),
    ]
    for name, of_p in P.items():
        assert found[name].per_query["trapezoid_ap"][0] == pytest.approx(of_p["trapezoid_ap"])
    with_x = found["easy_distractors"].per_query
    assert with_x["trapezoid_ap"][0] == pytest.approx(((0 + 1 / 2) / 2 + (1 / 3 + 2 / 4) / 2) / 2)
    assert with_x["capped_precision_at_1"][0] == 0 and with_x["capped_precision_at_5"][0] == 2 / 4
    np.testing.assert_allclose(found["hard_distractors"].per_query["trapezoid_ap"], [(0 + 1 / 3) / 2, 1])


def test_graded_relevance_is_that_of_the_plain_loops():
    rng = np.random.default_rng(4)
    names = [f"g{n}" for n in range(40)]
    relevance = {}
    for query in range(12):
        grades = rng.choice(["easy", "hard", "junk", "none"], 40, p=[0.1, 0.1, 0.2, 0.6])
        relevance[f"q{query}"] = {
            grade: [name for name, its in zip(names, grades) if its == grade]
            for grade in ("easy", "hard", "junk")
        }
    gallery = [(name, -1, "gallery", rng.integers(60) * 6) for name in names]
    queries = [(name, -1, "query", rng.integers(60) * 6) for name in relevance]
    embeddings, test = images(*gallery, *queries, grades=relevance)
    # Multiples of a quarter: many similarities are tied, and exactly so.
    embeddings = np.round(embeddings * 4) / 4
    found = measured((embeddings, test), "revisited")
    for row, name in enumerate(relevance):
        similarity = (embeddings[:40] @ embeddings[40 + row]).tolist()
        for difficulty, ranking in reference.graded(similarity, relevance[name], names).items():
            got = found[difficulty].per_query
            if ranking is None:
                assert np.isnan(got["trapezoid_ap"][row])
                continue
            assert got["trapezoid_ap"][row] == pytest.approx(oracle.trapezoid_ap(ranking))
            for k in (1, 5, 10):
                wanted = oracle.capped_precision(ranking, k)
                assert got[f"capped_precision_at_{k}"][row] == pytest.approx(wanted)


def test_ids_as_text_stay_different_and_can_be_written():
    ids = [b"a\xff", b"a\xfe", b"a", "a\udc80", "a\udc81", "a?", "a\ufffd", 7, "caf\u00e9 \U0001f600"]
    texts = list(map(text_of, ids))
    assert len(set(texts)) == len(ids) and all(text.encode().decode() == text for text in texts)
    assert texts[5:] == ["a?", "a\ufffd", "7", "caf\u00e9 \U0001f600"]
    # One id, whether as bytes or as text.
    assert text_of("caf\u00e9".encode()) == "caf\u00e9"


@pytest.mark.parametrize(
    ("protocol", "changes", "message"),
    [
        ("recall", {}, "argument `protocol`. Expected one of"),
        ("leave_one_out", {}, r"no class \(label -1\), but leave_one_out needs classes"),
        ("query_gallery", {}, r"no class \(label -1\), but query_gallery needs classes"),
        ("random_gallery", {}, r"no class \(label -1\), but random_gallery needs classes"),
        ("query_gallery", {"role": np.array([""] * 8)}, "No image of the test set has the role 'query'"),
        ("query_gallery", {"role": np.array(["query"] * 8)}, "has the role 'gallery'"),
        ("revisited", {"role": np.array(["gallery"] * 8)}, "has the role 'query'"),
        ("revisited", {"grades": None}, "no graded relevance"),
        ("revisited", {"grades": {"p": RELEVANCE["p"]}}, "has no query 'q', but the test set has it"),
        (
            "revisited",
            {"grades": RELEVANCE | {"q": {"easy": ["z"], "hard": [], "junk": []}}},
            "names 'z', which the gallery does not have",
        ),
        (
            "revisited",
            {"grades": RELEVANCE | {"q": {"easy": ["a"]}}},
            "of 'q' must have the grades",
        ),
        (
            "revisited",
            {"grades": RELEVANCE | {"q": {"easy": ["a"], "hard": [], "junk": ["a"]}}},
            "each image in one of them",
        ),
    ],
)
def test_a_protocol_that_does_not_fit_the_test_set_is_refused(protocol, changes, message):
    _, test = images(*LANDMARKS, grades=RELEVANCE)
    with pytest.raises(InputError, match=message):
        tasks_of(dataclasses.replace(test, **changes), protocol)


def test_the_usual_protocol_is_told_by_what_is_known_of_the_images():
    _, landmarks = images(*LANDMARKS, grades=RELEVANCE)
    assert usual_protocol(landmarks) == "revisited"
    assert usual_protocol(dataclasses.replace(landmarks, grades=None)) == "query_gallery"
    assert usual_protocol(VEHICLES[1]) == "leave_one_out"


def frames(groups, labels, rows):
    groups, labels = np.array(groups), np.array(labels)
    ids = np.array([f"frame-{n}".encode() for n in range(len(groups))])
    roles = np.where(groups == 0, "query", "gallery")
    return np.float32(rows), TestSet(labels, ids, roles, groups)


def test_groups_are_averaged_by_hand():
    """Frames 1, 3 and 4 are of one video, 0 and 5 of another; image 2 is one by itself.

    The mean of 0, 90 and 90 degrees is (1/3, 2/3), of norm sqrt(5)/3; that of 30 and 50 degrees is at 40.
    """
    rows = on_circle(30, 0, 10, 90, 90, 50)
    embeddings, test, first = average_groups(*frames([7, 0, -1, 0, 0, 7], [1, 2, 2, 2, 2, 1], rows))
    wanted = [on_circle(40)[0], [1 / 5**0.5, 2 / 5**0.5], rows[2]]
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, wanted, atol=1e-7)
    # In the order of the first image of each, which it is named after.
    assert first.tolist() == [0, 1, 2]
    assert [text_of(name) for name in test.ids] == ["frame-0", "frame-1", "frame-2"]
    assert test.labels.tolist() == [1, 2, 2]
    assert test.group.tolist() == [7, 0, -1] and test.role.tolist() == ["gallery", "query", "gallery"]


def test_averages_of_groups_are_those_of_the_plain_loops():
    rng = np.random.default_rng(5)
    groups = rng.permutation(np.repeat([-1, 4, 2**40, 9, 3], [6, 1, 2, 5, 8]))
    rows = rng.normal(size=[22, 5])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    # A pair that cancels out: zeros, not whatever rounding leaves of it.
    one, other = np.flatnonzero(groups == 2**40)
    rows[other] = -rows[one] + 1e-9
    embeddings, test, first = average_groups(*frames(groups, groups % 10, rows))
    wanted = reference.averaged_groups(np.float32(rows), groups)
    assert first.tolist() == [number for number, _ in wanted]
    np.testing.assert_allclose(embeddings, [mean for _, mean in wanted], atol=1e-6)
    assert not embeddings[first.tolist().index(one)].any()
    assert test.group.tolist() == groups[first].tolist()


def test_a_group_of_query_and_gallery_is_refused():
    rows, test = frames([3, 3], [1, 1], on_circle(0, 90))
    with pytest.raises(InputError, match="of one group have different roles; one of them is 'frame-1'"):
        average_groups(rows, dataclasses.replace(test, role=np.array(["query", "gallery"])))


def test_without_groups_nothing_is_averaged_or_copied():
    rows, test = VEHICLES
    embeddings, same, first = average_groups(rows, test)
    assert embeddings is rows and same is test and first.tolist() == list(range(16))


def test_a_group_of_several_classes_is_refused_by_the_name_of_an_image():
    with pytest.raises(InputError, match="of one group have different classes; one of them is 'frame-2'"):
        average_groups(*frames([1, 1, 1, -1], [5, 5, 6, 7], np.eye(4)))
