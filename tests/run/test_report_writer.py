"""What an evaluation leaves in its folder, protocol by protocol, with and without images."""

import base64
import csv
import dataclasses
import io
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.data import image_records, write_records
from tfrank.common.checks import InputError
from tfrank.configs import digits
from tfrank.evaluation.protocols import TestSet
from tfrank.evaluation.report import charts
from tfrank.evaluation.report.bootstrap import paired_bootstrap
from tfrank.evaluation.report.result_files import load_curves, load_metrics, load_per_query
from tfrank.evaluation.template_verification import TemplatePairs
from tfrank.run import comparison, report_writer
from tfrank.run.evaluation_results import about, evaluate_embeddings, ranking_setups
from tfrank.run.evaluation_results import test_set_of as set_of
from tfrank.run.report_writer import write_evaluation

# Four classes of six, of which one image is in a class of its own.
LABELS = np.array([*(np.arange(24) % 4), 9])
RNG = np.random.default_rng(0)


def rows_of(quality, labels=LABELS):
    """Embeddings that show the class more or less."""
    centers = np.random.default_rng(1).normal(size=[9, 8])[np.unique(labels, return_inverse=True)[1]]
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
    return dataclasses.replace(test, labels=np.full(len(names), -1), grades=relevance)


def write(folder, test, index, *, quality=1.0, search="exact", compare_with="", more=None, **options):
    """An evaluation in a folder: its results, what it has written, and the page."""
    config = config_of(**options)
    rows = rows_of(quality)[: len(test.labels)]
    results = evaluate_embeddings(config.evaluation, rows, test, search=search)
    facts = about(config.evaluation, test, model="a <model>", search=search)
    paths = write_evaluation(
        *(str(folder), config, results, index),
        about=facts,
        title="The title",
        compare_with=str(compare_with),
        **(more or {}),
    )
    assert paths == [str(folder / name) for name in ("metrics.json", "per_query", "report.html")]
    return results, facts, (folder / "report.html").read_text()


CHARTS = ["Precision and recall", "Recall@K", "Similarities of pairs", "Map of embeddings"]
GRIDS = ["Worst", "Best", "Random"]
SECTIONS = ("comparison", "queries", "charts", "classes", "categories", "metrics", "config")


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
    assert sections(page) == ["queries", "charts", "classes", "metrics", "config"]
    assert "a &lt;model&gt;" in page and "<title>The title" in page
    assert "NMI" in page and "class 3 å" in page and "hit rate" in page
    assert titles(section(page, "charts")) == CHARTS
    assert titles(section(page, "queries")) == GRIDS
    # A query and its nearest eight, in each row.
    assert page.count("data:image/jpeg") == 9 * page.count("Query: ")


def test_categories_are_listed_by_name_with_their_metrics(tmp_path):
    images = [
        dataclasses.replace(image, category=image.label % 2, category_text=f"kind <{image.label % 2}>")
        for image in image_records(LABELS.tolist())
    ]
    index = write_records(images, str(tmp_path), "test", num_shards=1)
    results, _, page = write(tmp_path / "evaluation", set_of(index, None), index)
    assert "categories" in sections(page)
    lines = re.findall(
        r'<bdi class="clamp">(.*?)</bdi>.*?<td class="late">(\d+)</td>', section(page, "categories"), re.S
    )
    assert sorted(lines) == [("kind &lt;0&gt;", "12"), ("kind &lt;1&gt;", "12")]
    recalls = results.main.per_query["recall_at_1"]
    for kind in (0, 1):
        assert charts.percent(np.nanmean(recalls[kind == LABELS % 2])) in section(page, "categories")


# Six classes, so that there are intervals; three are most of the images.
SIX = np.repeat(np.arange(6), [4, 4, 4, 4, 4, 5])


def set_of_six(labels=SIX):
    ids = np.array([f"photos/{number}.jpg" for number in range(len(labels))])
    return TestSet(labels, ids, np.full(len(labels), ""), np.full(len(labels), -1))


def results_of(test, quality, **options):
    return evaluate_embeddings(
        config_of(**options).evaluation, rows_of(quality, test.labels), test
    ).without_embeddings()


def write_six(folder, test=None, *, baselines=(), **options):
    """An evaluation beside its baselines, and the lines of its first two tables."""
    test = test or set_of_six()
    embeddings = np.random.default_rng(7).normal(size=[len(test.labels), 8]).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    config = config_of(baselines=True, **options)
    results = evaluate_embeddings(config.evaluation, embeddings, test)
    write_evaluation(
        *(str(folder), config, results, None),
        about=about(config.evaluation, test, model="a model", search="exact"),
        title="The title",
        baselines=dict(baselines),
    )
    page = (folder / "report.html").read_text()
    tables = page[page.index('<div class="models">') : page.index("<nav")].split("</table>")[:-1]
    lines = [re.findall('<th scope="row"><bdi>(.*?)</bdi>', table) for table in tables]
    return results, page, lines


def baselines_of_six():
    return {name: results_of(set_of_six(), quality) for name, quality in (("raw pixels", 1), ("start", 3))}


def test_baselines_stand_above_the_trained_model_and_are_kept_for_the_next_evaluation(tmp_path):
    baselines = baselines_of_six()
    results, page, lines = write_six(tmp_path, baselines=baselines.items())
    assert lines == [["raw pixels", "start", "embeddings"]] * 2
    for one in (*baselines.values(), results):
        for name in ("recall_at_1", "map", "recall_at_1_by_class", "map_by_class"):
            assert f"{100 * one.rankings['leave_one_out'].metrics[name]:.2f}\u00a0%" in page
    found = paired_bootstrap(
        baselines["start"].rankings["leave_one_out"].per_query["ap"],
        results.rankings["leave_one_out"].per_query["ap"],
        groups=SIX,
    )
    bounds = [f"{100 * bound:+.2f}".replace("-", "\N{MINUS SIGN}") for bound in (found.low, found.high)]
    assert " to ".join(bounds) in page and "worse" in page
    # They are read from the folder, by an evaluation that was given none.
    _, again, lines = write_six(tmp_path)
    assert lines == [["raw pixels", "start", "embeddings"]] * 2
    cut = slice(0, page.index("<nav"))
    assert again[cut] == page[cut]


@pytest.mark.parametrize(
    "options, labels, why",
    [
        ({"query_expansion": 2}, SIX, "it was measured with other query expansion"),
        ({}, np.roll(SIX, 1), "has other classes for the same ids"),
        ({}, SIX[:-1], "searched another gallery"),
        ({"protocols": ("random_gallery",), "recall_at": (1,)}, SIX, "none of random_gallery"),
    ],
)
def test_baselines_that_were_measured_in_another_way_are_left_out_and_the_page_says_why(
    tmp_path, options, labels, why
):
    write_six(tmp_path, baselines=baselines_of_six().items())
    _, page, lines = write_six(tmp_path, set_of_six(labels), **options)
    assert {name for table in lines for name in table} == {"embeddings"}
    for name in ("raw pixels", "start"):
        assert f"The baseline “{name}” is left out of the tables of models" in page
    assert why in page
    # They stand there again where they fit.
    assert write_six(tmp_path)[2] == [["raw pixels", "start", "embeddings"]] * 2


def test_without_baselines_in_the_config_the_model_stands_alone(tmp_path, records):
    write_six(tmp_path, baselines=baselines_of_six().items())
    _, _, page = write(tmp_path, set_of(records, None), records, baselines=False)
    assert re.findall('<th scope="row"><bdi>(.*?)</bdi>', page[: page.index("<nav")]) == ["trained"] * 2
    assert not (tmp_path / "baselines" / "start").exists()


def test_means_over_classes_stand_in_the_numbers_and_are_defined(tmp_path):
    results, page, _ = write_six(tmp_path)
    found = results.rankings["leave_one_out"]
    means = load_metrics(str(tmp_path))["rankings"]["leave_one_out"]
    for metric, name in (("recall_at_1", "recall_at_1_by_class"), ("ap", "map_by_class")):
        of_classes = [np.mean(found.per_query[metric][label == SIX]) for label in range(6)]
        assert means[name] == pytest.approx(np.mean(of_classes))
    assert "Recall@1 by class" in page and "Each class counts the same" in page


def test_few_classes_that_most_queries_are_of_are_named(tmp_path):
    labels = np.repeat(np.arange(20), [60, 50, *[3] * 18])
    _, page, _ = write_six(tmp_path, set_of_six(labels))
    (note,) = (one for one in load_metrics(str(tmp_path))["notes"] if "dominate" in one)
    assert note in page
    assert note.startswith(
        "2 of 20 classes are 67.1\u00a0% of the queries: class 0 (60), class 1 (50). They dominate"
    )
    assert re.search(r"Recall@1 is .*% over queries, .*% over classes\.$", note)
    assert not any("dominate" in one for one in load_metrics(str(write_and(tmp_path / "equal")))["notes"])


def write_and(folder):
    folder.mkdir()
    write_six(folder)
    return folder


def test_warnings_open_the_page_and_the_loss_of_the_run_is_drawn(tmp_path, records):
    rows = [f"{step},{1 / step},,,{step / 10 if step % 2 else ''}" for step in range(1, 9)]
    run = tmp_path / "run"
    run.mkdir()
    text = "step,loss,batch_recall_at_1,valid_queries,validation_recall_at_1\n" + "\n".join(
        [*rows, "9,nan,,,"]
    )
    (run / "training.csv").write_text(text)
    more = {"warnings": ["The loss is <nan>."], "training": str(run)}
    _, _, page = write(tmp_path / "out", set_of(records, None), records, more=more)
    assert page.index("The loss is &lt;nan&gt;.") < page.index("<h1>")
    assert titles(section(page, "charts"))[len(CHARTS) :] == [
        "Loss of training",
        "Validation during training",
    ]
    assert "From 1.000 at step 1 to 0.125 at step 8." in page
    # A run that wrote nothing has no such chart.
    _, _, page = write(tmp_path / "out", set_of(records, None), records, more={"training": str(tmp_path)})
    assert titles(section(page, "charts")) == CHARTS


def test_photos_are_whole_in_their_own_proportions_with_the_names_of_their_files(tmp_path):
    """Records of 300 x 200 pixels, of which the model sees 8 x 8; and the box of one that it looks at."""
    noise = np.random.default_rng(0).integers(0, 255, [4, 200, 300, 3], np.uint8)
    images = [
        dataclasses.replace(image, encoded=tf.io.encode_jpeg(pixels).numpy(), box=(0, 0, 0.5, 1.0))
        for image, pixels in zip(image_records([0, 0, 1, 1]), noise)
    ]
    index = write_records(images, str(tmp_path), "test", num_shards=1)
    for region, size in (("image", (300, 200)), ("box", (150, 200))):
        config = config_of()
        config.data.region = region
        results = evaluate_embeddings(config.evaluation, rows_of(1.0, index.label), set_of(index, None))
        write_evaluation(str(tmp_path / region), config, results, index, about={}, title="Photos")
        page = (tmp_path / region / "report.html").read_text()
        encoded = re.findall('base64,(.*?)"', page)
        assert {Image.open(io.BytesIO(base64.b64decode(one))).size for one in encoded} == {size}
        ids = load_per_query(str(tmp_path / region), "leave_one_out").ids.tolist()
        assert set(re.findall('class="frame" title="(.*?)"', page)) == set(ids)


def test_the_comparison_stands_in_the_first_table_too(tmp_path, records):
    test = set_of(records, None)
    write(tmp_path / "before", test, records, quality=0.3, protocols=("leave_one_out",))
    compare = {"quality": 2.0, "compare_with": tmp_path / "before", "protocols": ("leave_one_out",)}
    _, _, page = write(tmp_path / "now", test, records, **compare)
    names = re.findall('<th scope="row"><bdi>(.*?)</bdi>', page[: page.index("<nav")])
    assert names == ["earlier run", "trained"] * 2


def test_graded_rankings_stand_side_by_side_with_pictures_named_by_image(tmp_path, records):
    _, _, page = write(tmp_path, graded(records), records)
    assert list(load_metrics(str(tmp_path))["rankings"]) == ["easy", "medium", "hard"]
    assert sorted(path.name for path in (tmp_path / "per_query").iterdir()) == [
        *("easy.csv", "hard.csv", "medium.csv"),
    ]
    assert load_per_query(str(tmp_path), "easy").labels.tolist() == [-1] * 5
    # Neither classes nor similarities of them are known.
    assert sections(page) == ["queries", "charts", "metrics", "config"]
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
        grades = test.grades[row.split('"')[0]]
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
    assert sections(page) == ["queries", "charts", "classes", "metrics", "config"]
    assert titles(section(page, "charts")) == CHARTS[2:]
    assert "ScaNN&#39;s recall" in section(page, "metrics")
    # What an AP is, it does not know.
    assert re.search(r"<bdi>Recall@1 [01]\.000</bdi>", section(page, "queries"))
    assert not re.search("<bdi>AP|>mAP<", section(page, "queries") + section(page, "classes"))


def test_the_mean_of_random_galleries_has_no_ranking_to_show(tmp_path, records):
    test = set_of(records, None)
    results, _, page = write(tmp_path, test, records, protocols=("random_gallery",), recall_at=(1, 5))
    assert sections(page) == ["metrics", "config"]
    one = load_per_query(str(tmp_path), "random_gallery")
    queries = results.rankings["random_gallery"].queries
    assert one.ids.tolist() == [test.ids[row].decode() for row in queries]
    # The image that is alone in its class was never a query.
    assert 9 not in one.labels
    assert load_curves(str(tmp_path)) == {}


def test_embeddings_without_images_are_reported_without_pictures(tmp_path):
    test = TestSet(LABELS, np.arange(25).astype(str), np.full(25, ""), np.full(25, -1))
    _, _, page = write(tmp_path, test, None)
    assert sections(page) == ["charts", "classes", "metrics", "config"]
    assert "data:image/jpeg" not in page and "class 3" in page
    with open(tmp_path / "per_query" / "leave_one_out.csv") as file:
        assert [row["id"] for row in csv.DictReader(file)] == [str(number) for number in range(25)]


def test_pairs_of_templates_are_numbers_without_queries_also_beside_baselines(tmp_path, records):
    pairs = np.array([[a, b, int(a % 4 == b % 4)] for a in range(12) for b in range(a)])
    templates = TemplatePairs(np.arange(25) % 12, np.arange(25), pairs)
    test = dataclasses.replace(
        set_of(records, None), labels=np.full(25, -1), templates=templates, role=np.full(25, "")
    )
    results, _, _ = write(tmp_path / "start", test, records)
    more = {"baselines": {"start": results}}
    _, _, page = write(tmp_path / "out", test, records, more=more, verification=True, baselines=True)
    assert sections(page) == ["metrics", "config"] and "left out of the tables of models" not in page
    row = load_metrics(str(tmp_path / "out"))["rankings"]["template_pairs"]
    assert (row["templates"], row["positive_pairs"], row["negative_pairs"]) == (12, 12, 54)
    assert {"roc_auc", "tar_at_far_0.1"} < row.keys()
    assert load_metrics(str(tmp_path / "out" / "baselines" / "start"))["rankings"]["template_pairs"] == row
    with pytest.raises(InputError, match=r"pairs of templates have no queries\. Leave out --compare_with"):
        comparison.earlier_rankings(
            str(tmp_path / "start"), str(tmp_path / "out"), ranking_setups(config_of().evaluation, test)
        )


def test_open_sets_stand_in_the_table_with_their_interval_or_why_there_is_none(tmp_path, records):
    many = dataclasses.replace(set_of(records, None), labels=np.arange(25) // 2)
    for test, classes in ((many, 13), (set_of(records, None), 4)):
        results, _, page = write(tmp_path / str(classes), test, records, open_set=True)
        assert load_metrics(str(tmp_path / str(classes)))["extras"] == results.extras
        table = section(page, "metrics")
        assert "OSCR" in table and "Open-set AUROC" in table
        assert ("OSCR (from)" in table) == ("open_set_oscr_low" in results.extras) == (classes == 13)
        assert "the known classes are too few for a threshold" in page


def test_published_numbers_and_what_pictures_show_are_said(tmp_path, records):
    config = {"published": {"a paper": {"recall_at_1": 0.8123}}, "query_expansion": 2}
    _, _, page = write(tmp_path, set_of(records, None), records, **config)
    assert "a paper" in page and "81.23" in page
    assert "the confused classes show the embeddings before query expansion." in page


def test_the_same_evaluation_makes_the_same_files(tmp_path, records, monkeypatch):
    """But for the date on the page."""
    monkeypatch.setattr(report_writer, "_now", lambda: "2026-01-02 03:04 UTC")
    test = set_of(records, None)
    for name in ("one", "two"):
        write(tmp_path / name, test, records, protocols=("leave_one_out",))
    for name in ("metrics.json", "curves.json", "report.html", "per_query/leave_one_out.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert "2026-01-02 03:04 UTC" in (tmp_path / "one" / "report.html").read_text()


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
    assert sections(page) == [name for name in SECTIONS if name != "categories"]
    two_runs = section(page, "comparison")
    # Curves are of all queries, so here they are not of the same.
    assert titles(two_runs) == ["Better now"]
    assert str(tmp_path / "before") in two_runs and str(tmp_path / "now") in two_runs
    # The means are those of the queries of both.
    for results in (before, now):
        assert f"{100 * np.nanmean(results.rankings['leave_one_out'].per_query['ap'][4:]):.2f}" in two_runs
    # A query that is not known to both has not changed.
    unknown = [line.split(",")[0].strip('"') for line in lines[1:5]]
    assert not any(f"Query: {name}" in two_runs for name in unknown)


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
    refused(before, before, "is the folder of this evaluation itself")
    refused(before, tmp_path / "link", "is the folder of this evaluation itself")
    refused(now, tmp_path / "nothing", "There is no evaluation in")
    refused(now, before, "has the rankings leave_one_out, but none of query_gallery", "query_gallery")
    refused(now, tmp_path / "others", "no id is in both")
    refused(now, tmp_path / "fewer", r"another gallery at leave_one_out \(20 and 25 images\)")
    refused(now, tmp_path / "classes", "has other classes for the same ids")
    (before / "curves.json").write_text("{")
    refused(now, before, "curves.json is damaged")
    (before / "curves.json").unlink()
    refused(now, before, "no curves.json")
    (before / "metrics.json").write_text(json.dumps({"leave_one_out": {}}))
    refused(now, before, "has another schema")


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
        return paired_bootstrap(before, after, samples=10, **options)

    monkeypatch.setattr(comparison, "paired_bootstrap", bootstrap)
    for test in (set_of(records, None), graded(records)):
        folder = tmp_path / f"{test.grades is None}"
        write(folder / "before", test, None)
        write(folder / "now", test, None, compare_with=folder / "before")
    with_labels, without = groups[0], groups[-1]
    assert with_labels.tolist() == LABELS[::6].tolist() and without is None
