"""The index lists what `prepare` lists, and loses no image because it cannot be read."""

import os
import pathlib
import shutil
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.search import updated, write_model, write_photo, write_photos
from tfrank import search
from tfrank.common import files
from tfrank.common.checks import InputError
from tfrank.data.sources.csv_manifest import read_csv
from tfrank.data.sources.folder import read_folder
from tfrank.search import building, checking, labels
from tfrank.search.embedder import Embedder
from tfrank.search.images import Listed, listed_images
from tfrank.search.updating import update_from


@pytest.fixture
def photos(tmp_path):
    return write_photos(tmp_path / "photos")


@pytest.fixture
def unreadable(monkeypatch):
    """Makes folders and files of these names ones that cannot be read, as for another user."""
    names = set()

    def refusing(function):
        def refuse(path, *arguments, **options):
            if isinstance(path, str) and names & set(pathlib.Path(path).parts):
                raise PermissionError(13, "Permission denied", path)
            return function(path, *arguments, **options)

        return refuse

    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    monkeypatch.setattr(files, "open_regular", refusing(files.open_regular))
    return names


def ids(source):
    return [image.id for image in listed_images(str(source))]


def test_the_index_and_prepare_list_the_same_images_of_a_tree_of_every_kind(tmp_path, photos, capsys):
    shutil.move(photos / "class 1", tmp_path / "elsewhere")
    (photos / "class 1").symlink_to(tmp_path / "elsewhere")
    (photos / "class 2" / "again").symlink_to(photos)
    photo = photos / "class 0" / "0.jpg"
    for name in ("IMG_0001", "a.mpo", "b.JFIF", "c.avif"):
        shutil.copy(photo, photos / "class 0" / name)
    for name in ("@eaDir", "#recycle", "$RECYCLE.BIN", "lost+found", ".thumbnails", "Cat Previews.lrdata"):
        for place in (photos, photos / "class 0"):
            (place / name / "0.jpg").mkdir(parents=True)
            shutil.copy(photo, place / name / "0.jpg" / "SYNOPHOTO_THUMB_XL.jpg")
    (photos / "class 0" / "raw.nef").touch()
    (photos / "class 0" / "phone.heic").touch()
    os.rename(os.fsencode(photos / "class 2" / "2.jpg"), os.fsencode(photos / "class 2") + b"/caf\xe9.jpg")
    listed = {files.text_of(image.id) for image in read_folder(str(photos))}
    by_prepare = capsys.readouterr().out
    assert set(ids(photos)) == listed and len(listed) == 16
    by_index = capsys.readouterr().out
    assert by_index == by_prepare[by_prepare.index("2 files are left out") :]
    assert "12 images are left out, as hidden or in folders that programs make: #recycle 2" in by_index
    assert "These pictures cannot be read: .nef 1. Convert them to JPEG." in by_index
    assert "HEIC, a format of phones" in by_index


def test_a_class_that_moves_behind_a_link_stays(tmp_path, embedder, photos):
    updated(tmp_path / "index", embedder, photos)
    shutil.move(photos / "class 1", tmp_path / "elsewhere")
    (photos / "class 1").symlink_to(tmp_path / "elsewhere")
    assert updated(tmp_path / "index", embedder, photos)[1:4] == (0, 12, 0)


@pytest.mark.parametrize("same_model", [True, False])
def test_what_cannot_be_read_stays_and_what_is_gone_leaves(
    tmp_path, embedder, photos, unreadable, same_model
):
    updated(tmp_path / "index", embedder, photos)
    model = embedder if same_model else Embedder(str(write_model(tmp_path / "other", seed=1, dim=6)))
    unreadable |= {"class 1", "3.jpg"}
    (photos / "class 0" / "0.jpg").unlink()
    (photos / "class 2" / "2.jpg").write_bytes(b"half a copy")
    os.utime(photos / "class 0" / "3.jpg", (1, 1))
    done = updated(tmp_path / "index", model, photos)
    assert (done.removed, done.unread, done.version.rows) == (1, 6, 11)
    assert done.kept == (5 if same_model else 0)
    assert {image for image, _ in done.skipped} == {"class 1/", "class 0/3.jpg", "class 2/2.jpg"}
    index = search.open(tmp_path / "index")
    assert index.metadata("class 1/1.jpg")["label"] == "class 1"
    assert index.metadata("class 1/1.jpg")["width"] == 24
    # The thumbnail of a small photo is nearly the photo.
    wanted = model.embed([(photos / "class 1" / "1.jpg").read_bytes()])[0]
    found = index.embeddings[index.ids.tolist().index("class 1/1.jpg")]
    assert found @ wanted == pytest.approx(1, abs=0.02)
    unreadable.clear()
    write_photo(photos / "class 2" / "2.jpg", 99)
    again = updated(tmp_path / "index", model, photos)
    assert (again.removed, again.unread, again.skipped, again.version.rows) == (0, 0, [], 11)
    # Of 3.jpg only the time has changed.
    assert again.embedded == (1 if same_model else 6)


def test_a_link_whose_disk_is_away_keeps_its_images(tmp_path, embedder, photos):
    shutil.move(photos / "class 1", tmp_path / "disk")
    (photos / "class 1").symlink_to(tmp_path / "disk")
    updated(tmp_path / "index", embedder, photos)
    shutil.move(tmp_path / "disk", tmp_path / "away")
    done = updated(tmp_path / "index", embedder, photos)
    assert (done.kept, done.removed, done.unread) == (8, 0, 4)
    (photos / "class 1").unlink()
    assert updated(tmp_path / "index", embedder, photos).removed == 4


def test_an_image_without_a_suffix_stays_too(tmp_path, embedder, photos, monkeypatch):
    for name in ("IMG_0001", "IMG_0002"):
        shutil.copy(photos / "class 0" / "0.jpg", photos / "class 0" / name)
    shutil.move(photos / "class 0" / "IMG_0002", tmp_path / "IMG_0002")
    (photos / "class 0" / "IMG_0002").symlink_to(tmp_path / "IMG_0002")
    assert updated(tmp_path / "index", embedder, photos).embedded == 14

    def unreadable(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("tfrank.data.sources.walk.open", unreadable, raising=False)
    monkeypatch.setattr(files, "open_regular", unreadable)
    os.utime(photos / "class 0" / "IMG_0001", (1, 1))
    (tmp_path / "IMG_0002").unlink()
    done = updated(tmp_path / "index", embedder, photos)
    assert (done.kept, done.unread, done.removed) == (12, 2, 0)


def test_a_folder_that_cannot_be_read_itself_is_named(photos, unreadable):
    unreadable.add("photos")
    with pytest.raises(InputError, match=r"Cannot read the folder .*photos \(Permission denied\)"):
        listed_images(str(photos))


def test_names_that_are_no_utf_8_are_indexed_and_their_files_found(tmp_path, embedder, photos):
    folder = os.path.join(os.fsencode(photos), b"caf\xe9")
    os.mkdir(folder)
    name = os.path.join(folder, b"gr\xfcn.jpg")
    os.rename(os.fsencode(photos / "class 0" / "0.jpg"), name)
    updated(tmp_path / "index", embedder, photos)
    row = search.open(tmp_path / "index").metadata(r"caf\xe9/gr\xfcn.jpg")
    assert row["label"] == r"caf\xe9" and os.fsencode(files.path_of(row["path"])) == name
    assert updated(tmp_path / "index", embedder, photos)[1:4] == (0, 12, 0)


def upload(folder, embedder, image_id, data):
    image = Listed(image_id, "", "sent", {"from": "me"}, lambda: data, len(data), 7)
    building.update(str(folder), embedder, [image], remove_others=False, quiet=True)


@pytest.mark.parametrize("limit", [checking.ORIGINAL_BYTES, 10])
def test_another_model_embeds_uploads_again(tmp_path, embedder, photos, limit, monkeypatch):
    monkeypatch.setattr(checking, "ORIGINAL_BYTES", limit)
    updated(tmp_path / "index", embedder, photos)
    data = write_photo(tmp_path / "sent.jpg", 99, (700, 600)).read_bytes()
    upload(tmp_path / "index", embedder, "sent", data)
    kept = os.path.getsize(search.open(tmp_path / "index").files.original("sent"))
    assert (kept == len(data)) == (limit > len(data))
    (photos / "class 0" / "0.jpg").unlink()
    other = Embedder(str(write_model(tmp_path / "other", seed=1, dim=6)))
    done = updated(tmp_path / "index", other, photos)
    assert (done.embedded, done.uploads, done.removed, done.version.rows) == (12, 1, 1, 12)
    index = search.open(tmp_path / "index")
    assert index.metadata("sent")["label"] == "sent" and index.metadata("sent")["from"] == "me"
    assert os.path.exists(index.thumbnail("sent"))
    found, (wanted,) = index.embeddings[index.ids.tolist().index("sent")], index.embed([data])
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    building.remove(str(tmp_path / "index"), ["sent"])
    assert not os.listdir(tmp_path / "index" / "originals")


def test_a_file_of_the_same_name_does_not_take_the_place_of_an_upload(tmp_path, embedder, photos):
    updated(tmp_path / "index", embedder, photos)
    upload(
        tmp_path / "index", embedder, "class 0/new.jpg", write_photo(tmp_path / "sent.jpg", 99).read_bytes()
    )
    write_photo(photos / "class 0" / "new.jpg", 98)
    for model in (embedder, Embedder(str(write_model(tmp_path / "other", seed=1, dim=6)))):
        done = updated(tmp_path / "index", model, photos)
        assert done.skipped == [("class 0/new.jpg", "an image that was sent to the server has this id")]
        assert "class 0/new.jpg" in (tmp_path / "index" / "skipped.csv").read_text()
        index = search.open(tmp_path / "index")
        assert len(index) == 13 and index.metadata("class 0/new.jpg")["label"] == "sent"
        assert len(os.listdir(tmp_path / "index" / "originals")) == 1


def test_a_name_that_a_mac_has_written_is_the_one_that_people_type(tmp_path, embedder):
    one, other = (unicodedata.normalize(form, "Möwe") for form in ("NFC", "NFD"))
    write_photo(tmp_path / "photos" / other / "1.jpg", 1)
    write_photo(tmp_path / "photos" / "b" / "2.jpg", 2)
    folder = str(tmp_path / "index")
    updated(folder, embedder, tmp_path / "photos")
    labels.change(folder, {"b/2.jpg": other}, labels.said(folder).version)
    assert search.open(folder).labels == [one, one]
    # Letters that are two each in NFC.
    long = "\u0958" * 120
    with pytest.raises(InputError, match="at most 200 letters"):
        labels.change(folder, {"b/2.jpg": long}, labels.said(folder).version)
    assert labels.read(folder) == {"b/2.jpg": one}


def test_a_name_with_a_carriage_return_can_be_labelled(tmp_path, embedder):
    write_photo(tmp_path / "photos" / "robin\r" / "1.jpg", 1)
    folder = str(tmp_path / "index")
    updated(folder, embedder, tmp_path / "photos")
    labels.change(folder, {"robin\r/1.jpg": "wren"}, labels.said(folder).version)
    assert search.open(folder).labels == ["wren"] and labels.read(folder) == {"robin\r/1.jpg": "wren"}


def test_the_label_minus_1_of_a_table_is_none(tmp_path, photos):
    (tmp_path / "list.csv").write_text("path,label\nphotos/class 0/0.jpg,-1\nphotos/class 0/3.jpg,4\n")
    assert [image.label for image in listed_images(str(tmp_path / "list.csv"))] == ["", "4"]


def test_an_id_of_a_table_that_ends_in_a_slash_is_that_of_an_image(tmp_path, embedder, photos, capsys):
    rows = [
        f"photos/class 0/{name}.jpg,https://birds.org/{end}" for name, end in ((0, ""), (3, "3/"), (6, "6/"))
    ]
    (tmp_path / "urls.csv").write_text("\n".join(["path,id", *rows]))
    update_from(str(tmp_path / "index"), str(tmp_path / "urls.csv"), model=embedder.folder)
    assert capsys.readouterr().out.startswith("3 images in")
    # One that cannot be read says nothing of those whose ids begin like its own.
    (photos / "class 0" / "0.jpg").write_bytes(b"half a copy")
    (tmp_path / "urls.csv").write_text("\n".join(["path,id", *rows[:2]]))
    done = updated(tmp_path / "index", embedder, tmp_path / "urls.csv")
    assert (done.kept, done.unread, done.removed) == (1, 1, 1)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([2**63 + 5, 7], pa.uint64()), "uint64"),
        (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), r"map<.*>"),
    ],
)
def test_a_column_that_cannot_be_kept_is_named_before_anything_is_embedded(tmp_path, photos, column, kind):
    paths = [str(photos / "class 0" / name) for name in ("0.jpg", "3.jpg")]
    pq.write_table(pa.table({"path": paths, "hash": column}), tmp_path / "photos.parquet")
    with pytest.raises(InputError, match=f"the column `hash`, of type {kind}, cannot be kept. Make it text"):
        listed_images(str(tmp_path / "photos.parquet"))


def test_an_upload_without_an_original_is_embedded_by_its_thumbnail(tmp_path, embedder, photos):
    updated(tmp_path / "index", embedder, photos)
    upload(tmp_path / "index", embedder, "sent", write_photo(tmp_path / "sent.jpg", 99).read_bytes())
    shutil.rmtree(tmp_path / "index" / "originals")
    other = Embedder(str(write_model(tmp_path / "other", seed=1)))
    assert updated(tmp_path / "index", other, photos).uploads == 1
    assert "sent" in search.open(tmp_path / "index")


def test_an_index_in_the_folder_of_its_images_is_no_image(tmp_path, embedder, photos, capsys):
    updated(photos / "index", embedder, photos)
    for _ in range(2):
        assert updated(photos / "index", embedder, photos)[1:4] == (0, 12, 0)
    (photos / "index" / "CURRENT").unlink()  # As if the first run was killed.
    assert len(ids(photos)) == 12
    assert "12 images are left out, as hidden or in folders that programs make: index 12" in (
        capsys.readouterr().out
    )
    with pytest.raises(InputError, match="is an index or a run"):
        listed_images(str(photos / "index"))


def test_an_index_of_a_relative_folder_is_used_from_elsewhere(tmp_path, embedder, photos, monkeypatch):
    monkeypatch.chdir(tmp_path)
    updated("index", embedder, "photos")
    monkeypatch.chdir("/")
    path = search.open(tmp_path / "index").metadata("class 0/0.jpg")["path"]
    assert path == str(photos / "class 0" / "0.jpg")


def test_an_index_may_lie_in_a_folder_of_any_name(tmp_path, embedder, photos):
    folder = tmp_path / "photos [2024]*?" / "index"
    updated(folder, embedder, photos)
    assert search.open(folder).embed([str(photos / "class 0" / "0.jpg")]).shape == (1, 8)
    assert updated(folder, search.open(folder).embedder, photos)[1:4] == (0, 12, 0)


ROWS = [("a.jpg", "007", "été", "a caption,\nof two lines", 1.5), ("b.jpg", "8", "", "", 2)]
COLUMNS = ("path", "id", "label", "caption", "price")


def csv_of(delimiter=",", end="\n", header=COLUMNS):
    lines = [delimiter.join(header)]
    lines += [delimiter.join(f'"{value}"' for value in row) for row in ROWS]
    return end.join(lines) + end


@pytest.mark.parametrize(
    "content",
    [
        csv_of(),
        csv_of(";", "\r\n"),
        csv_of("\t", "\r"),
        csv_of("|"),
        csv_of(header=[f" {name} " for name in COLUMNS]),
        "\ufeff" + csv_of(";"),
        csv_of().replace("\n", "\n\n").replace("caption,\n\n", "caption,\n"),
    ],
    ids=["commas", "Excel", "an old Mac's tabs", "bars", "blanks in the header", "a mark", "blank lines"],
)
def test_a_table_is_read_however_it_is_written(tmp_path, content):
    (tmp_path / "list.csv").write_bytes(content.encode())
    found = [(*image[:3], image.others) for image in listed_images(str(tmp_path / "list.csv"))]
    assert found == [
        (row[1], str(tmp_path / row[0]), row[2], {"caption": row[3], "price": row[4]}) for row in ROWS
    ]


def test_a_parquet_table_is_read_too(tmp_path):
    columns = dict(zip(COLUMNS, zip(*ROWS)))
    pq.write_table(pa.table({**columns, "id": [7, 8], "label": ["a", None]}), tmp_path / "list.parquet")
    images = listed_images(str(tmp_path / "list.parquet"))
    assert [(image.id, image.label, image.others["price"]) for image in images] == [
        ("7", "a", 1.5),
        ("8", "", 2.0),
    ]


@pytest.mark.parametrize(
    "content, message",
    [
        (csv_of().encode("latin-1"), r"line 2: not UTF-8 .* Save it as UTF-8"),
        (b"path,id\na.jpg,\n", "line 2: expected an id"),
        (b"path,id\n ,x\n", "line 2: expected a path"),
        (b"path,price, price\na.jpg,1,2\n", "the column `price` twice"),
        (b'path\n"a.jpg\n', "line 2: the CSV is damaged"),
    ],
)
def test_a_bad_table_is_named_by_line(tmp_path, content, message):
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        listed_images(str(tmp_path / "list.csv"))
    assert "\n" not in str(error.value)


def test_an_archive_is_named(tmp_path, photos):
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", photos)
    with pytest.raises(InputError, match=r"photos\.zip is an archive. Unpack it and give the folder"):
        listed_images(archive)


def test_a_blank_at_the_end_of_a_folders_name_makes_no_group_of_its_own(tmp_path, photos):
    (photos / "class 1").rename(photos / "class 0 ")
    (tmp_path / "list.csv").write_text('path,label\na.jpg," owl "\n')
    assert {image.label for image in listed_images(str(photos))} == {"class 0", "class 2"}
    assert [image.label for image in listed_images(str(tmp_path / "list.csv"))] == ["owl"]


def test_a_word_that_often_means_nothing_is_a_word_where_it_is_all_that_there_is(tmp_path):
    (tmp_path / "list.csv").write_text("path,continent,empty\na.jpg,NA,\nb.jpg,,\n")
    first, second = listed_images(str(tmp_path / "list.csv"))
    assert (first.others, second.others) == (
        {"continent": "NA", "empty": None},
        {"continent": "", "empty": None},
    )


def test_nan_in_a_parquet_table_is_no_label_and_no_box(tmp_path):
    path, nan = str(tmp_path / "list.parquet"), float("nan")
    pq.write_table(pa.table({"path": ["a", "b", "c"], "label": [1.0, 2.0, nan]}), path)
    assert [image.label for image in listed_images(path)] == ["1", "2", ""]
    boxes = {name: pa.array([nan, 3.0]) for name in "xywh"}
    columns = {"path": ["a", "b"], "label": ["owl", "owl"], "split": ["train", "train"], **boxes}
    pq.write_table(pa.table(columns), path)
    assert [image.box for image in read_csv(path)] == [None, (3, 3, 3, 3)]


def test_the_type_of_a_column_follows_from_all_its_values(tmp_path):
    rows = "".join(f"{number}.jpg,{number},{number},{number}\n" for number in range(10_001))
    (tmp_path / "list.csv").write_text(f"path,count,word,code\n{rows}last.jpg,0.5,x,007\n")
    first, *_, last = listed_images(str(tmp_path / "list.csv"))
    assert first.others == {"count": 0.0, "word": "0", "code": "0"}
    assert last.others == {"count": 0.5, "word": "x", "code": "007"}
