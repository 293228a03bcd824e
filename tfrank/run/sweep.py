"""Searches fields of a config: trains many times, and compares by mAP on held-out training classes.

    tfrank sweep --config=configs/own_embeddings.py --config.data.source=features.npz \\
        --sweep=train.learning_rate=1e-5..1e-2:log --sweep=loss.alpha=1..8 --trials=40

The first trial has the values of the config. Optuna (extra `tune`) proposes the others by what the trials
before have reached, and a trial that is below the median of the others at the same step is stopped. The test
set is not looked at. A sweep that was stopped, however, resumes with the same command; the trial that was
under way is taken again. `sweep.html` in the folder of the sweep has the curves, what each field matters, and
the command that trains with the best values.
"""

import contextlib
import copy
import functools
import gc
import itertools
import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

import keras
import optuna
import tensorflow as tf
from absl import flags
from optuna.trial import TrialState

from tfrank.common import files, json_files
from tfrank.common.checks import InputError
from tfrank.configs.default import Config
from tfrank.configs.fields import fields_of, flatten, tree
from tfrank.run import config_flag, datasets, experiment, other_models, settings, sweep_page
from tfrank.run.datasets import Data
from tfrank.run.fit import choose_fit
from tfrank.run.sweep_page import ERROR, finished
from tfrank.run.sweep_space import Searched, flags_of, parse, with_values
from tfrank.run.workdir import default_workdir
from tfrank.training.trackers import Rows, Tracker
from tfrank.training.trainer import CHOSEN_BY

flags.DEFINE_string("config", None, "The config, and its loss: configs/letters.py:smooth_ap")
_SWEEP = flags.DEFINE_multi_string(
    "sweep",
    [],
    "A field and its values: train.learning_rate=1e-5..1e-2:log, loss.alpha=1..8 or train.optimizer=adam,sgd."
    " Repeat the flag for several fields.",
)
_TRIALS = flags.DEFINE_integer("trials", 40, "Number of trials, with those of before.", lower_bound=1)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the sweep. Default: sweeps/<config>_<data>_<loss>")

# The config if none is given.
DEFAULT = "configs/letters.py"
# Finished trials before the first one may be stopped, and the share of the steps that each takes anyway.
TRIALS_BEFORE_PRUNING, PRUNED_FROM = 5, 0.3
# How often the process may end while the same values are tried; the attributes of a trial that count it, and
# that say that somebody stopped the sweep.
MOST_ENDS, ENDS, STOPPED = 3, "ends", "stopped"
METRIC = f"validation_{CHOSEN_BY}"


class _Pruning(Tracker):
    """Tells a trial the mAP of each evaluation; raises `TrialPruned` where it is below the median.

    Args:
        trial: the trial.
        begin: the step from which on it may be stopped: before, a start says little of the end.
    """

    def __init__(self, trial: optuna.Trial, *, begin: int):
        self._trial, self._begin = trial, begin

    def scalars(self, rows: Rows) -> None:
        """Takes the values of steps."""
        for step, values in rows.items():
            if METRIC in values:
                self._trial.report(values[METRIC], step)
                if step >= self._begin and self._trial.should_prune():
                    raise optuna.TrialPruned


def main(config: Config) -> None:
    """Searches, as the flags say."""
    searched = parse(_SWEEP.value, config)
    base = settings.resolved(config)
    settings.check_fields(base)
    for one in searched:
        for value in one.ends():
            tried = settings.resolved(with_values(config, {one.field: value}))
            settings.check_new(tried)
            experiment.check_config(tried)
    if base.train.strategy == "multi_worker":
        raise InputError("A sweep runs on one machine. Set config.train.strategy.")
    workdir = _WORKDIR.value or os.path.join("sweeps", os.path.basename(default_workdir(base)))
    # TensorFlow warns of functions that are traced anew; each trial has its own.
    tf.get_logger().setLevel("ERROR")
    strategy = experiment.build_strategy(base.train, 0)
    experiment.check_start(base.model, workdir, baselines=False)
    with files.locked(workdir):
        study = open_study(workdir, config, searched)
        unlabelled = bool(base.train.teacher)
        data = datasets.build_data(base.data, workdir, seed=base.seed, unlabelled=unlabelled)
        if data.validation is None:
            raise InputError(
                "A sweep compares by training classes that are held out, and there are none. Set"
                " config.data.validation_classes."
            )
        if config.data.fit == "auto":
            config.data.fit = choose_fit(base, data.train)
        _begin(study, base, searched)
        run_trials(study, config, searched, workdir, strategy, data)
        _end(study, workdir)


def open_study(workdir: str, config: Config, searched: list[Searched]) -> optuna.Study:
    """Opens the study of a folder; raises InputError if it searches something else."""
    path = os.path.join(workdir, "sweep.json")
    asked = {"config": tree(config), "sweep": [list(map(_plain, one)) for one in searched]}
    if os.path.exists(path):
        known = json_files.read(path, json_files.dict_of(json_files.anything), "Choose another --workdir.")
        if known != asked:
            before, now = flatten({"": known}), flatten({"": asked})
            changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
            named = [f"{key[1:]} ({before.get(key)} then, {now.get(key)} now)" for key in changed]
            raise InputError(
                f"The sweep in {workdir} has another {' and '.join(named)}. Choose another --workdir, or the"
                " values of then."
            )
    else:
        files.write_json(path, asked)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # A journal whose end was cut off by a kill could not be read again; a database rolls back.
    # By its path, as an address would read ? and % in it otherwise.
    connect = functools.partial(sqlite3.connect, os.path.join(workdir, "trials.db"))
    storage = optuna.storages.RDBStorage("sqlite://", engine_kwargs={"creator": connect})
    pruner = optuna.pruners.MedianPruner(n_startup_trials=TRIALS_BEFORE_PRUNING)
    return optuna.create_study(
        storage=storage, study_name="sweep", direction="maximize", pruner=pruner, load_if_exists=True
    )


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


def _begin(study: optuna.Study, base: Config, searched: list[Searched]) -> None:
    """Puts the config's own values first, and again the values of a trial that was under way.

    A trial that was under way when the process ended `MOST_ENDS` times, and nobody stopped it, has failed.
    """
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
        ends = trial.user_attrs.get(ENDS, 0) + (STOPPED not in trial.user_attrs)
        if ends < MOST_ENDS:
            study.enqueue_trial(trial.params, user_attrs={ENDS: ends})
            continue
        said_why = f"The process ended {ends} times while it was tried. Did the memory suffice?"
        failed = optuna.trial.create_trial(
            state=TrialState.FAIL,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={ERROR: said_why},
        )
        study.add_trial(failed)
        print(f"trial {len(finished(study))}/{_TRIALS.value}: failed: {said_why}", flush=True)
    values = {field.path: field.value for field in fields_of(base)}
    if not study.trials and all(one.has(values[one.field]) for one in searched):
        study.enqueue_trial({one.field: values[one.field] for one in searched})


def run_trials(
    study: optuna.Study,
    config: Config,
    searched: list[Searched],
    workdir: str,
    strategy: tf.distribute.Strategy,
    data: Data,
) -> None:
    """Runs trials up to the number that the flag says, those of before included."""
    while (number := len(finished(study)) + 1) <= _TRIALS.value:
        # A resumed sweep proposes as one that was not stopped would have.
        study.sampler = optuna.samplers.TPESampler(seed=config.seed + number)
        trial = study.ask()
        values = {one.field: one.suggest(trial) for one in searched}
        said = "  ".join(f"{field}={sweep_page.short(value)}" for field, value in values.items())
        folder = os.path.join(workdir, "trial")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            with open(os.path.join(workdir, "training.log"), "a") as log, contextlib.redirect_stdout(log):
                print(f"\nTrial {number}: {said}")
                value = _train(with_values(config, values), folder, strategy, data, trial)
            study.tell(trial, value)
            result = f"validation mAP {value:.4f}"
        except KeyboardInterrupt:
            trial.set_user_attr(STOPPED, True)
            raise
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED)
            result = f"stopped at step {study.trials[-1].last_step:,}, below the median"
        except (InputError, MemoryError, tf.errors.ResourceExhaustedError) as error:
            said_why = str(error) if isinstance(error, InputError) else "There was not enough memory."
            trial.set_user_attr(ERROR, said_why)
            study.tell(trial, state=TrialState.FAIL)
            result = f"failed: {said_why}"
        print(f"trial {number}/{_TRIALS.value}: {result}  {said}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        keras.backend.clear_session()
        gc.collect()


def _train(
    config: Config, folder: str, strategy: tf.distribute.Strategy, data: Data, trial: optuna.Trial
) -> float:
    """Trains in a folder; returns the best mAP on the validation classes."""
    config = settings.resolved(copy.deepcopy(config))
    settings.check_fields(config)
    experiment.check_config(config)
    os.makedirs(folder)
    shared = os.path.join(os.path.dirname(folder), "features")
    os.makedirs(shared, exist_ok=True)
    os.symlink(os.path.abspath(shared), os.path.join(folder, "features"))
    fitted = settings.fitted(config, data.train.label)
    fitted.data.dim = datasets.vector_dim(config.data, os.path.dirname(folder))
    steps = settings.total_steps(fitted.train, fitted.data.batch_size, len(data.train))
    pruning = _Pruning(trial, begin=round(PRUNED_FROM * steps))
    data, _ = other_models.with_others(fitted, data, os.path.dirname(folder))
    training = experiment.build_training(
        fitted, folder, strategy, steps, data.train, data.stored, trackers=[pruning]
    )
    experiment.train(fitted, training, data, steps)
    assert training.trainer.best
    return training.trainer.best.value


def _end(study: optuna.Study, workdir: str) -> None:
    """Writes the page and prints the best trial and the command that trains with its values."""
    best = sweep_page.best_of(study)
    if not best:
        *_, last = finished(study)
        raise InputError(f"All trials failed. The last: {last.user_attrs.get(ERROR, 'it was stopped.')}")
    command = train_command(flags.FLAGS.config or DEFAULT, sys.argv[1:], best.params)
    for line in sweep_page.write(study, best, workdir, command=command):
        print(line)
    print(f"Best: validation mAP {best.value:.4f}. Train with it, and see the test set for the first time:")
    print(command)


def train_command(config: str, argv: Sequence[str], values: dict[str, Any]) -> str:
    """Returns the command that trains with a config, the fields of a command line, and values of a sweep.

    >>> train_command(DEFAULT, ["--trials=9", "--config.loss.beta", "-1"], {"train.l2": 0.1})
    'tfrank train --config=configs/letters.py --config.loss.beta -1 --config.train.l2=0.1'
    """
    fields = []
    for word, following in itertools.pairwise([*argv, "-"]):
        if word.startswith(("--config.", "-config.", "--noconfig.", "-noconfig.")):
            fields.append(word)
            # A field and its value may be two words, and the value may be negative.
            is_value = not following.startswith("-") or following[1:2].isdigit()
            fields += [following] * ("=" not in word and is_value)
    return shlex.join(["tfrank", "train", f"--config={config}", *fields, *flags_of(values)])


def command() -> None:
    """The command tfrank sweep."""
    config_flag.run(main, lambda: config_flag.found(DEFAULT))
