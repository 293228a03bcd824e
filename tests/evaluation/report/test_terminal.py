"""What a person gets to see of an evaluation on a terminal, and of neighbours in a picture."""

import io

import matplotlib.image
import numpy as np
import pytest

from tfrank.evaluation.metric_names import METRICS
from tfrank.evaluation.report import terminal as report
from tfrank.evaluation.report.neighbor_grid import neighbor_grid

LABELS = np.array([3, 2**40, 3, -1, 5, 5, 3])
ROW = {"recall_at_1": 0.91234, "recall_at_10": 1.0, "map": 0.5, "queries": 58, "queries_without_positive": 2}


def test_table_has_a_line_for_each_model_and_defines_recall_at_k():
    text = report.table({"raw pixels": {**ROW, "recall_at_1": 0.25}, "trained": ROW})
    title, raw, trained, counts, definition = text.splitlines()
    assert title.split() == ["Recall@1", "Recall@10", "mAP"]
    assert raw.split() == ["raw", "pixels", "0.2500", "1.0000", "0.5000"]
    assert trained.split() == ["trained", "0.9123", "1.0000", "0.5000"]
    assert len(title) == len(raw) == len(trained)
    assert counts == "58 queries. Left out: 2 without another image of their class."
    assert definition == (
        "Recall@K (hit rate): share of queries with at least one image of their class among the K nearest,"
        " the query itself left out."
    )


def test_table_shows_the_rates_of_pairs_where_nothing_is_ranked():
    rates = {"roc_auc": 0.9, "tar_at_far_0.1": 0.8, "tar_at_far_1e-06": 0.1, "templates": 6}
    text = report.table({"start": rates, "trained": rates | {"tar_at_far_0.1": 0.85}})
    lines = text.splitlines()
    assert lines[0].split() == ["TAR@FAR", "0.1", "TAR@FAR", "1e-06"]
    assert lines[2].split() == ["trained", "0.8500", "0.1000"]
    assert lines[3:] == [METRICS["tar_at_far_<far>"].definition]


def test_table_shows_what_scann_missed():
    row = {"recall_at_1": 0.5, "queries": 58, "queries_without_positive": 2, "scann_recall": 0.875}
    title, line, *_ = report.table({"model": row}).splitlines()
    assert title.split() == ["Recall@1", "ScaNN's", "recall"]
    assert line.split() == ["model", "0.5000", "0.8750"]


def test_all_metrics_stand_in_lines_and_all_rankings_in_columns():
    rankings = {"easy": {"map": 0.5, "queries": 58}, "query_and_gallery": {"nmi": 1, "map": 1 / 3}}
    titles, *lines = report.listing(rankings).splitlines()
    assert titles.split() == ["easy", "query_and_gallery"]
    assert [line.split() for line in lines[:3]] == [
        ["mAP", "0.5000", "0.3333"],
        ["Queries", "58"],
        ["NMI", "1"],
    ]
    assert lines[3:] == [METRICS["map"].definition, METRICS["nmi"].definition]
    # Numbers stand below the ends of their titles.
    assert lines[0].index("0.5000") + 6 == titles.index("easy") + 4
    assert len(lines[0]) == len(titles)


GREEN, RED = (44, 160, 44), (214, 39, 40)


@pytest.mark.parametrize(
    "neighbors, colors",
    [
        ([[2, 6, 3, 1]], {GREEN, RED}),
        ([[2, 6]], {GREEN}),
        ([[1], [0]], {RED}),
        ([[2, -1], [-1, -1]], {GREEN}),
        ([[-1, -1]], set()),
    ],
    ids=["right and wrong", "right", "wrong", "too few", "none"],
)
def test_neighbors_are_drawn_with_right_ones_in_green_and_wrong_ones_in_red(neighbors, colors):
    queries = np.array([0, 3])[: len(neighbors)]
    drawn = []

    def image_of(number):
        drawn.append(int(number))
        return np.full([8, 8, 3], 200, np.uint8)

    # Matplotlib would take what stands between two $ for a formula, and refuse this one.
    png = neighbor_grid(image_of, queries, np.array(neighbors), LABELS, lambda n: f"$5_$ bill {n}")
    picture = (matplotlib.image.imread(io.BytesIO(png))[..., :3] * 255).round().astype(int)
    found = {tuple(pixel) for pixel in picture.reshape(-1, 3).tolist()} & {GREEN, RED}
    assert found == colors
    rows = zip(queries.tolist(), neighbors)
    assert drawn == [number for query, nearest in rows for number in [query, *nearest] if number >= 0]
