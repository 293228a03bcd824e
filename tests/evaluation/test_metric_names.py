"""Titles, definitions and units of metrics."""

import pytest

from tfrank.evaluation.metric_names import METRICS, metric_of, metric_title


def test_every_definition_is_a_sentence_that_begins_with_its_term():
    for metric in METRICS.values():
        if metric.definition:
            assert ":" in metric.definition and metric.definition.endswith(".")
        assert metric.unit in ("share", "distance", "variance", "rank", "count")
        assert metric.better in (-1, 0, 1)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("recall_at_10_by_class", "Recall@10 by class"),
        ("capped_precision_at_5", "mP@5"),
        ("ap", "AP"),
        ("tar_at_far_1e-06", "TAR@FAR 1e-06"),
        ("tar_at_far_<far>", "TAR@FAR x"),
        ("open_set_oscr_low", "OSCR (from)"),
        ("queries_without_positive", "Queries without a positive"),
    ],
)
def test_titles_are_those_of_papers(name, title):
    assert metric_title(name) == title


def test_a_metric_without_an_entry_is_a_share_of_which_more_is_better():
    assert metric_of("new_one") == ("New one", "", "share", 1)
