"""What a run writes down: training.csv, TensorBoard, what it has cost, and a picture."""

import csv
import datetime
import json
import math

import pytest
import tensorflow as tf

from tests.training.runs import Setup, evaluation, events
from tfrank.training.log import TrainingLog


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    """Six steps, looked at every second, evaluated before the first and every third."""
    setup = Setup(tmp_path_factory.mktemp("log") / "run")
    values = iter([0.125, 0.25, 0.75])
    setup.fit(6, evaluate=lambda: evaluation(next(values)), evaluate_every=3, config="seed: 7")
    return setup


def test_the_csv_has_a_row_a_step_and_the_columns_in_the_order_of_its_header(setup):
    with open(setup.folder / "training.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["step", "loss", "batch_recall_at_1", "valid_queries", "validation_recall_at_1"]
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4", "5", "6"]
    start, *rows = rows
    assert start == ["0", "", "", "", "0.125"]
    curves = {tag: dict(rows) for tag, rows in events(setup.folder).items()}
    for step, row in enumerate(rows, 1):
        loss, recall, valid_queries, validation = (float(cell) if cell else None for cell in row[1:])
        assert math.isfinite(loss) and loss > 0
        looked = step in (2, 3, 4, 6)
        assert (recall is not None) == (valid_queries is not None) == looked
        if looked:
            # Six images of the eight have another of their class.
            assert valid_queries == 0.75
            assert recall in [hits / 6 for hits in range(7)] or recall == pytest.approx(round(recall * 6) / 6)
            assert recall == curves["batch_recall_at_1"][step]
        assert loss == curves["loss"][step]
        assert validation == {3: 0.25, 6: 0.75}.get(step)


def test_tensorboard_has_the_config_as_text_at_the_beginning(setup):
    ((step, text),) = events(setup.folder)["config"]
    assert step == 0
    assert text.item() == b"```\nseed: 7\n```"


def test_tensorboard_has_scalars_of_the_batch_and_of_the_validation(setup):
    curves = events(setup.folder)
    for name in (
        "spread",
        "positive_pair_similarity",
        "negative_pair_similarity",
        "valid_queries",
        "batch_recall_at_1",
    ):
        assert [step for step, _ in curves[name]] == [2, 3, 4, 6], name
    values = [(step, float(value)) for step, value in curves["validation_map_at_r"]]
    assert values == [(0, 0.0625), (3, 0.125), (6, 0.375)]


@pytest.mark.parametrize("name, pairs", [("positive", 6), ("negative", 50)])
def test_tensorboard_has_histograms_of_the_similarities_of_all_pairs(setup, name, pairs):
    curves = events(setup.folder)
    rows = curves[f"{name}_histogram"]
    assert [step for step, _ in rows] == [2, 3, 4, 6]
    for (_, bins), (_, mean) in zip(rows, curves[f"{name}_pair_similarity"]):
        left, right, counts = bins.T
        assert (left[0], right[-1]) == (-1, 1) and (right > left).all() and (left[1:] == right[:-1]).all()
        # Of 8 x 8 pairs 8 are of an image with itself, and 6 of two images of one class.
        assert counts.sum() == pairs
        assert (counts * (left + right) / 2).sum() / pairs == pytest.approx(float(mean), abs=1 / 40)


def test_tensorboard_has_the_picture_of_each_evaluation_as_a_png(setup):
    rows = events(setup.folder)["validation_neighbors"]
    assert [step for step, _ in rows] == [0, 3, 6]
    for (_, tensor), value in zip(rows, (0.125, 0.25, 0.75)):
        width, height, png = tensor
        assert (int(width), int(height)) == (3, 2)
        assert png.startswith(b"\x89PNG")
        assert (tf.io.decode_png(png).numpy() == int(255 * value)).all()


@pytest.mark.parametrize("micro_batch_size, forward", [(0, 1), (4, 2)])
def test_the_cost_counts_updates_and_images_forward_and_backward(tmp_path, micro_batch_size, forward):
    setup = Setup(tmp_path, micro_batch_size=micro_batch_size)
    setup.fit(3)
    cost = json.loads((tmp_path / "cost.json").read_text())
    assert 0 < cost.pop("wall_seconds") < 60
    assert cost == {"forward_images": 24 * forward, "backward_images": 24, "updates": 3}
    assert f"3 updates, {24 * forward} images forward, 24 backward, 0:00:" in setup.trainer.report()


def test_the_time_taken_adds_up_over_a_resume(tmp_path):
    Setup(tmp_path).fit(3)
    cost = json.loads((tmp_path / "cost.json").read_text())
    (tmp_path / "cost.json").write_text(json.dumps({**cost, "wall_seconds": 7000.0}))
    setup = Setup(tmp_path)
    setup.fit(5)
    cost = json.loads((tmp_path / "cost.json").read_text())
    assert 7000 < cost["wall_seconds"] < 7060
    assert (cost["updates"], cost["backward_images"]) == (5, 40)
    report = setup.trainer.report()
    seconds = json.loads((tmp_path / "cost.json").read_text())["wall_seconds"]
    assert seconds > 7000 and f" {datetime.timedelta(seconds=round(seconds))} of training" in report


def test_the_time_of_a_run_that_begins_anew_does_not_count_an_earlier_one(tmp_path):
    (tmp_path / "cost.json").write_text('{"wall_seconds": 7000.0}')
    Setup(tmp_path).fit(2)
    assert json.loads((tmp_path / "cost.json").read_text())["wall_seconds"] < 60


# The colours of the curves, and those that a part of the points has.
GREY, BLUE, GREEN = (127, 127, 127), (31, 119, 180), (44, 160, 44)


def pixels(path, color) -> int:
    """How many pixels of a PNG have a colour."""
    image = tf.io.decode_png(path.read_bytes(), channels=3).numpy()
    assert image.shape == (540, 960, 3)
    return int((image == color).all(axis=-1).sum())


def drawing(folder, rows) -> dict:
    """The pixels of each curve in the picture of these rows."""
    folder.mkdir()
    log = TrainingLog(str(folder), images_per_step=1)
    log.begin(0, "")
    for step, values in rows.items():
        log.add(step, values)
    log.flush()
    path = folder / "training.png"
    assert log.draw() == str(path)
    return {name: pixels(path, color) for name, color in (("loss", GREY), ("batch", BLUE), ("best", GREEN))}


def test_the_picture_shows_a_curve_of_each_thing_that_was_measured(tmp_path):
    losses = {step: {"loss": 1 / step} for step in range(1, 21)}
    looked = {step: {**row, "batch_recall_at_1": step / 40} for step, row in losses.items()}
    validated = {**looked, 10: {**looked[10], "validation_recall_at_1": 0.8}}
    empty, loss, batch, best = (
        drawing(tmp_path / name, rows)
        for name, rows in (("empty", {}), ("loss", losses), ("batch", looked), ("best", validated))
    )
    assert loss["loss"] > empty["loss"] + 200
    assert batch["batch"] > loss["batch"] + 200
    assert best["best"] > batch["best"] + 20
    assert batch["best"] == 0
