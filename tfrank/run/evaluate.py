"""Measures a trained model, a SavedModel, or embeddings, and writes a report.

    python eval_main.py --workdir=runs/letters_pnp [--config.field=value ...]
    python eval_main.py --model=runs/letters_pnp/saved_model
    python eval_main.py --embeddings=embeddings.npz

An interrupted evaluation resumes. Without --config, the run's own config is used.
"""

import functools
import os
from collections.abc import Mapping

import numpy as np
from absl import flags

from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.configs.default import Config
from tfrank.configs.fields import tree
from tfrank.configs.sections import Evaluation
from tfrank.data.index import RecordIndex
from tfrank.evaluation.nearest import searchers
from tfrank.evaluation.postprocessing.steps import without_model_steps
from tfrank.evaluation.postprocessing.whitening import save_whitening, whiten
from tfrank.evaluation.protocols import TestSet
from tfrank.evaluation.report import terminal
from tfrank.export import model_card
from tfrank.export.saved_model import saved_model_of
from tfrank.run import (
    comparison,
    datasets,
    evaluation_results,
    experiment,
    other_models,
    report_writer,
    settings,
    trained,
)
from tfrank.run.evaluation_results import EvaluationResults
from tfrank.run.shorter import measure_shorter
from tfrank.run.workdir import as_begun, default_workdir, note_on_training_records

flags.DEFINE_string("config", None, "The config. Default: that of the run")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run. Default: runs/<config>_<data>_<loss>")
_MODEL = flags.DEFINE_string("model", None, "Folder of a SavedModel, or of a run with one, to measure")
_TRUST = flags.DEFINE_bool(
    "trust_model", False, "Use the model even if it may read and write files or run Python"
)
_EMBEDDINGS = flags.DEFINE_string("embeddings", None, "An .npz of embeddings and labels to measure")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where to. Default: evaluation/<test set> of the run")
_SEARCH = flags.DEFINE_enum("search", "exact", searchers.SEARCHES, "How neighbours are searched")
_COMPARE_WITH = flags.DEFINE_string("compare_with", "", "The output folder of an evaluation to compare with")
# Earlier names of these flags.
flags.DEFINE_alias("saved_model", "model")
flags.DEFINE_alias("neighbors", "search")
_EXPORT = flags.DEFINE_bool(
    "export", False, "Also write the run's model, as it was measured, as a SavedModel"
)


def main(config: Config) -> None:
    """Measures what the flags name, by a config."""
    config = settings.resolved(config)
    experiment.check_config(config)
    if _EMBEDDINGS.value:
        if needed_by := [*without_model_steps(config.evaluation.as_dict()), *["export"] * _EXPORT.value]:
            advice = f"Give --workdir, or leave out {' and '.join(needed_by)}."
            raise InputError(f"Embeddings come without a model. {advice}")
        embeddings, test = trained.load_embeddings(_EMBEDDINGS.value)
        output_dir = _OUTPUT_DIR.value or f"{os.path.splitext(_EMBEDDINGS.value)[0]}_evaluation"
        check(config.evaluation, test, output_dir)
        with files.locked(output_dir):
            shorter = measure_shorter(config, embeddings, test, None)
            return measure(config, embeddings, test, None, output_dir, _EMBEDDINGS.value, "", shorter)
    saved_model = _MODEL.value and saved_model_of(_MODEL.value)
    workdir = _WORKDIR.value or trained.run_of(saved_model) or default_workdir(config)
    config = as_begun(workdir, config)
    config.data.dim = datasets.vector_dim(config.data, workdir)
    model = trained.open_model(config, workdir, saved_model, trusted=_TRUST.value)
    output_dir = _OUTPUT_DIR.value or os.path.join(model.evaluations, datasets.test_name(config.data))
    if _EXPORT.value:
        model.check_exportable(output_dir)
    run = trained.run_of(saved_model) or "" if saved_model else workdir
    train = functools.partial(datasets.build_train_set, config.data, workdir)
    note = note_on_training_records(run, train) if run and not config.data.test_records else ""
    index, relevance = datasets.build_test_set(config.data, workdir)
    test = evaluation_results.test_set_of(index, relevance)
    check(config.evaluation, test, output_dir)
    with files.locked(output_dir):
        embeddings, whitening = model.embed(index, os.path.join(output_dir, "embeddings")), None
        of_training, search = os.path.join(output_dir, "whitening"), searchers.usable(_SEARCH.value)[0]
        shorter = measure_shorter(
            config, embeddings, test, lambda: model.embed_training(train(), of_training), search=search
        )
        others = other_models.open_those_left(config, workdir)
        shorter |= other_models.measure_others(
            config, others, embeddings, index, test, output_dir, search=search
        )
        if config.evaluation.whitening:
            whitening = model.learn_whitening(train(), of_training)
            save_whitening(os.path.join(output_dir, "whitening.npz"), whitening)
            embeddings = whiten(embeddings, whitening)
        # Files of an earlier evaluation would not fit the new metrics.
        exported = ("saved_model", model_card.FILE)
        for name in exported if whitening else (*exported, "whitening", "whitening.npz"):
            files.remove(os.path.join(output_dir, name))
        name = saved_model or workdir
        measure(config, embeddings, test, index, output_dir, name, run, shorter, warning=note)
        if _EXPORT.value:
            print(model.export(os.path.join(output_dir, "saved_model"), whitening))
            print(model_card.write(workdir, output_dir, measured=(output_dir, tree(config))))


def check(evaluation: Evaluation, test: TestSet, output_dir: str) -> None:
    """Raises InputError, before anything is embedded, if something cannot be measured or compared."""
    evaluation_results.check_evaluation(evaluation, test, search=searchers.usable(_SEARCH.value)[0])
    setups = evaluation_results.ranking_setups(evaluation, test)
    others = filter(None, [_COMPARE_WITH.value, *evaluation.beside])
    comparison.rankings_beside([*others], output_dir, setups)


def measure(
    config: Config,
    embeddings: np.ndarray,
    test: TestSet,
    index: RecordIndex | None,
    output_dir: str,
    name: str,
    run: str,
    shorter: Mapping[str, EvaluationResults],
    *,
    warning: str = "",
) -> None:
    """Measures embeddings; prints the metrics, those of shorter ones too, and writes them with a report."""
    search, why = searchers.usable(_SEARCH.value)
    results = evaluation_results.evaluate_embeddings(
        config.evaluation, embeddings, test, search=search, loss=config.loss
    )
    print(terminal.listing(results.metrics()))
    if shorter:
        rows = {**shorter, "all dimensions": results}
        print(terminal.table({key: one.metrics()[one.main_ranking] for key, one in rows.items()}))
    compatible, warnings = other_models.on_compatibility(shorter, results)
    warnings = [*filter(None, [warning]), *warnings]
    for note in filter(None, [why, *results.notes, *compatible.values(), *warnings]):
        print(note)
    about = evaluation_results.about(config.evaluation, test, model=name, search=why or search)
    paths = report_writer.write_evaluation(
        *(output_dir, config, results, index),
        about=about | compatible,
        title=name,
        warnings=warnings,
        compare_with=_COMPARE_WITH.value,
        shorter=shorter,
        training=run,
    )
    print("\n".join(paths))
