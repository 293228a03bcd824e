"""What an index calls a match: by its own labels, else by what the model states, for the index's own size."""

import json
import math

import numpy as np
import pytest

from tests.evaluation.populations import drawn_classes
from tfrank import search
from tfrank.common.checks import InputError
from tfrank.evaluation.thresholds import as_json, curve, threshold
from tfrank.export.saved_model import class_fingerprint
from tfrank.search.matches import matches_of, stated_by

ROWS, CLASSES = drawn_classes(np.random.default_rng(0), 40, noise=0.08, images=8)
NAMES = np.array([f"class {number}" for number in CLASSES])
NOTHING = np.full(len(ROWS), "")


def stated(classes=40, trained=(), **more):
    """What a model states that has learnt from these classes."""
    some = classes > CLASSES
    measured = as_json(curve(ROWS[some], CLASSES[some]))
    names = [class_fingerprint(name) for name in trained]
    return {"precision": 0.95, "curve": measured, "trained": names, **more}


def test_the_labels_of_an_index_say_what_a_match_is_in_it():
    found = matches_of(None, ROWS, NAMES)
    assert found.match == threshold(curve(ROWS, CLASSES)).high < math.inf and found.images == 320
    assert found.of(found.match) == "match" and found.of(-0.5) == "no"
    assert "In an index of up to 320 images, results from similarity" in found.sentence
    assert "at least 95 %" in found.sentence and "by 40 classes" in found.sentence


def test_classes_that_were_trained_on_are_not_searched_for_but_are_among_the_results():
    found = matches_of(stated(trained=[f"class {number}" for number in range(20)]), ROWS, NAMES)
    wanted = curve(ROWS, CLASSES, queries=CLASSES >= 20)
    assert found.match == threshold(wanted).high and "by 20 classes" in found.sentence


def test_images_without_a_label_are_wrong_results():
    labels = np.where(CLASSES < 20, NAMES, "")
    found, alone = matches_of(None, ROWS, labels), matches_of(None, ROWS[CLASSES < 20], labels[CLASSES < 20])
    assert found.measured.images == 320 and found.match >= alone.match


def test_without_labels_the_model_counts_up_to_the_size_for_which_it_can_promise():
    promised = matches_of(stated(), ROWS, NOTHING)
    assert promised.match < math.inf and "index of up to 320 images" in promised.sentence
    many = np.repeat(ROWS, 100, axis=0)
    none = matches_of(stated(), many, [""] * len(many))
    assert (
        none.of(1.0) != "match"
        and "In an index of 32,000 images, no result is called a match" in none.sentence
    )


@pytest.mark.parametrize("model", [None, "few"])
def test_where_nothing_can_be_promised_nothing_is_written(model):
    few = CLASSES < 4
    found = matches_of(stated(classes=4) if model else None, ROWS[few], NAMES[few])
    assert found.of(1.0) == "" and ("too few" in found.sentence)


def test_a_false_accept_rate_holds_for_any_size():
    found = matches_of(stated(far=0.7, sentence="Any size."), ROWS, NAMES)
    assert [found.of(value) for value in (0.69, 0.7)] == ["no", "match"] and found.sentence == "Any size."
    assert matches_of(stated(far=None, sentence="None."), ROWS, NAMES).of(1.0) == ""


def test_an_index_that_changed_little_keeps_what_it_measured_and_holds_for_its_size_now(monkeypatch):
    before = matches_of(None, ROWS[:300], NAMES[:300])
    renamed = matches_of(None, ROWS[:300], np.roll(NAMES[:300], 4), before)
    assert renamed.measured.wrong.max() > before.measured.wrong.max()
    monkeypatch.setattr("tfrank.search.matches.curve", None)
    after = matches_of(None, ROWS, NAMES, before)
    assert after.measured is before.measured and after.images == 320 and after.match >= before.match


def with_contents(tmp_path, tree):
    """The folder of a model that states this."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "tfrank.json").write_text(json.dumps(tree))
    return str(model)


def test_a_model_of_before_there_were_sizes_promises_nothing(tmp_path):
    old = {"whitening": 0.0, "thresholds": {"match": {"similarity": 0.65}, "perhaps": {"similarity": 0.5}}}
    assert stated_by(with_contents(tmp_path, old)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.pop("curve"),
        lambda tree: tree.update(precision="high"),
        lambda tree: tree["curve"].update(images=0),
        lambda tree: tree["curve"].update(wrong=[0.5]),
        lambda tree: tree["curve"].update(similarity=[None]),
        lambda tree: tree.update(trained=["x"]),
    ],
)
def test_a_statement_that_was_edited_is_named_in_one_line(tmp_path, change):
    tree = stated()
    assert stated_by(with_contents(tmp_path, {"matches": tree})) == tree
    change(tree)
    (tmp_path / "model" / "tfrank.json").write_text(json.dumps({"matches": tree}))
    with pytest.raises(InputError, match=r"model is damaged \(tfrank.json: .*Export it again") as caught:
        stated_by(str(tmp_path / "model"))
    assert "\n" not in str(caught.value)


def test_results_say_what_a_match_promises(folder):
    index = search.open(folder)
    (found,) = index.search("class 0/0.jpg", k=3)
    assert set(found.matches) == {""} and found.promise == index.matches.sentence
    assert "too few labels" in found.promise or "too few" in found.promise
    index.matches = matches_of(stated(far=float(found.similarities[1]), sentence="Any."), ROWS, NAMES)
    (found,) = index.search("class 0/0.jpg", k=3)
    assert found.matches == ["match", "match", "no"] and found.promise == "Any."
