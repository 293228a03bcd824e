"""The k largest similarities of each query, kept while the gallery goes by in tiles.

An entry is one integer, a key: the similarity above, from large to small, and the gallery row below. So
keys in ascending order are neighbours from near to far, those of equal similarity in the order of the
gallery, and merging two tiles is sorting integers.
"""

import numpy as np

# No neighbour: behind every other key.
EMPTY = np.uint64(2**64 - 1)
# What a key has room for.
MOST_ROWS = 2**32
# The columns of a tile are looked at in so many groups, or in four times k.
GROUPS = 512


def pack(similarity: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Keys of float32 similarities and their gallery rows; `EMPTY` where the similarity is -inf."""
    # 0 and -0 are equal, but not bit by bit.
    bits = (np.asarray(similarity, np.float32) + np.float32(0)).view(np.uint32)
    # As unsigned integers, floats ascend when positive and descend when negative.
    descending = np.where(bits >> 31, bits, ~bits & np.uint32(2**31 - 1))
    keys = descending.astype(np.uint64) << np.uint64(32) | row.astype(np.uint64)
    return np.where(similarity == -np.inf, EMPTY, keys)


def unpack(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The int64 gallery rows, -1 for `EMPTY`, and the float32 similarities, -inf for `EMPTY`.

    >>> unpack(pack(np.float32([0.5, -2, -np.inf]), np.array([7, 8, 9])))
    (array([ 7,  8, -1]), array([ 0.5, -2. , -inf], dtype=float32))
    """
    descending = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(descending >> 31, descending, ~descending & np.uint32(2**31 - 1))
    empty = keys == EMPTY
    row = np.where(empty, -1, (keys & np.uint64(MOST_ROWS - 1)).astype(np.int64))
    return row, np.where(empty, np.float32(-np.inf), bits.view(np.float32))


def merge(keys: np.ndarray, *more: np.ndarray) -> np.ndarray:
    """The `[queries, k]` nearest of `[queries, k]` keys and of more keys."""
    merged = np.concatenate([keys, *more], axis=1)
    merged.sort(axis=1)
    return merged[:, : keys.shape[1]]


def merge_tile(keys: np.ndarray, similarities: np.ndarray, first_row: int) -> np.ndarray:
    """The k nearest so far, once a further tile of the gallery is among them.

    Args:
        keys: `[queries, k]`, ascending: those of the rows before the tile.
        similarities: `[queries, columns]` float32 of the tile, -inf for what is left out.
        first_row: the gallery row of its first column.

    Returns:
        `[queries, k]` keys, ascending.
    """
    queries, columns = similarities.shape
    k = keys.shape[1]
    # Group g holds the columns g, g + groups, ...: neighbours in the gallery, often near together, part.
    depth = max(1, columns // max(GROUPS, 4 * k))
    groups = columns // depth
    grouped = similarities[:, : depth * groups].reshape(queries, depth, groups)
    largest = grouped.max(axis=1)
    # Of equals the earlier row stays, so a newcomer has to be larger than the last of those before.
    least = np.nextafter(unpack(keys[:, -1])[1], np.float32(np.inf))
    if k < groups:
        # At least k columns reach the k-th largest group.
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
    """As `np.nonzero` of a matrix, several times as fast."""
    return np.divmod(np.flatnonzero(mask.ravel()), mask.shape[1])


def _padded(keys, query, queries):
    """`[queries, most of a query]` keys from a list in the order of the queries."""
    counts = np.bincount(query, minlength=queries)
    place = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
    padded = np.full([queries, counts.max(initial=0)], EMPTY)
    padded[query, place] = keys
    return padded
