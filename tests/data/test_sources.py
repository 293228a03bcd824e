"""Data sets in their official layout, whole, unpacked, and damaged."""

import collections
import io
import pathlib
import shutil
import zipfile

import numpy as np
import PIL.Image
import pytest
import sklearn.datasets
import tensorflow as tf

from tfrank.checks import InputError
from tfrank.data.images import decode_image
from tfrank.data.sources.digits import read_digits
from tfrank.data.sources.omniglot import read_omniglot

REAL_ARCHIVE = pathlib.Path(__file__).parents[3] / "shared" / "data" / "omniglot_background_small1.zip"


def assert_ids_are_unique(records):
    assert len({record.id for record in records}) == len(records)


# Digits.


@pytest.fixture(scope="module")
def scans():
    """`[1797, 8, 8]` grey levels 0 to 255 of scikit-learn's scans, which have 17."""
    return np.round(sklearn.datasets.load_digits().images * 255 / 16)


def grey_levels(record):
    image = decode_image(tf.constant(record.encoded), 8).numpy()
    assert np.all(image == image[..., :1])
    return image[..., 0]


def test_digits_are_the_scans_grey_level_by_grey_level(scans):
    records = list(read_digits(range(10)))
    assert len(records) == 1797
    assert_ids_are_unique(records)
    assert [record.label for record in records] == sklearn.datasets.load_digits().target.tolist()
    np.testing.assert_array_equal([grey_levels(record) for record in records], scans)
    assert {(record.format, record.text == str(record.label)) for record in records} == {("png", True)}


def test_turned_digits_come_in_eight_versions_each_a_class_of_its_own(scans):
    records = list(read_digits([0], turned=True))
    originals = scans[sklearn.datasets.load_digits().target == 0]
    assert len(records) == 8 * len(originals)
    assert_ids_are_unique(records)
    turns = ("", ", turned by 90", ", turned by 180", ", turned by 270")
    expected = {
        f"0{turn}{mirror}": np.rot90(np.flip(originals, 2) if mirror else originals, k, axes=(1, 2))
        for k, turn in enumerate(turns)
        for mirror in ("", ", mirrored")
    }
    by_text = collections.defaultdict(list)
    for record in records:
        by_text[record.text].append(record)
    assert set(by_text) == set(expected)
    for text, images in expected.items():
        assert len({record.label for record in by_text[text]}) == 1
        np.testing.assert_array_equal([grey_levels(record) for record in by_text[text]], images)
    assert len({record.label for record in records}) == 8


def test_versions_of_two_digits_are_different_classes():
    texts_by_label = collections.defaultdict(set)
    for record in read_digits([1, 9], turned=True):
        texts_by_label[record.label].add(record.text)
    assert len(texts_by_label) == 16
    assert all(len(texts) == 1 for texts in texts_by_label.values())


def test_an_unknown_digit_is_refused():
    with pytest.raises(InputError, match=r"There are no digits \[-1, 12\]; the classes .* are 0 to 9"):
        list(read_digits([3, 12, -1]))


# Omniglot.

ALPHABETS = {"Balinese": 2, "Early_Aramaic": 3, "Greek": 1}
DRAWINGS = 4
TOP = "images_background_small1"


def ink(*place):
    """`[105, 105]` random pixels, False for black."""
    return np.random.default_rng([ord(letter) for letter in repr(place)]).random([105, 105]) < 0.9


def drawing(*place):
    """A PNG of one bit a pixel, as the official archives have them."""
    file = io.BytesIO()
    PIL.Image.fromarray(ink(*place)).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """An archive in exactly the official layout, of fewer drawings."""
    path = tmp_path_factory.mktemp("omniglot") / f"{TOP}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.mkdir(TOP)
        number = 0
        for alphabet, characters in ALPHABETS.items():
            file.mkdir(f"{TOP}/{alphabet}")
            for character in range(1, characters + 1):
                number += 1
                folder = f"{TOP}/{alphabet}/character{character:02d}"
                file.mkdir(folder)
                for k in range(1, DRAWINGS + 1):
                    file.writestr(f"{folder}/{number:04d}_{k:02d}.png", drawing(alphabet, character, k))
    return path


@pytest.fixture
def damaged(archive, tmp_path):
    """A function that writes a changed copy of the archive and gives its path."""

    def write(change):
        path = tmp_path / f"{TOP}.zip"
        path.write_bytes(change(archive.read_bytes()))
        return str(path)

    return write


def test_drawings_of_a_character_are_a_class(archive):
    records = list(read_omniglot(str(archive), ["Greek", "Balinese"]))
    assert collections.Counter(record.text for record in records) == {
        "Balinese/character01": DRAWINGS,
        "Balinese/character02": DRAWINGS,
        "Greek/character01": DRAWINGS,
    }
    assert len({(record.label, record.text) for record in records}) == 3
    assert sorted({record.label for record in records}) == [0, 1, 2]
    assert_ids_are_unique(records)
    assert records[0].filename == f"{TOP}/Balinese/character01/0001_01.png"
    assert records[0].encoded == drawing("Balinese", 1, 1) and records[0].format == "png"


def test_a_drawing_decodes_to_its_black_and_white_pixels(archive):
    record = next(read_omniglot(str(archive), ["Greek"]))
    image = decode_image(tf.constant(record.encoded), 105).numpy()
    np.testing.assert_array_equal(image, np.repeat(ink("Greek", 1, 1)[..., None] * 255, 3, axis=2))


@pytest.mark.parametrize("form", ["{}", "{}/"])
def test_the_unpacked_folder_gives_the_records_of_the_archive(archive, tmp_path, monkeypatch, form):
    shutil.unpack_archive(archive, tmp_path)
    wanted = list(read_omniglot(str(archive), ALPHABETS))
    assert list(read_omniglot(form.format(tmp_path / TOP), ALPHABETS)) == wanted
    monkeypatch.chdir(tmp_path)
    assert list(read_omniglot(form.format(TOP), ALPHABETS)) == wanted
    monkeypatch.chdir(TOP)
    assert list(read_omniglot(form.format("."), ALPHABETS)) == wanted


def test_files_that_are_no_drawings_are_left_out(archive, tmp_path):
    shutil.unpack_archive(archive, tmp_path)
    (tmp_path / TOP / "Greek" / ".DS_Store").write_bytes(b"x")
    (tmp_path / TOP / "overview.png").write_bytes(b"x")
    assert len(list(read_omniglot(str(tmp_path / TOP), ALPHABETS))) == DRAWINGS * sum(ALPHABETS.values())


def test_an_alphabet_that_is_not_there_is_refused_with_the_likely_one(archive):
    with pytest.raises(InputError) as error:
        list(read_omniglot(str(archive), ["Greek", "Early Aramaic"]))
    assert str(error.value) == (
        f"{archive} has no alphabet 'Early Aramaic'. Did you mean \"Early_Aramaic\"?"
        " It has Balinese, Early_Aramaic, Greek."
    )


def test_a_path_where_nothing_is_is_refused_with_what_to_give(tmp_path):
    path = str(tmp_path / "nothing.zip")
    with pytest.raises(InputError, match=r"nothing\.zip'\. Give the path of .*--config\.data\.source=PATH"):
        list(read_omniglot(path, ["Greek"]))


@pytest.mark.parametrize(
    "change",
    [lambda data: b"<html>404</html>", lambda data: b"", lambda data: data[: len(data) // 2]],
    ids=["not a zip", "empty", "cut in half"],
)
def test_a_file_that_is_no_whole_archive_is_refused(damaged, change):
    path = damaged(change)
    with pytest.raises(InputError, match=r"images_background_small1\.zip is not a whole zip archive"):
        list(read_omniglot(path, ["Greek"]))


# Places in the header of a member, in the list at the end of a zip archive, before its name at byte 46.
HEADER_FIELDS = {"version": 6, "flags": 8, "compression": 10, "checksum": 16}


@pytest.mark.parametrize("part", ["data", *HEADER_FIELDS])
def test_a_damaged_drawing_is_named(damaged, part):
    name = f"{TOP}/Greek/character01/0006_03.png"

    def change(data):
        data = bytearray(data)
        in_data = data.index(name.encode()) + len(name) + 50
        in_header = data.rindex(name.encode()) - 46
        data[in_data if part == "data" else in_header + HEADER_FIELDS[part]] ^= 0xFF
        return bytes(data)

    path = damaged(change)
    # With a version from the future the whole list cannot be read, so there is no drawing to name.
    message = r"\.zip.*Download" if part == "version" else r"\.zip: .*0006_03\.png is damaged .*Download"
    with pytest.raises(InputError, match=message):
        list(read_omniglot(path, ["Greek"]))


@pytest.mark.parametrize("folder", [True, False])
def test_a_source_without_drawings_is_refused(tmp_path, folder):
    source = tmp_path / "empty"
    if folder:
        source.mkdir()
    else:
        with zipfile.ZipFile(source, "w") as file:
            file.writestr("readme.txt", "nothing here")
    with pytest.raises(InputError, match=r"empty has no drawings .* Is it an Omniglot archive\?"):
        list(read_omniglot(str(source), ["Greek"]))


def test_the_official_archive_has_136_characters_of_20_drawings():
    if not REAL_ARCHIVE.exists():
        pytest.skip("omniglot_background_small1.zip is not in ../shared/data beside the repository")
    alphabets = ["Balinese", "Early_Aramaic", "Greek", "Korean", "Latin"]
    records = list(read_omniglot(str(REAL_ARCHIVE), alphabets))
    assert collections.Counter(collections.Counter(record.label for record in records).values()) == {20: 136}
    assert {record.text.split("/")[0] for record in records} == set(alphabets)
    assert_ids_are_unique(records)
    for record in records[::200]:
        assert record.format == "png"
        assert set(np.unique(decode_image(tf.constant(record.encoded), 105))) == {0, 255}
