"""Which class of an index a photo is of, or that it is of none."""

import math

import numpy as np
import pytest

from tests.evaluation.populations import drawn_classes
from tests.search import updated, write_photo
from tfrank import search
from tfrank.common.checks import InputError
from tfrank.evaluation.votes import acceptance, held_out
from tfrank.export.saved_model import class_fingerprint
from tfrank.search.classes import classes_of

ROWS, NUMBERS = drawn_classes(np.random.default_rng(0), 40, noise=0.1, images=8)
NAMES = np.array([f"class {number:02}" for number in NUMBERS])


def nearest(query, rows, k=10):
    """The k nearest of these rows, as a search finds them."""
    similarity = ROWS[rows] @ query
    order = np.argsort(-similarity)[:k]
    return rows[order], similarity[order]


def test_images_of_the_classes_get_their_label_and_those_of_others_none():
    some = np.flatnonzero(NUMBERS < 30)
    classes = classes_of(ROWS[some], NAMES[some], ())
    known, unknown = ROWS[some] + 0.02, ROWS[NUMBERS >= 30]
    minus = np.full(len(known), -1)
    own, others = (classes.of([nearest(row, some) for row in rows], minus, 0.1) for rows in (known, unknown))
    assert np.mean([one.label == name for one, name in zip(own, NAMES)]) > 0.9
    assert np.mean([one.label is None for one in others]) >= 0.9
    assert all((one.label is None) == (one.score < one.threshold) for one in others)
    assert own[0].nearest == own[0].label == "class 00" and 0.5 < own[0].share <= 1
    wanted = acceptance(held_out(ROWS[some], NUMBERS[some]), 0.1)
    assert own[0].threshold == wanted.high < math.inf and "at most 10 % of the images" in own[0].promise


def test_classes_that_were_trained_on_do_not_say_how_others_are_classified():
    trained = [class_fingerprint(f"class {number:02}") for number in range(10)]
    found = classes_of(ROWS, NAMES, trained)
    assert found.untrained == 30 and set(found.measured.own) == set(range(10, 40))
    assert 0 < np.mean(found.measured.absent.label < 10) < 1
    few = classes_of(ROWS, NAMES, [*trained, *map(class_fingerprint, NAMES[NUMBERS >= 14])])
    least, promise = few.threshold(0.05)
    assert math.isinf(least) and "4 classes that the model was not trained on; 5 are needed" in promise


def test_images_without_a_label_do_not_vote():
    labels = np.where(NUMBERS % 4, NAMES, "")
    found, alone = (
        classes_of(ROWS, labels, ()),
        classes_of(ROWS[NUMBERS % 4 > 0], labels[NUMBERS % 4 > 0], ()),
    )
    assert found.threshold(0.1) == alone.threshold(0.1) and found.names == alone.names
    assert found.labelled.tolist() == np.flatnonzero(NUMBERS % 4).tolist()
    with pytest.raises(InputError, match="no two images with a label to classify by"):
        classes_of(ROWS, [""] * len(ROWS), ())


def test_an_image_of_the_index_has_no_vote_on_itself_and_a_small_index_names_the_nearest(folder, photos):
    index = search.open(folder)
    path = photos / "class 0/0.jpg"
    (by_id,), (by_file,) = (index.classify(one) for one in ("class 0/0.jpg", str(path)))
    assert by_file.score == pytest.approx(by_id.score, abs=1e-4)
    assert index.classify([path.read_bytes()]) == [by_file]
    (by_vector,) = index.classify(index.embed([str(path)]))
    assert by_vector.nearest == "class 0" and by_vector.score > by_file.score
    # A file that the index does not have.
    assert index.classify(path.read_bytes() + b"\0") == [by_vector]
    assert by_file.label is None and math.isinf(by_file.threshold)
    assert "the index has 3 classes that the model was not trained on; 5 are needed" in by_file.promise
    with pytest.raises(InputError, match="Expected a finite number above 0 and below 1"):
        index.classify("class 0/0.jpg", far=1)
    with pytest.raises(InputError, match="neither the id of an image of the index nor an image file"):
        index.classify("nothing.jpg")


def test_a_class_of_five_photos_is_known_once_they_are_indexed(embedder, tmp_path):
    """Photos of a class are one blot in several sizes."""
    for kind in range(8):
        for size in range(20):
            write_photo(tmp_path / f"photos/kind {kind}/{size}.jpg", kind, (24 + size, 18))
    new = [str(write_photo(tmp_path / f"{size}.jpg", 99, (24 + size, 18))) for size in range(12)]
    folder, photos = str(tmp_path / "index"), tmp_path / "photos"
    updated(folder, embedder, photos)
    before = search.open(folder).classify(new[5:], far=0.2)
    assert {one.label for one in before} == {None} and math.isfinite(before[0].threshold)
    for size in range(5):
        write_photo(photos / f"a new kind/{size}.jpg", 99, (24 + size, 18))
    updated(folder, embedder, photos)
    after = search.open(folder).classify(new[5:], far=0.2)
    assert {one.label for one in after} == {"a new kind"}
    # Photos without a label are as near, and say nothing.
    for size in range(12):
        write_photo(photos / f"{size}.jpg", 99, (24 + size, 18))
    updated(folder, embedder, photos)
    index = search.open(folder)
    assert "" in [one["label"] or "" for one in index.search(new[8], k=9)[0].metadata]
    assert {one.label for one in index.classify(new[5:], far=0.2)} == {"a new kind"}
