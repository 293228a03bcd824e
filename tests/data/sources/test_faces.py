"""VGGFace2 and IJB-C in the layout of their publishers."""

import dataclasses
import itertools
import tracemalloc

import pytest

from tfrank.common.checks import InputError
from tfrank.data.sources.ijb_c import read_ijb_c
from tfrank.data.sources.image import SourceImage
from tfrank.data.sources.vgg_face2 import read_vgg_face2

# VGGFace2. The first image is as published.
LISTS = {"train": ["n000002/0001_01", "n000002/0002_01", "n000003/0007_02"], "test": ["n000001/0001_01"]}
BOX_HEADER = "NAME_ID,X,Y,W,H"
POINT_HEADER = "NAME_ID,P1X,P1Y,P2X,P2Y,P3X,P3Y,P4X,P4Y,P5X,P5Y"
BOXES = {
    "train": [
        '"n000002/0001_01",161,140,224,324',
        '"n000002/0002_01",-3,5,60,79',
        '"n000003/0007_02",1,2,3,4',
    ],
    "test": ['"n000001/0001_01",60,60,79,109'],
}
POINTS = {
    split: [f'"{name}",239.4643,276.5054,349.8496,282.2599,311.2406,354.8974,236.0358,391.3312,342.1541,{y}'
            for y, name in enumerate(names)]
    for split, names in LISTS.items()
}  # fmt: skip


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def vgg(tmp_path):
    folder = tmp_path / "VGG-Face2"
    for split, names in LISTS.items():
        write(folder / f"{split}_list.txt", *(f"{name}.jpg" for name in names))
        write(folder / "bb_landmark" / f"loose_bb_{split}.csv", BOX_HEADER, *BOXES[split])
        write(folder / "bb_landmark" / f"loose_landmark_{split}.csv", POINT_HEADER, *POINTS[split])
    return folder


def test_a_face_has_its_identity_box_and_points(vgg):
    images = list(read_vgg_face2(str(vgg)))
    assert images[0] == SourceImage(
        split="train",
        path="train/n000002/0001_01.jpg",
        label=2,
        text="n000002",
        id="n000002/0001_01",
        box=(161, 140, 224, 324),
        landmarks=(
            (239.4643, 276.5054),
            (349.8496, 282.2599),
            (311.2406, 354.8974),
            (236.0358, 391.3312),
            (342.1541, 0),
        ),
    )
    assert [
        (image.split, image.path, image.label, image.box, image.landmarks[4][1]) for image in images[1:]
    ] == [
        ("train", "train/n000002/0002_01.jpg", 2, (-3, 5, 60, 79), 1),
        ("train", "train/n000003/0007_02.jpg", 3, (1, 2, 3, 4), 2),
        ("test", "test/n000001/0001_01.jpg", 1, (60, 60, 79, 109), 0),
    ]


def test_lists_and_faces_may_lie_in_meta(vgg):
    expected = list(read_vgg_face2(str(vgg)))
    (vgg / "meta").mkdir()
    for name in ("train_list.txt", "test_list.txt", "bb_landmark"):
        (vgg / name).rename(vgg / "meta" / name)
    assert list(read_vgg_face2(str(vgg))) == expected


def test_without_the_folder_of_faces_images_come_without_them(vgg):
    (vgg / "bb_landmark").rename(vgg / "elsewhere")
    images = list(read_vgg_face2(str(vgg)))
    assert [image.id for image in images] == [*LISTS["train"], *LISTS["test"]]
    assert {(image.box, image.landmarks) for image in images} == {(None, None)}


@pytest.mark.parametrize(
    "file, header, lines", [("bb", BOX_HEADER, BOXES), ("landmark", POINT_HEADER, POINTS)]
)
@pytest.mark.parametrize(
    "order, named, line, message",
    [
        (
            [0, 2, 1],
            "face",
            3,
            r"the face of n000002/0002_01, which .*/train_list\.txt has in line 2, but the",
        ),
        ([0, 1], "image", 3, r"no more images, since .*\.csv has no more faces, but the line is 'n000003/"),
        (
            [0, 1, 2, 2],
            "face",
            5,
            r"no more faces, since .*/train_list\.txt has no more images, but the line",
        ),
    ],
)
def test_faces_in_another_order_than_the_list_are_refused_with_both_files(
    vgg, file, header, lines, order, named, line, message
):
    path = vgg / "bb_landmark" / f"loose_{file}_train.csv"
    write(path, header, *(lines["train"][number] for number in order))
    images = read_vgg_face2(str(vgg))
    assert next(images).id == LISTS["train"][0]
    named = {"face": path, "image": vgg / "train_list.txt"}[named]
    with pytest.raises(InputError, match=rf"^{named}, line {line}: expected {message}.* of the same release"):
        list(images)


@pytest.mark.parametrize(
    "number, line", [(1, "n1/../../a.jpg"), (3, "0002.jpg"), (1, f"n{2**70}/1.jpg"), (2, "n0\u0661/1.jpg")]
)
def test_a_line_that_is_not_as_published_is_named(vgg, number, line):
    (vgg / "bb_landmark").rename(vgg / "elsewhere")
    write(vgg / "test_list.txt", *["n000001/1.jpg", ""][: number - 1], line)
    message = (
        rf"test_list\.txt, line {number}: expected an image such as n000002/0001_01\.jpg, but the line is"
    )
    with pytest.raises(InputError, match=message):
        list(read_vgg_face2(str(vgg)))


SIDES = r"X \(a number\), Y \(a number\), W \(a number\), H \(a number\), but the line is"


@pytest.mark.parametrize(
    "lines, number, message",
    [
        ([BOX_HEADER, '"n000001/0001_01",60,x,79,109'], 2, f"the columns {SIDES}"),
        ([BOX_HEADER, '"n000001/0001_01",60,nan,79,109'], 2, f"the columns {SIDES}"),
        ([BOX_HEADER, '"n000001/0001_01",60'], 2, "5 values, one for each column, but the line is"),
        ([BOX_HEADER, '"n000001/0001_01",60,60,79,109,7'], 2, "5 values"),
        ([], 1, "a header with the column NAME_ID, but the line is ''"),
        (["NAME_ID,X,Y,W"], 1, "a header with the column H, but the line is 'NAME_ID,X,Y,W'"),
    ],
)
def test_a_csv_that_is_not_as_published_is_named(vgg, lines, number, message):
    write(vgg / "bb_landmark" / "loose_bb_test.csv", *lines)
    with pytest.raises(InputError, match=rf"loose_bb_test\.csv, line {number}: expected {message}"):
        list(read_vgg_face2(str(vgg)))


def test_a_quote_that_is_not_closed_is_named(vgg):
    write(
        vgg / "bb_landmark" / "loose_bb_train.csv", BOX_HEADER, BOXES["train"][0], '"n000002/0002_01,1,2,3,4'
    )
    with pytest.raises(
        InputError, match=r"loose_bb_train\.csv, line 3: the CSV is damaged \(unexpected end of"
    ):
        list(read_vgg_face2(str(vgg)))


@pytest.mark.parametrize("name", ["train_list.txt", "test_list.txt"])
def test_a_missing_list_is_named_at_once(vgg, name):
    (vgg / name).unlink()
    with pytest.raises(
        InputError, match=rf"The list {vgg / name} does not exist\. Give the folder with train"
    ):
        next(read_vgg_face2(str(vgg)))


def test_a_missing_csv_is_named(vgg):
    path = vgg / "bb_landmark" / "loose_landmark_train.csv"
    path.unlink()
    with pytest.raises(InputError, match=rf"Cannot read {path} \(No such file"):
        next(read_vgg_face2(str(vgg)))


@pytest.mark.parametrize("tree, reader", [("vgg", read_vgg_face2), ("ijb", read_ijb_c)])
def test_the_folder_that_holds_that_of_the_faces_is_as_good(request, tree, reader):
    folder = request.getfixturevalue(tree)
    inside = [dataclasses.replace(image, path=f"{folder.name}/{image.path}") for image in reader(str(folder))]
    assert list(reader(str(folder.parent))) == inside


def peak_of(images):
    tracemalloc.start()
    count = sum(1 for _ in images)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return count, peak


def test_vgg_face2_is_read_line_by_line(vgg):
    names = [f"n{number // 300:06}/{number % 300:04}_01" for number in range(10_000)]
    write(vgg / "train_list.txt", *(f"{name}.jpg" for name in names))
    write(vgg / "bb_landmark" / "loose_bb_train.csv", BOX_HEADER, *(f'"{name}",1,2,3,4' for name in names))
    (vgg / "bb_landmark" / "loose_landmark_train.csv").write_text(
        "".join(
            f"{line}\n"
            for line in itertools.chain([POINT_HEADER], (f'"{n}",1,2,3,4,5,6,7,8,9,0' for n in names))
        )
    )
    count, peak = peak_of(read_vgg_face2(str(vgg)))
    assert count == 10_001 and peak < 500_000


# IJB-C.

HEADER = (
    "SUBJECT_ID,FILENAME,SIGHTING_ID,FACE_X,FACE_Y,FACE_WIDTH,FACE_HEIGHT,FRAME_NUM,FACIAL_HAIR,AGE,"
    "INDOOR_OUTDOOR,SKINTONE,GENDER,YAW,ROLL," + ",".join(f"OCC{number}" for number in range(1, 19))
)


def face(subject, name, sighting, box="10,20,30,40"):
    return f"{subject},{name},{sighting},{box}," + ",".join(["NaN"] * 26)


# Subject 7 has four stills and a video, subject 8 three stills and a video of three frames, 9 a still and
# four videos, of which two share a number with those of subject 7.
FACES = [
    face(7, "img/1.jpg", 100),
    face(8, "img/1.jpg", 200, "50,60,70,80"),
    face(7, "img/2.jpg", 101),
    face(9, "frames/5.png", 102),
    face(7, "img/3.png", 103),
    face(7, "frames/1.png", 102),
    face("NaN", "img/1.jpg", "NaN"),
    face(7, "frames/3.png", 102, "NaN,NaN,NaN,NaN"),
    face(7, "img/4.jpg", 104),
    face(8, "img/2.jpg", 201),
    face(8, "img/3.jpg", 202),
    face(8, "frames/7.png", 203),
    face(8, "frames/8.png", 203),
    face(8, "frames/9.png", 203),
    face(9, "frames/1.png", 300),
    face(9, "img/4.jpg", 301),
    face(9, "frames/6.png", 302),
    face(9, "frames/2.png", 303),
    face("", "frames/2.png", ""),
]


@pytest.fixture
def ijb(tmp_path):
    (tmp_path / "IJB-C" / "images" / "img").mkdir(parents=True)
    write(tmp_path / "IJB-C" / "protocols" / "ijbc_metadata.csv", HEADER, *FACES)
    return tmp_path / "IJB-C"


def test_a_video_of_a_subject_is_a_group_and_a_subject_of_four_instances_is_left_out(ijb):
    images = list(read_ijb_c(str(ijb)))
    assert images[0] == SourceImage(
        split="test", path="images/img/1.jpg", label=7, text="7", id="img/1/7/100", box=(10, 20, 30, 40)
    )
    assert [(image.label, image.path.removeprefix("images/"), image.group) for image in images] == [
        (7, "img/1.jpg", None),
        (7, "img/2.jpg", None),
        (9, "frames/5.png", 0),
        (7, "img/3.png", None),
        (7, "frames/1.png", 1),
        (7, "frames/3.png", 1),
        (7, "img/4.jpg", None),
        (9, "frames/1.png", 2),
        (9, "img/4.jpg", None),
        (9, "frames/6.png", 3),
        (9, "frames/2.png", 4),
    ]
    assert [image.path for image in images if image.box is None] == ["images/frames/3.png"]


def test_two_faces_of_a_picture_have_ids_of_their_own(ijb):
    images = list(read_ijb_c(str(ijb)))
    assert len({image.id for image in images}) == len(images)
    assert {image.id for image in images if image.path == "images/img/4.jpg"} == {
        "img/4/7/104",
        "img/4/9/301",
    }


@pytest.mark.parametrize("place", ["protocol", "."])
def test_the_metadata_may_lie_elsewhere_with_columns_in_any_order_and_pictures_beside_it(ijb, place):
    expected = [(image.id, image.box, image.group) for image in read_ijb_c(str(ijb))]
    turned = [",".join(reversed(line.split(","))) for line in (HEADER, *FACES)]
    (ijb / "protocols" / "ijbc_metadata.csv").unlink()
    (ijb / "images").rename(ijb / "elsewhere")
    write(ijb / place / "ijbc_metadata.csv", *turned)
    images = list(read_ijb_c(str(ijb)))
    assert [(image.id, image.box, image.group) for image in images] == expected
    assert images[0].path == "img/1.jpg"


IDENTITY = r"the columns SUBJECT_ID \(a whole number\), FILENAME, SIGHTING_ID \(a whole number\), but"
FACE = r"the columns FACE_X \(a number\), .* FACE_HEIGHT \(a number\), but the line is '7,img/1"


@pytest.mark.parametrize(
    "line, message",
    [
        (face(7, "video/1.mp4", 1), "a FILENAME in img/ or frames/, but the line is '7,video/1"),
        (face("x", "img/1.jpg", 1), IDENTITY),
        (face(2**70, "img/1.jpg", 1), IDENTITY),
        (face(-1, "img/1.jpg", 1), IDENTITY),
        (face(7, "frames/1.png", "NaN"), IDENTITY),
        (face(7, "img/1.jpg", 1, "a,1,1,1"), FACE),
        (face(7, "img/1.jpg", 1, "1,1,inf,1"), FACE),
        ("7,img/1.jpg", "33 values, one for each column, but the line is '7,img/1.jpg'"),
    ],
)
def test_a_line_of_the_metadata_that_is_not_as_published_is_named(ijb, line, message):
    write(ijb / "protocols" / "ijbc_metadata.csv", HEADER, *FACES, line)
    with pytest.raises(InputError, match=rf"ijbc_metadata\.csv, line 21: expected {message}"):
        list(read_ijb_c(str(ijb)))


def test_a_missing_column_or_file_is_named(ijb):
    path = ijb / "protocols" / "ijbc_metadata.csv"
    write(path, HEADER.replace("SIGHTING_ID", "MEDIA"), *FACES)
    with pytest.raises(
        InputError, match=r"metadata\.csv, line 1: expected a header with the column SIGHTING_ID,"
    ):
        next(read_ijb_c(str(ijb)))
    path.unlink()
    with pytest.raises(InputError, match=rf"The list {path} does not exist\. Give the folder of IJB-C, with"):
        next(read_ijb_c(str(ijb)))


def test_ijb_c_is_read_line_by_line(ijb):
    lines = (face(number // 1000, f"frames/{number}.png", number // 100) for number in range(10_000))
    write(ijb / "protocols" / "ijbc_metadata.csv", HEADER, *lines)
    count, peak = peak_of(read_ijb_c(str(ijb)))
    assert count == 10_000 and peak < 500_000
