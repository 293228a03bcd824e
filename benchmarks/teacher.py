"""What a small network loses beside a large one, alone, taught by it, and searching in its index.

    python -m benchmarks.teacher --source=images_background_small1.zip
                                 [--config=configs/omniglot.py] [--seeds=3] [--first_seed=0]
                                 [--teacher_steps=300] [--steps=1000] [--students=convnet16]
                                 [--taught=teacher_weight=0,regression_weight=10] [--folder=runs/teacher]

For each seed, `train_main.py` trains the teacher, and each student alone and taught. Runs that are done are
not done again. It prints the size of each model as TensorFlow Lite of eight bits, milliseconds a photo on one
core by that file (the least of 100), Recall@1 and mAP in percent, means over seeds, and which part of what
the student alone loses to the teacher the taught one still loses, with Student's 95 % interval over seeds.
"""

import json
import os
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.runs import run
from experiments.intervals import over_seeds
from tfrank.common.checks import InputError
from tfrank.export import formats

_CONFIG = flags.DEFINE_string("config", "configs/omniglot.py", "The config of all runs.")
_SOURCE = flags.DEFINE_string("source", None, "Data of the config.", required=True)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Number of seeds.", lower_bound=2)
_FIRST = flags.DEFINE_integer("first_seed", 0, "The first seed.", lower_bound=0)
_FOLDER = flags.DEFINE_string("folder", "runs/teacher", "Where the runs go.")
_TEACHER_STEPS = flags.DEFINE_integer("teacher_steps", 300, "Steps of the teacher; -1: by the data.")
_STEPS = flags.DEFINE_integer("steps", 1000, "Steps of a student; -1: by the data.")
_STUDENTS = flags.DEFINE_list("students", ["convnet16"], "Students, of those in STUDENTS.")
_TAUGHT = flags.DEFINE_list(
    "taught", ["teacher_weight=0", "regression_weight=10"], "Fields of config.train of the taught."
)

# The options of each network. The last is for configs/own_images.py: the teacher sees 256 pixels.
STUDENTS = {
    **{f"convnet{filters}": {"model.filters": filters} for filters in (8, 16, 32)},
    **{
        name: {"model.backbone": f"keras/{name}", "data.image_size": 32, "model.preprocessing": "auto"}
        for name in ("MobileNetV3Small", "MobileNetV2-0.35")
    },
    "lite0-128": {"data.image_size": 112, "evaluation.image_size": 128, "train.minutes": 0},
}
INDEX = "queries against the teacher's gallery"


def train(name: str, seed: int, options: dict) -> str:
    """The folder of a run."""
    workdir = os.path.join(os.path.abspath(_FOLDER.value), f"{name}-{seed}")
    usual = {"seed": seed, "data.source": os.path.abspath(_SOURCE.value)}
    usual |= {"train.steps": _STEPS.value, "evaluation.baselines": False}
    run(_CONFIG.value, workdir, usual | options)
    return workdir


def metrics_of(workdir: str, row: str = "trained") -> np.ndarray:
    """Recall@1 and mAP of a row of a run's results, in percent."""
    with open(os.path.join(workdir, "metrics.json")) as file:
        found = json.load(file)[row]
    return 100 * np.array([found["recall_at_1"], found["map"]])


def cost_of(workdir: str) -> tuple[str, str]:
    """Megabytes of the model as TensorFlow Lite of eight bits, and milliseconds an image on one core."""
    try:
        written = formats.write(os.path.join(workdir, "saved_model"), workdir, "tflite_int8")
    except InputError as error:
        print(error)
        return "", ""
    interpreter = tf.lite.Interpreter(written.path, num_threads=1)
    (given,) = interpreter.get_input_details()
    shape = [1, *given["shape_signature"][1:]]
    interpreter.resize_tensor_input(given["index"], shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], np.full(shape, 128, np.float32))
    seconds = []
    for _ in range(100):
        started = time.perf_counter()
        interpreter.invoke()
        seconds.append(time.perf_counter() - started)
    return f"{written.megabytes:.3f}", f"{1000 * min(seconds):.2f}"


def row(name: str, cost: tuple[str, str], values: np.ndarray, kept: list[str]) -> None:
    """Prints a row of the table; `values` are `[seeds, 2]`."""
    means = [f"{mean:.2f}" for mean in values.mean(axis=0)]
    print(f"| {' | '.join([name, *cost, *means, *kept])} |", flush=True)


def runs_of(seed: int) -> dict[str, str]:
    """The folders of the runs of a seed, by the name of the model."""
    found = {"teacher": train("teacher", seed, {"train.steps": _TEACHER_STEPS.value})}
    of_teacher = {"train.teacher": found["teacher"]}
    of_teacher |= {f"train.{field}": value for field, value in (one.split("=") for one in _TAUGHT.value)}
    for student in _STUDENTS.value:
        found[student] = train(student, seed, STUDENTS[student])
        found[f"{student}, taught"] = train(f"{student}-taught", seed, STUDENTS[student] | of_teacher)
    return found


def main(_):
    runs = [runs_of(seed) for seed in range(_FIRST.value, _FIRST.value + _SEEDS.value)]

    def values(model, row="trained"):
        return np.array([metrics_of(run[model], row) for run in runs])

    best = values("teacher")
    print("| model | MB, int8 | ms a photo | Recall@1 | mAP | lost of Recall@1, of that alone | of mAP |")
    print("|---|---|---|---|---|---|---|")
    row("teacher", cost_of(runs[0]["teacher"]), best, ["", ""])
    for student in _STUDENTS.value:
        taught, cost = f"{student}, taught", cost_of(runs[0][student])
        alone = values(student)
        row(f"{student}, not taught", cost, alone, ["", ""])
        for title, found in ((taught, values(taught)), (f"{taught}, teacher's index", values(taught, INDEX))):
            shares = (best - found) / (best - alone)
            row(title, cost, found, [f"{over_seeds(share)} %" for share in shares.T])


if __name__ == "__main__":
    app.run(main)
