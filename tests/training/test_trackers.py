"""What follows a run beside TensorBoard: MLflow in a local store, Weights & Biases offline."""

import csv
import json
import struct
import sys

import mlflow
import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from tests.training.runs import Setup, evaluation
from tfrank import InputError
from tfrank.training.trackers import build_trackers, check_installed

FIELDS = {"seed": 7, "train.no_decay": [], "model.weights": ""}


@pytest.fixture(autouse=True)
def local(tmp_path, monkeypatch):
    """No service is asked: MLflow writes a file, Weights & Biases a folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("WANDB_MODE", "offline")


def fit(folder, steps, name, end=False):
    setup = Setup(folder, trackers=build_trackers([name], str(folder), FIELDS))
    setup.fit(steps, evaluate=lambda: evaluation(0.5), evaluate_every=3, config="seed: 7")
    if end:
        setup.trainer.end({"recall_at_1": 0.75})


def losses_of(folder):
    with open(folder / "training.csv", newline="") as file:
        return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file) if row["loss"]}


def test_mlflow_holds_each_step_once_after_a_resume_with_config_picture_and_results(tmp_path):
    folder = tmp_path / "run"
    fit(folder, 4, "mlflow")
    fit(folder, 6, "mlflow", end=True)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("tfrank").experiment_id])
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    assert run.data.params == {"seed": "7", "train.no_decay": "[]", "model.weights": ""}
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == sorted(losses_of(folder).items())
    validated = client.get_metric_history(run.info.run_id, "validation_map")
    assert [(one.step, one.value) for one in validated] == [(0, 0.5), (3, 0.5), (4, 0.5), (6, 0.5)]
    assert run.data.metrics["test.recall_at_1"] == 0.75
    pictures = client.list_artifacts(run.info.run_id, "validation_neighbors")
    assert f"{pictures[0].path}".endswith("0000000.png")
    assert not (folder / "tensorboard").exists()


def records_in(content: bytes):
    """The records of a file of Weights & Biases: a header of 7 bytes, then LevelDB's log format."""
    at, parts = 7, b""
    while at < len(content):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # A whole record, or the last part of one.
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def records_of(folder):
    """The records of all files of a run, each with the name of its file, in the order of their writing."""
    paths = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime):
        for record in records_in(path.read_bytes()):
            yield path, record


def test_weights_and_biases_offline_has_every_step_histograms_and_the_run_keeps_its_id(tmp_path):
    folder = tmp_path / "run"
    fit(folder, 4, "wandb")
    wandb.finish()  # As the end of the process does.
    fit(folder, 6, "wandb", end=True)
    rows, ids, summary = {}, set(), {}
    for path, record in records_of(folder):
        ids.add(path.stem)
        if record.WhichOneof("record_type") == "history":
            items = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            rows[items["_step"]] = items
        if record.WhichOneof("record_type") == "summary":
            summary |= {i.key or ".".join(i.nested_key): i.value_json for i in record.summary.update}
    assert len(ids) == 1
    assert {step: row["loss"] for step, row in rows.items() if "loss" in row} == losses_of(folder)
    assert rows[2]["positive_histogram._type"] == "histogram"
    assert rows[3]["validation_neighbors._type"] == "image-file" and rows[3]["validation_map"] == 0.5
    assert summary["test.recall_at_1"] == "0.75"


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_one_line_that_names_the_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"`trackers` has '{name}'.* pip install 'tfrank\[{name}\]'"):
        check_installed(["tensorboard", name])


def test_a_store_that_cannot_be_opened_is_named_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(InputError, match="MLflow cannot be used"):
        fit(tmp_path / "run", 2, "mlflow")


def test_training_goes_on_without_a_tracker_that_fails_later(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(mlflow.MlflowClient, "log_image", lambda *arguments: 1 / 0)
    fit(tmp_path / "run", 4, "mlflow", end=True)
    (warning,) = [record.getMessage() for record in caplog.records if "MLflow" in record.getMessage()]
    assert "MLflow failed (division by zero). Training goes on without it." in warning
    assert len(losses_of(tmp_path / "run")) == 4
