"""Near copies of photos: copies that were made are found, and other photos are not."""

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_images

from tfrank.data.near_copies import SIDE, SIMILAR, near_copies, similarity, thumbnail

# Parts of two photos that overlap by a half, as two photos of one thing would.
PHOTOS = [
    Image.fromarray(image[top : top + 200, left : left + 240])
    for image in load_sample_images().images
    for top in (60, 140, 220)
    for left in (0, 120, 240, 360)
]


def encoded(image, quality=90):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


MADE = {
    "compressed": lambda image: encoded(image, 60),
    "half the size": lambda image: encoded(image.resize((120, 100))),
    "cropped": lambda image: encoded(image.crop((4, 6, 232, 196))),
    "brighter": lambda image: encoded(ImageEnhance.Brightness(image).enhance(1.3)),
    "darker": lambda image: encoded(ImageEnhance.Brightness(image).enhance(0.7)),
}


@pytest.mark.parametrize("made", MADE)
def test_a_copy_that_was_made_is_found_with_its_original_alone(made):
    rows = np.stack([thumbnail(encoded(image)) for image in PHOTOS])
    copies = np.stack([thumbnail(MADE[made](image)) for image in PHOTOS])
    found = {tuple(group) for group in near_copies(np.concatenate([rows, copies]))}
    assert found == {(row, row + len(rows)) for row in range(len(rows))}


def test_photos_with_half_of_the_view_in_common_are_no_copies():
    assert near_copies(np.stack([thumbnail(encoded(image)) for image in PHOTOS])) == []


def test_a_shift_between_two_shots_is_aligned():
    image = load_sample_images().images[0]
    shots = [Image.fromarray(image[top : top + 300, top : top + 400]) for top in (50, 60)]
    rows = np.stack([thumbnail(encoded(shot)) for shot in shots])
    assert similarity(rows, np.array([[0, 1]]))[0] > SIMILAR
    detail = rows.reshape(2, -1).astype(float)
    assert np.corrcoef(detail - np.roll(detail, 1, axis=1))[0, 1] < SIMILAR


@pytest.mark.parametrize("photos", [0, 1, 5])
def test_blank_photos_and_too_few_are_no_copies(photos):
    assert near_copies(np.full([photos, SIDE, SIDE], 255, np.uint8)) == []
