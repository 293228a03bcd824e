"""Published data sets of objects: trees in the official layout, from lines of the official lists."""

import dataclasses
import pathlib
import shutil
import tracemalloc

import pytest

from tests.data.sources.trees import (
    CARS,
    IMAGES,
    LISTS,
    TEST_LIST,
    TRAIN_LIST,
    expected,
    lay_out,
    write,
    write_cars,
)
from tfrank.common.checks import InputError
from tfrank.data.sources import SOURCES
from tfrank.data.sources.counts import compare_counts
from tfrank.data.sources.image import Count, Source, SourceImage
from tfrank.data.sources.vehicle_id import read_vehicle_id


def read(key: str, folder: pathlib.Path) -> list[SourceImage]:
    return list(SOURCES[key].read(str(folder)))


@pytest.mark.parametrize("key", IMAGES)
def test_the_official_lists_give_their_images(tmp_path, key):
    assert read(key, lay_out(tmp_path, key)) == expected(key)


@pytest.mark.parametrize("key", IMAGES)
def test_the_folder_that_holds_the_unpacked_one_is_as_good(tmp_path, key):
    lay_out(tmp_path / "unpacked", key)
    (tmp_path / "something else").mkdir()
    assert read(key, tmp_path) == [
        dataclasses.replace(image, path=f"unpacked/{image.path}") for image in expected(key)
    ]


@pytest.mark.parametrize("key", IMAGES)
def test_two_unpacked_folders_are_ambiguous(tmp_path, key):
    lay_out(tmp_path / "one", key)
    lay_out(tmp_path / "two", key)
    with pytest.raises(InputError, match=r"in several folders: one, two\. Give one of them\."):
        read(key, tmp_path)


NEEDED = [(key, name) for key in LISTS for name in LISTS[key] if "6000" not in name]


@pytest.mark.parametrize("key, name", [*NEEDED, ("cars", "cars_annos.mat")])
@pytest.mark.parametrize("place", ["the list", "all lists", "the folder"])
def test_a_missing_list_is_named_with_what_the_folder_should_be(tmp_path, key, name, place):
    folder = lay_out(tmp_path / "data", key)
    if place == "the list":
        (folder / name).unlink()
    else:
        shutil.rmtree(folder)
        name = [*LISTS.get(key, ()), "cars_annos.mat"][0]
        if place == "all lists":
            folder.mkdir()
    with pytest.raises(InputError) as error:
        read(key, folder)
    assert str(error.value).startswith(f"The list {folder / name} does not exist. Give the folder ")


BAD_LINES = [
    (
        "sop",
        "Ebay_train.txt",
        3,
        "2 1 1",
        "image_id (a whole number), class_id (a whole number), super_class",
    ),
    ("sop", "Ebay_train.txt", 2, "1 1 1 a b.JPG", "path"),
    ("sop", "Ebay_test.txt", 2, "1 one 1 a.JPG", "class_id (a whole number)"),
    ("sop", "Ebay_test.txt", 1, "1 1 1 a.JPG", "the header 'image_id class_id super_class_id path'"),
    ("in_shop", "Eval/list_eval_partition.txt", 1, "four", "the column number_of_images (a whole number)"),
    ("in_shop", "Eval/list_eval_partition.txt", 2, "img/a.jpg id_1 train", "the header 'image_name item_id"),
    (
        "in_shop",
        "Eval/list_eval_partition.txt",
        4,
        "img/a.jpg id_1",
        "image_name, item_id, evaluation_status",
    ),
    ("in_shop", "Eval/list_eval_partition.txt", 4, "img/a.jpg 12 train", "item_id"),
    ("in_shop", "Eval/list_eval_partition.txt", 4, "img/a.jpg id_x train", "item_id"),
    ("in_shop", "Eval/list_eval_partition.txt", 4, "img/a.jpg id_1 val", "status of train, query, gallery"),
    ("vehicle_id", "train_test_split/train_list.txt", 2, "0000007", "vehicle_id (a whole number)"),
    ("vehicle_id", "train_test_split/test_list_800.txt", 1, "a 1", "image_id (a whole number)"),
    ("vehicle_id", "train_test_split/test_list_800.txt", 1, "-1 1", "image_id (a whole number)"),
    ("vehicle_id", "train_test_split/test_list_800.txt", 1, f"1 {2**64}", "vehicle_id (a whole number)"),
    ("inaturalist", TRAIN_LIST, 1, "train_val2018/Plantae/a.jpg", "train_val2018/<group>/<number of a"),
    ("inaturalist", TEST_LIST, 2, "train_val2018/Aves/x/a.jpg", "train_val2018/<group>/<number of a"),
    ("cub", "images.txt", 2, "2 a b", "image_id (a whole number), image_name"),
    ("cub", "image_class_labels.txt", 1, "1 one", "class_id (a whole number)"),
    ("cub", "bounding_boxes.txt", 2, "2 139.0 30.0 153.0", "image_id (a whole number), x (a number)"),
    ("cub", "bounding_boxes.txt", 2, "2 139.0 30.0 0.0 264.0", "width (a positive number)"),
    ("cub", "bounding_boxes.txt", 2, "2 139.0 30.0 153.0 -1", "height (a positive number)"),
    ("cub", "bounding_boxes.txt", 2, "2 nan 30.0 153.0 264.0", "x (a number)"),
    ("cub", "classes.txt", 3, "101", "class_id (a whole number), class_name"),
    ("cub", "images.txt", 2, "7 images/of no class.jpg", "image_id"),
    ("cub", "images.txt", 2, "7 of_no_class.jpg", "an image with a class, its name and a box in image_class"),
]


@pytest.mark.parametrize("key, name, number, line, message", BAD_LINES)
def test_a_bad_line_is_named(tmp_path, key, name, number, line, message):
    folder = lay_out(tmp_path, key)
    lines = LISTS[key][name].splitlines()
    lines[number - 1] = line
    path = write(folder, name, "\n".join(lines))
    with pytest.raises(InputError) as error:
        read(key, folder)
    assert str(error.value).startswith(f"{path}, line {number}: expected ")
    assert message in str(error.value)
    assert str(error.value).endswith(f", but the line is {line!r}.")


@pytest.mark.parametrize("name", ["image_class_labels.txt", "bounding_boxes.txt", "classes.txt"])
def test_an_image_of_cub_that_another_list_lacks_is_named(tmp_path, name):
    folder = lay_out(tmp_path, "cub")
    write(folder, name, "".join(LISTS["cub"][name].splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match=r"images\.txt, line 4: expected an image with a class, its name"):
        read("cub", folder)


@pytest.mark.parametrize("key, name", NEEDED)
@pytest.mark.parametrize("content", [b"", b"\r\n \n"])
def test_an_empty_list_is_refused(tmp_path, key, name, content):
    path = write(lay_out(tmp_path, key), name, content)
    with pytest.raises(InputError) as error:
        read(key, tmp_path)
    assert str(error.value) == f"{path} is truncated: it has 0 lines. Unpack or download it again."


def test_a_list_of_a_header_alone_is_refused(tmp_path):
    write(lay_out(tmp_path, "sop"), "Ebay_test.txt", "image_id class_id super_class_id path\n")
    with pytest.raises(InputError, match=r"Ebay_test\.txt is truncated: it has 1 lines"):
        read("sop", tmp_path)


@pytest.mark.parametrize("key, name", NEEDED)
def test_a_list_that_is_not_utf_8_is_refused_by_line(tmp_path, key, name):
    content = LISTS[key][name].encode()
    second = len(content.splitlines(keepends=True)[0])
    path = write(lay_out(tmp_path, key), name, content[:second] + b"caf\xe9 1\n" + content[second:])
    with pytest.raises(InputError) as error:
        read(key, tmp_path)
    assert str(error.value).startswith(f"{path}, line 2: not UTF-8 (")


@pytest.mark.parametrize("key", LISTS)
def test_windows_line_ends_byte_order_marks_and_blank_lines_change_nothing(tmp_path, key):
    lay_out(tmp_path, key)
    for name, text in LISTS[key].items():
        write(tmp_path, name, "\ufeff" + text.replace("\n", "\r\n").rstrip() + "\r\n\r\n")
    assert read(key, tmp_path) == expected(key)


# What single data sets have of their own.


def test_in_shop_is_read_without_the_folder_eval_too(tmp_path):
    write(tmp_path, "data/list_eval_partition.txt", LISTS["in_shop"]["Eval/list_eval_partition.txt"])
    assert read("in_shop", tmp_path / "data") == expected("in_shop")
    assert [image.id for image in read("in_shop", tmp_path)] == [image.id for image in expected("in_shop")]


@pytest.mark.parametrize("inside", ["", "data"])
def test_the_list_of_in_shop_may_lie_in_anno_which_is_not_the_root(tmp_path, inside):
    text = LISTS["in_shop"]["Eval/list_eval_partition.txt"]
    write(tmp_path / inside, "Anno/list_eval_partition.txt", text)
    paths = [image.path for image in read("in_shop", tmp_path)]
    assert paths == [str(pathlib.PurePosixPath(inside, image.path)) for image in expected("in_shop")]


def test_images_of_in_shop_are_found_where_the_archive_unpacks_them(tmp_path):
    lay_out(tmp_path, "in_shop")
    (tmp_path / "Img" / "img").mkdir(parents=True)
    assert read("in_shop", tmp_path)[0].path == "Img/img/WOMEN/Dresses/id_00000002/02_1_front.jpg"


@pytest.mark.parametrize("count", ["3", "5"])
def test_a_list_of_in_shop_with_another_count_than_its_first_line_is_refused(tmp_path, count):
    text = LISTS["in_shop"]["Eval/list_eval_partition.txt"]
    write(tmp_path, "Eval/list_eval_partition.txt", count + text[1:])
    message = rf"is truncated or changed: it lists 4 images, but its first line says {count}"
    with pytest.raises(InputError, match=message):
        next(SOURCES["in_shop"].read(str(tmp_path)))


def test_the_split_of_cars_is_by_class_and_not_the_test_flag_of_the_file(tmp_path):
    splits = [image.split for image in read("cars", lay_out(tmp_path, "cars"))]
    assert splits == ["train", "train", "train", "test"]
    assert [car[-1] for car in CARS] == [0, 1, 1, 0]


def test_one_annotation_of_cars_is_a_list_of_one(tmp_path):
    write_cars(tmp_path / "cars_annos.mat", CARS[:1])
    assert read("cars", tmp_path) == expected("cars")[:1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes(128) * 100),
        lambda path: path.write_bytes(b"<html>404</html>" * 100),
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: path.write_bytes(path.read_bytes().replace(path.read_bytes()[400:420], bytes(20))),
        lambda path: write_cars(path, class_names=None),
        lambda path: write_cars(path, annotations=[]),
        lambda path: write_cars(path, [("car_ims/000001.jpg", 112, 7, 853, 717, 197, 0)]),
        lambda path: write_cars(path, [("car_ims/000001.jpg", 112, 7, 112, 717, 1, 0)]),
        lambda path: write_cars(path, [("car_ims/000001.jpg", 112, 7, 853, "far", 1, 0)]),
    ],
    ids=[
        "empty",
        "zeros",
        "a web page",
        "half",
        "flipped",
        "no names",
        "no annotations",
        "class",
        "box",
        "type",
    ],
)
def test_a_damaged_file_of_cars_is_refused(tmp_path, damage):
    path = lay_out(tmp_path, "cars") / "cars_annos.mat"
    damage(path)
    with pytest.raises(InputError) as error:
        read("cars", tmp_path)
    assert str(error.value).startswith(f"{path} is damaged (")


def write_cars_devkit(folder, place="devkit", labels="devkit"):
    """The annotations of `CARS` as the devkit has them, the last two of the part to test on."""
    fields = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
    rows = [(*row[1:6], row[0].removeprefix("car_ims/0")) for row in CARS]
    (folder / place).mkdir(parents=True, exist_ok=True)
    write_cars(folder / place / "cars_meta.mat", annotations=None)
    for name, part in ((f"{place}/cars_train", rows[:2]), (f"{labels}/cars_test", rows[2:])):
        path = folder / f"{name}_annos{'_withlabels' * name.endswith('test')}.mat"
        write_cars(path, part, fields, class_names=None)
    return folder


@pytest.mark.parametrize(
    "place, labels", [("devkit", "devkit"), ("car_devkit/devkit", "."), ("devkit", "."), (".", ".")]
)
@pytest.mark.parametrize("inside", ["", "data"])
@pytest.mark.parametrize("nested", [False, True])
def test_cars_are_read_by_the_devkit_too(tmp_path, place, labels, inside, nested):
    write_cars_devkit(tmp_path / inside, place, labels)
    parts = ["cars_train/", "cars_train/", "cars_test/", "cars_test/"]
    if nested:
        parts = [2 * part for part in parts]
        for part in parts:
            (tmp_path / inside / part).mkdir(parents=True, exist_ok=True)
    wanted = [
        dataclasses.replace(
            image, path=str(pathlib.PurePosixPath(inside, part, image.path[9:])), id=part + image.path[9:]
        )
        for part, image in zip(parts, expected("cars"))
    ]
    assert read("cars", tmp_path) == wanted


def test_the_devkit_of_cars_without_the_classes_of_its_test_part_is_told_of_the_file_that_has_them(tmp_path):
    write_cars_devkit(tmp_path)
    (tmp_path / "devkit" / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(
        InputError, match=r"devkit has no cars_test_annos_withlabels\.mat\. .* Download that file"
    ):
        read("cars", tmp_path)


@pytest.mark.parametrize("name", ["cars_train_annos", "cars_test_annos_withlabels", "cars_meta"])
def test_a_web_page_in_place_of_a_file_of_cars_is_called_one(tmp_path, name):
    path = write_cars_devkit(tmp_path) / "devkit" / f"{name}.mat"
    path.write_text("<!DOCTYPE html>\n<html lang=en><title>Error 404</title>")
    with pytest.raises(InputError, match=f"{path} is damaged .it is a web page in HTML.*Download it again"):
        read("cars", tmp_path)


def test_lists_are_not_held_in_memory(tmp_path):
    lines = "".join(f"{image:07d} {image % 100}\n" for image in range(20_000))
    write(lay_out(tmp_path, "vehicle_id"), "train_test_split/train_list.txt", lines)
    tracemalloc.start()
    count = sum(1 for _ in read_vehicle_id(str(tmp_path)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_005 and peak < 500_000


@pytest.mark.parametrize("lists", [[6000], (6000, 800, 6000)])
def test_of_vehicle_id_the_test_lists_asked_for_are_read_and_no_others_needed(tmp_path, lists):
    lay_out(tmp_path, "vehicle_id")
    (tmp_path / "train_test_split" / "test_list_1600.txt").unlink()
    splits = [image.split for image in read_vehicle_id(str(tmp_path), lists=lists)]
    assert list(dict.fromkeys(splits)) == ["train", *(f"test_{number}" for number in sorted(set(lists)))]


@pytest.mark.parametrize("lists", [6000, [6000]])
def test_one_test_list_of_vehicle_id_may_be_given_as_a_number(tmp_path, lists):
    images = read_vehicle_id(str(lay_out(tmp_path, "vehicle_id")), lists=lists)
    assert {image.split for image in images} == {"train", "test_6000"}


def test_the_option_for_the_test_lists_that_are_there_is_named(tmp_path):
    lay_out(tmp_path, "vehicle_id")
    for number in (1600, 2400):
        (tmp_path / "train_test_split" / f"test_list_{number}.txt").unlink()
    with pytest.raises(InputError, match=r"The list .*test_list_1600\.txt does.* --option=lists=800,6000$"):
        next(read_vehicle_id(str(tmp_path)))


@pytest.mark.parametrize("lists", [801, [801], [], ["800"], "800"])
def test_test_lists_that_vehicle_id_has_not_are_refused(tmp_path, lists):
    with pytest.raises(InputError, match="argument `lists`"):
        list(read_vehicle_id(str(lay_out(tmp_path, "vehicle_id")), lists=lists))


# Official counts.

PARTS = {"train": Count(11_318, 59_551), "test": Count(11_316, 60_502)}


@pytest.mark.parametrize(
    "counts, lines",
    [
        (PARTS, []),
        (PARTS | {"validation": Count(1, 1)}, []),
        (
            PARTS | {"train": Count(11_318, 59_550)},
            ["train: 59,550 images of 11,318 classes; officially 59,551 of 11,318: 1 image fewer."],
        ),
        (
            {"train": Count(11_320, 59_551), "test": Count(1, 60_504)},
            [
                "train: 59,551 images of 11,320 classes; officially 59,551 of 11,318: 2 classes more.",
                "test: 60,504 images of 1 class; officially 60,502 of 11,316: 2 images more,"
                " 11,315 classes fewer.",
            ],
        ),
        (
            {"train": PARTS["train"]},
            [
                "test: 0 images of 0 classes; officially 60,502 of 11,316: 60,502 images fewer,"
                " 11,316 classes fewer."
            ],
        ),
    ],
)
def test_counts_that_differ_from_the_official_ones_are_said(counts, lines):
    assert compare_counts(SOURCES["sop"], counts) == lines


def test_classes_that_are_not_published_or_not_known_are_not_compared():
    source = Source(read=iter, counts={"distractors": Count(None, 1_001_001), "queries": Count(11, 70)})
    counts = {"distractors": Count(0, 1_000_000), "queries": Count(None, 1)}
    assert compare_counts(source, counts) == [
        "distractors: 1,000,000 images; officially 1,001,001: 1,001 images fewer.",
        "queries: 1 image; officially 70: 69 images fewer.",
    ]


def test_of_vehicle_id_the_papers_other_numbers_are_always_said():
    source = SOURCES["vehicle_id"]
    (remark,) = compare_counts(source, source.counts)
    assert all(number in remark for number in ("13,134", "110,178", "7,332", "12,995", "20,038", "113,346"))
    assert len(compare_counts(source, source.counts | {"train": Count(0, 0)})) == 2
