"""From a config and embeddings to everything that it asks for."""

import dataclasses

import numpy as np
import pytest

from tests import reference
from tests.data import image_records, write_records
from tests.evaluation import ROWS
from tfrank.common.checks import InputError
from tfrank.configs import digits
from tfrank.evaluation import clusters, evaluate, verification
from tfrank.evaluation.protocols import TestSet, tasks_of
from tfrank.evaluation.ranking_results import evaluate_tasks
from tfrank.run.evaluation_results import about, check_evaluation, evaluate_embeddings, ranking_setups
from tfrank.run.evaluation_results import test_set_of as set_of

EMBEDDINGS = ROWS["distinct"]
LABELS = np.random.default_rng(0).permutation(np.repeat([2**40, -3, 0, 9, 5], [1, 3, 7, 19, 30]))
IDS = np.array([f"{number}".encode() for number in range(60)])
ROLES = np.where(np.arange(60) % 3 == 0, "query", "gallery")
PLAIN = TestSet(LABELS, IDS, np.full(60, ""), np.full(60, -1))
APART = dataclasses.replace(PLAIN, role=ROLES)
RELEVANCE = {
    f"{query}": {"easy": [f"{query + 1}"], "hard": [f"{query + 2}"], "junk": []} for query in range(0, 60, 3)
}
GRADED = dataclasses.replace(APART, labels=np.full(60, -1), grades=RELEVANCE)
NOTHING_GRADED = dataclasses.replace(
    GRADED, grades={name: {"easy": [], "hard": [], "junk": []} for name in RELEVANCE}
)
ALL_ALONE = dataclasses.replace(PLAIN, labels=np.arange(60))


def options_of(**values):
    options = digits.get_config().evaluation
    options.update(values)
    return options


def test_a_test_set_is_what_the_records_say(tmp_path):
    images = image_records()
    images[1] = dataclasses.replace(images[1], role="query", group=7)
    images[2] = dataclasses.replace(images[2], role="distractor")
    index = write_records(images, str(tmp_path), "test", num_shards=1)
    test = set_of(index, RELEVANCE)
    assert test.labels.tolist() == [image.label for image in images]
    assert [name.decode() for name in test.ids] == [image.id for image in images]
    assert test.role.tolist() == ["", "query", "distractor", *[""] * 8]
    assert test.group.tolist() == [-1, 7, *[-1] * 9]
    assert test.grades is RELEVANCE and set_of(index, None).grades is None


def test_ids_that_repeat_get_the_numbers_of_their_records(tmp_path, capsys):
    images = [
        dataclasses.replace(image, id="0.jpg" if n < 2 else image.id)
        for n, image in enumerate(image_records())
    ]
    index = write_records(images, str(tmp_path), "test", num_shards=1)
    twice = dataclasses.replace(index, id=index.id[[0, 1, 2, 0, 3, 4, 1, 5, 6, 7, 8]])
    ids = [name.decode() for name in twice.id]
    assert set_of(twice, None).ids.tolist() == [
        f"{name}#{number}" if ids.count(name) > 1 else name for number, name in enumerate(ids)
    ]
    assert "Several images have one id" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("test", "rankings"),
    [(PLAIN, ["leave_one_out"]), (APART, ["query_gallery"]), (GRADED, ["easy", "medium", "hard"])],
    ids=["labels", "roles", "grades"],
)
def test_without_a_protocol_it_is_the_usual_one_of_the_test_set(test, rankings):
    assert list(evaluate_embeddings(options_of(), EMBEDDINGS, test).rankings) == rankings


def test_vehicles_are_measured_both_ways_by_names_of_their_own():
    """By the lists of queries and gallery, and by ten random galleries, each as if alone."""
    config = options_of(protocols=("query_gallery", "random_gallery"), recall_at=(1, 2, 5))
    found = evaluate_embeddings(config, EMBEDDINGS, APART)
    assert list(found.rankings) == ["query_gallery", "random_gallery"]
    for name, one in found.rankings.items():
        (wanted,) = evaluate_tasks(EMBEDDINGS, tasks_of(APART, name), (1, 2, 5)).values()
        assert one.metrics == wanted.metrics


def test_runs_of_other_seeds_are_measured_by_the_same_draws():
    config = options_of(protocols=("random_gallery",), recall_at=(1,), nmi=True, verification=True)
    first = evaluate_embeddings(config, EMBEDDINGS, APART)
    again = evaluate_embeddings(config, EMBEDDINGS, APART)
    assert again.metrics() == first.metrics() and again.galleries == first.galleries


def test_every_option_of_post_processing_and_the_search_are_the_configs():
    options = {"query_expansion": 3, "database_augmentation": 2, "expansion_alpha": 1.5, "rerank": True}
    config = options_of(**options)
    tasks = tasks_of(APART, "query_gallery")
    wanted = evaluate_tasks(EMBEDDINGS, tasks, (1, 10), options=options)["query_gallery"].metrics
    assert evaluate_embeddings(config, EMBEDDINGS, APART).rankings["query_gallery"].metrics == wanted
    pytest.importorskip("scann")
    assert (
        "scann_recall"
        in evaluate_embeddings(options_of(), EMBEDDINGS, APART, search="scann").metrics()["query_gallery"]
    )


def test_what_is_of_the_embeddings_as_a_whole_stands_with_the_main_ranking():
    config = options_of(protocols=("query_gallery", "leave_one_out"), nmi=True, verification=True)
    found = evaluate_embeddings(config, EMBEDDINGS, APART)
    pairs = verification.verification(EMBEDDINGS, LABELS, seed=0)
    wanted = clusters.class_distances(EMBEDDINGS, LABELS) | clusters.cluster_agreement(EMBEDDINGS, LABELS)
    assert found.extras == wanted | pairs
    assert found.main_ranking == "query_gallery" and found.main is found.rankings["query_gallery"]
    first, second = found.metrics().values()
    assert first == found.rankings["query_gallery"].metrics | found.extras
    assert second == found.rankings["leave_one_out"].metrics
    assert verification.note(pairs) in found.notes
    # The metrics of a ranking are not touched by asking for them.
    assert "nmi" not in found.rankings["query_gallery"].metrics
    plain = evaluate_embeddings(options_of(), EMBEDDINGS, APART)
    assert set(plain.extras) == {"dists_intra", "dists_inter"}


def test_of_images_without_a_class_there_are_no_distances_of_classes():
    found = evaluate_embeddings(options_of(), EMBEDDINGS, GRADED)
    assert found.extras == {} and found.notes == ()
    assert set(found.metrics()["easy"]) >= {"trapezoid_map", "capped_precision_at_10", "queries"}


def test_instances_are_measured_that_groups_of_images_make():
    groups = np.where(np.arange(60) < 40, np.arange(60) // 4, -1)
    labels = np.where(groups >= 0, groups // 2, 99)
    test = TestSet(labels, IDS, np.full(60, ""), groups)
    found = evaluate_embeddings(options_of(recall_at=(1, 29)), EMBEDDINGS, test)
    wanted = reference.averaged_groups(EMBEDDINGS, groups)
    assert found.images.tolist() == [*range(0, 40, 4), *range(40, 60)]
    np.testing.assert_allclose(found.embeddings, [mean for _, mean in wanted], atol=1e-6)
    assert found.test.labels.tolist() == labels[found.images].tolist()
    assert found.rankings["leave_one_out"].metrics["queries"] == 30
    with pytest.raises(InputError, match="K=30 is too large: a query is ranked against 29 images"):
        check_evaluation(options_of(recall_at=(30,)), test)


def test_what_a_reader_should_know_is_noted_once():
    rows = EMBEDDINGS.copy()
    rows[:2] = 0
    one_class = dataclasses.replace(APART, labels=np.full(60, 7))
    config = options_of(protocols=("leave_one_out", "query_gallery"))
    assert evaluate_embeddings(config, rows, one_class).notes == (
        "Left out: K=100. A query is ranked against 59 images.",
        "Left out: K=100. A query is ranked against 40 images.",
        "All images are of one class: no ranking can be wrong.",
        "2 embeddings are zero; their similarity to everything is 0.",
    )


def test_a_loss_that_does_not_normalise_is_noted_since_ranking_is_by_the_cosine():
    notes = []
    for loss in ("pnp", "lifted_structure", "n_pairs"):
        config = digits.get_config(loss)
        notes.append(
            [
                one
                for one in evaluate_embeddings(config.evaluation, EMBEDDINGS, PLAIN, loss=config.loss).notes
                if "cosine" in one
            ]
        )
    assert notes[0] == [] and "the loss lifted_structure compares" in notes[1][0] and len(notes[2]) == 1


@pytest.mark.parametrize("protocol", ["leave_one_out", "query_gallery", "random_gallery"])
def test_hierarchical_ap_is_measured_by_the_categories_where_it_is_asked_for(protocol):
    test = dataclasses.replace(APART, category=np.abs(LABELS % 3))
    config = options_of(protocols=(protocol,), recall_at=(1,))
    assert "hierarchical_map" not in evaluate_embeddings(config, EMBEDDINGS, test).main.metrics
    config.hierarchical = True
    check_evaluation(config, test)
    found = evaluate_embeddings(config, EMBEDDINGS, test).main
    if protocol == "leave_one_out":
        wanted = evaluate(EMBEDDINGS, LABELS, categories=test.category).metrics["hierarchical_map"]
        assert found.metrics["hierarchical_map"] == pytest.approx(wanted)
    assert 0 < found.metrics["hierarchical_map"] < 1
    with pytest.raises(InputError, match=r"config\.evaluation\.hierarchical needs exact search, not scann"):
        check_evaluation(config, test, search="scann")


@pytest.mark.parametrize(
    ("test", "options", "message"),
    [
        (PLAIN, {"recall_at": (1, 60)}, "K=60 is too large: a query is ranked against 59 images"),
        (APART, {"recall_at": (41,)}, "K=41 is too large: a query is ranked against 40 images"),
        (PLAIN, {"protocols": ("random_gallery",), "recall_at": (6,)}, "K=6 is too large.*5 images"),
        (PLAIN, {"protocols": ("query_gallery",)}, "No image of the test set has the role 'query'"),
        (PLAIN, {"protocols": ("leave_one_out", "revisited")}, "no graded relevance"),
        (GRADED, {"protocols": ("leave_one_out",)}, r"no class \(label -1\)"),
        (
            GRADED,
            {"nmi": True},
            r"no class \(label -1\), but these need classes: NMI, verification, open sets",
        ),
        (PLAIN, {"hierarchical": True}, "Graded relevance needs the category of every query"),
        (GRADED, {"hierarchical": True}, "Graded relevance needs the category of every query"),
        (
            dataclasses.replace(PLAIN, category=np.arange(60) % 7),
            {"hierarchical": True},
            "has the categories . and ., but a class has one",
        ),
        (GRADED, {"verification": True}, "but these need classes: NMI, verification"),
        (ALL_ALONE, {}, "^No image has another of its class, so there is nothing to retrieve"),
        (ALL_ALONE, {"protocols": ("random_gallery",)}, "^No image has another of its class"),
        (
            dataclasses.replace(APART, labels=np.where(ROLES == "query", np.arange(60), 99)),
            {},
            r"labels 0, 3, 6, 9, 12, \.\.\., the gallery 99\), so there is nothing to retrieve",
        ),
        (NOTHING_GRADED, {}, "No query has an image that its graded relevance counts"),
        (
            PLAIN,
            {"rerank": True, "query_expansion": 2},
            "in the gallery from there, where it is not expanded",
        ),
        (
            dataclasses.replace(PLAIN, labels=np.full(60, 7)),
            {"verification": True},
            "images of two classes, and a class with two images",
        ),
    ],
)
def test_what_cannot_be_measured_is_found_before_there_are_embeddings(test, options, message):
    with pytest.raises(InputError, match=message):
        check_evaluation(options_of(**options), test)


def test_what_can_be_measured_is_not_refused():
    for test in (PLAIN, APART, GRADED):
        check_evaluation(options_of(), test)
    check_evaluation(options_of(recall_at=(1, 59), nmi=True), PLAIN)
    check_evaluation(options_of(rerank=True, query_expansion=2), APART)
    # Its Ks are the protocol's own.
    check_evaluation(options_of(recall_at=(1000,)), GRADED)


@pytest.mark.parametrize("test", [PLAIN, APART, GRADED], ids=["labels", "roles", "grades"])
def test_what_is_asked_is_known_before_there_are_embeddings(test):
    protocols = ("leave_one_out", "random_gallery") if test is PLAIN else ()
    config = options_of(protocols=protocols, recall_at=(1,))
    found, setups = evaluate_embeddings(config, EMBEDDINGS, test), ranking_setups(config, test)
    assert list(setups) == list(found.rankings)
    for name, setup in setups.items():
        queries = found.rankings[name].queries
        assert setup.ids.tolist() == [IDS[row].decode() for row in queries]
        assert setup.labels.tolist() == test.labels[queries].tolist()
        assert setup.gallery == found.galleries[name]
    sizes = {"leave_one_out": 60, "random_gallery": 5, "query_gallery": 40}
    assert all(one["images"] == sizes.get(name, 40) for name, one in found.galleries.items())


def test_a_gallery_is_its_ids_and_labels_in_any_order():
    def gallery_of(test):
        return ranking_setups(options_of(), test)["query_gallery"].gallery

    order = np.random.default_rng(0).permutation(60)
    same = TestSet(LABELS[order], IDS[order], ROLES[order], np.full(60, -1))
    assert gallery_of(same) == gallery_of(APART)
    other_ids, other_labels = IDS.copy(), LABELS.copy()
    other_ids[1], other_labels[1] = b"another", LABELS[1] + 1
    for change in ({"ids": other_ids}, {"labels": other_labels}, {"role": np.roll(ROLES, 1)}):
        assert gallery_of(dataclasses.replace(APART, **change)) != gallery_of(APART)
    # What a query is does not matter.
    other_ids = np.where(ROLES == "query", np.char.add(IDS, b"?"), IDS)
    assert gallery_of(dataclasses.replace(APART, ids=other_ids)) == gallery_of(APART)


def test_a_ranking_in_which_nothing_is_to_be_found_is_left_out_and_said():
    relevance = {name: grades | {"hard": []} for name, grades in RELEVANCE.items()}
    test = dataclasses.replace(GRADED, grades=relevance)
    check_evaluation(options_of(), test)
    found = evaluate_embeddings(options_of(), EMBEDDINGS, test)
    assert list(found.rankings) == list(found.galleries) == ["easy", "medium"]
    assert found.notes == ("Left out: hard. None of its queries has a positive.",)
    assert found.rankings["medium"].metrics["queries"] == 20


def test_images_of_no_role_are_counted_where_roles_matter():
    test = dataclasses.replace(APART, role=np.where(np.arange(60) < 7, "", ROLES))
    note = "7 images are neither queries nor gallery. They are left out of the ranking."
    assert note in evaluate_embeddings(options_of(), EMBEDDINGS, test).notes
    assert note not in evaluate_embeddings(options_of(protocols=("leave_one_out",)), EMBEDDINGS, test).notes


def test_facts_say_what_was_measured_and_what_was_done_to_it():
    assert about(options_of(), PLAIN, model="runs/a", search="exact") == {
        "model": "runs/a",
        "images": 60,
        "classes": 5,
        "protocols": "leave_one_out: every image in turn is the query, all others are the gallery",
        "search": "exact",
    }
    options = {"scales": (1.0, 0.5), "whitening": 0.25, "query_expansion": 3, "rerank": True}
    facts = about(options_of(**options), GRADED, model="", search="exact")
    assert facts["classes"] == 0 and facts["protocols"].startswith("revisited: ")
    wanted = {
        "scales": "1, 0.5",
        "whitening": "power 0.25",
        "query expansion": "3 nearest, weighted by s^2",
        "re-ranking": "k-reciprocal",
    }
    assert {name: facts[name] for name in list(facts)[5:]} == wanted
    options = {"whitening": 0.5, "whitening_dim": 16, "database_augmentation": 4, "expansion_alpha": 0.0}
    facts = about(options_of(**options, full_size=True, target_recall=0.9), PLAIN, model="", search="scann")
    assert facts["search"] == "scann, to a recall of 0.9"
    assert {name: facts[name] for name in list(facts)[5:]} == {
        "images' size": "their own",
        "whitening": "power 0.5, to 16 dimensions",
        "database augmentation": "4 nearest, weighted by s^0",
    }
