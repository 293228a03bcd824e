"""A small network that searches in a teacher's index, and may learn from the photos of that index.

    python -m benchmarks.teacher_index --source=FOLDER --teacher=RUN [--teacher=RUN ...]
                                       [--student=lite0-128] [--folder=runs/teacher_index]

FOLDER has folders train and test, with a folder a class in each, as `benchmarks.photos` divides a set. Half
of the photos of each test class are the index, the others its queries. The student is trained alone, taught
on the training photos, and taught on them and on the photos of the index, whose classes it does not know:

- lite0-128: the network of `configs/own_images.py` at 112 pixels, seeing 128; RUN is of that config;
- convnet16: a convnet of 16 filters, by `configs/omniglot.py` in 1,000 steps; RUN is of that config.

With several teachers, trained by seeds 1, 2 and so on, a student of the same seed learns from each. Runs that
are done are not done again. Prints Recall@1 and mAP in percent, by the student's own index and by the
teacher's, means over seeds, and which part of what the student alone loses to the teacher is still lost, with
Student's 95 % interval.
"""

import csv
import glob
import os
import subprocess
import sys

import numpy as np
from absl import app, flags

from benchmarks.runs import ROOT, run
from experiments.intervals import over_seeds

# The config of each student, and its options.
STUDENTS = {
    "lite0-128": (
        "configs/own_images.py",
        {
            "data.image_size": 112,
            "evaluation.image_size": 128,
            "data.fit": "centre",
            # Photos without classes would be among the held out.
            "data.validation_classes": 0,
            "train.minutes": 0,
        },
    ),
    "convnet16": (
        "configs/omniglot.py",
        {
            "model.filters": 16,
            "train.steps": 1000,
            "data.name": "folder",
            "data.train": "train",
            "data.test": "test",
        },
    ),
}

_SOURCE = flags.DEFINE_string("source", None, "Folder of train and test.", required=True)
_TEACHERS = flags.DEFINE_multi_string("teacher", None, "Folder of a teacher's run.", required=True)
_STUDENT = flags.DEFINE_enum("student", "lite0-128", [*STUDENTS], "The small network.")
_FOLDER = flags.DEFINE_string("folder", "runs/teacher_index", "Where lists, records and runs go.")
_SEED = flags.DEFINE_integer("seed", 1, "Seed of the student of the first teacher.")

METRICS = ("recall_at_1", "map")
OWN, IN_TEACHERS = "trained", "queries against the teacher's gallery"
TAUGHT = {"train.teacher_weight": 0, "train.regression_weight": 10}
COLUMNS = ("path", "label", "split", "role")


def lists(source: str) -> tuple[list[tuple], list[tuple], list[tuple]]:
    """The rows of training photos, of test photos, and of those of the index as training photos."""
    draw = np.random.default_rng(0)
    test: list[tuple] = []
    unlabelled: list[tuple] = []
    train = [(path, _class_of(path), "train", "") for path in sorted(glob.glob(f"{source}/train/*/*"))]
    for folder in sorted(glob.glob(f"{source}/test/*")):
        paths = sorted(glob.glob(f"{folder}/*"))
        for place, row in enumerate(draw.permutation(len(paths))):
            of_index = place < len(paths) // 2
            test.append((paths[row], _class_of(paths[row]), "test", "gallery" if of_index else "query"))
            if of_index:
                unlabelled.append((paths[row], "-1", "train", ""))
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


def trained(name: str, seed: int, records: str, test: str, **options: object) -> dict[str, np.ndarray]:
    """Recall@1 and mAP, in percent, by row of the table of a student's run."""
    config, of_student = STUDENTS[_STUDENT.value]
    usual = {"seed": seed, "data.records": records, "data.test_records": test, "evaluation.baselines": False}
    workdir = os.path.join(os.path.abspath(_FOLDER.value), f"{name}-{seed}")
    found = run(config, workdir, usual | of_student | options)
    return {row: 100 * np.array([values[one] for one in METRICS]) for row, values in found.items()}


def runs_of(seed: int, teacher: str, records: tuple[str, str]) -> dict[str, np.ndarray]:
    """Recall@1 and mAP of all models of a seed, by the title of their row."""
    of_train, of_both = records
    taught = {"train.teacher": os.path.abspath(teacher), **TAUGHT}
    # Balanced batches would have a photo of nearly every class, as most classes are one photo.
    on_both = {"data.sampler": "uniform", **taught}
    rows = {"student, not taught": trained("alone", seed, of_train, of_train)[OWN]}
    for title, name, given, options in (
        ("taught", "taught", of_train, taught),
        ("taught, also on the photos of the index", "known", of_both, on_both),
    ):
        found = trained(name, seed, given, of_train, **options)
        rows[f"student, {title}: its own index"] = found[OWN]
        rows[f"student, {title}: the teacher's index"] = found[IN_TEACHERS]
    return rows | {"teacher": found["teacher"]}


def main(_):
    train, test, unlabelled = lists(os.path.abspath(_SOURCE.value))
    records = prepared("train", train + test), prepared("both", train + unlabelled)
    seeds = enumerate(_TEACHERS.value, _SEED.value)
    runs = [runs_of(seed, teacher, records) for seed, teacher in seeds]
    of_rows = {title: np.stack([found[title] for found in runs]) for title in runs[0]}
    best, (alone, *_) = of_rows["teacher"], of_rows.values()
    print("| | Recall@1 | mAP | lost of Recall@1, % of that alone | of mAP |\n|---|---|---|---|---|")
    for title, values in of_rows.items():
        shares = ((best - values) / (best - alone)).T
        lost = [str(over_seeds(share)) if ":" in title else "" for share in shares]
        print(
            f"| {title} | {' | '.join(f'{mean:.1f}' for mean in values.mean(axis=0))} | {' | '.join(lost)} |"
        )


if __name__ == "__main__":
    app.run(main)
