"""eval_main, as real processes: of a run, a SavedModel and embeddings; stopped, locked out, compared."""

import json
import os
import shutil
import signal
import time

import numpy as np
import pytest

from tests.command_lines import CommandLine, run_alone
from tests.command_lines import run as run_program
from tests.programs import printed_json
from tests.training.runs import finish
from tfrank.common.files import locked
from tfrank.data.record_folder import open_split
from tfrank.data.records import RecordReader
from tfrank.evaluation.postprocessing.whitening import load_whitening, whiten
from tfrank.evaluation.report.result_files import load_metrics, load_per_query

pytestmark = pytest.mark.slow

# 177 images of each of the digits 8 and 9, less three.
IMAGES = 354


def evaluate(*flags, first=""):
    """The output of eval_main, which has to end well, with these flags and no others; after other code."""
    main = "import runpy; runpy.run_path('eval_main.py', run_name='__main__')"
    ended = run_program("-c", f"{first}\n{main}", *flags) if first else run_program("eval_main.py", *flags)
    assert ended.status == 0, ended.errors[-3000:]
    return ended.output


def refused(*flags):
    """The one line that it ends with."""
    status, _, errors = run_program("eval_main.py", *flags)
    lines = [line for line in errors.splitlines() if not line.startswith(("WARNING: All log", "I0000"))]
    assert status == 1 and len(lines) == 1 and lines[0].startswith("Error: "), errors
    return lines[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished small run of a model of images of any size."""
    workdir = tmp_path_factory.mktemp("eval") / "run"
    status, _, errors = finish(workdir, "--config.train.steps=4", "--config.model.pooling=gem")
    assert status == 0, errors
    return workdir


@pytest.fixture(scope="module")
def trained(run):
    """What training itself found, in its report's folder."""
    shutil.copytree(run / "evaluation" / "test", run.parent / "trained")
    return run.parent / "trained"


@pytest.fixture(scope="module")
def evaluated(run, trained):
    """The folder of an evaluation of the run after that."""
    assert f"{run}/evaluation/test/report.html" in evaluate(f"--workdir={run}")
    return run / "evaluation" / "test"


def ranking(folder):
    return load_metrics(folder)["rankings"]["leave_one_out"]


def tree_of(folder):
    """Every file below a folder, and when it was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_run_is_measured_by_its_own_config_and_as_training_measured_it(run, trained, evaluated):
    folder = evaluated
    assert ranking(folder) == pytest.approx(ranking(trained), abs=1e-6)
    assert load_metrics(folder)["about"]["images"] == IMAGES == ranking(folder)["queries"]
    per_query = load_per_query(folder, "leave_one_out")
    assert np.mean(per_query.metrics["ap"]) == pytest.approx(ranking(folder)["map"], abs=1e-9)
    curves = json.loads((folder / "curves.json").read_text())
    assert curves["leave_one_out"]["recall_at_k"][1][0] == pytest.approx(ranking(folder)["recall_at_1"])
    assert "data:image/jpeg" in (folder / "report.html").read_text()
    rows = np.load(folder / "embeddings" / "embeddings.npy")
    assert rows.shape == (IMAGES, 8) and np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)
    ids = open_split(str(run / "records"), "test").id
    np.testing.assert_array_equal(np.load(folder / "embeddings" / "ids.npy"), ids)


def test_a_saved_model_by_scann_compared_with_the_run(run, trained):
    pytest.importorskip("scann", reason="ScaNN is not there for this platform")
    evaluate(f"--model={run}/saved_model", "--search=scann", f"--compare_with={trained}")
    folder = run / "saved_model_evaluation" / "test"
    found, expected = ranking(folder), ranking(trained)
    assert found.pop("scann_recall") > 0.999
    assert {"recall_at_1", "precision_at_100"} <= set(found) < set(expected)
    # The SavedModel rounds otherwise, which may swap two images around the hundredth place.
    swap = 1 / (100 * IMAGES)
    assert found.pop("precision_at_100") == pytest.approx(expected["precision_at_100"], abs=2.1 * swap)
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-6)
    page = (folder / "report.html").read_text()
    assert '<section id="comparison">' in page and str(trained) in page


def test_embeddings_are_measured_as_the_model_that_they_are_from(trained, evaluated, tmp_path):
    names = ("embeddings", "ids", "labels")
    rows, ids, labels = (np.load(evaluated / "embeddings" / f"{name}.npy") for name in names)
    # Of any norm; another program has text where records have bytes.
    np.savez(tmp_path / "x.npz", embeddings=3 * rows, ids=np.char.decode(ids), labels=labels)
    evaluate(f"--embeddings={tmp_path}/x.npz")
    # They are rounded once more.
    assert ranking(tmp_path / "x_evaluation") == pytest.approx(ranking(trained), abs=1e-4)
    page = (tmp_path / "x_evaluation" / "report.html").read_text()
    assert "data:image/jpeg" not in page


def kill_half_way(output_dir, *flags):
    """Ends the process when it has noted some embeddings, and not all; how many those are."""
    process = CommandLine("eval_main.py", *flags, f"--output_dir={output_dir}")
    note = output_dir / "embeddings" / "pass.json"

    def done():
        return json.loads(note.read_text())["done"] if note.exists() else 0

    while not done():
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return done()


def test_killed_while_embedding_it_embeds_the_rest_and_writes_nothing_into_the_run(run, tmp_path):
    """The run is of another user. Root, who may write there, finds a file in the way."""
    theirs, output_dir = tmp_path / "theirs", tmp_path / "mine"
    shutil.copytree(run, theirs)
    shutil.rmtree(theirs / "evaluation")
    (theirs / "evaluation").write_text("in the way")
    before = tree_of(theirs)
    for place in (theirs, theirs / "records"):
        place.chmod(0o555)
    flags = f"--workdir={theirs}", "--config.evaluation.batch_size=1"
    assert "Cannot write to" in refused(*flags)
    done = kill_half_way(output_dir, *flags)
    assert 0 < done < IMAGES
    output = evaluate(*flags, f"--output_dir={output_dir}")
    assert f"{done} of {IMAGES} embeddings are there already" in output
    # Batches of other sizes round otherwise, and may swap two images that are nearly as similar.
    evaluate(*flags, f"--output_dir={tmp_path / 'at once'}")
    assert ranking(output_dir) == ranking(tmp_path / "at once")
    assert tree_of(theirs) == before


def test_a_second_process_in_the_same_output_folder_is_refused(run, tmp_path):
    rows = {"embeddings": np.eye(3, dtype=np.float32), "labels": np.zeros(3, int)}
    np.savez(tmp_path / "x.npz", **rows)
    with locked(str(tmp_path / "x_evaluation")):
        line = refused(f"--embeddings={tmp_path}/x.npz")
    assert f"Another process is at work in {tmp_path}/x_evaluation" in line


def test_whitened_at_full_size_and_exported_the_saved_model_alone_gives_the_same_embeddings(run, tmp_path):
    full_size = "--config.evaluation.full_size=True"
    flags = ("--config.evaluation.whitening=0.25", "--config.evaluation.scales=1.0,0.5", "--export")
    output = evaluate(f"--workdir={run}", full_size, *flags, f"--output_dir={tmp_path}")
    assert "Whitening is learnt on" in output and load_metrics(tmp_path)["about"]["whitening"] == "power 0.25"
    rows = np.load(tmp_path / "embeddings" / "embeddings.npy")
    expected = whiten(rows, load_whitening(tmp_path / "whitening.npz"))
    assert not np.allclose(rows, expected, atol=1e-2)
    with RecordReader(open_split(str(run / "records"), "test")) as reader:
        (tmp_path / "record").write_bytes(reader.read([0])[0])
    program = f"""
import json, pathlib, sys
import tensorflow as tf
model = tf.saved_model.load("{tmp_path}/saved_model")
record = tf.train.Example.FromString(pathlib.Path("{tmp_path}/record").read_bytes())
encoded = record.features.feature["image/encoded"].bytes_list.value[0]
image = tf.cast(tf.io.decode_image(encoded, channels=3), tf.float32)[None]
of_image, of_bytes = (model.signatures[name] for name in ("serving_default", "encoded"))
found = of_image(images=image), of_bytes(tf.constant([encoded]))
assert "tfrank" not in sys.modules
print(json.dumps([one["embedding"].numpy()[0].tolist() for one in found]))
"""
    assert f"{ranking(tmp_path)['recall_at_1']:.3f}" in (tmp_path / "model_card.md").read_text()
    for embedding in printed_json("-c", program, run=run_alone):
        np.testing.assert_allclose(embedding, expected[0], atol=1e-5)
    # Measured itself, as it is, it does as well.
    again = tmp_path / "again"
    evaluate(f"--model={tmp_path}/saved_model", f"--workdir={run}", full_size, f"--output_dir={again}")
    np.testing.assert_allclose(np.load(again / "embeddings" / "embeddings.npy"), expected, atol=1e-5)
    # They are rounded once more.
    assert ranking(again) == pytest.approx(ranking(tmp_path), abs=1e-4)
    # Without whitening, what is left of it would not fit the new metrics.
    evaluate(f"--workdir={run}", full_size, f"--output_dir={tmp_path}")
    assert not any(
        (tmp_path / name).exists() for name in ("whitening", "whitening.npz", "saved_model", "model_card.md")
    )


def test_mirrored_and_exported_the_saved_model_alone_gives_the_same_and_is_not_mirrored_twice(run, tmp_path):
    mirror = "--config.evaluation.mirror=True"
    evaluate(f"--workdir={run}", f"--output_dir={tmp_path}")
    plain = np.load(tmp_path / "embeddings" / "embeddings.npy")
    evaluate(f"--workdir={run}", mirror, "--export", f"--output_dir={tmp_path}")
    mirrored = np.load(tmp_path / "embeddings" / "embeddings.npy")
    assert load_metrics(tmp_path)["about"]["mirror"] == "each image with its mirror image"
    assert not np.allclose(plain, mirrored, atol=1e-2)
    model, again = f"--model={tmp_path}/saved_model", f"--output_dir={tmp_path}/again"
    evaluate(model, f"--workdir={run}", again)
    found = np.load(tmp_path / "again" / "embeddings" / "embeddings.npy")
    np.testing.assert_allclose(found, mirrored, atol=1e-5)
    assert "was exported with mirror True, which would be done twice" in refused(
        model, f"--workdir={run}", mirror, again
    )


def test_what_cannot_be_compared_is_said_before_anything_is_embedded(run, evaluated, tmp_path):
    rows = np.load(evaluated / "embeddings" / "embeddings.npy")
    labels, ids = (np.load(evaluated / "embeddings" / f"{name}.npy") for name in ("labels", "ids"))
    np.savez(tmp_path / "x.npz", embeddings=rows[:300], labels=labels[:300], ids=ids[:300])
    evaluate(f"--embeddings={tmp_path}/x.npz")
    flags = f"--output_dir={tmp_path}/now", f"--compare_with={tmp_path}/x_evaluation"
    line = refused(f"--workdir={run}", *flags)
    assert f"searched another gallery at leave_one_out (300 and {IMAGES} images)" in line
    assert not (tmp_path / "now" / "embeddings").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--embeddings=x.npz", "--config.evaluation.scales=1.0,0.5"],
            "come without a model. Give --workdir, or leave out scales",
        ),
        (["--model=RUN/saved_model", "--export"], "A SavedModel cannot be exported again"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_embedded(run, flags, message):
    assert message in refused(*(flag.replace("RUN", str(run)) for flag in flags))


def test_embeddings_of_another_precision_are_computed_anew(run, evaluated):
    line = "embeddings are there already"
    assert line in evaluate(f"--workdir={run}")
    assert line not in evaluate(f"--workdir={run}", "--config.train.precision=mixed_bfloat16")
    assert line not in evaluate(f"--workdir={run}")


def test_two_devices_measure_what_one_does(run, tmp_path):
    for strategy in ("one_device", "mirrored"):
        flags = (
            f"--workdir={run}",
            "--config.evaluation.scales=1.0,0.5",
            "--config.evaluation.batch_size=5",
        )
        flags += (f"--config.train.strategy={strategy}", f"--output_dir={tmp_path / strategy}", "--export")
        evaluate(*flags, first="from tests.programs import make_two_cpus; make_two_cpus()")
    one, two = (
        np.load(tmp_path / strategy / "embeddings" / "embeddings.npy")
        for strategy in ("one_device", "mirrored")
    )
    np.testing.assert_allclose(one, two, atol=1e-5)
    assert ranking(tmp_path / "mirrored") == pytest.approx(ranking(tmp_path / "one_device"), abs=1e-4)
    exported = f"--model={tmp_path}/mirrored/saved_model", "--config.evaluation.scales=1.0"
    evaluate(f"--workdir={run}", *exported, f"--output_dir={tmp_path}/exported")
    rows = np.load(tmp_path / "exported" / "embeddings" / "embeddings.npy")
    np.testing.assert_allclose(rows, two, atol=1e-5)


def test_where_scann_cannot_be_loaded_all_metrics_are_exact_and_the_files_say_so(evaluated, tmp_path):
    (tmp_path / "scann").mkdir()
    (tmp_path / "scann" / "__init__.py").write_text("raise ImportError('built for another TensorFlow')")
    rows, labels = (np.load(evaluated / "embeddings" / f"{name}.npy") for name in ("embeddings", "labels"))
    np.savez(tmp_path / "x.npz", embeddings=rows, labels=labels)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    output = evaluate(f"--embeddings={tmp_path}/x.npz", "--search=scann", first=program)
    assert output.count("ScaNN cannot be imported") == 1
    tree = load_metrics(tmp_path / "x_evaluation")
    assert "built for another TensorFlow" in tree["about"]["search"]
    assert "map" in ranking(tmp_path / "x_evaluation") and "scann_recall" not in ranking(
        tmp_path / "x_evaluation"
    )


def test_what_does_not_fit_the_run_is_said_in_one_line(run):
    assert "model.filters: 8 before, 9 now" in refused(f"--workdir={run}", "--config.model.filters=9")


def test_evaluating_where_there_is_no_run_or_a_damaged_one_says_so(tmp_path):
    assert "There is no run in" in refused(f"--workdir={tmp_path}/run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "config.json").write_text("{bad")
    assert "config.json is damaged" in refused(f"--workdir={tmp_path}")
