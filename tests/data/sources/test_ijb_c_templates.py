"""IJB-C in InsightFace's layout: crops, points, templates and pairs, as its lists have them."""

import dataclasses
import tracemalloc

import numpy as np
import pytest

from tests.data.sources.test_faces import peak_of, write
from tfrank.common.checks import InputError
from tfrank.data.sources import SOURCES
from tfrank.data.sources import ijb_c_templates as module
from tfrank.data.sources.counts import compare_counts
from tfrank.data.sources.ijb_c import read_ijb_c
from tfrank.data.sources.ijb_c_templates import read_ijb_c_templates, read_pairs, templates
from tfrank.data.sources.image import Count, SourceImage

# Template 1 has a photo and a video of two frames, which template 3 has too.
IMAGES = ["1.jpg 1 69544", "2.jpg 1 47062", "3.jpg 1 47062", "4.jpg 3 47062", "5.jpg 40000 2"]
POINT_WORDS = "48.8 51.6 83.5 51.5 66.0 71.7 51.5 92.3 80.7 92.2"
POINTS = [f"{number}.jpg {POINT_WORDS} 0.99{number}" for number in range(1, 6)]
PAIRS = ["1 3 1", "1 40000 0", "3 40000 0"]
LISTS = {
    "ijbc_face_tid_mid.txt": IMAGES,
    "ijbc_name_5pts_score.txt": POINTS,
    "ijbc_template_pair_label.txt": PAIRS,
}
IMAGE_LIST, POINT_LIST, PAIR_LIST = LISTS


@pytest.fixture
def ijbc(tmp_path):
    folder = tmp_path / "IJBC"
    (folder / "loose_crop").mkdir(parents=True)
    for name, lines in LISTS.items():
        write(folder / "meta" / name, *lines)
    return folder


def test_a_crop_has_its_points_and_no_class(ijbc):
    images = list(read_ijb_c_templates(str(ijbc)))
    assert images[0] == SourceImage(
        split="test",
        path="loose_crop/1.jpg",
        label=-1,
        text="",
        id="1.jpg",
        landmarks=((48.8, 51.6), (83.5, 51.5), (66.0, 71.7), (51.5, 92.3), (80.7, 92.2)),
    )
    assert [image.id for image in images] == ["1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg"]


def test_the_templates_and_media_of_images_and_the_pairs_are_those_of_the_lists(ijbc):
    found = templates(str(ijbc))
    assert found.ids.tolist() == [b"1.jpg", b"2.jpg", b"3.jpg", b"4.jpg", b"5.jpg"]
    assert found.template.tolist() == [1, 1, 1, 3, 40000]
    assert found.media.tolist() == [69544, 47062, 47062, 47062, 2]
    assert found.pairs.tolist() == [[1, 3, 1], [1, 40000, 0], [3, 40000, 0]]
    assert found.pairs.dtype == found.template.dtype == found.media.dtype == np.int32
    assert found.counts() == {"templates": 3, "pairs": 3, "positive_pairs": 1}


@pytest.mark.parametrize("up", [0, 1])
def test_the_layout_is_found_by_its_lists_in_the_folder_or_in_one_in_it(ijbc, up):
    source = SOURCES["ijb_c"].in_layout_of(str([ijbc, ijbc.parent][up]))
    assert source.read is read_ijb_c_templates and source.templates is templates
    found = list(source.read(str(ijbc.parent)))
    assert found == [
        dataclasses.replace(image, path=f"IJBC/{image.path}") for image in source.read(str(ijbc))
    ]
    assert [part.tolist() for part in source.templates(str(ijbc.parent))] == [
        part.tolist() for part in source.templates(str(ijbc))
    ]


def test_the_publishers_own_layout_is_read_as_before(ijbc):
    write(ijbc / "protocols" / "ijbc_metadata.csv", "SUBJECT_ID")
    assert SOURCES["ijb_c"].in_layout_of(str(ijbc)) is SOURCES["ijb_c"]
    assert SOURCES["sop"].in_layout_of(str(ijbc)) is SOURCES["sop"]


def test_a_folder_of_neither_layout_is_told_both(tmp_path):
    with pytest.raises(InputError, match=r"The list .*metadata\.csv does not .* InsightFace's, with loose"):
        next(SOURCES["ijb_c"].in_layout_of(str(tmp_path)).read(str(tmp_path)))
    assert SOURCES["ijb_c"].read is read_ijb_c


@pytest.mark.parametrize("name", LISTS)
def test_a_list_that_is_missing_is_named_where_it_should_be(ijbc, name):
    path = ijbc / "meta" / name
    path.unlink()
    source = SOURCES["ijb_c"].in_layout_of(str(ijbc.parent))
    for read in (lambda folder: next(source.read(folder)), source.templates):
        with pytest.raises(
            InputError, match=rf"^The list {path} does not exist\. Give the folder of Insight"
        ):
            read(str(ijbc.parent))


def test_the_counts_are_those_of_the_official_list():
    source = SOURCES["ijb_c"].alternative
    assert compare_counts(source, {"test": Count(None, 469_375)}) == []
    (line,) = compare_counts(source, {"test": Count(None, 469_374)})
    assert line == "test: 469,374 images; officially 469,375: 1 image fewer."


IMAGE_COLUMNS = r"the columns image, template \(a whole .*\^31\), media \(a whole .*\^31\), but the line is"
POINT_COLUMNS = r"the columns image, x1 \(a number\), y1 .*, y5 \(a number\), score \(a number\), but"


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        (IMAGE_LIST, "6.jpg 1", IMAGE_COLUMNS),
        (IMAGE_LIST, "6.jpg 1 x", IMAGE_COLUMNS),
        (IMAGE_LIST, f"6.jpg {2**31} 1", IMAGE_COLUMNS),
        (POINT_LIST, f"6.jpg {POINT_WORDS}", POINT_COLUMNS),
        (POINT_LIST, f"6.jpg {POINT_WORDS} nan", POINT_COLUMNS),
        (POINT_LIST, f"7.jpg {POINT_WORDS} 1", r"the face of 6\.jpg, which .*tid_mid\.txt has in line 6"),
        (IMAGE_LIST, None, r"no more faces, since .*tid_mid\.txt has no more images"),
        (POINT_LIST, None, r"no more images, since .*5pts_score\.txt has no more faces"),
    ],
)
def test_a_line_that_is_not_as_published_is_named(ijbc, name, line, message):
    lines = {IMAGE_LIST: "6.jpg 1 5", POINT_LIST: f"6.jpg {POINT_WORDS} 1"} | {name: line}
    for file, last in lines.items():
        write(ijbc / "meta" / file, *LISTS[file], *([last] if last else []))
    at = name if line else {IMAGE_LIST: POINT_LIST, POINT_LIST: IMAGE_LIST}[name]
    with pytest.raises(InputError, match=rf"{at}, line 6: expected {message}"):
        list(read_ijb_c_templates(str(ijbc)))


@pytest.mark.parametrize(
    "line",
    [
        "1 3",
        "1 3 1 1",
        "1 3 2",
        "1 3 -1",
        "-1 3 1",
        "1 x 1",
        "1.0 3 1",
        f"1 {2**31} 0",
        "1 3 \u0661",
        "#1 3 1",
    ],
)
@pytest.mark.parametrize("block_lines", [module._BLOCK_LINES, 2])
def test_a_pair_that_is_not_as_published_is_named_with_its_line(ijbc, monkeypatch, line, block_lines):
    monkeypatch.setattr(module, "_BLOCK_LINES", block_lines)
    path = ijbc / "meta" / PAIR_LIST
    write(path, *PAIRS, "", line, "1 3 1")
    message = r"the columns template1 \(a .*, template2 \(a .*, label \(0 or 1\), but the line is"
    with pytest.raises(InputError, match=rf"^{path}, line 5: expected {message}") as error:
        templates(str(ijbc))
    assert "\n" not in str(error.value)


def test_a_list_of_bytes_that_are_no_text_is_named_with_its_line(ijbc):
    path = ijbc / "meta" / PAIR_LIST
    path.write_bytes(b"1 3 1\n\xff\xfe 3 1\n")
    with pytest.raises(InputError, match=rf"^{path}, line 2: expected the columns template1"):
        templates(str(ijbc))


@pytest.mark.parametrize("end", ["", "\n", "\n\n  \n"])
@pytest.mark.parametrize("block_lines", [module._BLOCK_LINES, 1, 2])
def test_pairs_are_read_in_blocks_with_any_blanks_and_ends_of_lines(tmp_path, monkeypatch, end, block_lines):
    monkeypatch.setattr(module, "_BLOCK_LINES", block_lines)
    path = tmp_path / "pairs.txt"
    path.write_bytes(("1 3 1\r\n\n 2\t3  0\n007 3 0" + end).encode())
    assert read_pairs(str(path)).tolist() == [[1, 3, 1], [2, 3, 0], [7, 3, 0]]


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_list_without_pairs_is_cut_off(ijbc, content):
    path = ijbc / "meta" / PAIR_LIST
    path.write_text(content)
    with pytest.raises(InputError, match=rf"^{path} is truncated: it has no pairs\."):
        templates(str(ijbc))


def test_a_pair_of_an_unknown_template_is_named_with_both_lists(ijbc):
    write(ijbc / "meta" / PAIR_LIST, *PAIRS, "3 77 0", "78 1 0")
    with pytest.raises(InputError) as error:
        templates(str(ijbc))
    assert str(error.value) == (
        f"{ijbc}/meta/{PAIR_LIST}: the pair 3 77 0 has template 77, which has no image"
        f" in {ijbc}/meta/{IMAGE_LIST}. Use both lists of the same release."
    )


def test_images_are_read_line_by_line_and_pairs_take_no_more_than_their_numbers(ijbc):
    write(ijbc / "meta" / IMAGE_LIST, *(f"{n}.jpg {n // 20} {n // 5}" for n in range(10_000)))
    write(ijbc / "meta" / POINT_LIST, *(f"{n}.jpg {POINT_WORDS} 1" for n in range(10_000)))
    count, peak = peak_of(read_ijb_c_templates(str(ijbc)))
    assert count == 10_000 and peak < 500_000
    path = ijbc / "meta" / PAIR_LIST
    path.write_text("12345 23456 0\n" * 2**18)
    tracemalloc.start()
    pairs = read_pairs(str(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(pairs) == 2**18 and peak < pairs.nbytes + 12_000_000
