"""scikit-learn's digits, as they are and turned."""

import collections

import numpy as np
import pytest
import sklearn.datasets
import tensorflow as tf

from tfrank.common.checks import InputError
from tfrank.data.sources.digits import read_digits


@pytest.fixture(scope="module")
def scans():
    """`[1797, 8, 8]` grey levels 0 to 255 of scikit-learn's scans, which have 17."""
    return np.round(sklearn.datasets.load_digits().images * 255 / 16)


def grey_levels(image):
    return tf.io.decode_png(image.encoded, channels=1).numpy()[..., 0]


def test_digits_to_test_on_are_the_scans_grey_level_by_grey_level(scans):
    images = list(read_digits(train=[], test=range(10)))
    assert len({image.id for image in images}) == len(images) == 1797
    assert [image.label for image in images] == sklearn.datasets.load_digits().target.tolist()
    np.testing.assert_array_equal([grey_levels(image) for image in images], scans)
    assert all(image.split == "test" and image.text == str(image.label) for image in images)


def test_digits_to_train_on_come_in_eight_versions_each_a_class_of_its_own(scans):
    images = list(read_digits(train=[0], test=[]))
    originals = scans[sklearn.datasets.load_digits().target == 0]
    assert len({image.id for image in images}) == len(images) == 8 * len(originals)
    turns = ("", ", turned by 90", ", turned by 180", ", turned by 270")
    expected = {
        f"0{turn}{mirror}": np.rot90(np.flip(originals, 2) if mirror else originals, k, axes=(1, 2))
        for k, turn in enumerate(turns)
        for mirror in ("", ", mirrored")
    }
    by_text = collections.defaultdict(list)
    for image in images:
        by_text[image.text].append(image)
    assert set(by_text) == set(expected)
    for text, versions in expected.items():
        assert len({image.label for image in by_text[text]}) == 1
        np.testing.assert_array_equal([grey_levels(image) for image in by_text[text]], versions)
    assert len({image.label for image in images}) == 8


def test_versions_of_two_digits_are_different_classes():
    texts_by_label = collections.defaultdict(set)
    for image in read_digits(train=[1, 9], test=[]):
        texts_by_label[image.label].add(image.text)
    assert len(texts_by_label) == 16
    assert all(len(texts) == 1 for texts in texts_by_label.values())


def test_an_unknown_digit_is_refused():
    with pytest.raises(InputError, match=r"There are no digits \[12, -1\]; the classes .* are 0 to 9"):
        list(read_digits(train=[3, 12], test=[-1]))


@pytest.mark.parametrize("digits", ["1", 1, ["1"], [[1]]])
@pytest.mark.parametrize("side", ["train", "test"])
def test_what_is_no_list_of_digits_is_refused(digits, side):
    with pytest.raises(
        InputError, match=rf"argument `{side}`. Expected a list of digits|There are no digits"
    ):
        list(read_digits(**{"train": [0], "test": [1], side: digits}))
