"""What the pages of the losses are made of."""

import tomllib

import numpy as np
import pytest

import tfrank
from docs._ext import docstrings, figures, loss_pages, tables
from tests.command_lines import ROOT

DOCS = ROOT / "docs"
FACTS = tomllib.loads((DOCS / "losses.toml").read_text())


def test_every_loss_has_facts_a_row_that_says_when_to_take_it_and_results_that_exist():
    experiments = [path for name in loss_pages.EXPERIMENTS for path in [DOCS / "experiments" / f"{name}.csv"]]
    known = {row["loss"] for path in experiments for row in tables.rows_of_csv(path)}
    rows = tables.rows_of_page(DOCS / "losses.md", "## Which losses there are")
    assert set(FACTS) == set(loss_pages.classes())
    for name, loss in loss_pages.classes().items():
        assert set(FACTS[name]["results"]) <= known, name
        assert any(f"`{loss.__name__}" in next(iter(row.values())) for row in rows), name


def test_a_table_of_a_page_is_read_by_its_heading(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n## B\n\n| x | y | y |\n|---|---|---|\n| 1 | | 3 |\n\n## C\n\n| x |\n|---|\n| 4 |\n"
    )
    assert tables.rows_of_page(page, "## B") == [{"x": "1", "y": ""}]
    with pytest.raises(ValueError, match="no heading '## D'"):
        tables.rows_of_page(page, "## D")


def test_a_docstring_becomes_markdown():
    def documented():
        """Does <one> thing.

            a * b

        A | B, and `c * d`.

        Args:
            x: a number
                of two lines.

        >>> 1
        1
        """

    text = docstrings.markdown(documented)
    assert text.startswith("Does \\<one> thing.\n\n```text\na * b\n```\n\nA \\| B, and `c * d`.")
    assert "- `x`: a number of two lines." in text
    assert text.endswith("```pycon\n>>> 1\n1\n```")


def test_the_slopes_of_a_curve_are_those_of_its_values():
    losses = (
        tfrank.ContrastiveLoss(),
        tfrank.HistogramLoss(num_bins=2),
        tfrank.NormalizedSoftmaxLoss(labels=range(3)),
        tfrank.RelationalLoss(),
    )
    for loss in losses:
        curves, _ = figures.curves_and_step(loss, of_batch=isinstance(loss, tfrank.HistogramLoss))
        for curve in curves.values():
            np.testing.assert_allclose(curve.slope[1:-1], np.gradient(curve.loss, curve.x)[1:-1], atol=0.02)


def test_a_step_takes_the_positives_of_a_batch_towards_one_another():
    _, step = figures.curves_and_step(tfrank.ContrastiveLoss())
    assert np.abs(step.after - step.before).max() == pytest.approx(figures.LARGEST_MOVE)

    def spread(degrees):
        return np.mean([abs(np.exp(1j * np.radians(degrees[c == figures.LABELS])).mean()) for c in range(3)])

    assert spread(step.after) > spread(step.before)
