"""Which images make batch t: class-balanced, and a pure function of (seed, t)."""

import functools

import numpy as np

from tfrank import checks
from tfrank.checks import InputError

# Classes are drawn with this key; the images of class c with key c.
CLASSES = -1
SHORT_CLASSES = ("repeat", "drop")


@functools.lru_cache(maxsize=1024)
def permutation(seed: int, key: int, epoch: int, size: int) -> np.ndarray:
    """The stateless random order of `size` things in an epoch."""
    bits = np.random.Philox(key=np.array([seed, key], np.int64).view(np.uint64), counter=[epoch, 0, 0, 0])
    return np.random.Generator(bits).permutation(size)


@functools.lru_cache(maxsize=4096)
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
        last, order = order[len(order) - held :], permutation(seed, key, number, size)
        chosen = np.flatnonzero(~np.isin(order, last))[: take - held]
        order = np.concatenate([order[chosen], np.delete(order, chosen)])
    return order


def draw(seed: int, key: int, turn: int, size: int, take: int) -> tuple[np.ndarray, np.ndarray]:
    """The things of one turn: `take` distinct numbers below `size`, and the epoch each belongs to.

    Over any number of turns the visits of two things differ by at most one. Where size < take, things
    repeat within the turn.
    """
    place = np.arange(turn * take, (turn + 1) * take)
    epochs = place // size
    order = permutation if size < take else functools.partial(epoch_order, take=take)
    orders = {epoch: order(seed, key, epoch, size) for epoch in range(epochs[0], epochs[-1] + 1)}
    return np.array([orders[e][p] for e, p in zip(epochs, place % size)]), epochs


class ClassBalancedSampler:
    """Batch t: `classes_per_batch` distinct classes, `examples_per_class` distinct images of each.

    Epoch e visits all classes in a random order, each visit of a class goes on in a random order of
    its images; classes are visited equally often, up to one, at any t, and so are a class's images.

    Args:
        labels: `[records]` int64, the class of each record.
        classes_per_batch: at least 1, at most the number of classes.
        examples_per_class: at least 1.
        short_classes: what to do with classes of fewer images than that: "repeat" their images within
            a batch, or "drop" the classes.
        seed: of all draws, at least 0.

    >>> sampler = ClassBalancedSampler(np.repeat(np.arange(5), 3), classes_per_batch=2, examples_per_class=2)
    >>> sampler.batch(7).shape
    (4,)
    """

    def __init__(
        self,
        labels: np.ndarray,
        *,
        classes_per_batch: int,
        examples_per_class: int,
        short_classes: str = "repeat",
        seed: int = 0,
    ):
        self.classes_per_batch = checks.integer("classes_per_batch", classes_per_batch, at_least=1)
        self.examples_per_class = checks.integer("examples_per_class", examples_per_class, at_least=1)
        self.seed = checks.integer("seed", seed, at_least=0)
        checks.one_of("short_classes", short_classes, SHORT_CLASSES)
        by_class = np.argsort(labels, kind="stable")
        starts = np.flatnonzero(np.diff(labels[by_class], prepend=labels.min() - 1))
        members = np.split(by_class, starts[1:])
        if short_classes == "drop":
            members = [images for images in members if len(images) >= examples_per_class]
        self._members = members
        if len(members) < classes_per_batch:
            enough = f" with at least {examples_per_class} images" if short_classes == "drop" else ""
            raise InputError(
                f"A batch takes classes_per_batch={classes_per_batch} distinct classes, but there are only"
                f" {len(members)}{enough} to train on. Lower classes_per_batch."
            )

    @property
    def batch_size(self) -> int:
        return self.classes_per_batch * self.examples_per_class

    def batch(self, step: int) -> np.ndarray:
        """`[batch_size]` record numbers of batch `step`; images of a class stand together."""
        classes, visits = draw(self.seed, CLASSES, step, len(self._members), self.classes_per_batch)
        numbers = []
        for c, visit in zip(classes, visits):
            images = self._members[c]
            chosen, _ = draw(self.seed, int(c), int(visit), len(images), self.examples_per_class)
            numbers.append(images[chosen])
        return np.concatenate(numbers)
