"""What the commands print is theirs: none of TensorFlow's own lines, unless they are asked for."""

import os
import subprocess
import sys

import pytest

from tests.command_lines import HANGS, ROOT
from tests.data import png
from tests.training.runs import SMALL
from tfrank.evaluation.nearest.scann_probe import scann_problem

pytestmark = pytest.mark.slow

TRAIN = [str(ROOT / "train_main.py"), *SMALL, "--workdir=run", "--config.train.steps=4"]
VALIDATED = ["--config.data.validation_classes=6", "--config.train.evaluate_every=2"]
EVALUATE = [str(ROOT / "eval_main.py"), "--workdir=run", "--config.evaluation.whitening=0.25"]
COMPILE = "import tfrank; tfrank.PNPLoss()([0, 0], [[1.0], [1.0]])"


def errors_of(folder, *arguments, **variables):
    """What `python ARGUMENTS` prints to stderr, in a shell where nothing is set but these variables."""
    environment = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}
    environment |= {"PYTHONPATH": str(ROOT), **variables}
    process = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert process.returncode == 0, process.stderr
    return process.stderr


SCANN = """
import numpy as np
from tfrank.evaluation import ScannIndex
print(ScannIndex.build(np.random.default_rng(0).normal(size=(400, 8)), method="tree").settings.method)
"""


@pytest.mark.skipif(bool(scann_problem()), reason="ScaNN cannot be used")
def test_scann_prints_nothing_of_its_own(tmp_path):
    assert errors_of(tmp_path, "-c", SCANN) == ""


def test_a_run_its_evaluation_and_a_preparation_leave_stderr_empty(tmp_path):
    assert errors_of(tmp_path, *TRAIN, *VALIDATED) == ""
    assert errors_of(tmp_path, *EVALUATE, "--search=scann", "--export") == ""
    for number in range(12):
        path = tmp_path / "photos" / f"class {number % 4}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    source = ["--source=folder", "--source_dir=photos", "--output_dir=records", "--processes=2"]
    assert errors_of(tmp_path, "-m", "tfrank.data.prepare", *source) == ""


def test_the_lines_are_there_again_where_they_are_asked_for(tmp_path):
    assert errors_of(tmp_path, "-c", COMPILE) == ""
    assert "Compiled cluster using XLA" in errors_of(tmp_path, "-c", COMPILE, TF_CPP_MIN_LOG_LEVEL="0")
