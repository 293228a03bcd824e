"""Trains an embedding model, measures it and exports it.

    python train_main.py [--config=configs/letters.py[:loss]] [--workdir=FOLDER] [--config.field=value ...]

An interrupted run resumes from its last checkpoint when the same command is started again.
"""

import contextlib
import copy
import functools
import os
import time
from collections.abc import Mapping, Sequence

import tensorflow as tf
from absl import flags

from tfrank.common import files
from tfrank.configs.default import Config
from tfrank.configs.sections import Evaluation
from tfrank.evaluation.postprocessing.steps import without_model_steps
from tfrank.evaluation.protocols import TestSet
from tfrank.evaluation.report import terminal
from tfrank.export import model_card
from tfrank.run import (
    comparison,
    datasets,
    evaluation_results,
    experiment,
    other_models,
    report_writer,
    settings,
    verdict,
)
from tfrank.run.dry_run import dry_run
from tfrank.run.embedding import embed_all, embed_fn, raw_input
from tfrank.run.export import export_model
from tfrank.run.fit import choose_fit
from tfrank.run.matches import learned_matches, match_sentence
from tfrank.run.near_copies import sentences_on_copies
from tfrank.run.shorter import measure_shorter, sample_of, shorter_dims
from tfrank.run.time_limit import within_minutes
from tfrank.run.workdir import (
    LENGTH,
    as_begun,
    check_config_of,
    check_same_config,
    default_workdir,
    save_config,
    steps_saved,
)
from tfrank.training import cluster

flags.DEFINE_string("config", None, "The config, and its loss: configs/letters.py:smooth_ap")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run. Default: runs/<config>_<data>_<loss>")


def main(config: Config) -> None:
    """Trains by a config, as the flags say."""
    started = time.monotonic()
    config = settings.resolved(config)
    settings.check_fields(config)
    strategy = experiment.build_strategy(config.train, config.data.batch_size)
    workdir = _WORKDIR.value or default_workdir(config)
    chief = cluster.is_chief(strategy)
    with cluster.together(strategy):
        experiment.check_config(config)
        if not steps_saved(workdir):
            settings.check_new(config)
        experiment.check_start(config.model, workdir, baselines=config.evaluation.baselines)
        with files.locked(workdir) if chief else contextlib.nullcontext():
            with cluster.chief_first(strategy):
                config = as_begun(workdir, config)
                (check_config_of if chief else check_same_config)(workdir, config)
                taught = bool(config.train.teacher)
                data = datasets.build_data(config.data, workdir, seed=config.seed, unlabelled=taught)
                for said in sentences_on_copies(data):
                    print(said, flush=True)
                if config.data.fit == "auto":
                    config.data.fit = choose_fit(config, data.train)
                limit = functools.partial(within_minutes, config, data=data, started=started)
                fitted = settings.fitted(config, data.train.label, limit=limit)
                if config.train.minutes:
                    # A resumed run does not time the machine again.
                    length = {name: getattr(fitted.train, name) for name in LENGTH}
                    config.train.update(**length)
                fitted.data.dim = datasets.vector_dim(config.data, workdir)
                steps = settings.total_steps(fitted.train, fitted.data.batch_size, len(data.train))
                data, others = other_models.with_others(fitted, data, workdir)
                if chief and not config.dry_run:
                    save_config(workdir, config, steps)
            train_and_evaluate(fitted, workdir, strategy, data, steps, others)


def train_and_evaluate(
    config: Config,
    workdir: str,
    strategy: tf.distribute.Strategy,
    data: datasets.Data,
    steps: int,
    others: Mapping[str, other_models.OtherModel],
) -> None:
    """Trains for `steps` steps, exports the best weights and writes their report."""
    test = evaluation_results.test_set_of(data.test, data.relevance)
    folder = os.path.join(workdir, "evaluation", datasets.test_name(config.data))
    check(config.evaluation, test, folder)
    training = experiment.build_training(config, workdir, strategy, steps, data.train, data.stored)
    if config.dry_run:
        return dry_run(config, training, data, steps)
    dims = shorter_dims(config, training.serving.output_shape[-1])
    model, baselines = embed_fn(training.serving), {}

    def embed(function, index):
        return embed_all(config.data, config.evaluation, function, index)[0]

    def measure(embeddings):
        return evaluation_results.evaluate_embeddings(config.evaluation, embeddings, test, loss=config.loss)

    if config.evaluation.baselines and cluster.is_chief(strategy):
        for name, function in (raw_input(config.model, config.data.image_size) | {"start": model}).items():
            baselines[name] = measure(embed(function, data.test)).without_embeddings()
    experiment.train(config, training, data, steps)
    if not cluster.is_chief(strategy):
        return
    paths = {name: os.path.join(workdir, name) for name in ("metrics.json", "saved_model")}
    matches = learned_matches(config.data, config.evaluation, model, data, seed=config.seed, dims=dims)
    export_model(config.data, config.evaluation, training.serving, paths["saved_model"], matches=matches)
    embeddings = embed(model, data.test)
    results = measure(embeddings)
    shorter = measure_shorter(config, embeddings, test, lambda: embed(model, sample_of(config, data.train)))
    shorter |= other_models.measure_others(config, others, embeddings, data.test, test, folder)
    measured, best = baselines | shorter | {"trained": results}, training.trainer.best
    rows = {name: one.metrics()[one.main_ranking] for name, one in measured.items()}
    compatible, not_compatible = other_models.on_compatibility(shorter, results)
    matched = {"matches": match_sentence(matches)} if matches else {}
    facts = {"weights": verdict.best_sentence(best, steps)} | matched | compatible
    losses = verdict.losses_to_judge(config.loss, workdir)
    warnings = not_compatible + (verdict.warnings_of(rows, best, losses) if steps > 1 else [])
    show(rows, [*results.notes, *facts.values()], warnings)
    files.write_json(paths["metrics.json"], rows)
    # Only eval_main applies the steps that change embeddings, such as whitening.
    done = copy.deepcopy(config.evaluation)
    done.update(**without_model_steps(done.as_dict()))
    about = evaluation_results.about(done, test, model=workdir, search="exact")
    remove_earlier(folder)
    *_, page = report_writer.write_evaluation(
        *(folder, config, results, data.test),
        about=about | facts,
        title=workdir,
        warnings=warnings,
        baselines=baselines,
        shorter=shorter,
        training=workdir,
    )
    training.trainer.end(rows["trained"])
    print("\n".join([*paths.values(), model_card.write(workdir, workdir), page]))


def check(evaluation: Evaluation, test: TestSet, folder: str) -> None:
    """Raises InputError, before anything is trained, if something cannot be measured or compared."""
    evaluation_results.check_evaluation(evaluation, test)
    setups = evaluation_results.ranking_setups(evaluation, test)
    comparison.rankings_beside(evaluation.beside, folder, setups)


def show(rows: Mapping[str, Mapping[str, float]], sentences: Sequence[str], warnings: Sequence[str]) -> None:
    """Prints the metrics of models, what there is to know of them, and warnings."""
    print(terminal.table(rows))
    print("\n".join(sentences))
    for warning in warnings:
        print(f"\nWARNING: {warning}")


def remove_earlier(folder: str) -> None:
    """Removes the files of an earlier evaluation, which belong to other weights."""
    for name in ("embeddings", "whitening", "whitening.npz", "saved_model", model_card.FILE):
        files.remove(os.path.join(folder, name))
