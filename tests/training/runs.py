"""Whole runs as real processes, shared by the tests of training."""

import hashlib
import os
import pathlib
import subprocess
import sys

import tensorflow as tf

ROOT = pathlib.Path(__file__).parents[2]
# The digits run, cut down until it takes a second.
SMALL = (
    "--config.data.train=(0,1)",
    "--config.data.test=(8,9)",
    "--config.data.image_size=8",
    "--config.data.classes_per_batch=6",
    "--config.data.examples_per_class=4",
    "--config.model.filters=8",
    "--config.model.embedding_dim=8",
    "--config.train.log_every=2",
    "--config.train.checkpoint_every=3",
    "--config.evaluation.baselines=False",
)


def start(workdir, *flags, main="train_main.py", **options) -> subprocess.Popen:
    """A process of its own group, so that all of it can be killed."""
    command = [sys.executable, str(ROOT / main), f"--workdir={workdir}", *SMALL, *flags]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(command, start_new_session=True, cwd=ROOT, **options)


def finish(workdir, *flags, main="train_main.py") -> tuple[int, str, str]:
    """Exit status, output and errors of a process that runs to its end."""
    process = start(workdir, *flags, main=main)
    output, errors = process.communicate(timeout=300)
    return process.returncode, output, errors


def state_hashes(workdir) -> dict[str, str]:
    """A hash of every tensor of the latest checkpoint: weights, optimizer slots, seeds, counters."""
    reader = tf.train.load_checkpoint(os.path.join(workdir, "checkpoints"))
    return {
        name: hashlib.sha256(reader.get_tensor(name).tobytes()).hexdigest()
        for name in reader.get_variable_to_shape_map()
        # How often it was saved is no part of the state.
        if not name.startswith(("_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter"))
    }


def logged_steps(workdir) -> list[str]:
    """The lines of training.csv, header left out."""
    return pathlib.Path(workdir, "training.csv").read_text().splitlines()[1:]
