"""Runs of `train_main.py` that benchmarks compare, each in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(
    config: str, workdir: str, options: Mapping[str, Any], *, threads: int = 0, log: str = os.devnull
) -> dict[str, dict[str, float]]:
    """Trains, if the run is not done yet; returns its metrics by model.

    Args:
        config: the file of the config, and its loss: `configs/omniglot.py:pnp`.
        workdir: folder of the run, as an absolute path.
        options: fields of the config, by their paths without `config.`.
        threads: how many the run computes with; 0: one for each core.
        log: path of the file to which its output goes.
    """
    results = os.path.join(workdir, "metrics.json")
    if not os.path.exists(results):
        command = [sys.executable, "train_main.py", f"--config={config}", f"--workdir={workdir}"]
        command += [f"--config.{field}={value}" for field, value in options.items()]
        limits = dict.fromkeys(["TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"], str(threads)) if threads else {}
        with open(log, "w") as file:
            subprocess.run(command, cwd=ROOT, env=os.environ | limits, check=True, stdout=file)
    with open(results) as file:
        return json.load(file)
