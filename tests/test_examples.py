"""The examples run, at a small size, and print what they promise."""

import re

import pytest

from tests.command_lines import run_alone


@pytest.mark.slow
def test_the_example_of_keras_io_prints_recall_and_map_of_each_loss_and_the_confusion(tmp_path):
    small = ("--images=12000", "--copies=4")
    status, printed, errors = run_alone("examples/image_similarity_search.py", *small)
    assert status == 0, errors
    assert "560 images to train on, 280 to test on" in printed
    found = re.findall(r"Recall@1 (0\.\d+)  mAP (0\.\d+)", printed)
    # Of ten classes, chance finds a tenth.
    assert len(found) == 3 and float(found[0][0]) > 0.5 and float(found[2][0]) > 0.5
    rows = [list(map(int, re.findall(r"\d+", line))) for line in printed.splitlines()[-10:]]
    assert all(len(row) == 10 and 95 <= sum(row) <= 105 for row in rows)


@pytest.mark.slow
def test_the_example_of_tables_trains_a_head_that_finds_rows_of_machines_it_has_not_seen(tmp_path):
    status, printed, errors = run_alone("examples/tables.py", f"--folder={tmp_path}", "--steps=100")
    assert status == 0, errors
    rows = dict(re.findall(r"^(vectors|start|trained) .* (0\.\d+)$", printed, re.MULTILINE))
    assert float(rows["trained"]) > 1.5 * float(rows["vectors"])
    assert (tmp_path / "run" / "model_card.md").exists()
