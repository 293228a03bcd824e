"""Users' own images in folders of classes."""

import itertools
import os
import unicodedata

import pytest

from tests.data.sources.trees import touch
from tfrank.common.checks import InputError
from tfrank.data.sources import walk
from tfrank.data.sources.folder import read_folder
from tfrank.data.sources.image import SourceImage


def paths(folder, **options):
    return [image.path for image in read_folder(str(folder), **options)]


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


@pytest.mark.parametrize("parts", [["train"], ["query", "gallery"], ["train", "query"], ["train", "val"]])
def test_half_a_division_is_refused(tmp_path, parts):
    touch(tmp_path, *(f"{part}/a/1.jpg" for part in parts))
    with pytest.raises(InputError, match=rf"has the folders {', '.join(sorted(parts))}\. If they are splits"):
        list(read_folder(str(tmp_path)))


@pytest.mark.parametrize("parts", [["a", "b"], ["train/a", "test/b"]])
def test_the_folder_above_that_an_archive_unpacks_to_will_do(tmp_path, parts):
    touch(tmp_path / "photos", *(f"{part}/1.jpg" for part in parts))
    wanted = {image.id: (image.split, image.text) for image in read_folder(str(tmp_path / "photos"))}
    got = list(read_folder(str(tmp_path)))
    assert {image.id: (image.split, image.text) for image in got} == wanted
    assert {image.path for image in got} == {f"photos/{image_id}" for image_id in wanted}


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


def test_files_with_the_suffix_of_an_image_are_images(tmp_path):
    suffixes = (
        "JPG",
        "Jpeg",
        "bmp",
        "gif",
        "jfif",
        "jpe",
        "jpeg",
        "jpg",
        "pgm",
        "png",
        "ppm",
        "tif",
        "tiff",
        "webp",
    )
    names = [f"a/1.{suffix}" for suffix in suffixes]
    assert paths(touch(tmp_path, *names)) == names


HEIC = (
    "HEIC, a format of phones, cannot be read. Convert it to JPEG, such as with ImageMagick in the folder of"
    f" photos, which replaces no file: {walk.TO_JPEG}"
)


@pytest.mark.parametrize(
    "names, line",
    [
        ([], ""),
        (["a/.DS_Store", ".cache/x.txt", "loose.txt"], ""),
        (["1.jpg"], "1 image is in no class's folder and left out: 1.jpg. Move it into one.\n"),
        (
            ["1.heic", "2.jpg", "3.png"],
            "2 images are in no class's folder and left out, such as 2.jpg. Move each into the folder of its"
            f" class.\n1 file is left out, which is no image by its name: .heic 1.\n{HEIC}\n",
        ),
        (["a/2.txt"], "1 file is left out, which is no image by its name: .txt 1.\n"),
        (
            ["a/0.HEIC", "a/b/3.heic", "notes/4.md", "a/jpg", "b/5.jpg", "b/6.md"],
            "5 files are left out, which are no images by their names: .heic 2, .md 2, no suffix 1.\n"
            f"{HEIC}\n",
        ),
        (
            [f"a/x.{number}" for number in range(9)],
            "9 files are left out, which are no images by their names:"
            " .0 1, .1 1, .2 1, .3 1, .4 1, .5 1, .6 1, .7 1, ....\n",
        ),
        (["a/x.caf\udce9"], "1 file is left out, which is no image by its name: .caf\\xe9 1.\n"),
    ],
)
def test_what_is_left_out_is_counted_and_what_to_do_is_said(tmp_path, capsys, names, line):
    paths(touch(tmp_path, "a/1.jpg", *names))
    assert capsys.readouterr().out == line


def test_a_folder_of_other_files_alone_is_refused_with_their_number(tmp_path):
    with pytest.raises(
        InputError, match=r"has no images\..* \.pgm\. 2 files are left out, .*: \.heic 2\. HEIC, .* JPEG"
    ):
        paths(touch(tmp_path, "a/1.heic", "b/2.heic"))


def test_a_folder_named_like_an_image_is_a_folder_and_a_broken_link_an_image(tmp_path):
    touch(tmp_path, "a/album.jpg/1.jpg")
    (tmp_path / "a" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a" / "itself.jpg").symlink_to(tmp_path / "a" / "itself.jpg")
    assert paths(tmp_path) == ["a/album.jpg/1.jpg", "a/gone.jpg", "a/itself.jpg"]


def test_links_to_folders_are_followed(tmp_path):
    touch(tmp_path, "elsewhere/1.jpg", "elsewhere/in/2.jpg", "data/b/3.jpg")
    (tmp_path / "data" / "a").symlink_to(tmp_path / "elsewhere")
    # Once in all.
    (tmp_path / "data" / "b" / "more").symlink_to(tmp_path / "elsewhere" / "in")
    assert paths(tmp_path / "data") == ["a/1.jpg", "a/in/2.jpg", "b/3.jpg"]


@pytest.mark.parametrize(
    "link, target", [("a/b/back", "a"), ("a/b/c", "."), ("a/self", "a/self"), ("top", ".")]
)
def test_links_in_a_circle_are_not_followed(tmp_path, link, target):
    touch(tmp_path, "a/b/1.jpg", "z/2.jpg")
    (tmp_path / link).symlink_to(tmp_path / target)
    assert paths(tmp_path)[:1] == ["a/b/1.jpg"]
    assert paths(tmp_path)[-1:] == ["z/2.jpg"]
    assert not any("back" in path or "a/b/c/a" in path or "top" in path for path in paths(tmp_path))


def test_classes_of_splits_may_be_links(tmp_path):
    touch(tmp_path, "all/a/1.jpg", "all/b/2.jpg", "train/c/3.jpg")
    for place, target in {"train/a": "all/a", "test/b": "all/b", "test/c": "train/c"}.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).symlink_to(tmp_path / target)
    assert paths(tmp_path) == ["train/a/1.jpg", "train/c/3.jpg", "test/b/2.jpg", "test/c/3.jpg"]


def test_queries_that_are_a_link_to_the_gallery_are_the_same_photos(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "gallery/b/2.jpg")
    (tmp_path / "query").symlink_to(tmp_path / "gallery")
    assert paths(tmp_path) == ["train/a/1.jpg", "query/b/2.jpg", "gallery/b/2.jpg"]


def test_folders_that_link_to_each_other_multiply_no_image(tmp_path, capsys):
    names = "abcdef"
    for name in names:
        touch(tmp_path, f"{name}/1.jpg", f"{name}/z/2.jpg")
        for other in names.replace(name, ""):
            (tmp_path / name / other).symlink_to(tmp_path / other)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    touch(tmp_path, "a/.hidden/3.jpg")
    (tmp_path / "a" / "shown").symlink_to(tmp_path / "a" / ".hidden")
    wanted = sorted(f"{name}/{inside}" for name in names for inside in ("1.jpg", "z/2.jpg"))
    assert paths(tmp_path) == sorted([*wanted, "a/shown/3.jpg"])
    said = "31 links are left out, as the folders that they lead to are read at another place."
    assert said in capsys.readouterr().out


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


LOOSE = "2 images but no folder with images. Each class needs a folder"


@pytest.mark.parametrize(
    "names, has",
    [
        ([], "no images"),
        (["1.jpg"], "1 image but no folder with images. Each class needs a folder"),
        (["a/notes.txt"], "no images"),
        (["train/1.jpg", "test/2.jpg"], LOOSE),
        (["1.jpg", "2.jpg"], LOOSE),
    ],
)
def test_a_folder_without_classes_is_refused_with_the_layout_expected(tmp_path, names, has):
    with pytest.raises(InputError) as error:
        paths(touch(tmp_path, *names))
    assert str(error.value).startswith(f"{tmp_path} has {has}. Expected {tmp_path}/<class>/<image>, or the ")


def test_images_beside_the_classes_of_a_division_are_counted(tmp_path, capsys):
    paths(touch(tmp_path, "train/a/1.jpg", "train/2.jpg", "test/b/3.jpg", "4.jpg"))
    assert capsys.readouterr().out.startswith(
        "2 images are in no class's folder and left out, such as 4.jpg."
    )


def test_folders_whose_names_look_the_same_are_one_class(tmp_path, capsys):
    one, other = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    images = list(
        read_folder(str(touch(tmp_path, f"{one}/1.jpg", f"{other}/2.jpg", "b/3.jpg")), test_share=0)
    )
    assert [(image.label, image.text, image.id) for image in images] == [
        (0, "b", "b/3.jpg"),
        (1, one, f"{other}/2.jpg"),
        (1, one, f"{one}/1.jpg"),
    ]
    assert capsys.readouterr().out == (
        f"Note: 'cafe\\u0301' and 'caf\\xe9' look the same, {one}, and are one class.\n"
    )


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read the folder .*nowhere \(No such file"):
        paths(tmp_path / "nowhere")


@pytest.mark.parametrize("options", [{"test_share": 1.5}, {"test_share": -0.1}, {"seed": -1}, {"seed": 0.5}])
def test_a_bad_share_or_seed_is_refused(tmp_path, options):
    with pytest.raises(InputError, match=f"argument `{next(iter(options))}`"):
        paths(touch(tmp_path, "a/1.jpg"), **options)


def test_a_class_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    touch(tmp_path, "a/1.jpg", "b/in/2.jpg", "@eaDir/secret/3.jpg")
    original = os.scandir

    def scandir(folder):
        if os.path.basename(folder) in ("in", "@eaDir"):
            raise PermissionError(13, "Permission denied", folder)
        return original(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match=r"Cannot read the folder .*/b/in \(Permission denied\)"):
        paths(tmp_path)


@pytest.mark.parametrize(
    "start", [b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBP", b"\0\0\0 ftypavif"]
)
def test_a_file_without_a_suffix_is_an_image_if_it_begins_like_one(tmp_path, start):
    touch(tmp_path, "a/1.jpg")
    (tmp_path / "a" / "IMG_0001").write_bytes(start + bytes(9))
    (tmp_path / "a" / "README").write_bytes(b"read me")
    assert paths(tmp_path) == ["a/1.jpg", "a/IMG_0001"]


def test_a_pipe_is_no_image(tmp_path):
    touch(tmp_path, "a/1.jpg")
    for name in ("pipe.jpg", "pipe"):
        os.mkfifo(tmp_path / "a" / name)
    assert paths(tmp_path) == ["a/1.jpg"]


@pytest.mark.parametrize(
    "folder",
    [
        *("@eaDir", "#recycle", "$RECYCLE.BIN", "lost+found", ".thumbnails", "__MACOSX", "@Recycle"),
        *("System Volume Information", "Lightroom Catalog Previews.lrdata", ".picasaoriginals", "CaptureOne"),
        *(
            "My.photoslibrary/resources",
            "found.000",
            ".Trash-1000",
            "LOST.DIR",
            "iPod Photo Cache",
            "[Originals]",
        ),
    ],
)
def test_a_folder_that_a_program_makes_is_no_class_and_counted(tmp_path, capsys, folder):
    touch(tmp_path, "a/1.jpg", f"{folder}/a/1.jpg", f"{folder}/2.jpg", f"a/{folder}/x/3.jpg")
    assert paths(tmp_path) == ["a/1.jpg"]
    name = folder.rpartition("/")[2]
    said = f"3 images are left out, as hidden or in folders that programs make: {name} 3.\n"
    assert capsys.readouterr().out == said


def test_originals_that_picasa_keeps_are_no_class(tmp_path):
    touch(tmp_path, "a/1.jpg", "a/Originals/1.jpg", "b/Originals/2.jpg")
    (tmp_path / "a" / ".picasa.ini").write_text("[1.jpg]")
    assert paths(tmp_path) == ["a/1.jpg", "b/Originals/2.jpg"]
