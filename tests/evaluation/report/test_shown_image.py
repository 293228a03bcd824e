import io

import numpy as np
import pytest
from PIL import Image

from tfrank.common.checks import InputError
from tfrank.evaluation.report.shown_image import thumbnail


@pytest.mark.parametrize(
    "shape, wanted",
    [
        ((640, 320), (32, 64)),
        ((500, 1000), (128, 64)),
        ((100, 10_000), (160, 2)),
        ((1000, 10), (1, 64)),
        # No photo is enlarged, but for the smallest, by whole pixels.
        ((60, 80), (80, 60)),
        ((30, 60), (120, 60)),
    ],
)
def test_a_thumbnail_is_so_high_in_its_own_proportions(shape, wanted):
    picture = np.zeros([*shape, 3], np.uint8)
    picture[..., 0] = 200
    small = Image.open(io.BytesIO(thumbnail(picture, height=64)))
    assert small.format == "JPEG" and small.size == wanted
    assert np.abs(np.asarray(small).astype(int) - [200, 0, 0]).max() < 12


@pytest.mark.parametrize(
    "image",
    [
        np.zeros([4, 4], np.uint8),
        np.zeros([4, 4, 3]),
        np.zeros([0, 4, 3], np.uint8),
        np.zeros([4, 4, 4], np.uint8),
    ],
)
def test_a_thumbnail_of_something_else_is_refused(image):
    with pytest.raises(InputError, match=r"Expected uint8 pixels \[height, width, 3\]"):
        thumbnail(image)
