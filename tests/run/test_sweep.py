"""A sweep over fields of a config: what it may search, how it resumes, and its page."""

import csv
import json
import os
import re
import signal
import time
import types

import numpy as np
import optuna
import pytest
import tensorflow as tf

from tests.command_lines import CommandLine, run
from tfrank import InputError
from tfrank.configs import letters, own_embeddings
from tfrank.run import sweep, sweep_page
from tfrank.run.sweep_space import Searched, flags_of, parse, with_values


def test_ranges_and_choices_have_the_types_of_their_fields():
    words = ["train.learning_rate=1e-5..1e-2:log", "config.data.classes_per_batch=8..16"]
    words += ["train.optimizer=adam,sgd", "train.xla=True,False", "train.l2=0,1e-4"]
    assert parse(words, letters.get_config()) == [
        Searched("train.learning_rate", (), 1e-5, 1e-2, True),
        Searched("data.classes_per_batch", (), 8, 16),
        Searched("train.optimizer", ("adam", "sgd")),
        Searched("train.xla", (True, False)),
        Searched("train.l2", (0.0, 1e-4)),
    ]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("train.learning_rat=1..2", 'Did you mean "train.learning_rate"'),
        ("train.learning_rate", "is none of"),
        ("train.learning_rate=2..1", "is no range"),
        ("train.learning_rate=0..1:log", "begins above 0"),
        ("train.learning_rate=0..x", "are numbers"),
        ("train.warmup_steps=0.5..2", "are whole numbers"),
        ("train.optimizer=1..2", "List its values"),
        ("train.no_decay=bias,gamma", "cannot be searched"),
        ("data.validation_classes=1..2", "cannot be searched"),
        ("evaluation.nmi=True,False", "cannot be searched"),
        ("train.xla=maybe", "true or false"),
    ],
)
def test_what_cannot_be_searched_is_one_line(word, said):
    with pytest.raises(InputError, match=re.escape(said)):
        parse([word], letters.get_config())


def test_the_values_of_a_trial_are_those_of_the_printed_command():
    values = {"train.learning_rate": 0.00012345678901234, "loss.alpha": 2.5, "train.optimizer": "sgd"}
    config = with_values(own_embeddings.get_config(), values)
    assert (config.train.learning_rate, config.loss.alpha, config.train.optimizer) == tuple(values.values())
    assert flags_of(values)[0] == "--config.train.learning_rate=0.00012345678901234"


def test_the_page_names_the_best_trial_and_the_field_that_matters(tmp_path):
    study = optuna.create_study(direction="maximize")

    def objective(trial):
        x, y = trial.suggest_float("loss.x", 0, 1), trial.suggest_categorical("train.<y>", ["a", "b"])
        trial.report(x / 2, 1)
        if trial.number == 5:
            trial.report(0.0, 2)
            raise optuna.TrialPruned
        return x + 0.01 * (y == "a")

    study.sampler = optuna.samplers.RandomSampler(seed=0)
    study.optimize(objective, n_trials=20)
    assert next(iter(sweep_page.importances(study))) == "loss.x"
    *_, table = sweep_page.write(study, study.best_trial, str(tmp_path), command="tfrank train <it>")
    html = (tmp_path / "sweep.html").read_text()
    assert f"{study.best_value:.4f}" in html and "19 finished, 1 stopped" in html
    assert "tfrank train &lt;it&gt;" in html and "train.&lt;y&gt;" in html and "<it>" not in html
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20 and rows[5]["state"] == "stopped"
    assert float(rows[5]["validation_map"]) == study.trials[5].intermediate_values[1]


def test_values_that_are_paths_are_no_range():
    weights = Searched("model.weights", ("../a.h5", "../b.h5"))
    assert parse(["model.weights=../a.h5,../b.h5"], letters.get_config()) == [weights]


def test_each_folder_has_a_database_of_its_own_whatever_it_is_called(tmp_path):
    for name in ("lr 1", "lr%201", "q?a", "q?b", "a?timeout=5"):
        folder = tmp_path / name
        folder.mkdir()
        study = sweep.open_study(str(folder), letters.get_config(), [])
        assert not study.trials and (folder / "trials.db").exists()
        study.tell(study.ask(), 0.5)


def test_a_trial_without_enough_memory_has_failed_and_the_next_one_is_tried(tmp_path, monkeypatch, capsys):
    config, (searched,) = letters.get_config(), parse(["train.l2=0,1,2"], letters.get_config())
    seen = []

    def train(config, *_):
        seen.append(config.train.l2)
        if len(seen) < 3:
            raise (
                tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
                if seen[1:]
                else MemoryError
            )
        return 0.5

    monkeypatch.setattr(sweep, "_train", train)
    monkeypatch.setattr(sweep, "_TRIALS", types.SimpleNamespace(value=3))
    study = sweep.open_study(str(tmp_path), config, [searched])
    sweep.run_trials(study, config, [searched], str(tmp_path), None, None)
    printed = capsys.readouterr().out
    assert len(seen) == 3 and printed.count("failed: There was not enough memory.") == 2
    assert "trial 3/3: validation mAP 0.5000" in printed


def test_a_trial_that_ends_the_process_again_and_again_has_failed(tmp_path, monkeypatch, capsys):
    config, (searched,) = letters.get_config(), parse(["train.l2=0,1,2"], letters.get_config())
    monkeypatch.setattr(sweep, "_TRIALS", types.SimpleNamespace(value=2))

    def tried(stopped=False):
        """The values of the trial that a sweep begins with, after which its process ends."""
        study = sweep.open_study(str(tmp_path), config, [searched])
        sweep._begin(study, config, [searched])
        if stopped:
            monkeypatch.setattr(sweep, "_train", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                sweep.run_trials(study, config, [searched], str(tmp_path), None, None)
            return None
        return searched.suggest(study.ask()), sweep.finished(study)

    first = tried()[0]
    for _ in range(3):  # By somebody who goes on later.
        tried(stopped=True)
    assert [tried() for _ in range(2)] == [(first, [])] * 2
    _, (failed,) = tried()
    assert failed.params == {"train.l2": first} and "ended 3 times" in failed.user_attrs["error"]
    assert "trial 1/2: failed: The process ended 3 times" in capsys.readouterr().out


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """A sweep on 30 classes of vectors, whose trials take a second or two."""
    draw = np.random.default_rng(0)
    centres, labels = draw.normal(size=(30, 16)), np.arange(30).repeat(8)
    path = tmp_path_factory.mktemp("vectors") / "features.npz"
    np.savez(path, embeddings=centres[labels] + 1.2 * draw.normal(size=(240, 16)), labels=labels)
    fields = (f"data.source={path}", "model.embedding_dim=8", "train.steps=4", "train.learning_rate=0.001")
    return [
        *("-m", "tfrank", "sweep", "--config=configs/own_embeddings.py", "--trials=4"),
        *("--sweep=train.learning_rate=1e-5..1e-1:log", "--sweep=train.optimizer=adam,sgd"),
        *(f"--config.{field}" for field in fields),
    ]


def values_of(folder):
    with open(folder / "trials.csv", newline="") as file:
        return [
            (row["state"], row["validation_map"], row["train.learning_rate"], row["train.optimizer"])
            for row in csv.DictReader(file)
        ]


@pytest.mark.slow
def test_a_sweep_that_is_killed_resumes_and_ends_as_one_that_is_not(flags, tmp_path):
    status, printed, errors = run(*flags, f"--workdir={tmp_path / 'whole'}")
    assert (status, errors) == (0, ""), errors
    assert "trial 4/4" in printed and "tfrank train --config=configs/own_embeddings.py" in printed
    killed = tmp_path / "killed"
    process = CommandLine(*flags, f"--workdir={killed}")
    log = killed / "training.log"
    while not log.exists() or "Trial 2" not in log.read_text():
        assert process.poll() is None, process.written()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    status, printed, errors = run(*flags, f"--workdir={killed}")
    assert (status, errors) == (0, "") and "trial 1/4" not in printed and "trial 2/4" in printed
    assert values_of(killed) == values_of(tmp_path / "whole")
    first = values_of(killed)[0]
    assert first[2:] == ("0.001", "adam")  # The config's own.
    status, _, errors = run(*flags, "--config.train.l2=0.1", f"--workdir={killed}")
    assert status == 1 and "has another config.train.l2" in errors


@pytest.mark.slow
def test_a_sweep_without_held_out_classes_is_one_line(flags, tmp_path):
    none = ("--config.data.validation_classes=0", f"--workdir={tmp_path}")
    status, _, errors = run(*flags, *none)
    assert status == 1 and "config.data.validation_classes" in errors and len(errors.splitlines()) == 1
    assert "trial" not in json.dumps(os.listdir(tmp_path / "records"))


@pytest.mark.slow
def test_a_sweep_tries_weights_of_a_teacher(flags, tmp_path):
    (source,) = (word.split("=", 1)[1] for word in flags if "data.source" in word)
    teacher = f"--config.train.teacher={source}"
    words = (teacher, "--config.train.teacher_weight=0", "--sweep=train.relational_weight=1,2", "--trials=2")
    kept = [word for word in flags if not word.startswith("--sweep=")]
    status, printed, errors = run(*kept, *words, f"--workdir={tmp_path}")
    assert (status, errors) == (0, ""), errors
    assert "trial 2/2" in printed and "failed" not in printed and "relational_weight" in printed
