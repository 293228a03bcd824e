"""Published results: what configs put beside ours in the report is what the papers print."""

import importlib
import re

import pytest

from tests.configs.test_configs import CONFIGS, config_of
from tfrank.evaluation.metric_names import METRICS, family_of

# Copied by hand from the papers, as shares; a number is the K of a Recall@K.
COPIED = [
    # PNP, Tables 1, 3 and 6.
    (
        "sop",
        "PNP-Dq, batch 112",
        {
            1: 0.801,
            10: 0.915,
            100: 0.967,
            1000: 0.990,
            "dists_intra": 0.380,
            "dists_inter": 0.946,
            "nmi": 0.904,
        },
    ),
    (
        "sop",
        "PNP-Iu, batch 112",
        {
            1: 0.763,
            10: 0.896,
            100: 0.960,
            1000: 0.989,
            "dists_intra": 0.301,
            "dists_inter": 0.771,
            "nmi": 0.896,
        },
    ),
    ("sop", "PNP-Dq, batch 384", {1: 0.811, 10: 0.922, 100: 0.968, 1000: 0.990}),
    ("sop", "PNP-Dq, three classes as one", {1: 0.738, 10: 0.871, 100: 0.942, 1000: 0.980}),
    # Smooth-AP, Table 2.
    ("sop", "Smooth-AP, batch 224", {1: 0.792, 10: 0.910, 100: 0.965, 1000: 0.989}),
    # RLL, Tables 1 to 4.
    ("sop", "RLL-Simpler-H, 64 numbers", {1: 0.748, 10: 0.884, 100: 0.951}),
    ("in_shop", "RLL-Simpler-H", {1: 0.885, 10: 0.971, 20: 0.980, 30: 0.984, 40: 0.986, 50: 0.987}),
    ("cars", "RLL-Simpler-H", {1: 0.737, 2: 0.824, 4: 0.888, 8: 0.933}),
    ("cub", "RLL-Simpler-H", {1: 0.567, 2: 0.681, 4: 0.777, 8: 0.858}),
    # PNP, Tables 2, 4 and 5; Smooth-AP, Table 3.
    ("vehicle_id", "test_800: PNP-Dq, batch 112", {1: 0.946, 5: 0.974}),
    ("vehicle_id", "test_1600: Smooth-AP, batch 384", {1: 0.933, 5: 0.964}),
    ("vehicle_id", "test_2400: PNP-Dq, batch 384", {1: 0.932, 5: 0.966}),
    ("inaturalist", "PNP-Dq", {1: 0.666, 4: 0.811, 16: 0.897, 32: 0.926}),
    ("inaturalist", "Smooth-AP, batch 384", {1: 0.672, 4: 0.818, 16: 0.903, 32: 0.931}),
    # Smooth-AP, Table 4.
    ("vgg_face2", "VGGFace2: VGGFace2 network, Smooth-AP", {"map": 0.850}),
    ("vgg_face2", "IJB-C: ArcFace network, Smooth-AP", {"map": 0.803}),
    # mAP_Q, Table 2.
    ("landmarks", "ROxford5k, medium: mAP_Q", {"trapezoid_map": 0.675}),
    ("landmarks", "ROxford5k, hard, +1M: mAP_Q", {"trapezoid_map": 0.232}),
    ("landmarks", "RParis6k, hard: mAP_Q, expanded", {"trapezoid_map": 0.673}),
]
# Of the tables in the docstrings.
TABLE_ORDER = [
    *(f"recall_at_{k}" for k in (1, 2, 4, 5, 8, 10, 16, 20, 30, 32, 40, 50, 100, 1000)),
    *("dists_intra", "dists_inter", "nmi", "map", "trapezoid_map"),
]


@pytest.mark.parametrize("name, row, numbers", COPIED)
@pytest.mark.parametrize("loss", ["", "rll"])
def test_a_published_result_is_what_its_paper_prints(name, row, numbers, loss):
    expected = {f"recall_at_{key}" if isinstance(key, int) else key: share for key, share in numbers.items()}
    assert config_of(name, loss).evaluation.published[row].to_dict() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_published_row_is_one_of_the_docstrings_and_of_metrics_of_ours(name):
    text = importlib.import_module(f"tfrank.configs.{name}").__doc__ or ""
    lines = [[float(number) for number in re.findall(r"\d+\.\d+", line)] for line in text.splitlines()]
    for row, shares in config_of(name).evaluation.published.items():
        assert {family_of(metric) for metric in shares} <= METRICS.keys()
        assert "." not in row, "ml_collections takes a dot for a field of a field"
        ordered = [(metric, shares[metric]) for metric in TABLE_ORDER if metric in shares]
        assert len(ordered) == len(shares)
        printed = [share if "dists" in metric else round(100 * share, 1) for metric, share in ordered]
        assert any(stand_in(line, printed) or stand_in(line, list(shares.values())) for line in lines), row


def stand_in(line, numbers):
    """Whether the numbers stand side by side in a line."""
    return any(line[start : start + len(numbers)] == numbers for start in range(len(line)))


@pytest.mark.parametrize("name", ["sop", "in_shop", "vehicle_id", "inaturalist", "cub", "cars"])
def test_published_recalls_are_those_that_a_run_measures(name):
    config = config_of(name)
    measured = {f"recall_at_{k}" for k in config.evaluation.recall_at}
    for shares in config.evaluation.published.values():
        assert {metric for metric in shares if metric.startswith("recall")} <= measured
