"""Charts: that what is drawn is where the numbers are, and that names from data stay text."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from tfrank.evaluation.report import charts
from tfrank.evaluation.report.curves import Histogram

HOSTILE = "<script>alert(1)</script>\" onload='x' \x00\udc80"
LEFT, RIGHT = charts.LEFT, charts.WIDTH - charts.RIGHT
TOP, BOTTOM = charts.TOP, charts.HEIGHT - charts.BOTTOM


def elements(chart, tag, style=""):
    """The elements of a chart of a tag, with a class."""
    found = ElementTree.fromstring(chart.svg).iter(tag)
    return [element for element in found if style in element.get("class", "").split() or not style]


def points(element):
    return [tuple(map(float, point.split(","))) for point in element.get("points").split()]


def ticks(chart, style):
    """From the text of each tick to its place, along x ("mid") or y ("end")."""
    axis = "x" if style == "mid" else "y"
    texts = [text for text in elements(chart, "text", style) if "name" not in text.get("class")]
    return {text.text: float(text.get(axis)) for text in texts}


def test_precision_is_drawn_against_recall():
    chart = charts.precision_recall({"run": (np.array([0, 0.5, 1]), np.array([1, 0.75, 0]))})
    (line,) = elements(chart, "polyline")
    middle = (LEFT + RIGHT) / 2
    assert points(line) == [(LEFT, TOP), (middle, BOTTOM - 0.75 * (BOTTOM - TOP)), (RIGHT, BOTTOM)]
    assert ticks(chart, "mid")["0"] == LEFT and ticks(chart, "mid")["100"] == RIGHT
    assert ticks(chart, "end")["0"] == BOTTOM and ticks(chart, "end")["100"] == TOP
    assert "the precision is 75.0\u00a0%" in chart.caption
    assert [text.text for text in elements(chart, "text", "name")] == ["precision in %", "recall in %"]
    assert not chart.legend


def test_recall_is_drawn_against_the_logarithm_of_k():
    ks = np.arange(1, 1001)
    chart = charts.recall_at_k({"run": (ks, np.where(ks < 10, 0.73, 1.0))})
    assert ticks(chart, "mid") == {
        "1": LEFT,
        "10": pytest.approx(LEFT + (RIGHT - LEFT) / 3, abs=0.1),
        "100": pytest.approx(LEFT + (RIGHT - LEFT) * 2 / 3, abs=0.1),
        "1k": RIGHT,
    }
    # The axis begins at 70 %.
    assert ticks(chart, "end") == pytest.approx(
        {f"{p}": BOTTOM - (p - 70) / 30 * (BOTTOM - TOP) for p in (70, 75, 80, 85, 90, 95, 100)}, abs=0.06
    )
    drawn = points(elements(chart, "polyline")[0])
    assert len(drawn) <= charts.CURVE_POINTS
    assert drawn[0] == (LEFT, pytest.approx(BOTTOM - 0.1 * (BOTTOM - TOP), abs=0.06))
    assert drawn[-1] == (RIGHT, TOP)
    assert "at rank 1 73.0\u00a0%" in chart.caption and "the 1,000 nearest" in chart.caption


@pytest.mark.parametrize("recall", [[0.0], [1.0], [0.5, 0.5, 1.0]])
def test_recall_of_few_ks_stays_within_the_axes(recall):
    chart = charts.recall_at_k({"run": (np.arange(1, len(recall) + 1), np.array(recall))})
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in points(elements(chart, "polyline")[0]))


def test_several_runs_have_lines_of_their_own_and_a_legend():
    curve = np.array([0, 1]), np.array([1, 0.5])
    runs = {"first": curve, HOSTILE: curve}
    chart = charts.precision_recall(runs)
    assert [line.get("class") for line in elements(chart, "polyline")] == ["line s0", "line s1"]
    assert [name for _, name in chart.legend] == ["first", HOSTILE]
    keys = [ElementTree.fromstring(key).find("path").get("class") for key, _ in chart.legend]
    assert keys == ["line s0", "line s1"]
    assert "(first)" in chart.caption and "\x00" not in chart.caption


def test_similarities_are_drawn_where_there_are_any():
    """Four bins from -1 to 1, of which the two in the middle are used."""
    density = np.array([[0, 0, 2, 0], [0, 1, 1, 0]], float)
    chart = charts.similarities(Histogram(np.linspace(-1, 1, 5), *density))
    middle, half = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
    positive, negative = (points(line) for line in elements(chart, "polyline"))
    floor = [(LEFT, BOTTOM), (LEFT, BOTTOM), (middle, BOTTOM)]
    assert positive == [*floor, (middle, TOP), (RIGHT, TOP), (RIGHT, BOTTOM)]
    assert negative == [
        (LEFT, BOTTOM),
        (LEFT, half),
        (middle, half),
        (middle, half),
        (RIGHT, half),
        (RIGHT, BOTTOM),
    ]
    assert ticks(chart, "mid")["\u22120.4"] == pytest.approx(LEFT + 0.1 * (RIGHT - LEFT), abs=0.06)
    assert (
        "similarity of 0.250, negative pairs of 0.000; the two areas overlap by 50.0\u00a0%" in chart.caption
    )
    assert "Every pair counts the same here" in chart.caption and "In dists@intra" in chart.caption
    assert [name for _, name in chart.legend] == ["positive pairs", "negative pairs"]


def test_similarities_of_no_pair_are_an_empty_chart():
    chart = charts.similarities(Histogram(np.linspace(-1, 1, 5), np.zeros(4), np.zeros(4)))
    assert {y for line in elements(chart, "polyline") for _, y in points(line)} == {BOTTOM}


def places_of(path):
    return [tuple(map(float, place.split())) for place in re.findall(r"M(\S+ \S+?)h", path.get("d"))]


def test_map_shows_every_point_in_the_style_of_its_class():
    """32 classes of 32, 31, ... 1 images: the two smallest are grey, and styles come again."""
    labels = np.repeat(np.arange(32), np.arange(32, 0, -1))
    places = np.random.default_rng(0).normal(size=[len(labels), 2])
    chart = charts.embedding_map(places, labels, names="class {}".format)
    paths = elements(chart, "path", "dot")
    wanted = [("dot rest", 30), ("dot rest", 31)] + [(f"dot p{n % 10}", n) for n in range(30)]
    assert [(path.get("class"), path.find("title").text) for path in paths] == [
        (style, f"class {label}") for style, label in wanted
    ]
    assert [len(places_of(path)) for path in paths] == [2, 1, *range(32, 2, -1)]
    drawn = np.concatenate([places_of(path) for path in [*paths[2:], *paths[:2]]])
    # Nothing is stretched.
    scale = np.ptp(drawn, axis=0) / np.ptp(places, axis=0)
    assert scale[0] == pytest.approx(scale[1], rel=1e-3)
    np.testing.assert_allclose(drawn - drawn[0], (places - places[0]) * scale, atol=0.2)
    assert drawn.min() >= charts.MARGIN - 0.05 and (drawn.max(axis=0) <= np.array(charts.MAP) - 11.9).all()
    assert "The 30 largest classes are in colours, 2 others grey." in chart.caption and not chart.legend


def test_names_of_classes_stand_at_their_points_on_either_map():
    """Three islands far from each other, a name of one of which is too long."""
    middles, labels = np.array([[0, 0], [10, 0], [5, 8]]), np.arange(60) % 3
    places = middles[labels] + np.random.default_rng(0).normal(size=[60, 2]) / 9
    names = ["cat", "a name much longer than there is room for", "dog"]
    chart = charts.embedding_map(places, labels, names=names.__getitem__)
    for svg, size in ((chart.svg, charts.MAP), (chart.narrow, charts.NARROW_MAP)):
        drawn = chart._replace(svg=svg)
        texts = {text.text: text for text in elements(drawn, "text", "halo")}
        assert {"cat", "dog"} <= set(texts) <= {"cat", "dog", "a name much longer th…"}
        for name, text in texts.items():
            points = places_of(
                elements(drawn, "path", f"p{['cat', 'a name much longer th…', 'dog'].index(name)}")[0]
            )
            apart = np.array([float(text.get(axis)) for axis in "xy"]) - np.median(points, axis=0)
            assert abs(apart[1]) < 20 and abs(apart[0]) < 150
        width, height = map(int, ElementTree.fromstring(svg).get("viewBox").split()[2:])
        assert width == size[0] and size[0] / 2 <= height <= size[1]


def boxes(placed):
    for name, x, y in placed:
        half = charts.LETTER_WIDTH * len(name) / 2
        yield x - half, y - charts.NAME_HEIGHT / 2, x + half, y + charts.NAME_HEIGHT / 2


def test_no_two_names_overlap_and_none_leaves_the_map():
    rng = np.random.default_rng(0)
    names = [("n" * rng.integers(1, 22), *rng.uniform(0, 400, 2)) for _ in range(200)]
    found = list(boxes(charts.place_names(names, (400, 400))))
    assert 20 < len(found) < 200
    for one in found:
        assert min(one) >= 0 and max(one) <= 400
        for other in found:
            apart = one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]
            assert one is other or apart
    # A name that finds room stands at its place.
    assert charts.place_names(names[:1], (1000, 1000)) == names[:1]


def test_map_of_few_classes_has_no_others_and_of_one_spot_is_drawn():
    chart = charts.embedding_map(np.zeros([3, 2]), np.array([7, 7, 8]), names=lambda label: HOSTILE)
    ((x, y), again) = places_of(elements(chart, "path", "dot")[0])
    assert (x, y) == again and x == charts.MAP[0] / 2
    assert {title.text for title in elements(chart, "title")} == {charts.plain(HOSTILE)}
    assert "grey" not in chart.caption


def test_the_loss_of_a_run_is_drawn_against_the_step():
    steps = np.arange(1, 401)
    chart = charts.loss_of_training(steps, np.linspace(1, 0.5, 400))
    (line,) = elements(chart, "polyline")
    drawn = points(line)
    assert len(drawn) == charts.CURVE_POINTS and drawn[-1][0] == pytest.approx(RIGHT, abs=0.5)
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in drawn)
    assert [y for _, y in drawn] == sorted(y for _, y in drawn)
    assert chart.caption == "From 1.000 at step 1 to 0.500 at step 400. Each point is the mean of 2 steps."
    assert ticks(chart, "mid")["0"] == LEFT


@pytest.mark.parametrize("loss", [[0.5, 0.5], [-1e-9, 1e-9], [3.0, 2.0]])
def test_a_run_of_two_steps_is_drawn_too(loss):
    chart = charts.loss_of_training(np.array([1, 2]), np.array(loss))
    assert len(points(elements(chart, "polyline")[0])) == 2 and ticks(chart, "end")


def test_recall_on_validation_classes_is_drawn_with_its_highest():
    chart = charts.validation_of_training(np.array([100, 200, 300]), np.array([0.5, 0.75, 0.6]))
    assert "Highest at step 200: 75.0\u00a0%" in chart.caption
    drawn = points(elements(chart, "polyline")[0])
    assert drawn[1][1] < drawn[2][1] < drawn[0][1]
    low, high = (
        float(text) for text in (min(ticks(chart, "end"), key=float), max(ticks(chart, "end"), key=float))
    )
    assert 45 <= low < high <= 80


@pytest.mark.parametrize(
    "low, high, wanted",
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.9, 1, [0.9, 0.92, 0.94, 0.96, 0.98, 1]),
        (-0.34, 1, [-0.2, 0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 6.3, [0, 1, 2, 3, 4, 5, 6]),
        (0, 25, [0, 5, 10, 15, 20, 25]),
    ],
)
def test_ticks_are_round_numbers(low, high, wanted):
    assert charts._ticks(low, high) == wanted


@pytest.mark.parametrize(
    "high, wanted",
    [(2, [1, 2]), (100, [1, 2, 5, 10, 20, 50, 100]), (101, [1, 10, 100]), (9999, [1, 10, 100, 1000])],
)
def test_ticks_of_k_are_round_numbers(high, wanted):
    assert charts._log_ticks(high) == wanted


@pytest.mark.parametrize(
    "value, wanted",
    [
        ("a\nb\tc\u2028d", "a b c d"),
        ("\x00\x1b\x7f\x85\x0b", "\ufffd" * 5),
        ("\udcff", "\ufffd"),
        (b"\xff\xc3\xa9", "\ufffdé"),
        ("\u202e\u05e9\u05dc 文字 👍", "\u202e\u05e9\u05dc 文字 👍"),
        (3, "3"),
    ],
)
def test_text_from_data_holds_only_what_html_may_hold(value, wanted):
    assert charts.plain(value) == wanted
