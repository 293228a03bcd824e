"""Users' own images in CSV manifests."""

import csv
import tracemalloc
import unicodedata

import pytest

from tests.data.sources.trees import touch
from tfrank.common.checks import InputError
from tfrank.data.sources.csv_manifest import read_csv
from tfrank.data.sources.folder import read_folder
from tfrank.data.sources.image import SourceImage

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
        category_text="duck",
        box=(60.0, 27.5, 325.0, 304.0),
    ),
    SourceImage(
        split="test",
        path="photos/2.jpg",
        label=1,
        text="robin",
        id="photos/2.jpg",
        category=1,
        category_text="songbird",
        role="query",
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


def test_columns_come_in_any_order_and_others_are_named(tmp_path, capsys):
    rows = list(csv.reader(MANIFEST.splitlines()))
    rows = [[*row[::-1], "seen on a pond"] for row in rows]
    with open(tmp_path / "images.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert list(read_csv(str(tmp_path))) == IMAGES
    assert "has columns that are not used: seen on a pond." in capsys.readouterr().out


OML = """\
label,path,split,is_query,is_gallery,x_1,x_2,y_1,y_2,sequence
mallard,photos/1.jpg,train,,,60,385,27.5,331.5,
robin,photos/2.jpg,validation,True,{},,,,,
robin,/data/3.jpg,validation,{},1.0,,,,,
"""


@pytest.mark.parametrize("both, roles", [("True", ["", "", ""]), ("False", ["", "query", "gallery"])])
def test_a_list_of_open_metric_learning_gives_its_images(tmp_path, capsys, both, roles):
    path = write(tmp_path, OML.format(both, both))
    images = list(read_csv(path))
    assert [(image.split, image.role) for image in images] == list(zip(["train", "test", "test"], roles))
    assert images[0].box == (60.0, 27.5, 325.0, 304.0) and images[1].box is None
    assert capsys.readouterr().out == f"Note: {path} has columns that are not used: sequence.\n"


@pytest.mark.parametrize(
    "one, other, message",
    [
        (
            "True",
            "False",
            "line 4: expected all images to test on to be query and gallery, or each to be one",
        ),
        ("maybe", "False", "line 3: expected true or false in is_gallery"),
    ],
)
def test_roles_of_open_metric_learning_that_ours_cannot_say_are_refused(tmp_path, one, other, message):
    with pytest.raises(InputError, match=message):
        next(read_csv(write(tmp_path, OML.format(one, other))))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace(",", " , ").replace(".jpg ", ".jpg"),
        lambda text: "\ufeff" + text.replace(",", ";").replace("27.5", "27,5").replace("\n", "\r\n"),
        lambda text: text.replace(",", "\t"),
        lambda text: text + ",,,,,,,,\n,,,,,,,,\n",
    ],
    ids=[
        *("byte order mark", "Windows line ends", "no last line end", "blank lines", "blanks"),
        *("Excel's semicolons and decimal commas", "tabs", "rows of empty cells"),
    ],
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


def test_without_the_column_split_classes_are_divided_as_folders_are(tmp_path, capsys):
    names = [f"class{c:02d}" for c in range(9)]
    touch(tmp_path, *(f"photos/{name}/{n}.jpg" for name in names for n in range(2)))
    path = write(tmp_path, "path,label\n" + "".join(f"{n}.jpg,{names[n % 9]}\n" for n in range(18)))
    for options in ({}, {"test_share": 0.2}, {"seed": 3}):
        wanted = {image.text: image.split for image in read_folder(str(tmp_path / "photos"), **options)}
        got = {(image.text, image.split) for image in read_csv(path, **options)}
        assert got == set(wanted.items())
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{path} has no column split: 4 of 9 classes, drawn at random, are tested on."


@pytest.mark.parametrize("split", ["", "train"])
def test_a_photo_of_the_label_minus_1_has_no_class_and_is_trained_on(tmp_path, split, capsys):
    column = ",split" if split else ""
    rows = [f"{number}.jpg,{label}" for number, label in enumerate(["owl", -1, "wren", -1])]
    manifest = "\n".join([f"path,label{column}", *(f"{row},{split}" if split else row for row in rows), ""])
    images = list(read_csv(write(tmp_path, manifest)))
    assert [image.label for image in images] == [0, -1, 1, -1]
    assert [image.split for image in images if image.label == -1] == ["train", "train"]
    assert [image.text for image in images] == ["owl", "", "wren", ""]
    assert split or "1 of 2 classes, drawn at random" in capsys.readouterr().out


@pytest.mark.parametrize(
    "splits, note",
    [
        (["train", "test", "train"], None),
        (["train", "tran", "train", "test"], 'test (1), train (2), tran (1), .* Did you mean "train"?'),
        (["train", "test_800"], "test_800 (1), train (1), .* names others."),
    ],
)
def test_splits_other_than_train_and_test_are_listed_with_their_counts(tmp_path, capsys, splits, note):
    lines = "".join(f"{n}.jpg,a{n},{split}\n" for n, split in enumerate(splits))
    assert [image.split for image in read_csv(write(tmp_path, "path,label,split\n" + lines))] == splits
    said = capsys.readouterr().out
    if note is None:
        assert not said
    else:
        begin, end = note.split(".*")
        assert said.startswith(f"Note: {tmp_path}/images.csv has the splits {begin}")
        assert said.endswith(f"{end}\n")


def test_labels_that_look_the_same_are_one_class(tmp_path, capsys):
    one, other = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    images = list(
        read_csv(write(tmp_path, f"path,label,split\n1.jpg,{one},train\n2.jpg,{other},train\n3.jpg,b,test"))
    )
    assert [(image.label, image.text) for image in images] == [(1, one), (1, one), (0, "b")]
    assert capsys.readouterr().out == (
        f"Note: 'cafe\\u0301' and 'caf\\xe9' look the same, {one}, and are one class.\n"
    )


def test_labels_that_differ_in_case_or_blanks_are_named_and_stay_apart(tmp_path, capsys):
    table = write(tmp_path, "path,label,split\n1.jpg,Owl,train\n2.jpg,owl,train\n3.jpg,b,test")
    images = list(read_csv(table))
    assert len({image.label for image in images}) == 3
    assert "only in case or blanks, such as 'Owl' and 'owl'." in capsys.readouterr().out


HEADER = "path,label,split,role,x,y,w,h\n"
BOX = r"the columns x \(a number\), y \(a number\), w \(a positive number\), h \(a positive number\), but"
SPLIT = "a split of letters, digits and _ alone"


@pytest.mark.parametrize(
    "manifest, line, message",
    [
        (
            "path,lable,split\n1.jpg,a,train\n",
            1,
            r"the column label, but the line is 'path,lable,split'\. .* mean \"label\"\?$",
        ),
        ("label,split\na,train\n", 1, r"the column path, but the line is 'label,split'\.$"),
        (
            "path;lable;split\n1.jpg;a;train\n",
            1,
            r"the column label, but the line is 'path;lable;split'\. .*",
        ),
        ("path,label,spilt\n1.jpg,a,train\n", 1, r"the column split, but .* Did you mean \"split\"\?$"),
        ("", 1, r"the column path, but the line is ''\.$"),
        ("path,label,split,path\n1.jpg,a,train,2.jpg\n", 1, "each column once, and path occurs 2 times"),
        ("path,label,split,x,y\n1.jpg,a,train,1,2\n", 2, BOX),
        (
            HEADER + "1.jpg,a,train,,,,,\n2.jpg,a\n",
            3,
            "expected 8 values, one for each column, but the line is '2.jpg,a'",
        ),
        (HEADER + "1.jpg,a,b,train,,,,,\n", 2, "expected 8 values, one for each column"),
        (HEADER + "1.jpg, ,train,,,,,\n", 2, "a label, but"),
        (HEADER + ",a,train,,,,,\n", 2, "a path, but"),
        (HEADER + "1.jpg,0,train,,,,,\n2.jpg,-1,test,,,,,\n", 3, "another label than -1, which means that"),
        ("path,label,category\n1.jpg,0,-1\n", 2, "another category than -1, which means that there is none"),
        (HEADER + "1.jpg,a,,,,,,\n", 2, "a split, but"),
        (HEADER + "1.jpg,a,train,,,,,\n2.jpg,a,../test,,,,,\n", 3, SPLIT),
        (HEADER + "1.jpg,a,te st,,,,,\n", 2, SPLIT),
        (HEADER + '1.jpg,a,"te\nst",,,,,\n', 2, SPLIT),
        (
            HEADER + "1.jpg,a,test,querry,,,,\n",
            2,
            r"a role of query, gallery, distractor, or none, but .* Did you mean \"query\"\?",
        ),
        ("path,label,role\n1.jpg,a,\n2.jpg,a,query\n", 3, "a column split beside the role"),
        (HEADER + "1.jpg,a,test,,1,2,3,\n", 2, BOX),
        (HEADER + "1.jpg,a,test,,1,2,3,four\n", 2, BOX),
        (HEADER + "1.jpg,a,test,,1,2,0,4\n", 2, BOX),
        (HEADER + "1.jpg,a,test,,1,2,3,-4\n", 2, BOX),
        (HEADER + "1.jpg,a,test,,nan,2,3,4\n", 2, BOX),
        (HEADER + "1.jpg,a,test,,1,2,inf,4\n", 2, BOX),
        (HEADER.encode() + b"1.jpg,a,test,,,,,\ncaf\xe9.jpg,a,test,,,,,\n", 3, r"not UTF-8"),
        (HEADER.encode("utf-16"), 1, r"not UTF-8"),
        (HEADER + '1.jpg,"a\nb",test,,,,,\n2.jpg,,test,,,,,\n', 4, "a label, but"),
        (HEADER + '1.jpg,a,test,,,,,\n2.jpg,"a,test,,,,,\n3.jpg,a,test,,,,,\n', 3, "unexpected end of data"),
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
    with pytest.raises(InputError, match=rf"should contain one \.csv file, but contains {held}\. Give"):
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
