"""Rows of a table: which were measured on the same machine? A head on the rows, by `own_embeddings`.

    python examples/tables.py [--folder=runs/tables]

A row has 36 measurements, here simulated so that nothing is downloaded: a signature of the machine, hidden
below what load, temperature and operator do to every column. The rows of 30 machines train a head by PNP. The
other 30, which the head has never seen, test it: the table compares the rows as they are with the head before
and after training. Embeddings of sentences, sounds or molecules are used in the same way: write them to an
.npz file with `embeddings`, `[rows, columns]`, and `labels`.
"""

import argparse
import os
import subprocess
import sys

import numpy as np

MACHINES, ROWS, COLUMNS, CONDITIONS = 60, 30, 36, 8


def measurements(seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Returns standardised rows, `[machines * rows, columns]`, and the machine of each."""
    draw = np.random.default_rng(seed)
    machine = np.arange(MACHINES).repeat(ROWS)
    signature = draw.normal(size=(MACHINES, 12))[machine] @ draw.normal(size=(12, COLUMNS))
    conditions = 4 * draw.normal(size=(len(machine), CONDITIONS)) @ draw.normal(size=(CONDITIONS, COLUMNS))
    rows = signature + conditions + 2 * draw.normal(size=(len(machine), COLUMNS))
    return (rows - rows.mean(axis=0)) / rows.std(axis=0), [f"machine {number:02d}" for number in machine]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--folder", default="runs/tables")
    arguments.add_argument("--steps", type=int, default=300)
    options = arguments.parse_args()
    rows, labels = measurements()
    os.makedirs(options.folder, exist_ok=True)
    path = os.path.join(options.folder, "features.npz")
    np.savez(path, embeddings=rows.astype(np.float32), labels=labels)
    fields = {
        "data.source": path,
        "model.embedding_dim": COLUMNS,
        "train.learning_rate": 3e-3,
        "train.start_share": 0.0,
        "train.steps": options.steps,
    }
    command = [sys.executable, "-m", "tfrank", "train", "--config=configs/own_embeddings.py"]
    command += [f"--workdir={os.path.join(options.folder, 'run')}"]
    sys.exit(subprocess.call(command + [f"--config.{name}={value}" for name, value in fields.items()]))


if __name__ == "__main__":
    main()
