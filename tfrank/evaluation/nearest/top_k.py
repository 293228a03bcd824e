"""The k largest similarities of each query, updated while the gallery is processed in tiles.

Each entry is one integer, a key: the upper 32 bits are the similarity, inverted so that larger ones sort
first, and the lower 32 bits are the gallery row. Ascending keys are neighbours from near to far, and equal
similarities keep the order of the gallery. So merging two tiles is sorting integers.
"""

import numpy as np

# The key of no neighbour, which sorts behind every other key.
EMPTY = np.uint64(2**64 - 1)
# The number of gallery rows that a key can encode.
MOST_ROWS = 2**32
# The columns of a tile are split into this many groups, or into 4 k groups if that is more.
GROUPS = 512


def pack(similarity: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Keys of float32 similarities and their gallery rows; `EMPTY` if the similarity is -inf."""
    # 0 and -0 are equal but differ in their bits; adding 0 makes -0 positive.
    bits = (np.asarray(similarity, np.float32) + np.float32(0)).view(np.uint32)
    # The bits of floats, read as unsigned integers, ascend for positive and descend for negative values.
    descending = np.where(bits >> 31, bits, ~bits & np.uint32(2**31 - 1))
    keys = descending.astype(np.uint64) << np.uint64(32) | row.astype(np.uint64)
    return np.where(similarity == -np.inf, EMPTY, keys)


def unpack(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The int64 gallery rows and the float32 similarities of keys; -1 and -inf for `EMPTY`.

    >>> unpack(pack(np.float32([0.5, -2, -np.inf]), np.array([7, 8, 9])))
    (array([ 7,  8, -1]), array([ 0.5, -2. , -inf], dtype=float32))
    """
    descending = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(descending >> 31, descending, ~descending & np.uint32(2**31 - 1))
    empty = keys == EMPTY
    row = np.where(empty, -1, (keys & np.uint64(MOST_ROWS - 1)).astype(np.int64))
    return row, np.where(empty, np.float32(-np.inf), bits.view(np.float32))


def merge(keys: np.ndarray, *more: np.ndarray) -> np.ndarray:
    """The `[queries, k]` smallest keys, the nearest rows, among `[queries, k]` keys and more keys."""
    merged = np.concatenate([keys, *more], axis=1)
    merged.sort(axis=1)
    return merged[:, : keys.shape[1]]


def merge_tile(keys: np.ndarray, similarities: np.ndarray, first_row: int) -> np.ndarray:
    """The k nearest rows after merging another tile of the gallery.

    Args:
        keys: `[queries, k]`, ascending: the k nearest of the rows before the tile.
        similarities: `[queries, columns]` float32 of the tile, -inf for rows to leave out.
        first_row: the gallery row of the first column.

    Returns:
        `[queries, k]` keys, ascending.
    """
    queries, columns = similarities.shape
    k = keys.shape[1]
    # Group g holds the columns g, g + groups, ..., which separates adjacent and often similar gallery rows.
    depth = max(1, columns // max(GROUPS, 4 * k))
    groups = columns // depth
    grouped = similarities[:, : depth * groups].reshape(queries, depth, groups)
    largest = grouped.max(axis=1)
    # Ties keep the earlier row, so a new row must exceed the k-th largest similarity so far.
    least = np.nextafter(unpack(keys[:, -1])[1], np.float32(np.inf))
    if k < groups:
        # At least k columns reach the k-th largest maximum of a group.
        least = np.maximum(least, np.partition(largest, groups - k, axis=1)[:, groups - k])
    query, group = _where(largest >= least[:, None])
    entries = grouped[query, :, group]
    entry, layer = _where(entries >= least[query, None])
    row = first_row + layer * groups + group[entry]
    rest = np.arange(depth * groups, columns) + first_row
    return merge(
        keys,
        _padded(pack(entries[entry, layer], row), query[entry], queries),
        pack(similarities[:, depth * groups :], rest),
    )


def _where(mask):
    """Computes `np.nonzero` of a matrix, several times as fast."""
    return np.divmod(np.flatnonzero(mask.ravel()), mask.shape[1])


def _padded(keys, query, queries):
    """Pads a list of keys, sorted by query, to an array `[queries, largest number of keys of a query]`."""
    counts = np.bincount(query, minlength=queries)
    place = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
    padded = np.full([queries, counts.max(initial=0)], EMPTY)
    padded[query, place] = keys
    return padded
