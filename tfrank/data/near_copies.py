"""Near copies of photos: the same picture compressed, resized, brightened or cropped anew, and burst shots.

Each photo is a gray thumbnail of `SIDE` pixels a side. Photos whose coarse thumbnails are alike are aligned,
by a scale and a shift of each axis, and compared in detail. Two photos of one thing from two places are
no near copies. Mirrored and turned copies are not found.
"""

import io

import numpy as np
from PIL import Image
from scipy.ndimage import uniform_filter

from tfrank.common.connected import groups_of, members_of

SIDE = 32
# Pairs with at least this `similarity` are near copies: of copies that were made, 98 % are above it.
SIMILAR = 0.8
# The same if more than this share of the windows of both are flat, as in drawings, whose few lines agree more
# easily. Half of the drawings of Omniglot are above it, and at most 5 % of the photos of a set.
SIMILAR_IF_FLAT, FLAT_SHARE = 0.95, 0.65
# Pairs are compared if the cosine of their coarse thumbnails is at least this, and one is among the nearest
# of the other.
COARSE, COARSE_SIDE, NEAREST = 0.7, 8, 4
# Among more photos the search would take hours.
MOST_PHOTOS = 200_000
# Numbers that are held at a time, and pairs.
_MOST_NUMBERS, _PAIRS = 2**25, 256
# Window in pixels of the local contrast, and gray levels below which a window counts as flat.
_WINDOW, _FLAT = 5, 6.0
# Bounds of the alignment: scale of an axis, and shift as a share of half a side.
_SCALE, _SHIFT, _STEP = (0.8, 1.25), 0.2, 0.1


def thumbnail(encoded: bytes) -> np.ndarray:
    """Returns the gray thumbnail of an image file, `[SIDE, SIDE]` uint8, squeezed into a square.

    >>> buffer = io.BytesIO()
    >>> Image.new("RGB", (40, 80), (9, 9, 9)).save(buffer, "PNG")
    >>> thumbnail(buffer.getvalue()).shape
    (32, 32)
    """
    with Image.open(io.BytesIO(encoded)) as image:
        # A JPEG's decoder shrinks it, which is faster.
        image.draft("L", (2 * SIDE, 2 * SIDE))
        return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))


def near_copies(thumbnails: np.ndarray) -> list[np.ndarray]:
    """Returns the rows of each group of near copies, at least two, in the order of their first rows.

    A group is connected by pairs of near copies; its other pairs may differ more.

    Args:
        thumbnails: `[photos, SIDE, SIDE]` uint8, as from `thumbnail`.

    >>> photos = np.random.default_rng(0).integers(0, 256, [3, SIDE, SIDE]).astype(np.uint8)
    >>> [rows.tolist() for rows in near_copies(np.stack([*photos, photos[1] // 2]))]
    [[1, 3]]
    """
    if len(thumbnails) < 2 or not len(pairs := _alike(thumbnails)):
        return []
    similar = similarity(thumbnails, pairs)
    pairs, similar = pairs[similar >= SIMILAR], similar[similar >= SIMILAR]
    flat = _is_flat(thumbnails[pairs.ravel()]).reshape(-1, 2).all(axis=1)
    first, second = pairs[similar >= np.where(flat, SIMILAR_IF_FLAT, SIMILAR)].T
    return sorted(members_of(groups_of(first, second, len(thumbnails))), key=lambda rows: rows[0])


def similarity(thumbnails: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Returns the similarity in detail of each pair once it is aligned, -1 to 1; `pairs` are `[pairs, 2]`.

    It is the correlation of the thumbnails after each window is centred and divided by its contrast, so that
    frames and bright backgrounds, which many photos have in common, count no more than other windows.
    """
    parts = np.split(pairs, np.arange(_PAIRS, len(pairs), _PAIRS))
    return np.concatenate(
        [_similarity(*(thumbnails[rows].astype(np.float32) for rows in one.T)) for one in parts]
    )


def _alike(thumbnails):
    """Returns the pairs of photos that may be copies by their coarse thumbnails, `[pairs, 2]`, each once."""
    coarse = _shrunk(thumbnails.astype(np.float32), SIDE // COARSE_SIDE).reshape(len(thumbnails), -1)
    coarse -= coarse.mean(axis=1, keepdims=True)
    coarse /= np.maximum(np.linalg.norm(coarse, axis=1, keepdims=True), 1e-6)
    count, found = min(NEAREST, len(coarse) - 1), []
    for rows in np.array_split(np.arange(len(coarse)), len(coarse) ** 2 // _MOST_NUMBERS + 1):
        cosines = coarse[rows] @ coarse.T
        cosines[np.arange(len(rows)), rows] = -1
        nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        row, place = np.nonzero(np.take_along_axis(cosines, nearest, axis=1) >= COARSE)
        found.append(np.stack([rows[row], nearest[row, place]], axis=1))
    return np.unique(np.sort(np.concatenate(found), axis=1), axis=0)


def _similarity(first, second):
    """The similarity of aligned pairs, each `[pairs, SIDE, SIDE]`."""
    start = np.tile(np.float32([1, 0, 1, 0]), (len(first), 1))
    places = _aligned(_shrunk(first, 2), _shrunk(second, 2), start)
    places = _aligned(first, second, places)
    moved, inside = _moved(second, places)
    return np.sum(_unit(_local(first, inside), inside) * _unit(_local(moved, inside), inside), axis=(1, 2))


def _aligned(first, second, places, steps=8):
    """Moves the second images onto the first by Gauss-Newton steps on their correlation.

    `places` are `[pairs, 4]`: scale and shift of the vertical axis, then of the horizontal one, both from -1
    to 1. Returns the best ones found.
    """
    grid = np.linspace(-1, 1, first.shape[1], dtype=np.float32)
    best, found = np.full(len(first), -np.inf), places
    for _ in range(steps):
        moved, inside = _moved(second, places)
        one, other = _unit(first, inside), _unit(moved, inside)
        correlation = np.sum(one * other, axis=(1, 2))
        found = np.where((correlation > best)[:, None], places, found)
        best = np.maximum(best, correlation)
        scale = np.sqrt(np.sum((moved - _mean(moved, inside)) ** 2 * inside, axis=(1, 2), keepdims=True))
        down, right = np.gradient(moved, 2 / (len(grid) - 1), axis=(1, 2))
        down, right = (slope * inside / np.maximum(scale, 1e-6) for slope in (down, right))
        slopes = [down * grid[:, None], down, right * grid, right, other, inside]
        slopes = np.stack(slopes, axis=-1).reshape(len(first), -1, len(slopes))
        back = slopes.transpose(0, 2, 1)
        rest = back @ (one - other).reshape(len(first), -1, 1)
        step = np.linalg.solve(back @ slopes + 1e-4 * np.eye(slopes.shape[2], dtype=np.float32), rest)
        places = places + np.clip(step[:, :4, 0], -_STEP, _STEP)
        places[:, ::2] = np.clip(places[:, ::2], *_SCALE)
        places[:, 1::2] = np.clip(places[:, 1::2], -_SHIFT, _SHIFT)
    return found


def _moved(images, places):
    """Samples images at scaled and shifted places; returns them, and where those are inside, as 0 or 1."""
    side = images.shape[1]
    grid = np.linspace(-1, 1, side, dtype=np.float32)
    axes, inside = [], []
    for scale, shift in (places[:, :2].T, places[:, 2:].T):
        place = scale[:, None] * grid + shift[:, None]
        inside.append(np.abs(place) <= 1 + 1e-3)
        place = np.clip((place + 1) * (side - 1) / 2, 0, side - 1)
        low = np.minimum(place.astype(int), side - 2)
        axes.append((low, (place - low).astype(np.float32)))
    (low, part), (left, share) = axes
    pair = np.arange(len(images))[:, None]
    rows = images[pair, low] * (1 - part[..., None]) + images[pair, low + 1] * part[..., None]
    left, share = left[:, None], share[:, None]
    columns = (np.take_along_axis(rows, left + more, axis=2) for more in (0, 1))
    moved = next(columns) * (1 - share) + next(columns) * share
    return moved, (inside[0][:, :, None] & inside[1][:, None]).astype(np.float32)


def _local(images, inside):
    """Centres each window and divides it by its contrast."""
    count = np.maximum(_windows(inside), 1e-3)
    mean = _windows(images * inside) / count
    variance = _windows(images**2 * inside) / count - mean**2
    return (images - mean) / (np.sqrt(np.maximum(variance, 0)) + _FLAT)


def _is_flat(thumbnails):
    """Returns for each thumbnail whether more than `FLAT_SHARE` of its windows are flat."""
    images = thumbnails.astype(np.float32)
    return np.mean(_windows(images**2) - _windows(images) ** 2 <= _FLAT**2, axis=(1, 2)) > FLAT_SHARE


def _windows(images):
    return uniform_filter(images, (0, _WINDOW, _WINDOW))


def _unit(images, inside):
    centred = (images - _mean(images, inside)) * inside
    return centred / np.maximum(np.sqrt(np.sum(centred**2, axis=(1, 2), keepdims=True)), 1e-6)


def _mean(images, inside):
    total = np.sum(inside, axis=(1, 2), keepdims=True)
    return np.sum(images * inside, axis=(1, 2), keepdims=True) / np.maximum(total, 1)


def _shrunk(images, times):
    count, side, _ = images.shape
    return images.reshape(count, side // times, times, side // times, times).mean(axis=(2, 4))
