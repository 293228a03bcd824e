"""Letters in the typefaces of matplotlib."""

import collections
import unicodedata

import matplotlib
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.ft2font import FT2Font

from tests.command_lines import run
from tfrank.common.checks import InputError
from tfrank.data.sources.letters import ALPHABETS, TYPEFACES, letters_of, read_letters


def read(train=("Greek",), test=("Georgian",), **options):
    return list(read_letters(train=train, test=test, **options))


def pixels(image):
    return tf.io.decode_png(image.encoded, channels=1).numpy()[..., 0]


def texts(images, split):
    return {image.text for image in images if image.split == split}


@pytest.fixture(scope="module")
def all_alphabets():
    return read(train=("Latin", "Greek", "Cyrillic"), test=("Armenian", "Georgian"))


def test_a_class_is_a_letter_called_by_itself_and_its_unicode_name(all_alphabets):
    assert len({(image.label, image.text) for image in all_alphabets}) == 123 + 109
    for image in all_alphabets:
        letter = chr(image.label)
        assert image.text == f"{letter} {unicodedata.name(letter).capitalize()}"
    assert {"Ж Cyrillic capital letter zhe", "g Latin small letter g"} <= texts(all_alphabets, "train")


def test_the_parts_are_as_large_as_the_page_of_data_sets_says(all_alphabets):
    sizes = collections.Counter(image.split for image in all_alphabets)
    assert sizes == {"train": 2228, "test": 1308}
    assert len({image.id for image in all_alphabets}) == len(all_alphabets)


def test_images_are_squares_of_a_letter_on_black_and_hardly_one_is_cut_off(all_alphabets):
    cut_off = 0
    for image in all_alphabets:
        found = pixels(image)
        assert found.shape == (56, 56) and found.max() > 200
        cut_off += max(found[0].max(), found[-1].max(), found[:, 0].max(), found[:, -1].max()) > 60
    assert cut_off < 10


def test_a_seed_gives_the_same_images_and_another_one_moves_all_letters():
    first, again, other = read(), read(), read(seed=1)
    assert [image.encoded for image in first] == [image.encoded for image in again]
    assert [image.id for image in first] == [image.id for image in other]
    assert all(a.encoded != b.encoded for a, b in zip(first, other))


def test_a_letter_looks_the_same_whatever_it_is_read_with():
    alone, beside = read(train=("Greek",), test=()), read(train=("Latin", "Greek"), test=("Georgian",))
    by_id = {image.id: image.encoded for image in beside if image.split == "train"}
    common = [image for image in alone if image.id in by_id]
    assert common and all(image.encoded == by_id[image.id] for image in common)


def test_no_letter_is_drawn_that_its_typeface_lacks():
    for image in read(train=("Armenian",), test=()):
        path = f"{matplotlib.get_data_path()}/fonts/ttf/{image.id.split('/')[-1]}.ttf"
        assert image.label in FT2Font(path).get_charmap()
    typefaces = {image.id.split("/")[-1] for image in read(train=("Armenian",), test=())}
    assert typefaces == {name for name in TYPEFACES if name.startswith("DejaVu")}


def test_of_letters_that_look_the_same_the_first_is_a_class():
    names = texts(read(train=("Latin", "Greek", "Cyrillic")), "train")
    assert "A Latin capital letter a" in names
    assert not {"\u0391 Greek capital letter alpha", "\u0410 Cyrillic capital letter a"} & names
    # In italics it is an m.
    assert "т Cyrillic small letter te" not in names
    greek = texts(read(train=("Cyrillic",), test=("Greek",)), "test")
    assert "\u0391 Greek capital letter alpha" in greek


def test_letters_that_look_alike_but_not_the_same_are_kept():
    names = texts(read(train=("Latin",), test=("Armenian",)), "train")
    assert len(names) == 52
    assert len(texts(read(test=("Armenian",)), "test")) == len(letters_of("Armenian")) == 76


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_letters_of_an_alphabet_are_its_own(alphabet):
    for letter in letters_of(alphabet):
        assert unicodedata.name(letter).startswith(f"{alphabet.upper()} ")


def test_a_greek_letter_is_the_one_of_its_code_and_no_box():
    """Two letters of one typeface differ, which boxes for missing letters would not."""
    by_typeface = collections.defaultdict(list)
    for image in read(test=()):
        by_typeface[image.id.split("/")[-1]].append(pixels(image).astype(float))
    for images in by_typeface.values():
        assert min(np.abs(a - b).max() for k, a in enumerate(images) for b in images[:k]) > 50


@pytest.mark.parametrize("alphabets", ["Greek", 1, ["Greke"], [["Greek"]]])
@pytest.mark.parametrize("side", ["train", "test"])
def test_what_is_no_list_of_alphabets_is_refused(alphabets, side):
    with pytest.raises(InputError, match=rf"argument `{side}`. Expected a list|There is no alphabet"):
        read(**{side: alphabets})


def test_a_misspelt_alphabet_is_guessed():
    with pytest.raises(InputError, match=r'no alphabet \'Greke\'\. Did you mean "Greek"\? There is Latin, G'):
        read(train=("Greke",))


@pytest.mark.parametrize("seed", [-1, 0.5, "1"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(InputError, match="argument `seed`"):
        read(seed=seed)


def test_where_matplotlib_has_no_typefaces_one_line_says_what_else_to_train_on(tmp_path):
    code = (
        "import matplotlib; matplotlib.get_data_path = lambda: '/nothing'; import sys;"
        f"sys.argv = ['train_main.py', '--workdir={tmp_path}/run'];"
        "from tfrank.run.entry_points import train; train()"
    )
    ended = run("-c", code)
    assert ended.status == 1
    line = ended.errors.strip()
    assert line.startswith("Error: This matplotlib comes without the typeface /nothing/fonts/ttf/DejaVuSans")
    assert "\n" not in line and "by the config configs/digits.py" in line
