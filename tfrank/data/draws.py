"""Stateless random draws: pure functions of (seed, key, turn), so a turn needs none of those before it."""

import functools

import numpy as np

# Keys for the kinds of draws. The images of class c are drawn with key c, the classes of category k with key
# CLASSES_OF_CATEGORY - k.
CLASSES, CATEGORIES, PAIRS, CLASSES_OF_CATEGORY = -1, -2, -3, -4

# Maximum count of int64 numbers, 64 MB, in the cached orders whose sizes have the same bit length.
CACHED = 2**23


def _cached(most):
    """Caches the last `most` orders that a function returned; fewer long ones (`CACHED`), at least two."""

    def decorate(function):
        caches = [functools.lru_cache(max(2, min(most, CACHED >> bits)))(function) for bits in range(64)]

        @functools.wraps(function)
        def cached(seed, key, epoch, size, *take):
            return caches[size.bit_length()](seed, key, epoch, size, *take)

        cached.cache_clear = lambda: [cache.cache_clear() for cache in caches]
        return cached

    return decorate


class _Key(np.random.bit_generator.ISeedSequence):
    """Passes a key to a generator. With `key=`, NumPy would also gather entropy, which doubles the time."""

    def __init__(self, *words):
        self.words = np.array(words, np.int64).view(np.uint64)

    def generate_state(self, n_words, dtype=np.uint32):
        return self.words


@_cached(most=1024)
def permutation(seed: int, key: int, epoch: int, size: int) -> np.ndarray:
    """Returns the stateless random order of `size` items in an epoch.

    >>> permutation(0, 7, 0, 4), permutation(0, 7, 1, 4)
    (array([0, 1, 3, 2]), array([1, 3, 2, 0]))
    """
    bits = np.random.Philox(_Key(seed, key), counter=[epoch, 0, 0, 0])
    return np.random.Generator(bits).permutation(size)


@_cached(most=4096)
def epoch_order(seed: int, key: int, epoch: int, size: int, take: int) -> np.ndarray:
    """Returns the order in which an epoch visits its items if they are taken `take` at a time.

    If a take spans two epochs, it takes from the second only items that it does not hold yet. The skipped
    items come next. Needs size >= take.
    """
    # Only the first `take` places of an order can differ from the plain permutation. So the end of the
    # previous epoch is known directly, unless an epoch is shorter than two takes. Then start at the last
    # epoch that begins with a new take, fewer than `take` epochs back.
    first = epoch
    while first * size % take:
        first -= 1
        if size >= 2 * take:
            break
    order = permutation(seed, key, first, size)
    for number in range(first + 1, epoch + 1):
        held = number * size % take  # Items of the spanning take that come from the previous epoch.
        last, order = set(order[size - held :].tolist()), permutation(seed, key, number, size)
        head = order[:take].tolist()
        chosen = [thing for thing in head if thing not in last][: take - held]
        taken = set(chosen)
        skipped = [thing for thing in head if thing not in taken]
        order = np.concatenate([chosen + skipped, order[take:]])
    return order


def draw(seed: int, key: int, turn: int, size: int, take: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the items of one turn: `take` distinct numbers below `size`, and the epoch of each.

    Over the first turns, however many, visit counts of two items differ by at most one. If size < take,
    items repeat within the turn.

    >>> [draw(0, 7, turn, size=4, take=3)[0].tolist() for turn in range(4)]
    [[0, 1, 3], [2, 1, 3], [2, 0, 3], [0, 2, 1]]
    """
    begin, end = turn * take, (turn + 1) * take
    parts = []
    for epoch in range(begin // size, (end - 1) // size + 1):
        first, last = max(begin - epoch * size, 0), end - epoch * size
        # Beyond its first `take` places an order is the plain permutation, which takes half the time.
        plain = size < take or first >= take
        order = permutation(seed, key, epoch, size) if plain else epoch_order(seed, key, epoch, size, take)
        parts.append(order[first:last])
    return np.concatenate(parts), np.arange(begin, end) // size


@functools.lru_cache(maxsize=16)
def category_pairs(seed: int, epoch: int, halves: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the two categories of each batch of an epoch, and how often each occurred before in the epoch.

    Args:
        seed, epoch: the pairs are random, as a function of both.
        halves: for each category, its number of half batches in the epoch. The sum is even, and no number is
            more than half of it.

    Returns:
        Two arrays `[batches, 2]`.

    >>> pairs, turns = category_pairs(0, 0, (1, 2, 1))
    >>> pairs.tolist(), turns.tolist()
    ([[2, 1], [1, 0]], [[0, 0], [1, 0]])
    """
    counts = np.array(halves)
    order = permutation(seed, CATEGORIES, epoch, len(counts))
    # A category fills one block of at most half of the places, so places half the length apart differ.
    pairs = np.repeat(order, counts[order]).reshape(2, -1).T
    pairs = pairs[permutation(seed, PAIRS, epoch, len(pairs))]
    # These pairs combine a category only with the few opposite its block. So every two successive batches
    # exchange a category, if each then still has two different ones.
    even, odd = pairs[: len(pairs) // 2 * 2 : 2], pairs[1::2]
    exchange = (even[:, 0] != odd[:, 1]) & (odd[:, 0] != even[:, 1])
    even[exchange, 1], odd[exchange, 1] = odd[exchange, 1], even[exchange, 1]
    flat = pairs.ravel()
    by_category = np.argsort(flat, kind="stable")
    turns = np.empty_like(flat)
    turns[by_category] = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
    return pairs, turns.reshape(pairs.shape)
