"""What an evaluation leaves in its folder, protocol by protocol, with and without images."""

import csv
import dataclasses
import json
import re

import numpy as np
import pytest

from configs import digits
from tests.data import image_records, write_records
from tfrank import comparing
from tfrank.checks import InputError
from tfrank.evaluation import comparison
from tfrank.evaluation.protocols import TestSet
from tfrank.evaluation.results import load_curves, load_metrics, load_per_query
from tfrank.measuring import about, measure_all
from tfrank.measuring import test_set_of as set_of
from tfrank.reporting import write_evaluation

# Four classes of six, of which one image is in a class of its own.
LABELS = np.array([*(np.arange(24) % 4), 9])
RNG = np.random.default_rng(0)


def rows_of(quality, labels=LABELS):
    """Embeddings that show the class more or less."""
    centers = np.random.default_rng(1).normal(size=[5, 8])[np.unique(labels, return_inverse=True)[1]]
    rows = quality * centers + np.random.default_rng(2).normal(size=centers.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """25 records: a query, five of the gallery, and so on; without their labels, too."""
    images = [
        dataclasses.replace(image, role="gallery" if number % 6 else "query")
        for number, image in enumerate(image_records(LABELS.tolist()))
    ]
    folder = tmp_path_factory.mktemp("records")
    return write_records(images, str(folder), "test", num_shards=1)


def config_of(**evaluation):
    config = digits.get_config()
    config.data.image_size = 8
    config.evaluation.update(evaluation)
    return config


def graded(index):
    """The records as a test set whose labels say nothing: easy and hard images by the class, and junk."""
    test = set_of(index, None)
    names = np.array([name.decode() for name in test.ids])
    relevance = {}
    for query in np.flatnonzero(test.role == "query"):
        of_class = names[(test.labels == test.labels[query]) & (test.role == "gallery")].tolist()
        relevance[names[query]] = {"easy": of_class[:1], "hard": of_class[1:3], "junk": of_class[3:]}
    return dataclasses.replace(test, labels=np.full(len(names), -1), relevance=relevance)


def write(folder, test, index, *, quality=1.0, search="exact", compare_with="", **options):
    """An evaluation in a folder: its results, what it has written, and the page."""
    config = config_of(**options)
    results = measure_all(config, rows_of(quality)[: len(test.labels)], test, search=search)
    facts = about(config, test, model="a <model>", search=search)
    paths = write_evaluation(
        *(str(folder), config, results, index),
        about=facts,
        title="The title",
        compare_with=str(compare_with),
    )
    assert paths == [str(folder / name) for name in ("metrics.json", "per_query", "report.html")]
    return results, facts, (folder / "report.html").read_text()


CHARTS = ["Precision and recall", "Recall@K", "Similarities of pairs", "Map of embeddings"]
GRIDS = ["Worst", "Best", "Random"]
SECTIONS = ("numbers", "comparison", "charts", "queries", "classes")


def sections(page):
    return [name for name in SECTIONS if f'<section id="{name}">' in page]


def section(page, name):
    return page.split(f'<section id="{name}">')[1].split("</section>")[0]


def titles(part):
    """Of the charts and the grids in a part of a page."""
    return re.findall("<h3>(?:<bdi>)?(.*?)(?:</bdi>)?</h3>", part)


@pytest.mark.parametrize("protocol", ["leave_one_out", "query_gallery"])
def test_an_evaluation_leaves_its_numbers_curves_and_a_page(tmp_path, records, protocol):
    test = set_of(records, None)
    results, facts, page = write(tmp_path, test, records, protocols=(protocol,), nmi=True)
    tree = load_metrics(str(tmp_path))
    assert tree["about"] == facts and tree["extras"] == results.extras
    assert tree["rankings"] == {protocol: results.rankings[protocol].metrics}
    assert tree["notes"] == list(results.notes)
    one = load_per_query(str(tmp_path), protocol)
    found = results.rankings[protocol]
    assert one.ids.tolist() == [test.ids[row].decode() for row in found.queries]
    assert one.labels.tolist() == test.labels[found.queries].tolist()
    for name, values in found.per_query.items():
        np.testing.assert_array_equal(one.metrics[name], values)
    curves = load_curves(str(tmp_path))[protocol]
    assert curves["recall_at_k"][0][:2] == [1, 2] and len(curves["precision_recall"][1]) == 101
    assert curves["recall_at_k"][1][0] == found.metrics["recall_at_1"]
    assert sections(page) == ["numbers", "charts", "queries", "classes"]
    assert "a &lt;model&gt;" in page and "<title>The title" in page
    assert "NMI" in page and "class 3 å" in page and "hit rate" in page
    assert titles(section(page, "charts")) == CHARTS
    assert titles(section(page, "queries")) == GRIDS
    # A query and its nearest eight, in each row.
    assert page.count("data:image/jpeg") == 9 * page.count("Query: ")


def test_graded_rankings_stand_side_by_side_with_pictures_named_by_image(tmp_path, records):
    _, _, page = write(tmp_path, graded(records), records)
    assert list(load_metrics(str(tmp_path))["rankings"]) == ["easy", "medium", "hard"]
    assert sorted(path.name for path in (tmp_path / "per_query").iterdir()) == [
        *("easy.csv", "hard.csv", "medium.csv"),
    ]
    assert load_per_query(str(tmp_path), "easy").labels.tolist() == [-1] * 5
    # Neither classes nor similarities of them are known.
    assert sections(page) == ["numbers", "charts", "queries"]
    assert titles(section(page, "charts")) == CHARTS[:2]
    assert titles(section(page, "queries")) == GRIDS
    assert "image-0-ß" in page and "class -1" not in page and "class 3 å" not in page
    assert "mP@5" in page and "revisited Oxford and Paris" in page


def test_a_picture_of_the_ranking_leaves_out_what_does_not_count(tmp_path, records):
    """The neighbours of a query at "easy" are neither hard nor junk ones."""
    test = graded(records)
    _, _, page = write(tmp_path, test, records)
    rows = section(page, "queries").split('alt="Query: ')[1:]
    assert len(rows) > 8
    for row in rows:
        grades = test.relevance[row.split('"')[0]]
        right, wrong = (
            re.findall(f'alt="Rank \\d+, {verdict}: (.*?), sim', row) for verdict in ("right", "wrong")
        )
        assert set(right) <= set(grades["easy"]) and len(right) + len(wrong) == 8
        assert not set(wrong) & {name for names in grades.values() for name in names}


def test_approximate_search_has_no_curves_and_says_its_own_recall(tmp_path, records):
    pytest.importorskip("scann")
    test = set_of(records, None)
    _, _, page = write(tmp_path, test, records, search="scann", protocols=("leave_one_out",))
    assert load_curves(str(tmp_path)) == {}
    assert "scann_recall" in load_metrics(str(tmp_path))["rankings"]["leave_one_out"]
    assert sections(page) == ["numbers", "charts", "queries", "classes"]
    assert titles(section(page, "charts")) == CHARTS[2:]
    assert "ScaNN&#39;s recall" in section(page, "numbers")
    # What an AP is, it does not know.
    assert re.search(r"<bdi>Recall@1 [01]\.000</bdi>", section(page, "queries"))
    assert not re.search("<bdi>AP|>mAP<", section(page, "queries") + section(page, "classes"))


def test_the_mean_of_random_galleries_has_no_ranking_to_show(tmp_path, records):
    test = set_of(records, None)
    results, _, page = write(tmp_path, test, records, protocols=("random_gallery",), recall_at=(1, 5))
    assert sections(page) == ["numbers"]
    one = load_per_query(str(tmp_path), "random_gallery")
    queries = results.rankings["random_gallery"].queries
    assert one.ids.tolist() == [test.ids[row].decode() for row in queries]
    # The image that is alone in its class was never a query.
    assert 9 not in one.labels
    assert load_curves(str(tmp_path)) == {}


def test_embeddings_without_images_are_reported_without_pictures(tmp_path):
    test = TestSet(LABELS, np.arange(25).astype(str), np.full(25, ""), np.full(25, -1))
    _, _, page = write(tmp_path, test, None)
    assert sections(page) == ["numbers", "charts", "classes"]
    assert "data:image/jpeg" not in page and "class 3" in page
    with open(tmp_path / "per_query" / "leave_one_out.csv") as file:
        assert [row["id"] for row in csv.DictReader(file)] == [str(number) for number in range(25)]


def test_published_numbers_and_what_pictures_show_are_said(tmp_path, records):
    config = {"published": {"a paper": {"recall_at_1": 0.8123}}, "query_expansion": 2}
    _, _, page = write(tmp_path, set_of(records, None), records, **config)
    assert "a paper" in page and "81.23" in page
    assert "Pictures, similarities, the map and what classes are taken for are of the embeddings" in page


def test_the_same_evaluation_makes_the_same_files(tmp_path, records):
    test = set_of(records, None)
    for name in ("one", "two"):
        write(tmp_path / name, test, records, protocols=("leave_one_out",))
    for name in ("metrics.json", "curves.json", "report.html", "per_query/leave_one_out.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_two_evaluations_stand_side_by_side_on_the_queries_of_both(tmp_path, records):
    test = set_of(records, None)
    options = {"protocols": ("leave_one_out",)}
    before, _, _ = write(tmp_path / "before", test, records, quality=0.3, **options)
    # Four queries of the other evaluation are not known.
    path = tmp_path / "before" / "per_query" / "leave_one_out.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1] + lines[5:]))
    compare = {"quality": 2.0, "compare_with": tmp_path / "before", **options}
    now, _, page = write(tmp_path / "now", test, records, **compare)
    assert sections(page) == list(SECTIONS)
    comparison = section(page, "comparison")
    # Curves are of all queries, so here they are not of the same.
    assert titles(comparison) == ["Better now"]
    assert str(tmp_path / "before") in comparison and str(tmp_path / "now") in comparison
    # The means are those of the queries of both.
    for results in (before, now):
        assert f"{100 * np.nanmean(results.rankings['leave_one_out'].per_query['ap'][4:]):.2f}" in comparison
    # A query that is not known to both has not changed.
    unknown = [line.split(",")[0].strip('"') for line in lines[1:5]]
    assert not any(f"Query: {name}" in comparison for name in unknown)


def test_what_cannot_be_compared_is_refused_and_nothing_is_written(tmp_path, records):
    test = set_of(records, None)
    other = TestSet(LABELS, np.arange(25).astype(str), np.full(25, ""), np.full(25, -1))
    write(tmp_path / "before", test, records, protocols=("leave_one_out",))
    write(tmp_path / "others", other, None)
    part = {name: getattr(test, name)[:20] for name in ("labels", "ids", "role", "group")}
    leave_one_out = {"protocols": ("leave_one_out",)}
    write(tmp_path / "fewer", TestSet(**part), None, **leave_one_out)
    write(tmp_path / "classes", dataclasses.replace(test, labels=test.labels[::-1]), None, **leave_one_out)
    (tmp_path / "link").symlink_to(tmp_path / "before")

    def refused(folder, compare_with, match, protocol="leave_one_out"):
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(InputError, match=match):
            write(folder, test, records, protocols=(protocol,), compare_with=compare_with)
        assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before, now = tmp_path / "before", tmp_path / "now"
    refused(before, before, "is this evaluation itself")
    refused(before, tmp_path / "link", "is this evaluation itself")
    refused(now, tmp_path / "nothing", "There is no evaluation in")
    refused(now, before, "has the rankings leave_one_out, and none of query_gallery", "query_gallery")
    refused(now, tmp_path / "others", "they have no id in common")
    refused(now, tmp_path / "fewer", r"another gallery at leave_one_out \(20 and 25 images\)")
    refused(now, tmp_path / "classes", "has other classes for the same ids")
    (before / "curves.json").write_text("{")
    refused(now, before, "curves.json is damaged")
    (before / "curves.json").unlink()
    refused(now, before, "no curves.json")
    (before / "metrics.json").write_text(json.dumps({"leave_one_out": {}}))
    refused(now, before, "of another schema")


@pytest.mark.parametrize("protocol", ["random_gallery", "revisited"])
def test_evaluations_without_labels_or_rankings_are_compared_too(tmp_path, records, protocol):
    test = graded(records) if protocol == "revisited" else set_of(records, None)
    options = {"protocols": (protocol,), "recall_at": (1, 2)}
    write(tmp_path / "before", test, records, quality=0.3, **options)
    compare = {"quality": 2.0, "compare_with": tmp_path / "before", **options}
    _, _, page = write(tmp_path / "now", test, records, **compare)
    rankings = ["easy", "medium", "hard"] if protocol == "revisited" else []
    assert re.findall("side by side: <bdi>(.*?)</bdi>", section(page, "comparison")) == rankings


def test_the_worst_classes_are_named_with_what_they_are_taken_for(tmp_path):
    """By the nearest other image of each query."""
    test = TestSet(LABELS, np.arange(25).astype(str), np.full(25, ""), np.full(25, -1))
    _, _, page = write(tmp_path, test, None, quality=0.7)
    similarity = rows_of(0.7) @ rows_of(0.7).T
    np.fill_diagonal(similarity, -np.inf)
    nearest = LABELS[similarity.argmax(axis=1)]
    wanted = {}
    for label in range(4):
        wrong = [other for other in nearest[label == LABELS].tolist() if other != label]
        most = min(set(wrong), key=lambda other: (-wrong.count(other), other)) if wrong else None
        wanted[f"class {label}"] = (f"class {most}", wrong.count(most)) if wrong else None
    assert any(wanted.values())
    lines = section(page, "classes").split("<tr>")[2:]
    texts = [re.sub(r"\s+", " ", re.sub("<.*?>", " ", line)) for line in lines]
    for name, taken in wanted.items():
        (text,) = [text for text in texts if text.strip().startswith(name)]
        assert not taken or (taken[0] in text and f"{taken[1]}" in text.split(taken[0])[1])


def test_classes_are_drawn_together_where_two_evaluations_are_compared(tmp_path, records, monkeypatch):
    """Otherwise the intervals of differences are too narrow; without classes each query is drawn alone."""
    groups = []

    def bootstrap(before, after, **options):
        groups.append(options["groups"])
        return comparison.paired_bootstrap(before, after, samples=10, **options)

    monkeypatch.setattr(comparing, "paired_bootstrap", bootstrap)
    for test in (set_of(records, None), graded(records)):
        folder = tmp_path / f"{test.relevance is None}"
        write(folder / "before", test, None)
        write(folder / "now", test, None, compare_with=folder / "before")
    with_labels, without = groups[0], groups[-1]
    assert with_labels.tolist() == LABELS[::6].tolist() and without is None
