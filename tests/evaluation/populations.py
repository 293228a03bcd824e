"""Classes drawn from a population, and how many results are wrong in it."""

from typing import NamedTuple

import numpy as np


def drawn_classes(rng, classes, *, noise, images=6, dim=16):
    """Rows of classes of several spreads, and their labels."""

    def unit(rows):
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    centres = unit(rng.normal(size=(classes, 1, dim)))
    spread = noise * rng.uniform(0.5, 1.5, size=(classes, 1, 1))
    rows = unit(centres + spread * rng.normal(size=(classes, images, dim)))
    return rows.reshape(-1, dim).astype(np.float32), np.repeat(np.arange(classes), images)


class Population(NamedTuple):
    """The share of wrong results from each similarity on, in steps of `step`."""

    similarity: np.ndarray
    wrong: np.ndarray
    step: float

    def first(self, most):
        """The first similarity from which on at most that share of the results is wrong."""
        return self.similarity[np.flatnonzero(self.wrong > most)[-1] + 1]


def wrong_from(rng, classes, noise, draws=3000):
    """The population of indexes of so many classes, from many of them."""
    similarity = np.linspace(0, 0.999, 500)
    error, queries = np.zeros(500), np.zeros(500)
    for _ in range(max(20, draws // classes)):
        rows, labels = drawn_classes(rng, classes, noise=noise)
        product = rows @ rows.T
        np.fill_diagonal(product, -2)
        different = labels[:, None] != labels
        for place, least in enumerate(similarity):
            found = product >= least
            number = found.sum(axis=1)
            some = number > 0
            error[place] += ((found & different).sum(axis=1)[some] / number[some]).sum()
            queries[place] += some.sum()
    return Population(similarity, error / np.maximum(queries, 1), similarity[1])
