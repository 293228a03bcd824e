"""Landmarks-clean, ROxford5k and RParis6k in the layout of their publishers."""

import dataclasses
import hashlib
import pickle

import numpy as np
import pytest

from tfrank.common.checks import InputError
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.landmarks_clean import read_landmarks_clean
from tfrank.data.sources.revisited import ground_truth, read_roxford5k, read_rparis6k

# Landmarks-clean: lines of the published lists, one shortened, and one with a path of the user.
TRAIN = """\
http://www.cepolina.com/photo/Europe/Venice-Arsenal-military-navy.jpg 424 140 235 96 179
http://www.tury.ru/img.php?hid=74210&pid=387095&v=n 522 51 147 67 126
"""
VAL = """\
http://imagecache6.allposters.com/LRG/\\22\\2278\\5F3ID00Z.jpg 253 42 329 9 377
mine/Saksayuaman i okrestnosti.jpg 213 693 877 598 669
"""


@pytest.fixture
def landmarks(tmp_path):
    folder = tmp_path / "landmarks" / "annotations_landmarks"
    folder.mkdir(parents=True)
    (folder / "annotation_clean_train.txt").write_text(TRAIN)
    (folder / "annotation_clean_val.txt").write_text(VAL)
    return folder.parent


def hashed(url):
    return f"images/{hashlib.md5(url.encode()).hexdigest()}.jpg"


def test_a_landmark_has_its_number_its_box_and_the_path_of_its_url(landmarks):
    def image(split, path, label, *box):
        return SourceImage(split=split, path=path, label=label, text=str(label), id=path, box=box)

    assert list(read_landmarks_clean(str(landmarks))) == [
        # x1 x2 y1 y2, as published, are x1, y1, x2 - x1, y2 - y1.
        image("train", hashed(TRAIN.split(" ")[0]), 424, 140, 96, 95, 83),
        image("train", hashed("http://www.tury.ru/img.php?hid=74210&pid=387095&v=n"), 522, 51, 67, 96, 59),
        image("val", hashed(VAL.split(" ")[0]), 253, 42, 9, 287, 368),
        image("val", "mine/Saksayuaman i okrestnosti.jpg", 213, 693, 598, 184, 71),
    ]


def test_the_lists_may_lie_in_the_folder_itself(landmarks):
    expected = list(read_landmarks_clean(str(landmarks)))
    assert list(read_landmarks_clean(str(landmarks / "annotations_landmarks"))) == expected


def test_the_folder_that_holds_that_of_the_landmarks_is_as_good(landmarks):
    inside = [
        dataclasses.replace(image, path=f"{landmarks.name}/{image.path}")
        for image in read_landmarks_clean(str(landmarks))
    ]
    assert list(read_landmarks_clean(str(landmarks.parent))) == inside


COLUMNS = r"the columns url_or_path, landmark \(a whole number\), x1 \(a number\)"


@pytest.mark.parametrize(
    "line, message",
    [
        ("http://a.b/c.jpg 4 1 2 3", COLUMNS),
        ("http://a.b/c.jpg 4 1 2 3 x", COLUMNS),
        ("http://a.b/c.jpg -4 1 2 3 4", COLUMNS),
        (f"http://a.b/c.jpg {2**70} 1 2 3 4", COLUMNS),
        ("http://a.b/c.jpg 4 1 2 nan 4", COLUMNS),
        ("<html>", COLUMNS),
        ("a.jpg 424", COLUMNS),
    ],
)
def test_a_line_that_is_not_as_published_is_named(landmarks, line, message):
    (landmarks / "annotations_landmarks" / "annotation_clean_val.txt").write_text(f"{VAL}\n{line}\n")
    with pytest.raises(InputError, match=rf"clean_val\.txt, line 4: expected {message}"):
        list(read_landmarks_clean(str(landmarks)))


def test_a_missing_list_is_named(landmarks):
    (landmarks / "annotations_landmarks" / "annotation_clean_val.txt").unlink()
    with pytest.raises(
        InputError, match=r"The list .*annotations_landmarks/annotation_clean_val\.txt does not exist"
    ):
        next(read_landmarks_clean(str(landmarks)))


# ROxford5k and RParis6k.

GALLERY = ["all_souls_000153", "radcliffe_camera_000158", "oxford_003410", "ashmolean_000283"]
QUERIES = ["all_souls_000013", "all_souls_000026"]
READERS = {"roxford5k": read_roxford5k, "rparis6k": read_rparis6k}


def truth(kind=list):
    return {
        "imlist": GALLERY,
        "qimlist": QUERIES,
        "gnd": [
            {"bbx": [136.5, 34.1, 648.5, 955.7], "easy": kind([0, 3]), "hard": kind([2]), "junk": kind([])},
            {"bbx": kind([10, 20, 110, 70]), "easy": kind([]), "hard": kind([1]), "junk": kind([0, 2])},
        ],
    }


@pytest.fixture
def write(tmp_path):
    """A function that writes the ground truth of a name, and gives its folder."""

    def write(tree, name="roxford5k", protocol=2):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / f"gnd_{name}.pkl").write_bytes(pickle.dumps(tree, protocol))
        return str(folder)

    return write


@pytest.mark.parametrize("kind", [list, np.array, lambda places: np.array([places], np.int32)])
@pytest.mark.parametrize("name", READERS)
def test_queries_come_with_boxes_before_the_gallery(write, name, kind):
    queries, gallery = [], []
    for query, box in zip(QUERIES, [(136.5, 34.1, 512, 921.6), (10, 20, 100, 50)]):
        queries.append(("query", f"jpg/{query}.jpg", f"query/{query}", pytest.approx(box)))
    for image in GALLERY:
        gallery.append(("gallery", f"jpg/{image}.jpg", f"gallery/{image}", None))
    images = list(READERS[name](write(truth(kind), name)))
    assert [(image.role, image.path, image.id, image.box) for image in images] == queries + gallery
    assert {(image.split, image.label, image.text) for image in images} == {("test", -1, "")}


@pytest.mark.parametrize("kind", [list, np.array])
def test_the_ground_truth_is_of_plain_lists_of_ids(write, kind):
    found = ground_truth(write(truth(kind)), "roxford5k")
    assert found == {
        "query/all_souls_000013": {
            "easy": ["gallery/all_souls_000153", "gallery/ashmolean_000283"],
            "hard": ["gallery/oxford_003410"],
            "junk": [],
        },
        "query/all_souls_000026": {
            "easy": [],
            "hard": ["gallery/radcliffe_camera_000158"],
            "junk": ["gallery/all_souls_000153", "gallery/oxford_003410"],
        },
    }


def test_the_folder_that_holds_that_of_the_city_is_as_good(write, tmp_path):
    folder = write(truth())
    inside = [dataclasses.replace(image, path=f"roxford5k/{image.path}") for image in read_roxford5k(folder)]
    assert list(read_roxford5k(str(tmp_path))) == inside
    assert ground_truth(str(tmp_path), "roxford5k") == ground_truth(folder, "roxford5k")


def test_ids_of_queries_and_gallery_differ_where_names_do_not(write):
    images = list(read_roxford5k(write({**truth(), "qimlist": GALLERY[:2]})))
    assert len({image.id for image in images}) == len(images) == 6


@pytest.mark.parametrize("linked", [False, True])
def test_distractors_are_all_images_of_a_folder_with_paths_from_the_source(write, tmp_path, linked):
    for name in ("jpg/b/2.jpg", "jpg/a/1.JPG", "3.png", "revisitop1m.txt", "jpg/.hidden.jpg"):
        path = tmp_path / "elsewhere" / "r1m" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    folder = write(truth())
    if linked:
        (tmp_path / "far" / "away").mkdir(parents=True)
        (tmp_path / "far" / "away" / "link").symlink_to(folder)
        folder = str(tmp_path / "far" / "away" / "link")
    images = list(read_roxford5k(folder, distractors=str(tmp_path / "elsewhere" / "r1m")))[6:]
    assert [image.id for image in images] == [
        f"distractor/{n}" for n in ("3.png", "jpg/a/1.JPG", "jpg/b/2.jpg")
    ]
    assert {(image.role, image.split, image.label, image.box) for image in images} == {
        ("distractor", "test", -1, None)
    }
    for image in images:
        with open(f"{folder}/{image.path}", "rb") as file:
            assert file.read() == b"x"


def test_a_missing_folder_of_distractors_is_refused_before_the_first_image(write, tmp_path):
    with pytest.raises(InputError, match=r"The folder of distractors does not exist: .*/r1m\."):
        next(read_roxford5k(write(truth()), distractors=str(tmp_path / "r1m")))


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"gnd": truth()["gnd"][:1]}, "2 queries, 1 entries"),
        ({"gnd": [{**truth()["gnd"][0], "hard": [4]}] * 2}, "hard has a position outside of imlist"),
        ({"gnd": [{**truth()["gnd"][0], "junk": [-1]}] * 2}, "junk has a position outside of imlist"),
        ({"gnd": [{**truth()["gnd"][0], "bbx": [1, 2, 3]}] * 2}, r"bbx=\[1\.0, 2\.0, 3\.0\]"),
        ({"gnd": [{**truth()["gnd"][0], "bbx": [1, 2, 1, 4]}] * 2}, r"bbx=\[1\.0, 2\.0, 1\.0, 4\.0\]"),
        ({"gnd": [{**truth()["gnd"][0], "bbx": [1, 2, np.nan, 4]}] * 2}, r"bbx=\[1\.0, 2\.0, nan, 4\.0\]"),
        ({"gnd": [{"bbx": [1, 2, 3, 4], "ok": [1]}] * 2}, "KeyError.*easy"),
        ({"imlist": None}, "TypeError"),
    ],
)
def test_a_pickle_of_other_content_is_named(write, change, reason):
    folder = write({**truth(), **change})
    with pytest.raises(
        InputError, match=rf"gnd_roxford5k\.pkl is not the ground truth of roxford5k.*{reason}"
    ):
        next(read_roxford5k(folder))


def test_a_pickle_that_is_a_list_is_named(write):
    with pytest.raises(
        InputError, match=r"gnd_roxford5k\.pkl is not the ground truth of roxford5k: it should"
    ):
        next(read_roxford5k(write([1, 2])))


def test_the_ground_truth_is_read_by_the_restricted_unpickler(write):
    with pytest.raises(InputError, match=r"gnd_roxford5k\.pkl names \w+\.print, which data does not need"):
        next(read_roxford5k(write({**truth(), "imlist": print})))


def test_an_unknown_name_or_a_missing_pickle_is_refused(write):
    with pytest.raises(InputError, match=r'argument `name`.* Did you mean "roxford5k"\?'):
        ground_truth(write(truth()), "oxford5k")
    with pytest.raises(
        InputError, match=r"The list .*roxford5k/gnd_rparis6k\.pkl does not exist\. Give the folder with"
    ):
        next(read_rparis6k(write(truth())))
