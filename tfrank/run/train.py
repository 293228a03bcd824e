"""Trains an embedding model, measures it and exports it.

    python train_main.py [--config=configs/letters.py[:loss]] [--workdir=FOLDER] [--config.field=value ...]

An interrupted run resumes from its last checkpoint when the same command is started again.
"""

import contextlib
import copy
import os

import tensorflow as tf
from absl import flags

from tfrank.common import files
from tfrank.configs.default import Config
from tfrank.evaluation.postprocessing.steps import without_model_steps
from tfrank.evaluation.report import terminal
from tfrank.run import datasets, evaluation_results, experiment, report_writer, settings, verdict
from tfrank.run.dry_run import dry_run
from tfrank.run.embedding import embed_all, embed_fn, raw_input
from tfrank.run.export import export_model
from tfrank.run.matches import learned_matches, match_sentence
from tfrank.run.workdir import check_config_of, check_same_config, default_workdir, save_config
from tfrank.training import cluster

flags.DEFINE_string("config", None, "The config, and its loss: configs/letters.py:smooth_ap")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run. Default: runs/<config>_<data>_<loss>")


def main(config: Config) -> None:
    """Trains by a config, as the flags say."""
    config = settings.resolved(config)
    settings.check_fields(config)
    strategy = experiment.build_strategy(config.train, config.data.batch_size)
    workdir = _WORKDIR.value or default_workdir(config)
    chief = cluster.is_chief(strategy)
    with cluster.together(strategy):
        experiment.check_config(config)
        experiment.check_start(config.model, workdir, baselines=config.evaluation.baselines)
        with files.locked(workdir) if chief else contextlib.nullcontext():
            with cluster.chief_first(strategy):
                (check_config_of if chief else check_same_config)(workdir, config)
                data = datasets.build_data(config.data, workdir, seed=config.seed)
                fitted = settings.fitted(config, data.train.label)
                fitted.data.dim = datasets.vector_dim(config.data, workdir)
                steps = settings.total_steps(fitted.train, fitted.data.batch_size, len(data.train))
                if chief and not config.dry_run:
                    save_config(workdir, config, steps)
            train_and_evaluate(fitted, workdir, strategy, data, steps)


def train_and_evaluate(
    config: Config, workdir: str, strategy: tf.distribute.Strategy, data: datasets.Data, steps: int
) -> None:
    """Trains for `steps` steps, exports the best weights and writes their report."""
    test = evaluation_results.test_set_of(data.test, data.relevance)
    evaluation_results.check_evaluation(config.evaluation, test)
    training = experiment.build_training(config, workdir, strategy, steps, data.train)
    if config.dry_run:
        return dry_run(config, training, data, steps)
    model, baselines = embed_fn(training.serving), {}

    def measure(function):
        embeddings, _ = embed_all(config.data, config.evaluation, function, data.test)
        return evaluation_results.evaluate_embeddings(config.evaluation, embeddings, test, loss=config.loss)

    if config.evaluation.baselines and cluster.is_chief(strategy):
        before = raw_input(config.model, config.data.image_size) | {"start": model}
        for name, function in before.items():
            baselines[name] = measure(function).without_embeddings()
    experiment.train(config, training, data, steps)
    if not cluster.is_chief(strategy):
        return
    paths = {name: os.path.join(workdir, name) for name in ("metrics.json", "saved_model")}
    matches = learned_matches(config.data, config.evaluation, model, data, seed=config.seed)
    export_model(config.data, config.evaluation, training.serving, paths["saved_model"], matches=matches)
    results = measure(model)
    measured = baselines | {"trained": results}
    rows = {name: one.metrics()[one.main_ranking] for name, one in measured.items()}

    print(terminal.table(rows))
    for note in results.notes:
        print(note)
    best = training.trainer.best
    weights = verdict.best_sentence(best, steps) if best else f"The weights of the last step, {steps:,}."
    facts = {"weights": weights} | ({"matches": match_sentence(matches)} if matches else {})
    print("\n".join(facts.values()))
    warnings = verdict.warnings_of(rows, best, verdict.losses_to_judge(config.loss, workdir))
    for warning in warnings:
        print(f"\nWARNING: {warning}")
    files.write_json(paths["metrics.json"], rows)
    # Only eval_main applies the steps that change embeddings, such as whitening.
    done = copy.deepcopy(config.evaluation)
    done.update(**without_model_steps(done.as_dict()))
    about = evaluation_results.about(done, test, model=workdir, search="exact")
    folder = os.path.join(workdir, "evaluation", datasets.test_name(config.data))
    # Files of an earlier evaluation belong to other weights.
    for name in ("embeddings", "whitening", "whitening.npz", "saved_model"):
        files.remove(os.path.join(folder, name))
    *_, page = report_writer.write_evaluation(
        *(folder, config, results, data.test),
        about=about | facts,
        title=workdir,
        warnings=warnings,
        baselines=baselines,
        training=workdir,
    )
    print("\n".join([*paths.values(), page]))
