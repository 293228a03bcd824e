"""The protocols of the published tables: queries, gallery, and what each query should find."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfrank.common import checks
from tfrank.common.checks import InputError
from tfrank.common.ignore_labels import UNKNOWN
from tfrank.common.normalize import l2_normalize
from tfrank.evaluation.relevance import Relevance, relevance_by_label, relevance_by_list
from tfrank.evaluation.template_verification import TemplatePairs

# Protocols by name, with descriptions for the user.
PROTOCOLS = {
    "leave_one_out": "every image in turn is the query, all others are the gallery",
    "query_gallery": "the test set's queries against its gallery",
    "random_gallery": "a random image of each class is the gallery, the others are queries; mean of 10 draws",
    "revisited": "queries against the gallery by graded relevance: easy, medium, hard",
    "template_pairs": "pairs of templates, by the cosine; a template is the mean of its media, each"
    " of which is the mean of its images",
}
# This protocol compares pairs and ranks nothing, so it has no `RetrievalTask`.
TEMPLATE_PAIRS = "template_pairs"
# Number of draws of `random_gallery` (Liu et al., CVPR 2016).
DRAWS = 10
GRADES = ("easy", "hard", "junk")
# Grades that count as positive, and grades left out of the ranking (Radenovic et al., CVPR 2018).
DIFFICULTIES = {
    "easy": (("easy",), ("hard", "junk")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("easy", "junk")),
}


@dataclasses.dataclass(frozen=True)
class TestSet:
    """The images of a test set, without their pixels; arrays have one entry per image.

    Attributes:
        labels: `[images]` int64; -1 if only graded relevance is known.
        ids: `[images]` bytes or text.
        role: `[images]`, each "", "query", "gallery" or "distractor".
        group: `[images]` int64, the instance that several images show; -1 if the image is its own instance.
        grades: graded relevance: for each query id, the gallery ids of the grades "easy", "hard" and "junk";
            None without.
        templates: the templates of the images and the pairs to compare; None without. Images with templates
            have no groups.
        category: `[images]` int64, the coarser class of each image's class, -1 if it has none; None if no
            image has one.
    """

    # Its name makes pytest look for tests in it.
    __test__ = False

    labels: np.ndarray
    ids: np.ndarray
    role: np.ndarray
    group: np.ndarray
    grades: Mapping[str, Mapping[str, Sequence[str]]] | None = None
    templates: TemplatePairs | None = None
    category: np.ndarray | None = None


class RetrievalTask(NamedTuple):
    """Queries, the gallery that they are ranked against, and what each query should find.

    Attributes:
        queries: `[queries]` rows of the test set.
        gallery: `[gallery]` rows of the test set.
        self_index: `[queries]` the position in `gallery` of the query itself, or -1.
        relevance: what each query should find, by the name of a ranking.
        labels: the labels `[queries]` and `[gallery]` if they define `relevance`. None for graded relevance,
            which has the metrics of the revisited protocol.
        leave_one_out: whether the gallery equals the queries and labels alone define the positives.
        coarser: for graded relevance, what each query should find at each coarser level, the coarsest first.
    """

    queries: np.ndarray
    gallery: np.ndarray
    self_index: np.ndarray
    relevance: dict[str, Relevance]
    labels: tuple[np.ndarray, np.ndarray] | None
    leave_one_out: bool = False
    coarser: tuple[Relevance, ...] = ()

    @property
    def ranked(self) -> int:
        """The number of images that a query is ranked against."""
        return len(self.gallery) - bool(np.any(self.self_index >= 0))


def tasks_of(test: TestSet, protocol: str, *, seed: int = 0) -> list[RetrievalTask]:
    """The retrieval tasks of a protocol. Rankings with one name in several tasks are draws to average.

    Args:
        test: the test set.
        protocol: a name in `PROTOCOLS`, except `template_pairs`.
        seed: seed of the random draws.

    Raises:
        InputError: the protocol is unknown or does not fit the test set.

    >>> nothing = np.array([""] * 4)
    >>> test = TestSet(np.array([1, 1, 2, 2]), np.array(list("abcd")), nothing, np.full(4, -1))
    >>> (task,) = tasks_of(test, "leave_one_out")
    >>> task.relevance["leave_one_out"].positives(2)
    array([3])
    """
    match checks.one_of("protocol", protocol, [name for name in PROTOCOLS if name != TEMPLATE_PAIRS]):
        case "leave_one_out":
            return [_leave_one_out(test)]
        case "query_gallery":
            return [_query_gallery(test)]
        case "random_gallery":
            return [_random_gallery(test, np.random.default_rng([seed, draw])) for draw in range(DRAWS)]
        case _:
            return _revisited(test)


def text_of(image_id: bytes | str | int) -> str:
    """An image's id as text that UTF-8 can encode. The rest is escaped, so that different ids stay different.

    >>> text_of(b"a\\xff"), text_of("a\\udc80"), text_of(7)
    ('a\\\\xff', 'a\\\\udc80', '7')
    """
    if isinstance(image_id, bytes):
        return image_id.decode(errors="backslashreplace")
    return str(image_id).encode(errors="backslashreplace").decode()


def usual_protocol(test: TestSet) -> str:
    """The default protocol of a test set: it depends on whether there are templates, grades or roles."""
    if test.templates is not None:
        return TEMPLATE_PAIRS
    if test.grades is not None:
        return "revisited"
    return "query_gallery" if np.any(test.role == "query") else "leave_one_out"


def average_groups(embeddings: np.ndarray, test: TestSet) -> tuple[np.ndarray, TestSet, np.ndarray]:
    """One embedding for each instance: the mean over its images, such as the frames of a video.

    Smooth-AP evaluates IJB-C this way (arXiv 2007.12163, section 5.1). The mean of the unit rows is
    normalised again; it is zero if they cancel out.

    Args:
        embeddings: `[images, dim]` float32, unit norm.
        test: the test set of the images.

    Returns:
        `[instances, dim]` embeddings, their test set, and the row of the first image of each instance.

    Raises:
        InputError: images of one group have different classes or roles.
    """
    if np.all(test.group < 0):
        return embeddings, test, np.arange(len(embeddings))
    # Each image without a group is its own instance.
    key = np.where(test.group < 0, np.arange(len(test.group)) + test.group.max() + 1, test.group)
    _, first, place, sizes = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    for what, column in (("classes", test.labels), ("roles", test.role)):
        if np.any(column != column[first][place]):
            row = int(np.flatnonzero(column != column[first][place])[0])
            name = text_of(test.ids[row])
            raise InputError(
                f"Images of one group have different {what}; one of them is {name!r}. A group shows one"
                " object: correct the groups of the test set."
            )
    mean = np.empty([len(first), embeddings.shape[1]], np.float32)
    order, ends = np.argsort(place, kind="stable"), np.cumsum(sizes)
    for row, (start, end) in enumerate(zip(ends - sizes, ends)):
        mean[row] = embeddings[order[start:end]].mean(axis=0, dtype=np.float64)
    # Sort instances by their first image.
    order = np.argsort(first)
    first = first[order]
    per_image = ("labels", "ids", "role", "group", *(("category",) if test.category is not None else ()))
    columns = {name: getattr(test, name)[first] for name in per_image}
    return l2_normalize(mean[order]).numpy(), dataclasses.replace(test, **columns), first


def _leave_one_out(test):
    rows = np.flatnonzero(test.role != "distractor")
    labels = _labels(test, rows, "leave_one_out")
    own = np.arange(len(rows))
    relevance = {"leave_one_out": relevance_by_label(labels, labels, own)}
    coarser = _coarser(test, rows, rows, own)
    return RetrievalTask(rows, rows, own, relevance, (labels, labels), True, coarser)


def _query_gallery(test):
    _check_roles(test)
    return _query_gallery_task("query_gallery", np.flatnonzero(test.role == "query"), _gallery(test), test)


def _random_gallery(test, rng):
    order = rng.permutation(len(test.labels))
    _, first = np.unique(test.labels[order], return_index=True)
    gallery = np.sort(order[first])
    return _query_gallery_task("random_gallery", np.setdiff1d(order, gallery), gallery, test)


def _query_gallery_task(name, queries, gallery, test):
    labels = _labels(test, queries, name), test.labels[gallery]
    own, relevance = np.full(len(queries), -1), {name: relevance_by_label(*labels)}
    coarser = _coarser(test, queries, gallery, own)
    return RetrievalTask(queries, gallery, own, relevance, labels, coarser=coarser)


def _coarser(test, queries, gallery, self_index):
    """What a query should find of its category; nothing if a query has none."""
    if test.category is None or np.any(test.category[queries] == UNKNOWN):
        return ()
    return (relevance_by_label(test.category[queries], test.category[gallery], self_index),)


def _revisited(test):
    if test.grades is None:
        raise InputError(
            "The test set has no graded relevance (ground_truth.json beside its records). Choose another"
            " protocol, such as leave_one_out."
        )
    _check_roles(test)
    queries = np.flatnonzero(test.role == "query")
    own = np.full(len(queries), -1)
    grades = [_grades_of(test, row) for row in queries]
    tasks = []
    for suffix, gallery in (("", np.flatnonzero(test.role == "gallery")), ("_distractors", _gallery(test))):
        place = {text_of(test.ids[row]): number for number, row in enumerate(gallery)}
        relevance = {}
        for name, (positive, ignored) in DIFFICULTIES.items():
            lists = ([_places(one, names, place) for one in grades] for names in (positive, ignored))
            relevance[name + suffix] = relevance_by_list(*lists)
        tasks.append(RetrievalTask(queries, gallery, own, relevance, None))
    return tasks if np.any(test.role == "distractor") else tasks[:1]


def _grades_of(test, row):
    name = text_of(test.ids[row])
    if name not in test.grades:
        raise InputError(f"The graded relevance has no query {name!r}, but the test set has it.")
    grades = test.grades[name]
    images = [image for grade in GRADES for image in grades.get(grade, ())]
    if set(grades) != set(GRADES) or len(set(images)) < len(images):
        raise InputError(
            f"The graded relevance of {name!r} must have the grades {GRADES}, and each image in one of them."
        )
    return grades


def _places(grades, names, place):
    images = [image for name in names for image in grades[name]]
    missing = [image for image in images if image not in place]
    if missing:
        raise InputError(f"The graded relevance names {missing[0]!r}, which the gallery does not have.")
    return np.array([place[image] for image in images], np.int64)


def _check_roles(test):
    for role in ("query", "gallery"):
        if not np.any(test.role == role):
            raise InputError(f"No image of the test set has the role {role!r}. Choose leave_one_out.")


def _gallery(test):
    return np.flatnonzero((test.role == "gallery") | (test.role == "distractor"))


def _labels(test, rows, protocol):
    labels = test.labels[rows]
    if np.any(labels == UNKNOWN):
        raise InputError(
            f"Images of the test set have no class (label -1), but {protocol} needs classes. Label the"
            " images, or choose the protocol revisited, which uses graded relevance."
        )
    return labels
