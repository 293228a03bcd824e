"""What the sentences of a review say of findings."""

import numpy as np
import pytest

from tfrank.search.review import Finding, summary

LABELS = np.repeat([f"class {number}" for number in range(20)], 10)


def of_kind(what, count):
    return [
        Finding(what, number, f"{number}.jpg", f"class {number % 20}", "x", 0.1) for number in range(count)
    ]


@pytest.mark.parametrize(
    "what, few, many, caution",
    [
        ("label", 13, 14, "hardly tells some of these classes apart"),
        ("two classes", 3, 4, "So many classes look like two"),
    ],
)
def test_a_review_warns_where_it_finds_more_than_can_be_wrong(what, few, many, caution):
    assert caution not in "\n".join(summary(of_kind(what, few), LABELS))
    assert caution in "\n".join(summary(of_kind(what, many), LABELS))
