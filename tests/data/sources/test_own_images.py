"""Users' own images: folders of classes, and CSV manifests."""

import csv
import itertools
import os
import pathlib
import tracemalloc

import pytest

from tfrank.checks import InputError
from tfrank.data.sources.csv_manifest import read_csv
from tfrank.data.sources.folder import read_folder
from tfrank.data.sources.image import SourceImage


def touch(folder: pathlib.Path, *names: str) -> pathlib.Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def paths(folder, **options):
    return [image.path for image in read_folder(str(folder), **options)]


# One folder a class.


def test_each_folder_is_a_class_with_all_folders_inside_it(tmp_path):
    touch(tmp_path, "robin/2.jpg", "robin/1.PNG", "mallard/wild/a/3.webp", "mallard/4.tiff")
    assert list(read_folder(str(tmp_path), test_share=0)) == [
        SourceImage(split="train", path=path, label=label, text=text, id=path)
        for path, label, text in [
            ("mallard/4.tiff", 0, "mallard"),
            ("mallard/wild/a/3.webp", 0, "mallard"),
            ("robin/1.PNG", 1, "robin"),
            ("robin/2.jpg", 1, "robin"),
        ]
    ]


def test_a_division_by_folders_is_kept_and_a_name_in_both_is_one_class(tmp_path):
    touch(
        tmp_path,
        "train/robin/1.jpg",
        "train/mallard/2.jpg",
        "test/robin/3.jpg",
        "test/owl/4.jpg",
        "val/x/5.jpg",
    )
    images = read_folder(str(tmp_path))
    assert [(image.split, image.role, image.path, image.label, image.text) for image in images] == [
        ("train", "", "train/mallard/2.jpg", 0, "mallard"),
        ("train", "", "train/robin/1.jpg", 2, "robin"),
        ("test", "", "test/owl/4.jpg", 1, "owl"),
        ("test", "", "test/robin/3.jpg", 2, "robin"),
    ]


def test_query_and_gallery_are_roles_of_the_split_test(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "query/b/2.jpg", "gallery/b/3.jpg", "gallery/c/4.jpg")
    images = read_folder(str(tmp_path))
    assert [(image.split, image.role, image.path, image.label) for image in images] == [
        ("train", "", "train/a/1.jpg", 0),
        ("test", "query", "query/b/2.jpg", 1),
        ("test", "gallery", "gallery/b/3.jpg", 1),
        ("test", "gallery", "gallery/c/4.jpg", 2),
    ]


@pytest.mark.parametrize("parts", [["train"], ["test"], ["query", "gallery"], ["train", "query"]])
def test_half_a_division_is_classes_of_that_name(tmp_path, parts):
    touch(tmp_path, *(f"{part}/a/1.jpg" for part in parts))
    assert {image.text for image in read_folder(str(tmp_path))} == set(parts)


def division(folder, **options):
    """The split of each class; fails where a class is on both sides."""
    splits = {}
    for image in read_folder(str(folder), **options):
        assert splits.setdefault(image.text, image.split) == image.split
    return splits


@pytest.mark.parametrize(
    "share, classes, tests", [(0.5, 10, 5), (0.0, 10, 0), (0.34, 10, 3), (0.36, 10, 4), (1, 10, 9), (1, 1, 0)]
)
def test_classes_are_divided_by_the_share_and_one_is_left_to_train_on(tmp_path, share, classes, tests):
    touch(tmp_path, *(f"class{c}/{i}.jpg" for c in range(classes) for i in range(3)))
    splits = division(tmp_path, test_share=share)
    assert len(splits) == classes and list(splits.values()).count("test") == tests


def test_the_division_depends_on_the_seed_alone(tmp_path):
    touch(tmp_path, *(f"class{c:02d}/1.jpg" for c in range(20)))
    divisions = [division(tmp_path, seed=seed) for seed in range(4)]
    assert all(one != other for one, other in itertools.combinations(divisions, 2))
    assert division(tmp_path, seed=2) == divisions[2]


def test_hidden_and_foreign_files_are_left_out(tmp_path):
    touch(
        tmp_path,
        "a/1.jpg",
        "a/.2.jpg",
        "a/.thumbs/3.jpg",
        ".cache/4.jpg",
        "a/notes.txt",
        "a/jpg",
        "loose.jpg",
    )
    touch(tmp_path, "a/archive.jpg.zip", "documents/readme.md")
    (tmp_path / "empty").mkdir()
    assert paths(tmp_path) == ["a/1.jpg"]


@pytest.mark.parametrize(
    "suffix", ["jpg", "jpeg", "jpe", "png", "webp", "gif", "bmp", "tif", "tiff", "JPG", "Jpeg"]
)
def test_files_with_the_suffix_of_an_image_are_images(tmp_path, suffix):
    assert paths(touch(tmp_path, f"a/1.{suffix}")) == [f"a/1.{suffix}"]


def test_a_folder_named_like_an_image_is_a_folder_and_a_broken_link_an_image(tmp_path):
    touch(tmp_path, "a/album.jpg/1.jpg")
    (tmp_path / "a" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a" / "itself.jpg").symlink_to(tmp_path / "a" / "itself.jpg")
    assert paths(tmp_path) == ["a/album.jpg/1.jpg", "a/gone.jpg", "a/itself.jpg"]


def test_links_to_folders_are_followed(tmp_path):
    touch(tmp_path, "elsewhere/1.jpg", "elsewhere/in/2.jpg", "data/b/3.jpg")
    (tmp_path / "data" / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "b" / "more").symlink_to(tmp_path / "elsewhere")
    assert paths(tmp_path / "data") == ["a/1.jpg", "a/in/2.jpg", "b/3.jpg", "b/more/1.jpg", "b/more/in/2.jpg"]


@pytest.mark.parametrize(
    "link, target", [("a/b/back", "a"), ("a/b/c", "."), ("a/self", "a/self"), ("top", ".")]
)
def test_links_in_a_circle_are_not_followed(tmp_path, link, target):
    touch(tmp_path, "a/b/1.jpg", "z/2.jpg")
    (tmp_path / link).symlink_to(tmp_path / target)
    assert paths(tmp_path)[:1] == ["a/b/1.jpg"]
    assert paths(tmp_path)[-1:] == ["z/2.jpg"]
    assert not any("back" in path or "a/b/c/a" in path or "top" in path for path in paths(tmp_path))


def test_two_folders_that_link_to_each_other_end(tmp_path):
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "a" / "b").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "a").symlink_to(tmp_path / "a")
    assert paths(tmp_path) == ["a/1.jpg", "a/b/2.jpg", "b/2.jpg", "b/a/1.jpg"]


def test_names_that_are_not_utf_8_pass_through(tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(folder)
    with open(os.path.join(folder, b"gr\xfcn.jpg"), "wb"):
        pass
    (image,) = read_folder(str(tmp_path))
    assert os.fsencode(image.path) == os.fsencode(image.id) == b"caf\xe9/gr\xfcn.jpg"
    assert os.fsencode(image.text) == b"caf\xe9"
    assert os.path.isfile(os.path.join(tmp_path, image.path))


def test_the_order_of_the_file_system_does_not_matter(tmp_path, monkeypatch):
    touch(tmp_path, *(f"{name}/{number}.jpg" for name in "cab" for number in (2, 1, 10)))
    original = os.scandir

    class Shuffled:
        def __init__(self, folder, turn):
            self.entries = sorted(original(folder), key=lambda entry: entry.name[::-1], reverse=turn)

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            pass

    orders = []
    for turn in (False, True):
        monkeypatch.setattr(os, "scandir", lambda folder, turn=turn: Shuffled(folder, turn))
        orders.append(list(read_folder(str(tmp_path))))
    assert orders[0] == orders[1]
    assert [image.path for image in orders[0]] == [f"{a}/{n}.jpg" for a in "abc" for n in (1, 10, 2)]


@pytest.mark.parametrize("names", [[], ["1.jpg"], ["a/notes.txt"], ["train/1.jpg", "test/2.jpg"]])
def test_a_folder_without_images_is_refused_with_the_layout_expected(tmp_path, names):
    with pytest.raises(InputError) as error:
        paths(touch(tmp_path, *names))
    assert str(error.value).startswith(
        f"{tmp_path} has no images. Expected {tmp_path}/<class>/<image>, or the "
    )


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read the folder .*nowhere \(No such file"):
        paths(tmp_path / "nowhere")


@pytest.mark.parametrize("options", [{"test_share": 1.5}, {"test_share": -0.1}, {"seed": -1}, {"seed": 0.5}])
def test_a_bad_share_or_seed_is_refused(tmp_path, options):
    with pytest.raises(InputError, match=f"argument `{next(iter(options))}`"):
        paths(touch(tmp_path, "a/1.jpg"), **options)


# CSV manifests.

MANIFEST = """\
path,label,split,role,category,x,y,w,h
photos/1.jpg,mallard,train,,duck,60,27.5,325,304
photos/2.jpg,robin,test,query,songbird,,,,
/data/3.jpg,robin,test,gallery,,,,,
"""
IMAGES = [
    SourceImage(
        split="train",
        path="photos/1.jpg",
        label=0,
        text="mallard",
        id="photos/1.jpg",
        category=0,
        box=(60.0, 27.5, 325.0, 304.0),
    ),
    SourceImage(
        split="test", path="photos/2.jpg", label=1, text="robin", id="photos/2.jpg", category=1, role="query"
    ),
    SourceImage(split="test", path="/data/3.jpg", label=1, text="robin", id="/data/3.jpg", role="gallery"),
]


def write(folder, content, name="images.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_a_manifest_gives_its_images(tmp_path):
    assert list(read_csv(write(tmp_path, MANIFEST))) == IMAGES


def test_a_folder_with_one_manifest_is_as_good(tmp_path):
    touch(tmp_path, "readme.txt", ".images.csv", "photos/1.jpg")
    write(tmp_path, MANIFEST, "Images.CSV")
    assert list(read_csv(str(tmp_path))) == IMAGES


def test_columns_come_in_any_order_and_others_are_ignored(tmp_path):
    rows = list(csv.reader(MANIFEST.splitlines()))
    rows = [[*row[::-1], "seen on a pond"] for row in rows]
    with open(tmp_path / "images.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert list(read_csv(str(tmp_path))) == IMAGES


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace(",", " , ").replace(".jpg ", ".jpg"),
    ],
    ids=["byte order mark", "Windows line ends", "no last line end", "blank lines", "blanks"],
)
def test_other_ways_to_write_a_manifest_change_nothing(tmp_path, change):
    assert list(read_csv(write(tmp_path, change(MANIFEST)))) == IMAGES


def test_quoted_values_may_hold_commas_quotes_and_line_ends(tmp_path):
    manifest = 'path,label,split\n"a,b.jpg","say ""quack""\nloudly",train\n" c.jpg ",d,train\n'
    images = list(read_csv(write(tmp_path, manifest)))
    assert [(image.path, image.text) for image in images] == [
        ("a,b.jpg", 'say "quack"\nloudly'),
        (" c.jpg ", "d"),
    ]


@pytest.mark.parametrize(
    "words, numbers",
    [
        (["7", "-3", "7", "9007199254740993"], [7, -3, 7, 9007199254740993]),
        (["robin", "mallard", "robin"], [1, 0, 1]),
        (["10", "9", "robin"], [0, 1, 2]),
        (["007", "7", "-0"], [1, 2, 0]),
        (["1.0", "2"], [0, 1]),
        (["1" * 30, "2"], [0, 1]),
        (["é", "z", "\uff11"], [1, 0, 2]),
    ],
)
@pytest.mark.parametrize("column", ["label", "category"])
def test_numbers_are_kept_and_words_are_numbered_in_order(tmp_path, words, numbers, column):
    other = {"label": "category", "category": "label"}[column]
    lines = [f"{number}.jpg,train,same,{word}" for number, word in enumerate(words)]
    images = read_csv(write(tmp_path, "\n".join([f"path,split,{other},{column}", *lines])))
    assert [getattr(image, column) for image in images] == numbers


HEADER = "path,label,split,role,x,y,w,h\n"
BOX = r"Expected four numbers with positive width and height\."


@pytest.mark.parametrize(
    "manifest, line, message",
    [
        (
            "path,lable,split\n1.jpg,a,train\n",
            1,
            r'no column "label" in .* path,lable,split\. .* mean "label"\?',
        ),
        ("label,split\na,train\n", 1, r'no column "path" in the header label,split\.$'),
        ("path;label;split\n1.jpg;a;train\n", 1, r'no column "path" in the header path;label;split\.'),
        ("", 1, r'no column "path"'),
        ("path,label,split,path\n1.jpg,a,train,2.jpg\n", 1, r'there are 2 columns "path"'),
        ("path,label,split,x,y\n1.jpg,a,train,1,2\n", 1, r'no column "w", and a box takes x, y, w, h'),
        (HEADER + "1.jpg,a,train,,,,,\n2.jpg,a\n", 3, r"expected 8 values, .* but there are 2\."),
        (HEADER + "1.jpg,a,b,train,,,,,\n", 2, r"expected 8 values, .* but there are 9\."),
        (HEADER + "1.jpg, ,train,,,,,\n", 2, r"the label is empty"),
        (HEADER + ",a,train,,,,,\n", 2, r"the path is empty"),
        (HEADER + "1.jpg,a,,,,,,\n", 2, r"the split is empty"),
        (HEADER + "1.jpg,a,test,querry,,,,\n", 2, r"unknown role 'querry', .* Did you mean \"query\"\?"),
        (HEADER + "1.jpg,a,test,,1,2,3,\n", 2, rf"x,y,w,h is 1,2,3,\. {BOX}"),
        (HEADER + "1.jpg,a,test,,1,2,3,four\n", 2, BOX),
        (HEADER + "1.jpg,a,test,,1,2,0,4\n", 2, BOX),
        (HEADER + "1.jpg,a,test,,1,2,3,-4\n", 2, BOX),
        (HEADER + "1.jpg,a,test,,nan,2,3,4\n", 2, BOX),
        (HEADER + "1.jpg,a,test,,1,2,inf,4\n", 2, BOX),
        (HEADER.encode() + b"1.jpg,a,test,,,,,\ncaf\xe9.jpg,a,test,,,,,\n", 3, r"not UTF-8"),
        (HEADER.encode("utf-16"), 1, r"not UTF-8"),
        (HEADER + '1.jpg,"a\nb",test,,,,,\n2.jpg,,test,,,,,\n', 4, r"the label is empty"),
        (HEADER + '1.jpg,"a,test,,,,,\n2.jpg,a,test,,,,,\n', 3, r"unexpected end of data"),
        (HEADER + '1.jpg,"a"b,test,,,,,\n', 2, r"',' expected after '\"'"),
    ],
)
def test_what_is_wrong_is_named_by_line_before_any_image_comes(tmp_path, manifest, line, message):
    path = write(tmp_path, manifest)
    with pytest.raises(InputError, match=message) as error:
        next(read_csv(path))
    assert str(error.value).startswith(f"{path}, line {line}: ")
    assert str(error.value).count(path) == 1


@pytest.mark.parametrize("names, held", [([], "none"), (["b.csv", "a.csv"], "a.csv, b.csv")])
def test_a_folder_without_exactly_one_manifest_is_refused(tmp_path, names, held):
    with pytest.raises(InputError, match=f"should hold one .csv file, and holds {held}. Give the path of"):
        list(read_csv(str(touch(tmp_path, *names))))


def test_a_manifest_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read .*images\.csv \(No such file"):
        list(read_csv(str(tmp_path / "images.csv")))


def test_rows_are_not_held_in_memory(tmp_path):
    rows = "".join(f"{image}.jpg,{image % 100},train\n" for image in range(10_000))
    path = write(tmp_path, "path,label,split\n" + rows)
    tracemalloc.start()
    count = sum(1 for _ in read_csv(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 10_000 and peak < 500_000
