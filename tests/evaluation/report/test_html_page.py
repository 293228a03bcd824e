"""The page of an evaluation: whole, the same each time, and nothing that data could add to it."""

import base64
import dataclasses
import hashlib
import html.parser
import importlib.resources
import io
import itertools
import math
import pathlib
import re

import numpy as np
import pytest
from PIL import Image

from tfrank.evaluation.model_summaries import summarize_models
from tfrank.evaluation.report import charts, curves, html_page
from tfrank.evaluation.report.html_page import Grid, GridRow, ModelTable, Report, RunComparison
from tfrank.evaluation.report.shown_image import THUMBNAIL, ShownImage, shown_image, thumbnail

NONE = "\N{EN DASH}"
ROOT = pathlib.Path(html_page.__file__).parents[3]

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></title></svg><iframe src=//example.org>",
    "{{ report }} {% raw %} &amp; &#60;b&#62;",
    "line\nfeed\x00\x1b\udc80",
    "\u202eright to left \u05e9\u05dc",
    "W" * 300,
    b"bytes \xff <b>",
    "javascript:alert(1)",
]


def jpeg(shade):
    return thumbnail(np.full([4, 6, 3], shade, np.uint8))


def report_of(names, nothing=()):
    """A report with every section, all texts of which are among the names; `nothing` empties fields."""
    text = itertools.cycle(names).__next__
    pictures = [
        ShownImage(jpeg(90), text(), True, 0.9, 1, text()),
        ShownImage(jpeg(99), text(), False, math.nan, 2, aspect=0.1),
        ShownImage(jpeg(9), text(), None, None, 3, aspect=20.0, small=True),
    ]
    grids = [Grid(text(), [GridRow(ShownImage(jpeg(200), text()), pictures, text())], text())]
    labels, curve = np.arange(12) % 11, (np.array([0, 1]), np.array([1, 0.5]))
    recalls = np.arange(1, 3), np.array([0.5, 1.0])
    drawn = [
        charts.precision_recall({charts.plain(text()): curve}),
        charts.recall_at_k({charts.plain(text()): recalls, charts.plain(text()) + "2": recalls}),
        charts.similarities(curves.Histogram(np.linspace(-1, 1, 3), np.ones(2) / 2, np.ones(2) / 2)),
        charts.embedding_map(np.random.default_rng(0).normal(size=[12, 2]), labels, lambda label: text()),
    ]
    metrics = {
        "recall_at_1": 0.91234,
        "map": math.nan,
        "dists_intra": 0.5,
        "queries": 58,
        "queries_without_positive": 2,
    }
    after = {**metrics, "recall_at_1": 0.95, "map": 0.5}
    interval = {"recall_at_1": (0.01, 0.07)}
    comparisons = [
        RunComparison(text(), (text(), text()), (metrics, after), interval, charts=drawn[:1], grids=grids),
        RunComparison(text(), (text(), text()), (metrics, after)),
    ]
    values = {charts.plain(text()) + " before": np.zeros(12), "trained": np.arange(12) / 11}
    full = Report(
        title=text(),
        warnings=[text()],
        model_tables=[
            ModelTable("map", summarize_models(values, labels), text()),
            ModelTable("map", summarize_models(values, None)),
        ],
        made=[(text(), text())],
        config=charts.plain(text()),
        facts=[(text(), text())],
        metrics={charts.plain(text()): metrics, "query and gallery": {"recall_at_1": None}},
        published={charts.plain(text()) + " paper": {"recall_at_1": 0.811}},
        notes=[text()],
        grids=grids,
        charts=drawn,
        worst_classes=[curves.ClassScore(text(), 4, 0.25, 0.3333, text(), 3)],
        comparisons=comparisons,
    )
    empty = Report("")
    return dataclasses.replace(full, **{name: getattr(empty, name) for name in nothing})


class Page(html.parser.HTMLParser):
    """The tags with the names of their attributes, the attributes, and the text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *(name for name, _ in attrs)))
        self.attributes += [(tag, *attr) for attr in attrs]
        if tag not in ("meta", "img", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.text += data

    def values(self, attribute):
        return [value for _, name, value in self.attributes if name == attribute]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_data_adds_no_tag_and_no_attribute(name):
    """The page of hostile names has the tags of that of a harmless name, in the same order."""
    page, harmless = (
        Page(html_page.render(report_of([name]))),
        Page(html_page.render(report_of(["name"]))),
    )
    # Which names of a map find room is a matter of their lengths.
    tags, wanted = ([tag for tag in one.tags if tag[0] != "text"] for one in (page, harmless))
    assert tags == wanted and not page.open
    assert {tag for tag in page.tags if tag[0] == "text"} == {
        tag for tag in harmless.tags if tag[0] == "text"
    }
    assert [tag for tag in page.tags if tag[0] == "script"] == [("script",)]
    assert not {tag for tag, *_ in page.tags} & {
        "iframe",
        "object",
        "embed",
        "link",
        "form",
        "base",
    }
    assert not [name for _, *names in page.tags for name in names if name.startswith("on") or name == "style"]
    assert page.text.count(charts.plain(name)) >= 14


def test_nothing_is_loaded_from_outside():
    page = html_page.render(report_of(HOSTILE))
    parsed = Page(page)
    assert all(value.startswith("data:image/jpeg;base64,") for value in parsed.values("src"))
    assert all(value.startswith("#") for value in parsed.values("href"))
    assert not {"srcset", "xlink:href", "action", "background", "poster"} & {
        name for _, name, _ in parsed.attributes
    }
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    assert script == importlib.resources.files("tfrank.evaluation.report").joinpath("report.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}';"
        " base-uri 'none'; form-action 'none'"
    )
    assert ("meta", "content", policy) in parsed.attributes
    assert "http://" not in page and "https://" not in page
    page.encode()


def test_every_link_leads_to_a_section():
    parsed = Page(html_page.render(report_of(["name"])))
    assert sorted(parsed.values("href")) == sorted(f"#{section}" for section in parsed.values("id"))


SECTIONS = {
    "metrics": "metrics",
    "comparisons": "comparison",
    "charts": "charts",
    "grids": "queries",
    "worst_classes": "classes",
    "config": "config",
}


@pytest.mark.parametrize("absent", SECTIONS)
def test_a_section_is_there_where_there_is_something_to_show(absent):
    parsed = Page(html_page.render(report_of(["name"], [absent])))
    assert set(parsed.values("id")) == set(SECTIONS.values()) - {SECTIONS[absent]}
    assert set(parsed.values("href")) == {f"#{section}" for section in parsed.values("id")}


def test_the_smallest_report_is_a_page():
    parsed = Page(html_page.render(Report("Nothing yet")))
    assert not parsed.values("id") and not parsed.open
    assert parsed.text.split() == ["Nothing", "yet"] * 2


def test_facts_that_are_not_known_are_dashes():
    page = html_page.render(Report("Facts", [("loss", math.nan), ("seed", None), ("images", 0)]))
    assert re.findall("<dd><bdi>(.*?)</bdi>", page) == [NONE, NONE, "0"]


def test_the_same_report_makes_the_same_page():
    assert html_page.render(report_of(HOSTILE)) == html_page.render(report_of(HOSTILE))


def lines_of(report):
    """The cells of each line of the tables, as text."""
    lines = re.findall("<tr[^>]*>(.*?)</tr>", html_page.render(report), re.DOTALL)
    return [[Page(cell).text.strip() for cell in re.split("(?=<t[hd])", line)[1:]] for line in lines]


def test_numbers_stand_beside_the_published_ones_and_what_is_missing_is_a_dash():
    lines = lines_of(report_of(["name"], ["model_tables", "comparisons", "worst_classes"]))
    assert lines == [
        ["Metric", "name", "query and gallery"],
        ["Recall@1", "91.23\u00a0%", NONE],
        ["mAP", NONE, NONE],
        ["dists@intra", "0.500", NONE],
        ["Queries", "58", NONE],
        ["Queries without a positive", "2", NONE],
        ["Result", "Recall@1"],
        ["name", "91.23\u00a0%"],
        ["query and gallery", NONE],
        ["name paper", "81.10\u00a0%"],
    ]


def test_published_results_of_what_was_not_measured_are_not_shown():
    report = Report("One", metrics={"mine": {"map": 0.5}}, published={"theirs": {"recall_at_1": 0.9}})
    assert "theirs" not in html_page.render(report)


def test_the_page_opens_with_the_model_beside_what_it_is_to_be_better_than():
    """Six classes of two queries, one query more of the last class."""
    labels = np.append(np.repeat(np.arange(6), 2), 5)
    before = np.where(labels < 3, 0.0, 0.5)
    models = summarize_models({"raw pixels": before, "trained": before + 0.25}, labels)
    title, raw, trained = lines_of(Report("First", model_tables=[ModelTable("recall_at_1", models)]))
    assert title == ["Model", "Mean over queries", "Mean over classes", "trained minus this"]
    assert [raw[0], raw[2], trained[0], trained[2], trained[3]] == [
        "raw pixels",
        "25.00\u00a0%",
        "trained",
        "50.00\u00a0%",
        "",
    ]
    assert raw[1].startswith("26.92\u00a0%") and re.search(r"\d+\.\d\d to \d+\.\d\d$", raw[1])
    assert raw[3].split() == ["+25.00", "+25.00", "to", "+25.00", "▲", "better"]
    page = html_page.render(Report("First", model_tables=[ModelTable("recall_at_1", models)]))
    assert page.index("<h2>Recall@1</h2>") < page.index("</header>")
    assert "95\u00a0% interval below it, from the bootstrap of whole classes" in page


def test_a_model_alone_has_no_column_of_differences_and_unknown_classes_none_of_their_mean():
    def table_of(labels):
        return Report(
            "First", model_tables=[ModelTable("map", summarize_models({"trained": np.ones(7)}, labels))]
        )

    assert lines_of(table_of(np.arange(7))) == [
        ["Model", "Mean over queries", "Mean over classes"],
        ["trained", "100.00\u00a0% 100.00 to 100.00", "100.00\u00a0%"],
    ]
    assert lines_of(table_of(None))[0] == ["Model", "Mean over queries"]
    assert "from the bootstrap of queries" in html_page.render(table_of(None))


def test_below_five_classes_the_page_says_why_there_are_no_intervals():
    models = summarize_models({"start": np.zeros(8), "trained": np.ones(8)}, np.arange(8) // 2)
    report = Report("Few", model_tables=[ModelTable("map", models)])
    assert lines_of(report)[1] == ["start", "0.00\u00a0%", "0.00\u00a0%", "+100.00"]
    page = html_page.render(report)
    assert "No intervals" in page and "it needs at least 5 classes" in page


def test_warnings_stand_before_everything_else():
    page = html_page.render(report_of(["name"]))
    body = page[page.index("<body>") :]
    assert body.index('role="alert"') < body.index("<h1>")
    assert 'role="alert"' not in html_page.render(report_of(["name"], ["warnings"]))


def test_definitions_are_on_the_page_once():
    report = Report("One", metrics={name: {"map": 0.5, "queries": 7} for name in ("mine", "yours")})
    text = Page(html_page.render(report)).text
    assert text.count("mAP: mean over queries of AP, the mean of the precisions") == 1


def test_config_date_and_version_are_folded_away():
    page = html_page.render(Report("Made", made=[("date", "2026-01-02")], config='{"seed": 7}'))
    folded = page[page.index("<details>") : page.index("</details>")]
    assert "2026-01-02" in folded and "&#34;seed&#34;: 7" in folded


@pytest.mark.parametrize(
    "interval, shown",
    [
        ((0.01, 0.07), " +1.00 to +7.00 ▲ better"),
        ((-0.07, -0.01), " \u22127.00 to \u22121.00 ▼ worse"),
        ((-0.01, 0.07), " \u22121.00 to +7.00 unclear"),
        ((math.nan, math.nan), ""),
        ((-math.inf, math.inf), " too few classes"),
    ],
)
def test_two_runs_stand_side_by_side_with_what_their_difference_means(interval, shown):
    metrics = [
        {"recall_at_1": 0.5, "dists_inter": 0.5, "queries": 7},
        {"recall_at_1": 0.54, "dists_inter": 0.25, "queries": 9},
    ]
    intervals = {"recall_at_1": interval, "dists_inter": (-0.3, -0.2)}
    comparison = RunComparison("easy", ("old", "new"), tuple(metrics), intervals)
    assert lines_of(Report("Two", comparisons=[comparison])) == [
        ["Metric", "First", "Second", "Difference"],
        ["Recall@1", "50.00\u00a0%", "54.00\u00a0%", f"+4.00{shown}"],
        ["dists@inter", "0.500", "0.250", "\u22120.250 \u22120.300 to \u22120.200"],
        ["Queries", "7", "9", NONE],
    ]
    page = html_page.render(Report("Two", comparisons=[comparison]))
    assert "First run: <bdi>old</bdi>. Second run: <bdi>new</bdi>." in page and "95\u00a0% interval" in page


def test_two_runs_without_intervals_say_nothing_of_them():
    metrics = {"map": 0.5}
    comparison = RunComparison("easy", ("old", "new"), (metrics, metrics))
    report = Report("Two", comparisons=[comparison])
    assert lines_of(report)[1] == ["mAP", "50.00\u00a0%", "50.00\u00a0%", "+0.00"]
    assert "interval" not in Page(html_page.render(report)).text


def test_every_ranking_that_two_runs_have_is_named():
    runs = ("old", "new"), ({"map": 0.5}, {"map": 0.5})
    comparisons = [RunComparison(name, *runs) for name in ("easy", "hard")]

    def headings(report):
        return re.findall("<h2>(Two runs.*?)</h2>", html_page.render(report))

    two = [f"Two runs side by side: <bdi>{name}</bdi>" for name in ("easy", "hard")]
    assert headings(Report("Two", comparisons=comparisons)) == two
    assert headings(Report("One", comparisons=comparisons[:1])) == ["Two runs side by side"]


def test_classes_whose_map_is_not_known_have_no_column_for_it():
    scores = [curves.ClassScore("cat", 2, 0.5, None, "dog", 1)]
    assert lines_of(Report("Classes", worst_classes=scores)) == [
        ["Class", "Queries", "Recall@1", "Most often confused with"],
        ["cat", "2", "50.0\u00a0%", "dog (1)"],
    ]


def test_classes_are_shown_with_what_they_are_taken_for():
    scores = [
        curves.ClassScore("cat", 1200, 0.25, 1 / 3, "dog", 900),
        curves.ClassScore("dog", 3, 1, 1, "", 0),
    ]
    assert lines_of(Report("Classes", worst_classes=scores))[1:] == [
        ["cat", "1,200", "25.0\u00a0%", "33.3\u00a0%", "dog (900)"],
        ["dog", "3", "100.0\u00a0%", "100.0\u00a0%", ""],
    ]


def test_right_and_wrong_are_told_by_sign_and_word_too():
    page = html_page.render(report_of(["cat"], ["comparisons"]))
    shown = re.findall(r'<figure class="picture f\d+ (\w+)">(.*?)</figure>', page, re.DOTALL)
    marks = [(kind, re.findall('class="mark"[^>]*>(.)<', inner)) for kind, inner in shown]
    assert marks == [("query", []), ("right", ["✓"]), ("wrong", ["✗"]), ("unknown", ["?"])]
    assert Page(page).values("alt") == [
        "Query: cat",
        "Rank 1, right: cat, similarity 0.900",
        "Rank 2, wrong: cat",
        "Rank 3: cat",
    ]
    assert re.findall('class="detail">(.*?)<', page) == ["query", "0.900", f"{NONE}", "#3"]


def test_a_picture_is_a_button_that_names_its_file_and_has_its_proportions():
    pictures = [shown_image(np.zeros([*shape, 3], np.uint8), file="a/b.jpg") for shape in SHAPES]
    page = html_page.render(Report("Files", grids=[Grid("Any", [GridRow(pictures[0], pictures[1:])])]))
    frames = re.findall(
        r'class="picture f(\d+) .*?<button type="button" class="frame" title="(.*?)">', page, re.DOTALL
    )
    aspects = dict(re.findall(r"\.f(\d+) { --aspect: (.*?); }", page))
    shown = [float(aspects[number]) for number, _ in frames]
    assert {file for _, file in frames} == {"a/b.jpg"}
    wanted = [min(max(width / height, 0.5), 2.5) for height, width in SHAPES]
    np.testing.assert_allclose(shown, wanted, atol=0.011)
    assert [picture.small for picture in pictures] == [False, False, False, False, True]


SHAPES = [(300, 400), (333, 250), (100, 900), (900, 100), (8, 8)]


def test_a_photo_has_two_pixels_for_each_of_the_112_that_it_is_shown_with():
    page = html_page.render(report_of(["name"]))
    assert "max-width: calc(var(--aspect) * 112px)" in page and THUMBNAIL >= 2 * 112


def test_a_small_image_is_enlarged_by_whole_pixels():
    image = np.repeat(np.array([[0, 255], [255, 0]], np.uint8)[..., None], 3, axis=-1)
    large = np.asarray(Image.open(io.BytesIO(thumbnail(image, height=64)))).astype(int)
    assert np.abs(large - np.kron(image[..., 0], np.ones([32, 32]))[..., None]).max() < 12
    page = html_page.render(report_of(["name"], ["comparisons"]))
    assert page.count('class="small"') == 1 and ".small { image-rendering: pixelated; }" in page


def test_a_page_with_216_thumbnails_of_ten_kilobytes_takes_three_megabytes():
    picture = ShownImage(bytes(10_000), "class", True, 0.5, 1)
    grid = Grid("Worst", [GridRow(picture, [picture] * 8)] * 8)
    assert len(html_page.render(Report("Large", grids=[grid] * 3)).encode()) < 3.1e6
