"""The public surface: its names, which are imported when they are used, and its types."""

import os
import subprocess
import sys

import pytest

import tfrank
from tests.command_lines import HANGS, ROOT, run_alone
from tests.programs import printed_json

PUBLIC_USE = "tests/public_use.py"


def test_tab_completion_offers_the_public_names_only():
    assert sorted(dir(tfrank)) == sorted(tfrank.__all__)
    assert all(hasattr(tfrank, name) for name in tfrank.__all__)


def test_parts_that_a_loss_does_not_need_are_imported_when_they_are_used():
    code = """if True:
        import json, sys, tfrank
        parts = ("tfrank.evaluation", "tfrank.callbacks", "tfrank.data")
        before = [part in sys.modules for part in parts]
        addons = tfrank.losses.addons._package_losses.cache_info().misses
        tfrank.evaluation.evaluate, tfrank.callbacks.RetrievalEvaluation, tfrank.data.balanced_batches
        print(json.dumps([before, addons, [part in sys.modules for part in parts]]))
    """
    assert printed_json("-c", code, run=run_alone) == [[False] * 3, 0, [True] * 3]


@pytest.mark.parametrize("backend", ["numpy", pytest.param("jax", marks=pytest.mark.slow)])
def test_keras_on_another_backend_is_refused_in_one_sentence(backend):
    for code in ("import tfrank", "import tfrank.callbacks", "from tfrank.losses import PNPLoss"):
        command = [sys.executable, "-c", code]
        ended = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "KERAS_BACKEND": backend}, capture_output=True, text=True
        )
        assert ended.returncode == 1
        last = ended.stderr.splitlines()[-1]
        assert last.startswith("ImportError: tfrank needs Keras on TensorFlow") and repr(backend) in last
        assert last.endswith(
            "set the environment variable KERAS_BACKEND=tensorflow before Keras is imported."
        )
        assert "During handling" not in ended.stderr


@pytest.mark.slow
def test_what_users_write_has_types_and_runs():
    command = [sys.executable, "-m", "mypy", "--strict", PUBLIC_USE]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS)
    assert checked.returncode == 0, checked.stdout
    assert 0 <= printed_json(PUBLIC_USE, run=run_alone) <= 1


@pytest.mark.slow
def test_a_wrong_type_is_found(tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text("import tfrank\n\ntfrank.evaluation.evaluate([[1.0]], [0]).metrics.upper()\n")
    command = [sys.executable, "-m", "mypy", "--strict", program]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS)
    assert 'has no attribute "upper"' in checked.stdout
