"""Stateless draws: what comes when is a pure function of (seed, key, turn), so nothing is walked through."""

import functools

import numpy as np

# Keys of what is drawn. The images of class c are drawn with key c, the classes of category k with
# key CLASSES_OF_CATEGORY - k.
CLASSES, CATEGORIES, PAIRS, CLASSES_OF_CATEGORY = -1, -2, -3, -4

# Numbers that the cached orders of one bit length hold at most: 64 MB.
CACHED = 2**23


def _cached(most):
    """Keeps the last `most` orders that a function gave; fewer of long ones, see `CACHED`, but two."""

    def decorate(function):
        caches = [functools.lru_cache(max(2, min(most, CACHED >> bits)))(function) for bits in range(64)]

        @functools.wraps(function)
        def cached(seed, key, epoch, size, *take):
            return caches[size.bit_length()](seed, key, epoch, size, *take)

        cached.cache_clear = lambda: [cache.cache_clear() for cache in caches]
        return cached

    return decorate


class _Key(np.random.bit_generator.ISeedSequence):
    """The key of a generator. Given as `key=`, NumPy gathers entropy first, which takes as long again."""

    def __init__(self, *words):
        self.words = np.array(words, np.int64).view(np.uint64)

    def generate_state(self, n_words, dtype=np.uint32):
        return self.words


@_cached(most=1024)
def permutation(seed: int, key: int, epoch: int, size: int) -> np.ndarray:
    """The stateless random order of `size` things in an epoch.

    >>> permutation(0, 7, 0, 4), permutation(0, 7, 1, 4)
    (array([0, 1, 3, 2]), array([1, 3, 2, 0]))
    """
    bits = np.random.Philox(_Key(seed, key), counter=[epoch, 0, 0, 0])
    return np.random.Generator(bits).permutation(size)


@_cached(most=4096)
def epoch_order(seed: int, key: int, epoch: int, size: int, take: int) -> np.ndarray:
    """The order in which an epoch visits its things, when they are taken `take` at a time.

    Where a take straddles two epochs, it takes from the second only things that it does not hold yet;
    those skipped come next. Needs size >= take.
    """
    # Only the first `take` places of an order can differ from the plain permutation, so the end of
    # the epoch before is known at once, unless epochs are shorter than two takes. Then the chain of
    # epochs goes back to one that begins with a take: fewer than `take` of them.
    first = epoch
    while first * size % take:
        first -= 1
        if size >= 2 * take:
            break
    order = permutation(seed, key, first, size)
    for number in range(first + 1, epoch + 1):
        held = number * size % take  # Places of the straddling take that the epoch before has filled.
        last, order = set(order[size - held :].tolist()), permutation(seed, key, number, size)
        head = order[:take].tolist()
        chosen = [thing for thing in head if thing not in last][: take - held]
        taken = set(chosen)
        skipped = [thing for thing in head if thing not in taken]
        order = np.concatenate([chosen + skipped, order[take:]])
    return order


def draw(seed: int, key: int, turn: int, size: int, take: int) -> tuple[np.ndarray, np.ndarray]:
    """The things of one turn: `take` distinct numbers below `size`, and the epoch each belongs to.

    Over any number of turns the visits of two things differ by at most one. Where size < take, things
    repeat within the turn.

    >>> [draw(0, 7, turn, size=4, take=3)[0].tolist() for turn in range(4)]
    [[0, 1, 3], [2, 1, 3], [2, 0, 3], [0, 2, 1]]
    """
    begin, end = turn * take, (turn + 1) * take
    parts = []
    for epoch in range(begin // size, (end - 1) // size + 1):
        first, last = max(begin - epoch * size, 0), end - epoch * size
        # Beyond its first `take` places an epoch's order is the plain permutation, found in half the time.
        plain = size < take or first >= take
        order = permutation(seed, key, epoch, size) if plain else epoch_order(seed, key, epoch, size, take)
        parts.append(order[first:last])
    return np.concatenate(parts), np.arange(begin, end) // size


@functools.lru_cache(maxsize=16)
def category_pairs(seed: int, epoch: int, halves: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The two categories of each batch of an epoch, and for both how often the epoch had them before.

    Args:
        seed, epoch: what the order is random in.
        halves: for each category, how many batches of the epoch it is half of. Their sum is even, and
            none is more than half of it.

    Returns:
        Two arrays `[batches, 2]`.

    >>> pairs, turns = category_pairs(0, 0, (1, 2, 1))
    >>> pairs.tolist(), turns.tolist()
    ([[2, 1], [1, 0]], [[0, 0], [1, 0]])
    """
    counts = np.array(halves)
    order = permutation(seed, CATEGORIES, epoch, len(counts))
    # A category stands in one block of at most half of the places, so two that are half of them apart differ.
    pairs = np.repeat(order, counts[order]).reshape(2, -1).T
    pairs = pairs[permutation(seed, PAIRS, epoch, len(pairs))]
    # So a category would meet but two others in an epoch: batches two and two exchange a category,
    # where that leaves each with two different ones.
    even, odd = pairs[: len(pairs) // 2 * 2 : 2], pairs[1::2]
    exchange = (even[:, 0] != odd[:, 1]) & (odd[:, 0] != even[:, 1])
    even[exchange, 1], odd[exchange, 1] = odd[exchange, 1], even[exchange, 1]
    flat = pairs.ravel()
    by_category = np.argsort(flat, kind="stable")
    turns = np.empty_like(flat)
    turns[by_category] = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
    return pairs, turns.reshape(pairs.shape)
