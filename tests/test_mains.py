"""train_main, end to end, as a user runs it. See test_eval_main.py too; errors: run/test_refusals.py."""

import json
import os
import re
import shutil

import pytest

from tests.command_lines import HANGS
from tests.data import write_records
from tests.training.runs import event_hashes, finish, logged_steps, start, state_hashes
from tfrank import losses
from tfrank.configs import digits
from tfrank.configs.fields import flatten, tree
from tfrank.data.record_folder import open_split
from tfrank.data.records import ImageRecord
from tfrank.run import config_help

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished small run with a validation part, and what it printed."""
    workdir = tmp_path_factory.mktemp("main") / "run"
    flags = (
        "--config.train.steps=8",
        "--config.train.evaluate_every=4",
        "--config.data.validation_classes=6",
        "--config.evaluation.baselines=True",
        "--config.evaluation.whitening=0.25",
    )
    status, output, errors = finish(workdir, *flags)
    assert status == 0, errors
    return workdir, flags, output


def test_training_shows_progress_and_a_table_and_says_where_everything_is(run):
    workdir, _, output = run
    assert "step 8/8  loss " in output and "images/s  ETA 0:00:00" in output
    assert "step 0: validation Recall@1 " in output and "step 8: validation Recall@1 " in output
    for title in ("Recall@1", "Recall@10", "Recall@100", "mAP", "raw pixels", "start", "trained"):
        assert title in output
    assert "the query itself left out" in output
    for name in ("metrics.json", "saved_model", "model_card.md", "evaluation/test/report.html"):
        assert str(workdir / name) in output
        assert (workdir / name).exists()
    about = json.loads((workdir / "evaluation" / "test" / "metrics.json").read_text())["about"]
    assert "whitening" not in about, "whitening is for eval_main"
    page = (workdir / "evaluation" / "test" / "report.html").read_text()
    assert re.findall('<th scope="row"><bdi>(.*?)</bdi>', page[: page.index("<nav")])[:3] == [
        *("raw pixels", "start", "trained"),
    ]
    assert "Loss of training" in page and "Validation during training" in page


def test_the_same_command_again_trains_no_more_and_gives_the_same_numbers(run):
    workdir, flags, _ = run
    before = json.loads((workdir / "metrics.json").read_text())
    status, output, errors = finish(workdir, *flags)
    assert status == 0, errors
    assert "Going on from step 8" in output
    assert json.loads((workdir / "metrics.json").read_text()) == before


def test_a_lost_index_is_built_again_and_the_run_goes_on(run):
    workdir, flags, _ = run
    shutil.rmtree(workdir / "records" / "train.index")
    status, output, errors = finish(workdir, *flags)
    assert status == 0, errors
    assert "Going on from step 8" in output


def test_a_second_process_in_the_same_workdir_is_refused(tmp_path):
    workdir = tmp_path / "run"
    first = start(workdir, "--config.train.steps=1000")
    while not (workdir / "training.csv").exists():
        assert first.poll() is None, first.communicate()
    status, _, errors = finish(workdir, "--config.train.steps=1000")
    first.kill()
    first.communicate()
    assert status == 1 and "Another process is at work in" in errors


def test_a_resume_with_another_config_stops_and_says_which_field(run):
    workdir, flags, _ = run
    status, _, errors = finish(workdir, *flags, "--config.train.learning_rate=0.5")
    assert status == 1
    assert errors.splitlines()[-1].startswith("Error: The run in ")
    assert "train.learning_rate: 0.001 before, 0.5 now" in errors


def test_a_resume_may_go_on_for_more_steps(run, tmp_path):
    workdir = tmp_path / "run"
    assert finish(workdir, "--config.train.steps=2")[0] == 0
    status, output, errors = finish(workdir, "--config.train.steps=4")
    assert status == 0, errors
    assert "Going on from step 2" in output


def test_before_the_first_checkpoint_only_what_the_records_depend_on_is_fixed(tmp_path):
    workdir = tmp_path / "run"
    status, _, errors = finish(workdir, "--config.train.steps=1", "--config.data.classes_per_batch=99")
    assert status == 1 and "Lower classes_per_batch" in errors
    status, _, errors = finish(workdir, "--config.train.steps=1", "--config.data.shards=3")
    assert status == 1 and "data.shards: 0 before, 3 now" in errors
    status, _, errors = finish(workdir, "--config.train.steps=1")
    assert status == 0, errors


def record_of(encoded, label, name):
    return ImageRecord(encoded=encoded, format="png", label=int(label), text="", filename="", id=name)


def test_changed_records_stop_a_resume(tmp_path):
    workdir = tmp_path / "run"
    assert finish(workdir, "--config.train.steps=1")[0] == 0
    index = open_split(str(workdir / "records"), "test")
    write_records(
        [record_of(b"", label, f"{k}") for k, label in enumerate(index.label)],
        str(workdir / "records"),
        "train",
    )
    status, _, errors = finish(workdir, "--config.train.steps=1")
    assert status == 1
    assert "The records of the run in" in errors and "changed since it began" in errors


@pytest.mark.parametrize("main", ["train_main.py", "eval_main.py"])
def test_help_lists_flags_losses_and_every_field_with_its_value(main, tmp_path):
    flags = ["--config=configs/digits.py:smooth_ap", "--help"]
    process = start(tmp_path / "run", *flags, main=main)
    output, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 0, errors
    assert not (tmp_path / "run").exists()
    assert "--workdir: Folder of the run." in output
    for name in losses.NAMES:
        assert f"\n  {name} " in output or f"\n  {name}\n" in output
    fields = flatten(tree(digits.get_config("smooth_ap")))
    listed = dict(re.findall(r"^--config\.([\w.]+)=(.*)$", output, re.MULTILINE))
    empty = {name for name, value in listed.items() if value == "{}"}
    assert empty == {"train.learning_rate_multipliers", "evaluation.published"}
    assert set(listed) - empty == set(fields)
    assert listed["train.steps"] == "300" and listed["data.train"] == "0,1,2,3,4"
    meaning = "# Probability that an image is mirrored, left for right. At least 0, at most 1."
    assert f"{meaning}\n--config.data.flip=0.0" in output


def test_what_help_lists_is_what_a_run_takes(tmp_path):
    fields = config_help.fields_text(digits.get_config())
    listed = [line for line in fields.splitlines() if line.startswith("--")]
    status, output, errors = finish(tmp_path / "run", *listed, "--config.dry_run=True")
    assert status == 0, errors
    assert "7,208 images of 40 classes" in output


def test_an_image_that_does_not_decode_is_named_and_nothing_is_lost(tmp_path):
    workdir = tmp_path / "run"
    assert finish(workdir, "--config.train.steps=4")[0] == 0
    folder = str(workdir / "records")
    index = open_split(folder, "train")
    # The bytes of a PNG, spoilt, in a record that is whole: the checksum is right, the image is not.
    named = zip(index.label, index.id)
    write_records(
        [record_of(b"not an image", label, name.decode()) for label, name in named], folder, "train"
    )
    os.remove(workdir / "records.json")
    status, _, errors = finish(workdir, "--config.train.steps=8")
    assert status == 1
    assert "image id '" in errors and "cannot be loaded" in errors and "Traceback" not in errors
    assert (workdir / "checkpoints" / "checkpoint").exists()


def numbers(output, unit) -> dict[str, float]:
    """The rows of a dry run's table in a unit: name and number."""
    rows = re.findall(rf"^ *(\S.*?) +([\d,.]+) {unit}$", output, re.MULTILINE)
    return {name: float(number.replace(",", "")) for name, number in rows}


def test_a_dry_run_counts_and_estimates_and_the_run_after_it_is_as_without_it(run, tmp_path):
    workdir, flags, _ = run
    status, output, errors = finish(tmp_path / "run", *flags, "--config.dry_run")
    assert status == 0, errors
    for line in (
        "train: 1,804 images of 10 classes",
        "validation: 1,076 images of 6 classes",
        "test: 354 images of 2 classes",
        "8 steps of 24 images = 0.1 epochs",
        "Nothing was trained or saved. Without --config.dry_run the same command does it.",
    ):
        assert line in output.splitlines()
    assert "\n976 parameters; memory of a device, estimated:\n" in output
    memory, seconds = numbers(output, "MiB"), numbers(output, "s")
    assert memory["in all"] == pytest.approx(sum(memory.values()) - memory["in all"], abs=0.5)
    assert set(memory) >= {"weights", "gradients", "optimizer", "activations", "images", "similarities"}
    assert set(seconds) == {"the first step", "a step", "training", "evaluating"}
    assert seconds["the first step"] > seconds["a step"]
    expected = seconds["the first step"] + 8 * seconds["a step"]
    assert seconds["training"] == pytest.approx(expected, abs=0.1)
    assert sorted(os.listdir(tmp_path / "run")) == [".lock", "config.json", "records", "records.json"]

    status, _, errors = finish(tmp_path / "run", *flags)
    assert status == 0, errors
    for found in (state_hashes, logged_steps, event_hashes):
        assert found(tmp_path / "run") == found(workdir)
    assert (tmp_path / "run" / "metrics.json").read_text() == (workdir / "metrics.json").read_text()


def test_a_dry_run_in_the_folder_of_a_run_changes_nothing_of_it(run):
    workdir, flags, _ = run
    before = (state_hashes(workdir), logged_steps(workdir), event_hashes(workdir))
    cost = (workdir / "cost.json").read_text()
    config = (workdir / "config.json").read_text()
    status, output, errors = finish(workdir, *flags, "--config.dry_run", "--config.evaluation.rerank=True")
    assert status == 0, errors
    assert "Nothing was trained" in output
    assert (workdir / "config.json").read_text() == config
    assert (state_hashes(workdir), logged_steps(workdir), event_hashes(workdir)) == before
    assert (workdir / "cost.json").read_text() == cost


def test_a_dry_run_in_micro_batches_estimates_less_memory(tmp_path):
    flags = ("--config.train.steps=8", "--config.dry_run", "--config.data.image_size=32")
    outputs = [
        finish(tmp_path / name, *flags, f"--config.train.micro_batch_size={size}")
        for name, size in (("plain", 0), ("micro", 4))
    ]
    assert [status for status, _, _ in outputs] == [0, 0]
    plain, micro = (numbers(output, "MiB") for _, output, _ in outputs)
    # 4 images at once instead of 24.
    assert micro["activations"] == pytest.approx(plain["activations"] / 6, abs=0.06)
    assert micro["in all"] < plain["in all"]
