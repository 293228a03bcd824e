"""A small network that searches in a teacher's index, and may learn from the photos of that index.

    python -m benchmarks.teacher_index --source=FOLDER --teacher=RUN [--folder=runs/teacher_index]

FOLDER has folders train and test, with a folder a class in each, as `benchmarks.photos` divides a set; RUN is
a run of `configs/own_images.py` on it. Half of the photos of each test class are the index, the others its
queries. The student is the same network, trained at 112 pixels and seeing 128: alone, taught on the training
photos, and taught on them and on the photos of the index, whose classes it does not know. Runs that are done
are not done again. Prints Recall@1 and mAP in percent, by the student's own index and by the teacher's.
"""

import csv
import glob
import os
import subprocess
import sys

import numpy as np
from absl import app, flags

from benchmarks.runs import ROOT, run

_SOURCE = flags.DEFINE_string("source", None, "Folder of train and test.", required=True)
_TEACHER = flags.DEFINE_string("teacher", None, "Folder of the teacher's run.", required=True)
_FOLDER = flags.DEFINE_string("folder", "runs/teacher_index", "Where lists, records and runs go.")
_SEED = flags.DEFINE_integer("seed", 1, "Seed of the runs.")

STUDENT = {
    "data.image_size": 112,
    "evaluation.image_size": 128,
    "data.fit": "centre",
    # Photos without classes would be among the held out.
    "data.validation_classes": 0,
    "evaluation.baselines": False,
    "train.minutes": 0,
}
TAUGHT = {"train.teacher_weight": 0, "train.regression_weight": 10}
COLUMNS = ("path", "label", "split", "role")


def lists(source: str) -> tuple[list[tuple], list[tuple], list[tuple]]:
    """The rows of training photos, of test photos, and of those of the index as training photos."""
    draw, test, unlabelled = np.random.default_rng(0), [], []
    train = [(path, _class_of(path), "train", "") for path in sorted(glob.glob(f"{source}/train/*/*"))]
    for folder in sorted(glob.glob(f"{source}/test/*")):
        paths = sorted(glob.glob(f"{folder}/*"))
        for place, row in enumerate(draw.permutation(len(paths))):
            of_index = place < len(paths) // 2
            test.append((paths[row], _class_of(paths[row]), "test", "gallery" if of_index else "query"))
            if of_index:
                unlabelled.append((paths[row], f"unlabelled {len(unlabelled)}", "train", ""))
    return train, test, unlabelled


def _class_of(path):
    return "/".join(path.split(os.sep)[-3:-1])


def prepared(name: str, rows: list[tuple]) -> str:
    """The folder of the records of some photos."""
    folder = os.path.abspath(_FOLDER.value)
    os.makedirs(folder, exist_ok=True)
    path, records = os.path.join(folder, f"{name}.csv"), os.path.join(folder, f"records-{name}")
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    command = [sys.executable, "-m", "tfrank.data.prepare", "--source=csv", f"--source_dir={path}"]
    subprocess.run([*command, f"--output_dir={records}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return records


def trained(name: str, records: str, test: str, **options: object) -> dict[str, dict[str, float]]:
    """The metrics of a student by row of its table."""
    usual = {"seed": _SEED.value, "data.records": records, "data.test_records": test, **STUDENT}
    return run("configs/own_images.py", os.path.join(os.path.abspath(_FOLDER.value), name), usual | options)


def show(title: str, found: dict[str, float]) -> None:
    """Prints a row."""
    print(f"{title:60}{100 * found['recall_at_1']:8.1f}{100 * found['map']:8.1f}", flush=True)


def main(_):
    train, test, unlabelled = lists(os.path.abspath(_SOURCE.value))
    of_train, of_both = prepared("train", train + test), prepared("both", train + unlabelled)
    taught = {"train.teacher": os.path.abspath(_TEACHER.value), **TAUGHT}
    # Balanced batches would have a photo of nearly every class, as most classes are one photo.
    on_both = {"data.sampler": "uniform", **taught}
    print(f"{'':60}{'Recall@1':>8}{'mAP':>8}")
    show("student, not taught", trained("alone", of_train, of_train)["trained"])
    for title, name, records, options in (
        ("taught", "taught", of_train, taught),
        ("taught, also on the photos of the index", "known", of_both, on_both),
    ):
        found = trained(name, records, of_train, **options)
        show(f"student, {title}: its own index", found["trained"])
        show(f"student, {title}: the teacher's index", found["queries against the teacher's gallery"])
    show("teacher", found["teacher"])


if __name__ == "__main__":
    app.run(main)
